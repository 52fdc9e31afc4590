"""A unit is restarted over D-Bus and its end awaited; no call blocks past its deadline."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from installer.decide.errors import InstallerError

_SYSTEMD = "org.freedesktop.systemd1"
_ROOT = "/org/freedesktop/systemd1"
_MANAGER = f"{_SYSTEMD}.Manager"
_UNIT = f"{_SYSTEMD}.Unit"
_SERVICE = f"{_SYSTEMD}.Service"

_CHECK_S = 0.1

T = TypeVar("T")


class NoBusError(InstallerError):
    """None of the sockets leads to systemd."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit as systemd sees it, in its words.

    ``main_pid`` is in systemd's pid namespace, 0 if none runs; ``job`` is 0 if nothing is being done to it.
    """

    load: str
    active: str
    sub: str
    main_pid: int
    can_reload: bool
    job: int = 0


def restart_unit(
    buses: Sequence[Path], unit: str, *, timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Restart a unit and return when its start is done, which is when the service said it is ready.

    systemd's count of recent starts is reset before: a few quick restarts otherwise leave the unit dead.

    Args:
        buses: sockets of the system bus or of systemd itself (``private``), the preferred first.
        unit: its full name, such as ``containerd.service``.
        timeout_s: for everything together; the restart goes on when it is over.
        check: called now and then while waiting; what it raises ends the wait, the restart goes on.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: the unit is unknown, did not come up, or not in time.
    """

    def restart(bus: _Bus) -> None:
        path = _known(bus, unit)
        _forget_failures(bus, unit)
        bus.check = check
        _do(bus, "RestartUnit", unit, path, f"restart {unit}")

    _ask(buses, restart, purpose=f"restart {unit}", timeout_s=timeout_s)


def reload_unit(buses: Sequence[Path], unit: str, *, timeout_s: float) -> None:
    """Let a unit reload its config in its own way, and return when that is done.

    Raises:
        NoBusError: no bus can be reached; nothing was done.
        InstallerError: the unit is unknown, cannot reload, or not in time.
    """

    def reload(bus: _Bus) -> None:
        _do(bus, "ReloadUnit", unit, _known(bus, unit), f"reload {unit}")

    _ask(buses, reload, purpose=f"reload {unit}", timeout_s=timeout_s)


def _do(bus: "_Bus", method: str, unit: str, path: str, purpose: str) -> None:
    """Queue a job for a unit and wait for its end."""
    bus.listen("JobRemoved")
    job = bus.call(_ROOT, _MANAGER, method, "ss", (unit, "replace"))[0]
    result = bus.removed(job)
    if result != "done":
        state = _state(bus, path, unit)
        raise InstallerError(
            f"{purpose} (job {result}, unit {state.active}/{state.sub})",
            remedy=f"see journalctl -u {unit} on the node",
        )


def unit_state(buses: Sequence[Path], unit: str, *, timeout_s: float) -> UnitState:
    """Return the state of a unit; one that does not exist has ``load`` "not-found".

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(bus: _Bus) -> UnitState:
        return _state(bus, bus.call(_ROOT, _MANAGER, "LoadUnit", "s", (unit,))[0], unit)

    return _ask(buses, state, purpose=f"look at {unit}", timeout_s=timeout_s)


def system_state(buses: Sequence[Path], *, timeout_s: float) -> str:
    """Return systemd's word for the whole node: "running", "degraded", "starting", "stopping" ...

    Raises:
        NoBusError: no bus can be reached.
        InstallerError: systemd refuses or does not answer in time.
    """

    def state(bus: _Bus) -> str:
        return str(bus.get(_ROOT, _MANAGER, "SystemState"))

    return _ask(buses, state, purpose="ask systemd for its state", timeout_s=timeout_s)


def _known(bus: "_Bus", unit: str) -> str:
    path: str = bus.call(_ROOT, _MANAGER, "LoadUnit", "s", (unit,))[0]
    if (load := bus.get(path, _UNIT, "LoadState")) != "loaded":
        raise InstallerError(f"restart {unit} ({load})", remedy="name the unit that runs the engine")
    return path


def _forget_failures(bus: "_Bus", unit: str) -> None:
    from jeepney import DBusErrorResponse  # type: ignore[import-untyped]  # ships no types

    try:
        bus.call(_ROOT, _MANAGER, "ResetFailedUnit", "s", (unit,))
    except DBusErrorResponse as error:
        if error.name != f"{_SYSTEMD}.NoSuchUnit":  # a unit at rest is unloaded again at once
            raise


def _state(bus: "_Bus", path: str, unit: str) -> UnitState:
    return UnitState(
        load=bus.get(path, _UNIT, "LoadState"),
        active=bus.get(path, _UNIT, "ActiveState"),
        sub=bus.get(path, _UNIT, "SubState"),
        main_pid=bus.get(path, _SERVICE, "MainPID") if unit.endswith(".service") else 0,
        can_reload=bus.get(path, _UNIT, "CanReload"),
        job=bus.get(path, _UNIT, "Job")[0],
    )


def _ask(buses: Sequence[Path], question: "Callable[[_Bus], T]", *, purpose: str, timeout_s: float) -> T:
    """Put the question to the first bus that can be reached; every failure becomes an InstallerError."""
    from jeepney import DBusErrorResponse

    deadline = time.monotonic() + timeout_s
    with _connected(buses, deadline) as bus:
        try:
            return question(bus)
        except DBusErrorResponse as error:
            words = " ".join(str(part) for part in error.data) or error.name
            raise InstallerError(f"{purpose} ({words})", remedy="check the unit on the node") from error
        except TimeoutError as error:
            raise InstallerError(
                f"{purpose} within {timeout_s:g} s (systemd still works on it, or hangs)",
                remedy="see systemctl list-jobs on the node",
            ) from error
        except (OSError, ValueError) as error:
            raise InstallerError(
                f"{purpose} (lost the connection to systemd: {error})", remedy="try again"
            ) from error


@contextmanager
def _connected(buses: Sequence[Path], deadline: float) -> "Iterator[_Bus]":
    failures = []
    for index, path in enumerate(buses):
        # A bus that hangs leaves time for the next one.
        share_s = (deadline - time.monotonic()) / (len(buses) - index)
        try:
            bus = _Bus(path, timeout_s=share_s)
        except (OSError, ValueError) as error:
            failures.append(f"{path}: {error}")
            continue
        bus.deadline = deadline
        try:
            yield bus
        finally:
            bus.close()
        return
    raise NoBusError(
        f"reach systemd ({', '.join(failures) or 'no socket to try'})",
        remedy="mount the node's /run/dbus into the container (the directory, not the socket)",
    )


class _Bus:
    """One authenticated connection. Only jeepney's parser is used: its own one waits for ever at Hello."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        from jeepney import Parser
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
                self.get(_ROOT, _MANAGER, "Version")  # proves that it answers
            else:
                self._reply(message_bus.Hello())
        except BaseException:
            self.close()
            raise

    def call(self, path: str, interface: str, method: str, signature: str, arguments: tuple[Any, ...]) -> Any:
        from jeepney import DBusAddress, new_method_call

        target = DBusAddress(path, bus_name=_SYSTEMD, interface=interface)
        return self._reply(new_method_call(target, method, signature, arguments))

    def get(self, path: str, interface: str, name: str) -> Any:
        properties = "org.freedesktop.DBus.Properties"
        _, value = self.call(path, properties, "Get", "ss", (interface, name))[0]
        return value

    def listen(self, signal: str) -> None:
        from jeepney import MatchRule
        from jeepney.bus_messages import message_bus

        if not self._peer_to_peer:
            rule = MatchRule(type="signal", sender=_SYSTEMD, interface=_MANAGER, member=signal)
            self._reply(message_bus.AddMatch(rule))
        self.call(_ROOT, _MANAGER, "Subscribe", "", ())

    def removed(self, job: str) -> str:
        """Wait until ``job`` is gone from systemd's queue; return how it ended."""
        from jeepney import HeaderFields

        while True:
            for message in self._signals:
                if message.header.fields.get(HeaderFields.member) == "JobRemoved" and message.body[1] == job:
                    return str(message.body[3])
            self._signals = [self._receive()]

    def close(self) -> None:
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
            self._socket.settimeout(min(self._left(), _CHECK_S))
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
