"""What programs hold, told by their sha256: hashed in threads while something else goes on."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from installer.host.files import Host


@contextmanager
def digests_below(host: Host, path: PurePosixPath | None) -> Iterator[Callable[[], dict[PurePosixPath, str]]]:
    """Hash the regular files below ``path``, if one is given, while the block goes on.

    What is yielded returns their sha256 in hex, "" for one that cannot be read.
    """
    if path is None:
        yield dict
        return
    from concurrent.futures import ThreadPoolExecutor

    from installer.host.threads import begun

    local = host.local_path(path)
    files = [Path(place, name) for place, _, names in os.walk(local) for name in names]
    with ThreadPoolExecutor() as pool:
        hashed = {
            PurePosixPath(file.relative_to(local)): begun(pool, partial(digest_of, str(file)))
            for file in files
        }
        yield lambda: {name: digest() for name, digest in hashed.items()}


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
