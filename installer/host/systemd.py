"""systemd, over the host's system bus or its own socket: one connection and one deadline for each question.

Only answers are read: every local user may send us a signal over the bus. Each function raises
``NoBusError`` where no bus leads to systemd, and another ``InstallerError`` where that refuses, or does not
answer in time.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedBeforeError, StoppedError
from installer.host.sockets import connectable

T = TypeVar("T")

SYSTEMD: Final = "org.freedesktop.systemd1"
LOGIND: Final = "org.freedesktop.login1"
ROOT: Final = "/org/freedesktop/systemd1"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
PRIVATE: Final = "private"  # systemd's own socket: no daemon between, so no Hello
CONNECT_S: Final = 5.0
CHECK_S: Final = 0.1
JOB_POLL_S: Final = 0.01
WITHDRAW_S: Final = 30.0  # a few questions to a systemd that has no time
MAX_GREETING_BYTES: Final = 4096
# What the bus says of a service that is not there; of one that has gone, as systemd at a daemon-reexec.
ABSENT: Final = frozenset(
    f"org.freedesktop.DBus.Error.{name}" for name in ("NameHasNoOwner", "ServiceUnknown")
)
GONE: Final = "org.freedesktop.DBus.Error.NoReply"
UNKNOWN_OBJECT: Final = "org.freedesktop.DBus.Error.UnknownObject"
# What jeepney raises where a message is not what its signature says.
MALFORMED: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError, struct.error),
)
MOUNT: Final = "mount the node's /run/dbus into the container (the directory, not the socket)"
NOT_SYSTEMD: Final = "what answers is not systemd"
MASKED: Final = "masked"
RESTART: Final = "RestartUnit"
REFUSING: Final = ("RefuseManualStop", "RefuseManualStart")


class NoBusError(InstallerError):
    """No bus leads to systemd; nothing was done."""

    usual = "systemd-unreachable"


class BusError(Exception):
    """An error that came as an answer: its name, and what it says."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text or name)
        self.name = name


class UnitState(Struct, frozen=True):
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

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "UnitState":
        """Return the state that the properties of a unit tell."""
        return cls(
            load=str(answer["LoadState"]),
            active=str(answer["ActiveState"]),
            sub=str(answer["SubState"]),
            main_pid=int(answer.get("MainPID", 0)),
            can_reload=bool(answer["CanReload"]),
            job=int(answer["Job"][0]),
            invocation=bytes(list(answer["InvocationID"])).hex(),
            result=str(answer.get("Result", "")),
            listens=tuple(str(place) for _, place in answer.get("Listen", ())),
        )


class Command(Struct, frozen=True):
    """One that is run before the service; ``optional`` tells that it may fail."""

    setting: str
    words: tuple[str, ...]
    optional: bool


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

    ``needed`` are the environment files that have to be there. ``elsewhere`` tells that the service has a
    root of its own, in which its programs are looked for. ``refuses`` are the settings for which systemd
    lets nobody restart it; ``kill_mode`` says what a stop ends besides the service.
    """

    words: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    before: tuple[Command, ...] = ()
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
        files = answer["EnvironmentFiles"]
        return cls(
            words=tuple(answer["ExecStart"][-1][1]) if answer["ExecStart"] else (),
            environment=tuple(answer["Environment"]),
            environment_files=tuple(path for path, _ in files),
            needed=tuple(path for path, optional in files if not optional),
            before=tuple(
                Command(setting, tuple(line[1]), bool(line[2]))
                for setting in ("ExecCondition", "ExecStartPre")
                for line in answer.get(setting, ())  # systemd before 243 knows no ExecCondition
            ),
            conditions=tuple(
                Condition(*each[:4]) for name in ("Conditions", "Asserts") for each in answer.get(name, ())
            ),
            elsewhere=bool(answer["RootDirectory"] or answer.get("RootImage")),
            refuses=tuple(name for name in REFUSING if answer.get(name)),
            kill_mode=str(answer.get("KillMode", "")),
        )


class Bus:
    """jeepney's connection: a wait ends at ``deadline``; ``check`` is called meanwhile, and may raise."""

    def __init__(self, here: Path, *, deadline: float, check: Callable[[], None]) -> None:
        from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]  # ships no types
        from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]
        from jeepney.io.blocking import (  # type: ignore[import-untyped]
            DBusConnection,
            DBusConnectionBase,
        )

        self.deadline, self.check = deadline, check
        # Not DBusConnection's own: that says Hello, for which it waits for ever.
        self._connection = DBusConnection.__new__(DBusConnection)
        DBusConnectionBase.__init__(self._connection, socket.socket(socket.AF_UNIX))
        self.close, stream = self._connection.close, self._connection.sock
        try:
            stream.settimeout(max(deadline - time.monotonic(), 0.001))
            with connectable(here) as name:
                stream.connect(name)
            # In one go: on its own socket systemd 252 loses a message that comes together with BEGIN.
            stream.sendall(b"\0" + make_auth_external() + BEGIN)
            _refuse_refused(stream.recv(MAX_GREETING_BYTES))
            if here.name != PRIVATE:
                self._answer(message_bus.Hello())
        except BaseException:
            self.close()
            raise

    def _answer(self, request: Any) -> Any:
        """Send a method call; return the body of its answer."""
        from jeepney import HeaderFields, MessageType  # type: ignore[import-untyped]

        serial = next(self._connection.outgoing_serial)
        self._connection.send(request, serial=serial)
        while (left_s := self.deadline - time.monotonic()) > 0:
            try:
                message = self._connection.receive(timeout=min(left_s, CHECK_S))
            except TimeoutError:
                self.check()
                continue
            kind, fields = message.header.message_type, message.header.fields
            answers = kind in {MessageType.method_return, MessageType.error}
            if not answers or fields[HeaderFields.reply_serial] != serial:
                continue
            if kind is MessageType.error:
                raise BusError(fields[HeaderFields.error_name], " ".join(map(str, message.body)))
            return message.body
        raise TimeoutError("no answer in time")

    def call(
        self, path: str, method: str, signature: str = "", *arguments: Any, service: str = SYSTEMD
    ) -> Any:
        """Call ``interface.Method`` of a service, which is not started for us; return its answer's body."""
        from jeepney import DBusAddress, MessageFlag, new_method_call

        interface, _, member = method.rpartition(".")
        target = DBusAddress(path, bus_name=service, interface=interface)
        request = new_method_call(target, member, signature, arguments)
        request.header.flags |= MessageFlag.no_auto_start
        return self._answer(request)

    def manager(self, method: str, signature: str, *arguments: Any) -> Any:
        """Call a method of systemd's manager."""
        return self.call(ROOT, f"{SYSTEMD}.Manager.{method}", signature, *arguments)

    def get(self, path: str, name: str, service: str = SYSTEMD) -> Any:
        """Return the property ``interface.Name`` of an object."""
        interface, _, member = name.rpartition(".")
        return self.call(path, f"{PROPERTIES}.Get", "ss", interface, member, service=service)[0][1]

    def unit(self, unit: str) -> dict[str, Any]:
        """Return all properties of a unit in one question: systemd may be kept busy by others."""
        found = self.call(path_of(unit), f"{PROPERTIES}.GetAll", "s", "")[0]
        return {name: value for name, (_, value) in found.items()}


def _refuse_refused(said: bytes) -> None:
    if not said.startswith(b"OK "):
        raise ConnectionRefusedError(f"authentication: {said.decode(errors='replace').strip() or 'closed'}")


def path_of(unit: str) -> str:
    """Return the object that is a unit, as systemd makes its path; whoever asks for it has it loaded."""
    escaped = re.sub(
        r"\A\d|[^a-zA-Z0-9]", lambda found: f"_{ord(found[0]):02x}", os.fsencode(unit).decode("latin-1")
    )
    return f"{ROOT}/unit/{escaped}"


def ask(
    buses: Sequence[Path],
    question: Callable[[Bus], T],
    *,
    purpose: str,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Put the question to the first bus that leads to systemd; every failure becomes an InstallerError."""
    failures: list[str] = []
    deadline = time.monotonic() + timeout_s
    for path in buses:
        try:
            # One that hangs leaves time for the next.
            share_s = min(CONNECT_S, (deadline - time.monotonic()) / 2)
            bus = Bus(path, deadline=time.monotonic() + share_s, check=check)
        except (BusError, OSError, *MALFORMED) as error:
            failures.append(f"{path}: {NOT_SYSTEMD if isinstance(error, MALFORMED) else error}")
            continue
        bus.deadline = deadline
        try:
            return question(bus)
        except (BusError, OSError, *MALFORMED) as error:
            if not (isinstance(error, BusError) and error.name in ABSENT):
                raise _failure(purpose, timeout_s, error) from error
            failures.append(f"{path}: {error}")
        finally:
            bus.close()
    raise NoBusError(f"reach systemd ({', '.join(failures) or 'no socket to try'})", remedy=MOUNT)


def _failure(purpose: str, timeout_s: float, error: Exception) -> InstallerError:
    if isinstance(error, TimeoutError):
        return PendingError(
            f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
            remedy="see systemctl list-jobs on the node",
        )
    if isinstance(error, BusError) and error.name != GONE:
        return InstallerError(f"{purpose} ({error})", remedy="check the unit on the node", code="unit-failed")
    if isinstance(error, MALFORMED):
        reason, remedy = NOT_SYSTEMD, "check the node's system bus"
    else:
        reason, remedy = f"lost the connection to systemd: {error}", "try again"
    return InstallerError(f"{purpose} ({reason})", remedy=remedy, code="systemd-unreachable")


def look(buses: Sequence[Path], unit: str, *, read: Callable[[Mapping[str, Any]], T], timeout_s: float) -> T:
    """Return what ``read`` makes of the properties of a unit; one that does not exist is "not-found"."""
    return ask(buses, lambda on: read(on.unit(unit)), purpose=f"look at {unit}", timeout_s=timeout_s)


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ..."""

    def state(on: Bus) -> str:
        return str(on.get(ROOT, f"{SYSTEMD}.Manager.SystemState"))

    return ask(buses, state, purpose="ask systemd for its state", timeout_s=timeout_s)


def shutdown_prepared(buses: Sequence[Path], *, timeout_s: float) -> bool:
    """Return whether logind holds a shutdown back for those who asked for time, such as the kubelet.

    systemd itself still says "running" then, and the pods are told to stop one after the other.
    """

    def prepared(on: Bus) -> bool:
        return bool(on.get("/org/freedesktop/login1", f"{LOGIND}.Manager.PreparingForShutdown", LOGIND))

    shared = [path for path in buses if path.name != PRIVATE]  # systemd's own socket leads to nobody else
    return ask(shared, prepared, purpose="ask logind for a shutdown", timeout_s=timeout_s)


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
    ``check`` is called meanwhile; what it raises ends the wait, as ``timeout_s`` does. For ``withdraw_s`` it
    is tried then to take back a restart that has not begun.

    Raises:
        NotBegunError: systemd did not come to it, and will not.
        PendingError: systemd is still at work on it.
    """
    ask(
        buses,
        lambda on: _do(on, RESTART, unit, withdraw_s),
        purpose=f"restart {unit}",
        timeout_s=timeout_s,
        check=check,
    )


def reload_unit(buses: Sequence[Path], unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in its own way, and return when that is done."""
    ask(buses, lambda on: _do(on, "ReloadUnit", unit), purpose=f"reload {unit}", timeout_s=timeout_s)


def start_transient(buses: Sequence[Path], unit: str, words: Sequence[str], *, timeout_s: float) -> None:
    """Have systemd run a command of the host's as a unit of its own, and do not wait for its end."""
    properties = [
        ("Description", ("s", "toolkit-installer carries on an undo")),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("ExecStart", ("a(sasb)", [(words[0], list(words), False)])),
    ]

    def start(on: Bus) -> None:
        on.manager("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", properties, [])

    ask(buses, start, purpose=f"start {unit}", timeout_s=timeout_s)


def _do(bus: Bus, method: str, unit: str, withdraw_s: float = 0.0) -> None:
    """Queue a job for a unit, wait for its end, and look at what has become of the unit."""
    purpose = f"{method.removesuffix('Unit').lower()} {unit}"
    before = UnitState.of(bus.unit(unit))
    if before.load != "loaded":
        raise InstallerError(
            f"{purpose} ({before.load})", remedy="name the unit that runs the engine", code="unit-failed"
        )
    if method == RESTART:
        with _unless(f"{SYSTEMD}.NoSuchUnit"):  # a unit at rest is unloaded again at once
            bus.manager("ResetFailedUnit", "s", unit)
    began = time.monotonic()
    job = bus.manager(method, "ss", unit, "replace")[0]
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
    state, result = UnitState.of(said), said.get("Result" if method == RESTART else "ReloadResult")
    if method == RESTART and state.active == "active" and _unchanged(before, state):
        raise NotBegunError(
            f"{purpose} (somebody has cancelled it, or asked for something else of the unit)",
            remedy="see systemctl list-jobs and the journal of systemd on the node, then run again",
        )
    if state.active != "active" or result not in {None, "success"}:
        raise InstallerError(
            f"{purpose} (unit {state.active}/{state.sub}, {result or 'no result'})",
            remedy=f"see journalctl -u {unit} on the node",
            code="unit-failed",
        )


def _await_end(bus: Bus, unit: str, job: str) -> dict[str, Any]:
    """Return the unit as it is when ``job`` is its no more: done, failed, cancelled or replaced.

    A job outlives a daemon-reexec, during which nobody answers.
    """
    while True:
        with _unless(GONE, *ABSENT):
            if bus.get(path_of(unit), f"{SYSTEMD}.Unit.Job")[1] != job:
                return bus.unit(unit)
        bus.check()
        time.sleep(JOB_POLL_S)


def _withdrawn(bus: Bus, job: str, unit: str, before: UnitState) -> bool:
    """Take a job back that has not begun; tell whether the unit stays as it was ``before``."""
    now = UnitState.of(bus.unit(unit))
    if not now.job or not _unchanged(before, now):
        return False
    with _unless(UNKNOWN_OBJECT):  # it has just come to its end
        bus.call(job, f"{SYSTEMD}.Job.Cancel")
    if _unchanged(before, UnitState.of(bus.unit(unit))):
        return True
    # It has begun in this very moment: what is stopped would stay so.
    bus.manager("StartUnit", "ss", unit, "replace")
    return False


def _unchanged(before: UnitState, now: UnitState) -> bool:
    """Tell whether nothing was done to a unit, whatever is queued for it."""
    return replace(now, job=0) == replace(before, job=0)


@contextmanager
def _unless(*names: str) -> Iterator[None]:
    """Let errors of those names be none."""
    try:
        yield
    except BusError as error:
        if error.name not in names:
            raise
