"""HTTP over a unix socket, within one deadline and one size, whatever the other side sends."""

import errno
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from installer.host.sockets import connectable

if TYPE_CHECKING:
    from http.client import HTTPResponse

MAX_BYTES: Final = 16 << 20  # as the limit of CRI; what dockerd says of 1000 containers is 1 MB


class AnswerError(ValueError):
    """What came back is not HTTP, or not what was asked for."""


class _Bounded(socket.socket):
    """Reading, which http.client does by ``recv_into``, ends at the deadline and at ``MAX_BYTES``."""

    deadline: float
    received = 0

    def recv_into(self, *words: Any) -> int:
        self.settimeout(_left(self.deadline))
        size = super().recv_into(*words)
        self.received += size
        if self.received > MAX_BYTES:
            raise OSError(errno.EMSGSIZE, f"an answer of more than {MAX_BYTES >> 20} MB")
        return size


def ask(
    address: Path, words: tuple[str, str, Any, Mapping[str, str]], *, deadline: float, stream: bool = False
) -> tuple["HTTPResponse", bytes]:
    """Return the answer to ``words``, those of HTTPConnection.request, and its body unless it is a stream.

    ``deadline`` is a moment of time.monotonic().

    Raises:
        OSError: nobody listens, not in time, or too long.
        AnswerError: it is not HTTP.
    """
    from http.client import HTTPConnection, HTTPException, RemoteDisconnected

    with _Bounded(socket.AF_UNIX) as connection, connectable(address) as path:
        connection.deadline = deadline
        connection.settimeout(_left(deadline))
        connection.connect(path)
        try:
            asked = HTTPConnection("localhost")
            asked.sock = connection
            asked.request(*words)
            answer = asked.getresponse()
            if stream:
                return answer, b""
            with answer:
                return answer, answer.read()
        except RemoteDisconnected as error:
            raise AnswerError("closed without an answer") from error
        except HTTPException as error:
            raise AnswerError("no answer in HTTP") from error


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no whole answer in time")
    return left_s
