"""Watch places and locks while ``run`` waits: the fingerprint of places, and locks that may lose their names.

This module imports the standard library alone. A check names the places in a ``Watch``, and ``supervisor``
compares their fingerprint every other second to know when the ``NextCheck`` begins.
"""

import os
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from stat import S_ISLNK

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded to wait
    from collections.abc import Sequence
    from typing import TypeAlias

    Place: TypeAlias = tuple[str, str]  # a kind and a path

MANY = 512  # names in a directory
PROC = "/proc/"
# Kinds of watched places.
PATH = "path"  # a file, a directory or a link
DIRECTORY = "directory"  # all files of a directory
NAMES = "names"  # all files with paths of this beginning
EXISTENCE = "existence"  # a path that must exist
FILE_SYSTEM = "file system"  # a path whose file system must stay mounted as it is, with room in it
# Verbs of sidecars.
METRICS = "metrics"  # it runs from the beginning of ``run``
NRI = "nri"
SIDECARS = f"{METRICS} {NRI}"
COMPARE_S = 2.0  # between two looks at the node
QUIET_S = 1.0  # without a further change before a check begins
UNQUIET_S = 10.0  # of changes, after which a check begins all the same
CHECK_S = 120.0  # the longest time between two checks
FEW = 16  # inodes: with 6 no container starts
LITTLE = 256 << 10  # bytes: with 32 KiB no container starts, with 64 KiB a container with a small config does


class HeldLock:
    """A lock on a file, valid as long as the file keeps its name."""

    def __init__(self, path: str, fd: int, flags: int) -> None:
        self.path = path
        self.fd = fd
        self._flags = flags
        os.set_inheritable(fd, False)

    def renew(self) -> bool | None:
        """Lock the file anew if the name was removed, or leads to another file.

        Returns:
            Whether the file was locked anew; None if another process has locked the file of the same name.
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
    """Tell whether an open inode still has the name ``path``."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    return False


class Watch:
    """The places for ``run`` to watch until the next check; a check sends the watch to the supervisor."""

    def __init__(
        self,
        places: "Sequence[Place]" = (),
        *,
        baseline: str = "",
        due_s: float = 0.0,
        rest_s: float = 0.0,
        sidecars: str = SIDECARS,
    ) -> None:
        """Describe the wait.

        Args:
            places: The watched places.
            baseline: The fingerprint of the places on an unchanged node.
            due_s: The seconds until the next check if nothing changes; 0 for the usual time.
            rest_s: The seconds in which a change starts no check.
            sidecars: The verbs of the sidecars that run during the wait.
        """
        self.places = tuple(places)
        self.baseline = baseline
        self.due_s = due_s
        self.rest_s = rest_s
        self.sidecars = sidecars

    def encode(self) -> bytes:
        """Return the message for the supervisor."""
        fields = [self.baseline, str(self.due_s), str(self.rest_s), self.sidecars]
        for kind, path in self.places:
            fields += [kind, path]
        return os.fsencode("\0".join(fields))

    @classmethod
    def decode(cls, message: bytes) -> "Watch":
        """Return the content of a message."""
        baseline, due_s, rest_s, sidecars, *words = os.fsdecode(message).split("\0")
        places = list(zip(words[::2], words[1::2], strict=True))
        return cls(places, baseline=baseline, due_s=float(due_s), rest_s=float(rest_s), sidecars=sidecars)


class NextCheck:
    """When the next check begins: at a certain time, or earlier after a change of the node.

    A changed node is checked as soon as nothing has changed for ``QUIET_S``, or after ``UNQUIET_S``. A node
    that has changed back is not checked. Times are those of ``time.monotonic``.
    """

    def __init__(self, watch: Watch, now: float) -> None:
        self.due = now + min(watch.due_s or CHECK_S, CHECK_S)  # when it begins without a change
        self._rest_until = now + watch.rest_s  # before that time no change starts a check
        self._places = watch.places
        self._baseline = watch.baseline
        self._last_seen = ""  # the fingerprint at the last look
        self._changed_at = 0.0  # when a look last found another fingerprint
        self._retry_s = 0.0  # the pause after the last failed check
        self._differs_since = 0.0  # when the node began to differ from the baseline; 0 while it does not

    def pause_s(self, now: float) -> float:
        """Return the seconds until the next look at the node."""
        pause_s = QUIET_S if self._differs_since else COMPARE_S
        return min(pause_s, self.due - now)

    def has_come(self, now: float) -> bool:
        """Look at the node; tell whether the check begins now."""
        current = fingerprint(self._places)
        if current != self._last_seen:
            self._last_seen = current
            self._changed_at = now
        if current == self._baseline:
            self._differs_since = 0.0
        elif not self._differs_since:
            self._differs_since = now
        if now >= self.due:
            return True
        if not self._differs_since or now < self._rest_until:
            return False
        return now - self._changed_at >= QUIET_S or now - self._differs_since >= UNQUIET_S

    def postpone(self, now: float) -> None:
        """Postpone the check after one that has failed, and twice as long after each further failure.

        A further change of the node starts the check earlier.
        """
        self._retry_s = min(2 * self._retry_s or QUIET_S, CHECK_S)
        self.due = now + self._retry_s
        self._baseline = self._last_seen


def fingerprint(places: "Sequence[Place]") -> str:
    """Compute a number, as text, from the state of ``places``; a change of any place changes the number."""
    numbers: list[int] = []
    for kind, path in places:
        numbers += LOOKS[kind](path)
    # The hash of numbers is the same in each process.
    return str(hash(tuple(numbers)))


def _look_at_path(path: str) -> list[int]:
    """List numbers of a file, a directory or the target of a link; they change with the file."""
    if PROC in path:
        # The files of the host's /proc, perhaps mounted elsewhere, have the time of the look.
        return _look_for(path)
    return _stat(path)


def _look_for(path: str) -> list[int]:
    """Return a number for a missing path, no number for an existing path."""
    return [] if _stat(path) else [-1]


def _look_at_file_system(path: str) -> list[int]:
    """List numbers of a file system: the mount flags, and a lack of room."""
    with suppress(OSError):
        space = os.statvfs(path)
        return [space.f_flag, lacks_room(space)]
    return []


def _look_at_names(beginning: str) -> list[int]:
    """List numbers of the files at paths with this beginning."""
    directory, _, start = beginning.rpartition("/")
    names = [name for name in _names(directory or "/") if name.startswith(start)]
    numbers: list[int] = []
    for name in names[:MANY]:
        identity = _stat(f"{directory}/{name}")[:3]  # the times of a device are the times of its use
        numbers += identity
    return numbers


def _look_at_directory(directory: str) -> list[int]:
    """List numbers of the files of a directory."""
    # A name with a leading dot is a text that some program, perhaps ours, is about to rename.
    names = [name for name in _names(directory) if name[0] != "."]
    numbers = _stat(directory)
    if len(names) <= MANY:
        numbers = numbers[:3]
    for name in names[:MANY]:
        numbers += _stat(f"{directory}/{name}")
    return numbers


def _names(directory: str) -> list[str]:
    """List the sorted names in a directory; none for an unreadable directory."""
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
    """List the numbers of a file, and of a link's target; none if the file cannot be looked at."""
    try:
        status = os.lstat(path)
        numbers = _list_numbers(status)
        if S_ISLNK(status.st_mode):
            numbers += _list_numbers(os.stat(path))
    except (OSError, ValueError):
        return []
    return numbers


def _list_numbers(status: os.stat_result) -> list[int]:
    """List the numbers of a file: the identity and kind in the first three, then size and times."""
    return [
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]


LOOKS = {
    PATH: _look_at_path,
    DIRECTORY: _look_at_directory,
    NAMES: _look_at_names,
    EXISTENCE: _look_for,
    FILE_SYSTEM: _look_at_file_system,
}
