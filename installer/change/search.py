"""Who else names the toolkit: texts that are searched for its path, other engines, and links in PATH."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.references import list_programs
from installer.config_text import flatten
from installer.engines import ENGINES, list_generating
from installer.engines.config_edits import tree_of
from installer.engines.config_files import contents_of, copies_of, with_places, with_readable_configs
from installer.engines.containers import COMMENT, find_paths, leads_to, list_places
from installer.engines.crio import HOOK_DIR
from installer.engines.startup import flags_of
from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host, is_file, text
from installer.host.processes import PROC, HostProcess, list_root_processes, unit_of
from installer.model.engine_spec import EngineSpec
from installer.model.facts import EngineState, Reference, Started
from installer.model.files import PATH, Artifact, File, Kind, Layout
from installer.model.options import Options, Places
from installer.model.record import OWNER, Record
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
    PurePosixPath("/usr/share/containers"): 1,
    PurePosixPath("/etc/systemd/system"): 1,
    PurePosixPath("/run/systemd/system"): 1,
    PurePosixPath("/etc/nvidia-container-runtime"): 0,
}
SUFFIXES: Final = SPEC_SUFFIXES | {".conf", ".toml", ".service"}
# By which configs name more of them, in the words of Docker, containerd and CRI-O without case.
SEARCHED_KEYS: Final = frozenset({"cdi-spec-dirs", "cdispecdirs", "hooksdir", "baseruntimespec"})
MOST_FILES: Final = 4096  # of which the host gives up to 16 MiB each
TOOLKITS: Final = re.compile(rb"""["'](/[^"'\n]*)/toolkit/nvidia-container-runtime["'.]""")
CONFIG_SUFFIXES: Final = frozenset({".json", ".toml", ".conf"})  # where drop-ins lie; not config.toml.bak
PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))
# Of several with one process the first is the one that others are made from.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if engine.generated is None}


class Search(Struct, frozen=True):
    """Where what names the toolkit is searched for: engines, their configs, and what is held."""

    host: Host
    layout: Layout
    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]
    record: Record

    def find_references(self) -> Iterator[Reference]:
        """Yield what names the toolkit, or its device nodes, besides the configs of the ledger's engines."""
        nodes = (str(node.path) for node in self.record.nodes)
        places = (*list_places(self.host, self.layout), *nodes)
        for path in islice(self._list_texts(), MOST_FILES):
            for named in dict.fromkeys(find_paths(text(self.host, path), places)):
                yield Reference(f"{path} names", str(named))
        yield from self._search_engines()
        yield from self._search_path()

    def follow_links(
        self, references: Collection[Reference]
    ) -> tuple[dict[str, PurePosixPath], frozenset[str]]:
        """Return where each program that something names and the install-dir are; and which come back."""
        links: dict[str, PurePosixPath] = {}
        programs = [str(self.layout.install_dir)]
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
                    leads = leads_to(self.host, path, self.layout)
                    real = leads or self.host.resolve(path)
                    if real != path:
                        links[value] = real
                    if leads is not None:
                        break
        return links, frozenset(each for each in named if self._comes_back(links.get(each, each)))

    def _comes_back(self, program: str | PurePosixPath) -> bool:
        path = PurePosixPath(program)
        for above, skipped in ((self.layout.versions, 1), (self.layout.toolkit, 0)):
            if path.is_relative_to(above):
                below = path.parts[len(above.parts) + skipped :]
                with suppress(InstallerError):
                    return self.host.kind(self.layout.replaced.joinpath(*below)) is Kind.FILE
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
            row = ROWS.get(seen.name) or ROWS.get(PurePosixPath(seen.program).name)
            unit = unit_of(seen.pid, host.local_path(PROC))
            if row is None or not seen.of_host or self._is_known(seen, row, unit):
                continue
            runs, unit = f"{row.title} of {unit or f'pid {seen.pid}'} runs and", unit or f"pid {seen.pid}"
            remedy = f"correct that, stop or restart {unit}"
            for name, program in flags_of(row, Started(seen.cmdline)).runtimes.items():
                yield Reference(f"{runs} was started with a flag for {name}, which starts", program, remedy)
            engine = replace(EngineState.usual(row), unit=unit, started=Started(seen.cmdline))
            with suppress(InstallerError):
                engine = with_places(host, engine, Places())
                files = contents_of(host, with_readable_configs(host, engine).files)
                for path in (each for each in files if each not in self.contents):
                    for program in list_programs(files[path], path):
                        yield Reference(f"{runs} reads {path}, which names", program, remedy)

    def _is_known(self, seen: HostProcess, spec: EngineSpec, unit: str) -> bool:
        """Tell whether a process is an engine of the ledger, or looks for the toolkit at its start."""
        for each in self.engines:
            is_it = each.pid == seen.pid or (each.pid is None and unit and each.unit == unit)
            if is_it and each.spec.process == spec.process:
                return True
        return any(list_generating(spec.process, path, path) for path in map(PurePosixPath, seen.cmdline))

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
                    if leads := leads_to(self.host, program, self.layout):
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


def find_loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Yield which program of the host's is not its own but leads to our toolkit, and so to itself."""
    for artifact in artifacts if options.in_place else ():
        if leads_to(host, artifact.own_path, options.layout) is not None:
            yield InstallerError(
                f"use {artifact.own_path} where it is (it leads into {options.layout.toolkit}: to itself)",
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


# By install-dir: the configs that name its toolkit, and whose they are.
Named = Mapping[PurePosixPath, Mapping[PurePosixPath, str]]


def find_toolkits(host: Host, places: Mapping[str, Places]) -> Named:
    """Return the install-dirs that the configs of engines name, by file and engine; no engine is asked."""
    named: dict[PurePosixPath, dict[PurePosixPath, str]] = {}
    for name, path in _list_configs(host, places):
        with suppress(InstallerError):  # what cannot be read names nothing that could be undone
            for directory in _list_toolkits(host.read(path)):
                named.setdefault(directory, {})[path] = name
    return named


def find_moved(host: Host, options: Options, contents: Iterable[File | None]) -> Iterator[InstallerError]:
    """Yield why an install-dir cannot move: an engine still names the toolkit in another one of ours."""
    for place in sorted({place for file in contents for place in _list_toolkits(file)}):
        if place != options.install_dir and host.exists(Layout(place).ledger):
            yield InstallerError(
                f"install into {options.install_dir} (an engine's config still names the toolkit in {place})",
                remedy=f"uninstall that first: toolkit-installer uninstall --install-dir {place}",
                code="installed-elsewhere",
            )


def _list_toolkits(file: File | None) -> set[PurePosixPath]:
    """Return the install-dirs that a config names."""
    content = re.sub(COMMENT.pattern.encode(), b"", file.content) if file else b""
    return {PurePosixPath(place.decode(errors="surrogateescape")) for place in TOOLKITS.findall(content)}


def _list_configs(host: Host, places: Mapping[str, Places]) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the configs that an engine may read: its own, and what lies where drop-ins do."""
    for engine in ENGINES.values():
        if engine.finds:
            continue
        place = places.get(engine.name, Places())
        config, drop_in = place.config or engine.config, place.drop_in or engine.drop_ins.usual
        found = [config, *([drop_in] if drop_in else ()), *copies_of(host, engine)]
        for directory in filter(None, (config.parent, config.parent / "conf.d", engine.drop_ins.directory)):
            with suppress(InstallerError):
                beside = (directory / name for name in host.names(directory))
                found += [path for path in beside if path.suffix in CONFIG_SUFFIXES]
        yield from ((engine.name, path) for path in dict.fromkeys(found))
