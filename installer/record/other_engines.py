"""Engines that run beside those of the ledger, wherever they listen: what they have of the toolkit."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass, replace
from installer.decide.engines import ENGINES, generating
from installer.decide.engines.row import Api, Engine
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts, OtherEngine
from installer.decide.inode import File
from installer.decide.layout import Layout
from installer.decide.options import Places
from installer.decide.references import programs_named
from installer.host import dockerd
from installer.host.files import Host
from installer.host.process_table import PROC, Seen, directory_of, holds, of_root, read_open
from installer.host.processes import listening, unit_of
from installer.host.tcp import same_network, tcp_listening
from installer.record.cmdline import value_of
from installer.record.configs import contents_of, with_readable_configs
from installer.record.engines import ask
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
# The packages of Go that dockerd is made of, before 29 and since.
DOCKERD_MARKS: Final = (b"docker/docker/daemon", b"moby/moby/v2/daemon")
ANSWER_S: Final = 1.0  # of several sockets, one that is no API hangs perhaps


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
    """Return what an engine names of the toolkit, by the file that does, or by the runtime it serves.

    In a mount namespace of its own it may have other files at the same paths.
    """
    flags, paths = flags_and_paths(it.process, it.row)
    served, files = _served(it), _read_by(it)
    told = [
        (f"reads {path}, which names", value)
        for path, file in files.items()
        if not (it.seen.of_host and path in facts.contents)  # that is judged as it will be
        for value in programs_named(file, path)
    ]
    told += [
        (f"was started with a flag for {name}, which starts", path) for name, path in flags.runtimes.items()
    ]
    told += [(f"serves {name}, which starts", path) for name, path in served or ()]
    beside = (PurePosixPath(it.seen.program).parent,)  # where containerd looks for shims, too
    told += [
        ("starts, though no config names it,", str(path))
        for path in unnamed(it.view, it.row.starts, (*paths, beside))
    ]
    named = [f"{how} {value}" for how, value in told if _is_ours(host, it.view, value, paths, ours)]
    if served is None and _hides(host, it, files, ours):
        named.append("cannot be asked what it serves")
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


def _served(it: Running) -> Iterable[tuple[str, str]] | None:
    """Return the runtimes, with their programs, that an engine serves; None where it does not say."""
    for socket in sorted(listening(it.process), key=len):
        answer = ask(it.row, it.view.local_path(PurePosixPath(socket)), timeout_s=ANSWER_S)
        if answer.serving is not None or answer.failed or answer.another:
            return answer.serving.binaries.items() if answer.serving else ()
    if it.row.api is Api.DOCKER and same_network(it.process):
        for address in tcp_listening(it.process):
            with suppress(InstallerError):
                return dockerd.info(address, timeout_s=ANSWER_S).serving.binaries.items()
    return None


def _hides(host: Host, it: Running, files: Mapping[PurePosixPath, File | None], ours: Ours) -> bool:
    """Tell whether an engine that does not answer may serve what no file says that can be read.

    One that does not see the toolkit cannot start it.
    """
    if not any(_is_ours(host, it.view, str(path), (), ours) for path in ours.files.values()):
        return False
    if any(file is None and DESCRIPTOR.fullmatch(str(path)) for path, file in files.items()):
        return True
    if it.row.api is not Api.DOCKER or not (listening(it.process) or tcp_listening(it.process)):
        return False
    names = {it.seen.name, *(PurePosixPath(word).name for word in (it.seen.program, *it.seen.cmdline))}
    return it.row.process in names or any(holds(host, it.seen.pid, mark) for mark in DOCKERD_MARKS)


def _is_ours(
    host: Host, view: Host, value: str, paths: Iterable[tuple[PurePosixPath, ...]], ours: Ours
) -> bool:
    """Tell whether a program is one of the toolkit that an undo would take away."""
    places = tuple(place for path in paths for place in path)
    with suppress(InstallerError):
        found = (ours.behind(view, path, places) for path in candidates(view, value, paths))
        return any(leads is not None and not given_back(host, str(leads), ours.layout) for leads in found)
    return False
