"""What is watched while ``run`` waits: all that a plan is made from, as far as that can be seen cheaply."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.cdi import generate as gpus
from installer.engines import ENGINES
from installer.engines.dependencies import usual_data, usual_states
from installer.errors import InstallerError
from installer.host import supervision, systemd
from installer.host.files import Host
from installer.host.inodes import is_mount_point
from installer.host.sockets import has_closed
from installer.lifecycle.readiness import LastCheck, read_check
from installer.model.engine_spec import Api
from installer.model.facts import EngineState
from installer.model.files import Layout
from installer.model.options import Options, Places
from installer.model.record import Record
from installer.watch import KEPT, THERE
from installer.watch import fingerprint as signature

STOPS_S: Final = 60.0


class Watch(Struct, frozen=True):
    """What is watched until the next check; no ``places`` is nothing.

    A place is a path as this process finds it, or a pattern, as ``watch.fingerprint`` has it. ``before`` is
    the fingerprint that they had when they were looked at. After ``due_s`` seconds (0 is never) it is time
    for a check whatever happens, and before ``rest_s`` no change is a reason for one.
    """

    places: tuple[str, ...] = ()
    before: str = ""
    due_s: float = 0.0
    rest_s: float = 0.0


def places(host: Host, options: Options, record: Record, seen: LastCheck) -> tuple[str, ...]:
    """Return what is watched but for the processes of engines.

    A look that finds one that runs expects nothing but that of it, however it was before: one that ends again
    while we look must not be taken for one that had ended then.
    """
    found: list[str] = []
    for path, whole in _of_rows(options.layout, record):
        for last in (False, True):
            local = host.local_path(path, last=last)
            # What is held open of a file system that somebody has mounted over ours keeps it from going.
            covered = path.is_relative_to(options.layout.home) and is_mount_point(local)
            found.append(f"{local}/" + "*" * covered if whole else str(local))
    found += gpus.watched(host, options, record)
    if record.nri is not None:  # it tells of itself there: registered or not, and what it has missed
        found.append(str(host.local_path(options.nri.at(record.nri).state)))
    names = (seen.hands_over_to, *(each.monitor for each in seen.engines))
    found += [str(host.local_path(PurePosixPath(name), last=False)) for name in names if name]
    of_engines = (
        place for each in seen.engines for place in (*usual_states(each.name), *usual_data(each.name))
    )
    kept = (options.layout.toolkit, *of_engines)
    found += [f"{KEPT}{host.local_path(path)}" for path in kept]
    below = (host.local_path(PurePosixPath(each.containerd)) for each in seen.engines if each.containerd)
    return tuple(dict.fromkeys((*found, *signs(host, options, record), *map(str, below))))


def processes(seen: LastCheck) -> tuple[str, ...]:
    """Return the processes of the engines that were seen."""
    return tuple(each.process for each in seen.engines if each.process)


def told(host: Host, options: Options, record: Record) -> tuple[str, ...]:
    """Return what is to be there as long as nobody removes it: readiness and figures, where they are told."""
    found = (host.local_path(path, last=False) for path in (options.ready_file, *record.published))
    return tuple(f"{THERE}{local}" for local in found if local.exists())


def await_stopped(host: Host, options: Options, record: Record) -> None:
    """Return when no Docker of ours is just being stopped, or after a minute.

    It lives on until its containers have ended, and systemd, which holds its socket too, starts it again for
    whoever asks meanwhile (engine-facts.md#dockerd-stop).
    """
    before = read_check(host, options.state_file)
    processes = {each.name: each.process for each in before.engines if each.serves} if before else {}
    dockers = [each for each in _named_sockets(options, record) if ENGINES[each[0]].api is Api.DOCKER]
    until = time.monotonic() + STOPS_S
    while time.monotonic() < until and any(
        has_closed(processes.get(name, ""), str(host.local_path(socket))) for name, socket in dockers
    ):
        supervision.raise_if_stopped()
        time.sleep(1)


def process_of(host: Host, engine: EngineState) -> str:
    """Return where the process of an engine is found below /proc; "" where it is not seen."""
    if engine.pid:
        return f"/proc/{engine.pid}"
    with suppress(InstallerError):  # it is in another pid namespace, and perhaps the host's /proc is mounted
        if pid := systemd.read_unit(host, engine.unit).main_pid:
            return str(host.local_path(PurePosixPath(f"/proc/{pid}")))
    return ""


def running(process: str) -> str:
    """Return a process that is watched further, "" for one that has ended: only a new one is news then."""
    return process if process and signature((process,)) == signature(()) else ""


def signs(host: Host, options: Options, record: Record) -> tuple[str, ...]:
    """Return what an engine that we serve makes at each start: its socket, or its pidfile."""
    named = tuple(_named_sockets(options, record))
    pidfiles = (path for name, _ in named if (path := ENGINES[name].pidfile) is not None)
    return tuple(str(host.local_path(path)) for path in (*(socket for _, socket in named), *pidfiles))


def _named_sockets(options: Options, record: Record) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the engines that we serve, each with its socket; one that we have not changed has no row."""
    yield from ((row.name, row.socket) for row in record.engines)
    for name in record.cdi.engines if record.cdi else ():
        yield name, options.places.get(name, Places()).socket or ENGINES[name].socket


def _of_rows(layout: Layout, record: Record) -> Iterator[tuple[PurePosixPath, bool]]:
    """Yield what the rows of the ledger tell to be watched, and whether all that is in it."""
    for row in record.configs:
        yield row.path, False
    for engine in record.engines:
        for directory in _config_directories(engine.name, engine.config):
            yield directory, True
    yield from ((path, False) for path in (layout.toolkit, layout.config, layout.ledger))
    if record.toolkit is not None:
        yield layout.version(record.toolkit.version), True


def _config_directories(name: str, config: PurePosixPath | None) -> Iterable[PurePosixPath]:
    engine = ENGINES[name]
    own = config or engine.config
    directories = (own.parent, own.parent / "conf.d", engine.drop_ins.directory)
    return dict.fromkeys(each for each in directories if each is not None)
