"""An engine's systemd unit: over D-Bus, or by the host's systemctl where no bus can be reached."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from msgspec import Struct

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedError
from installer.host import signals, systemd
from installer.host.events import log
from installer.host.files import Host
from installer.host.programs import ENVIRONMENT, LateError, Ran, run_in_time
from installer.host.systemd import MASKED, MOUNT, REFUSING, NoBusError, UnitStart, UnitState
from installer.model.paths import SYSTEM_BUSES

ASK_S: Final = 20.0  # whoever is on the system bus can keep systemd busy for that long
TURNS: Final = 20  # a restart takes of systemd about this many times what a look at a unit takes
JOB_POLL_S: Final = 0.02
STOP_S: Final = 600.0  # systemd kills after TimeoutStopSec, usually 90 s; it may be infinite
STOP_POLL_S: Final = 0.1
STOPPING: Final = "deactivating"
AGAIN: Final = "auto-restart"
ROOT: Final = PurePosixPath("/")
SYSTEMD: Final = PurePosixPath("/proc/1")
BUSY: Final = 0.5
IDLE_FIRST: Final = (
    "systemd was busy for {share:.0%} of that time: see who asks it without end "
    "(busctl monitor org.freedesktop.systemd1 on the node) and end that; if nobody asks any more, it "
    "still answers what was asked: wait until it is idle (top on the node), then run again"
)
# What systemctl 252 and 257 say where there is no systemd, or it cannot be reached either.
UNREACHABLE: Final = ("has not been booted", "connect to bus", "connect to system scope bus")
# Where it takes a root for a chroot it ignores "restart" and ends well.
REAL: Final = {"SYSTEMD_IGNORE_CHROOT": "1"}
NEEDED: Final = ("LoadState", "ActiveState", "SubState", "MainPID", "CanReload")
MORE: Final = ("Job", "InvocationID", "Result")  # not of every unit
LISTEN: Final = "Listen"  # of a socket, a line for each place: "/run/docker.sock (Stream)"

T = TypeVar("T")


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root, the preferred first."""
    return tuple(host.local_path(path) for path in SYSTEM_BUSES)


def state(host: Host, unit: str) -> UnitState:
    """Return the state of a unit.

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    over_bus = partial(systemd.look, unit=unit, read=UnitState.of, timeout_s=ASK_S)
    return _either(host, over_bus, partial(show_state, unit=unit, timeout_s=ASK_S))


def next_start(host: Host, unit: str) -> UnitStart:
    """Return how a unit will start its service; without a bus that is not much.

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    over_bus = partial(systemd.look, unit=unit, read=UnitStart.of, timeout_s=ASK_S)
    return _either(host, over_bus, partial(show_start, unit=unit, timeout_s=ASK_S))


class Patience(Struct, frozen=True):
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


def restart(
    host: Host,
    unit: str,
    patience: Patience,
    explain: Callable[[float, UnitState], str] = lambda _since_s, _before: "",
) -> UnitState:
    """Restart a unit; it is active, with another process than before, when this returns how it was before.

    ``explain`` returns why it did not start since a moment, "" where that is not known.

    Raises:
        PendingError: it still stops; it will be started whatever we do.
        InstallerError: it did not come up; the error has what failed, and the words of the unit's own log.
    """
    asked = time.monotonic()
    before = state(host, unit)
    # Whoever keeps systemd busy makes all that it does as slow as its answers. A pod has no time for that.
    asked_s = time.monotonic() - asked
    timeout_s = max(1.0, patience.start_s + (-asked_s if patience.hurried else TURNS * asked_s))
    began, asked, busy_s = time.time(), time.monotonic(), _busy_s(host)
    try:
        _restart(host, unit, timeout_s, patience, before)
    except (NoBusError, StoppedError):
        raise
    except (NotBegunError, PendingError) as error:
        share = (_busy_s(host) - busy_s) / max(0.1, time.monotonic() - asked)
        if share < BUSY:
            raise
        raise type(error)(error.problem, remedy=IDLE_FIRST.format(share=min(share, 1))) from error
    except InstallerError as error:
        if words := explain(began, before):
            raise InstallerError(f"{error.problem}: {words}", remedy=error.remedy, code=error.code) from error
        raise
    _refuse_same(unit, before, state(host, unit))
    return before


def _refuse_same(unit: str, before: UnitState, after: UnitState) -> None:
    """Raise where a unit was not started anew: not by what was said of the job, but by the unit itself."""
    same_pid = after.main_pid and after.main_pid == before.main_pid
    if same_pid or (after.invocation and after.invocation == before.invocation):
        raise InstallerError(
            f"restart {unit} (it still runs as before, pid {after.main_pid})",
            remedy=f"see systemctl status {unit} on the node",
            code="unit-failed",
        )


def _restart(host: Host, unit: str, timeout_s: float, patience: Patience, before: UnitState) -> None:
    # What has not begun when our time is over is taken back, but for a pod: its grace has no time for that.
    withdraw_s = 0.0 if patience.hurried else systemd.WITHDRAW_S
    deadline = time.monotonic() + timeout_s
    over_bus = partial(
        systemd.restart_unit, unit=unit, timeout_s=timeout_s, check=patience.check, withdraw_s=withdraw_s
    )
    try:
        _either(host, over_bus, partial(run_systemctl, verb="restart", unit=unit, timeout_s=timeout_s))
    except (NotBegunError, StoppedError):
        raise
    except PendingError as error:
        if patience.hurried:
            raise
        _outlast(host, unit, patience, error)
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


def _busy_s(host: Host) -> float:
    """Return for how many seconds systemd worked or waited for a processor, 0 where that is not seen.

    On a loaded machine it waits most of the time that it is busy (proc_pid_schedstat(5)).
    """
    process = host.local_path(SYSTEMD)
    with suppress(OSError, ValueError, IndexError):
        if (process / "stat").read_bytes().startswith(b"1 (systemd) "):
            worked_ns, waited_ns = (process / "schedstat").read_bytes().split()[:2]
            return (int(worked_ns) + int(waited_ns)) / 1e9
    return 0.0


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in the way that its owner wrote down (ExecReload).

    Raises:
        InstallerError: it cannot, or systemd cannot be reached.
    """
    over_bus = partial(systemd.reload_unit, unit=unit, timeout_s=timeout_s)
    _either(host, over_bus, partial(run_systemctl, verb="reload", unit=unit, timeout_s=timeout_s))


def start_transient(host: Host, unit: str, words: Sequence[str]) -> None:
    """Have systemd run a command of the host's as a unit of its own, and do not wait for its end.

    Raises:
        InstallerError: it does not, or systemd cannot be reached.
    """
    over_bus = partial(systemd.start_transient, unit=unit, words=words, timeout_s=ASK_S)
    _either(host, over_bus, partial(_run_transient, unit=unit, words=words))


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait until systemd is done with what it was told to do to a unit, be it by somebody who is gone."""
    deadline = time.monotonic() + timeout_s
    with suppress(InstallerError):  # without systemd nothing is being done
        while state(host, unit).job and time.monotonic() < deadline:
            time.sleep(JOB_POLL_S)


def await_start(host: Host, unit: str, *, timeout_s: float) -> bool:
    """Return once systemd has started a unit again that it is about to, well or not; else False, at once."""
    before, deadline = _seen(host, unit), time.monotonic() + timeout_s
    if before is None or before.sub != AGAIN:
        return False
    while (now := _seen(host, unit)) and now.active == before.active and time.monotonic() < deadline:
        if now.sub == AGAIN and now.invocation != before.invocation:
            break  # it has ended once more
        signals.check()
        time.sleep(STOP_POLL_S)
    return True


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
    ended = now and (now.active in {"failed", "inactive"} or now.sub == AGAIN)
    return f"{unit} is {now.active}/{now.sub}" if now and ended else ""


def _is(host: Host, unit: str, *states: str) -> bool:
    now = _seen(host, unit)
    return now is not None and now.active in states


def _seen(host: Host, unit: str) -> UnitState | None:
    try:
        return state(host, unit)
    except InstallerError:
        return None


def _either(host: Host, over_bus: Callable[[Sequence[Path]], T], by_program: Callable[[Path], T]) -> T:
    """Ask systemd over a bus; where none leads to it, by systemctl in the host's root."""
    try:
        return over_bus(buses(host))
    except NoBusError as error:
        try:
            return by_program(host.local_path(ROOT))
        except NoBusError:
            raise error from None


def run_systemctl(root: Path, verb: str, unit: str, *, timeout_s: float) -> None:
    """Restart or reload a unit and return when that is done; recent starts are forgotten before a restart."""
    if verb == "restart":
        _run(root, ["systemctl", "reset-failed", unit], timeout_s)
    ran = _run(root, ["systemctl", verb, unit], timeout_s)
    _refuse_failed(ran, f"{verb} {unit}", f"see journalctl -u {unit} on the node")


def _run_transient(root: Path, unit: str, words: Sequence[str]) -> None:
    options = ("--no-block", "--collect", "--quiet", f"--unit={unit}")
    ran = _run(root, ["systemd-run", *options, "--", *words], ASK_S)
    _refuse_failed(ran, f"start {unit}", "see systemctl --failed on the node")


def show_state(root: Path, unit: str, *, timeout_s: float) -> UnitState:
    """Return the state of a unit by ``systemctl show``."""
    ran, lines = _show(root, unit, (*NEEDED, *MORE, LISTEN), timeout_s)
    words, listens = dict(lines), tuple(value.rpartition(" (")[0] for name, value in lines if name == LISTEN)
    try:
        load, active, sub, main_pid, can_reload = (words[name] for name in NEEDED)
        job, invocation, result = (words.get(name, "") for name in MORE)
        pid, reloads = int(main_pid), can_reload == "yes"
        return UnitState(load, active, sub, pid, reloads, int(job or 0), invocation, result, listens)
    except (KeyError, ValueError) as error:
        raise InstallerError(
            f"look at {unit} ({ran.last_line})", remedy="check the unit on the node", code="unit-failed"
        ) from error


def show_start(root: Path, unit: str, *, timeout_s: float) -> UnitStart:
    """Return of how a unit starts its service what ``systemctl show`` tells as one word each."""
    words = dict(_show(root, unit, ("KillMode", "LoadState", *REFUSING), timeout_s)[1])
    return UnitStart(
        refuses=tuple(name for name in REFUSING if words.get(name) == "yes"),
        kill_mode=words.get("KillMode", ""),
        masked=words.get("LoadState") == MASKED,
    )


def _show(root: Path, unit: str, names: Sequence[str], timeout_s: float) -> tuple[Ran, list[tuple[str, str]]]:
    ran = _run(root, ["systemctl", "show", f"--property={','.join(names)}", unit], timeout_s)
    lines = (line.partition("=") for line in ran.stdout.split("\n") if "=" in line)
    return ran, [(name, value) for name, _, value in lines]


def _refuse_failed(ran: Ran, purpose: str, remedy: str) -> None:
    if ran.returncode:
        raise InstallerError(f"{purpose} ({ran.last_line})", remedy=remedy, code="unit-failed")


def _run(root: Path, words: list[str], timeout_s: float) -> Ran:
    try:
        ran = run_in_time(root, words, timeout_s=timeout_s, environment=ENVIRONMENT | REAL)
    except LateError as error:
        raise PendingError(
            f"run {' '.join(words)} within {timeout_s:g} s (systemd still works on it, or hangs)",
            remedy="see systemctl list-jobs on the node, then run again",
        ) from error
    if ran is None or (ran.returncode and any(text in ran.stderr for text in UNREACHABLE)):
        reason = ran.last_line if ran else "the host's systemctl cannot be run"
        raise NoBusError(f"reach systemd ({reason})", remedy=MOUNT)
    return ran
