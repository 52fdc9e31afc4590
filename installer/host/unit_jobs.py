"""Jobs of systemd: restart or reload a unit, await the end of the job, and explain a failed start."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedBeforeError, StoppedError
from installer.host import supervision, systemd
from installer.host.events import log
from installer.host.files import Host
from installer.host.programs import run_in
from installer.host.systemd import AGAIN, ASK_S, NoBusError, Unit, buses, late, look_at_unit, read_unit

HOST_ROOT: Final = PurePosixPath("/")
TURNS: Final = 20  # systemd needs about this many times longer for a restart than for a look at a unit
POLL_S: Final = 0.02
STOP_S: Final = 600.0  # systemd kills after TimeoutStopSec, usually 90 s; it may be infinite
STOP_POLL_S: Final = 0.1
ANSWER_S: Final = 5.0  # a stop is noticed between two answers
WORDS_S: Final = 5.0
READY_US: Final = 60_000_000  # our unit is loaded within seconds
SYNC_S: Final = 1.0  # the engine is down during that time
ITS_PROCESS: Final = "its process"
# waitid(2), si_code: CLD_EXITED, CLD_KILLED, CLD_DUMPED
ENDS: Final = {1: "exited with status", **dict.fromkeys((2, 3), "was ended by signal")}
SEVERITY_MARKERS: Final = ("level=fatal", "level=panic", "panic:", "level=error", "failed", "error")


class Patience(Struct, frozen=True):
    """The time limits of a reload."""

    start_s: float  # for a start and its proof
    check: Callable[[], None]  # is called again and again during the wait, and may raise
    # For a stop: the engine finishes its calls first, as long as systemd allows. A pod that ends has no time
    # for that, and gives 0.
    stop_s: float = STOP_S
    # An engine that its owner has stopped may stay so: it reads its configs at its start.
    may_rest: bool = False

    @property
    def hurried(self) -> bool:
        """Whether a pod's grace is running out, so that there is no time beyond ``start_s``."""
        return not self.stop_s


def _call(host: Host, purpose: str, *call: Any, timeout_s: float = ASK_S) -> None:
    """Call a method of systemd's manager with a signature and arguments."""
    method, *arguments = call
    manager = (systemd.ROOT, f"{systemd.MANAGER}.{method}")
    words = (*manager, *arguments)

    def question(bus: systemd.Bus) -> Any:
        return bus.call(*words)

    systemd.ask_bus(buses(host), question, purpose=purpose, timeout_s=timeout_s)


def _queue(host: Host, verb: str, unit: str, timeout_s: float) -> None:
    """Have systemd queue a job for a unit; do not wait for the end of the job."""
    method = f"{verb.capitalize()}Unit"
    _call(host, f"{verb} {unit}", method, "ss", unit, "replace", timeout_s=timeout_s)


def restart(host: Host, unit: str, patience: Patience) -> Unit:
    """Restart a unit, wait until the unit is active again, and return the state before the restart.

    Raises:
        NotBegunError: systemd did not begin the restart, and will not.
        PendingError: the unit still stops, and systemd will start it in any case.
        InstallerError: the unit did not start; the message has the failed command and the last log line.
    """
    asked = time.monotonic()
    before = read_unit(host, unit)
    if before.load != "loaded":
        raise NotBegunError(f"restart {unit} ({before.load})", remedy="name the unit that runs the engine")
    # If systemd is busy, its jobs are as slow as its answers; a pod that ends has no time to wait for that.
    asked_s = time.monotonic() - asked
    extra_s = -asked_s if patience.hurried else TURNS * asked_s
    timeout_s = max(1.0, patience.start_s + extra_s)
    began = time.time()
    try:
        _restart(host, unit, before, timeout_s, patience)
    except (NoBusError, NotBegunError, PendingError, StoppedError):
        raise
    except InstallerError as error:
        reason = why_not_started(host, unit, began, before)
        if reason:
            problem = f"{error.problem}: {reason}"
            raise InstallerError(problem, remedy=error.remedy, code=error.code) from error
        raise
    return before


def _restart(host: Host, unit: str, before: Unit, timeout_s: float, patience: Patience) -> None:
    purpose = f"restart {unit}"
    deadline = time.monotonic() + timeout_s
    failure: InstallerError | None = None
    # systemd allows only a few starts in a short time; the reset counts anew.
    with suppress(InstallerError):  # systemd does not know a stopped unit that it has unloaded
        _call(host, purpose, "ResetFailedUnit", "s", unit, timeout_s=timeout_s)
    try:
        _queue(host, "restart", unit, timeout_s)
    except NoBusError:
        raise
    except InstallerError as error:
        failure = error  # a systemd that executes itself anew drops connections and keeps its jobs
    try:
        now = _await_end(host, unit, deadline, patience.check)
    except StoppedError as error:
        if not patience.hurried and _withdraw(host, unit, before):
            raise StoppedBeforeError from error
        raise
    if now.job:
        now = _outlast(host, unit, before, timeout_s, patience)
    if now.active == "active" and now.run == before.run:
        if isinstance(failure, PendingError):
            raise failure
        failure = failure or NotBegunError(
            f"{purpose} (another command cancelled it, or gave the unit another job)",
            remedy="see systemctl list-jobs and the journal of systemd on the node, then run again",
        )
        raise NotBegunError(failure.problem, remedy=failure.remedy, code=failure.code) from failure
    if failure and now.active != "active":
        raise failure
    _refuse_failed("restart", unit, now, now.result)


def _refuse_failed(verb: str, unit: str, now: Unit, result: str) -> None:
    if now.active != "active" or result not in {"", "success"}:
        problem = f"{verb} {unit} (unit {now.active}/{now.sub}, {result or 'no result'})"
        raise InstallerError(problem, remedy=f"see journalctl -u {unit} on the node", code="unit-failed")


def _await_end(host: Host, unit: str, deadline: float, check: Callable[[], None]) -> Unit:
    """Return a unit once systemd has no job for it, or at the deadline.

    systemd may not answer for a moment, as during a daemon-reexec.
    """
    while True:
        left_s = deadline - time.monotonic()
        try:
            now = read_unit(host, unit, timeout_s=min(ANSWER_S, max(1.0, left_s)))
        except InstallerError:
            if left_s < 0:
                raise
        else:
            if not now.job or left_s < 0:
                return now
        check()
        time.sleep(POLL_S)


def _outlast(host: Host, unit: str, before: Unit, timeout_s: float, patience: Patience) -> Unit:
    """Wait for the end of a late restart: for the whole stop, then for the start."""
    slow = late(f"restart {unit}", timeout_s)
    if patience.hurried:  # there is no time to cancel the job
        raise slow
    # A busy systemd still answers questions, but runs its jobs only when it is idle.
    if _withdraw(host, unit, before):
        raise NotBegunError(
            f"restart {unit} (systemd has not started the restart within {timeout_s:.0f} s)",
            remedy="wait until systemd is idle, then run again (systemctl list-jobs and busctl monitor "
            "org.freedesktop.systemd1 show its work)",
        )
    if read_unit(host, unit).is_down:
        log.info("waiting for the restart", unit=unit, reason="calls in flight, or systemd is busy")
        deadline = time.monotonic() + patience.stop_s
        while read_unit(host, unit).is_down:
            if time.monotonic() > deadline:
                raise PendingError(slow.problem, remedy=f"run again when {unit} has stopped and started")
            patience.check()
            time.sleep(STOP_POLL_S)
    now = _await_end(host, unit, time.monotonic() + patience.start_s, patience.check)
    if now.job or now.active != "active":
        # The unit hangs or has failed in its start, which is a reason to roll back.
        problem = f"{slow.problem}, unit {now.active}/{now.sub}"
        remedy = f"see journalctl -u {unit} and systemctl list-jobs on the node"
        raise InstallerError(problem, remedy=remedy, code="unit-failed")
    return now


def _withdraw(host: Host, unit: str, before: Unit) -> bool:
    """Cancel a restart that has not begun; tell whether the unit is still in the state ``before``."""
    with suppress(InstallerError):
        now = read_unit(host, unit)
        if now.job and now.run == before.run:
            with suppress(InstallerError):  # the job has just ended
                _call(host, f"cancel the restart of {unit}", "CancelJob", "u", now.job)
            if read_unit(host, unit).run == before.run:
                return True
            # The restart began in this very moment, and the stopped unit would stay stopped.
            _queue(host, "start", unit, ASK_S)
    return False


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Have a unit reload the config (ExecReload).

    Raises:
        InstallerError: the reload failed, or systemd does not answer.
    """
    deadline = time.monotonic() + timeout_s
    _queue(host, "reload", unit, timeout_s)
    now = _await_end(host, unit, deadline, _never_stop)
    if now.job:
        raise late(f"reload {unit}", timeout_s)
    _refuse_failed("reload", unit, now, now.reload_result)


def start_transient(
    host: Host, unit: str, words: Sequence[str], *, memory_bytes: int, timeout_s: float
) -> None:
    """Have systemd run a command of the host as a transient unit; return once the unit is ready.

    A failed unit of this name is replaced.

    Raises:
        InstallerError: the unit cannot be started, or has ended before it was ready.
    """
    began_s = time.time()
    deadline = time.monotonic() + timeout_s
    properties = [
        ("Description", ("s", "toolkit-installer finishes an undo")),
        ("Type", ("s", "notify")),
        ("MemoryMax", ("t", memory_bytes)),
        ("TimeoutStartUSec", ("t", READY_US)),
        ("ExecStart", ("a(sasb)", [(words[0], list(words), False)])),
    ]
    purpose = f"start {unit}"
    with suppress(InstallerError):  # systemd knows no unit of this name
        reset_failed(host, unit)
    signature = "ssa(sv)a(sa(sv))"
    _call(host, purpose, "StartTransientUnit", signature, unit, "fail", properties, list[Any]())
    now = _await_end(host, unit, deadline, _never_stop)
    if now.job:
        raise late(purpose, timeout_s)
    if now.active != "active":
        reason = why_not_started(host, unit, began_s) or f"unit {now.active}/{now.sub}"
        problem = f"{purpose} ({reason})"
        raise InstallerError(problem, remedy=f"see journalctl -u {unit} on the node", code="unit-failed")


def reset_failed(host: Host, unit: str) -> None:
    """Reset the failed state of a unit."""
    _call(host, f"reset {unit}", "ResetFailedUnit", "s", unit)


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait for the end of a unit's job, also if the process that queued the job has ended."""
    with suppress(InstallerError):  # without systemd there are no jobs
        if read_unit(host, unit).job:
            _await_end(host, unit, time.monotonic() + timeout_s, _never_stop)


def _never_stop() -> None:
    """Wait on, without a check for a stop."""


def await_start(host: Host, unit: str, *, timeout_s: float) -> bool:
    """Wait for the automatic restart of a unit, successful or not; return False at once if none is due."""
    before = look_at_unit(host, unit)
    deadline = time.monotonic() + timeout_s
    if before.sub != AGAIN:
        return False
    now = look_at_unit(host, unit)
    while now.active == before.active and time.monotonic() < deadline:
        if now.sub == AGAIN and now.invocation != before.invocation:
            break  # the unit was started and has ended again
        supervision.raise_if_stopped()
        time.sleep(STOP_POLL_S)
        now = look_at_unit(host, unit)
    return True


def await_active_again(  # noqa: PLR0913 - a unit, its state before, and the limits of the wait
    host: Host, unit: str, before: Unit, *, began_s: float, deadline: float, check: Callable[[], None]
) -> str:
    """Wait until a unit is active that systemd restarts along with another unit; start it once if it is down.

    Args:
        host: The node.
        unit: The unit.
        before: The unit before the restart.
        began_s: The begin of the restart, in seconds of the wall clock.
        deadline: The end of the wait, on the monotonic clock.
        check: Is called again and again during the wait, and may raise.

    Returns:
        Why the unit is not active; "" if it is, or has run again and ended well by itself.
    """
    is_started = False
    while True:
        now = _await_end(host, unit, deadline, check)
        if not now.job:
            if now.active == "active":
                return ""
            was_started = now.invocation not in {"", before.invocation}
            if now.active == "inactive" and was_started and now.result in {"", "success"}:
                return ""  # as a service that runs for a short time
        if time.monotonic() > deadline or (is_started and now.is_at_rest):
            state = f"{unit} is {now.active}/{now.sub}"
            return ": ".join(filter(None, (state, why_not_started(host, unit, began_s, before))))
        if now.is_at_rest:
            with suppress(InstallerError):  # systemd does not know a stopped unit that it has unloaded
                reset_failed(host, unit)
            try:
                _queue(host, "start", unit, ASK_S)
            except InstallerError as error:
                return error.problem
            is_started = True
        check()
        time.sleep(POLL_S)


def why_not_started(host: Host, unit: str, since_s: float, before: Unit | None = None) -> str:
    """Return the failed command of a unit's start since ``since_s``, and the gravest line; "" if unknown."""
    failed_command = _failed_command(host, unit, since_s)
    line = _last_words(host, unit, since_s, before)
    if line and failed_command.startswith(ITS_PROCESS):  # the process has logged the reason itself
        return line
    return ": ".join(filter(None, (failed_command, line)))


def _failed_command(host: Host, unit: str, since_s: float) -> str:
    """Return the failed command of a service, started since ``since_s``, with the status; "" if none."""
    since_us = since_s * 1e6

    def question(bus: systemd.Bus) -> dict[str, Any]:
        return bus.properties(unit)

    with suppress(InstallerError, LookupError, ValueError, TypeError):
        properties = systemd.ask_bus(buses(host), question, purpose="", timeout_s=WORDS_S)
        # The program, its words, whether a failure is ignored, four times in us, the pid, code and status.
        for program, _, ignored, began_us, _, _, _, _, code, status in properties["ExecStartPre"]:
            if began_us >= since_us and not ignored and code in ENDS and status:
                return f"its ExecStartPre {program} {ENDS[code]} {status}"
        code = properties["ExecMainCode"]
        status = properties["ExecMainStatus"]
        if properties["ExecMainStartTimestamp"] >= since_us and code in ENDS and status:
            return f"{ITS_PROCESS} {ENDS[code]} {status}"
    return ""


def _last_words(host: Host, unit: str, since_s: float, before: Unit | None) -> str:
    """Return the gravest of the last log lines of a unit's processes, "" without lines."""
    root = host.local_path(HOST_ROOT)
    run_in(root, ["journalctl", "--sync"], timeout_s=SYNC_S)  # for the lines just before the end
    command = [
        "journalctl",
        f"_SYSTEMD_UNIT={unit}",
        f"--since=@{since_s:.6f}",
        "--output=json",
        "--no-pager",
    ]
    # With --since and without --reverse, --lines are the first lines (systemd 252).
    result = run_in(root, [*command, "--quiet", "--reverse", "--lines=50"], timeout_s=SYNC_S)
    lines = list(_messages(result.stdout if result else "", before))
    return _gravest(lines)[:300]


def _gravest(lines: Sequence[str]) -> str:
    """Return the first line with the gravest marker, the first line of all without markers, else ""."""
    for mark in SEVERITY_MARKERS:
        for line in lines:
            if mark in line.lower():
                return line
    return next(iter(lines), "")


def _messages(journal: str, before: Unit | None) -> Iterator[str]:
    """Yield the texts of journal entries, in order, except entries of the invocation ``before``."""
    stale: list[tuple[str, str]] = []
    if before is not None and before.invocation not in {"", "0"}:
        stale.append(("_SYSTEMD_INVOCATION_ID", before.invocation))
    # The last line of the former process may come under the next invocation: compare the pid, too.
    if before is not None and before.main_pid:
        stale.append(("_PID", str(before.main_pid)))
    for line in journal.splitlines():
        with suppress(ValueError, TypeError, AttributeError):
            entry = json.loads(line)
            message = entry.get("MESSAGE")
            text = message or ""
            if isinstance(message, list):  # a text with invalid UTF-8 comes as an array of its bytes
                text = bytes(message).decode(errors="replace")
            # systemd's own remarks, as about a missing optional program, name a place in its code.
            is_remark = "CODE_FILE" in entry and not any(mark in text.lower() for mark in SEVERITY_MARKERS)
            is_stale = any(entry.get(name) == value for name, value in stale)
            if text.strip() and not is_remark and not is_stale:
                yield text.strip()
