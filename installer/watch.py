"""What is watched while ``run`` waits: the fingerprint of places, and locks, which may lose their names.

The standard library alone: ``supervisor`` compares it every other second, and a check says what to compare.
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
# Before a path: one that is to be there; and one that is to stay mounted as it is, with room in it.
THERE, KEPT = "!", "="
FEW = 16  # inodes: with 6 no container starts
LITTLE = 256 << 10  # bytes: with 32 KiB no container starts, with 64 KiB one with a small config does


class HeldLock:
    """A lock that counts as long as its file has its name."""

    def __init__(self, path: str, fd: int, flags: int) -> None:
        self.path, self.fd, self._flags = path, fd, flags
        os.set_inheritable(fd, False)

    def renew(self) -> bool | None:
        """Take it anew where its name was lost, or leads to another file; tell whether that was done.

        None where another process has the lock that has the name now.
        """
        if has_name(self.fd, self.path):
            return False
        with suppress(OSError):  # its directory is gone, something else stands there, or no more locks
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
    """Return a number, as text, that is another one as soon as one of ``places`` is not as it was.

    A place is a path, with / at its end all in a directory, with * all whose names begin so, behind ``THERE``
    one that is to be there, whatever it is, and behind ``KEPT`` a file system that may get read-only or full.
    """
    # Of numbers alone: the same in each process.
    return str(hash(tuple(number for place in places for number in _look_at(place))))


def _look_at(place: str) -> list[int]:
    if place[0] == KEPT:
        with suppress(OSError):
            space = os.statvfs(place[1:])
            return [space.f_flag, lacks_room(space)]
        return []
    if PROC in place or place[0] == THERE:  # of the host, perhaps mounted; its times are those of a look
        return [] if _stat(place.removeprefix(THERE)) else [-1]  # one that runs is as expected
    directory, _, start = place.rstrip("*").rpartition("/")
    if place[-1] == "*":  # a device's times are those of its use
        names = [name for name in _names(directory or "/") if name.startswith(start)]
        return [number for name in names[:MANY] for number in _stat(f"{directory}/{name}")[:3]]
    if place[-1] != "/":
        return _stat(place)
    # What begins with a dot is a text that some program, perhaps ours, is about to rename.
    names = [name for name in _names(place) if name[0] != "."]
    found = _stat(directory)[:3] if len(names) <= MANY else _stat(directory)
    return found + [number for name in names[:MANY] for number in _stat(place + name)]


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def lacks_room(space: os.statvfs_result) -> bool:
    """Tell whether a file system has no room for a container of root's; without a limit it has."""
    little = space.f_blocks and space.f_bfree * space.f_frsize < LITTLE
    return bool(little or (space.f_files and space.f_ffree < FEW))


def _stat(path: str) -> list[int]:
    try:
        found = [os.lstat(path)]
        if S_ISLNK(found[0].st_mode):
            found.append(os.stat(path))
    except (OSError, ValueError):
        return []
    fields = ((at.st_dev, at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for at in found)
    return [number for each in fields for number in each]
