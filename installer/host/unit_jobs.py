"""A unit is restarted over D-Bus and the end of its job awaited; no call blocks past its deadline."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from installer.decide.data import replace
from installer.decide.errors import InstallerError, NotBegunError, StoppedBeforeError, StoppedError
from installer.host.systemd import (
    ABSENT,
    GONE,
    MANAGER,
    ROOT,
    SYSTEMD,
    UnitState,
    ask,
    path_of,
    properties_of,
    state_in,
    state_of,
)

if TYPE_CHECKING:
    from installer.host.dbus import Bus

RESTART: Final = "RestartUnit"
ACTIVE: Final = "active"
JOB_POLL_S: Final = 0.01
UNKNOWN_OBJECT: Final = "org.freedesktop.DBus.Error.UnknownObject"
WITHDRAW_S: Final = 30.0  # a few questions to a systemd that has no time


def restart_unit(
    buses: Sequence[Path],
    unit: str,
    *,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    withdraw_s: float = WITHDRAW_S,
) -> None:
    """Restart a unit and return when its start is done, which is when the service said it is ready.

    systemd's count of recent starts is reset before: a few quick restarts otherwise leave the unit dead.

    Args:
        buses: sockets of the host's system bus or of systemd itself (``private``), the preferred first.
        unit: its full name, such as ``containerd.service``.
        timeout_s: for everything together; a restart that has begun goes on when it is over.
        check: called now and then while waiting; what it raises ends the wait.
        withdraw_s: how long may be spent then on taking back a restart that has not begun.

    Raises:
        NoBusError: systemd cannot be reached; nothing was done.
        NotBegunError: systemd did not come to it, and will not.
        PendingError: systemd is still at work on it.
        InstallerError: the unit is unknown, did not come up, or not in time.
    """

    def restart(on: "Bus") -> None:
        before = state_in(properties_of(on, unit, f"restart {unit}"))
        _forget_failures(on, unit)
        _do(on, RESTART, unit, before, withdraw_s)

    ask(buses, restart, purpose=f"restart {unit}", timeout_s=timeout_s, check=check)


def reload_unit(buses: Sequence[Path], unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in its own way, and return when that is done.

    Raises:
        NoBusError: systemd cannot be reached.
        InstallerError: the unit is unknown, cannot reload, or not in time.
    """

    def reload(on: "Bus") -> None:
        _do(on, "ReloadUnit", unit, state_in(properties_of(on, unit, f"reload {unit}")))

    ask(buses, reload, purpose=f"reload {unit}", timeout_s=timeout_s)


def start_transient(buses: Sequence[Path], unit: str, words: Sequence[str], *, timeout_s: float) -> None:
    """Have systemd run a command of the host's as a unit of its own, and do not wait for its end.

    Raises:
        NoBusError: systemd cannot be reached.
        InstallerError: systemd refuses, or there is a unit of that name.
    """
    properties = [
        ("Description", ("s", "toolkit-installer carries on an undo")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("ExecStart", ("a(sasb)", [(words[0], list(words), False)])),
    ]

    def start(on: "Bus") -> None:
        _manager(on, "StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "fail", properties, []))

    ask(buses, start, purpose=f"start {unit}", timeout_s=timeout_s)


def _do(bus: "Bus", method: str, unit: str, before: UnitState, withdraw_s: float = 0.0) -> None:
    """Queue a job for a unit, wait for its end, and look at what has become of the unit."""
    purpose = f"{method.removesuffix('Unit').lower()} {unit}"
    began = time.monotonic()
    job = _manager(bus, method, "ss", (unit, "replace"))[0]
    try:
        said = _await_end(bus, unit, job)
    except (TimeoutError, StoppedError) as error:
        # systemd answers questions also while others keep it busy, but runs its jobs only when it is idle.
        waited_s = time.monotonic() - began
        bus.deadline, bus.check = time.monotonic() + withdraw_s, lambda: None
        if not (withdraw_s and _withdrawn(bus, job, unit, before)):
            raise
        if isinstance(error, StoppedError):
            raise StoppedBeforeError from error
        raise NotBegunError(
            f"{purpose} (systemd has not begun with it within {waited_s:.0f} s)",
            remedy="wait until systemd is idle (systemctl list-jobs and top on the node), then run again",
        ) from error
    state, result = state_in(said), said.get("Result" if method == RESTART else "ReloadResult")
    if method == RESTART and state.active == ACTIVE and _unchanged(before, state):
        raise NotBegunError(
            f"{purpose} (somebody has cancelled it, or asked for something else of the unit)",
            remedy="see systemctl list-jobs and the journal of systemd on the node, then run again",
        )
    if state.active != ACTIVE or result not in {None, "success"}:
        raise InstallerError(
            f"{purpose} (unit {state.active}/{state.sub}, {result or 'no result'})",
            remedy=f"see journalctl -u {unit} on the node",
            code="unit-failed",
        )


def _await_end(bus: "Bus", unit: str, job: str) -> dict[str, Any]:
    """Return the unit as it is when ``job`` is its no more: done, failed, cancelled or replaced.

    A job outlives a daemon-reexec, during which nobody answers.
    """
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    while True:
        try:
            if bus.get(SYSTEMD, path_of(unit), f"{SYSTEMD}.Unit.Job")[1] != job:
                return bus.properties(SYSTEMD, path_of(unit))
        except DBusErrorResponse as error:
            if error.name not in {GONE, *ABSENT}:
                raise
        bus.check()
        time.sleep(JOB_POLL_S)


def _withdrawn(bus: "Bus", job: str, unit: str, before: UnitState) -> bool:
    """Take a job back that has not begun; tell whether the unit stays as it was ``before``."""
    now = state_of(bus, unit)
    if not now.job or not _unchanged(before, now):
        return False
    with _unless(UNKNOWN_OBJECT):  # it has just come to its end
        bus.call(SYSTEMD, job, f"{SYSTEMD}.Job.Cancel")
    if _unchanged(before, state_of(bus, unit)):
        return True
    # It has begun in this very moment: what is stopped would stay so.
    _manager(bus, "StartUnit", "ss", (unit, "replace"))
    return False


def _unchanged(before: UnitState, now: UnitState) -> bool:
    """Tell whether nothing was done to a unit, whatever is queued for it."""
    return replace(now, job=0) == replace(before, job=0)


def _forget_failures(bus: "Bus", unit: str) -> None:
    with _unless(f"{SYSTEMD}.NoSuchUnit"):  # a unit at rest is unloaded again at once
        _manager(bus, "ResetFailedUnit", "s", (unit,))


def _manager(bus: "Bus", method: str, signature: str, arguments: tuple[Any, ...]) -> Any:
    return bus.call(SYSTEMD, ROOT, f"{MANAGER}.{method}", signature, arguments)


@contextmanager
def _unless(name: str) -> Iterator[None]:
    """Let an error of that name be none."""
    from jeepney import DBusErrorResponse

    try:
        yield
    except DBusErrorResponse as error:
        if error.name != name:
            raise
