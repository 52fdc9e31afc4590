"""Units as systemd sees them, asked over D-Bus; no call blocks past its deadline."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, PendingError
from installer.host.dbus import LOGIND, MALFORMED, MANAGER, ROOT, Bus
from installer.host.unit_start import MASKED, UnitStart

T = TypeVar("T")


class NoBusError(InstallerError):
    """None of the sockets leads to systemd."""

    usual = "systemd-unreachable"


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

    def state(bus: Bus) -> UnitState:
        return state_of(bus, unit)

    return ask(buses, state, purpose=f"look at {unit}", timeout_s=timeout_s)


def unit_start(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitStart:
    """Return how a unit starts its service.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: the unit is unknown, systemd refuses or does not answer in time.
    """

    def start(bus: Bus) -> UnitStart:
        said = bus.properties(_path_of(unit))
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

    def properties(bus: Bus) -> dict[str, Any]:
        said = properties_of(bus, unit, f"look at {unit}")
        return {name: said[name] for name in names}

    return ask(buses, properties, purpose=f"look at {unit}", timeout_s=timeout_s)


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ...

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(bus: Bus) -> str:
        return str(bus.get(ROOT, MANAGER, "SystemState"))

    return ask(buses, state, purpose="ask systemd for its state", timeout_s=timeout_s)


def shutdown_prepared(buses: Sequence[Path], *, timeout_s: float) -> bool:
    """Return whether logind holds a shutdown back for those who asked for time, such as the kubelet.

    systemd itself still says "running" then, and the pods are told to stop one after the other.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: no logind runs, or it does not answer in time.
    """

    def prepared(bus: Bus) -> bool:
        bus.turn_to(LOGIND)
        return bool(bus.get("/org/freedesktop/login1", f"{LOGIND}.Manager", "PreparingForShutdown"))

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


def _path_of(unit: str) -> str:
    """Return the object that is a unit, as systemd makes its path; whoever asks for it has it loaded."""
    escaped = re.sub(
        r"\A\d|[^a-zA-Z0-9]", lambda found: f"_{ord(found[0]):02x}", os.fsencode(unit).decode("latin-1")
    )
    return f"{ROOT}/unit/{escaped}"


def properties_of(bus: Bus, unit: str, purpose: str) -> dict[str, Any]:
    """Return the properties of a unit that has a file."""
    return _loaded(bus.properties(_path_of(unit)), purpose)


def _loaded(said: dict[str, Any], purpose: str) -> dict[str, Any]:
    if (load := said["LoadState"]) != "loaded":
        raise InstallerError(
            f"{purpose} ({load})", remedy="name the unit that runs the engine", code="unit-failed"
        )
    return said


def state_of(bus: Bus, unit: str) -> UnitState:
    """Return the state of a unit over a connection that is there."""
    return state_in(bus.properties(_path_of(unit)))


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
    question: Callable[[Bus], T],
    *,
    purpose: str,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Put the question to the first bus that can be reached; every failure becomes an InstallerError."""
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    deadline = time.monotonic() + timeout_s
    with _connected(buses, deadline, check) as bus:
        try:
            return question(bus)
        except DBusErrorResponse as error:
            words = " ".join(str(part) for part in error.data) or error.name
            raise InstallerError(
                f"{purpose} ({words})", remedy="check the unit on the node", code="unit-failed"
            ) from error
        except TimeoutError as error:
            raise PendingError(
                f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
                remedy="see systemctl list-jobs on the node",
            ) from error
        except OSError as error:
            raise InstallerError(
                f"{purpose} (lost the connection to systemd: {error})",
                remedy="try again",
                code="systemd-unreachable",
            ) from error
        except MALFORMED as error:
            raise InstallerError(
                f"{purpose} (what answers is not systemd)",
                remedy="check the node's system bus",
                code="systemd-unreachable",
            ) from error


@contextmanager
def _connected(buses: Sequence[Path], deadline: float, check: Callable[[], None]) -> Iterator[Bus]:
    from jeepney import DBusErrorResponse

    failures, remedy = [], "mount the node's /run/dbus into the container (the directory, not the socket)"
    for index, path in enumerate(buses):
        # A bus that hangs leaves time for the next one.
        share_s = (deadline - time.monotonic()) / (len(buses) - index)
        try:
            bus = Bus(path, timeout_s=share_s, check=check)
        except OSError as error:
            failures.append(f"{path}: {error}")
            if isinstance(error, TimeoutError):  # anybody can keep the system bus full
                remedy = (
                    "mount the node's /run/systemd too, where root alone reaches systemd, or end who fills it"
                )
            continue
        except (DBusErrorResponse, *MALFORMED):
            failures.append(f"{path}: what answers is not systemd")
            continue
        bus.deadline = deadline
        try:
            yield bus
        finally:
            bus.close()
        return
    raise NoBusError(f"reach systemd ({', '.join(failures) or 'no socket to try'})", remedy=remedy)
