"""Engines that run beside those of the ledger: what their configs and flags name of the toolkit.

They are not ours, so none is spoken to: an engine takes whoever connects to its NRI socket for a plugin.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass, replace
from installer.decide.engines import ENGINES, generating
from installer.decide.engines.row import Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts, OtherEngine
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.options import Places
from installer.decide.references import programs_named
from installer.host.files import Host
from installer.host.process_table import PROC, Seen, directory_of, of_root, read_open
from installer.host.processes import unit_of
from installer.record.cmdline import value_of
from installer.record.configs import contents_of, with_readable_configs
from installer.record.handed import given_back
from installer.record.links import Ours, candidates, unnamed
from installer.record.reads import with_places
from installer.record.started import flags_and_paths

# Of several with one process the first is the one that others are made from.
ROWS: Final = {engine.process: engine for engine in reversed(ENGINES.values()) if engine.generated is None}
NAMES: Final = ("dockerd", "containerd")  # builds by other names: docker-containerd, dockerd-gpu
# What has such a name and is none: shims, clients, snapshotters, what puts Docker behind CRI.
NO_ENGINES: Final = re.compile(r"shim|\bctr\b|grpc|stress|rootless|^cri-dockerd")
LOADER: Final = re.compile(r"ld[.-].*\.so")
DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/(?:self|thread-self|\d+))/fd/(\d+)|/dev/(stdin)")


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that runs, the row that it is read by, and the host as it sees that."""

    seen: Seen
    row: Engine
    process: Path
    view: Host


def with_other_engines(host: Host, facts: Facts, layout: Layout) -> Facts:
    """Return the facts with each such engine that runs and names a program of the toolkit, as it sees it."""
    ours, found = Ours(host, layout, theirs=facts.toolkit.theirs), []
    for seen in of_root(host):
        row = row_of(seen)
        if row is not None and not _known(host, seen, row, facts):
            process = host.local_path(PROC) / str(seen.pid)
            view = host if seen.of_host else Host.under(PurePosixPath(process / "root"))
            with suppress(InstallerError):
                found.append(_other(host, Running(seen, row, process, view), facts, ours))
    return replace(facts, other_engines=tuple(each for each in found if each.named))


def row_of(seen: Seen) -> Engine | None:
    """Return the row that a process is read by: by its name, or by that of its program."""
    names = [seen.name, PurePosixPath(seen.program).name]
    if LOADER.match(names[1]):  # started by the loader by hand: its arguments name the program
        names += [PurePosixPath(word).name for word in seen.cmdline[1:] if not word.startswith("-")]
    if any(NO_ENGINES.search(name) for name in names):
        return None
    exact = next((ROWS[name] for name in names if name in ROWS), None)
    return exact or next((ROWS[part] for part in NAMES for name in names if part in name), None)


def _known(host: Host, seen: Seen, row: Engine, facts: Facts) -> bool:
    """Tell whether a process is an engine of the ledger, or one that looks for the toolkit at each start."""
    unit = unit_of(seen.pid, host.local_path(PROC))
    for engine in facts.engines:
        same = ENGINES[engine.name].process == row.process
        if same and (engine.pid == seen.pid or (engine.pid is None and unit and engine.unit == unit)):
            return True
    return any(generating(row.process, path, path) for path in map(PurePosixPath, seen.cmdline))


def _other(host: Host, it: Running, facts: Facts, ours: Ours) -> OtherEngine:
    """Return what an engine names of the toolkit, by the file or the flag that does.

    In a mount namespace of its own it may have other files at the same paths.
    """
    flags, paths = flags_and_paths(it.process, it.row)
    files = _read_by(it)
    told = [
        (f"reads {path}, which names", value)
        for path, file in files.items()
        if not (it.seen.of_host and path in facts.contents)  # that is judged as it will be
        for value in programs_named(file, path)
    ]
    told += [
        (f"was started with a flag for {name}, which starts", path) for name, path in flags.runtimes.items()
    ]
    beside = (PurePosixPath(it.seen.program).parent,)  # where containerd looks for shims, too
    told += [
        ("starts, though no config names it,", str(path))
        for path in unnamed(it.view, it.row.starts, (*paths, beside))
    ]
    named = [f"{how} {value}" for how, value in told if _is_ours(host, it.view, value, paths, ours)]
    unit = unit_of(it.seen.pid, it.process.parent) or f"pid {it.seen.pid}"
    return OtherEngine(it.row.name, unit, tuple(named))


def _read_by(it: Running) -> dict[PurePosixPath, File | None]:
    """Return the configs that an engine reads; its root file may have a name for this process alone."""
    said, places = value_of(it.seen.cmdline, it.row.cmdline.config) or "", Places()
    engine = EngineFacts(it.row.name, it.row.config, it.row.drop_in, None, (), it.row.socket, "")
    if found := DESCRIPTOR.fullmatch(said):
        content = read_open(it.process, int(found[1] or 0))
        return {PurePosixPath(said): File(content) if content is not None else None}
    if said and not said.startswith("/"):
        engine = replace(engine, config=directory_of(it.process) / said)
        places = Places(config=engine.config)
    engine = with_places(it.view, engine, it.seen.cmdline, places)
    return contents_of(it.view, with_readable_configs(it.view, it.row, engine).files)


def _is_ours(
    host: Host, view: Host, value: str, paths: Iterable[tuple[PurePosixPath, ...]], ours: Ours
) -> bool:
    """Tell whether a program is one of the toolkit that an undo would take away."""
    places = tuple(place for path in paths for place in path)
    with suppress(InstallerError):
        found = (ours.behind(view, path, places) for path in candidates(view, value, paths))
        return any(leads is not None and not given_back(host, str(leads), ours.layout) for leads in found)
    return False
