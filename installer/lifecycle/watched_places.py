"""The places whose change starts a check while ``run`` waits: files, directories, and engines' processes."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from installer import watch
from installer.cdi import generate as gpus
from installer.engines import ENGINES
from installer.engines.dependencies import kinds_for
from installer.host import systemd
from installer.host.files import Host
from installer.host.inodes import is_mount_point
from installer.lifecycle.last_check import LastCheck
from installer.model.engine import EngineState
from installer.model.facts import Record
from installer.model.files import Layout
from installer.model.options import Options, Places
from installer.watch import fingerprint

# The directories of units, and those that systemd makes anew at a daemon-reload.
UNIT_DIRECTORIES: Final = (
    PurePosixPath("/etc/systemd/system"),
    PurePosixPath("/run/systemd/system"),
    PurePosixPath("/usr/lib/systemd/system"),
    PurePosixPath("/lib/systemd/system"),
)
GENERATED: Final = (PurePosixPath("/run/systemd/generator"), PurePosixPath("/run/systemd/generator.late"))


def list_places(host: Host, options: Options, record: Record, last: LastCheck) -> "tuple[watch.Place, ...]":
    """Return the watched places except the engines' processes; the end of the check adds the processes."""
    layout = options.layout
    directories = _list_directories(layout, record)
    configs = [row.path for row in record.configs]
    places: list[watch.Place] = []
    for path in (*configs, *directories, layout.toolkit, layout.config, layout.ledger):
        for followed in (False, True):
            local = host.local_path(path, last=followed)
            is_covered = path.is_relative_to(layout.home) and is_mount_point(local)
            if path not in directories:
                places.append((watch.PATH, str(local)))
            elif is_covered:
                # An open file of a file system that is mounted over ours would keep it from being unmounted.
                places.append((watch.NAMES, f"{local}/"))
            else:
                places.append((watch.DIRECTORY, str(local)))
    places += gpus.list_watched(host, options, record)
    if record.nri is not None:  # the plugin's own state: whether it is registered, and the pods it missed
        places.append((watch.PATH, str(host.local_path(options.nri.at(record.nri).state))))
    programs = [last.low_level_runtime]
    for check in last.engines:
        programs += [check.monitor, check.program]
    for program in programs:
        program_path = PurePosixPath(program)
        if program_path.is_absolute():
            places.append((watch.PATH, str(host.local_path(program_path, last=False))))
    kept = [layout.toolkit]
    for check in last.engines:
        kinds = kinds_for(check.name)
        kept += [kind.state.usual for kind in kinds]
        kept += [kind.data.usual for kind in kinds if kind.data]
    places += [(watch.FILE_SYSTEM, str(host.local_path(path))) for path in kept]
    places += list_start_files(host, options, record)
    for check in last.engines:
        if check.containerd:  # the containerd below Docker
            places.append((watch.PATH, str(host.local_path(PurePosixPath(check.containerd)))))
    return tuple(dict.fromkeys(places))


def _list_directories(layout: Layout, record: Record) -> list[PurePosixPath]:
    """Return the directories of the toolkit, saved copies and configs: every file in them is watched."""
    directories: list[PurePosixPath] = []
    if record.toolkit:
        directories.append(layout.version(record.toolkit.version))
    if record.configs:
        directories.append(layout.backups)
    for row in record.engines:
        kind = ENGINES[row.name]
        config = row.config or kind.config
        directories += [config.parent, config.parent / "conf.d"]
        if kind.drop_ins.directory:
            directories.append(kind.drop_ins.directory)
    return directories


def list_start_files(host: Host, options: Options, record: Record) -> "tuple[watch.Place, ...]":
    """Return the sockets and pidfiles of the served engines; each start of an engine creates them."""
    sockets = list_sockets(options, record)
    paths = list(sockets.values())
    for name in sockets:
        pidfile = ENGINES[name].pidfile
        if pidfile is not None:
            paths.append(pidfile)
    return tuple((watch.PATH, str(host.local_path(path))) for path in paths)


def list_sockets(options: Options, record: Record) -> dict[str, PurePosixPath]:
    """Return the socket of each served engine; an unchanged engine has no row in the ledger."""
    sockets: dict[str, PurePosixPath] = {}
    for name in record.cdi.engines if record.cdi else ():
        sockets[name] = options.places.get(name, Places()).socket or ENGINES[name].socket
    for row in record.engines:
        sockets[row.name] = row.socket
    return sockets


def list_awaited(host: Host, engines: Iterable[EngineState]) -> "tuple[watch.Place, ...]":
    """List the places that change when an owner acts on any of the engines.

    These engines need not be in the ledger. Each start makes socket and pidfile; configs, unit and program
    decide the next start.
    """
    paths: list[PurePosixPath] = [*GENERATED]
    directories = [UNIT_DIRECTORIES[0]]  # of the units that systemd stops along, too
    processes: list[str] = []
    for engine in engines:
        paths += [engine.socket, *engine.files, *engine.kind.inputs]
        if engine.kind.pidfile is not None:
            paths.append(engine.kind.pidfile)
        if engine.exe is not None:
            paths.append(engine.exe)
        directories += [engine.config.parent, engine.config.parent / "conf.d"]
        if engine.drop_in_directory is not None:
            directories.append(engine.drop_in_directory)
        if engine.unit:
            for directory in UNIT_DIRECTORIES:
                paths.append(directory / engine.unit)
                directories.append(directory / f"{engine.unit}.d")
        process = process_of(host, engine)
        if process:
            processes.append(process)
    places: list[watch.Place] = []
    for path in paths:
        places.append((watch.PATH, str(host.local_path(path))))
    for path in directories:
        places.append((watch.DIRECTORY, str(host.local_path(path))))
    for process in processes:
        places.append((watch.EXISTENCE, process))
    return tuple(dict.fromkeys(places))


def process_of(host: Host, engine: EngineState) -> str:
    """Return the path of an engine's process below /proc, "" for an invisible process."""
    if engine.pid:
        return f"/proc/{engine.pid}"
    # The engine is in another pid namespace; the host's /proc may be mounted. Its unit may run k3s around it.
    pid = systemd.look_at_unit(host, engine.unit).main_pid
    if not pid:
        return ""
    return str(host.local_path(PurePosixPath(f"/proc/{pid}")))


def keep_live(process: str) -> str:
    """Return ``process`` to watch further, "" for an ended process: then only a new process is a change."""
    if process and fingerprint([(watch.EXISTENCE, process)]) == fingerprint([]):
        return process
    return ""
