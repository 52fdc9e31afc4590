"""How a running engine was started: its program reads a config the same way only if started the same."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.host.files import Host
from installer.record import units

PROC: Final = PurePosixPath("/proc")
# What systemd gives to one process alone: sockets, and whom to tell that it is ready.
OF_ITS_PROCESS: Final = (
    "LISTEN_",
    "NOTIFY_SOCKET",
    "WATCHDOG_",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
)


@dataclass(frozen=True, slots=True)
class Started:
    """The words of a command line after the program, and the environment."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def started(host: Host, engine: EngineFacts) -> Started | None:
    """Return how the engine that runs was started; None where nobody can tell.

    Of a process that is not seen from here, as in a pod without the host's pid namespace, systemd tells the
    number and the host's own /proc the rest.
    """
    process = _process(host, engine)
    if process is None:
        return None
    words = _strings(process / "cmdline")[1:]
    environment = _pairs(_strings(process / "environ")) or _of_unit(host, engine)
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_ITS_PROCESS)}
    return Started(words, kept)


def without(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line but for some flags and their values."""
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in flags:
            if not equals:
                next(rest, "")
            continue
        yield word


def _process(host: Host, engine: EngineFacts) -> Path | None:
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))
    try:
        pid = units.state(host, engine.unit).main_pid if engine.unit else 0
    except InstallerError:
        return None
    process = host.here(PROC) / str(pid)
    try:
        # Our own /proc, of another pid namespace, has another process under that number, or none.
        named = (process / "comm").read_text().strip() == ENGINES[engine.name].process
    except OSError:
        return None
    return process if named else None


def _of_unit(host: Host, engine: EngineFacts) -> dict[str, str]:
    """Return the environment that the unit gives, where that of the process may not be read."""
    try:
        return _pairs(units.environment(host, engine.unit)) if engine.unit else {}
    except InstallerError:
        return {}


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _strings(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_bytes().decode(errors="surrogateescape").split("\0")[:-1])
    except OSError:
        return ()
