"""An engine's systemd unit: what systemd tells of it, and how it is restarted or reloaded."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from msgspec import Struct

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedBeforeError, StoppedError
from installer.host import signals, systemd
from installer.host.events import log
from installer.host.files import Host
from installer.host.programs import Ran
from installer.host.systemd import Bus, NoBusError, late, run_program
from installer.model.paths import SYSTEM_BUSES

ASK_S: Final = 20.0  # whoever is on the system bus can keep systemd busy for that long
TURNS: Final = 20  # a restart takes of systemd about this many times what a look at a unit takes
POLL_S: Final = 0.02
STOP_S: Final = 600.0  # systemd kills after TimeoutStopSec, usually 90 s; it may be infinite
STOP_POLL_S: Final = 0.1
STOPPING: Final = "deactivating"
AGAIN: Final = "auto-restart"
MASKED: Final = "masked"
REFUSING: Final = ("RefuseManualStop", "RefuseManualStart")
SHOWN: Final = (
    *("LoadState", "ActiveState", "SubState", "MainPID", "CanReload", "Job", "InvocationID", "Result"),
    *("ReloadResult", "Listen", "KillMode", *REFUSING),
)
ROOT: Final = PurePosixPath("/")
T = TypeVar("T")


class Condition(Struct, frozen=True):
    """What has to hold; of those with ``either``, which are written with a ``|``, one is enough."""

    setting: str
    either: bool
    negated: bool
    value: str

    def __str__(self) -> str:
        return f"{self.setting}={'|' * self.either}{'!' * self.negated}{self.value}"


class UnitStart(Struct, frozen=True):
    """How a unit starts its service, as systemd has read it: its program first, variables as written.

    ``needed`` are the environment files that have to be there, ``before`` the commands that have to succeed
    first, by their setting. ``elsewhere`` tells that the service has a
    root of its own, in which its programs are looked for. ``refuses`` are the settings for which systemd
    lets nobody restart it; ``kill_mode`` says what a stop ends besides the service.
    """

    words: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()
    conditions: tuple[Condition, ...] = ()
    elsewhere: bool = False
    refuses: tuple[str, ...] = ()
    kill_mode: str = ""
    masked: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "UnitStart":
        """Return what the properties of a service say (org.freedesktop.systemd1(5))."""
        if answer["LoadState"] == MASKED:
            return cls(masked=True)
        files = answer.get("EnvironmentFiles", ())
        return cls(
            words=tuple(answer["ExecStart"][-1][1]) if answer.get("ExecStart") else (),
            environment=tuple(answer.get("Environment", ())),
            environment_files=tuple(path for path, _ in files),
            needed=tuple(path for path, optional in files if not optional),
            before=tuple(
                (setting, tuple(words))
                for setting in ("ExecCondition", "ExecStartPre")  # systemd before 243 knows but the second
                for _, words, may_fail, *_ in answer.get(setting, ())
                if not may_fail
            ),
            conditions=tuple(
                Condition(*each[:4]) for name in ("Conditions", "Asserts") for each in answer.get(name, ())
            ),
            elsewhere=bool(answer.get("RootDirectory") or answer.get("RootImage")),
            refuses=tuple(name for name in REFUSING if answer.get(name)),
            kill_mode=str(answer.get("KillMode", "")),
        )


class Unit(Struct, frozen=True):
    """A unit as systemd tells of it, in its words.

    ``main_pid`` is in systemd's pid namespace, 0 if none runs; ``job`` is 0 if nothing is being done to it;
    ``invocation`` is another one after each start; ``result`` is how the last run of a service ended,
    "success" while it runs well; ``listens`` are the places that a socket unit listens on.
    """

    load: str = ""
    active: str = ""
    sub: str = ""
    main_pid: int = 0
    can_reload: bool = False
    job: int = 0
    invocation: str = ""
    result: str = ""
    reload_result: str = ""
    listens: tuple[str, ...] = ()
    start: UnitStart = UnitStart()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Unit":
        """Return what the properties of a unit say."""
        return cls(
            load=str(answer["LoadState"]),
            active=str(answer["ActiveState"]),
            sub=str(answer["SubState"]),
            main_pid=int(answer.get("MainPID", 0)),
            can_reload=bool(answer["CanReload"]),
            job=int(answer["Job"][0]),
            invocation=bytes(list(answer["InvocationID"])).hex(),
            result=str(answer.get("Result", "")),
            reload_result=str(answer.get("ReloadResult", "")),
            listens=tuple(str(place) for _, place in answer.get("Listen", ())),
            start=UnitStart.of(answer),
        )

    @classmethod
    def shown(cls, text: str) -> "Unit":
        """Return what ``systemctl show`` prints in one word each: of how it starts that is not much."""
        lines = [
            (name, value)
            for name, equals, value in (line.partition("=") for line in text.split("\n"))
            if equals
        ]
        words = dict.fromkeys(SHOWN, "") | dict(lines)
        flags = {name: words[name] == "yes" for name in ("CanReload", *REFUSING)}
        # A line for each place: "/run/docker.sock (Stream)".
        listens = [("", value.rpartition(" (")[0]) for name, value in lines if name == "Listen"]
        invocation, job = bytes.fromhex(words["InvocationID"]), (words["Job"] or 0,)
        numbers = {"MainPID": words["MainPID"] or 0, "Job": job, "InvocationID": invocation}
        return cls.of(words | flags | numbers | {"Listen": listens})

    @property
    def run(self) -> tuple[object, ...]:
        """What is another thing once something was done to a unit, whatever is queued for it."""
        return self.active, self.sub, self.main_pid, self.invocation

    @property
    def is_down(self) -> bool:
        """Whether it still stops, or has stopped and waits for systemd to start it."""
        return self.active == STOPPING or bool(self.job and self.active in {"inactive", "failed"})


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


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root, the preferred first."""
    return tuple(host.local_path(path) for path in SYSTEM_BUSES)


def read(host: Host, unit: str, *, timeout_s: float = ASK_S) -> Unit:
    """Return what systemd tells of a unit; one that does not exist is "not-found".

    Raises:
        InstallerError: systemd cannot be reached, or does not answer.
    """
    show = ("systemctl", "show", f"--property={','.join(SHOWN)}", unit)
    return _ask(
        host,
        f"look at {unit}",
        lambda bus: Unit.of(bus.properties(unit)),
        lambda run: Unit.shown(run(show).stdout),
        timeout_s=timeout_s,
    )


def _ask(
    host: Host,
    purpose: str,
    over_bus: Callable[[Bus], T],
    by_program: Callable[[Callable[[Sequence[str]], Ran]], T],
    *,
    timeout_s: float,
) -> T:
    """Ask systemd over a bus; where none leads to it, by a program in the host's root."""
    try:
        return systemd.ask(buses(host), over_bus, purpose=purpose, timeout_s=timeout_s)
    except NoBusError as error:
        run = partial(run_program, host.local_path(ROOT), purpose=purpose, timeout_s=timeout_s)
        try:
            return by_program(run)
        except NoBusError:
            raise error from None


def _call(
    host: Host, purpose: str, call: tuple[Any, ...], words: Sequence[str], timeout_s: float = ASK_S
) -> None:
    """Call a method of systemd's manager, with its signature and arguments, or run what does the same."""
    method, *arguments = call
    _ask(
        host,
        purpose,
        lambda bus: bus.call(systemd.ROOT, f"{systemd.MANAGER}.{method}", *arguments),
        lambda run: run(words),
        timeout_s=timeout_s,
    )


def _queue(host: Host, verb: str, unit: str, timeout_s: float) -> None:
    """Have systemd queue a job for a unit, and do not wait for its end."""
    call = (f"{verb.capitalize()}Unit", "ss", unit, "replace")
    _call(host, f"{verb} {unit}", call, ("systemctl", "--no-block", verb, unit), timeout_s)


def restart(
    host: Host,
    unit: str,
    patience: Patience,
    explain: Callable[[float, Unit], str] = lambda _since_s, _before: "",
) -> Unit:
    """Restart a unit; it is active, and was started anew, when this returns how it was before.

    ``explain`` returns why it did not start since a moment, "" where that is not known.

    Raises:
        NotBegunError: systemd did not come to it, and will not.
        PendingError: it still stops; it will be started whatever we do.
        InstallerError: it did not come up; the error has what failed, and the words of the unit's own log.
    """
    asked = time.monotonic()
    before = read(host, unit)
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
        if words := explain(began, before):
            raise InstallerError(f"{error.problem}: {words}", remedy=error.remedy, code=error.code) from error
        raise
    return before


def _restart(host: Host, unit: str, before: Unit, timeout_s: float, patience: Patience) -> None:
    purpose, deadline = f"restart {unit}", time.monotonic() + timeout_s
    failure: InstallerError | None = None
    try:
        with suppress(InstallerError):  # a unit at rest is unloaded; few quick starts are allowed otherwise
            words = ("systemctl", "reset-failed", unit)
            _call(host, purpose, ("ResetFailedUnit", "s", unit), words, timeout_s)
        try:
            _queue(host, "restart", unit, timeout_s)
        except NoBusError:
            raise
        except InstallerError as error:
            failure = error  # one that executes itself anew drops connections and keeps its jobs
        now = _await_end(host, unit, deadline, patience.check)
    except StoppedError as error:
        if not patience.hurried and _withdraw(host, unit, before):
            raise StoppedBeforeError from error
        raise
    if now.job:
        now = _outlast(host, unit, before, timeout_s, patience)
    if now.active == "active" and now.run == before.run:
        failure = failure or NotBegunError(
            f"{purpose} (somebody has cancelled it, or asked for something else of the unit)",
            remedy="see systemctl list-jobs and the journal of systemd on the node, then run again",
        )
        if isinstance(failure, PendingError):
            raise failure
        raise NotBegunError(failure.problem, remedy=failure.remedy, code=failure.code) from failure
    if failure and now.active != "active":
        raise failure
    _refuse_failed("restart", unit, now, now.result)


def _refuse_failed(verb: str, unit: str, now: Unit, result: str) -> None:
    if now.active != "active" or result not in {"", "success"}:
        raise InstallerError(
            f"{verb} {unit} (unit {now.active}/{now.sub}, {result or 'no result'})",
            remedy=f"see journalctl -u {unit} on the node",
            code="unit-failed",
        )


def _await_end(host: Host, unit: str, deadline: float, check: Callable[[], None]) -> Unit:
    """Return a unit once systemd, which may be away for a moment, has no job for it, or at the deadline."""
    while True:
        left_s = deadline - time.monotonic()
        try:
            now = read(host, unit, timeout_s=min(ASK_S, max(1.0, left_s)))
        except InstallerError:
            if left_s < 0:
                raise
        else:
            if not now.job or left_s < 0:
                return now
        check()
        time.sleep(POLL_S)


def _outlast(host: Host, unit: str, before: Unit, timeout_s: float, patience: Patience) -> Unit:
    """Wait for the end of a restart that is late: for all of its stop, then for its start.

    What has not begun is taken back, but for a pod: its grace has no time for that.
    """
    slow = late(f"restart {unit}", timeout_s)
    if patience.hurried:
        raise slow
    # systemd answers questions also while others keep it busy, but runs its jobs only when it is idle.
    if _withdraw(host, unit, before):
        raise NotBegunError(
            f"restart {unit} (systemd has not begun with it within {timeout_s:.0f} s)",
            remedy="wait until systemd is idle (systemctl list-jobs and top on the node tell, and busctl "
            "monitor org.freedesktop.systemd1 who asks it without end), then run again",
        )
    if read(host, unit).is_down:
        log.info("waiting for the restart", unit=unit, reason="calls in flight, or systemd is busy")
        deadline = time.monotonic() + patience.stop_s
        while read(host, unit).is_down:
            if time.monotonic() > deadline:
                raise PendingError(slow.problem, remedy=f"run again when {unit} has stopped and started")
            patience.check()
            time.sleep(STOP_POLL_S)
    now = _await_end(host, unit, time.monotonic() + patience.start_s, patience.check)
    if now.job or now.active != "active":
        # It hangs or has failed in its start: a reason to go back, as any other.
        raise InstallerError(
            f"{slow.problem}, unit {now.active}/{now.sub}", remedy=slow.remedy, code="unit-failed"
        )
    return now


def _withdraw(host: Host, unit: str, before: Unit) -> bool:
    """Take a restart back that has not begun; tell whether the unit stays as it was ``before``."""
    with suppress(InstallerError):
        now = read(host, unit)
        if now.job and now.run == before.run:
            with suppress(InstallerError):  # it has just come to its end
                words = ("systemctl", "cancel", str(now.job))
                _call(host, f"cancel the restart of {unit}", ("CancelJob", "u", now.job), words)
            if read(host, unit).run == before.run:
                return True
            # It has begun in this very moment: what is stopped would stay so.
            _queue(host, "start", unit, ASK_S)
    return False


def reload(host: Host, unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in the way that its owner wrote down (ExecReload).

    Raises:
        InstallerError: it cannot, or systemd cannot be reached.
    """
    deadline = time.monotonic() + timeout_s
    _queue(host, "reload", unit, timeout_s)
    now = _await_end(host, unit, deadline, lambda: None)
    if now.job:
        raise late(f"reload {unit}", timeout_s)
    _refuse_failed("reload", unit, now, now.reload_result)


def start_transient(host: Host, unit: str, words: Sequence[str]) -> None:
    """Have systemd run a command of the host's as a unit of its own, and do not wait for its end.

    Raises:
        InstallerError: it does not, or systemd cannot be reached.
    """
    properties = [
        ("Description", ("s", "toolkit-installer carries on an undo")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("ExecStart", ("a(sasb)", [(words[0], list(words), False)])),
    ]
    call = ("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", properties, list[Any]())
    program = ("systemd-run", "--no-block", "--collect", "--quiet", f"--unit={unit}", "--", *words)
    _call(host, f"start {unit}", call, program)


def await_no_job(host: Host, unit: str, *, timeout_s: float) -> None:
    """Wait until systemd is done with what it was told to do to a unit, be it by somebody who is gone."""
    with suppress(InstallerError):  # without systemd nothing is being done
        if read(host, unit).job:
            _await_end(host, unit, time.monotonic() + timeout_s, lambda: None)


def await_start(host: Host, unit: str, *, timeout_s: float) -> bool:
    """Return once systemd has started a unit again that it is about to, well or not; else False, at once."""
    before, deadline = _look(host, unit), time.monotonic() + timeout_s
    if before.sub != AGAIN:
        return False
    while (now := _look(host, unit)).active == before.active and time.monotonic() < deadline:
        if now.sub == AGAIN and now.invocation != before.invocation:
            break  # it has ended once more
        signals.check()
        time.sleep(STOP_POLL_S)
    return True


def at_rest(host: Host, unit: str) -> bool:
    """Tell whether a unit is stopped and stays so; one that systemd starts again in a moment is not."""
    now = _look(host, unit)
    return now.active in {"", "inactive", "failed"} and not now.job


def stopped_by_owner(host: Host, unit: str) -> bool:
    """Tell whether a unit has come to a good end: not by itself, nor by a config."""
    return _look(host, unit).active == "inactive"


def held_for(host: Host, unit: str, socket: PurePosixPath) -> bool:
    """Tell whether systemd listens in the place of a service that is stopped: whoever connects starts it."""
    if not unit or _look(host, unit).active not in {"inactive", "failed", STOPPING}:
        return False
    found = _look(host, f"{unit.removesuffix('.service')}.socket")
    paths = {host.local_path(PurePosixPath(place)) for place in found.listens if place[:1] == "/"}
    return found.active == "active" and (not paths or host.local_path(socket) in paths)


def crashes(host: Host, unit: str) -> bool:
    """Tell whether a unit is on its way up, as one is all the time whose service ends at each start."""
    return _look(host, unit).active == "activating"


def runs(host: Host, unit: str) -> bool:
    """Tell whether a unit runs, be it on its way up; one that nobody can ask for does not."""
    return _look(host, unit).active in {"active", "activating", "reloading"}


def died(host: Host, unit: str) -> str:
    """Return how a unit is if its service has come to an end, "" where it runs or nobody knows."""
    now = _look(host, unit)
    ended = now.active in {"failed", "inactive"} or now.sub == AGAIN
    return f"{unit} is {now.active}/{now.sub}" if ended else ""


def _look(host: Host, unit: str) -> Unit:
    """Return what systemd tells of a unit; nothing where it does not answer."""
    try:
        return read(host, unit)
    except InstallerError:
        return Unit()
