"""A socket on which others ask for metrics, as the program image that waits answers it (answering.py)."""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import Kind
from installer.decide.listen import Listen
from installer.host.files import Host
from installer.host.kernel import trusted_uids
from installer.host.sockets import connectable
from installer.host.waiting import LISTENS

BACKLOG: Final = 16
FOR_ALL: Final = 0o666  # to connect is to write; a textfile is for all to read, too


def listen(host: Host, where: Listen, answer: PurePosixPath, *, inherited: bool) -> None:
    """Let the waiter answer on ``where`` with the file ``answer``; one that is ``inherited`` is taken up.

    Raises:
        InstallerError: nobody can listen there.
    """
    fd = _inherited() if inherited else None
    if fd is not None and where.path is not None and host.kind(where.path, last=False) is Kind.ABSENT:
        os.close(fd)  # somebody has removed its name: nobody finds it any more
        fd = None
    try:
        fd = _bound(host, where) if fd is None else fd
    except OSError as error:
        os.environ.pop(LISTENS, None)
        raise InstallerError(
            f"listen on {where} ({(error.strerror or str(error)).lower()})",
            remedy=Remedy("free it, or choose another address with ", Option("metrics-listen")),
            code="name-taken",
        ) from error
    os.set_inheritable(fd, True)  # noqa: FBT003 - the waiter is an exec away
    os.environ[LISTENS] = f"{fd}:{host.local_path(answer)}"


def listen_no_more() -> None:
    """Let the waiter answer nobody."""
    fd = _inherited()
    os.environ.pop(LISTENS, None)
    if fd is not None:
        os.close(fd)


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


def _inherited() -> int | None:
    """Return the socket that this process has listened on before an exec; None where there is none."""
    word = os.environ.get(LISTENS, "").partition(":")[0]
    with suppress(OSError, ValueError):
        if stat.S_ISSOCK(os.fstat(int(word)).st_mode):
            return int(word)
    return None


def _bound(host: Host, where: Listen) -> int:
    if where.path is None:
        family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((where.address, where.port))
            listener.listen(BACKLOG)
            return listener.detach()
    if host.kind(where.path, last=False) is Kind.OTHER:
        host.remove(
            where.path
        )  # of a run that was killed: the ledger knows it, or it would have been refused
    local = host.local_path(where.path, last=False)
    with socket.socket(socket.AF_UNIX) as listener, connectable(Path(local)) as name:
        before = os.umask(0o777 & ~FOR_ALL)  # by name somebody else's file could be opened to all
        try:
            listener.bind(name)
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        return listener.detach()
