"""What the kernel tells in /proc, as text, whatever bytes other people's names hold; and whom we trust."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def trusted_uids() -> frozenset[int]:
    """Return whose files and processes are believed: root's, and our own where we are not root (in tests)."""
    return frozenset({0, os.geteuid()})


def is_roots(pid: int, proc: Path) -> bool:
    """Tell whether a process is root's, by all four of its uids.

    Not by the owner of /proc/PID: that is root for whoever forbids to be traced. Nor by the effective uid
    alone: anybody can start a setuid program with his lock in it, and stop that for ever.
    """
    try:
        uids = status_field("Uid:", pid, proc)
    except OSError:
        return False
    return len(uids) == 4 and set(uids) <= {str(uid) for uid in trusted_uids()}  # noqa: PLR2004 - proc(5)


def status_field(name: str, pid: int, proc: Path) -> list[str]:
    """Return the words of a line of /proc/PID/status; none where it has no such line."""
    lines = text_of(proc / f"{pid}/status").split("\n")
    return next((line.split()[1:] for line in lines if line.startswith(name)), [])


def text_of(here: Path) -> str:
    """Return a file of /proc as text that gives the same bytes again by os.fsencode."""
    return os.fsdecode(here.read_bytes())


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


def open_files(process: Path) -> list[str]:
    """Return what a process, a directory of /proc, has open, as its links say; none where we may not look."""
    found = []
    with suppress(OSError):
        for fd in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.append(os.readlink(fd))  # noqa: PTH115 - the text counts
    return found


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
    return [(_unescape(each[4]), _unescape(each[3])) for each in fields if len(each) > 5]  # noqa: PLR2004


def _unescape(word: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), word))


def boot_id() -> str:
    """Return the id of this boot (random(4)); it changes with each one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine() -> str:
    """Return the node's architecture as uname(2) names it."""
    return os.uname().machine
