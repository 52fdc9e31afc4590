"""Unix sockets at paths of any length (a call takes 107 bytes of one, unix(7)), and who holds a socket."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LONGEST: Final = 107


def held_by(process: Path) -> frozenset[str]:
    """Return what a process, a directory of /proc, holds open, as "socket:[7]"; one may close meanwhile."""
    held = set()
    with suppress(OSError):
        for each in (process / "fd").iterdir():
            with suppress(OSError):
                held.add(each.readlink().name)
    return frozenset(held)


@contextmanager
def connectable(path: Path) -> Iterator[str]:
    """Give ``path`` for the block in words that connect(2) takes: by its open directory where it is too long.

    Raises:
        OSError: there is no such directory.
    """
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
