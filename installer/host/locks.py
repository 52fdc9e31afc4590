"""Locks that exclude a second instance: flock(2) on an inode that has its name, and that only root opens.

Every user who may read a file may lock it: the lock of a file with a wider mode than 0600 counts only if a
process of root's holds it. The kernel tells the holder (/proc/PID/fdinfo, /proc/locks): a look takes no lock.
"""

import errno
import fcntl
import os
import re
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from installer.errors import InstallerError, LockedError, Option, Remedy
from installer.host.files import Host
from installer.host.inodes import opened, translated
from installer.host.kernel import (
    ENOUGH_FILES,
    is_roots,
    list_pids,
    read_proc,
    read_table,
    status_field,
    trusted_uids,
)
from installer.host.processes import LOOK_S, UnfinishedError, list_in_time, send_signal, start_time_of
from installer.host.supervision import own_pid
from installer.model.files import Layout
from installer.watch import has_name

PROC: Final = Path("/proc")
LOCK: Final = "lock"
LEDGER: Final = Layout().ledger.name
PRIVATE: Final = 0o600
OTHERS: Final = 0o077
TRIES: Final = 100  # if a name changes its inode more often, somebody intends that
MAX_PID_BYTES: Final = 64
TRUST_LEDGER: Final = (
    "read {0}: uninstall writes and removes the paths in it; if all are engine configs or ours: "
    "chown root {0}; chmod 600 {0}; otherwise move it away"
)
# A pid of ours or NVIDIA's, or the rest of a pid after a crash.
_PID: Final = re.compile(rb"[0-9\s\0]*")
# Pid and inode in a line of /proc/locks or /proc/PID/fdinfo; the line of a waiting process does not match.
_FLOCK: Final = re.compile(
    r"^(?:lock:\t)?\d+: FLOCK +\S+ +\S+ +(-?\d{1,10}) [0-9a-f]{1,8}:[0-9a-f]{1,8}:(\d{1,20}) ",
    re.ASCII | re.MULTILINE,
)
# Follow no link, and do not wait for the other end of a FIFO.
LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PIDFILE: Final = "toolkit.pid"
_CLAIM: Final = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length (0: all), pid


class Lock(Struct, frozen=True):
    """A held lock; the lock lives as long as any descriptor of the lock, in this process or in another."""

    fd: int

    def release(self) -> None:
        """Close the descriptor; the lock lives on in a process with another descriptor."""
        os.close(self.fd)


def lock_directory(host: Host, path: PurePosixPath, inherited: Sequence[int] = ()) -> Lock | None:
    """Lock the directory at ``path`` by the file ``lock`` in it.

    Args:
        host: the host.
        path: the directory; the lock in it is made if it is missing.
        inherited: descriptors of the lock of ``run``, used if they still are this file.

    Returns:
        The lock, None if the directory was removed meanwhile.

    Raises:
        LockedError: another process holds the lock.
        InstallerError: ``path`` is no directory of root's.
    """
    with translated("lock", path), suppress(FileNotFoundError):  # the former holder has just removed it
        home = host.local_path(path, last=False)
        return _lock(host, home / LOCK, path, partial(_open_lock, home, path, inherited))
    return None


def is_directory_locked(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a process of root's holds the lock of the directory at ``path``."""
    with suppress(OSError):  # no lock was ever made, or it was removed
        file = (host.local_path(path, last=False) / LOCK).stat(follow_symlinks=False)
        return any(holders(file, proc) for proc in (PROC, host.local_path(PurePosixPath(PROC))))
    return False


def _open_lock(home: Path, path: PurePosixPath, inherited: Sequence[int]) -> int:
    """Open the lock in our own directory; make a missing lock."""
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(opened(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            problem = f"use {path} (it is not a directory but a link or a file)"
            remedy = "move it away, then run again"
            raise InstallerError(problem, remedy=remedy, code="install-dir-unusable") from error
        owners = {os.fstat(directory).st_uid}
        remedy = "move it away"
        # With root's ledger in it the directory was ours before it was given away. Reading checks the ledger.
        with suppress(OSError):
            owners.add(os.stat(LEDGER, dir_fd=directory, follow_symlinks=False).st_uid)
            remedy = TRUST_LEDGER.format(path / LEDGER)
        if owners.isdisjoint(trusted_uids()):
            problem = f"use {path} (it belongs to another user)"
            raise InstallerError(problem, remedy=remedy, code="install-dir-unusable")
        for fd in inherited:
            if has_name(fd, home / LOCK):
                return fd
        # A full disk has no room for a new lock, but an existing lock will do.
        with suppress(FileNotFoundError):
            return os.open(LOCK, LOOK, dir_fd=directory)
        return os.open(LOCK, LOOK | os.O_CREAT, PRIVATE, dir_fd=directory)


def lock_pidfile(host: Host, path: PurePosixPath) -> Lock:
    """Lock the pidfile at ``path``; make a missing file, and keep the content of an existing file.

    Raises:
        LockedError: another process holds the lock.
        InstallerError: ``path`` is no pidfile of ours.
    """
    with translated("lock", path):
        local = host.local_path(path)
        return _lock(host, local, path, partial(_open_or_make_pidfile, local, path))


@contextmanager
def lock_file(host: Host, path: PurePosixPath) -> Iterator[None]:
    """Lock a private file of ours for the block.

    Raises:
        LockedError: another process holds the lock.
    """
    local = host.local_path(path)
    with ExitStack() as stack:
        with translated("lock", path):
            fd = stack.enter_context(opened(local, LOOK))
        _flock(fd, local, path)
        yield


def remove_pidfile(host: Host, path: PurePosixPath) -> None:
    """Remove our pidfile unless another process holds the lock; keep a foreign file."""
    with translated("remove", path):
        fd = _open_pidfile(host.local_path(path))
        if fd is None:
            return
        with os.fdopen(fd):
            other_holders = set(holders(os.fstat(fd))) - {os.getpid(), own_pid()}
        if not other_holders:
            host.remove(path)


def write_pid(lock: Lock, path: PurePosixPath) -> None:
    """Write this process's pid into the pidfile at ``path``, by the descriptor of ``lock``."""
    with translated("write", path):
        os.ftruncate(lock.fd, 0)
        os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)


def _lock(host: Host, local: Path, path: PurePosixPath, open_file: Callable[[], int | None]) -> Lock:
    """Open and lock a file again until the locked file has the right name: another lock excludes no process.

    A file that others than root could lock, like NVIDIA's pidfiles, is removed and so made anew, unless a
    process of root's holds its lock.
    """
    # Our own /proc shows the processes of this pid namespace only; the host's /proc may be mounted.
    procs = {PROC, host.local_path(PurePosixPath(PROC))}
    for _ in range(TRIES):
        fd = open_file()
        if fd is None:
            continue
        locked = False
        try:
            file = os.fstat(fd)
            if not file.st_mode & OTHERS or any(holders(file, proc) for proc in procs):
                _flock(fd, local, path)
                locked = has_name(fd, local)
            elif has_name(fd, local):
                local.unlink(missing_ok=True)
        finally:
            if not locked:
                os.close(fd)
        if locked:
            return Lock(fd)
    raise LockedError(f"start (another program always makes and removes {path})", remedy="stop that first")


def _flock(fd: int, local: Path, path: PurePosixPath) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"start (another instance holds {path}{_describe_holder(local)})"
        of_run = "toolkit-installer reconcile makes it check now, and stopping it uninstalls"
        remedy = f"wait until it ends; if it is a run, {of_run}"
        raise LockedError(problem, remedy=remedy) from error


def _describe_holder(local: Path) -> str:
    """Return the holder of a lock, as part of a sentence; "" if unknown."""
    with suppress(OSError):
        file = local.stat()
        pids = holders(file) or _find_heirs(file)
        for pid in pids:
            since_s = start_time_of(pid)
            if since_s is not None:
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_s))
                return f": pid {pid}, started {since} UTC"
    return ""


def _find_heirs(file: os.stat_result, proc: Path = PROC) -> list[int]:
    """Return the first process of root's with an inherited lock on a file, as a list of at most one pid.

    The table of all locks names the process that took a lock; a child of this process may live longer.
    """
    deadline = time.monotonic() + LOOK_S
    for pid in list_pids(proc):
        if time.monotonic() > deadline:
            break
        if is_roots(pid, proc) and _holds(pid, file, proc, inherited=True):
            return [pid]
    return []


def _open_or_make_pidfile(local: Path, path: PurePosixPath) -> int | None:
    """Open the pidfile, or make a new one; None if an existing pidfile was removed meanwhile."""
    try:
        return os.open(local, LOOK | os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError as error:
        fd = _open_pidfile(local)
        if fd is None and os.path.lexists(local):
            problem = f"use {path} as the pidfile (what is there is not a pidfile of root's)"
            remedy = Remedy("move it away, or choose another ", Option("pid-file"))
            raise InstallerError(problem, remedy=remedy, code="name-taken") from error
        return fd


def _open_pidfile(local: Path) -> int | None:
    """Open our existing pidfile; None for a missing or a foreign file."""
    try:
        fd = os.open(local, LOOK | os.O_RDWR)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid in trusted_uids():
        text = os.pread(fd, MAX_PID_BYTES + 1, 0)
        if len(text) <= MAX_PID_BYTES and _PID.fullmatch(text) and not _is_another(local, status, text):
            return fd
    os.close(fd)
    return None


def _is_another(local: Path, status: os.stat_result, content: bytes) -> bool:
    """Tell whether a pidfile was written by another, still running program."""
    pid = content.strip(b"\0 \n")
    # By mode or name the file is ours or NVIDIA's; its pid may be of another namespace.
    if stat.S_IMODE(status.st_mode) == PRIVATE or local.name == PIDFILE or not pid.isdigit():
        return False
    started_s = start_time_of(int(pid))  # pids are reused: a younger process has not written the file
    return started_s is not None and started_s <= status.st_mtime


@contextmanager
def announce_wait(host: Host, directory: PurePosixPath) -> Iterator[None]:
    """Announce this process, during the block, to the holder of the lock of ``directory`` as waiting."""
    with ExitStack() as stack:
        # The announcement is a lock of an open file description (fcntl(2), F_OFD_SETLK), which does not
        # collide with flock(2). It needs no further file, ends with its process, and every pid namespace sees
        # it.
        with suppress(OSError):  # without the file, or on a file system without OFD locks, nobody is told
            fd = stack.enter_context(opened(host.local_path(directory, last=False) / LOCK, LOOK))
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _CLAIM.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        yield


def is_awaited(lock: Lock) -> bool:
    """Tell whether a process waits for our lock."""
    with suppress(OSError):
        claim = fcntl.fcntl(lock.fd, fcntl.F_OFD_GETLK, _CLAIM.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(_CLAIM.unpack(claim)[0] != fcntl.F_UNLCK)
    return False


def _read_flocks(proc: Path) -> Iterator[tuple[int, int]]:
    """Yield pid and inode of each held flock(2), as far as the table can be read in time."""
    # Each read walks the locks of all users from the start: 300,000 locks take a minute.
    with suppress(OSError):
        for line in read_table(proc / "locks"):
            match = _FLOCK.match(line)
            if match is not None:
                yield int(match[1]), int(match[2])


def holders(status: os.stat_result, proc: Path = PROC) -> list[int]:
    """Return root's processes with a lock on a file, as far as the table of all locks is read in time."""
    pids: list[int] = []
    for pid, inode in _read_flocks(proc):
        if inode == status.st_ino and is_roots(pid, proc) and _holds(pid, status, proc):
            pids.append(pid)
    return pids


def _holds(pid: int, status: os.stat_result, proc: Path, *, inherited: bool = False) -> bool:
    """Tell whether a process has locked a file, from the kernel's list of the process's open files.

    With ``inherited`` an inherited descriptor of another process's lock counts, too.
    """
    with suppress(OSError), os.scandir(proc / f"{pid}/fdinfo") as entries:
        for entry in islice(entries, ENOUGH_FILES):  # another process may have millions of files
            with suppress(OSError):  # the file was closed meanwhile
                flocks = _FLOCK.findall(read_proc(Path(entry.path)))
                takers = [taker for taker, inode in flocks if inode == str(status.st_ino)]
                locked = bool(takers) if inherited else str(pid) in takers
                # Inode numbers repeat between file systems, and some file systems report another device.
                if locked and os.path.samestat((proc / f"{pid}/fd" / entry.name).stat(), status):
                    return True
    return False


def is_pidfile_locked(here: Path, proc: Path = PROC) -> bool:
    """Tell whether ``here`` is root's pidfile, locked by the process of root's with the pid in the file."""
    return _find_holder(here, proc) is not None


def _find_holder(here: Path, proc: Path) -> int | None:
    """Return the pid of a pidfile's holder, 0 if unknown; None without a holder of root's."""
    try:
        with opened(here, LOOK) as fd:
            file = os.fstat(fd)
            content = os.pread(fd, MAX_PID_BYTES, 0)
            pid = content.strip(b"\0 \n").decode("latin-1")
    except PermissionError:  # this user may not read the file
        with suppress(OSError):  # nor look into its directory
            inode = here.stat().st_ino
            return 0 if any(inode == each for _, each in _read_flocks(proc)) else None
        return 0
    except OSError:
        return None
    if not stat.S_ISREG(file.st_mode) or file.st_uid not in trusted_uids():
        return None
    if not (proc / "locks").exists():
        return 0  # without the table of locks it counts as held
    if not pid:  # a starting process has not written its pid yet
        return next(iter(holders(file, proc)), None)
    try:
        return next((each for each in _list_called(pid, proc) if _holds(each, file, proc)), None)
    except UnfinishedError:
        return 0  # one of the others may hold it


def _list_called(pid: str, proc: Path) -> Iterator[int]:
    """Yield root's processes with this pid in any of their namespaces; first the process in our namespace.

    Raises:
        UnfinishedError: the look at all processes takes longer than ``processes.LOOK_S``.
    """
    if not (pid.isascii() and pid.isdigit()):
        return
    if is_roots(int(pid), proc):
        yield int(pid)
    for process in list_in_time(proc):
        candidate = int(process.name)
        with suppress(OSError):  # the process has ended
            if pid in status_field("NSpid:", candidate, proc) and is_roots(candidate, proc):
                yield candidate


def holder_of(here: Path) -> int | None:
    """Return the pid, in our own pid namespace, of the ``run`` with the lock of the pidfile at ``here``."""
    return _find_holder(here, PROC) or None


def send(here: Path, number: signal.Signals) -> int | None:
    """Signal the holder of a pidfile's lock; return the pid of the holder, None without a holder."""

    def prove() -> None:
        if holder_of(here) != pid:
            raise ProcessLookupError

    with suppress(ProcessLookupError):
        if (pid := _find_holder(here, PROC)) == 0:
            problem = f"find the process that holds {here}"
            raise InstallerError(problem, remedy="run as root", code="file-operation-failed")
        if pid is not None:
            send_signal(pid, number, prove)
            return pid
    return None
