"""Locks that tell two instances apart: flock(2) on an inode that has its name, and that only root opens.

Whoever may read a file may lock it. So what is locked has mode 0600, and a lock on anything wider counts only
where a process of root's holds it.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, LockedError, Option, Remedy
from installer.host.files import Host
from installer.host.glance import MAX_PID_BYTES
from installer.host.home import open_home
from installer.host.inodes import translated
from installer.host.kernel import trusted_uids
from installer.host.lock_table import PROC, has_name, lock_holder, root_holds
from installer.host.processes import started_of
from installer.host.supervision import own_pid

LOCK: Final = "lock"
PRIVATE: Final = 0o600
OTHERS: Final = 0o077
TRIES: Final = 100  # a name that changes its inode more often than this does so on purpose
# A pid of ours or NVIDIA's, or what a crash has left of one.
_PID = re.compile(rb"[0-9\s\0]*")
FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PIDFILE: Final = "toolkit.pid"


@dataclass(frozen=True, slots=True)
class Lock:
    """A held lock; it lives as long as a descriptor of it does, in this process or another one."""

    fd: int

    def release(self) -> None:
        """Let the lock go, unless another process holds it, too."""
        os.close(self.fd)


def lock_directory(host: Host, path: PurePosixPath, inherited: Sequence[int] = ()) -> Lock | None:
    """Lock the directory at ``path`` by the file ``lock`` in it; None where it has gone meanwhile.

    The directory itself is for everybody to read, and so to lock. ``inherited`` are descriptors of the lock
    that ``run`` holds, where they still are this file.

    Raises:
        LockedError: another process holds it.
        InstallerError: it is no directory of root's.
    """
    with translated("lock", path):
        local = host.local_path(path, last=False)
        directory = open_home(local, path)
        if directory is None:
            return None
        try:
            file = _inherited(inherited, local / LOCK)
            lock = Lock(_lock_file(host, directory) if file is None else file)
            try:
                _flock(lock.fd, local / LOCK, path)
                still = has_name(directory, local) and has_name(lock.fd, local / LOCK)
            except BaseException:
                lock.release()
                raise
        except FileNotFoundError:  # who held it has just removed it
            return None
        finally:
            os.close(directory)
        if still:
            return lock
        lock.release()
        return None


def lock_pidfile(host: Host, path: PurePosixPath) -> Lock:
    """Lock the pidfile at ``path``, making it where there is none; its content is not touched.

    Raises:
        LockedError: another process holds it.
        InstallerError: what is there is not a pidfile of ours.
    """
    with translated("lock", path):
        local = host.local_path(path)
        for _ in range(TRIES):
            if (lock := _new_pidfile(host, local, path)) is not None:
                return lock
    raise LockedError(f"start (somebody makes and removes {path} all the time)", remedy="stop that first")


def remove_pidfile(host: Host, path: PurePosixPath) -> None:
    """Remove the pidfile if it is one of ours, and nobody else's who runs; what is not is left as it is."""
    with translated("remove", path):
        local = host.local_path(path)
        fd = _pidfile(local)
        if fd is None:
            return
        os.close(fd)
        holder = lock_holder(local)
        if holder is None or holder[0] in {os.getpid(), own_pid()}:
            host.remove(path)


def write_pid(lock: Lock, path: PurePosixPath) -> None:
    """Write this process's pid into the pidfile at ``path``, which ``lock`` holds."""
    with translated("write", path):
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)


def _process_tables(host: Host) -> tuple[Path, ...]:
    """Return our own /proc and the host's: one that is mounted from there shows the host's processes."""
    return tuple({PROC, host.local_path(PurePosixPath(PROC))})


def _lock_file(host: Host, directory: int) -> int:
    """Open the file in a directory, made where there is none, or where somebody else could lock it."""
    try:
        # For reading: that goes on a full disk and on one that is read-only.
        fd = os.open(LOCK, FLAGS & ~os.O_RDWR, dir_fd=directory)
        if not _is_a_neighbours(host, fd):
            return fd
        try:
            os.unlink(LOCK, dir_fd=directory)
        finally:
            os.close(fd)
    except FileNotFoundError:
        pass
    return os.open(LOCK, FLAGS | os.O_CREAT, PRIVATE, dir_fd=directory)


def _inherited(fds: Sequence[int], local: Path) -> int | None:
    """Return the one of ``fds`` that is open on what has the name ``local``."""
    return next((fd for fd in fds if has_name(fd, local)), None)


def _flock(fd: int, local: Path, path: PurePosixPath) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        _refuse(local, path, error)


def _new_pidfile(host: Host, local: Path, path: PurePosixPath) -> Lock | None:
    """Lock the pidfile that is there, or a new one; None where its name was lost meanwhile."""
    try:
        fd = os.open(local, FLAGS | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError:
        found = _pidfile(local)
        if found is None:
            if os.path.lexists(local):
                _refuse_foreign(path)
            return None
        fd = found
    lock = Lock(fd)
    try:
        if _is_a_neighbours(host, fd):
            if has_name(fd, local):
                local.unlink()
        else:
            _flock(fd, local, path)
            if has_name(fd, local):
                return lock
    except BaseException:
        lock.release()
        raise
    lock.release()
    return None


def _pidfile(local: Path) -> int | None:
    """Open the pidfile of ours that stands there; None where there is none, or something else."""
    try:
        fd = os.open(local, FLAGS)
    except OSError:
        return None
    status = os.fstat(fd)
    ours = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid in trusted_uids()
    text = os.pread(fd, MAX_PID_BYTES + 1, 0) if ours else b""
    if not ours or len(text) > MAX_PID_BYTES or not _PID.fullmatch(text) or _is_another(local, status, text):
        os.close(fd)
        return None
    return fd


def _is_another(local: Path, status: os.stat_result, text: bytes) -> bool:
    """Tell whether it is the pidfile of another program, which runs and has written it.

    Not where the pid is that of a later process: numbers are given again. Nor where the mode or the name says
    that it is ours or NVIDIA's, whose pid may be of another namespace.
    """
    pid = text.strip(b"\0 \n")
    if stat.S_IMODE(status.st_mode) == PRIVATE or local.name == PIDFILE or not pid.isdigit():
        return False
    started = started_of(int(pid), PROC)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return started is not None and booted + started <= status.st_mtime


def _is_a_neighbours(host: Host, fd: int) -> bool:
    """Tell whether somebody who is not root holds a lock on a file, or may at any time: he could open it.

    So it is with the pidfiles of 0.1.0, and with what an admin has given a wider mode. A lock whose holder is
    not seen counts where root alone could open the file.
    """
    wide = bool(os.fstat(fd).st_mode & OTHERS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held = root_holds(fd, _process_tables(host))
        return held is False or (held is None and wide)
    return wide


def _refuse_foreign(path: PurePosixPath) -> NoReturn:
    raise InstallerError(
        f"use {path} as the pidfile (what is there is not a pidfile of root's)",
        remedy=Remedy("move it away, or choose another ", Option("pid-file")),
        code="name-taken",
    )


def _refuse(local: Path, path: PurePosixPath, error: OSError) -> NoReturn:
    raise LockedError(
        f"start (another instance holds {path}{_holder(local)})",
        remedy="stop it first, or let it finish",
    ) from error


def _holder(local: Path) -> str:
    """Return who holds a lock, as part of a sentence; "" where nobody can tell, as of what has just gone."""
    try:
        holder = lock_holder(local)
    except InstallerError:
        return ""
    if holder is None:
        return ""
    pid, started = holder
    since = time.gmtime(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + started)
    return f": pid {pid}, started {time.strftime('%Y-%m-%d %H:%M:%S', since)} UTC"
