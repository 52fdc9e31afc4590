"""What programs hold, told by their sha256: large ones are hashed while something else goes on."""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer.host.files import Host
from installer.host.glance import mark
from installer.host.threads import beside

SECOND_NS: Final = 10**9
TICK_NS: Final = 20 * 10**6  # two of the kernel's slowest ticks: changes within one have the same time
LARGE_BYTES: Final = 1 << 20  # what is smaller is hashed sooner than looked up
VERSION: Final = "/version"  # behind the mark of a program whose version is known


class Known:
    """The digests of large files that were hashed before, by the mark of each: what has it is unchanged.

    ``sources`` and ``installed`` are those of the files that were asked for since.
    """

    def __init__(self, before: Mapping[str, str]) -> None:
        self.before = before
        self.sources: dict[str, str] = {}
        self.installed: dict[str, str] = {}

    def digest_of(self, path: str, into: dict[str, str]) -> str:
        """Return the sha256 of a regular file as ``digest_of`` does, hashed only if it is not known."""
        found = settled_mark(path)
        digest = self.before.get(found) or digest_of(path)
        if found and digest:
            into[found] = digest
        return digest

    def version_of(self, program: str) -> str:
        """Return the version that a large program of the source has said; "" where that is not known.

        Its words depend on what it holds alone.
        """
        return self.told(program, self.before.get(settled_mark(program) + VERSION, ""))

    def told(self, program: str, version: str) -> str:
        """Keep the ``version`` that a program of the source says, if it says one and is large; return it."""
        if version and (found := settled_mark(program)):
            self.sources[found + VERSION] = version
        return version

    def is_long(self, path: str) -> bool:
        """Tell whether ``digest_of`` is going to read a large file."""
        try:
            size_bytes = os.lstat(path).st_size
        except OSError:
            return False
        return size_bytes >= LARGE_BYTES and settled_mark(path) not in self.before


def settled_mark(path: str, *, wait: bool = False) -> str:
    """Return the mark of a large file that each later change replaces; "" for what has none, or not yet.

    To ``wait`` for it takes a tick of the clock.

    Without its device, whose number is another one each time that an image is mounted. One whose time is in
    whole seconds has none: the next image may have the same (SOURCE_DATE_EPOCH).
    """
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    large = stat.S_ISREG(status.st_mode) and status.st_size >= LARGE_BYTES
    if not large or not status.st_ctime_ns % SECOND_NS:
        return ""
    if status.st_ctime_ns + TICK_NS > time.time_ns():
        if not wait:
            return ""
        time.sleep(TICK_NS / SECOND_NS)
    return mark(path).partition(":")[2]


@contextmanager
def digests_below(
    host: Host, path: PurePosixPath | None, known: Known | None = None
) -> Iterator[Callable[[], dict[PurePosixPath, str]]]:
    """Hash the regular files below ``path``, if one is given, while the block goes on.

    What is yielded returns their sha256 in hex, "" for one that cannot be read. ``known`` ones are not read.
    """
    if path is None:
        yield dict
        return
    local, known = str(host.local_path(path)), known or Known({})
    files = [os.path.join(place, name) for place, _, names in os.walk(local) for name in names]  # noqa: PTH118
    digest = partial(known.digest_of, into=known.installed)
    with beside() as begun:
        hashed = {
            PurePosixPath(file[len(local) + 1 :]): begun(partial(digest, file), long=known.is_long(file))
            for file in files
        }
        yield lambda: {name: done() for name, done in hashed.items()}


def digest_of(path: str, directory: int | None = None) -> str:
    """Return the sha256 of the regular file at ``path``, which may be below an open directory; else ""."""
    try:
        # Not what a link leads to, and no wait for the other end of a FIFO.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()
