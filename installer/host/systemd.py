"""A client of systemd: over the host's system bus or systemd's own socket, and by the host's systemctl.

Only answers are read: every local user may send us a signal over the bus. Whoever asks gets ``NoBusError``
where no way leads to systemd, and another ``InstallerError`` where that refuses, or does not answer in time.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from installer.errors import InstallerError, PendingError
from installer.host.programs import ENVIRONMENT, LateError, Ran, run_in_time
from installer.host.sockets import connectable

T = TypeVar("T")

SYSTEMD: Final = "org.freedesktop.systemd1"
LOGIND: Final = "org.freedesktop.login1"
MANAGER: Final = "org.freedesktop.systemd1.Manager"
ROOT: Final = "/org/freedesktop/systemd1"
LOGIND_ROOT: Final = "/org/freedesktop/login1"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
PRIVATE: Final = "private"  # systemd's own socket: no daemon between, so no Hello
CONNECT_S: Final = 5.0
MAX_GREETING_BYTES: Final = 4096
# What the bus says of a service that is not there; of one that has gone, as systemd at a daemon-reexec.
ABSENT: Final = frozenset(
    f"org.freedesktop.DBus.Error.{name}" for name in ("NameHasNoOwner", "ServiceUnknown")
)
GONE: Final = "org.freedesktop.DBus.Error.NoReply"
# What jeepney raises where a message is not what its signature says.
MALFORMED: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError, struct.error),
)
MOUNT: Final = "mount the node's /run/dbus into the container (the directory, not the socket)"
NOT_SYSTEMD: Final = "what answers is not systemd"
# What systemctl 252 and 257 say where there is no systemd, or it cannot be reached either.
UNREACHABLE: Final = ("has not been booted", "connect to bus", "connect to system scope bus")
# Where it takes a root for a chroot it ignores "restart" and ends well.
REAL: Final = {"SYSTEMD_IGNORE_CHROOT": "1"}


class NoBusError(InstallerError):
    """No bus leads to systemd; nothing was done."""

    usual = "systemd-unreachable"


class BusError(Exception):
    """An error that came as an answer: its name, and what it says."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text or name)
        self.name = name


class Bus:
    """jeepney's connection: each wait ends at ``deadline``."""

    def __init__(self, here: Path, *, deadline: float) -> None:
        from jeepney.auth import BEGIN, make_auth_external  # type: ignore[import-untyped]  # ships no types
        from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]
        from jeepney.io.blocking import (  # type: ignore[import-untyped]
            DBusConnection,
            DBusConnectionBase,
        )

        self.deadline = deadline
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
        with suppress(TimeoutError):
            while (left_s := self.deadline - time.monotonic()) > 0:
                message = self._connection.receive(timeout=left_s)
                kind, fields = message.header.message_type, message.header.fields
                answers = kind in {MessageType.method_return, MessageType.error}
                if not answers or fields[HeaderFields.reply_serial] != serial:
                    continue
                if kind is MessageType.error:
                    raise BusError(fields[HeaderFields.error_name], " ".join(map(str, message.body)))
                return message.body
        raise TimeoutError("no answer in time")

    def call(self, path: str, method: str, signature: str, *arguments: Any, service: str = SYSTEMD) -> Any:
        """Call ``interface.Method`` of a service, which is not started for us; return its answer's body."""
        from jeepney import DBusAddress, MessageFlag, new_method_call

        interface, _, member = method.rpartition(".")
        target = DBusAddress(path, bus_name=service, interface=interface)
        request = new_method_call(target, member, signature, arguments)
        request.header.flags |= MessageFlag.no_auto_start
        return self._answer(request)

    def get(self, path: str, interface: str, name: str, service: str = SYSTEMD) -> Any:
        """Return a property of an object."""
        return self.call(path, f"{PROPERTIES}.Get", "ss", interface, name, service=service)[0][1]

    def properties(self, unit: str) -> dict[str, Any]:
        """Return all properties of a unit in one question: systemd may be kept busy by others."""
        answer = self.call(path_of(unit), f"{PROPERTIES}.GetAll", "s", "")[0]
        return {name: value for name, (_, value) in answer.items()}


def _refuse_refused(greeting: bytes) -> None:
    if not greeting.startswith(b"OK "):
        reason = greeting.decode(errors="replace").strip() or "closed"
        raise ConnectionRefusedError(f"authentication: {reason}")


def path_of(unit: str) -> str:
    """Return the object that is a unit, as systemd makes its path; whoever asks for it has it loaded."""
    escaped = re.sub(
        r"\A\d|[^a-zA-Z0-9]", lambda found: f"_{ord(found[0]):02x}", os.fsencode(unit).decode("latin-1")
    )
    return f"{ROOT}/unit/{escaped}"


def ask(buses: Sequence[Path], question: Callable[[Bus], T], *, purpose: str, timeout_s: float) -> T:
    """Put the question to the first bus that leads to systemd; every failure becomes an InstallerError."""
    failures: list[str] = []
    deadline = time.monotonic() + timeout_s
    for path in buses:
        try:
            # One that hangs leaves time for the next.
            share_s = min(CONNECT_S, (deadline - time.monotonic()) / 2)
            bus = Bus(path, deadline=time.monotonic() + share_s)
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
        return late(purpose, timeout_s)
    if isinstance(error, BusError) and error.name != GONE:
        return InstallerError(f"{purpose} ({error})", remedy="check the unit on the node", code="unit-failed")
    if isinstance(error, MALFORMED):
        reason, remedy = NOT_SYSTEMD, "check the node's system bus"
    else:
        reason, remedy = f"lost the connection to systemd: {error}", "try again"
    return InstallerError(f"{purpose} ({reason})", remedy=remedy, code="systemd-unreachable")


def late(purpose: str, timeout_s: float) -> PendingError:
    """Return that systemd has not done something in time, and may still do it."""
    return PendingError(
        f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
        remedy="see systemctl list-jobs on the node",
    )


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ..."""
    purpose = "ask systemd for its state"
    return ask(
        buses, lambda bus: str(bus.get(ROOT, MANAGER, "SystemState")), purpose=purpose, timeout_s=timeout_s
    )


def shutdown_prepared(buses: Sequence[Path], *, timeout_s: float) -> bool:
    """Return whether logind holds a shutdown back for those who asked for time, such as the kubelet.

    systemd itself still says "running" then, and the pods are told to stop one after the other.
    """
    words = (LOGIND_ROOT, f"{LOGIND}.Manager", "PreparingForShutdown", LOGIND)
    shared = [path for path in buses if path.name != PRIVATE]  # systemd's own socket leads to nobody else
    purpose = "ask logind for a shutdown"
    return ask(shared, lambda bus: bool(bus.get(*words)), purpose=purpose, timeout_s=timeout_s)


def run_program(root: Path, words: Sequence[str], *, purpose: str, timeout_s: float) -> Ran:
    """Run the host's systemctl or systemd-run, in the host's root."""
    try:
        ran = run_in_time(root, words, timeout_s=timeout_s, environment=ENVIRONMENT | REAL)
    except LateError as error:
        raise late(purpose, timeout_s) from error
    if ran is None or (ran.returncode and any(text in ran.stderr for text in UNREACHABLE)):
        reason = ran.last_line if ran else f"the host's {words[0]} cannot be run"
        raise NoBusError(f"reach systemd ({reason})", remedy=MOUNT)
    if ran.returncode:
        raise InstallerError(
            f"{purpose} ({ran.last_line})", remedy="check the unit on the node", code="unit-failed"
        )
    return ran
