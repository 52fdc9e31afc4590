"""Engines not found by ``auto``: they listen on other sockets than the usual sockets."""

from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES, list_generating
from installer.engines.ask import ask
from installer.engines.startup import path_of
from installer.host.files import Host
from installer.host.processes import PROC, UnfinishedError, list_host_processes, read_command_line, unit_of
from installer.host.sockets import list_listening
from installer.model.engine import Engine, EngineState, OtherEngine
from installer.model.options import Options

SOCKETS: Final = ("address", "listen")  # the keys of an engine's own socket in ``CommandLine.places``
ANSWER_S: Final = 1.0  # for each socket: a socket of another protocol may hang
MOST: Final = 4  # sockets to ask: a node has one or two such engines
OTHER_PROTOCOLS: Final = ("nri.sock", "debug.sock", ".ttrpc")


def find_other_engines(host: Host, known: Collection[EngineState]) -> tuple[OtherEngine, ...]:
    """Find the engines with CRI that are not among ``known``, and on no usual socket.

    Engines of distributions, which generate the config, have names and sockets of their own.
    """
    found: list[OtherEngine] = []
    kinds = {kind.process: kind for kind in ENGINES.values() if _is_general(kind)}
    known_sockets = {kind.socket for kind in ENGINES.values()}
    known_sockets.update(engine.socket for engine in known)
    known_pids = {engine.pid for engine in known}
    asked = 0
    try:
        for process in list_host_processes(host, frozenset(kinds)):
            kind = kinds.get(process.name) or kinds.get(PurePosixPath(process.program).name)
            if kind is None or process.pid in known_pids or not process.of_host:
                continue
            words = read_command_line(host, process)
            if any(list_generating(kind.process, path, path) for path in map(PurePosixPath, words)):
                continue
            for socket in _list_sockets(host, kind, process.pid, words):
                asked += 1
                if socket in known_sockets or asked > MOST:
                    continue
                sought = replace(EngineState.usual(kind), socket=socket)
                engine = ask(host, sought, timeout_s=ANSWER_S)
                if engine.serving is not None and engine.pid in {None, process.pid}:
                    owner = unit_of(process.pid, host.local_path(PROC)) or f"pid {process.pid}"
                    found.append(OtherEngine(kind, owner, socket))
                    break
    except UnfinishedError:  # too many processes: a note is not worth more time
        pass
    return tuple(found)


def explain_other_engines(host: Host, options: Options, known: Collection[EngineState]) -> Iterator[str]:
    """Explain in a note which engines ``auto`` does not look at; named engines are what their owner wants."""
    if options.auto:
        for other in find_other_engines(host, known):
            yield f"{other.problem}: {other.remedy}"


def _is_general(kind: Engine) -> bool:
    """Tell whether an engine has a flag for its socket, and a config that its owner writes."""
    return bool(_list_socket_flags(kind)) and not kind.config_markers


def _list_socket_flags(kind: Engine) -> tuple[str, ...]:
    flags: list[str] = []
    for key in SOCKETS:
        flags += kind.cmdline.places.get(key, ())
    return tuple(flags)


def _list_sockets(host: Host, kind: Engine, pid: int, words: tuple[str, ...]) -> Iterator[PurePosixPath]:
    """Yield the sockets on which a process may serve CRI: of its flag, else all that it has."""
    named = path_of(words, _list_socket_flags(kind))
    if named is not None:
        yield named
        return
    for path in sorted(list_listening(host.local_path(PROC) / str(pid))):
        if not path.endswith(OTHER_PROTOCOLS):
            yield PurePosixPath(path)
