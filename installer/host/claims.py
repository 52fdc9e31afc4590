"""Who waits for a lock tells its holder so, by another lock on the same file.

It is one of an open file description (fcntl(2), F_OFD_SETLK), which an flock(2) does not collide with: it
needs no file of its own, ends with its process, and is seen from every pid namespace. Root alone opens
the file.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

from installer.host.files import Host
from installer.host.locks import LOCK, Lock

_LOCK: Final = struct.Struct("hhqqi0q")  # struct flock: type, whence, start, length (0: all), pid
_READS, _WRITES, _FREE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


@contextmanager
def claimed(host: Host, directory: PurePosixPath) -> Iterator[None]:
    """Tell whoever holds the lock of ``directory``, during the block, that somebody waits for it."""
    fd = None
    with suppress(OSError):  # it has gone; or a file system without such locks: then nobody is told
        local = host.local_path(directory, last=False) / LOCK
        fd = os.open(local, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(_READS, os.SEEK_SET, 0, 0, 0))
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def is_claimed(lock: Lock) -> bool:
    """Tell whether somebody waits for a lock that we hold."""
    try:
        told = fcntl.fcntl(lock.fd, fcntl.F_OFD_GETLK, _LOCK.pack(_WRITES, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return bool(_LOCK.unpack(told)[0] != _FREE)
