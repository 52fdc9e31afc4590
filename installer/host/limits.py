"""What bounds this process: memory and open files."""

import resource
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.errors import InstallerError

MEMORY: Final = Path("/proc/meminfo")
USED: Final = Path("/proc/self/statm")
PROC: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
FEWEST_FILES: Final = 64
BASE_BYTES: Final = 30 << 20  # what the program itself takes, as measured with plan and install
LEAST_BYTES: Final = 64 << 20  # 34 MB did not suffice to load an install, 41 MB not always
ENOUGH_FILES: Final = 1024


def refuse_few_files() -> None:
    """Let this process have as many files open as an install and its undo need, also half way down a tree.

    Raises:
        InstallerError: that is more than it may have.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < FEWEST_FILES:
        raise InstallerError(
            f"start (this process may have no more than {hard} files open)",
            remedy=f"allow {ENOUGH_FILES}: ulimit -n, or LimitNOFILE= of the unit",
            code="open-files-limit",
        )
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        most = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def refuse_little_memory() -> None:
    """Refuse, before anything is loaded or made, where ``ulimit -v`` leaves no room for that.

    Raises:
        InstallerError: this process may have less address space than an install takes.
    """
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and space < LEAST_BYTES:
        raise InstallerError(
            f"start (this process may use no more than {space >> 20} MiB of memory)",
            remedy=f"allow {LEAST_BYTES >> 20} MiB or more: ulimit -v, or LimitAS= of the unit",
            code="no-memory",
        )


def find_free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return by how much this process may grow in bytes: within the node, its address space, and its cgroups.

    Within a container's own view of cgroups the path is that of the host, or starts at the container's.
    """
    node = dict(line.split()[:2] for line in MEMORY.read_text().splitlines())
    free, space = [int(node["MemAvailable:"]) << 10], resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        free.append(space - int(USED.read_text().split()[0]) * resource.getpagesize())
    with suppress(OSError):
        group = PurePosixPath("/", proc.read_text(errors="replace").rpartition("::")[2].strip())
        files = [cgroups / str(each)[1:] / "memory.max" for each in (group, *group.parents)]
        for file in (*files, cgroups / "memory/memory.limit_in_bytes"):  # cgroups(7): of version 2 and 1
            with suppress(OSError, ValueError):  # "max"; or not seen from here
                free.append(int(file.read_text()) - BASE_BYTES)
    return min(free)
