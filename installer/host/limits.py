"""What bounds this process: memory and open files; and threads, as far as those allow them."""

import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

from installer.errors import InstallerError

if TYPE_CHECKING:
    from threading import Thread

PROC: Final = Path("/proc/self/cgroup")
CGROUPS: Final = Path("/sys/fs/cgroup")
FEWEST_FILES: Final = 64
LEAST_BYTES: Final = 64 << 20  # 34 MB did not suffice to load an install, 41 MB not always
ENOUGH_FILES: Final = 1024
# By version of cgroups (cgroups(7)): below which directory, and in which file.
_FILES: Final = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}
S = TypeVar("S")
T = TypeVar("T")


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


def do_each(function: Callable[[S], T], items: Iterable[S], *, at_once: int = 8) -> list[T]:
    """Return what ``function`` makes of each item, in their order; raise the first error when all is done."""
    from threading import Thread

    numbered = [*enumerate(items)]
    rest, results, errors = iter(numbered), dict[int, T](), list[Exception]()

    def work() -> None:
        for number, item in rest:  # which each thread takes the next one from
            try:
                results[number] = function(item)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)

    threads = [Thread(target=work) for _ in range(min(at_once, len(numbered)) - 1)]
    started = [thread for thread in threads if _start(thread)]
    work()
    for thread in started:
        thread.join()
    for error in errors:
        raise error
    return [results[number] for number, _ in numbered]


def _start(thread: "Thread") -> bool:
    """Start a thread; tell whether one could be had.

    None is started where memory has an end for this process alone: who starts one waits for its first word,
    for ever where it dies for want of memory before that; and one that cannot load what it needs for its end
    (glibc: libgcc_s) takes the whole process with it.
    """
    limits = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        return False
    try:
        thread.start()
    except RuntimeError:  # the cgroup or the node has no room for another
        return False
    return True
