"""What bounds this process: memory and open files."""

import resource
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.errors import InstallerError

PROC: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
FEWEST_FILES: Final = 64
LEAST_BYTES: Final = 64 << 20  # 34 MB did not suffice to load an install, 41 MB not always
ENOUGH_FILES: Final = 1024
# By version of cgroups (cgroups(7)): below which directory, and in which file.
_FILES: Final = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}


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


def memory_limit_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the least limit of the cgroups that this process is in; None where none is seen.

    Within a container's own view of cgroups the path is that of the host, or starts at the container's.
    """
    limits: list[int] = []
    with suppress(OSError):
        for line in proc.read_text(errors="replace").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            for name in {"memory", ""} & set(controllers.split(",")):
                below, file = _FILES[name]
                group = PurePosixPath("/", path)
                for each in (group, *group.parents):
                    with suppress(OSError, ValueError):  # "max"; or not seen from here
                        limits.append(int((cgroups / below / str(each)[1:] / file).read_text()))
    return min(limits, default=None)


def free_memory_bytes() -> int:
    """Return by how much this process may grow before the node, or its own address space, is full."""
    import psutil

    free, space = psutil.virtual_memory().available, resource.getrlimit(resource.RLIMIT_AS)[0]
    if space == resource.RLIM_INFINITY:
        return free
    return min(free, space - psutil.Process().memory_info().vms)
