"""Jobs of systemd: a unit is restarted or reloaded, that is awaited, and a failed start is explained."""

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
TURNS: Final = 20  # a restart takes of systemd about this many times what a look at a unit takes
POLL_S: Final = 0.02
STOP_S: Final = 600.0  # systemd kills after TimeoutStopSec, usually 90 s; it may be infinite
STOP_POLL_S: Final = 0.1
ANSWER_S: Final = 5.0  # a stop is noticed between two answers
WORDS_S: Final = 5.0
READY_US: Final = 60_000_000  # a unit of ours is loaded within seconds
SYNC_S: Final = 1.0  # the engine is down meanwhile
ITS_PROCESS: Final = "its process"
# waitid(2), si_code: CLD_EXITED, CLD_KILLED, CLD_DUMPED
ENDS: Final = {1: "exited with status", **dict.fromkeys((2, 3), "was ended by signal")}
SEVERITY_MARKERS: Final = ("level=fatal", "level=panic", "panic:", "level=error", "failed", "error")


class Patience(Struct, frozen=True):
    """How long a reload is waited for."""

    start_s: float  # for a start and its proof
    check: Callable[[], None]  # is called now and then, and may raise
    # For a stop, in which an engine ends the calls that it is at work on as long as systemd grants it; a pod
    # that ends has no time for that, and gives 0.
    stop_s: float = STOP_S
    may_rest: bool = False  # where its owner has stopped it: it reads its configs when it starts

    @property
    def hurried(self) -> bool:
        """Whether a pod's grace is running out, so that ``start_s`` is all there is."""
        return not self.stop_s


def _call(host: Host, purpose: str, *call: Any, timeout_s: float = ASK_S) -> None:
    """Call a method of systemd's manager, with its signature and arguments."""
    method, *arguments = call
    manager = (systemd.ROOT, f"{systemd.MANAGER}.{method}")
    words = (*manager, *arguments)
    systemd.ask_bus(buses(host), lambda bus: bus.call(*words), purpose=purpose, timeout_s=timeout_s)


def _queue(host: Host, verb: str, unit: str, timeout_s: float) -> None:
    """Have systemd queue a job for a unit, and do not wait for its end."""
    method = f"{verb.capitalize()}Unit"
    _call(host, f"{verb} {unit}", method, "ss", unit, "replace", timeout_s=timeout_s)


def restart(host: Host, unit: str, patience: Patience) -> Unit:
    """Restart a unit; it is active, and was started anew, when this returns how it was before.

    NotBegunError where systemd did not come to it, and will not; PendingError where it still stops, and will
    be started whatever we do; another where it did not come up, with what failed and its log's words.
    """
    asked = time.monotonic()
    before = read_unit(host, unit)
    if before.load != "loaded":
        raise NotBegunError(f"restart {unit} ({before.load})", remedy="name the unit that runs the engine")
    # Whoever keeps systemd busy makes all that it does as slow as its answers. A pod has no time for that.
    asked_s = time.monotonic() - asked
    timeout_s = max(1.0, patience.start_s + (-asked_s if patience.hurried else TURNS * asked_s))
    began = time.time()
    try:
        _restart(host, unit, before, timeout_s, patience)
    except (NoBusError, NotBegunError, PendingError, StoppedError):
        raise
    except InstallerError as error:
        if words := why_not_started(host, unit, began, before):
            raise InstallerError(f"{error.problem}: {words}", remedy=error.remedy, code=error.code) from error
        raise
    return before


def _restart(host: Host, unit: str, before: Unit, timeout_s: float, patience: Patience) -> None:
    purpose, deadline = f"restart {unit}", time.monotonic() + timeout_s
    failure: InstallerError | None = None
    with suppress(InstallerError):  # a unit at rest is unloaded; few quick starts are allowed otherwise
        _call(host, purpose, "ResetFailedUnit", "s", unit, timeout_s=timeout_s)
    try:
        _queue(host, "restart", unit, timeout_s)
    except NoBusError:
        raise
    except InstallerError as error:
        failure = error  # one that executes itself anew drops connections and keeps its jobs
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
    """Return a unit once systemd, which may be away for a moment, has no job for it, or at the deadline."""
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
    """Wait for the end of a restart that is late: for all of its stop, then for its start."""
    slow = late(f"restart {unit}", timeout_s)
    if patience.hurried:  # there is no time to take back what has not begun
        raise slow
    # systemd answers questions also while others keep it busy, but runs its jobs only when it is idle.
    if _withdraw(host, unit, before):
        raise NotBegunError(
            f"restart {unit} (systemd has not begun with it within {timeout_s:.0f} s)",
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
        # It hangs or has failed in its start: a reason to go back, as any other.
        problem = f"{slow.problem}, unit {now.active}/{now.sub}"
        remedy = f"see journalctl -u {unit} and systemctl list-jobs on the node"
        raise InstallerError(problem, remedy=remedy, code="unit-failed")
    return now


def _withdraw(host: Host, unit: str, before: Unit) -> bool:
    """Take a restart back that has not begun; tell whether the unit stays as it was ``before``."""
    with suppress(InstallerError):
        now = read_unit(host, unit)
        if now.job and now.run == before.run:
            with suppress(InstallerError):  # it has just come to its end
                _call(host, f"cancel the restart of {unit}", "CancelJob", "u", now.job)
            if read_unit(host, unit).run == before.run:
                return True
            # It has begun in this very moment: what is stopped would stay so.
            _queue(host, "start", unit, ASK_S)
    return False


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config (ExecReload), or raise: it cannot, or systemd cannot be reached."""
    deadline = time.monotonic() + timeout_s
    _queue(host, "reload", unit, timeout_s)
    now = _await_end(host, unit, deadline, lambda: None)
    if now.job:
        raise late(f"reload {unit}", timeout_s)
    _refuse_failed("reload", unit, now, now.reload_result)


def start_transient(
    host: Host, unit: str, words: Sequence[str], *, memory_bytes: int, timeout_s: float
) -> None:
    """Have systemd run a command of the host's as a unit of its own; return once that has said READY.

    Raise where it cannot be started, or has ended before. A unit of this name that has failed is replaced.
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
    with suppress(InstallerError):  # systemd knows none of this name
        reset_failed(host, unit)
    signature = "ssa(sv)a(sa(sv))"
    _call(host, purpose, "StartTransientUnit", signature, unit, "fail", properties, list[Any]())
    now = _await_end(host, unit, deadline, lambda: None)
    if now.job:
        raise late(purpose, timeout_s)
    if now.active != "active":
        words_of_unit = why_not_started(host, unit, began_s)
        problem = f"{purpose} ({words_of_unit or f'unit {now.active}/{now.sub}'})"
        raise InstallerError(problem, remedy=f"see journalctl -u {unit} on the node", code="unit-failed")


def reset_failed(host: Host, unit: str) -> None:
    """Have systemd forget that a unit has failed."""
    _call(host, f"reset {unit}", "ResetFailedUnit", "s", unit)


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait until systemd is done with the job of a unit, also of a caller that has gone."""
    with suppress(InstallerError):  # without systemd nothing is being done
        if read_unit(host, unit).job:
            _await_end(host, unit, time.monotonic() + timeout_s, lambda: None)


def await_start(host: Host, unit: str, *, timeout_s: float) -> bool:
    """Return once systemd has started a unit again that it is about to, well or not; else False, at once."""
    before, deadline = look_at_unit(host, unit), time.monotonic() + timeout_s
    if before.sub != AGAIN:
        return False
    while (now := look_at_unit(host, unit)).active == before.active and time.monotonic() < deadline:
        if now.sub == AGAIN and now.invocation != before.invocation:
            break  # it has ended once more
        supervision.raise_if_stopped()
        time.sleep(STOP_POLL_S)
    return True


def why_not_started(host: Host, unit: str, since_s: float, before: Unit | None = None) -> str:
    """Return how the start of a unit since ``since_s`` failed, and its gravest line; "" if unknown."""
    ended, words = _failed_command(host, unit, since_s), _last_words(host, unit, since_s, before)
    own_words = bool(words) and ended.startswith(ITS_PROCESS)  # it has said by itself why
    return words if own_words else ": ".join(filter(None, (ended, words)))


def _failed_command(host: Host, unit: str, since_s: float) -> str:
    """Return which command of a service, started since then, has failed and how; "" for none."""
    with suppress(InstallerError, LookupError, ValueError, TypeError):
        said = systemd.ask_bus(buses(host), lambda bus: bus.properties(unit), purpose="", timeout_s=WORDS_S)
        # The program, its words, whether a failure is ignored, four moments in us, the pid, and how it ended.
        for program, _, ignored, began_us, _, _, _, _, code, status in said["ExecStartPre"]:
            if began_us >= since_s * 1e6 and not ignored and code in ENDS and status:
                return f"its ExecStartPre {program} {ENDS[code]} {status}"
        code, status = said["ExecMainCode"], said["ExecMainStatus"]
        if said["ExecMainStartTimestamp"] >= since_s * 1e6 and code in ENDS and status:
            return f"{ITS_PROCESS} {ENDS[code]} {status}"
    return ""


def _last_words(host: Host, unit: str, since_s: float, before: Unit | None) -> str:
    """Return the gravest of the last lines that a unit's processes logged, "" where there are none."""
    root = host.local_path(HOST_ROOT)
    run_in(root, ["journalctl", "--sync"], timeout_s=SYNC_S)  # what a process said just before its end
    words = ["journalctl", f"_SYSTEMD_UNIT={unit}", f"--since=@{since_s:.6f}", "--output=json", "--no-pager"]
    # With --since and without --reverse, --lines are the first ones (systemd 252).
    ran = run_in(root, [*words, "--quiet", "--reverse", "--lines=50"], timeout_s=SYNC_S)
    lines = list(_messages(ran.stdout if ran else "", before))
    gravest = (line for mark in SEVERITY_MARKERS for line in lines if mark in line.lower())
    return next(iter((*gravest, *lines)), "")[:300]


def _messages(journal: str, before: Unit | None) -> Iterator[str]:
    """Yield the texts of journal entries, in their order, less those of the invocation ``before``."""
    # A last line of the process before may come in under the next invocation: then the process tells.
    marks = {"_SYSTEMD_INVOCATION_ID": before.invocation, "_PID": str(before.main_pid)} if before else {}
    stale = {(name, value) for name, value in marks.items() if value not in {"", "0"}}
    for line in journal.splitlines():
        with suppress(ValueError, TypeError, AttributeError):
            entry = json.loads(line)
            message = entry.get("MESSAGE")
            # What is no UTF-8 comes as an array of its bytes.
            text = bytes(message).decode(errors="replace") if isinstance(message, list) else message or ""
            # Remarks of systemd's own, as of an optional program that is missing, name a place in its code.
            remark = "CODE_FILE" in entry and not any(mark in text.lower() for mark in SEVERITY_MARKERS)
            if text.strip() and not remark and not any(entry.get(name) == value for name, value in stale):
                yield text.strip()
