"""One connection to systemd, by the host's system bus or its own socket, with one deadline for all of it.

Only answers are read. Every local user may send us a signal over the bus, so no signal decides anything.
"""

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# Ships no types.
from jeepney import DBusAddress, HeaderFields, MessageFlag, MessageType, new_method_call  # type: ignore[import-untyped]
from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]
from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]
from jeepney.io.blocking import DBusConnection, DBusConnectionBase  # type: ignore[import-untyped]
from jeepney.wrappers import unwrap_msg  # type: ignore[import-untyped]

from installer.host.sockets import connectable

PRIVATE: Final = "private"  # systemd's own socket: no daemon between, so no Hello
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
ANSWERS: Final = frozenset({MessageType.method_return, MessageType.error})
CHECK_S: Final = 0.1
MAX_GREETING_BYTES: Final = 4096
# What jeepney raises where a message is not what its signature says.
MALFORMED: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError, struct.error),
)


class Bus(DBusConnection):  # type: ignore[misc]  # jeepney ships no types
    """jeepney's connection: a wait ends at ``deadline``; ``check`` is called meanwhile, and may raise."""

    def __init__(self, path: Path, *, deadline: float, check: Callable[[], None]) -> None:
        self.deadline, self.check = deadline, check
        # Not DBusConnection's own: that says Hello, for which it waits for ever.
        DBusConnectionBase.__init__(self, socket.socket(socket.AF_UNIX))
        try:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            with connectable(path) as name:
                self.sock.connect(name)
            # In one go: on its own socket systemd 252 loses a message that comes together with BEGIN.
            self.sock.sendall(b"\0" + make_auth_external() + BEGIN)
            self._greet()
            if path.name != PRIVATE:
                self._answer(message_bus.Hello())
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        said = b""
        while not said.endswith(b"\r\n") and len(said) < MAX_GREETING_BYTES:
            self.sock.settimeout(max(self.deadline - time.monotonic(), 0.001))
            said += self.sock.recv(1) or b"\r\n"
        if not said.startswith(b"OK "):
            raise ConnectionRefusedError(
                f"authentication: {said.decode(errors='replace').strip() or 'closed'}"
            )

    def _answer(self, request: Any) -> Any:
        """Send a method call; return the body of its answer.

        Raises:
            TimeoutError: the deadline is over.
        """
        serial = next(self.outgoing_serial)
        self.send(request, serial=serial)
        while (left_s := self.deadline - time.monotonic()) > 0:
            try:
                message = self.receive(timeout=min(left_s, CHECK_S))
            except TimeoutError:
                self.check()
                continue
            header = message.header
            if header.message_type in ANSWERS and header.fields[HeaderFields.reply_serial] == serial:
                return unwrap_msg(message)
        raise TimeoutError("no answer in time")

    def call(
        self, service: str, path: str, method: str, signature: str = "", arguments: tuple[Any, ...] = ()
    ) -> Any:
        """Call ``interface.Method`` of a service, which is not started for us; return its answer's body."""
        interface, _, member = method.rpartition(".")
        target = DBusAddress(path, bus_name=service, interface=interface)
        request = new_method_call(target, member, signature, arguments)
        request.header.flags |= MessageFlag.no_auto_start
        return self._answer(request)

    def get(self, service: str, path: str, name: str) -> Any:
        """Return the property ``interface.Name`` of an object."""
        interface, _, member = name.rpartition(".")
        return self.call(service, path, f"{PROPERTIES}.Get", "ss", (interface, member))[0][1]

    def properties(self, service: str, path: str) -> dict[str, Any]:
        """Return all properties of an object in one question: systemd may be kept busy by others."""
        found = self.call(service, path, f"{PROPERTIES}.GetAll", "s", ("",))[0]
        return {name: value for name, (_, value) in found.items()}
