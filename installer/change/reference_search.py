"""Search the node for what names the toolkit, besides the configs of the ledger's engines.

Texts that engines read, engines beside those of the ledger, and links in PATH may name a program of ours.
``references.py`` judges what is found.
"""

import fnmatch
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.references import list_programs, list_start_paths
from installer.config_text import flatten
from installer.engines import ENGINES, config_files
from installer.engines.config_texts import tree_of
from installer.engines.containers import SHIM, find_programs_below, find_state_of_shim, list_states
from installer.engines.engine_processes import BY_PROCESS, EngineProcess, find_kind, has_generated_config
from installer.engines.other_engines import ask_process
from installer.engines.startup import flags_of, value_of
from installer.engines.toolkit_paths import (
    comes_back,
    find_below_toolkit,
    find_paths,
    leads_by_version,
    leads_to,
    list_places,
)
from installer.engines.used_configs import list_unknown_starts
from installer.errors import InstallerError
from installer.host.files import Host, text
from installer.host.inodes import is_same
from installer.host.processes import (
    LOOK_S,
    PROC,
    UnfinishedError,
    list_host_processes,
    read_command_line,
    start_time_of,
    unit_of,
)
from installer.model.engine import Engine, EngineState, Started
from installer.model.facts import Owner, Record, Reference, SpecialVersion
from installer.model.files import PATH, ROOT, Carried, File, Kind, Layout, host_path
from installer.model.options import Places
from installer.payload.access import find_portable
from installer.payload.files import EXECUTABLES, LINKS, real_name

SPEC_DIRS: Final = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
SPEC_SUFFIXES: Final = (".yaml", ".yml", ".json")  # also of a name without anything before it
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
SUFFIXES: Final = (*SPEC_SUFFIXES, ".conf", ".toml", ".service")
# The keys by which configs of Docker, containerd and CRI-O name more places; their case does not count.
SEARCHED_KEYS: Final = frozenset({"cdi-spec-dirs", "cdispecdirs", "hooksdir", "baseruntimespec"})
RUNTIME: Final = "nvidia-container-runtime"
ASK_S: Final = 2.0  # for all engines beside ours: a pod has 30 s for its undo, which searches twice
MOST_FILES: Final = 4096  # the host reads up to 16 MiB of each
PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))
SEARCHED_PROCESSES: Final = frozenset((*BY_PROCESS, CONMON, SHIM))


class NamedPrograms(Struct, frozen=True):
    """The programs that configs, flags and other references name; see the fields of ``Facts``."""

    links: Mapping[str, PurePosixPath]
    returning: frozenset[str]
    in_toolkit: Mapping[str, PurePosixPath]
    portable: Mapping[PurePosixPath, Carried]


class ReferenceSearch(Struct, frozen=True):
    """The search of a node.

    Attributes:
        host: The node.
        layout: The paths of the install.
        record: The ledger, without the rows that now belong to another installer.
        engines: The engines of the ledger, or of the install.
        contents: The configs that were read.
    """

    host: Host
    layout: Layout
    record: Record
    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]

    def search(self) -> Iterator[Reference]:
        """Search the node for references to the toolkit; the engines of the ledger are left out."""
        nodes = [str(node.path) for node in self.record.nodes]
        places = (*list_places(self.host, self.layout), *nodes)
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
        yield from self._search_units()
        yield from self._search_path()

    def _refer_unseen(self, how: str, remedy: str) -> Reference:
        """Keep the toolkit for an unread file or process, which may need it."""
        return Reference(how, str(self.layout.toolkit / RUNTIME), remedy)

    def follow_links(self, references: Collection[Reference]) -> NamedPrograms:
        """Resolve all named programs and the install-dir, and find the returning programs.

        A program returns if the undo restores the directory of another installer at the program's path.
        """
        layout = self.layout
        programs = [str(layout.install_dir)]
        for path, file in self.contents.items():
            programs += (str(path), *list_programs(file, path))
        programs += [each.program for each in references]
        for engine in self.engines:
            programs += (*engine.flags.runtimes.values(), *engine.next_flags.runtimes.values())
            programs += engine.served.binaries.values()
            programs += list_start_paths(engine)
        named = dict.fromkeys(programs)
        links = self._resolve(named)
        returning = set()
        in_toolkit: dict[str, PurePosixPath] = {}
        portable: dict[PurePosixPath, Carried] = {}
        for program in named:
            # The name counts before the target: a link in the toolkit is needed by its own name.
            paths = [host_path(program)]
            if program in links:
                paths.append(links[program])
            if any(comes_back(self.host, layout, path) for path in paths):
                returning.add(program)
            below = self._find_in_toolkit(paths)
            if below is None:
                continue
            in_toolkit[program] = below
            with suppress(InstallerError):
                carried = find_portable(self.host, layout, below)
                # A config that names the directory of a version loses the path with that version.
                if carried is not None and not leads_by_version(self.host, layout, paths[0]):
                    portable[below] = carried
                    wrapped = find_portable(self.host, layout, below.with_name(real_name(below.name)))
                    if wrapped is not None:
                        portable[wrapped.path] = wrapped
        return NamedPrograms(links, frozenset(returning), in_toolkit, portable)

    def _resolve(self, named: Iterable[str]) -> dict[str, PurePosixPath]:
        """Return the file behind each program that has another name than its file."""
        links: dict[str, PurePosixPath] = {}
        for value in named:
            for path in self._look_up(value):
                # A link that an untrusted user could have placed is not followed.
                with suppress(InstallerError):
                    ours = leads_to(self.host, path, self.layout)
                    real = ours or self.host.resolve(path)
                    if real != path:
                        links[value] = real
                    if ours is not None:
                        break
        return links

    def _find_in_toolkit(self, paths: Iterable[PurePosixPath]) -> PurePosixPath | None:
        """Return the first of ``paths`` that is in the toolkit, as a path below its directory."""
        for path in paths:
            below = find_below_toolkit(self.layout, path)
            with suppress(InstallerError):
                if below is not None and self.host.kind(path) is not Kind.ABSENT:
                    return below
        return None

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
        listed: set[tuple[PurePosixPath, int]] = set()
        for place, depth in {**places, **SEARCHED}.items():
            real_place, kind = _follow(host, place)
            if (real_place, depth) in listed:  # /lib is a link to /usr/lib
                continue
            listed.add((real_place, depth))
            texts: Iterable[tuple[PurePosixPath, PurePosixPath]] = ((place, real_place),)
            if kind is not Kind.FILE:
                texts = _list_below(host, place, real_place, depth)
            for path, real in texts:
                if real not in seen:
                    seen.add(real)
                    yield path

    def _search_engines(self) -> Iterator[Reference]:
        """Search running engines outside the ledger for programs: configs, flags, and what is in force.

        The containers of such an engine count, too, also while it is stopped.
        """
        host = self.host
        until_s = time.monotonic() + ASK_S
        states: set[PurePosixPath] = set()
        for each in list_host_processes(host, SEARCHED_PROCESSES):
            if each.name == CONMON and each.of_host:
                yield from _find_podmans_runtime(each.pid, read_command_line(host, each))
            if each.name == SHIM and each.of_host:
                state = find_state_of_shim(host, each.pid)
                if state is not None:
                    states.add(state)
            kind = find_kind(each)
            if kind is None:
                continue
            unit = unit_of(each.pid, host.local_path(PROC))
            process = EngineProcess(kind, each.pid, read_command_line(host, each))
            if not self._is_known(process, unit):
                yield from self._search_engine(process, unit or f"pid {each.pid}", until_s)
        for state in sorted(states - list_states(host, self.record, self.engines).keys()):
            yield from find_programs_below(host, self.layout, state)

    def _search_engine(self, process: EngineProcess, unit: str, until_s: float) -> Iterator[Reference]:
        """Search one engine for programs.

        Args:
            process: the engine's process.
            unit: the unit, or a name for the process.
            until_s: when to ask no more, by ``time.monotonic``.
        """
        host = self.host
        kind = process.kind
        words = process.words
        title = f"{kind.title} of {unit}"
        remedy = f"correct that, stop or restart {unit}"
        for name, program in flags_of(kind, Started(words)).runtimes.items():
            yield Reference(
                f"{title} runs and was started with a flag for {name}, which starts", program, remedy
            )

        # What is in force need not be in its config any more: somebody may have changed the config since.
        serving = ask_process(host, process, until_s)
        seen = self._view_of(process)
        engine = replace(EngineState.usual(kind), drop_in=None, unit=unit, started=Started(words))
        try:
            engine = config_files.with_places(seen, engine, Places())
            engine = config_files.with_readable_configs(seen, engine)
            unread = None
            if serving is None:
                unread = _find_changed(seen, engine, start_time_of(process.pid, host.local_path(PROC)))
            if unread is not None:
                how = f"{title} does not say what it serves, has not read {unread} since its last change,"
                yield self._refer_unseen(f"{how} and may start", f"restart {unit}")
            edited = self._list_edited(kind)
            for path, file in config_files.contents_of(seen, engine.files).items():
                is_edited = host.resolve(path) in edited and is_same(host.status(path), seen.status(path))
                if is_edited and (serving is not None or unread is not None):
                    continue  # the undo takes our edits out of it
                for program in list_programs(file, path):
                    yield Reference(f"{title} runs and reads {path}, which names", program, remedy)
        except InstallerError as error:
            if serving is None:
                how = f"{title} does not say what it serves, its config is unknown ({error.problem}),"
                yield self._refer_unseen(f"{how} and it may start", f"{error.remedy}, and restart {unit}")
        if serving is not None:
            for name, program in serving.binaries.items():
                if program:
                    yield Reference(f"{title} serves {name}, which starts", program, remedy)

    def _view_of(self, process: EngineProcess) -> Host:
        """Return the host as a process sees it; as this process sees it, without the right to look."""
        root = PurePosixPath(self.host.local_path(PROC), str(process.pid), "root")
        with suppress(InstallerError):  # without CAP_SYS_PTRACE another process's root cannot be read
            seen = Host.under(root)
            if seen.status(ROOT) is not None:
                return seen
        return self.host

    def _list_edited(self, kind: Engine) -> set[PurePosixPath]:
        """List the configs with our edits, or after an incomplete undo those that may have had some."""
        edited = {self.host.resolve(row.path) for row in self.record.configs if row.written}
        if self.record.undo_problem:
            for engine in self.engines:
                if engine.kind.process == kind.process:
                    edited.update(self.host.resolve(path) for path in engine.files)
        return edited

    def _is_known(self, process: EngineProcess, unit: str) -> bool:
        """Tell whether a process is an engine of the ledger, or finds the toolkit without a config."""
        for engine in self.engines:
            is_same = engine.pid == process.pid
            if engine.pid is None:
                is_same = bool(unit) and engine.unit == unit
            if is_same and engine.kind.process == process.kind.process:
                return True
        return has_generated_config(process.kind, process.words)

    def _search_units(self) -> Iterator[Reference]:
        """Keep a toolkit whose ledger was lost for a stopped engine with an unknown config."""
        toolkit = self.record.toolkit
        if toolkit is None or toolkit.version != SpecialVersion.ADOPTED:
            return
        for kind, program in list_unknown_starts(self.host):
            how = f"{kind.unit} starts {kind.title} through {program}, so its config is unknown, and may name"
            yield self._refer_unseen(how, f"start {kind.unit}")

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
                    ours = leads_to(self.host, program, self.layout)
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


def _find_changed(host: Host, engine: EngineState, began_s: float | None) -> PurePosixPath | None:
    """Return a file or directory by which an engine's configs have changed since its start, else None.

    Args:
        host: the host as the engine sees it.
        engine: the engine, with its configs.
        began_s: the start of the engine, by the wall clock; None if it has ended.

    Raises:
        InstallerError: the links on the way to a config cannot be followed.
    """
    if began_s is None:
        return None
    places = dict.fromkeys(engine.files)
    for path in engine.files:
        if host.kind(path) is Kind.ABSENT:  # it may have been removed
            places.update(
                dict.fromkeys((host.directory_above(path), host.directory_above(host.resolve(path))))
            )
        with suppress(InstallerError):  # the engine itself reports the flaw of an imported file
            patterns = engine.kind.list_imports(path, tree_of(host.read(path), path))
            places.update(dict.fromkeys(pattern.parent for pattern in patterns))
    for place in places:
        if host.changed_s(place) >= began_s:
            return place

    # A link may have been moved, or another directory moved to the place of one.
    for place in places:
        for step, changed_s in host.list_steps(place):
            if changed_s >= began_s:
                return step
    return None


def _find_podmans_runtime(pid: int, words: Sequence[str]) -> Iterator[Reference]:
    """Yield the runtime of a container of Podman's, by the command line of its conmon.

    Podman could not stop or remove the container without the runtime.
    """
    ends_by = value_of(words, ("--exit-command",)) or ""
    runtime = value_of(words, ("-r", "--runtime")) or ""
    if PurePosixPath(ends_by).name == "podman" and runtime:
        name = value_of(words, ("-n", "--name")) or f"of the conmon {pid}"
        yield Reference(f"Podman runs the container {name} with", runtime, "stop and remove that container")


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


def _list_below(
    host: Host, place: PurePosixPath, real_place: PurePosixPath, depth: int
) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield the files to search below a directory, each with its real path.

    ``real_place`` is the real path of the directory.
    """
    kinds: Mapping[str, Kind] = {}
    with suppress(InstallerError):
        kinds = host.kinds(real_place)
    for name, own_kind in kinds.items():
        path = place / name
        real = real_place / name
        kind = own_kind
        if kind is Kind.LINK:
            real, kind = _follow(host, path)
        if kind is Kind.FILE and path.name.endswith(SUFFIXES):
            yield path, real
        elif kind is Kind.DIRECTORY and depth:
            yield from _list_below(host, path, real, depth - 1)


def _follow(host: Host, path: PurePosixPath) -> tuple[PurePosixPath, Kind]:
    """Return the real path and the kind of a file; for a link that others than root can place no kind."""
    with suppress(InstallerError):
        real = host.resolve(path)
        return real, host.kind(real)
    return path, Kind.ABSENT
