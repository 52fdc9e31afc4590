"""A unit is restarted over D-Bus and its end awaited; no call blocks past its deadline."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from installer.decide.data import replace
from installer.decide.errors import InstallerError, NotBegunError, StoppedBeforeError, StoppedError
from installer.host.dbus import MANAGER, ROOT, SYSTEMD, Bus
from installer.host.systemd import UnitState, ask, properties_of, state_in, state_of

CANCELED: Final = "canceled"  # systemd's word for a job that was taken out of its queue, or replaced
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
        buses: sockets of systemd itself (``private``) or of the system bus, the preferred first.
        unit: its full name, such as ``containerd.service``.
        timeout_s: for everything together; a restart that has begun goes on when it is over.
        check: called now and then while waiting; what it raises ends the wait.
        withdraw_s: how long may be spent then on taking back a restart that has not begun.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        NotBegunError: systemd did not come to it, and will not.
        PendingError: systemd is still at work on it.
        InstallerError: the unit is unknown, did not come up, or not in time.
    """

    def restart(bus: Bus) -> None:
        before = state_in(properties_of(bus, unit, f"restart {unit}"))
        _forget_failures(bus, unit)
        _do(bus, "RestartUnit", unit, before, withdraw_s)

    ask(buses, restart, purpose=f"restart {unit}", timeout_s=timeout_s, check=check)


def reload_unit(buses: Sequence[Path], unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in its own way, and return when that is done.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: the unit is unknown, cannot reload, or not in time.
    """

    def reload(bus: Bus) -> None:
        _do(bus, "ReloadUnit", unit, state_in(properties_of(bus, unit, f"reload {unit}")))

    ask(buses, reload, purpose=f"reload {unit}", timeout_s=timeout_s)


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

    ask(buses, start, purpose=f"start {unit}", timeout_s=timeout_s)


def _do(bus: Bus, method: str, unit: str, before: UnitState, withdraw_s: float = 0.0) -> None:
    """Queue a job for a unit, wait for its end, and look at what has become of the unit."""
    purpose = f"{method.removesuffix('Unit').lower()} {unit}"
    bus.listen()
    began = time.monotonic()
    job = bus.call(ROOT, MANAGER, method, "ss", (unit, "replace"))[0]
    try:
        ended = bus.ended(job)
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
    state = state_of(bus, unit)
    if ended == CANCELED and _unchanged(before, state):
        raise NotBegunError(
            f"{purpose} (somebody has cancelled it, or asked for something else of the unit)",
            remedy="see systemctl list-jobs and the journal of systemd on the node, then run again",
        )
    if ended not in {"done", ""} or state.active != "active":
        found = f"job {ended or 'gone'}, unit {state.active}/{state.sub}, {state.result or 'no result'}"
        raise InstallerError(
            f"{purpose} ({found})",
            remedy=f"see journalctl -u {unit} on the node",
            code="unit-failed",
        )


def _withdrawn(bus: Bus, job: str, unit: str, before: UnitState) -> bool:
    """Take a job back that has not begun; tell whether the unit stays as it was ``before``."""
    now = state_of(bus, unit)
    if not now.job or not _unchanged(before, now):
        return False
    bus.cancel(job)
    if _unchanged(before, state_of(bus, unit)):
        return True
    # It has begun in this very moment: what is stopped would stay so.
    bus.call(ROOT, MANAGER, "StartUnit", "ss", (unit, "replace"))
    return False


def _unchanged(before: UnitState, now: UnitState) -> bool:
    """Tell whether nothing was done to a unit, whatever is queued for it."""
    return replace(now, job=0) == replace(before, job=0)


def _forget_failures(bus: Bus, unit: str) -> None:
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    try:
        bus.call(ROOT, MANAGER, "ResetFailedUnit", "s", (unit,))
    except DBusErrorResponse as error:
        if error.name != f"{SYSTEMD}.NoSuchUnit":  # a unit at rest is unloaded again at once
            raise
