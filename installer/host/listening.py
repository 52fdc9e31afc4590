"""A socket on which others ask for metrics, and the answer: the text of a file.

One connection at a time, each with a deadline: who asks can hold up nobody but others who ask.
"""

import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import Kind
from installer.decide.listen import Listen
from installer.host.files import Host
from installer.host.kernel import trusted_uids
from installer.host.sockets import connectable

BACKLOG: Final = 16
LOOK_S: Final = 1.0
AT_MOST_S: Final = 1.0
STEP_S: Final = 0.05
REQUEST_BYTES: Final = 4096
ANSWER_BYTES: Final = 1 << 20
END: Final = b"\r\n\r\n"
TYPE: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
FOR_ALL: Final = 0o666  # to connect is to write; a textfile is for all to read, too


def serve(host: Host, where: Listen, answer: PurePosixPath, goes_on: Callable[[], bool]) -> None:
    """Answer who asks on ``where`` with the file ``answer`` as long as it ``goes_on``.

    Raises:
        InstallerError: nobody can listen there.
    """
    while goes_on():
        with bind(host, where) as listener:
            listener.settimeout(LOOK_S)
            while goes_on() and _has_name(host, where):
                with suppress(OSError):  # nobody has asked, or whoever has is gone
                    connection, _ = listener.accept()
                    with connection:
                        _answer(connection, host.local_path(answer))
    if where.path is not None:
        host.remove(where.path)


def _has_name(host: Host, where: Listen) -> bool:
    """Tell whether others can find us: somebody may have removed the socket."""
    return where.path is None or host.kind(where.path, last=False) is not Kind.ABSENT


def _answer(connection: socket.socket, path: Path) -> None:
    """Answer one who has connected, in a second at most; nothing is made of a request but that it has come.

    Raises:
        OSError: he takes too long, or has gone.
    """
    until, request, left = time.monotonic() + AT_MOST_S, b"", b""
    while END not in request and len(request) <= REQUEST_BYTES:
        connection.settimeout(max(STEP_S, until - time.monotonic()))
        part = connection.recv(REQUEST_BYTES)
        if not part or time.monotonic() > until:
            return
        request += part
    if END not in request:
        return
    left = _text(request, path)
    while left and time.monotonic() < until:
        connection.settimeout(max(STEP_S, until - time.monotonic()))
        left = left[connection.send(left) :]


def _text(request: bytes, path: Path) -> bytes:
    """Return what is sent; a file that cannot be read is being made, or is gone."""
    if not request.startswith(b"GET "):
        return _message(b"405 Method Not Allowed", b"")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return _message(b"503 Service Unavailable", b"")
    with os.fdopen(fd, "rb") as file:
        return _message(b"200 OK", file.read(ANSWER_BYTES))


def _message(status: bytes, body: bytes) -> bytes:
    lines = (b"HTTP/1.1 " + status, b"Content-Type: " + TYPE, b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"Connection: close")) + END + body


def abandoned(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a socket is as we leave one, and nobody listens on it: of a run that was killed."""
    local = host.local_path(path, last=False)
    with suppress(OSError):
        there = local.lstat()
        like_ours = stat.S_ISSOCK(there.st_mode) and stat.S_IMODE(there.st_mode) == FOR_ALL
        if like_ours and there.st_uid in trusted_uids():
            with socket.socket(socket.AF_UNIX) as client, connectable(Path(local)) as name:
                client.setblocking(False)  # noqa: FBT003 - one that listens may have no room for another
                return client.connect_ex(name) == errno.ECONNREFUSED
    return False


def bind(host: Host, where: Listen) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InstallerError: there can be none.
    """
    try:
        return _listener(host, where)
    except OSError as error:
        raise InstallerError(
            f"listen on {where} ({(error.strerror or str(error)).lower()})",
            remedy=Remedy("free it, or choose another address with ", Option("metrics-listen")),
            code="name-taken",
        ) from error


def _listener(host: Host, where: Listen) -> socket.socket:
    if where.path is None:
        family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where.address, where.port))
        listener.listen(BACKLOG)
        return listener
    if host.kind(where.path, last=False) is Kind.OTHER:
        host.remove(
            where.path
        )  # of a run that was killed: the ledger knows it, or it would have been refused
    local = host.local_path(where.path, last=False)
    listener = socket.socket(socket.AF_UNIX)
    with connectable(Path(local)) as name:
        before = os.umask(0o777 & ~FOR_ALL)  # by name somebody else's file could be opened to all
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
    return listener
