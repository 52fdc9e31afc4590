"""Who holds a lock, by the kernel's own table (/proc/locks)."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.files import Host
from installer.host.glance import flocks, holders, is_roots
from installer.host.processes import started_of

PROC: Final = Path("/proc")


def has_name(fd: int, local: Path) -> bool:
    """Tell whether an open inode still has its name: a lock on one that lost it keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(fd), local.lstat())
    except OSError:
        return False


def still_named(host: Host, fds: Collection[int], *paths: PurePosixPath) -> tuple[int, ...]:
    """Return those of ``fds`` that are open on what has one of the names, and close the others.

    What has lost its name may get it back, as below a mount that goes: our own lock would keep us out then.
    """
    places = [host.local_path(path, last=last) for path in paths for last in (True, False)]
    kept = tuple(fd for fd in fds if any(has_name(fd, place) for place in places))
    for fd in {*fds} - {*kept}:
        with suppress(OSError):
            os.close(fd)
    return kept


def lock_holder(path: Path, *, proc: Path = PROC) -> tuple[int, float] | None:
    """Return pid and start (as in Peer) of the process that holds an flock on ``path``.

    None if there is none, if it is in a pid namespace that we cannot see into, or if the file system gives
    its files another device number than its locks (btrfs, overlayfs).

    Raises:
        InstallerError: ``path`` or the table of locks cannot be read.
    """
    try:
        file = path.stat()
        table = flocks(str(proc))
    except OSError as error:
        raise InstallerError(
            f"look up who locks {path} ({error.strerror or error})",
            remedy="mount /proc and run as root",
            code="file-operation-failed",
        ) from error
    wanted = (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
    for pid, *locked in table:
        if tuple(locked) == wanted:
            started = started_of(pid, proc)
            return None if started is None else (pid, started)
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
    inode = file.st_dev, file.st_ino
    seen = [is_roots(pid, str(proc)) for proc in procs for pid in holders(inode, str(proc))]
    return any(seen) if seen else None
