"""Engines not found by ``auto``: they listen on other sockets than the usual sockets."""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.ask import ask
from installer.engines.engine_processes import EngineProcess, list_engine_processes
from installer.engines.startup import path_of
from installer.host.files import Host
from installer.host.processes import PROC, UnfinishedError, unit_of
from installer.host.sockets import list_listening
from installer.model.effective import EffectiveConfig
from installer.model.engine import Engine, EngineState, OtherEngine
from installer.model.options import Options

SOCKETS: Final = ("address", "listen")  # the keys of an engine's own socket in ``CommandLine.places``
ANSWER_S: Final = 1.0  # for each socket: a socket of another protocol may hang
MOST: Final = 4  # sockets to ask: a node has one or two such engines
OTHER_PROTOCOLS: Final = ("nri.sock", "debug.sock", ".ttrpc")


def find_other_engines(host: Host, known: Collection[EngineState]) -> tuple[OtherEngine, ...]:
    """Find the engines with CRI that are not among ``known``, and on no usual socket."""
    found: list[OtherEngine] = []
    known_sockets = {kind.socket for kind in ENGINES.values()}
    known_sockets.update(engine.socket for engine in known)
    known_pids = {engine.pid for engine in known}
    tried = 0
    with suppress(UnfinishedError):  # too many processes: a note is not worth more time
        for process in list_engine_processes(host):
            # Only an engine with CRI has a flag for its socket.
            if process.pid in known_pids or not _list_socket_flags(process.kind):
                continue
            for socket in _list_sockets(host, process):
                tried += 1
                if socket in known_sockets or tried > MOST:
                    continue
                if _ask(host, process, socket).serving is not None:
                    owner = unit_of(process.pid, host.local_path(PROC)) or f"pid {process.pid}"
                    found.append(OtherEngine(process.kind, owner, socket))
                    break
    return tuple(found)


def ask_process(host: Host, process: EngineProcess, until_s: float) -> EffectiveConfig | None:
    """Return what the process of an engine serves; None without an answer within ``ANSWER_S``.

    A containerd whose CRI is switched off, or has not loaded, serves no runtime.

    Args:
        host: the node.
        process: the process.
        until_s: when to ask no more, by ``time.monotonic``.
    """
    until_s = min(until_s, time.monotonic() + ANSWER_S)
    for socket in islice(_list_sockets(host, process), MOST):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            break
        engine = _ask(host, process, socket, left_s)
        if engine.disabled or engine.failed:
            return EffectiveConfig({}, "")
        if engine.serving is not None:
            return engine.serving
    return None


def _ask(
    host: Host, process: EngineProcess, socket: PurePosixPath, timeout_s: float = ANSWER_S
) -> EngineState:
    """Ask a process on a socket; the answer of another process counts as none."""
    sought = replace(EngineState.usual(process.kind), socket=socket)
    engine = ask(host, sought, timeout_s=timeout_s)
    return engine if engine.pid in {None, process.pid} else sought


def explain_other_engines(host: Host, options: Options, known: Collection[EngineState]) -> Iterator[str]:
    """Explain in a note which engines ``auto`` does not look at; named engines are what their owner wants."""
    if options.auto:
        for other in find_other_engines(host, known):
            yield f"{other.problem}: {other.remedy}"


def _list_socket_flags(kind: Engine) -> tuple[str, ...]:
    flags: list[str] = []
    for key in SOCKETS:
        flags += kind.cmdline.places.get(key, ())
    return tuple(flags)


def _list_sockets(host: Host, process: EngineProcess) -> Iterator[PurePosixPath]:
    """Yield the sockets on which a process may serve CRI: of its flag, else all that it has."""
    named = path_of(process.words, _list_socket_flags(process.kind))
    if named is not None:
        yield named
        return
    for path in sorted(list_listening(host.local_path(PROC) / str(process.pid))):
        if not path.endswith(OTHER_PROTOCOLS):
            yield PurePosixPath(path)
