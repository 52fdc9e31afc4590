"""Answers who asks for metrics while ``run`` waits: loaded into that bare interpreter, if asked for.

The text is that of a file; nothing is made of a request but that it has come. One connection at a time, each
with a deadline and given up when a signal comes, and between two of them the waiter looks at its own: who
asks can hold up nobody but others who ask.
"""

import posix
from _signal import sigpending  # type: ignore[import-not-found]  # signal and socket load enum and more: a megabyte
from _socket import socket
from fcntl import F_SETFL, F_SETOWN, F_SETSIG, fcntl
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Callable

AT_MOST_S = 1.0
STEP_S = 0.05
REQUEST_BYTES = 4096
ANSWER_BYTES = 1 << 20
END = b"\r\n\r\n"
O_ASYNC = 0o20000  # asm-generic/fcntl.h; posix does not name it
TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


def beside(said: bytes, asked: int) -> "Callable[[list[int]], float | None]":
    """Have the kernel tell of who connects to a socket; return what then answers with a file."""
    fd, _, path = said.partition(b":")
    arm(int(fd), asked)
    return lambda numbers: answer(int(fd), path, numbers)


def arm(fd: int, asked: int) -> None:
    """Have the kernel send the signal ``asked`` when somebody connects to the socket ``fd``."""
    fcntl(fd, F_SETOWN, posix.getpid())
    fcntl(fd, F_SETSIG, asked)
    fcntl(fd, F_SETFL, posix.O_NONBLOCK | O_ASYNC)


def answer(fd: int, path: bytes, numbers: list[int]) -> float | None:
    """Answer one who has connected; return 0.0, for there may be more, or None where nobody is left.

    Nobody is answered while one of the signals is pending.
    """
    listener = socket(fileno=fd)
    try:
        if not sigpending() & {*numbers}:
            connection, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - what socket.py wraps
            _serve(socket(fileno=connection), path, numbers)
    except OSError:
        return None  # nobody is left, or they have gone
    finally:
        listener.detach()
    return 0.0


def _serve(connection: socket, path: bytes, numbers: list[int]) -> None:
    due, request, left = monotonic() + AT_MOST_S, b"", b""
    connection.settimeout(STEP_S)
    try:
        while monotonic() < due and not sigpending() & {*numbers}:
            try:
                if left:
                    left = left[connection.send(left) :]
                    done = not left
                else:
                    part = connection.recv(REQUEST_BYTES)
                    request += part
                    left = _answer(request, path) if END in request else b""
                    done = not part or len(request) > REQUEST_BYTES
            except TimeoutError:
                continue
            if done:
                break
    except OSError:
        pass
    finally:
        connection.close()


def _answer(request: bytes, path: bytes) -> bytes:
    """Return what is sent; a file that cannot be read is being made, or is gone."""
    if not request.startswith(b"GET "):
        return _message(b"405 Method Not Allowed", b"")
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
    except OSError:
        return _message(b"503 Service Unavailable", b"")
    try:
        return _message(b"200 OK", posix.read(fd, ANSWER_BYTES))
    finally:
        posix.close(fd)


def _message(status: bytes, body: bytes) -> bytes:
    lines = (b"HTTP/1.1 " + status, b"Content-Type: " + TYPE, b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"Connection: close")) + END + body
