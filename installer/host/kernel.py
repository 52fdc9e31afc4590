"""What the kernel writes into /proc, as text, whatever bytes other people's names hold; and whom we trust."""

import os
import re
from pathlib import Path
from typing import Final

from installer.host import glance

MOUNTINFO: Final = Path("/proc/self/mountinfo")
trusted_uids: Final = glance.trusted_uids
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def text_of(path: Path) -> str:
    """Return a file of /proc as text that gives the same bytes again by os.fsencode."""
    return os.fsdecode(path.read_bytes())


def pids(proc: Path) -> list[int]:
    """Return the processes of a /proc, our own or the host's, in order; none where it shows none."""
    import psutil

    own, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(proc)
    try:
        return psutil.pids()
    except (OSError, LookupError):  # an empty one has no lowest number
        return []
    finally:
        psutil.PROCFS_PATH = own


def mounts(mountinfo: Path | None = None) -> list[tuple[str, str]]:
    """Return each mount point this process sees, and what is mounted there within its file system.

    As proc(5) has them in mountinfo: a blank, a tab, a newline and a backslash are octal numbers, every other
    byte stands as it is. Whoever may mount chooses the names, and with FUSE that is everybody.
    """
    try:
        lines = (mountinfo or MOUNTINFO).read_bytes().split(b"\n")
    except OSError:
        return []
    fields = (line.split(b" ", 5) for line in lines)
    return [(unescaped(each[4]), unescaped(each[3])) for each in fields if len(each) > 5]  # noqa: PLR2004


def unescaped(word: bytes) -> str:
    """Return a name of mountinfo as the path that it means."""
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), word))
