"""The processes of engines on the host, whichever sockets they serve."""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES, list_generating
from installer.host.files import Host
from installer.host.processes import HostProcess, list_host_processes, read_command_line
from installer.model.engine import Engine

# The engines whose owners write the config, by process; engines of distributions have configs of their own.
BY_PROCESS: Final = {kind.process: kind for kind in ENGINES.values() if not kind.config_markers}


class EngineProcess(Struct, frozen=True):
    """A process of an engine.

    Attributes:
        kind: The engine.
        pid: The process.
        words: The command line.
    """

    kind: Engine
    pid: int
    words: tuple[str, ...]


def list_engine_processes(host: Host) -> Iterator[EngineProcess]:
    """Yield the processes of engines on the host, without those of distributions.

    Raises:
        UnfinishedError: there are too many processes.
    """
    for process in list_host_processes(host, frozenset(BY_PROCESS)):
        kind = find_kind(process)
        if kind is None:
            continue
        words = read_command_line(host, process)
        if not has_generated_config(kind, words):
            yield EngineProcess(kind, process.pid, words)


def find_kind(process: HostProcess) -> Engine | None:
    """Return the engine whose process this is; None for any other process, or one of a container."""
    if not process.of_host:
        return None
    return BY_PROCESS.get(process.name) or BY_PROCESS.get(PurePosixPath(process.program).name)


def has_generated_config(kind: Engine, words: Sequence[str]) -> bool:
    """Tell whether a command line is of an engine whose config a distribution generates."""
    return any(list_generating(kind.process, path, path) for path in map(PurePosixPath, words))
