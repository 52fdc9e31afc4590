"""Small servers on unix sockets that behave, well or badly, and are gone when the test is."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jeepney import HeaderFields, Parser, new_error, new_method_return  # type: ignore[import-untyped]  # ships no types

OWNER, STRANGER, BUS = ":1.0", ":1.99", "org.freedesktop.DBus"
LOGIND, LOGINDS = "org.freedesktop.login1", ":1.2"


@contextmanager
def serving(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[Path]:
    """Give every connection to ``behave``, in a thread; hang up when that returns or the test is over."""
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection)

    def accept() -> None:
        with suppress(OSError):  # shut down
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def hang(connection: socket.socket) -> None:
    """Accept and read, but never answer."""
    while connection.recv(65536):
        pass


def hang_up(connection: socket.socket) -> None:
    """Close without an answer."""
    connection.recv(65536)


def answer(content: bytes) -> Callable[[socket.socket], None]:
    """Send ``content`` whatever was asked, then close."""

    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(content)

    return behave


def either(http: bytes, other: Path) -> Callable[[socket.socket], None]:
    """Answer a GET with ``http``, pass everything else on to ``other``: CRI-O serves both on one socket."""

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def behave(connection: socket.socket) -> None:
        if connection.recv(3, socket.MSG_PEEK) == b"GET":
            answer(http)(connection)
            return
        with socket.socket(socket.AF_UNIX) as onward:
            onward.connect(str(other))
            back = threading.Thread(target=pass_on, args=(onward, connection))
            back.start()
            pass_on(connection, onward)
            with suppress(OSError):  # who asked has gone, and a server may hold half of a connection for long
                onward.shutdown(socket.SHUT_RDWR)
            back.join()

    return behave


@contextmanager
def engine(path: Path, answers: Mapping[str, bytes], asked: list[bytes] | None = None) -> Iterator[Path]:
    """Serve those calls over gRPC; all others are unimplemented, as in containerd without its CRI plugin."""
    import grpc

    class Calls(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
        def service(self, details: Any) -> Any:
            def reply(request: bytes, _: Any) -> bytes:
                (asked if asked is not None else []).append(request)
                return answers[details.method]

            known = details.method in answers
            return grpc.unary_unary_rpc_method_handler(reply) if known else None

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[Calls()])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield path
        finally:
            server.stop(None).wait()


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Encode a protobuf message."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(content)) + content
    return encoded


def varint(value: int) -> bytes:
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


@dataclass
class FakeUnit:
    """One unit, which starts whenever it is asked to."""

    load: str = "loaded"
    active: str = "active"
    sub: str = "running"
    main_pid: int = 61
    can_reload: bool = False
    starts: int = 0
    properties: dict[str, tuple[str, Any]] = field(default_factory=dict)  # of this unit alone

    @property
    def invocation(self) -> bytes:
        return bytes([self.starts]) * 16


@dataclass
class FakeSystemd:
    """Stands in for systemd, behind a bus or on its own socket: counts starts.

    Like the real one it unloads a unit at rest, so ResetFailedUnit does not know it. Behind a bus each message
    comes with the sender that dbus-daemon writes into it (seen with 1.14.10); ``strangers`` are signals that a
    local user sends us alone, between a question and its answer. ``changed`` are properties that are more, or not
    as they should be, ``fails`` the names of errors by the member that is called. ``prepared`` is what logind says
    of a shutdown, None where it does not run. ``early`` are signals that reach a client together with the answer to
    its authentication, as on systemd's own socket.
    """

    units: dict[str, FakeUnit] = field(default_factory=dict)
    state: str = "running"
    behind_bus: bool = True
    silent_on: str = ""
    calls: list[str] = field(default_factory=list)
    strangers: Callable[[str], Iterable[Any]] = lambda _: ()
    changed: dict[str, tuple[str, Any]] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    prepared: bool | None = None
    early: Sequence[Any] = ()

    def __call__(self, connection: socket.socket) -> None:
        if not self._authenticate(connection):
            return
        parser = Parser()
        while content := connection.recv(65536):
            for request in parser.feed(content):
                member = request.header.fields[HeaderFields.member]
                self.calls.append(member)
                if member == self.silent_on:
                    continue
                for stranger in self.strangers(member):
                    stranger.header.fields[HeaderFields.sender] = STRANGER
                    connection.sendall(stranger.serialise(serial=1))
                asked = request.header.fields.get(HeaderFields.destination)
                sender = LOGINDS if asked == LOGIND else OWNER
                sender = BUS if member == "Hello" else sender
                for serial, message in enumerate(self._answers(request, member), len(self.calls) * 10):
                    if self.behind_bus:
                        message.header.fields[HeaderFields.sender] = sender
                    connection.sendall(message.serialise(serial=serial))

    def _authenticate(self, connection: socket.socket) -> bool:
        greeting = b""
        while greeting.count(b"\r\n") < 1:
            if not (part := connection.recv(65536)):
                return False
            greeting += part
        assert greeting.startswith(b"\0AUTH EXTERNAL ")
        if self.state == "refusing":
            connection.sendall(b"REJECTED EXTERNAL\r\n")
            return False
        early = b"".join(signal.serialise(serial=1) for signal in self.early)
        connection.sendall(b"OK 0123456789abcdef\r\n" + early)
        while not greeting.endswith(b"BEGIN\r\n"):
            if not (part := connection.recv(7)):
                return False
            greeting += part
        return True

    def _answers(self, request: Any, member: str) -> Iterator[Any]:
        match member, request.body:
            case failing, _ if failing in self.fails:
                yield new_error(request, self.fails[failing], "s", ("not now",))
            case "Hello", _:
                assert self.behind_bus, "systemd's own socket knows no Hello"
                yield new_method_return(request, "s", (":1.7",))
            case "GetAll", _ if "_2e" not in (
                name := request.header.fields[HeaderFields.path].split("/")[-1]
            ):
                said = f"Unit name {name} is neither a valid invocation ID nor unit name."
                yield new_error(request, "org.freedesktop.DBus.Error.InvalidArgs", "s", (said,))
            case "ResetFailedUnit", (name,):
                if self.units[name].active == "inactive":
                    yield new_error(
                        request, "org.freedesktop.systemd1.NoSuchUnit", "s", (f"Unit {name} not loaded.",)
                    )
                else:
                    self.units[name].starts = 0
                    yield new_method_return(request)
            case "RestartUnit" | "StartUnit", (name, "replace"):
                yield from self._restart(request, name)
            case "ReloadUnit", _:
                yield new_method_return(request, "o", ("/job/7",))
            case "Get", (_, "PreparingForShutdown") if self.prepared is None:
                said = f'Name "{LOGIND}" does not exist'  # in the words of dbus-daemon
                yield new_error(request, "org.freedesktop.DBus.Error.NameHasNoOwner", "s", (said,))
            case "Get" | "GetAll", (interface, *names):
                yield self._properties(request, interface, *names)
            case unknown:
                raise AssertionError(unknown)

    def _restart(self, request: Any, name: str) -> Iterator[Any]:
        unit = self.units[name]
        unit.starts += 1
        unit.main_pid += 1
        unit.active, unit.sub = "active", "running"
        yield new_method_return(request, "o", ("/job/7",))

    def _properties(self, request: Any, interface: str, *names: str) -> Any:
        path = request.header.fields[HeaderFields.path]
        absent = FakeUnit(load="not-found", active="inactive", sub="dead", main_pid=0)
        name = path.removeprefix("/org/freedesktop/systemd1/unit/").replace("_2e", ".")
        unit = self.units.get(name, absent)
        of_a_service = {
            "MainPID": ("u", unit.main_pid),
            "Result": ("s", "success" if unit.active != "failed" else "exit-code"),
        }
        of_a_unit = {
            "InvocationID": ("ay", unit.invocation),
            "LoadState": ("s", unit.load),
            "ActiveState": ("s", unit.active),
            "SubState": ("s", unit.sub),
            "CanReload": ("b", unit.can_reload),
            "Job": ("(uo)", (0, "/")),
            **(of_a_service if path.endswith("_2eservice") else {}),
            **self.changed,
            **unit.properties,
        }
        of_a_manager = {"SystemState": ("s", self.state), "PreparingForShutdown": ("b", self.prepared)}
        if names:
            return new_method_return(request, "v", ((of_a_unit | of_a_manager)[names[0]],))
        assert not interface, "an empty name is all interfaces"
        return new_method_return(request, "a{sv}", (of_a_unit,))
