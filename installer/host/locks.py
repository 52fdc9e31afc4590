"""Locks that tell two instances apart: flock(2) on an inode that still has its name."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from installer.decide.errors import LockedError
from installer.host.files import Host
from installer.host.inodes import translated


@dataclass(frozen=True, slots=True)
class Lock:
    """A held lock; it lives as long as its file descriptor, also across an exec."""

    fd: int

    def release(self) -> None:
        """Let the lock go."""
        os.close(self.fd)


def lock_directory(host: Host, path: PurePosixPath, inherited: int | None = None) -> Lock | None:
    """Lock the directory at ``path``; None where it has gone meanwhile.

    ``inherited`` is a descriptor that holds the lock since before an exec, if it still is that directory.

    Raises:
        LockedError: another process holds it.
    """
    with translated("lock", path):
        here = host.here(path)
        if inherited is not None and (lock := _locked(inherited, here, path)) is not None:
            return lock
        try:
            fd = os.open(here, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        return _locked(fd, here, path)


def lock_pidfile(host: Host, path: PurePosixPath, inherited: int | None = None) -> Lock:
    """Lock the pidfile at ``path``, making it where there is none; its content is not touched.

    Raises:
        LockedError: another process holds it.
    """
    with translated("lock", path):
        here = host.here(path)
        if inherited is not None and (lock := _locked(inherited, here, path)) is not None:
            return lock
        while True:
            lock = _locked(os.open(here, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), here, path)
            if lock is not None:
                return lock


def _locked(fd: int, here: Path, path: PurePosixPath) -> Lock | None:
    """Lock ``fd``; None where its inode does not have the name any more: a lock on it keeps nobody out."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise LockedError(
            f"start (another instance holds {path}{_holder(here)})",
            remedy="stop it first, or let it finish",
        ) from error
    try:
        same = os.path.samestat(os.fstat(fd), here.stat())
    except FileNotFoundError:
        same = False
    if not same:
        os.close(fd)
        return None
    # `run` waits in another program image.
    os.set_inheritable(fd, True)  # noqa: FBT003 - its parameters have no names
    return Lock(fd)


def _holder(here: Path) -> str:
    from installer.host.lock_table import lock_holder

    holder = lock_holder(here)
    if holder is None:
        return ""
    pid, started = holder
    since = datetime.fromtimestamp(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started, tz=UTC)
    return f": pid {pid}, started {since:%Y-%m-%d %H:%M:%S} UTC"


@contextmanager
def lock_while(host: Host, path: PurePosixPath) -> Iterator[None]:
    """Hold a directory's lock for the block, waiting for it: it is held for a few calls only."""
    with translated("lock", path):
        fd = os.open(host.here(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_pid(lock: Lock) -> None:
    """Write this process's pid into the locked pidfile."""
    os.ftruncate(lock.fd, 0)
    os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)
