"""One GET over a unix socket, within one deadline and one size, whatever the other side sends.

In HTTP/1.0, which dockerd and CRI-O answer without chunks and then close
(engine-facts.md#http-1-0).
"""

import errno
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass
from installer.host.sockets import connectable

MAX_BYTES: Final = 16 << 20  # as the limit of CRI; what dockerd says of 1000 containers is 1 MB
FOUND: Final = b"200"


class AnswerError(ValueError):
    """What came back is not HTTP, or not what was asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; ``headers`` as they are spelled."""

    headers: Mapping[str, str]
    body: bytes


def get(address: Path, resource: str, *, deadline: float) -> bytes:
    """Return what is at ``resource``, as ``ask`` does."""
    return ask(address, resource, deadline=deadline).body


def ask(address: Path, resource: str, *, deadline: float) -> Answer:
    """Ask for ``resource``; ``deadline`` is a moment of time.monotonic().

    Raises:
        OSError: nobody listens, not in time, or too long.
        AnswerError: it is not HTTP, or says that there is nothing.
    """
    with _connected(address, deadline) as connection:
        connection.sendall(f"GET {resource} HTTP/1.0\r\n\r\n".encode())
        answer = bytearray()
        while part := _received(connection, deadline):
            answer += part
            if len(answer) > MAX_BYTES:
                raise OSError(errno.EMSGSIZE, f"an answer of more than {MAX_BYTES >> 20} MB")
    head, blank, body = bytes(answer).partition(b"\r\n\r\n")
    version, _, said = head.partition(b"\r\n")[0].partition(b" ")
    if not blank or not version.startswith(b"HTTP/1."):
        raise AnswerError("no answer in HTTP" if answer else "closed without an answer")
    if not said.startswith(FOUND):
        raise AnswerError(said[:100].decode(errors="replace"))
    lines = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:])
    return Answer({name: value for name, _, value in lines}, body)


@contextmanager
def _connected(address: Path, deadline: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_left(deadline))
        with connectable(address) as path:
            connection.connect(path)
        yield connection


def _received(connection: socket.socket, deadline: float) -> bytes:
    connection.settimeout(_left(deadline))
    return connection.recv(65536)


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no whole answer in time")
    return left_s
