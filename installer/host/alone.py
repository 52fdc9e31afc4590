"""One at a time, by flock(2) on a private file of ours that is there anyway: nothing is made or written."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from installer.decide.errors import LockedError
from installer.host.files import Host
from installer.host.inodes import translated


@contextmanager
def alone(host: Host, path: PurePosixPath) -> Iterator[None]:
    """Hold the lock on the file at ``path``, which only root opens; it goes with the process.

    Raises:
        LockedError: another process holds it.
        InstallerError: the file cannot be opened.
    """
    with translated("lock", path):
        fd = os.open(host.local_path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                f"start (another instance holds {path})", remedy="stop it first, or let it finish"
            ) from error
        yield
    finally:
        os.close(fd)
