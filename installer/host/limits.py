"""How much memory this process may use before the kernel ends it."""

from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

PROC: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
# By version of cgroups (cgroups(7)): below which directory, and in which file.
_FILES: Final = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}


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
