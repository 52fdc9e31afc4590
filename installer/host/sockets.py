"""Unix sockets at paths of any length; HTTP and gRPC over them, bounded in time and size; their listeners."""

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from installer.host.kernel import list_open_files, read_table, trusted_uids

if TYPE_CHECKING:
    from http.client import HTTPResponse

LONGEST: Final = 107  # bytes of a path that connect(2) takes (unix(7))
FOR_ALL: Final = 0o666  # to connect is to write; all users may read a textfile, too
LISTENS: Final = "00010000"  # __SO_ACCEPTCON
BACKLOG: Final = 16
MAX_BYTES: Final = 16 << 20  # as CRI's own limit; dockerd's answer about 1000 containers has 1 MB
HEAD_BYTES: Final = 5  # in front of a message: a byte for compression, and the size

# The status codes by their numbers (https://grpc.io/docs/guides/status-codes).
CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


@contextmanager
def connectable(here: Path) -> Iterator[str]:
    """Yield a path for connect(2): a too long path leads through its open directory."""
    if len(os.fsencode(here)) <= LONGEST:
        yield str(here)
        return
    directory = os.open(here.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{here.name}"
    finally:
        os.close(directory)


class AnswerError(ValueError):
    """The answer is not in HTTP, or does not answer the request."""


class _Bounded(socket.socket):
    """A socket for http.client with reads by ``recv_into``, within the deadline and ``MAX_BYTES``."""

    deadline: float
    received = 0

    def recv_into(self, *words: Any) -> int:
        self.settimeout(_left_s(self.deadline))
        size = super().recv_into(*words)
        self.received += size
        if self.received > MAX_BYTES:
            raise OSError(errno.EMSGSIZE, f"an answer of more than {MAX_BYTES >> 20} MB")
        return size


def ask_http(
    address: Path, words: tuple[str, str, Any, Mapping[str, str]], *, deadline: float, stream: bool = False
) -> tuple["HTTPResponse", bytes]:
    """Ask a server over HTTP.

    Args:
        address: the socket.
        words: the arguments of HTTPConnection.request.
        deadline: the end of the answer, by time.monotonic().
        stream: return without the body; the caller reads the body.

    Returns:
        The answer and the body.

    Raises:
        OSError: nothing listens, or the answer is late or too long.
        AnswerError: the answer is not in HTTP.
    """
    from http.client import HTTPConnection, HTTPException, RemoteDisconnected

    with _Bounded(socket.AF_UNIX) as connection, connectable(address) as path:
        connection.deadline = deadline
        connection.settimeout(_left_s(deadline))
        connection.connect(path)
        try:
            http = HTTPConnection("localhost")
            http.sock = connection
            http.request(*words)
            answer = http.getresponse()
            if stream:
                return answer, b""
            with answer:
                # A server may announce more than it sends.
                body = answer.read(MAX_BYTES)
                if answer.length:
                    raise AnswerError("ended before its answer did")
                return answer, body
        except HTTPException as error:
            reason = "no answer in HTTP"
            if isinstance(error, RemoteDisconnected):
                reason = "closed without an answer"
            raise AnswerError(reason) from error


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no whole answer in time")
    return left_s


class StatusError(Exception):
    """A call has ended with another status than OK, named ``code``; ``words`` are the server's text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.words = text


def call_grpc(path: str, method: str, request: bytes, *, timeout_s: float) -> bytes:
    """Call a method over gRPC.

    Args:
        path: the socket, as connect(2) takes it.
        method: such as ``/package.Service/Method``.
        request: the message to send.
        timeout_s: the time for the whole call.

    Returns:
        The message of the answer.

    Raises:
        StatusError: the server refuses, or does not answer with exactly one message.
        TimeoutError: the answer is late.
        OSError: nothing listens, or the server does not speak HTTP/2 to the end.
    """
    from h2.exceptions import H2Error

    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        try:
            headers, content = _exchange(connection, method, request, deadline)
            code = CODES[int(headers.get("grpc-status", "2"))]
        except (H2Error, IndexError, ValueError) as error:
            raise ConnectionError(f"what answers does not speak gRPC: {error}") from error
    if code != "OK":
        raise StatusError(code, unquote(headers.get("grpc-message", f"HTTP status {headers.get(':status')}")))
    message = content[HEAD_BYTES:]
    head = b"\0" + len(message).to_bytes(4, "big")
    if content[:HEAD_BYTES] != head:
        raise StatusError("INTERNAL", "the answer is not one whole message")
    return message


def _exchange(
    connection: socket.socket, method: str, request: bytes, deadline: float
) -> tuple[dict[str, str], bytes]:
    """Send a request; return the headers and trailers of the answer, and the content."""
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    target = ((":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"))
    http.send_headers(stream, [*target, ("content-type", "application/grpc"), ("te", "trailers")])
    message = b"\0" + len(request).to_bytes(4, "big") + request
    http.send_data(stream, message, end_stream=True)
    headers: dict[str, str] = {}
    content = bytearray()
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.sendall(http.data_to_send())
        received = connection.recv(1 << 16)
        if not received:
            raise ConnectionResetError("closed by the other side")
        if time.monotonic() > deadline:
            raise TimeoutError
        for event in http.receive_data(received):
            match event:
                case events.ResponseReceived() | events.TrailersReceived():
                    headers.update((str(name), str(value)) for name, value in event.headers)
                case events.DataReceived():
                    content += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if len(content) > MAX_BYTES:
                        raise StatusError("RESOURCE_EXHAUSTED", "the answer is longer than 16 MB")
                case events.StreamReset() | events.ConnectionTerminated():
                    raise ConnectionResetError("reset by the other side")
                case events.StreamEnded():
                    return headers, bytes(content)
                case _:
                    pass


Listener: TypeAlias = socket.socket
Connection: TypeAlias = socket.socket


def listen_tcp(address: str, port: int) -> Listener:
    """Return a listening socket for an address; OSError for a taken address, or another node's address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(BACKLOG)
    return listener


def listen_unix(here: Path) -> Listener:
    """Return a listening socket at ``here``, for all users; OSError for a taken name."""
    listener = socket.socket(socket.AF_UNIX)
    with connectable(here) as name:
        before = os.umask(0o777 & ~FOR_ALL)  # a chmod(2) by name could open another user's file to all
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    return listener


@contextmanager
def ended_after(connection: socket.socket, seconds: float) -> Iterator[None]:
    """End a connection if the block takes longer than ``seconds``: each wait for the peer ends then."""
    from threading import Timer

    def end() -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = Timer(seconds, end)
    timer.start()
    yield
    timer.cancel()


def is_dead(here: Path) -> bool:
    """Tell whether nothing listens on a unix socket; False if unknown."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0)
        try:
            with connectable(here) as path:
                connection.connect(path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return True
        except OSError:  # no right to connect, a full backlog
            return False
    return False


def list_listening(process: Path) -> frozenset[str]:
    """List the paths on which a process, a directory of /proc, listens; empty for unreadable paths."""
    with suppress(OSError):
        open_files = set(list_open_files(process))
        return frozenset(path for path, inode in _listeners(process) if inode in open_files)
    return frozenset()


def has_closed(process: str, path: str) -> bool:
    """Tell whether a running process has closed its socket (engine-facts.md#dockerd-stop)."""
    name = PurePosixPath(path).name
    with suppress(OSError):  # the process has ended, or its files are unknown
        listeners = _listeners(Path(process))
        inodes = {inode for listened, inode in listeners if PurePosixPath(listened).name == name}
        open_files = set(list_open_files(Path(process)))
        return bool(process and inodes and open_files and inodes.isdisjoint(open_files))
    return False


def _listeners(process: Path) -> Iterator[tuple[str, str]]:
    """Yield path and inode of each listening socket in the network namespace of a process."""
    for row in read_table(process / "net/unix"):
        # number, references, protocol, flags, type, state, inode, path (net/unix/af_unix.c: unix_seq_show)
        words = row.split(None, 7)
        if len(words) > 7 and words[3] == LISTENS:  # noqa: PLR2004 - others have no path
            yield words[7], f"socket:[{words[6]}]"


def is_like_ours(here: Path) -> bool:
    """Tell whether a socket looks like our own: root's, and for all users."""
    with suppress(OSError):
        status = here.lstat()
        is_for_all = stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == FOR_ALL
        return is_for_all and status.st_uid in trusted_uids()
    return False


def is_abandoned(here: Path) -> bool:
    """Tell whether a socket looks like our own, and nothing listens: a killed run has left the socket."""
    return is_like_ours(here) and is_listened_on(here) is False


def is_listened_on(here: Path) -> bool | None:
    """Tell whether a process listens on a socket, without a wait; None for a missing socket."""
    with suppress(OSError):
        if stat.S_ISSOCK(here.lstat().st_mode):
            with socket.socket(socket.AF_UNIX) as client, connectable(here) as name:
                client.setblocking(False)  # noqa: FBT003 - a busy listener may have no room
                return client.connect_ex(name) != errno.ECONNREFUSED
    return None
