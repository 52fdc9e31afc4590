"""Which file a path leads to, by whatever name, mount or hard link."""

import os
import stat
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from installer.host.files import Host

Identity: TypeAlias = tuple[int, int]
SCRIPT_BYTES: Final = 64 << 10


def identity(host: Host, path: PurePosixPath) -> Identity | None:
    """Return the device and inode of the file that ``path`` leads to; None where there is none."""
    with suppress(OSError):
        status = host.local_path(path).stat()
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return None


def identities_below(host: Host, directory: PurePosixPath) -> dict[Identity, PurePosixPath]:
    """Return the files below a directory; links are not followed."""
    found: dict[Identity, PurePosixPath] = {}
    waiting = [directory]
    while waiting:
        place = waiting.pop()
        with suppress(OSError), os.scandir(host.local_path(place)) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(place / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found[status.st_dev, status.st_ino] = place / entry.name
    return found


def script(host: Host, path: PurePosixPath) -> str:
    """Return the text of a script, be it cut off where it is a long one; "" for any other file."""
    with suppress(OSError), host.local_path(path).open("rb") as file:
        if file.read(2) == b"#!":
            return file.read(SCRIPT_BYTES).decode(errors="replace")
    return ""
