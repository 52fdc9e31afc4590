"""Units as systemd sees them, asked over D-Bus; no call blocks past its deadline."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, PendingError
from installer.host.unit_start import MASKED, UnitStart

if TYPE_CHECKING:
    from installer.host.dbus import Bus

T = TypeVar("T")

SYSTEMD: Final = "org.freedesktop.systemd1"
LOGIND: Final = "org.freedesktop.login1"
ROOT: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{SYSTEMD}.Manager"
CONNECT_S: Final = 5.0
# What the bus says of a service that is not there; of one that has gone, as systemd at a daemon-reexec.
ABSENT: Final = frozenset(
    f"org.freedesktop.DBus.Error.{name}" for name in ("NameHasNoOwner", "ServiceUnknown")
)
GONE: Final = "org.freedesktop.DBus.Error.NoReply"


class NoBusError(InstallerError):
    """No bus leads to systemd; nothing was done."""

    usual = "systemd-unreachable"


class _AwayError(Exception):
    """systemd is not to be had over this socket."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd sees it, in its words.

    ``main_pid`` is in systemd's pid namespace, 0 if none runs; ``job`` is 0 if nothing is being done to it;
    ``invocation`` is another one after each start; ``result`` is how the last run of a service ended,
    "success" while it runs well; ``listens`` are the places that a socket unit listens on.
    """

    load: str
    active: str
    sub: str
    main_pid: int
    can_reload: bool
    job: int = 0
    invocation: str = ""
    result: str = ""
    listens: tuple[str, ...] = ()


def unit_state(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitState:
    """Return the state of a unit; one that does not exist has ``load`` "not-found".

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """
    return ask(buses, lambda on: state_of(on, unit), purpose=f"look at {unit}", timeout_s=timeout_s)


def unit_start(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitStart:
    """Return how a unit starts its service.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: the unit is unknown, systemd refuses or does not answer in time.
    """

    def start(on: "Bus") -> UnitStart:
        said = on.properties(SYSTEMD, path_of(unit))
        masked = said["LoadState"] == MASKED
        return UnitStart(masked=True) if masked else UnitStart.of(_loaded(said, f"look at {unit}"))

    return ask(buses, start, purpose=f"look at {unit}", timeout_s=timeout_s)


def service_properties(
    buses: Sequence[Path], unit: str, names: Sequence[str], *, timeout_s: float
) -> dict[str, Any]:
    """Return properties of a service by name, as systemd gives them.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def properties(on: "Bus") -> dict[str, Any]:
        said = properties_of(on, unit, f"look at {unit}")
        return {name: said[name] for name in names}

    return ask(buses, properties, purpose=f"look at {unit}", timeout_s=timeout_s)


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ...

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(on: "Bus") -> str:
        return str(on.get(SYSTEMD, ROOT, f"{MANAGER}.SystemState"))

    return ask(buses, state, purpose="ask systemd for its state", timeout_s=timeout_s)


def shutdown_prepared(buses: Sequence[Path], *, timeout_s: float) -> bool:
    """Return whether logind holds a shutdown back for those who asked for time, such as the kubelet.

    systemd itself still says "running" then, and the pods are told to stop one after the other.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: no logind runs, or it does not answer in time.
    """

    def prepared(on: "Bus") -> bool:
        return bool(on.get(LOGIND, "/org/freedesktop/login1", f"{LOGIND}.Manager.PreparingForShutdown"))

    shared = [path for path in buses if path.name != "private"]  # systemd's own socket leads to nobody else
    return ask(shared, prepared, purpose="ask logind for a shutdown", timeout_s=timeout_s)


def busy_s(process: Path) -> float:
    """Return for how many seconds systemd worked or waited for a processor, 0 where ``process`` is another's.

    On a loaded machine it waits most of the time that it is busy (``schedstat``, proc_pid_schedstat(5)).
    """
    with suppress(OSError, ValueError, IndexError):
        if (process / "stat").read_bytes().startswith(b"1 (systemd) "):
            worked_ns, waited_ns = (process / "schedstat").read_bytes().split()[:2]
            return (int(worked_ns) + int(waited_ns)) / 1e9
    return 0.0


def path_of(unit: str) -> str:
    """Return the object that is a unit, as systemd makes its path; whoever asks for it has it loaded."""
    escaped = re.sub(
        r"\A\d|[^a-zA-Z0-9]", lambda found: f"_{ord(found[0]):02x}", os.fsencode(unit).decode("latin-1")
    )
    return f"{ROOT}/unit/{escaped}"


def properties_of(bus: "Bus", unit: str, purpose: str) -> dict[str, Any]:
    """Return the properties of a unit that has a file."""
    return _loaded(bus.properties(SYSTEMD, path_of(unit)), purpose)


def _loaded(said: dict[str, Any], purpose: str) -> dict[str, Any]:
    if (load := said["LoadState"]) != "loaded":
        raise InstallerError(
            f"{purpose} ({load})", remedy="name the unit that runs the engine", code="unit-failed"
        )
    return said


def state_of(bus: "Bus", unit: str) -> UnitState:
    """Return the state of a unit over a connection that is there."""
    return state_in(bus.properties(SYSTEMD, path_of(unit)))


def state_in(said: Mapping[str, Any]) -> UnitState:
    """Return the state that the properties of a unit tell."""
    return UnitState(
        load=str(said["LoadState"]),
        active=str(said["ActiveState"]),
        sub=str(said["SubState"]),
        main_pid=int(said.get("MainPID", 0)),
        can_reload=bool(said["CanReload"]),
        job=int(said["Job"][0]),
        invocation=bytes(list(said["InvocationID"])).hex(),
        result=str(said.get("Result", "")),
        listens=tuple(str(place) for _, place in said.get("Listen", ())),
    )


def ask(
    buses: Sequence[Path],
    question: Callable[["Bus"], T],
    *,
    purpose: str,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Put the question to the first bus that leads to systemd; every failure becomes an InstallerError."""
    failures: list[str] = []
    deadline = time.monotonic() + timeout_s
    for bus in buses:
        try:
            with _connected(bus, deadline, check) as connection, _told(purpose, timeout_s):
                return question(connection)
        except _AwayError as error:
            failures.append(f"{bus}: {error}")
    raise NoBusError(
        f"reach systemd ({', '.join(failures) or 'no socket to try'})",
        remedy="mount the node's /run/dbus into the container (the directory, not the socket)",
    )


def _connected(bus: Path, deadline: float, check: Callable[[], None]) -> "Bus":
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    from installer.host.dbus import MALFORMED, Bus

    try:
        # One that hangs leaves time for the next.
        share_s = min(CONNECT_S, (deadline - time.monotonic()) / 2)
        connection = Bus(bus, deadline=time.monotonic() + share_s, check=check)
    except DBusErrorResponse as error:
        raise _AwayError(_words(error)) from error
    except OSError as error:
        raise _AwayError(str(error)) from error
    except MALFORMED as error:
        raise _AwayError("what answers is not systemd") from error
    connection.deadline = deadline
    return connection


@contextmanager
def _told(purpose: str, timeout_s: float) -> Iterator[None]:
    """Let whatever goes wrong on a connection be an InstallerError."""
    from jeepney import DBusErrorResponse

    from installer.host.dbus import MALFORMED

    try:
        yield
    except DBusErrorResponse as error:
        if error.name in ABSENT:
            raise _AwayError(_words(error)) from error
        if error.name == GONE:
            raise _lost(purpose, _words(error)) from error
        raise InstallerError(
            f"{purpose} ({_words(error)})", remedy="check the unit on the node", code="unit-failed"
        ) from error
    except TimeoutError as error:
        raise PendingError(
            f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
            remedy="see systemctl list-jobs on the node",
        ) from error
    except OSError as error:
        raise _lost(purpose, str(error)) from error
    except MALFORMED as error:
        raise InstallerError(
            f"{purpose} (what answers is not systemd)",
            remedy="check the node's system bus",
            code="systemd-unreachable",
        ) from error


def _words(error: Any) -> str:
    """Return what an error says that came over the bus."""
    return " ".join(str(part) for part in error.data) or str(error.name)


def _lost(purpose: str, reason: str) -> InstallerError:
    return InstallerError(
        f"{purpose} (lost the connection to systemd: {reason})",
        remedy="try again",
        code="systemd-unreachable",
    )
