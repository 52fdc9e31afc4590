"""Who holds a lock, by the kernel's own table (/proc/locks)."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.kernel import text_of, trusted_uids
from installer.host.processes import started_of

PROC: Final = Path("/proc")
MAX_PID_BYTES: Final = 64
_FLOCK = re.compile(r"\d+: FLOCK +\S+ +\S+ +(-?\d{1,10}) ([0-9a-f]{1,8}):([0-9a-f]{1,8}):(\d{1,20}) ")
_NSPID = re.compile(r"^NSpid:\s+(.*)", re.MULTILINE)
_UIDS = re.compile(r"^Uid:\s+(\d{1,10})\s+(\d{1,10})\s+(\d{1,10})\s+(\d{1,10})\n", re.MULTILINE)


def lock_holder(path: Path, *, proc: Path = PROC) -> tuple[int, float] | None:
    """Return pid and start (as in Peer) of the process that holds an flock on ``path``.

    None if there is none, if it is in a pid namespace that we cannot see into, or if the file system gives
    its files another device number than its locks (btrfs, overlayfs).

    Raises:
        InstallerError: ``path`` or the table of locks cannot be read.
    """
    try:
        file = path.stat()
        table = text_of(proc / "locks")
    except OSError as error:
        raise InstallerError(
            f"look up who locks {path} ({error.strerror or error})",
            remedy="mount /proc and run as root",
            code="file-operation-failed",
        ) from error
    wanted = (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
    for pid, major, minor, inode in _FLOCK.findall(table):
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            started = started_of(int(pid), proc)
            return None if started is None else (int(pid), started)
    return None


def is_held_pidfile(path: Path, *, proc: Path = PROC) -> bool:
    """Tell whether `path` is a pidfile of root's that a process of root's holds: the one whose pid is in it.

    An inode number alone proves nothing: it is given again, and every file system counts for itself. So the
    holder must have this very file open. Where we may not look, the table of locks has to do; where there is
    none to be read, it seems held.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return any(int(inode) == path.stat().st_ino for *_, inode in _locks(proc) or ())
    except OSError:
        return False
    try:
        file, said = os.fstat(fd), os.pread(fd, MAX_PID_BYTES, 0).strip(b"\0 \n")
    finally:
        os.close(fd)
    if not stat.S_ISREG(file.st_mode) or file.st_uid not in trusted_uids():
        return False
    if _locks(proc) is None:
        return True
    return any(_is_root(pid, proc) and _is_called(pid, said, proc) for pid in _holders(file, proc))


def _is_called(pid: int, said: bytes, proc: Path) -> bool:
    """Tell whether a process has the pid ``said`` in one of its namespaces; who begins has said none yet."""
    try:
        numbers = _NSPID.search(text_of(proc / f"{pid}/status"))
    except OSError:  # it has ended
        return False
    known = numbers[1].split() if numbers else [str(pid)]
    return not said or said.decode(errors="replace") in known


def _locks(proc: Path) -> list[tuple[str, str, str, str]] | None:
    """Return pid and file of each flock; None where the table cannot be read."""
    try:
        return _FLOCK.findall(text_of(proc / "locks"))
    except OSError:
        return None


def root_holds(fd: int, procs: Sequence[Path] = (PROC,)) -> bool | None:
    """Tell whether it is a process of root's that holds a lock on an open file; None where it is not seen.

    Everybody may lock what he may read: a lock that a neighbour could take proves no second instance.
    The table names the process that took it, which must still have the file open: numbers are given again.

    Args:
        fd: an open file, which somebody holds a lock on.
        procs: where a table of processes may be: our own, and the host's where it is mounted.
    """
    file = os.fstat(fd)
    seen = [_is_root(pid, proc) for proc in procs for pid in _holders(file, proc)]
    return any(seen) if seen else None


def _holders(file: os.stat_result, proc: Path) -> Iterator[int]:
    """Yield the processes that have ``file`` open and took a lock on a file with its inode number."""
    for pid, _, _, inode in _locks(proc) or ():
        if int(inode) == file.st_ino and any(os.path.samestat(file, each) for each in _open_files(pid, proc)):
            yield int(pid)


def _open_files(pid: str, proc: Path) -> Iterable[os.stat_result]:
    try:
        for link in (proc / pid / "fd").iterdir():
            try:
                yield link.stat()
            except OSError:  # closed meanwhile
                continue
    except OSError:  # it has ended
        return


def _is_root(pid: int, proc: Path) -> bool:
    try:
        # Not the owner of /proc/PID: that is root for whoever forbids to be traced. Nor the effective uid
        # alone: anybody can start a setuid program with his lock in it, and stop that for ever.
        found = _UIDS.search(text_of(proc / f"{pid}/status"))
    except OSError:
        return False
    return found is not None and {int(uid) for uid in found.groups()} <= set(trusted_uids())
