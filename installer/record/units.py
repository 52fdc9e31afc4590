"""An engine's systemd unit: over D-Bus, or by the host's systemctl where no bus can be reached."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from installer.decide.errors import InstallerError, StoppedError
from installer.decide.layout import SYSTEM_BUSES
from installer.host import systemctl, systemd
from installer.host.files import Host
from installer.host.programs import run_in
from installer.host.systemd import NoBusError, UnitState

ASK_S: Final = 5.0
SYNC_S: Final = 1.0  # the engine is down meanwhile
JOB_POLL_S: Final = 0.02
ROOT: Final = PurePosixPath("/")
GRAVE: Final = ("level=fatal", "level=panic", "panic:", "level=error", "failed", "error")

T = TypeVar("T")


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root."""
    return tuple(host.here(path) for path in SYSTEM_BUSES)


def state(host: Host, unit: str) -> UnitState:
    """Return the state of a unit.

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    return _either(
        lambda: systemd.unit_state(buses(host), unit, timeout_s=ASK_S),
        lambda: systemctl.state(host.here(ROOT), unit, timeout_s=ASK_S),
    )


def restart(host: Host, unit: str, *, timeout_s: float, check: Callable[[], None]) -> None:
    """Restart a unit; it is active, with another process than before, when this returns.

    ``check`` is called while it waits and may raise.

    Raises:
        InstallerError: it did not come up; the error has the words of the unit's own log.
    """
    before = state(host, unit)
    began = time.time()
    try:
        _either(
            lambda: systemd.restart_unit(buses(host), unit, timeout_s=timeout_s, check=check),
            lambda: systemctl.restart(host.here(ROOT), unit, timeout_s=timeout_s),
        )
    except (NoBusError, StoppedError):
        raise
    except InstallerError as error:
        if words := last_words(host, unit, began):
            raise InstallerError(f"{error.problem}: {words}", remedy=error.remedy) from error
        raise
    after = state(host, unit)
    # Not by what was said of the job: the unit itself tells whether it was started anew.
    same_pid = after.main_pid and after.main_pid == before.main_pid
    if same_pid or (after.invocation and after.invocation == before.invocation):
        raise InstallerError(
            f"restart {unit} (it still runs as before, pid {after.main_pid})",
            remedy=f"see systemctl status {unit} on the node",
        )


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in the way that its owner wrote down (ExecReload).

    Raises:
        InstallerError: it cannot, or systemd cannot be reached.
    """
    _either(
        lambda: systemd.reload_unit(buses(host), unit, timeout_s=timeout_s),
        lambda: systemctl.reload(host.here(ROOT), unit, timeout_s=timeout_s),
    )


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait until systemd is done with what it was told to do to a unit, be it by somebody who is gone."""
    deadline = time.monotonic() + timeout_s
    with suppress(InstallerError):  # without systemd nothing is being done
        while state(host, unit).job and time.monotonic() < deadline:
            time.sleep(JOB_POLL_S)


def at_rest(host: Host, unit: str) -> bool:
    """Tell whether a unit is stopped and stays so; one that systemd starts again in a moment is not."""
    try:
        now = state(host, unit)
    except InstallerError:
        return True
    return now.active in {"inactive", "failed"} and not now.job


def runs(host: Host, unit: str) -> bool:
    """Tell whether a unit runs, be it on its way up; one that nobody can ask for does not."""
    try:
        return state(host, unit).active in {"active", "activating", "reloading"}
    except InstallerError:
        return False


def died(host: Host, unit: str) -> str:
    """Return how a unit is if its service has come to an end, "" where it runs or nobody knows."""
    try:
        now = state(host, unit)
    except InstallerError:
        return ""
    ended = now.active in {"failed", "inactive"} or now.sub == "auto-restart"
    return f"{unit} is {now.active}/{now.sub}" if ended else ""


def last_words(host: Host, unit: str, since_s: float) -> str:
    """Return the gravest of the last lines that a unit's processes logged, "" where there are none."""
    root = host.here(ROOT)
    run_in(root, ["journalctl", "--sync"], timeout_s=SYNC_S)  # what a process said just before its end
    words = ["journalctl", f"_SYSTEMD_UNIT={unit}", f"--since=@{since_s:.6f}", "--lines=20", "--output=cat"]
    ran = run_in(root, [*words, "--no-pager", "--quiet"], timeout_s=SYNC_S)
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()] if ran else []
    for mark in GRAVE:
        for line in reversed(lines):
            if mark in line.lower():
                return line[:300]
    return lines[-1][:300] if lines else ""


def _either(over_bus: Callable[[], T], by_program: Callable[[], T]) -> T:
    try:
        return over_bus()
    except NoBusError as error:
        try:
            return by_program()
        except NoBusError:
            raise error from None
