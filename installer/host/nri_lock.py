"""The lock of the NRI plugin gets its name back: without, another plugin would start and ``status`` see none.

By the kernel's calls alone: what locks the rest of this program would make the plugin a fifth larger.
"""

import fcntl
import os
import stat
from contextlib import suppress

from installer.decide.errors import LockedError
from installer.host.glance import MAX_PID_BYTES, trusted_uids

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NamedLock:
    """The pidfile at ``path`` that this process has locked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | _FLAGS)  # as long as it is open, no other has its inode

    def renewed(self) -> bool:
        """Make it anew where somebody has removed it; tell whether that was so, and is done.

        Raises:
            LockedError: another process has taken its place.
        """
        if self._fd is not None and self._has_name(self._fd):
            return False
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        except OSError:  # its directory is gone, or somebody has put something else there: at the next look
            return False
        try:
            if not _is_pidfile(fd):
                os.close(fd)
                return False
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(fd, 0o600)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            os.close(fd)
            raise LockedError(
                f"go on (another instance holds {self._path} by now)",
                remedy="remove no pidfile of a plugin that runs",
            ) from error
        if self._fd is not None:
            os.close(self._fd)
        self._fd = fd
        return True

    def _has_name(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._path))
        except OSError:
            return False


def _is_pidfile(fd: int) -> bool:
    status = os.fstat(fd)
    said = os.pread(fd, MAX_PID_BYTES + 1, 0).strip(b"\0 \n")
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_nlink <= 1
        and status.st_uid in trusted_uids()
        and (not said or (said.isdigit() and len(said) <= MAX_PID_BYTES))
    )
