"""What programs hold, told by their sha256: large ones are hashed while something else goes on."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from installer.host.files import Host
from installer.host.threads import beside

SECOND_NS: Final = 10**9
TICK_NS: Final = 20 * 10**6  # two of the kernel's slowest ticks: changes within one have the same time
LARGE_BYTES: Final = 1 << 20  # what is smaller is hashed sooner than looked up
NOTES: Final = PurePosixPath(".config/digests")  # in a version of the toolkit: what was noted at its copy
SUMS: Final = "SHA256SUMS"
MOST_BYTES: Final = 1 << 20
_SUM: Final = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")


def sums_of(root: PurePosixPath) -> dict[str, str]:
    """Return the sha256 of files of a toolkit's source by their paths below ``root``, as a build has them.

    They are believed until a file is copied: its copy is hashed. A source that has none is hashed.
    """
    with suppress(OSError, ValueError), (Path(root) / SUMS).open("rb") as file:
        lines = file.read(MOST_BYTES).decode().splitlines()
        return {found[2]: found[1] for line in lines if (found := _SUM.fullmatch(line))}
    return {}


def mark_of(path: str, directory: int | None = None) -> str:
    """Return a text that each change of the large file at ``path`` changes; "" for any other.

    The time of the last change of an inode is the kernel's: no call sets it to another (inode(7)).
    """
    with suppress(OSError):
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_size >= LARGE_BYTES:
            which = f"{status.st_ino}:{status.st_mode}:{status.st_uid}"
            return f"{which}:{status.st_size}:{status.st_ctime_ns}"
    return ""


@contextmanager
def digests_below(
    host: Host, path: PurePosixPath | None, noted: Mapping[str, str]
) -> Iterator[Callable[[], dict[PurePosixPath, str]]]:
    """Hash the regular files below ``path``, if one is given, while the block goes on.

    What is yielded returns their sha256 in hex, "" for one that cannot be read. What has a mark that was
    ``noted`` is not read.
    """
    if path is None:
        yield dict
        return
    local = str(host.local_path(path))
    files = [os.path.join(place, name) for place, _, names in os.walk(local) for name in names]  # noqa: PTH118
    with beside() as begun:
        hashed = {
            PurePosixPath(file[len(local) + 1 :]): (
                partial(noted.__getitem__, mark)
                if (mark := mark_of(file)) in noted
                else begun(partial(digest_of, file), long=bool(mark))
            )
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
