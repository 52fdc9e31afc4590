"""The node as it is: reads only. And who else names the toolkit: texts, other engines, links in PATH."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
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
from installer.engines.config_edits import holds_ours, text_of, tree_of
from installer.engines.containers import (
    COMMENT,
    find_in_use,
    find_paths,
    find_substitute_runtime,
    leads_to,
    list_hooks,
    list_places,
)
from installer.engines.crio.config import CONMON, HOOK_DIR
from installer.engines.dependencies import driver_root, is_suse, served_by_image
from installer.engines.observe import drop_unused, explain_absence, find_engines, observe_row
from installer.engines.restart import ASK_S, with_creating
from installer.engines.startup import flags_of, path_of, unit_obstacles, value_of
from installer.errors import InstallerError, Option, Remedy
from installer.host import unit_jobs
from installer.host.files import Host, entries, is_file, text
from installer.host.processes import PROC, HostProcess, list_root_processes, read_command_line, unit_of
from installer.host.trees import digests_below, sums_of
from installer.model.engine_spec import EngineSpec, ReloadMethod
from installer.model.facts import (
    OWNER,
    CdiFacts,
    ContainerFacts,
    DriverFacts,
    EngineState,
    Facts,
    PayloadFacts,
    Record,
    Reference,
    Started,
    ToolkitFacts,
)
from installer.model.files import PATH, VERSIONS, Artifact, File, Kind, Layout
from installer.model.options import Options, Places, RestartMode
from installer.payload import installed
from installer.payload.files import EXECUTABLES, LINKS

SPEC_DIRS: Final = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SPEC_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
# Each with how many directories below it are searched; Podman's are in containers.conf(5), and the last has
# the config of the toolkit of NVIDIA's packages, whose programs start what it names.
SEARCHED: Final[Mapping[PurePosixPath, int]] = {
    **dict.fromkeys(SPEC_DIRS, 0),
    PurePosixPath("/etc/docker"): 1,
    PurePosixPath("/etc/containerd"): 1,
    PurePosixPath("/etc/crio"): 1,
    PurePosixPath(HOOK_DIR): 0,
    PurePosixPath("/etc/containers"): 2,
    PurePosixPath("/usr/share/containers"): 2,
    PurePosixPath("/etc/systemd/system"): 1,
    PurePosixPath("/run/systemd/system"): 1,
    PurePosixPath("/usr/local/lib/systemd/system"): 1,
    PurePosixPath("/usr/lib/systemd/system"): 1,
    PurePosixPath("/lib/systemd/system"): 1,  # where that is no link to the one before
    PurePosixPath("/etc/nvidia-container-runtime"): 0,
}
SUFFIXES: Final = SPEC_SUFFIXES | {".conf", ".toml", ".service"}
# By which configs name more of them, in the words of Docker, containerd and CRI-O without case.
SEARCHED_KEYS: Final = frozenset({"cdi-spec-dirs", "cdispecdirs", "hooksdir", "baseruntimespec"})
MOST_FILES: Final = 4096  # of which the host gives up to 16 MiB each
TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime(?:-hook)?["'.]""")
PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))
# Of several with one process the first is the one that others are made from.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if not engine.marks}


class Node(Struct, frozen=True):
    """What was read of the node; ``former`` is the ledger of a node that may be another installer's now."""

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
        """Return the facts: what every verb depends on, and what is ``of_verb`` alone.

        ``deep`` hashes the payload in place; ``writes`` are files besides the ledger's that may be written.
        """
        host, layout, rows = self.host, self.options.layout, self.record.configs
        relinked = config_files.find_new_links(host, rows)
        references = tuple(self.find_references()) if seeks_references else ()
        links, returning = self.follow_links(references)
        originals = {row.path: read_saved(host, layout, row.original) for row in rows}
        return Facts(
            # Such a link goes with our file.
            tuple(replace(each, unreadable=each.unreadable - relinked.keys()) for each in self.engines),
            self.contents,
            originals,
            frozenset(config_files.list_missing_directories(host, writes or {row.path for row in rows})),
            self._read_toolkit(deep=deep),
            self.record,
            lost=frozenset(row.path for row in rows if row.original and originals[row.path] is None),
            relinked=relinked,
            links=links,
            references=references,
            returning=returning,
            **of_verb,
        )

    def _read_toolkit(self, *, deep: bool) -> ToolkitFacts:
        host, layout, former = self.host, self.options.layout, self.former
        link, config = host.link_target(layout.toolkit) or "", host.read(layout.config)
        replaced = host.kind(layout.replaced, last=False) is Kind.DIRECTORY
        theirs = self.record.toolkit is None and installed.is_foreign_toolkit(host, layout)
        versions = (name for name in host.names(layout.versions) if not name.startswith("."))
        return ToolkitFacts(
            host.kind(layout.toolkit, last=False),
            link,
            {name: entries(host, layout.version(name)) for name in versions},
            text_of(config, layout.config) if config else None,
            replaced,
            theirs,
            superseded=theirs and replaced and former.toolkit is not None and former.toolkit.replaced,
            digests=digests_below(host, layout.install_dir / link)
            if deep and link.startswith(VERSIONS)
            else {},
        )

    def find_obstacles(self, targets: Iterable[PurePosixPath], *, by_cdi: bool) -> Iterator[InstallerError]:
        """Yield what stands against any install on this node."""
        host, options = self.host, self.options
        if self.engines:
            yield from served_by_image(host)
        yield from installed.install_dir_obstacles(host, options.install_dir)
        if not by_cdi:
            yield from unit_obstacles(host, options, self.engines)
        yield from find_moved(host, options, self.contents.values())
        for path in sorted(targets):
            try:
                host.refuse_unreplaceable(path)
            except InstallerError as error:
                yield error

    def find_references(self) -> Iterator[Reference]:
        """Yield what names the toolkit, or its device nodes, besides the configs of the ledger's engines."""
        nodes = (str(node.path) for node in self.record.nodes)
        places = (*list_places(self.host, self.options.layout), *nodes)
        for path in islice(self._list_texts(), MOST_FILES):
            for named in dict.fromkeys(find_paths(text(self.host, path), places)):
                yield Reference(f"{path} names", str(named))
        yield from self._search_engines()
        yield from self._search_path()

    def follow_links(
        self, references: Collection[Reference]
    ) -> tuple[dict[str, PurePosixPath], frozenset[str]]:
        """Return where each program that something names and the install-dir are; and which come back."""
        layout, links = self.options.layout, dict[str, PurePosixPath]()
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
                with suppress(InstallerError):  # a link that a stranger could have placed leads nowhere
                    leads = leads_to(self.host, path, layout)
                    real = leads or self.host.resolve(path)
                    if real != path:
                        links[value] = real
                    if leads is not None:
                        break
        return links, frozenset(each for each in named if self._comes_back(links.get(each, each)))

    def _comes_back(self, program: str | PurePosixPath) -> bool:
        path, layout = PurePosixPath(program), self.options.layout
        for above, skipped in ((layout.versions, 1), (layout.toolkit, 0)):
            if path.is_relative_to(above):
                below = path.parts[len(above.parts) + skipped :]
                with suppress(InstallerError):
                    return self.host.kind(layout.replaced.joinpath(*below)) is Kind.FILE
        return False

    def _list_texts(self) -> Iterator[PurePosixPath]:
        """Yield the files, each once, but those that are judged as what they will be."""
        host, now = self.host, self.contents
        specs = {row.path: row.ours for row in self.record.configs if row.engine == OWNER}
        # A specification of ours that was written anew is not ours.
        anew = {path for path, ours in specs.items() if (file := now.get(path)) and file.digest not in ours}
        seen = {host.resolve(path) for path in now.keys() - anew}
        served = (place for each in self.engines for place in each.served.hook_dirs)
        places = dict.fromkeys((*served, *_list_places(now)), 0)
        for place, depth in {**places, **SEARCHED}.items():
            for path in (place,) if is_file(host, place) else _list_below(host, place, depth):
                with suppress(InstallerError):
                    real = host.resolve(path)
                    if real not in seen:
                        yield path
                    seen.add(real)

    def _search_engines(self) -> Iterator[Reference]:
        """Yield what engines beside those of the ledger read of the toolkit, or were started with."""
        host = self.host
        # None of them is spoken to: an engine takes whoever connects to its NRI socket for a plugin.
        for seen in list_root_processes(host):
            if seen.name == CONMON and seen.of_host:
                yield from _find_podmans_runtime(seen.pid, read_command_line(host, seen))
            row = ROWS.get(seen.name) or ROWS.get(PurePosixPath(seen.program).name)
            if row is None or not seen.of_host:
                continue
            unit = unit_of(seen.pid, host.local_path(PROC))
            words = read_command_line(host, seen)
            if self._is_known(seen, row, unit, words):
                continue
            runs, unit = f"{row.title} of {unit or f'pid {seen.pid}'} runs and", unit or f"pid {seen.pid}"
            remedy = f"correct that, stop or restart {unit}"
            for name, program in flags_of(row, Started(words)).runtimes.items():
                yield Reference(f"{runs} was started with a flag for {name}, which starts", program, remedy)
            engine = replace(EngineState.usual(row), unit=unit, started=Started(words))
            with suppress(InstallerError):
                engine = config_files.with_places(host, engine, Places())
                files = config_files.contents_of(host, config_files.with_readable_configs(host, engine).files)
                for path in (each for each in files if each not in self.contents):
                    for program in list_programs(files[path], path):
                        yield Reference(f"{runs} reads {path}, which names", program, remedy)

    def _is_known(self, seen: HostProcess, spec: EngineSpec, unit: str, words: Sequence[str]) -> bool:
        """Tell whether a process is an engine of the ledger, or looks for the toolkit at its start."""
        for each in self.engines:
            is_it = each.pid == seen.pid or (each.pid is None and unit and each.unit == unit)
            if is_it and each.spec.process == spec.process:
                return True
        return any(list_generating(spec.process, path, path) for path in map(PurePosixPath, words))

    def _search_path(self) -> Iterator[Reference]:
        """Yield the programs that engines or people start by a word, and that lead to ours."""
        words = (*chain.from_iterable(engine.starts for engine in ENGINES.values()), *PROGRAMS)
        wanted = re.compile("|".join(map(fnmatch.translate, words)))
        # Where its own program is containerd looks, too.
        for path in (*self._list_paths(), *((each.exe.parent,) for each in self.engines if each.exe)):
            found: dict[str, PurePosixPath] = {}
            for place in path:
                with suppress(InstallerError):
                    for name in filter(wanted.match, self.host.names(place)):
                        if self.host.kind(place / name) is Kind.FILE:
                            found.setdefault(name, place / name)
            for program in found.values():
                with suppress(InstallerError):
                    if leads := leads_to(self.host, program, self.options.layout):
                        how = f"{program}, which is started though no config names it, leads to"
                        yield Reference(how, str(leads), f"put the node's own {program.name} there")

    def _list_paths(self) -> tuple[tuple[PurePosixPath, ...], ...]:
        """Return the PATHs by which engines find programs, each once."""
        return tuple(dict.fromkeys((*(path for engine in self.engines for path in engine.paths), PATH)))

    def _look_up(self, value: str) -> Iterator[PurePosixPath]:
        """Yield where a program is, as engines look for it."""
        if "/" in value:
            yield from [PurePosixPath(value)] if value.startswith("/") else []
            return
        for path in self._list_paths() if value else ():
            with suppress(InstallerError):
                yield from [place / value for place in path if self.host.kind(place / value) is Kind.FILE][:1]


def _find_podmans_runtime(pid: int, words: Sequence[str]) -> Iterator[Reference]:
    """Yield what Podman started a container with, which it could not stop or remove without that."""
    ends_by = value_of(words, ("--exit-command",)) or ""
    runtime = value_of(words, ("-r", "--runtime")) or ""
    if PurePosixPath(ends_by).name == "podman" and runtime:
        name = value_of(words, ("-n", "--name")) or f"of the conmon {pid}"
        yield Reference(f"Podman runs the container {name} with", runtime, "stop and remove that container")


# Of another engine, or of one that this install does not touch.
LEFT: Final = "{} of an earlier install is read-only here: a stop has systemd undo it on the host"


def observe_install(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Facts:
    """Return what an install depends on; an engine that has crashed is waited for ``patience_s``."""
    former, record = record, _list_held(host, options, record)
    found = find_engines(host, options, record, patience_s)
    engines, unused = drop_unused(host, record, found.engines) if options.auto else (found.engines, ())
    if unused and not engines:
        raise explain_absence(host, options, unused)
    if options.restart_mode is RestartMode.WHEN_IDLE:
        engines = with_creating(host, engines)
    # Read once: whose it is and what is replaced are the same text, also where it is written meanwhile.
    by_cdi = mode_of(engines, record, options)[0].by_cdi
    gpu_file = {SPECIFICATION: host.read(SPECIFICATION)} if by_cdi else {}
    cdi = _read_cdi(host, options, engines, record, gpu_file)
    specifications = {options.cdi.path} if options.cdi is not None else set()
    targets = specifications | gpu_file.keys()
    for engine in engines if not by_cdi else ():
        targets |= {*config_files.list_targets(engine)}
    contents = _read_configs(host, record, engines, specifications) | gpu_file
    node = Node(host, options, former, record, engines, contents)
    obstacles = (*node.find_obstacles(targets, by_cdi=by_cdi),)
    running = find_in_use(host, options.layout, record, engines)[0]
    source = options.toolkit_source
    artifacts = installed.read_artifacts(source, sums := sums_of(source))
    scripts = {artifact.interpreter for artifact in artifacts if artifact.interpreter is not None}
    absent = frozenset(path for path in scripts if host.kind(path) is not Kind.FILE)
    version, free_bytes = installed.ask_version(source, sums), host.free_bytes(options.install_dir)
    driver, notes = driver_root(host, options)
    ldconfig_real = host.kind(PurePosixPath(driver, "sbin/ldconfig.real")) is Kind.FILE
    loops = find_loops(host, options, artifacts)
    read = targets.union(*(engine.files for engine in engines))
    left = config_files.explain_unwritable(host, {row.path for row in record.configs} - targets)
    return node.facts(
        writes=targets | {host.resolve(path) for path in targets if host.link_target(path) is not None},
        deep=True,
        payload=PayloadFacts(artifacts, absent, version, free_bytes, machine()),
        driver=DriverFacts(driver, ldconfig_real, is_suse(host)),
        cdi=cdi,
        containers=ContainerFacts(running),
        targets={path: real for path in read if (real := host.resolve(path)) != path},
        refused=found.refused,
        unwritable=config_files.explain_unwritable(host, targets),
        obstacles=(*obstacles, *(() if by_cdi else found.overruled), *loops),
        notes=(*found.notes, *unused, *notes, *map(LEFT.format, sorted(left))),
    )


def _read_cdi(
    host: Host,
    options: Options,
    engines: tuple[EngineState, ...],
    record: Record,
    gpu_file: Mapping[PurePosixPath, File | None],
) -> CdiFacts:
    wanted = options.cdi
    absent = absent_nodes(host, wanted) if wanted is not None else ()
    return CdiFacts(
        # It names the device nodes that are there.
        management_specification(options.toolkit_source, options.layout, wanted)
        if wanted is not None and not absent
        else None,
        absent,
        tuple(now for node in record.nodes if (now := held_node(host, node)) is not None),
        gpu_specification(host, options, engines, record, gpu_file[SPECIFICATION]) if gpu_file else None,
    )


def observe_adoption(host: Host, options: Options, more: Iterable[PurePosixPath] = ()) -> Facts:
    """Return what NVIDIA's own installer left; InstallerError: no engine runs, or a config cannot be read.

    ``more`` are configs that no engine may read.
    """
    found, record = find_engines(host, options, Record()), Record()
    for error in found.refused.values():
        raise error
    engines = tuple(replace(engine, hooks=tuple(list_hooks(host, engine))) for engine in found.engines)
    contents = _read_configs(host, record, engines, more)
    return Node(host, options, record, record, engines, contents).facts(notes=found.notes)


def observe_undo(host: Host, options: Options, record: Record, *, awaits_s: float = inf) -> Facts:
    """Return what an undo depends on; an engine between two lives is waited for, ``awaits_s`` at most."""
    former, record = record, _list_held(host, options, record)
    engines = []
    for row in record.engines:
        if ENGINES[row.name].reload is ReloadMethod.RESTART and not record.finished:
            # A restart that was asked for before a crash, or before a stop, may be going on.
            unit_jobs.await_no_job(host, row.unit, timeout_s=ASK_S)
        paths = (config.path for config in record.configs if config.engine == row.name)
        engines.append(observe_row(host, row, paths, options, awaits_s=awaits_s))
    more = {path for engine in ENGINES.values() for path in config_files.usual_configs(host, engine)}
    more |= {path for places in options.places.values() for path in (places.config, places.drop_in) if path}
    more |= {path for each in engines if (path := path_of(each.next_words, each.spec.cmdline.config))}
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
    """Return the rows that are ours still, and those of copies, and of places that links led to."""
    held = installed.drop_foreign(host, options.layout, former)
    configs, known = [], {row.path for row in held.configs}
    for row in held.configs:
        others = {row.target} - {None, host.resolve(row.path)}
        engine = ENGINES.get(row.engine)
        if engine is not None and row.path == engine.config and row.written:
            copies = config_files.contents_of(host, config_files.copies_of(host, engine))
            others |= {path for path, now in copies.items() if now is not None and holds_ours(row, now)}
        more = sorted({*filter(None, others)} - known)
        configs += [row, *(replace(row, path=path, target=None) for path in more)]
    return replace(held, configs=tuple(configs))


def _read_configs(
    host: Host, record: Record, engines: Iterable[EngineState], more: Iterable[PurePosixPath] = ()
) -> dict[PurePosixPath, File | None]:
    """Return all configs that engines read or that are held, and those that may be written."""
    paths = {*more, *(row.path for row in record.configs)}
    for each in engines:
        paths |= {*each.files, *each.hooks, *config_files.list_targets(each)}
    return config_files.contents_of(host, paths)


def find_loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Yield which program of the host's is not its own but leads to our toolkit, and so to itself."""
    for artifact in artifacts if options.in_place else ():
        if leads_to(host, artifact.own_path, options.layout) is not None:
            yield InstallerError(
                f"use {artifact.own_path} in place (it leads into {options.layout.toolkit}: to itself)",
                remedy=Remedy("install the package again, or choose another ", Option("toolkit-source")),
                code="payload-unusable",
            )


def _list_places(contents: Mapping[PurePosixPath, File | None]) -> Iterator[PurePosixPath]:
    """Yield the paths that configs name by such a key; a config that no engine could read names none."""
    for config, file in contents.items():
        with suppress(InstallerError):
            values = (value for key, value in flatten(tree_of(file, config)) if key[-1] in SEARCHED_KEYS)
            lists = (value if isinstance(value, list) else [value] for value in values)
            for each in chain.from_iterable(lists):
                if isinstance(each, str) and each.startswith("/") and "\0" not in each:
                    yield PurePosixPath(each)


def _list_below(host: Host, place: PurePosixPath, depth: int) -> Iterator[PurePosixPath]:
    names: tuple[str, ...] = ()
    with suppress(InstallerError):
        names = host.names(place)
    for path in (place / name for name in names):
        if path.suffix in SUFFIXES and is_file(host, path):
            yield path
        elif depth:
            yield from _list_below(host, path, depth - 1)


def find_moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Yield why an install-dir cannot move: an engine still names the toolkit in another one of ours."""
    for place in sorted({place for file in contents for place in list_toolkits(file)}):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (an engine's config still names the toolkit in {place})",
                remedy=f"uninstall that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def list_toolkits(file: File | None) -> set[PurePosixPath]:
    """Return the install-dirs that a config names."""
    content = re.sub(COMMENT.pattern.encode(), b"", file.content) if file else b""
    return {PurePosixPath(place.decode(errors="surrogateescape")) for place in TOOLKITS.findall(content)}
