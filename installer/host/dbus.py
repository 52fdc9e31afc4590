"""One connection to systemd, over systemd's own socket or the system bus, with one deadline for all of it.

On the system bus every local user may send us a signal. Only messages of systemd's own connection and of the
bus itself are read, by the sender that the bus daemon writes into each; all others are dropped.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from installer.host.sockets import connectable

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEMD: Final = "org.freedesktop.systemd1"
LOGIND: Final = "org.freedesktop.login1"
ROOT: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{SYSTEMD}.Manager"
BUS: Final = "org.freedesktop.DBus"
JOB: Final = f"{SYSTEMD}.Job"
UNKNOWN_OBJECT: Final = f"{BUS}.Error.UnknownObject"
CHECK_S: Final = 0.1
CROWDED_S: Final = 5.0
QUEUE_S: Final = 0.5  # who leaves the queue to look for a stop goes to its end
FIXED_HEADER_BYTES: Final = 16
MAX_MESSAGE_BYTES: Final = 64 << 20  # a bus daemon passes on up to 32 MB
MAX_GREETING_BYTES: Final = 4096
# What jeepney raises where a message is not what its signature or its sender says.
MALFORMED: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError, struct.error),
)


class Bus:
    """One authenticated connection. Of jeepney only messages are used: it waits for ever at Hello."""

    def __init__(self, path: Path, *, timeout_s: float, check: "Callable[[], None]" = lambda: None) -> None:
        from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]  # ships no types

        self.deadline = time.monotonic() + timeout_s
        self.check = check
        self._service = SYSTEMD
        self._senders: frozenset[str] | None = None  # None: everything is systemd's
        self._buffer = bytearray()
        self._serial = 0
        self._ended: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._authenticate(path)
            if path.name == "private":  # no daemon between: no Hello, no match rules, no senders
                self.get(ROOT, MANAGER, "Version")  # proves that it answers
            else:
                self._senders = frozenset({BUS})
                self._reply(message_bus.Hello())
                self.turn_to(SYSTEMD)
        except BaseException:
            self.close()
            raise

    def call(self, path: str, interface: str, method: str, signature: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of systemd's, or of whom we turned to, and return the body of its answer."""
        from jeepney import DBusAddress, new_method_call  # type: ignore[import-untyped]  # ships no types

        target = DBusAddress(path, bus_name=self._service, interface=interface)
        return self._reply(new_method_call(target, method, signature, arguments))

    def turn_to(self, service: str) -> None:
        """Speak with another service of the bus from now on, which has to run: it is not started for us."""
        from jeepney.bus_messages import message_bus

        self._service, self._senders = service, frozenset({BUS})
        self._senders |= {str(self._reply(message_bus.GetNameOwner(service))[0])}

    def get(self, path: str, interface: str, name: str) -> Any:
        """Return a property."""
        _, value = self.call(path, f"{BUS}.Properties", "Get", "ss", (interface, name))[0]
        return value

    def properties(self, path: str) -> dict[str, Any]:
        """Return all properties of an object in one question: systemd may be kept busy by others."""
        found = self.call(path, f"{BUS}.Properties", "GetAll", "s", ("",))[0]
        return {name: value for name, (_, value) in found.items()}

    def listen(self) -> None:
        """Be told of the ends of jobs from now on."""
        from jeepney import MatchRule
        from jeepney.bus_messages import message_bus

        if self._senders is not None:
            rule = MatchRule(type="signal", sender=SYSTEMD, interface=MANAGER, member="JobRemoved")
            self._reply(message_bus.AddMatch(rule))
            # On its own socket systemd tells without being asked.
            self.call(ROOT, MANAGER, "Subscribe", "", ())

    def ended(self, job: str) -> str:
        """Wait until ``job`` is gone from systemd's queue; return how it ended, "" where systemd did not say.

        The signal only saves time: without it the queue itself is looked at, again and again.
        """
        while job not in self._ended and self._is_queued(job):
            message = self._receive(patience_s=CHECK_S)
            if message is not None:
                self._note(message)
            self.check()
        return self._ended.get(job, "")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def cancel(self, job: str) -> None:
        """Take a job out of systemd's queue; one that is gone is no error."""
        with _unless_gone():
            self.call(job, JOB, "Cancel", "", ())

    def _is_queued(self, job: str) -> bool:
        with _unless_gone():
            self.get(job, JOB, "State")
            return True
        return False

    def _authenticate(self, path: Path) -> None:
        from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]  # ships no types

        self._connect(path)
        # In one go, as sd-bus does, and the first message after the answer: systemd 252 loses a message that
        # it reads together with BEGIN (16 of 20 with BEGIN sent after the OK, none of 120 like this).
        self._socket.sendall(b"\0" + make_auth_external() + BEGIN)
        while not (end := self._buffer.find(b"\r\n") + 2) > 1:
            if len(self._buffer) > MAX_GREETING_BYTES:
                raise ConnectionRefusedError("authentication: an endless answer")
            self._fill(self.deadline)
        answer = bytes(self._buffer[:end])
        del self._buffer[:end]
        if not answer.startswith(b"OK "):
            raise ConnectionRefusedError(f"authentication: {answer.decode(errors='replace').strip()}")

    def _connect(self, path: Path) -> None:
        """Connect; where others keep the backlog full we wait in the kernel's queue (EAGAIN: not in time).

        Python's own deadlines make a socket non-blocking, and that never gets a place in the queue. Who means
        it can keep a bus shut: dbus-daemon lets in 64 that do not say who they are, and hangs up on them
        after 30 s. So we do not wait long: the host's systemctl, which asks systemd itself, may be there.
        """
        self._socket.settimeout(None)
        until = min(self.deadline, time.monotonic() + CROWDED_S)
        while True:
            seconds = min(until - time.monotonic(), QUEUE_S)
            if seconds <= 0:
                raise TimeoutError("no answer in time: too many others connect to it")
            timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6) + 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            try:
                with connectable(path) as name:
                    self._socket.connect(name)
            except BlockingIOError:
                self.check()
            else:
                break
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))
        self._socket.settimeout(self._left())

    def _reply(self, request: Any) -> Any:
        """Send a method call and return the body of its answer; ends of jobs before it are noted."""
        from jeepney import HeaderFields, MessageType
        from jeepney.wrappers import unwrap_msg  # type: ignore[import-untyped]  # ships no types

        self._serial += 1
        self._socket.settimeout(self._left())
        self._socket.sendall(request.serialise(serial=self._serial))
        while True:
            message = self._receive()
            is_answer = message.header.message_type in {MessageType.method_return, MessageType.error}
            if is_answer and message.header.fields.get(HeaderFields.reply_serial) == self._serial:
                return unwrap_msg(message)
            self._note(message)

    def _note(self, message: Any) -> None:
        """Remember the end of a job if that is what ``message`` tells, in the shape that systemd gives it."""
        from jeepney import HeaderFields, MessageType

        said = message.header.fields
        told = (
            said.get(HeaderFields.path),
            said.get(HeaderFields.interface),
            said.get(HeaderFields.member),
            said.get(HeaderFields.signature),
        )
        if message.header.message_type is MessageType.signal and told == (
            ROOT,
            MANAGER,
            "JobRemoved",
            "uoss",
        ):
            _, job, _, result = message.body
            self._ended[job] = result

    def _receive(self, *, patience_s: float | None = None) -> Any:
        """Return the next message of systemd or the bus; None where none came within ``patience_s``."""
        from jeepney import HeaderFields, Message
        from jeepney.low_level import Header  # type: ignore[import-untyped]  # ships no types

        until = self.deadline if patience_s is None else min(time.monotonic() + patience_s, self.deadline)
        while (raw := self._framed(until)) is not None:
            if self._senders is None:
                return Message.from_buffer(raw)
            sender = ""
            with suppress(*MALFORMED):  # the header of a stranger may hold anything
                sender = Header.from_buffer(raw)[0].fields[HeaderFields.sender]
            if sender in self._senders:
                return Message.from_buffer(raw)
        self._left()
        return None

    def _framed(self, until: float) -> bytes | None:
        """Return the bytes of one message; None where it is not there by ``until``."""
        from jeepney.low_level import calc_msg_size

        wanted = FIXED_HEADER_BYTES
        while True:
            if len(self._buffer) >= wanted:
                size = calc_msg_size(self._buffer[:FIXED_HEADER_BYTES])
                if size > MAX_MESSAGE_BYTES:
                    raise ValueError(f"a message of {size} bytes")
                if len(self._buffer) >= size:
                    raw = bytes(self._buffer[:size])
                    del self._buffer[:size]
                    return raw
                wanted = size
            if not self._fill(until):
                return None

    def _fill(self, until: float) -> bool:
        """Add what the other side says; False where it says nothing by ``until``.

        Raises:
            TimeoutError: the deadline of all is over, however much it goes on to say.
        """
        while True:
            left_s = min(self._left(), until - time.monotonic())
            if left_s <= 0:
                return False
            self._socket.settimeout(min(left_s, CHECK_S))
            try:
                content = self._socket.recv(65536)
            except TimeoutError:
                self.check()
                continue
            if not content:
                raise ConnectionResetError("closed by the other side")
            self._buffer += content
            return True

    def _left(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        return left_s


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Let a job that is over be none at all."""
    from jeepney import DBusErrorResponse

    try:
        yield
    except DBusErrorResponse as error:
        if error.name != UNKNOWN_OBJECT:
            raise
