"""An engine's systemd unit: over D-Bus, or by the host's systemctl where no bus can be reached."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, NotBegunError, PendingError, StoppedError
from installer.decide.layout import SYSTEM_BUSES
from installer.host import systemctl, systemd, unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.systemd import NoBusError, UnitState
from installer.host.unit_start import UnitStart
from installer.record.failed_start import why_not_started

ASK_S: Final = 20.0  # whoever is on the system bus can keep systemd busy for that long
TURNS: Final = 20  # a restart takes of systemd about this many times what a look at a unit takes
JOB_POLL_S: Final = 0.02
STOP_S: Final = 600.0  # systemd kills after TimeoutStopSec, usually 90 s; it may be infinite
STOP_POLL_S: Final = 0.1
STOPPING: Final = "deactivating"
ROOT: Final = PurePosixPath("/")
SYSTEMD: Final = PurePosixPath("/proc/1")
BUSY: Final = 0.5

T = TypeVar("T")


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root.

    The bus first, where a connection outlives a daemon-reexec. systemd's own socket is there without a bus,
    and at a shutdown, which ends the bus before us.
    """
    return tuple(host.local_path(path) for path in reversed(SYSTEM_BUSES))


def state(host: Host, unit: str) -> UnitState:
    """Return the state of a unit.

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    return _either(
        lambda: systemd.unit_state(buses(host), unit, timeout_s=ASK_S),
        lambda: systemctl.state(host.local_path(ROOT), unit, timeout_s=ASK_S),
    )


def next_start(host: Host, unit: str) -> UnitStart:
    """Return how a unit will start its service; without a bus that is not much.

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    return _either(
        lambda: systemd.unit_start(buses(host), unit, timeout_s=ASK_S),
        lambda: systemctl.unit_start(host.local_path(ROOT), unit, timeout_s=ASK_S),
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a reload is waited for: ``start_s`` for a start and its proof, ``stop_s`` for a stop.

    A stop may take longer than a start, for an engine ends the calls that it is at work on, as long as
    systemd grants it; a pod that ends has no time for that, and gives 0. ``check`` is called now and then and
    may raise. An engine ``may_rest`` where its owner has stopped it: it reads its configs when it starts. It
    is restarted only ``when_idle`` where that was asked for.
    """

    start_s: float
    check: Callable[[], None]
    stop_s: float = STOP_S
    may_rest: bool = False
    when_idle: bool = False

    @property
    def hurried(self) -> bool:
        """Whether a pod's grace is running out, so that ``start_s`` is all there is."""
        return not self.stop_s


def restart(host: Host, unit: str, patience: Patience) -> UnitState:
    """Restart a unit; it is active, with another process than before, when this returns how it was before.

    Raises:
        PendingError: it still stops; it will be started whatever we do.
        InstallerError: it did not come up; the error has what failed, and the words of the unit's own log.
    """
    asked = time.monotonic()
    before = state(host, unit)
    # Whoever keeps systemd busy makes all that it does as slow as its answers. A pod has no time for that.
    asked_s = time.monotonic() - asked
    timeout_s = max(1.0, patience.start_s + (-asked_s if patience.hurried else TURNS * asked_s))
    began, busy = time.time(), Busy(host)
    try:
        try:
            _restarted(host, unit, timeout_s, patience, before)
        except PendingError as error:
            if patience.hurried:
                raise
            _outlast(host, unit, patience, error)
    except (NoBusError, StoppedError):
        raise
    except (NotBegunError, PendingError) as error:
        raise busy.explained(error) from error
    except InstallerError as error:
        if words := why_not_started(host, buses(host), unit, began, before):
            raise InstallerError(f"{error.problem}: {words}", remedy=error.remedy, code=error.code) from error
        raise
    after = state(host, unit)
    # Not by what was said of the job: the unit itself tells whether it was started anew.
    same_pid = after.main_pid and after.main_pid == before.main_pid
    if same_pid or (after.invocation and after.invocation == before.invocation):
        raise InstallerError(
            f"restart {unit} (it still runs as before, pid {after.main_pid})",
            remedy=f"see systemctl status {unit} on the node",
            code="unit-failed",
        )
    return before


def _restarted(host: Host, unit: str, timeout_s: float, patience: Patience, before: UnitState) -> None:
    # What has not begun when our time is over is taken back, but for a pod: its grace has no time for that.
    withdraw_s = 0.0 if patience.hurried else unit_jobs.WITHDRAW_S
    deadline = time.monotonic() + timeout_s
    try:
        _either(
            lambda: unit_jobs.restart_unit(
                buses(host), unit, timeout_s=timeout_s, check=patience.check, withdraw_s=withdraw_s
            ),
            lambda: systemctl.restart(host.local_path(ROOT), unit, timeout_s=timeout_s),
        )
    except (NotBegunError, PendingError, StoppedError):
        raise
    except InstallerError as error:
        # A systemd that executes itself anew drops connections and keeps its jobs: ask the unit.
        now = _settled(host, unit, deadline, patience)
        if now.active != "active":
            raise
        if now.invocation == before.invocation:
            raise NotBegunError(error.problem, remedy=error.remedy, code=error.code) from error


def _outlast(host: Host, unit: str, patience: Patience, slow: PendingError) -> None:
    """Wait for the end of a restart that is not over: for all of its stop, then for its start."""
    if _is_down(state(host, unit)):
        log.info("waiting for the restart", unit=unit, reason="calls in flight, or systemd is busy")
        deadline = time.monotonic() + patience.stop_s
        while _is_down(state(host, unit)):
            if time.monotonic() > deadline:
                raise PendingError(slow.problem, remedy=f"run again when {unit} has stopped and started")
            patience.check()
            time.sleep(STOP_POLL_S)
        _settled(host, unit, time.monotonic() + patience.start_s, patience)
    now = state(host, unit)
    if now.job or now.active != "active":
        # It hangs or has failed in its start: a reason to go back, as any other.
        raise InstallerError(
            f"{slow.problem}, unit {now.active}/{now.sub}", remedy=slow.remedy, code="unit-failed"
        )


def _settled(host: Host, unit: str, deadline: float, patience: Patience) -> UnitState:
    """Return a unit once systemd, which may be away for a moment, has no job for it, or at the deadline."""
    while time.monotonic() < deadline and ((now := _seen(host, unit)) is None or now.job):
        patience.check()
        time.sleep(JOB_POLL_S)
    return state(host, unit)


def _is_down(now: UnitState) -> bool:
    """Tell whether a unit still stops, or has stopped and waits for systemd to start it."""
    return now.active == STOPPING or bool(now.job and now.active in {"inactive", "failed"})


class Busy:
    """How busy systemd itself is from now on, as the node's /proc tells."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._began_s, self._busy_s = time.monotonic(), self._busy()

    def explained(self, error: InstallerError) -> InstallerError:
        """Return the error, with whom to look for where systemd had no time."""
        share = (self._busy() - self._busy_s) / max(0.1, time.monotonic() - self._began_s)
        if share < BUSY:
            return error
        return type(error)(
            error.problem,
            remedy=f"systemd was busy for {min(share, 1):.0%} of that time: see who asks it without end "
            "(busctl monitor org.freedesktop.systemd1 on the node) and end that; if nobody asks any more, it "
            "still answers what was asked: wait until it is idle (top on the node), then run again",
        )

    def _busy(self) -> float:
        return systemd.busy_s(self._host.local_path(SYSTEMD))


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in the way that its owner wrote down (ExecReload).

    Raises:
        InstallerError: it cannot, or systemd cannot be reached.
    """
    _either(
        lambda: unit_jobs.reload_unit(buses(host), unit, timeout_s=timeout_s),
        lambda: systemctl.reload(host.local_path(ROOT), unit, timeout_s=timeout_s),
    )


def start_transient(host: Host, unit: str, words: Sequence[str]) -> None:
    """Have systemd run a command of the host's as a unit of its own.

    Raises:
        InstallerError: it does not, or systemd cannot be reached.
    """
    _either(
        lambda: unit_jobs.start_transient(buses(host), unit, words, timeout_s=ASK_S),
        lambda: systemctl.start_transient(host.local_path(ROOT), unit, words, timeout_s=ASK_S),
    )


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait until systemd is done with what it was told to do to a unit, be it by somebody who is gone."""
    deadline = time.monotonic() + timeout_s
    with suppress(InstallerError):  # without systemd nothing is being done
        while state(host, unit).job and time.monotonic() < deadline:
            time.sleep(JOB_POLL_S)


def at_rest(host: Host, unit: str) -> bool:
    """Tell whether a unit is stopped and stays so; one that systemd starts again in a moment is not."""
    now = _seen(host, unit)
    return now is None or (now.active in {"inactive", "failed"} and not now.job)


def stopped_by_owner(host: Host, unit: str) -> bool:
    """Tell whether a unit has come to a good end: not by itself, nor by a config."""
    return _is(host, unit, "inactive")


def held_for(host: Host, unit: str, socket: PurePosixPath) -> bool:
    """Tell whether systemd listens in the place of a service that is stopped: whoever connects starts it."""
    with suppress(InstallerError):
        if unit and state(host, unit).active in {"inactive", "failed", STOPPING}:
            found = state(host, f"{unit.removesuffix('.service')}.socket")
            paths = {host.local_path(PurePosixPath(place)) for place in found.listens if place[:1] == "/"}
            return found.active == "active" and (not paths or host.local_path(socket) in paths)
    return False


def crashes(host: Host, unit: str) -> bool:
    """Tell whether a unit is on its way up, as one is all the time whose service ends at each start."""
    return _is(host, unit, "activating")


def runs(host: Host, unit: str) -> bool:
    """Tell whether a unit runs, be it on its way up; one that nobody can ask for does not."""
    return _is(host, unit, "active", "activating", "reloading")


def died(host: Host, unit: str) -> str:
    """Return how a unit is if its service has come to an end, "" where it runs or nobody knows."""
    now = _seen(host, unit)
    ended = now and (now.active in {"failed", "inactive"} or now.sub == "auto-restart")
    return f"{unit} is {now.active}/{now.sub}" if now and ended else ""


def _is(host: Host, unit: str, *states: str) -> bool:
    now = _seen(host, unit)
    return now is not None and now.active in states


def _seen(host: Host, unit: str) -> UnitState | None:
    try:
        return state(host, unit)
    except InstallerError:
        return None


def _either(over_bus: Callable[[], T], by_program: Callable[[], T]) -> T:
    try:
        return over_bus()
    except NoBusError as error:
        try:
            return by_program()
        except NoBusError:
            raise error from None
