"""Observe the node, reading only: its engines, and what else names the toolkit.

Texts, engines beside those of the ledger, and links in PATH may name the toolkit.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import PurePosixPath
from platform import machine
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.generate import absent_nodes, gpu_specification, held_node, management_specification
from installer.cdi.plan import SPECIFICATION, mode_of
from installer.change.ledger import read_saved
from installer.change.references import list_programs
from installer.config_text import flatten
from installer.engines import ENGINES, config_files, list_generating
from installer.engines.ask import ASK_S
from installer.engines.config_edits import holds_ours, text_of, tree_of
from installer.engines.containers import (
    COMMENT,
    find_in_use,
    find_paths,
    find_substitute_runtime,
    leads_to,
    list_hooks,
    list_places,
    with_live_containers,
)
from installer.engines.dependencies import driver_root, is_suse, served_by_image
from installer.engines.observe import drop_unused, explain_absence, find_engines, observe_row
from installer.engines.reload import with_creating
from installer.engines.startup import flags_of, path_of, unit_obstacles, value_of
from installer.errors import InstallerError, Option, Remedy
from installer.host import unit_jobs
from installer.host.files import Host, entries, is_file, text
from installer.host.processes import (
    LOOK_S,
    PROC,
    HostProcess,
    UnfinishedError,
    list_host_processes,
    read_command_line,
    unit_of,
)
from installer.host.trees import digests_below, sums_of
from installer.model.engine import Engine, EngineState, Started
from installer.model.facts import (
    CdiFacts,
    ContainerFacts,
    DeviceNode,
    DriverFacts,
    Facts,
    Owner,
    PayloadFacts,
    Record,
    Reference,
    ToolkitFacts,
)
from installer.model.files import PATH, VERSIONS, Artifact, File, Kind, Layout
from installer.model.options import Options, Places, RestartMode
from installer.payload import access
from installer.payload.config_toml import HOST_CONFIG
from installer.payload.files import EXECUTABLES, LINKS

SPEC_DIRS: Final = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SPEC_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
# The value is how many directories below are searched. Podman's directories are in containers.conf(5). The
# last directory has the config of NVIDIA's packaged toolkit, whose programs start the programs that it names.
SEARCHED: Final[Mapping[PurePosixPath, int]] = {
    **dict.fromkeys(SPEC_DIRS, 0),
    PurePosixPath("/etc/docker"): 1,
    PurePosixPath("/etc/containerd"): 1,
    PurePosixPath("/etc/crio"): 1,
    **{kind.hook_dir: 0 for kind in ENGINES.values() if kind.hook_dir is not None},
    PurePosixPath("/etc/containers"): 2,
    PurePosixPath("/usr/share/containers"): 2,
    PurePosixPath("/etc/systemd/system"): 1,
    PurePosixPath("/run/systemd/system"): 1,
    PurePosixPath("/usr/local/lib/systemd/system"): 1,
    PurePosixPath("/usr/lib/systemd/system"): 1,
    PurePosixPath("/lib/systemd/system"): 1,  # on a node where this is no link to /usr/lib
    PurePosixPath("/etc/nvidia-container-runtime"): 0,
}
CONMON: Final = "conmon"  # holds a container of Podman or CRI-O
SUFFIXES: Final = SPEC_SUFFIXES | {".conf", ".toml", ".service"}
# The keys by which configs of Docker, containerd and CRI-O name more places; their case does not count.
SEARCHED_KEYS: Final = frozenset({"cdi-spec-dirs", "cdispecdirs", "hooksdir", "baseruntimespec"})
RUNTIME: Final = "nvidia-container-runtime"
MOST_FILES: Final = 4096  # the host reads up to 16 MiB of each
TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime(?:-hook)?["'.]""")
PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))
# The engines by process. Of several with one process the first counts: the others derive from it.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if not engine.config_markers}


ENGINE_PROCESSES: Final = frozenset((*ROWS, CONMON))


class Node(Struct, frozen=True):
    """The node as it was read.

    ``former`` is the ledger as it was written; ``record`` leaves out the rows that now belong to
    another installer.
    """

    host: Host
    options: Options
    former: Record
    record: Record
    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]

    def facts(
        self,
        *,
        writes: Collection[PurePosixPath] = (),
        deep: bool = False,
        seeks_references: bool = False,
        **of_verb: Any,
    ) -> Facts:
        """Return the facts of a verb.

        Args:
            writes: the files that may be written; by default the configs of the ledger.
            deep: whether to hash the installed payload.
            seeks_references: whether to search the node for references to the toolkit.
            of_verb: the facts of this verb alone, as fields of ``Facts``.
        """
        host = self.host
        layout = self.options.layout
        rows = self.record.configs
        relinked = config_files.find_new_links(host, rows)
        references: tuple[Reference, ...] = ()
        if seeks_references:
            references = tuple(self.find_references())
        links, returning = self.follow_links(references)
        originals = {row.path: read_saved(host, layout, row.original) for row in rows}
        # A link in the place of our file goes with the file, so it counts as readable.
        engines = [replace(each, unreadable=each.unreadable - relinked.keys()) for each in self.engines]
        if not writes:
            writes = {row.path for row in rows}
        missing = config_files.list_missing_directories(host, writes)
        lost = set()
        for row in rows:
            if row.original and originals[row.path] is None:
                lost.add(row.path)
        return Facts(
            engines=tuple(engines),
            contents=self.contents,
            originals=originals,
            missing=frozenset(missing),
            toolkit=self._read_toolkit(deep=deep),
            record=self.record,
            lost=frozenset(lost),
            relinked=relinked,
            links=links,
            references=references,
            returning=returning,
            **of_verb,
        )

    def _read_toolkit(self, *, deep: bool) -> ToolkitFacts:
        host = self.host
        layout = self.options.layout
        former_row = self.former.toolkit
        link = host.link_target(layout.toolkit) or ""
        config = host.read(layout.config)
        replaced = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
        theirs = self.record.toolkit is None and access.is_foreign_toolkit(host, layout)
        version_names = host.names(layout.versions)
        kind = host.kind(layout.toolkit, last=False)
        versions = {}
        for name in version_names:
            if not name.startswith("."):
                versions[name] = entries(host, layout.version(name))
        config_text = text_of(config, layout.config) if config else None
        digests: Mapping[PurePosixPath, str] = {}
        if deep and link.startswith(VERSIONS):
            digests = digests_below(host, layout.install_dir / link)
        return ToolkitFacts(
            kind,
            link,
            versions,
            config_text,
            replaced,
            theirs,
            superseded=theirs and replaced and former_row is not None and former_row.replaced,
            digests=digests,
        )

    def find_obstacles(self, targets: Iterable[PurePosixPath], *, by_cdi: bool) -> Iterator[InstallerError]:
        """Yield the obstacles of any install on this node."""
        host = self.host
        options = self.options
        if self.engines:
            yield from served_by_image(host)
        yield from access.install_dir_obstacles(host, options.install_dir)
        if not by_cdi:
            yield from unit_obstacles(host, options, self.engines)
        yield from find_moved(host, options, self.contents.values())
        for path in sorted(targets):
            try:
                host.refuse_hard_linked(path)
            except InstallerError as error:
                yield error

    def find_references(self) -> Iterator[Reference]:
        """Search the node for references to the toolkit; the engines of the ledger are left out."""
        nodes = [str(node.path) for node in self.record.nodes]
        places = (*list_places(self.host, self.options.layout), *nodes)
        texts = self._list_texts()
        for path in islice(texts, MOST_FILES):
            for named in dict.fromkeys(find_paths(text(self.host, path), places)):
                yield Reference(f"{path} names", str(named))
        unread = next(texts, None)
        if unread is not None:
            yield self._refer_unseen(
                f"only {MOST_FILES} files are searched, and {unread}, which is not, may name",
                f"remove files that are not needed from {unread.parent}",
            )
        try:
            yield from self._search_engines()
        except UnfinishedError:
            yield self._refer_unseen(
                f"not all processes can be looked at within {LOOK_S:g} s, and one of the others may start",
                "see who runs so many with ps -e --no-headers -o user | sort | uniq -c, and end these",
            )
        yield from self._search_path()

    def _refer_unseen(self, how: str, remedy: str) -> Reference:
        """Keep the toolkit for an unread file or process, which may need it."""
        return Reference(how, str(self.options.layout.toolkit / RUNTIME), remedy)

    def follow_links(
        self, references: Collection[Reference]
    ) -> tuple[dict[str, PurePosixPath], frozenset[str]]:
        """Resolve all named programs and the install-dir, and find the returning programs.

        A program returns if the undo restores the directory of another installer at the program's path.
        """
        layout = self.options.layout
        links: dict[str, PurePosixPath] = {}
        programs = [str(layout.install_dir)]
        for path, file in self.contents.items():
            programs += list_programs(file, path)
        programs += [each.program for each in references]
        for engine in self.engines:
            programs += (*engine.flags.runtimes.values(), *engine.next_flags.runtimes.values())
            programs += engine.served.binaries.values()
        named = dict.fromkeys(programs)
        for value in named:
            for path in self._look_up(value):
                # A link that an untrusted user could have placed is not followed.
                with suppress(InstallerError):
                    ours = leads_to(self.host, path, layout)
                    real = ours or self.host.resolve(path)
                    if real != path:
                        links[value] = real
                    if ours is not None:
                        break
        returning = set()
        for program in named:
            if self._returns(links.get(program, program)):
                returning.add(program)
        return links, frozenset(returning)

    def _returns(self, program: str | PurePosixPath) -> bool:
        """Tell whether the replaced directory of another installer has a program at the same path."""
        path = PurePosixPath(program)
        layout = self.options.layout
        skipped_parts = {layout.versions: 1, layout.toolkit: 0}  # a version's own directory is skipped
        for above, skipped in skipped_parts.items():
            if path.is_relative_to(above):
                below = path.parts[len(above.parts) + skipped :]
                with suppress(InstallerError):
                    return self.host.kind(layout.replaced.joinpath(*below)) is Kind.FILE
        return False

    def _list_texts(self) -> Iterator[PurePosixPath]:
        """Yield the files to search, each once; of an edited config the text after the undo is judged."""
        host = self.host
        edited = set()
        for row in self.record.configs:
            file = self.contents.get(row.path)
            # A specification of ours that others have written anew is not ours any more.
            if row.engine == Owner.CDI and file is not None and file.digest not in row.ours:
                edited.add(row.path)
        seen = {host.resolve(path) for path in self.contents.keys() - edited}
        hook_dirs: list[PurePosixPath] = []
        for engine in self.engines:
            hook_dirs += engine.served.hook_dirs
        places = dict.fromkeys((*hook_dirs, *_list_places(self.contents)), 0)
        for place, depth in {**places, **SEARCHED}.items():
            paths: Iterable[PurePosixPath] = (place,)
            if not is_file(host, place):
                paths = _list_below(host, place, depth)
            for path in paths:
                with suppress(InstallerError):
                    real = host.resolve(path)
                    if real not in seen:
                        yield path
                    seen.add(real)

    def _search_engines(self) -> Iterator[Reference]:
        """Search the configs and flags of running engines outside the ledger for programs.

        Nothing connects to these engines: an engine takes each client of the NRI socket for a plugin.
        """
        host = self.host
        for process in list_host_processes(host, ENGINE_PROCESSES):
            if process.name == CONMON and process.of_host:
                yield from _find_podmans_runtime(process.pid, read_command_line(host, process))
            kind = ROWS.get(process.name) or ROWS.get(PurePosixPath(process.program).name)
            if kind is None or not process.of_host:
                continue
            unit = unit_of(process.pid, host.local_path(PROC))
            words = read_command_line(host, process)
            if not self._is_known(process, kind, unit, words):
                yield from self._search_engine(kind, unit or f"pid {process.pid}", words)

    def _search_engine(self, kind: Engine, unit: str, words: tuple[str, ...]) -> Iterator[Reference]:
        """Search the configs and flags of a unit's engine for programs."""
        host = self.host
        runs = f"{kind.title} of {unit} runs and"
        remedy = f"correct that, stop or restart {unit}"
        for name, program in flags_of(kind, Started(words)).runtimes.items():
            yield Reference(f"{runs} was started with a flag for {name}, which starts", program, remedy)
        engine = replace(EngineState.usual(kind), unit=unit, started=Started(words))
        with suppress(InstallerError):
            engine = config_files.with_places(host, engine, Places())
            files = config_files.contents_of(host, config_files.with_readable_configs(host, engine).files)
            for path, file in files.items():
                if path in self.contents:
                    continue
                for program in list_programs(file, path):
                    yield Reference(f"{runs} reads {path}, which names", program, remedy)

    def _is_known(self, process: HostProcess, kind: Engine, unit: str, words: Sequence[str]) -> bool:
        """Tell whether a process is an engine of the ledger, or finds the toolkit without a config."""
        for engine in self.engines:
            is_same = engine.pid == process.pid
            if engine.pid is None:
                is_same = bool(unit) and engine.unit == unit
            if is_same and engine.kind.process == kind.process:
                return True
        paths = map(PurePosixPath, words)
        return any(list_generating(kind.process, path, path) for path in paths)

    def _search_path(self) -> Iterator[Reference]:
        """Search PATH for links to our programs: engines and people start a program by a mere name."""
        patterns: list[str] = []
        for kind in ENGINES.values():
            patterns += kind.started_programs
        patterns += PROGRAMS
        wanted = re.compile("|".join(map(fnmatch.translate, patterns)))
        # containerd looks in the directory of its own program, too.
        beside_engines = [(engine.exe.parent,) for engine in self.engines if engine.exe]
        for path in (*self._list_paths(), *beside_engines):
            for program in self._list_in_path(path, wanted):
                with suppress(InstallerError):
                    ours = leads_to(self.host, program, self.options.layout)
                    if ours:
                        how = f"{program}, which is started though no config names it, leads to"
                        yield Reference(how, str(ours), f"put the node's own {program.name} there")

    def _list_in_path(
        self, path: Iterable[PurePosixPath], wanted: re.Pattern[str]
    ) -> Collection[PurePosixPath]:
        """Return the first file of each wanted name in the directories of a PATH."""
        programs: dict[str, PurePosixPath] = {}
        for directory in path:
            with suppress(InstallerError):
                for name in filter(wanted.match, self.host.names(directory)):
                    if self.host.kind(directory / name) is Kind.FILE:
                        programs.setdefault(name, directory / name)
        return programs.values()

    def _list_paths(self) -> tuple[tuple[PurePosixPath, ...], ...]:
        """Return the PATHs by which engines find programs, each once."""
        paths: list[tuple[PurePosixPath, ...]] = []
        for engine in self.engines:
            paths += engine.paths
        paths.append(PATH)
        return tuple(dict.fromkeys(paths))

    def _look_up(self, value: str) -> Iterator[PurePosixPath]:
        """Look a program up as engines do: by path, or in each PATH."""
        if "/" in value:
            if value.startswith("/"):
                yield PurePosixPath(value)
            return
        if not value:
            return
        for path in self._list_paths():
            with suppress(InstallerError):
                programs = [place / value for place in path if self.host.kind(place / value) is Kind.FILE]
                if programs:
                    yield programs[0]


def _find_podmans_runtime(pid: int, words: Sequence[str]) -> Iterator[Reference]:
    """Yield the runtime of a container of Podman's, by the command line of its conmon.

    Podman could not stop or remove the container without the runtime.
    """
    ends_by = value_of(words, ("--exit-command",)) or ""
    runtime = value_of(words, ("-r", "--runtime")) or ""
    if PurePosixPath(ends_by).name == "podman" and runtime:
        name = value_of(words, ("-n", "--name")) or f"of the conmon {pid}"
        yield Reference(f"Podman runs the container {name} with", runtime, "stop and remove that container")


# For a config of an engine that this install does not touch.
LEFT: Final = "{} of an earlier install cannot be replaced here: a stop has systemd undo it on the host"


def observe_install(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Facts:
    """Return the facts of an install.

    Args:
        host: the node.
        options: the options of the install.
        record: the ledger.
        patience_s: how long to wait for a crashed engine.
    """
    former = record
    record = _list_held(host, options, record)
    found = find_engines(host, options, record, patience_s)
    engines = found.engines
    unused: tuple[str, ...] = ()
    if options.auto:
        engines, unused = drop_unused(host, record, found.engines)
    if unused and not engines:
        raise explain_absence(host, options, unused)
    if options.restart_mode is RestartMode.WHEN_IDLE:
        engines = with_creating(host, engines)
    engines = tuple(with_live_containers(host, engine) for engine in engines)
    mode, _ = mode_of(engines, record, options)
    by_cdi = mode.by_cdi
    # The specification is read once: others may write it before the plan compares and replaces it.
    gpu_file: dict[PurePosixPath, File | None] = {}
    if by_cdi:
        gpu_file = {SPECIFICATION: host.read(SPECIFICATION)}
    cdi = _read_cdi(host, options, engines, record, gpu_file)
    specifications = {options.cdi.path} if options.cdi is not None else set()
    targets = specifications | gpu_file.keys()
    if not by_cdi:
        for engine in engines:
            targets |= {*config_files.list_targets(engine)}
    contents = _read_configs(host, record, engines, specifications) | gpu_file
    node = Node(host, options, former, record, engines, contents)
    obstacles = [*node.find_obstacles(targets, by_cdi=by_cdi)]
    running, _ = find_in_use(host, options.layout, record, engines)

    payload = _read_payload(host, options)
    driver, notes = driver_root(host, options)
    ldconfig_real = host.kind(PurePosixPath(driver, "sbin/ldconfig.real")) is Kind.FILE
    read = set(targets)
    for engine in engines:
        read.update(engine.files)
    untouched = {row.path for row in record.configs} - targets
    read_only = config_files.explain_unwritable(host, untouched)
    linked = set()
    for path in targets:
        if host.link_target(path) is not None:
            linked.add(host.resolve(path))
    host_config = ""
    if host.resolve(HOST_CONFIG) != host.resolve(options.layout.config):
        host_config = text(host, HOST_CONFIG)
    driver_facts = DriverFacts(driver, ldconfig_real, is_suse(host), host_config)
    real_paths = _find_real_paths(host, read)
    unwritable = config_files.explain_unwritable(host, targets)
    if not by_cdi:
        obstacles += found.overruled
    obstacles += find_loops(host, options, payload.artifacts)
    return node.facts(
        writes=targets | linked,
        deep=True,
        payload=payload,
        driver=driver_facts,
        cdi=cdi,
        containers=ContainerFacts(running),
        targets=real_paths,
        refused=found.refused,
        unwritable=unwritable,
        obstacles=tuple(obstacles),
        notes=(*found.notes, *unused, *notes, *map(LEFT.format, sorted(read_only))),
    )


def _read_payload(host: Host, options: Options) -> PayloadFacts:
    """Return the facts of the toolkit to install, and of the free space."""
    source = options.toolkit_source
    sums = sums_of(source)
    artifacts = access.read_artifacts(source, sums)
    interpreters = {artifact.interpreter for artifact in artifacts if artifact.interpreter is not None}
    absent = set()
    for path in interpreters:
        if host.kind(path) is not Kind.FILE:
            absent.add(path)
    version = access.ask_version(source, sums)
    free_bytes = host.free_bytes(options.install_dir)
    return PayloadFacts(artifacts, frozenset(absent), version, free_bytes, machine())


def _find_real_paths(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Return the real path of each path with a link in it."""
    real_paths = {}
    for path in paths:
        real = host.resolve(path)
        if real != path:
            real_paths[path] = real
    return real_paths


def _read_cdi(
    host: Host,
    options: Options,
    engines: tuple[EngineState, ...],
    record: Record,
    gpu_file: Mapping[PurePosixPath, File | None],
) -> CdiFacts:
    """Return the facts of CDI; ``gpu_file`` holds the present specification of the GPUs, in CDI mode."""
    wanted = options.cdi
    absent: tuple[DeviceNode, ...] = ()
    management = None
    if wanted is not None:
        absent = absent_nodes(host, wanted)
        # The specification names the device nodes, so it is generated after all of them exist.
        if not absent:
            management = management_specification(options.toolkit_source, options.layout, wanted)
    nodes = []
    for row in record.nodes:
        node = held_node(host, row)
        if node is not None:
            nodes.append(node)
    gpus = None
    if gpu_file:
        gpus = gpu_specification(host, options, engines, record, gpu_file[SPECIFICATION])
    return CdiFacts(management, absent, tuple(nodes), gpus)


def observe_adoption(host: Host, options: Options, more: Iterable[PurePosixPath] = ()) -> Facts:
    """Observe the edits of NVIDIA's own installer; engines may not read the configs of ``more``.

    Raises:
        InstallerError: no engine runs, or a config cannot be read.
    """
    record = Record()
    found = find_engines(host, options, record)
    refusal = next(iter(found.refused.values()), None)
    if refusal is not None:
        raise refusal
    engines = []
    for engine in found.engines:
        hooks = tuple(list_hooks(host, engine))
        engines.append(replace(engine, hooks=hooks))
    contents = _read_configs(host, record, engines, more)
    return Node(host, options, record, record, tuple(engines), contents).facts(notes=found.notes)


def observe_undo(host: Host, options: Options, record: Record, *, awaits_s: float = inf) -> Facts:
    """Return the facts of an undo.

    Args:
        host: the node.
        options: the options of the undo.
        record: the ledger.
        awaits_s: how long to wait, at most, for the end of an engine's restart.
    """
    former = record
    record = _list_held(host, options, record)
    engines = []
    for row in record.engines:
        if ENGINES[row.name].is_restarted and not record.finished:
            # A restart that was begun before a crash or a stop of ours may be going on.
            unit_jobs.await_no_job(host, row.unit, timeout_s=ASK_S)
        paths = [config.path for config in record.configs if config.engine == row.name]
        engine = observe_row(host, row, paths, options, awaits_s=awaits_s)
        engines.append(with_live_containers(host, engine))
    more: set[PurePosixPath] = set()
    for kind in ENGINES.values():
        more.update(config_files.usual_configs(host, kind))
    for places in options.places.values():
        if places.config:
            more.add(places.config)
        if places.drop_in:
            more.add(places.drop_in)
    for engine in engines:
        next_config = path_of(engine.next_words, engine.kind.cmdline.config)
        if next_config:
            more.add(next_config)
    contents = _read_configs(host, record, engines, more)
    running, idle = find_in_use(
        host, options.layout, record, engines, restarts=options.restart_mode is not RestartMode.NONE
    )
    low_level = find_substitute_runtime(host, record) if running else None
    node = Node(host, options, former, record, tuple(engines), contents)
    return node.facts(
        seeks_references=options.thorough,
        containers=ContainerFacts(running, idle, low_level),
        unwritable=config_files.explain_unwritable(host, [row.path for row in record.configs]),
    )


def _list_held(host: Host, options: Options, former: Record) -> Record:
    """Leave out the rows of another installer, and add a row for each copy of a config.

    Engines copy their root configs, and a link may have led to another path when the config was written.
    """
    record = access.drop_foreign(host, options.layout, former)
    known = {row.path for row in record.configs}
    configs = []
    for row in record.configs:
        copies: set[PurePosixPath] = set()
        real = host.resolve(row.path)
        if row.target is not None and row.target != real:
            copies.add(row.target)
        engine = ENGINES.get(row.engine)
        if engine is not None and row.path == engine.config and row.written:
            for path, file in config_files.contents_of(host, config_files.copies_of(host, engine)).items():
                if file is not None and holds_ours(row, file):
                    copies.add(path)
        configs.append(row)
        for path in sorted(copies - known):
            configs.append(replace(row, path=path, target=None))
    return replace(record, configs=tuple(configs))


def _read_configs(
    host: Host, record: Record, engines: Iterable[EngineState], more: Iterable[PurePosixPath] = ()
) -> dict[PurePosixPath, File | None]:
    """Read the configs of the engines, of the ledger and of an install, and ``more``."""
    paths = {*more, *(row.path for row in record.configs)}
    for each in engines:
        paths |= {*each.files, *each.hooks, *config_files.list_targets(each)}
    return config_files.contents_of(host, paths)


def find_loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Refuse a packaged program of the host with a link into our toolkit: the program would start itself."""
    if not options.in_place:
        return
    for artifact in artifacts:
        if leads_to(host, artifact.own_path, options.layout) is not None:
            yield InstallerError(
                f"use {artifact.own_path} in place (it leads into {options.layout.toolkit}: to itself)",
                remedy=Remedy("install the package again, or choose another ", Option("toolkit-source")),
                code="payload-unusable",
            )


def _list_places(contents: Mapping[PurePosixPath, File | None]) -> Iterator[PurePosixPath]:
    """Yield the paths in configs under a searched key."""
    for config, file in contents.items():
        with suppress(InstallerError):  # no engine can read this config
            for key, value in flatten(tree_of(file, config)):
                if key[-1] not in SEARCHED_KEYS:
                    continue
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, str) and each.startswith("/") and "\0" not in each:
                        yield PurePosixPath(each)


def _list_below(host: Host, place: PurePosixPath, depth: int) -> Iterator[PurePosixPath]:
    """Yield the files to search below a directory."""
    names: tuple[str, ...] = ()
    with suppress(InstallerError):
        names = host.names(place)
    for name in names:
        path = place / name
        if path.suffix in SUFFIXES and is_file(host, path):
            yield path
        elif depth:
            yield from _list_below(host, path, depth - 1)


def find_moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Refuse an engine's config with the toolkit of another install-dir."""
    toolkits: set[PurePosixPath] = set()
    for file in contents:
        toolkits |= list_toolkits(file)
    for place in sorted(toolkits):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (an engine's config still names the toolkit in {place})",
                remedy=f"uninstall that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def list_toolkits(file: File | None) -> set[PurePosixPath]:
    """Find the install-dirs in a config."""
    if file is None:
        return set()
    content = re.sub(COMMENT.pattern.encode(), b"", file.content)
    toolkits = set()
    for place in TOOLKITS.findall(content):
        toolkits.add(PurePosixPath(place.decode(errors="surrogateescape")))
    return toolkits
