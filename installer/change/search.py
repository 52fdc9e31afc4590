"""Who else names the toolkit: texts that are searched for its path, other engines, and links in PATH."""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.change.references import programs_named
from installer.engines import ENGINES, generating
from installer.engines.command_line import flags_of
from installer.engines.config_edits import tree_of
from installer.engines.config_files import contents_of, with_places, with_readable_configs
from installer.engines.containers import find_paths, leads_to, toolkit_places
from installer.engines.crio.effective import HOOK_DIR
from installer.errors import InstallerError, Option, Remedy
from installer.host.files import Host, is_file, text
from installer.host.processes import PROC, Seen, of_root, unit_of
from installer.model.effective import flat
from installer.model.engine_spec import EngineSpec
from installer.model.facts import EngineState, Facts, Reference, Started
from installer.model.files import Artifact, Kind
from installer.model.options import Options, Places
from installer.model.paths import PATH, Layout
from installer.model.record import OWNER
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
PROGRAMS: Final = (*(each.name for each in EXECUTABLES), *(str(each.path) for each in LINKS))
# Of several with one process the first is the one that others are made from.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if engine.generated is None}


def with_references(host: Host, facts: Facts, layout: Layout) -> Facts:
    """Return the facts with what names the toolkit besides the configs of the ledger's engines."""
    found = (
        *_search_texts(host, facts, layout),
        *_search_engines(host, facts),
        *_search_path(host, facts, layout),
    )
    facts = replace(facts, references=found)
    links = links_named(host, facts, layout)
    back = (each for each in _list_programs(facts) if _comes_back(host, links.get(each, each), layout))
    return replace(facts, links=links, returning=frozenset(back))


def links_named(host: Host, facts: Facts, layout: Layout) -> dict[str, PurePosixPath]:
    """Return where each program really is that something names otherwise, the install-dir as well.

    A link that a stranger could have placed leads nowhere: he decides nothing.
    """
    found, paths = {}, _list_paths(facts)
    for value in dict.fromkeys((str(layout.install_dir), *_list_programs(facts))):
        for path in _look_up(host, value, paths):
            with suppress(InstallerError):
                leads = leads_to(host, path, layout)
                real = leads or host.resolve(path)
                if real != path:
                    found[value] = real
                if leads is not None:
                    break
    return found


def loops(host: Host, options: Options, artifacts: Iterable[Artifact]) -> Iterator[InstallerError]:
    """Yield which program of the host's is not its own but leads to our toolkit, and so to itself."""
    for artifact in artifacts if options.in_place else ():
        if leads_to(host, artifact.own_path, options.layout) is not None:
            yield InstallerError(
                f"use {artifact.own_path} where it is (it leads into {options.layout.toolkit}: to itself)",
                remedy=Remedy("install the package again, or choose another ", Option("toolkit-source")),
                code="payload-unusable",
            )


def _search_texts(host: Host, facts: Facts, layout: Layout) -> Iterator[Reference]:
    """Yield what texts name of the toolkit, and which of its device nodes."""
    places = (*toolkit_places(host, layout), *(str(node.path) for node in facts.held.nodes))
    for path in islice(_list_texts(host, facts), MOST_FILES):
        for named in dict.fromkeys(find_paths(text(host, path), places)):
            yield Reference(f"{path} names", str(named))


def _list_texts(host: Host, facts: Facts) -> Iterator[PurePosixPath]:
    """Yield the files, each once, but those that are judged as what they will be.

    A specification of ours that somebody has written anew is his.
    """
    rows, now = facts.held.configs, facts.contents
    specs = {row.path: row.ours for row in rows if row.engine == OWNER}
    anew = {path for path, ours in specs.items() if (file := now.get(path)) and file.digest not in ours}
    seen = {host.resolve(path) for path in now.keys() - anew}
    served = (place for engine in facts.engines if engine.serving for place in engine.serving.hook_dirs)
    for place, depth in {**dict.fromkeys((*served, *_list_places(facts)), 0), **SEARCHED}.items():
        for path in (place,) if is_file(host, place) else _list_below(host, place, depth):
            with suppress(InstallerError):
                real = host.resolve(path)
                if real not in seen:
                    yield path
                seen.add(real)


def _list_places(facts: Facts) -> Iterator[PurePosixPath]:
    """Yield the paths that configs name by such a key; a config that no engine could read names none."""
    for config, file in facts.contents.items():
        with suppress(InstallerError):
            said = (value for key, value in flat(tree_of(file, config)) if key[-1] in SEARCHED_KEYS)
            for each in (each for value in said for each in (value if isinstance(value, list) else [value])):
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


def _search_engines(host: Host, facts: Facts) -> Iterator[Reference]:
    """Yield what engines that run beside those of the ledger read of the toolkit, or were started with.

    None of them is spoken to: an engine takes whoever connects to its NRI socket for a plugin.
    """
    for seen in of_root(host):
        row = ROWS.get(seen.name) or ROWS.get(PurePosixPath(seen.program).name)
        unit = unit_of(seen.pid, host.local_path(PROC))
        if row is None or not seen.of_host or _is_known(seen, row, unit, facts):
            continue
        runs, unit = f"{row.title} of {unit or f'pid {seen.pid}'} runs and", unit or f"pid {seen.pid}"
        remedy = f"correct that, stop or restart {unit}"
        for name, program in flags_of(row, Started(seen.cmdline)).runtimes.items():
            yield Reference(f"{runs} was started with a flag for {name}, which starts", program, remedy)
        engine = replace(EngineState.usual(row), unit=unit, started=Started(seen.cmdline))
        with suppress(InstallerError):
            engine = with_places(host, engine, Places())
            files = contents_of(host, with_readable_configs(host, engine).files)
            for path in (each for each in files if each not in facts.contents):
                for program in programs_named(files[path], path):
                    yield Reference(f"{runs} reads {path}, which names", program, remedy)


def _is_known(seen: Seen, spec: EngineSpec, unit: str, facts: Facts) -> bool:
    """Tell whether a process is an engine of the ledger, or one that looks for the toolkit at each start."""
    same = (each for each in facts.engines if ENGINES[each.name].process == spec.process)
    if any(each.pid == seen.pid or (each.pid is None and unit and each.unit == unit) for each in same):
        return True
    return any(generating(spec.process, path, path) for path in map(PurePosixPath, seen.cmdline))


def _search_path(host: Host, facts: Facts, layout: Layout) -> Iterator[Reference]:
    """Yield the programs that engines or people start by a word, and that lead to ours."""
    words = (*(word for engine in ENGINES.values() for word in engine.starts), *PROGRAMS)
    wanted = re.compile("|".join(map(fnmatch.translate, words)))
    # Where its own program is containerd looks, too.
    paths = (*_list_paths(facts), *((engine.exe.parent,) for engine in facts.engines if engine.exe))
    for path in paths:
        found: dict[str, PurePosixPath] = {}
        for place in path:
            with suppress(InstallerError):
                for name in filter(wanted.match, host.names(place)):
                    if host.kind(place / name) is Kind.FILE:
                        found.setdefault(name, place / name)
        for program in found.values():
            with suppress(InstallerError):
                if leads := leads_to(host, program, layout):
                    how = f"{program}, which is started though no config names it, leads to"
                    yield Reference(how, str(leads), f"put the node's own {program.name} there")


def _list_paths(facts: Facts) -> tuple[tuple[PurePosixPath, ...], ...]:
    """Return the PATHs by which engines find programs, each once."""
    return tuple(dict.fromkeys((*(path for engine in facts.engines for path in engine.paths), PATH)))


def _list_programs(facts: Facts) -> Iterator[str]:
    for path, file in facts.contents.items():
        yield from programs_named(file, path)
    yield from (each.program for each in facts.references)
    for engine in facts.engines:
        yield from (*engine.flags.runtimes.values(), *engine.next_flags.runtimes.values())
        yield from engine.serving.binaries.values() if engine.serving else ()


def _look_up(host: Host, value: str, paths: Iterable[tuple[PurePosixPath, ...]]) -> Iterator[PurePosixPath]:
    """Yield where a program is, as engines with these PATHs look for it."""
    if "/" in value:
        yield from [PurePosixPath(value)] if value.startswith("/") else []
        return
    for path in paths if value else ():
        with suppress(InstallerError):
            yield from [place / value for place in path if host.kind(place / value) is Kind.FILE][:1]


def _comes_back(host: Host, value: str | PurePosixPath, layout: Layout) -> bool:
    """Tell whether an undo leaves a program of that name, of the toolkit that stood there before ours."""
    path = PurePosixPath(value)
    if path.is_relative_to(layout.versions):
        below = path.parts[len(layout.versions.parts) + 1 :]
    elif path.is_relative_to(layout.toolkit):
        below = path.relative_to(layout.toolkit).parts
    else:
        return False
    with suppress(InstallerError):
        return host.kind(layout.replaced.joinpath(*below)) is Kind.FILE
    return False
