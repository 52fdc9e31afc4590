"""One connection to systemd, over the system bus or systemd's own socket, with one deadline for all of it."""

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SYSTEMD: Final = "org.freedesktop.systemd1"
ROOT: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{SYSTEMD}.Manager"
CHECK_S: Final = 0.1


class Bus:
    """One authenticated connection. Only jeepney's parser is used: its own one waits for ever at Hello."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        from jeepney import Parser  # type: ignore[import-untyped]  # ships no types
        from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]  # ships no types

        self.deadline = time.monotonic() + timeout_s
        self.check: Callable[[], None] = lambda: None
        self._peer_to_peer = path.name == "private"  # no daemon between: no Hello, no match rules
        self._parser = Parser()
        self._serial = 0
        self._signals: list[Any] = []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._authenticate(path)
            if self._peer_to_peer:
                self.get(ROOT, MANAGER, "Version")  # proves that it answers
            else:
                self._reply(message_bus.Hello())
        except BaseException:
            self.close()
            raise

    def call(self, path: str, interface: str, method: str, signature: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of systemd's and return the body of its answer."""
        from jeepney import DBusAddress, new_method_call

        target = DBusAddress(path, bus_name=SYSTEMD, interface=interface)
        return self._reply(new_method_call(target, method, signature, arguments))

    def get(self, path: str, interface: str, name: str) -> Any:
        """Return a property."""
        properties = "org.freedesktop.DBus.Properties"
        _, value = self.call(path, properties, "Get", "ss", (interface, name))[0]
        return value

    def listen(self, signal: str) -> None:
        """Be told of a signal of the manager's from now on."""
        from jeepney import MatchRule
        from jeepney.bus_messages import message_bus

        if not self._peer_to_peer:
            rule = MatchRule(type="signal", sender=SYSTEMD, interface=MANAGER, member=signal)
            self._reply(message_bus.AddMatch(rule))
        self.call(ROOT, MANAGER, "Subscribe", "", ())

    def removed(self, job: str) -> str:
        """Wait until ``job`` is gone from systemd's queue; return how it ended."""
        from jeepney import HeaderFields

        while True:
            for message in self._signals:
                if message.header.fields.get(HeaderFields.member) == "JobRemoved" and message.body[1] == job:
                    return str(message.body[3])
            self._signals = [self._receive()]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _authenticate(self, path: Path) -> None:
        from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]  # ships no types

        self._socket.settimeout(self._left())
        self._socket.connect(str(path))
        # In one go, as sd-bus does: systemd's own socket loses a message that arrives together with BEGIN.
        self._socket.sendall(b"\0" + make_auth_external() + BEGIN)
        answer = b""
        while not answer.endswith(b"\r\n"):
            answer += self._read()
        if not answer.startswith(b"OK "):
            raise ConnectionRefusedError(f"authentication: {answer.decode(errors='replace').strip()}")

    def _reply(self, request: Any) -> Any:
        """Send a method call and return the body of its answer; signals that come before it are kept."""
        from jeepney import HeaderFields
        from jeepney.wrappers import unwrap_msg  # type: ignore[import-untyped]  # ships no types

        self._serial += 1
        self._socket.settimeout(self._left())
        self._socket.sendall(request.serialise(serial=self._serial))
        while True:
            message = self._receive()
            if message.header.fields.get(HeaderFields.reply_serial) == self._serial:
                return unwrap_msg(message)
            self._signals.append(message)

    def _receive(self) -> Any:
        while (message := self._parser.get_next_message()) is None:
            self._parser.add_data(self._read())
        return message

    def _read(self) -> bytes:
        while True:
            self._socket.settimeout(min(self._left(), CHECK_S))
            try:
                content = self._socket.recv(65536)
            except TimeoutError:
                self.check()
                continue
            if not content:
                raise ConnectionResetError("closed by the other side")
            return content

    def _left(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        return left_s
