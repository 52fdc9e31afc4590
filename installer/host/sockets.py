"""Unix sockets at paths of any length (a call takes 107 bytes of one, unix(7)), and who holds a socket."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

LONGEST: Final = 107

LISTENS: Final = b"00010000"  # __SO_ACCEPTCON, as /proc/net/unix has it


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


def has_closed(process: str, path: str) -> bool:
    """Tell whether a process that runs, a directory below /proc, has closed its socket.

    dockerd does so as soon as it is told to stop (engine-facts.md#dockerd-stop).
    """
    ending = f"/{PurePosixPath(path).name}\n".encode()
    with suppress(OSError):  # it has ended, or nobody can tell
        with Path(f"{process}/net/unix").open("rb") as table:
            rows = [row.split(None, 7) for row in table if row.endswith(ending)]
        listening = {f"socket:[{row[6].decode()}]" for row in rows if row[3] == LISTENS}
        held = held_by(Path(process))
        return bool(process and listening and held and not listening & held)
    return False
