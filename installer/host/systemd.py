"""A unit is restarted over D-Bus and its end awaited; no call blocks past its deadline."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from installer.decide.errors import InstallerError, PendingError
from installer.host.dbus import MALFORMED, MANAGER, ROOT, SYSTEMD, Bus
from installer.host.unit_start import UnitStart

_UNIT = f"{SYSTEMD}.Unit"
_SERVICE = f"{SYSTEMD}.Service"

T = TypeVar("T")


class NoBusError(InstallerError):
    """None of the sockets leads to systemd."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd sees it, in its words.

    ``main_pid`` is in systemd's pid namespace, 0 if none runs; ``job`` is 0 if nothing is being done to it;
    ``invocation`` is another one after each start; ``result`` is how the last run of a service ended,
    "success" while it runs well.
    """

    load: str
    active: str
    sub: str
    main_pid: int
    can_reload: bool
    job: int = 0
    invocation: str = ""
    result: str = ""


def restart_unit(
    buses: Sequence[Path], unit: str, *, timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Restart a unit and return when its start is done, which is when the service said it is ready.

    systemd's count of recent starts is reset before: a few quick restarts otherwise leave the unit dead.

    Args:
        buses: sockets of systemd itself (``private``) or of the system bus, the preferred first.
        unit: its full name, such as ``containerd.service``.
        timeout_s: for everything together; the restart goes on when it is over.
        check: called now and then while waiting; what it raises ends the wait, the restart goes on.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: the unit is unknown, did not come up, or not in time.
    """

    def restart(bus: Bus) -> None:
        path = _known(bus, unit)
        _forget_failures(bus, unit)
        _do(bus, "RestartUnit", unit, path, f"restart {unit}")

    _ask(buses, restart, purpose=f"restart {unit}", timeout_s=timeout_s, check=check)


def reload_unit(buses: Sequence[Path], unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in its own way, and return when that is done.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: the unit is unknown, cannot reload, or not in time.
    """

    def reload(bus: Bus) -> None:
        _do(bus, "ReloadUnit", unit, _known(bus, unit), f"reload {unit}")

    _ask(buses, reload, purpose=f"reload {unit}", timeout_s=timeout_s)


def start_transient(buses: Sequence[Path], unit: str, words: Sequence[str], *, timeout_s: float) -> None:
    """Have systemd run a command of the host's as a unit of its own, and do not wait for its end.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: systemd refuses, or there is a unit of that name.
    """
    properties = [
        ("Description", ("s", "toolkit-installer carries on an undo")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("ExecStart", ("a(sasb)", [(words[0], list(words), False)])),
    ]

    def start(bus: Bus) -> None:
        signature = "ssa(sv)a(sa(sv))"
        bus.call(ROOT, MANAGER, "StartTransientUnit", signature, (unit, "fail", properties, []))

    _ask(buses, start, purpose=f"start {unit}", timeout_s=timeout_s)


def _do(bus: Bus, method: str, unit: str, path: str, purpose: str) -> None:
    """Queue a job for a unit, wait for its end, and look at what has become of the unit."""
    bus.listen()
    job = bus.call(ROOT, MANAGER, method, "ss", (unit, "replace"))[0]
    ended = bus.ended(job)
    state = _state(bus, path, unit)
    if ended not in {"done", ""} or state.active != "active":
        found = f"job {ended or 'gone'}, unit {state.active}/{state.sub}, {state.result or 'no result'}"
        raise InstallerError(
            f"{purpose} ({found})",
            remedy=f"see journalctl -u {unit} on the node",
        )


def unit_state(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitState:
    """Return the state of a unit; one that does not exist has ``load`` "not-found".

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(bus: Bus) -> UnitState:
        return _state(bus, bus.call(ROOT, MANAGER, "LoadUnit", "s", (unit,))[0], unit)

    return _ask(buses, state, purpose=f"look at {unit}", timeout_s=timeout_s)


def unit_start(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitStart:
    """Return how a unit starts its service.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: the unit is unknown, systemd refuses or does not answer in time.
    """

    def start(bus: Bus) -> UnitStart:
        path = _known(bus, unit)
        return UnitStart.of(bus.properties(path, _UNIT), bus.properties(path, _SERVICE))

    return _ask(buses, start, purpose=f"look at {unit}", timeout_s=timeout_s)


def service_properties(
    buses: Sequence[Path], unit: str, names: Sequence[str], *, timeout_s: float
) -> dict[str, Any]:
    """Return properties of a service by name, as systemd gives them.

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def properties(bus: Bus) -> dict[str, Any]:
        path = _known(bus, unit)
        return {name: bus.get(path, _SERVICE, name) for name in names}

    return _ask(buses, properties, purpose=f"look at {unit}", timeout_s=timeout_s)


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ...

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(bus: Bus) -> str:
        return str(bus.get(ROOT, MANAGER, "SystemState"))

    return _ask(buses, state, purpose="ask systemd for its state", timeout_s=timeout_s)


def _known(bus: Bus, unit: str) -> str:
    path: str = bus.call(ROOT, MANAGER, "LoadUnit", "s", (unit,))[0]
    if (load := bus.get(path, _UNIT, "LoadState")) != "loaded":
        raise InstallerError(f"restart {unit} ({load})", remedy="name the unit that runs the engine")
    return path


def _forget_failures(bus: Bus, unit: str) -> None:
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    try:
        bus.call(ROOT, MANAGER, "ResetFailedUnit", "s", (unit,))
    except DBusErrorResponse as error:
        if error.name != f"{SYSTEMD}.NoSuchUnit":  # a unit at rest is unloaded again at once
            raise


def _state(bus: Bus, path: str, unit: str) -> UnitState:
    is_service = unit.endswith(".service")
    said = bus.properties(path, _UNIT)
    return UnitState(
        load=str(said["LoadState"]),
        active=str(said["ActiveState"]),
        sub=str(said["SubState"]),
        main_pid=int(bus.get(path, _SERVICE, "MainPID")) if is_service else 0,
        can_reload=bool(said["CanReload"]),
        job=int(said["Job"][0]),
        invocation=bytes(said["InvocationID"]).hex(),
        result=str(bus.get(path, _SERVICE, "Result")) if is_service else "",
    )


def _ask(
    buses: Sequence[Path],
    question: Callable[[Bus], T],
    *,
    purpose: str,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Put the question to the first bus that can be reached; every failure becomes an InstallerError."""
    from jeepney import DBusErrorResponse

    deadline = time.monotonic() + timeout_s
    with _connected(buses, deadline, check) as bus:
        try:
            return question(bus)
        except DBusErrorResponse as error:
            words = " ".join(str(part) for part in error.data) or error.name
            raise InstallerError(f"{purpose} ({words})", remedy="check the unit on the node") from error
        except TimeoutError as error:
            raise PendingError(
                f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
                remedy="see systemctl list-jobs on the node",
            ) from error
        except OSError as error:
            raise InstallerError(
                f"{purpose} (lost the connection to systemd: {error})", remedy="try again"
            ) from error
        except MALFORMED as error:
            raise InstallerError(
                f"{purpose} (what answers is not systemd: {error!r})", remedy="check the node's system bus"
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
        except (DBusErrorResponse, *MALFORMED) as error:
            failures.append(f"{path}: what answers is not systemd: {error!r}")
            continue
        bus.deadline = deadline
        try:
            yield bus
        finally:
            bus.close()
        return
    raise NoBusError(
        f"reach systemd ({', '.join(failures) or 'no socket to try'})",
        remedy=remedy,
    )
