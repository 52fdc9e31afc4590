"""What programs hold, told by their sha256: hashed in threads while something else goes on."""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from installer.host.files import Host
from installer.host.glance import mark
from installer.host.watched import SECOND_NS, TICK_NS

LARGE_BYTES: Final = 1 << 20  # what is smaller is hashed sooner than looked up


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


def settled_mark(path: str, *, wait: bool = False) -> str:
    """Return the mark of a large file that each later change replaces; "" for what has none, or not yet.

    To ``wait`` for it takes a tick of the clock.

    Without its device, whose number is another one each time that an image is mounted.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_size < LARGE_BYTES:
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
    from concurrent.futures import ThreadPoolExecutor

    from installer.host.threads import begun

    local = host.local_path(path)
    files = [Path(place, name) for place, _, names in os.walk(local) for name in names]
    digest = partial(known.digest_of, into=known.installed) if known else digest_of
    with ThreadPoolExecutor() as pool:
        hashed = {
            PurePosixPath(file.relative_to(local)): begun(pool, partial(digest, str(file))) for file in files
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
