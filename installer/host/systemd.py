"""A client of systemd: over systemd's own socket, or the host's system bus.

The client reads answers only: over the bus every local user may send us a signal, of up to 128 MiB. Of other
messages it keeps the first 16 bytes, which tell kind and size. Questions raise ``NoBusError`` if no bus leads
to systemd, and another ``InstallerError`` if systemd refuses, or does not answer in time.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct

from installer.errors import InstallerError, PendingError
from installer.host.files import Host
from installer.host.sockets import connectable
from installer.model.files import SYSTEM_BUSES

T = TypeVar("T")

SYSTEMD: Final = "org.freedesktop.systemd1"
LOGIND: Final = "org.freedesktop.login1"
MANAGER: Final = "org.freedesktop.systemd1.Manager"
UNIT: Final = "org.freedesktop.systemd1.Unit"
SERVICE: Final = "org.freedesktop.systemd1.Service"
ROOT: Final = "/org/freedesktop/systemd1"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
PRIVATE: Final = "private"  # systemd's own socket: no daemon between, so no Hello
CONNECT_S: Final = 5.0
MAX_GREETING_BYTES: Final = 4096
START_BYTES: Final = 16  # of a message: kind, length of its body, length of its header's fields
ANSWER_BYTES: Final = 1 << 20  # all properties of a unit have some 20 KB
PART_BYTES: Final = 64 << 10
ANSWERS: Final = (2, 3)  # METHOD_RETURN and ERROR (D-Bus specification, "Message Protocol")
# The bus's errors for a missing service, and for a service that has gone, as systemd at a daemon-reexec.
ABSENT: Final = {f"org.freedesktop.DBus.Error.{name}" for name in ("NameHasNoOwner", "ServiceUnknown")}
GONE: Final = "org.freedesktop.DBus.Error.NoReply"
# The exceptions of jeepney for a message that does not fit its signature.
MALFORMED: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
MOUNT: Final = "mount the node's /run/dbus into the container (the directory, not the socket)"
LATE: Final = "no answer in time"
NOT_SYSTEMD: Final = "what answers is not systemd"
ASK_S: Final = 20.0  # every program on the system bus can keep systemd busy for that long
STOPPING: Final = "deactivating"
AGAIN: Final = "auto-restart"
REFUSING: Final = ("RefuseManualStop", "RefuseManualStart")
STOP_SETTINGS: Final = ("ExecStop", "ExecStopPost")
# A stopped unit stops the units in these properties along; each property with the other unit's setting.
STOPS_ALONG: Final = {
    "RequiredBy": "Requires",
    "BoundBy": "BindsTo",
    "ConsistsOf": "PartOf",
    "RequisiteOf": "Requisite",
    "PropagatesStopTo": "StopPropagatedFrom",  # since systemd 249
}


# A restart does not stop a unit with this setting: systemd passes on stops by it, and no restart.
ONLY_STOPS: Final = "StopPropagatedFrom"


class NoBusError(InstallerError):
    """No bus leads to systemd; nothing was done."""

    usual = "systemd-unreachable"


class BusError(Exception):
    """An error answer, with name and text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text or name)
        self.name = name


class Bus:
    """A connection; each wait ends at ``deadline``. jeepney writes and reads the messages."""

    # jeepney's own connection is not used: it keeps every message, and has no deadline.

    def __init__(self, here: Path, *, deadline: float) -> None:
        from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]  # ships no types
        from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]

        self.deadline = deadline
        self._serials = count(1)
        self._stream = socket.socket(socket.AF_UNIX)
        self.close = self._stream.close
        try:
            self._stream.settimeout(self._left_s())
            with connectable(here) as name:
                self._stream.connect(name)
            # No message goes with BEGIN: on its own socket systemd 252 loses a message that follows at once.
            self._stream.sendall(b"\0" + make_auth_external() + BEGIN)
            _refuse_refused(self._receive_greeting())
            if here.name != PRIVATE:
                self._answer(message_bus.Hello())
        except BaseException:
            self.close()
            raise

    def _receive_greeting(self) -> bytes:
        """Return the answer to the authentication, and leave the messages behind it to be received.

        On its own socket systemd 252 tells each client of every job and start, from BEGIN on.
        """
        greeting = bytearray()
        while not greeting.endswith(b"\r\n") and len(greeting) < MAX_GREETING_BYTES:
            self._stream.settimeout(self._left_s())
            part = self._stream.recv(1)
            if not part:
                break
            greeting += part
        return bytes(greeting)

    def _answer(self, request: Any) -> Any:
        """Send a method call; return the body of the answer."""
        from jeepney import HeaderFields, MessageType  # type: ignore[import-untyped]

        serial = next(self._serials)
        self._stream.settimeout(self._left_s())
        self._stream.sendall(request.serialise(serial=serial))
        while True:
            message = self._receive_answer()
            fields = message.header.fields
            if fields[HeaderFields.reply_serial] != serial:
                continue
            if message.header.message_type is MessageType.error:
                raise BusError(fields[HeaderFields.error_name], " ".join(map(str, message.body)))
            return message.body

    def _receive_answer(self) -> Any:
        """Return the next answer; drop other messages unread."""
        from jeepney.low_level import Message, calc_msg_size  # type: ignore[import-untyped]

        while True:
            start = self._receive(START_BYTES)
            kind = start[1]
            rest = calc_msg_size(start) - START_BYTES
            if kind in ANSWERS:
                if rest > ANSWER_BYTES:
                    raise ValueError(f"an answer of {rest} bytes")
                return Message.from_buffer(start + self._receive(rest))
            while rest:
                rest -= len(self._receive(min(rest, PART_BYTES)))

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            self._stream.settimeout(self._left_s())
            try:
                part = self._stream.recv(size - len(content))
            except TimeoutError as error:
                raise TimeoutError(LATE) from error
            if not part:
                raise ConnectionResetError("closed")
            content += part
        return bytes(content)

    def _left_s(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(LATE)
        return left_s

    def call(self, path: str, method: str, signature: str, *arguments: Any, service: str = SYSTEMD) -> Any:
        """Call ``interface.Method`` of a running service; return the body of the answer."""
        from jeepney import DBusAddress, MessageFlag, new_method_call

        interface, _, member = method.rpartition(".")
        request = new_method_call(DBusAddress(path, service, interface), member, signature, arguments)
        request.header.flags |= MessageFlag.no_auto_start
        return self._answer(request)

    def get(self, path: str, interface: str, name: str, service: str = SYSTEMD) -> Any:
        """Return a property of an object."""
        return self.call(path, f"{PROPERTIES}.Get", "ss", interface, name, service=service)[0][1]

    def properties(self, unit: str) -> dict[str, Any]:
        """Return all properties of a unit by a single call, because systemd may be busy."""
        answer = self.call(_path_of(unit), f"{PROPERTIES}.GetAll", "s", "")[0]
        return {name: value for name, (_, value) in answer.items()}


def _path_of(unit: str) -> str:
    """Return the path of a unit's object; a call to the object has systemd load the unit."""
    name = os.fsencode(unit).decode("latin-1")
    return f"{ROOT}/unit/" + re.sub(r"\A\d|[^a-zA-Z0-9]", _escape, name)


def _escape(character: re.Match[str]) -> str:
    return f"_{ord(character[0]):02x}"


def _refuse_refused(greeting: bytes) -> None:
    if not greeting.startswith(b"OK "):
        reason = greeting.decode(errors="replace").strip() or "closed"
        raise ConnectionRefusedError(f"authentication: {reason}")


def ask_bus(
    buses: Sequence[Path],
    question: Callable[[Bus], T],
    *,
    purpose: str,
    timeout_s: float,
    reads: bool = False,
) -> T:
    """Ask systemd over the first bus that leads there.

    Args:
        buses: the sockets, the preferred first.
        question: makes the calls on a bus.
        purpose: the beginning of the error's problem.
        timeout_s: the time for everything.
        reads: the question only reads: the next bus gets the question, too, if the connection is lost. At a
            daemon-reexec systemd closes the connections of its own socket.

    Raises:
        InstallerError: no bus leads to systemd, or the question failed.
    """
    failures: list[str] = []
    deadline = time.monotonic() + timeout_s
    for path in buses:
        try:
            # A bus that hangs leaves time for the next.
            share_s = min(CONNECT_S, (deadline - time.monotonic()) / 2)
            bus = Bus(path, deadline=time.monotonic() + share_s)
        except (BusError, OSError, *MALFORMED) as error:
            reason = NOT_SYSTEMD if isinstance(error, MALFORMED) else str(error)
            failures.append(f"{path}: {reason}")
            continue
        bus.deadline = deadline
        try:
            return question(bus)
        except (BusError, OSError, *MALFORMED) as error:
            absent = isinstance(error, BusError) and error.name in ABSENT
            lost = reads and isinstance(error, ConnectionError)
            if not absent and not lost:
                raise _failure(purpose, timeout_s, error) from error
            failures.append(f"{path}: {error}")
        finally:
            bus.close()
    raise NoBusError(f"reach systemd ({', '.join(failures) or 'no socket to try'})", remedy=MOUNT)


def _failure(purpose: str, timeout_s: float, error: Exception) -> InstallerError:
    if isinstance(error, TimeoutError):
        return late(purpose, timeout_s)
    if isinstance(error, BusError) and error.name != GONE:
        remedy = "see systemctl status UNIT and journalctl -u UNIT on the node"
        return InstallerError(f"{purpose} ({error})", remedy=remedy, code="unit-failed")
    reason = f"lost the connection to systemd: {error}"
    remedy = "try again"
    if isinstance(error, MALFORMED):
        reason = NOT_SYSTEMD
        remedy = "check the node's system bus"
    return InstallerError(f"{purpose} ({reason})", remedy=remedy, code="systemd-unreachable")


def late(purpose: str, timeout_s: float) -> PendingError:
    """Make the error of a job that systemd has not finished in time, and may still finish."""
    problem = f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)"
    return PendingError(problem, remedy="see systemctl list-jobs on the node")


def notify_ready() -> None:
    """Tell systemd that the unit of this process is ready (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages:
            messages.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            messages.sendall(b"READY=1")


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ..."""
    purpose = "ask systemd for its state"

    def question(bus: Bus) -> str:
        return str(bus.get(ROOT, MANAGER, "SystemState"))

    return ask_bus(buses, question, purpose=purpose, timeout_s=timeout_s, reads=True)


def shutdown_prepared(buses: Sequence[Path], *, timeout_s: float) -> bool:
    """Tell whether logind delays a shutdown for programs that asked for time, like the kubelet."""
    # During the delay systemd still answers "running", and the pods are stopped in turn.
    shared = [path for path in buses if path.name != PRIVATE]  # the private bus leads to systemd only
    purpose = "ask logind for a shutdown"

    def question(bus: Bus) -> bool:
        path = "/org/freedesktop/login1"
        return bool(bus.get(path, f"{LOGIND}.Manager", "PreparingForShutdown", LOGIND))

    return ask_bus(shared, question, purpose=purpose, timeout_s=timeout_s)


class Condition(Struct, frozen=True):
    """A condition of a unit's start; of several conditions with a ``|`` a single true condition is enough."""

    setting: str
    negated: bool
    value: str

    def __str__(self) -> str:
        return f"{self.setting}={'!' * self.negated}{self.value}"


class UnitStart(Struct, frozen=True):
    """The start of a unit's service, as read by systemd."""

    program: str = ""  # the path of the program; its first word may be another name (ExecStart=@)
    words: tuple[str, ...] = ()  # the program's name first, variables as written
    environment: tuple[str, ...] = ()
    environment_files: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()  # the environment files that must exist
    before: tuple[tuple[str, tuple[str, ...]], ...] = ()  # commands that must succeed first, by setting
    conditions: tuple[Condition, ...] = ()
    elsewhere: bool = False  # the unit has its own root directory, in which systemd looks for programs
    refuses: tuple[str, ...] = ()  # the settings for which systemd refuses a restart
    kill_mode: str = ""
    masked: bool = False
    gone: bool = False  # the unit runs, but its file is gone
    files: tuple[str, ...] = ()  # of the unit: its own, and drop-ins

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "UnitStart":
        """Return the start by the properties of a service (org.freedesktop.systemd1(5))."""
        if answer["LoadState"] == "masked":
            return cls(masked=True)
        program = ""
        words: tuple[str, ...] = ()
        if answer.get("ExecStart"):
            program, words, *_ = answer["ExecStart"][-1]
        files = answer.get("EnvironmentFiles", ())
        return cls(
            program=str(program),
            words=tuple(words),
            environment=tuple(answer.get("Environment", ())),
            environment_files=tuple(path for path, _ in files),
            needed=tuple(path for path, optional in files if not optional),
            before=tuple(_list_commands_before(answer)),
            conditions=tuple(_list_conditions(answer)),
            elsewhere=bool(answer.get("RootDirectory") or answer.get("RootImage")),
            refuses=tuple(name for name in REFUSING if answer.get(name)),
            kill_mode=str(answer.get("KillMode", "")),
            gone=answer["LoadState"] == "not-found" and answer["ActiveState"] == "active",
            files=tuple(
                each for each in (answer.get("FragmentPath"), *answer.get("DropInPaths", ())) if each
            ),
        )


def _list_commands_before(answer: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands that must succeed before a start, each with the setting."""
    for setting in ("ExecCondition", "ExecStartPre"):  # systemd before 243 knows only the second
        for _, words, may_fail, *_ in answer.get(setting, ()):
            if not may_fail:
                yield setting, tuple(words)


def _list_conditions(answer: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield the conditions of a start, without conditions with a ``|``."""
    for name in ("Conditions", "Asserts"):
        for setting, either, negated, value, *_ in answer.get(name, ()):
            if not either:
                yield Condition(setting, negated, value)


def _list_stop_commands(answer: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands by which systemd stops a service, each with the setting."""
    for setting in STOP_SETTINGS:
        for _, words, *_ in answer.get(setting, ()):
            yield setting, tuple(words)


def _list_stops_along(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the units stopped along with a unit by systemd, each with the setting."""
    for name, setting in STOPS_ALONG.items():
        for unit in answer.get(name, ()):
            yield str(unit), setting


def _list_mounts(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the paths of a service's own mounts, each with the path of the host that is mounted there."""
    root = str(answer.get("RootDirectory", ""))
    if root:
        yield "/", root
    for setting in ("BindPaths", "BindReadOnlyPaths"):
        for source, path, *_ in answer.get(setting, ()):
            yield str(path), str(source)


class Unit(Struct, frozen=True):
    """The state of a unit, in systemd's words."""

    load: str = ""
    active: str = ""
    sub: str = ""
    main_pid: int = 0  # in systemd's pid namespace, 0 if none runs
    can_reload: bool = False
    job: int = 0  # 0 if nothing is being done to it
    invocation: str = ""  # a new id after each start
    result: str = ""  # "success" while a service runs well
    reload_result: str = ""
    began_s: float | None = None  # when the main process began, in seconds of the wall clock; None for none
    # The unit's files were changed on disk since systemd has read them.
    needs_daemon_reload: bool = False
    listens: tuple[str, ...] = ()  # the addresses of a socket unit
    start: UnitStart = UnitStart()
    # The units that systemd stops along with this unit, each with its own setting.
    stops_along: tuple[tuple[str, str], ...] = ()
    stop_commands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    # The paths at which the service sees other files or directories of the host, each with the host's path.
    mounts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Unit":
        """Return the state by the properties of a unit."""
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
            began_s=int(answer.get("ExecMainStartTimestamp", 0)) / 1e6 or None,
            needs_daemon_reload=bool(answer.get("NeedDaemonReload")),
            listens=tuple(str(address) for _, address in answer.get("Listen", ())),
            start=UnitStart.of(answer),
            stops_along=tuple(_list_stops_along(answer)),
            stop_commands=tuple(_list_stop_commands(answer)),
            mounts=tuple(_list_mounts(answer)),
        )

    @property
    def run(self) -> tuple[object, ...]:
        """A value that differs after each change of the unit; queued jobs do not count."""
        return self.active, self.sub, self.main_pid, self.invocation

    @property
    def is_at_rest(self) -> bool:
        """Whether the unit is stopped, and systemd will not start the unit again."""
        return self.active in {"", "inactive", "failed"} and not self.job

    @property
    def has_ended(self) -> bool:
        """Whether the unit's service has ended; False for an unknown unit."""
        return self.active in {"failed", "inactive"} or self.sub == AGAIN

    @property
    def is_stopped_by_owner(self) -> bool:
        """Whether the node's owner has stopped the unit; one that has failed is not "inactive"."""
        return self.active == "inactive"

    @property
    def is_down(self) -> bool:
        """Whether the unit still stops, or has stopped and waits for a start by systemd."""
        return self.active == STOPPING or bool(self.job and self.active in {"inactive", "failed"})


def buses(host: Host) -> tuple[Path, ...]:
    """Return the sockets of systemd below the host's root, the preferred first."""
    return tuple(host.local_path(path) for path in SYSTEM_BUSES)


def read_unit(host: Host, unit: str, *, timeout_s: float = ASK_S) -> Unit:
    """Return the state of a unit; the load state is "not-found" for a missing unit.

    Raises:
        InstallerError: systemd does not answer.
    """

    def question(bus: Bus) -> Unit:
        return Unit.of(bus.properties(unit))

    return ask_bus(buses(host), question, purpose=f"look at {unit}", timeout_s=timeout_s, reads=True)


def main_pid_of(host: Host, unit: str) -> int:
    """Return the main process of an active service, in systemd's pid namespace; 0 without one.

    On most nodes most services are missing, and all properties of a missing service have 20 KB, too.
    """

    def question(bus: Bus) -> int:
        path = _path_of(unit)
        if bus.get(path, UNIT, "ActiveState") != "active":
            return 0
        return int(bus.get(path, SERVICE, "MainPID"))

    with suppress(InstallerError):
        return ask_bus(buses(host), question, purpose=f"look at {unit}", timeout_s=ASK_S, reads=True)
    return 0


def unit_runs(host: Host, unit: str) -> bool:
    """Tell whether a unit runs or is starting; an unknown unit does not."""
    return look_at_unit(host, unit).active in {"active", "activating", "reloading"}


def describe_unit_end(host: Host, unit: str) -> str:
    """Describe the state of a unit after the end of its service, "" for a running or unknown unit."""
    now = look_at_unit(host, unit)
    if now.has_ended:
        return f"{unit} is {now.active}/{now.sub}"
    return ""


def look_at_unit(host: Host, unit: str) -> Unit:
    """Return the state of a unit; an empty state if systemd does not answer."""
    try:
        return read_unit(host, unit) if unit else Unit()
    except InstallerError:
        return Unit()
