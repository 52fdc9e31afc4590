"""Root's processes on the host, and the programs that they run; nobody else's are looked at."""

import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass
from installer.host.files import Host
from installer.host.glance import is_roots
from installer.host.kernel import pids, text_of, trusted_uids

PROC: Final = PurePosixPath("/proc")
LOOK_S: Final = 2.0  # at all processes together; a node may run ten thousands
READ_BYTES: Final = 64 << 20
CONFIG_BYTES: Final = 16 << 20
DELETED: Final = " (deleted)"
INOTIFY: Final = "anon_inode:inotify"


@dataclass(frozen=True, slots=True)
class Seen:
    """One process; ``file`` tells one program from another, also where both had the same path.

    ``program`` is "" where nobody may look at it: a container needs CAP_SYS_PTRACE for that.
    ``of_host`` tells that it sees the host's files as init does, and that its program is one that root alone
    can have written: only such a program may be started.
    """

    pid: int
    name: str
    program: str
    deleted: bool
    cmdline: tuple[str, ...]
    file: tuple[int, int]
    of_host: bool


def sees_host(host: Host) -> bool:
    """Tell whether the host's processes are in view: its first one, or the kernel's own."""
    directory = host.local_path(PROC)
    with suppress(OSError):
        if text_of(directory / "2/comm") == "kthreadd\n":
            return True
    with suppress(OSError):
        return text_of(directory / "1/comm") in {"systemd\n", "init\n"}
    return False


def of_root(host: Host, *, unread: bool = False) -> Iterator[Seen]:
    """Yield root's processes, kernel threads left out.

    ``unread`` has those come as well whose program nobody may look at.
    """
    proc = host.local_path(PROC)
    init = _namespace(proc / "1")
    for directory in _roots(proc):
        pid = int(directory.name)
        try:
            name = text_of(directory / "comm").removesuffix("\n")
            cmdline = tuple(text_of(directory / "cmdline").split("\0")[:-1])
        except OSError:  # it ended
            continue
        try:
            program = os.readlink(directory / "exe")  # noqa: PTH115 - the text counts, "(deleted)" and all
        except PermissionError:
            if unread and cmdline:
                yield Seen(pid, name, "", deleted=False, cmdline=cmdline, file=(0, 0), of_host=False)
            continue
        except OSError:  # it ended, or is a thread of the kernel's
            continue
        file, safe = _program(directory / "exe")
        of_host = safe and init != "" and _namespace(directory) == init
        yield Seen(
            pid, name, program.removesuffix(DELETED), program.endswith(DELETED), cmdline, file, of_host
        )


def holds(host: Host, pid: int, mark: bytes) -> bool:
    """Tell whether the program of a process has ``mark`` in it; only its first 64 MB are looked at."""
    try:
        with (host.local_path(PROC) / str(pid) / "exe").open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, READ_BYTES)
            if not size:
                return False
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
                return content.find(mark) >= 0
    except (OSError, ValueError):
        return False


def directory_of(process: Path) -> PurePosixPath:
    """Return the working directory of a process, a directory of /proc; the root where nobody may look."""
    try:
        return PurePosixPath(os.readlink(process / "cwd"))  # noqa: PTH115 - the text counts
    except OSError:
        return PurePosixPath("/")


def read_open(process: Path, number: int) -> bytes | None:
    """Return what is in a plain file that a process holds open; None of a pipe, which can be read once."""
    path = process / "fd" / str(number)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(CONFIG_BYTES)
    except OSError:
        return None


def inotify_instances(host: Host) -> int:
    """Return how many inotify instances root's processes hold: their limit is one for all of them."""
    return sum(_instances(directory) for directory in _roots(host.local_path(PROC)))


def _instances(directory: Path) -> int:
    try:
        links = [entry.path for entry in os.scandir(directory / "fd")]
        return sum(os.readlink(link) == INOTIFY for link in links)  # noqa: PTH115 - the text counts
    except OSError:
        return 0


def _roots(proc: Path) -> Iterator[Path]:
    deadline = time.monotonic() + LOOK_S
    for pid in pids(proc):
        if time.monotonic() > deadline:
            return
        if is_roots(pid, str(proc)):
            yield proc / str(pid)


def _namespace(directory: Path) -> str:
    try:
        return os.readlink(directory / "ns/mnt")  # noqa: PTH115 - the text counts
    except OSError:
        return ""


def _program(exe: Path) -> tuple[tuple[int, int], bool]:
    try:
        status = exe.stat()
    except OSError:
        return (0, 0), False
    return (status.st_dev, status.st_ino), _by_root(status)


def root_wrote(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a program of the host is one that root alone can have written."""
    try:
        return _by_root(host.local_path(path).stat())
    except OSError:
        return False


def _by_root(status: os.stat_result) -> bool:
    mode = status.st_mode
    others = mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(mode) and bool(mode & 0o111) and not others and status.st_uid in trusted_uids()
