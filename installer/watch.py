"""Watch places and locks while ``run`` waits: the fingerprint of places, and locks that may lose their names.

This module imports the standard library alone. ``supervisor`` compares the fingerprint every other second,
and a check names the places.
"""

import os
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from stat import S_ISLNK

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Sequence

MANY = 512  # names in one directory
PROC = "/proc/"
# Prefixes of a path.
THERE = "!"  # the path must exist
KEPT = "="  # the path's file system must stay mounted as it is, with room in it
FEW = 16  # inodes: with 6 no container starts
LITTLE = 256 << 10  # bytes: with 32 KiB no container starts, with 64 KiB a container with a small config does


class HeldLock:
    """A lock on a file, valid as long as the file has its name."""

    def __init__(self, path: str, fd: int, flags: int) -> None:
        self.path = path
        self.fd = fd
        self._flags = flags
        os.set_inheritable(fd, False)

    def renew(self) -> bool | None:
        """Lock the file anew if its name was removed, or leads to another file.

        Returns:
            Whether the file was locked anew; None if another process has locked the file of that name.
        """
        if has_name(self.fd, self.path):
            return False
        with suppress(OSError):  # the directory is gone, the name is no usual file, or no lock is left
            fd = os.open(self.path, self._flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and not os.fstat(fd).st_mode & 0o077:
                    flock(fd, LOCK_EX | LOCK_NB)
                    return bool(os.dup2(fd, self.fd, inheritable=False))
            except BlockingIOError:
                return None
            finally:
                os.close(fd)
        return False


def has_name(fd: int, path: "str | os.PathLike[str]") -> bool:
    """Tell whether an open inode still has its name."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    return False


def fingerprint(places: "Sequence[str]") -> str:
    """Return a number, as text, that changes when one of ``places`` changes.

    A place is a path. A final / stands for all files of a directory, a final * for all names with this
    beginning. The prefix ``THERE`` is for a path whose existence alone counts, ``KEPT`` for a file system
    that may become read-only or full.
    """
    numbers: list[int] = []
    for place in places:
        numbers += _look_at(place)
    # The hash of numbers is the same in each process.
    return str(hash(tuple(numbers)))


def _look_at(place: str) -> list[int]:
    """Return numbers that change when a place changes."""
    if place[0] == KEPT:
        return _look_at_file_system(place[1:])
    if PROC in place or place[0] == THERE:
        # A file of the host's /proc, perhaps mounted elsewhere, has the time of the look: only its existence
        # counts. An existing file gives no number.
        return [] if _stat(place.removeprefix(THERE)) else [-1]
    if place[-1] == "*":
        return _look_at_names(place.rstrip("*"))
    if place[-1] == "/":
        return _look_at_directory(place)
    return _stat(place)


def _look_at_file_system(path: str) -> list[int]:
    """Return numbers that change when a file system becomes read-only, full, or is remounted."""
    with suppress(OSError):
        space = os.statvfs(path)
        return [space.f_flag, lacks_room(space)]
    return []


def _look_at_names(beginning: str) -> list[int]:
    """Return numbers that change with the files of paths with this beginning."""
    directory, _, start = beginning.rpartition("/")
    names = [name for name in _names(directory or "/") if name.startswith(start)]
    numbers: list[int] = []
    for name in names[:MANY]:
        numbers += _stat(f"{directory}/{name}")[
            :3
        ]  # without the times: a device's times are those of its use
    return numbers


def _look_at_directory(place: str) -> list[int]:
    """Return numbers that change with the files of a directory; ``place`` ends with a slash."""
    # A name with a leading dot is a text that some program, perhaps ours, is about to rename.
    names = [name for name in _names(place) if name[0] != "."]
    directory, _, _ = place.rpartition("/")
    numbers = _stat(directory)
    if len(names) <= MANY:
        numbers = numbers[:3]
    for name in names[:MANY]:
        numbers += _stat(place + name)
    return numbers


def _names(directory: str) -> list[str]:
    """Return the sorted names in a directory; none for a directory that cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def lacks_room(space: os.statvfs_result) -> bool:
    """Tell whether a file system has no room for a container of root; a size of 0 means no limit."""
    if space.f_blocks and space.f_bfree * space.f_frsize < LITTLE:
        return True
    return bool(space.f_files and space.f_ffree < FEW)


def _stat(path: str) -> list[int]:
    """Return the numbers of a file, and of a link's target; none for a file that cannot be looked at."""
    try:
        status = os.lstat(path)
        numbers = _list_numbers(status)
        if S_ISLNK(status.st_mode):
            numbers += _list_numbers(os.stat(path))
    except (OSError, ValueError):
        return []
    return numbers


def _list_numbers(status: os.stat_result) -> list[int]:
    """Return the numbers that change with a file; the first three are the file's identity and kind."""
    return [
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]
