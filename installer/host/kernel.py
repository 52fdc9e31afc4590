"""What the kernel tells of processes, mounts, devices and limits, as text of any bytes; and whom we trust."""

import errno
import os
import re
import resource
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

OWN: Final = Path("/proc/self")
MOUNTINFO: Final = OWN / "mountinfo"
CLONE_NEWNS: Final = 0x00020000  # linux/sched.h
LABEL: Final = "security.selinux"
RECORD_BYTES: Final = 8192  # the kernel's own limit for one record
LOG_S: Final = 0.5
KEPT_LINES: Final = 50
LINE: Final = 200
ENOUGH_FILES: Final = 1024
# Every user can make processes, mounts, locks and sockets, and long texts of them in /proc.
PROC_BYTES: Final = 64 << 10
TABLE_S: Final = 2.0
OPEN_FILES: Final = 16 << 10
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def trusted_uids() -> frozenset[int]:
    """Return whose files and processes are believed: root's, and our own where we are not root (in tests)."""
    return frozenset({0, os.geteuid()})


def may_read_all(root: Path) -> bool:
    """Tell whether we are root, who may read all files of the node below ``root``, or its owner."""
    with suppress(OSError):
        return os.geteuid() in {0, root.stat().st_uid}
    return False


def is_roots(pid: int, proc: Path) -> bool:
    """Tell whether a process is root's, by all four of its uids."""
    uids = list[str]()
    with suppress(OSError):
        uids = status_field("Uid:", pid, proc)
    # The owner of /proc/PID is root for whoever forbids to be traced; and anybody can start a setuid program
    # with his lock in it, whose effective uid is root's, and stop that for ever.
    return len(uids) == 4 and set(uids) <= {str(uid) for uid in trusted_uids()}  # noqa: PLR2004 - proc(5)


def status_field(name: str, pid: int, proc: Path) -> list[str]:
    """Return the words of a line of /proc/PID/status; none where it has no such line."""
    lines = read_proc(proc / f"{pid}/status").split("\n")
    return next((line.split()[1:] for line in lines if line.startswith(name)), [])


def read_proc(here: Path) -> str:
    """Return a file of /proc as text that gives the same bytes again by os.fsencode.

    Raise OSError for more than ``PROC_BYTES``: a process can give itself a command line of gigabytes.
    """
    with here.open("rb") as file:
        content = file.read(PROC_BYTES + 1)
    if len(content) > PROC_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(here))
    return os.fsdecode(content)


def read_table(here: Path) -> Iterator[str]:
    """Yield the lines of a table of /proc as far as they can be read within ``TABLE_S``.

    A line of more than ``PROC_BYTES`` is skipped. Raise OSError if the table cannot be read.
    """
    deadline = time.monotonic() + TABLE_S
    is_start = True
    with here.open("rb", buffering=PROC_BYTES) as file:
        while time.monotonic() < deadline and (part := file.readline(PROC_BYTES)):
            is_end = part.endswith(b"\n") or len(part) < PROC_BYTES
            if is_start and is_end:
                yield os.fsdecode(part.removesuffix(b"\n"))
            is_start = is_end


def list_pids(proc: Path) -> list[int]:
    """Return the processes of a /proc, our own or the host's, in order; none where it shows none."""
    import psutil

    own, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(proc)
    try:
        return psutil.pids()
    except (OSError, LookupError):  # an empty one has no lowest number
        return []
    finally:
        psutil.PROCFS_PATH = own


def mount_namespace(process: Path) -> str:
    """Return which mount namespace a process has, a directory of /proc; "" where that may not be seen."""
    with suppress(OSError):
        return os.readlink(process / "ns/mnt")  # noqa: PTH115 - the text counts
    return ""


def find_pid_beside_us(proc: Path) -> int | None:
    """Return the uppermost of this process and its parents that has our mount namespace, as ``proc`` counts.

    None where ``proc`` does not show this process. Only parents are looked at: others may have made any
    number of processes.
    """
    own = mount_namespace(OWN)
    uppermost = None
    with suppress(OSError, LookupError, ValueError):
        pid = int((proc / "self").readlink().name)  # in the pid namespace of ``proc``, not in ours
        while own and mount_namespace(proc / str(pid)) == own:
            uppermost = pid
            pid = int(status_field("PPid:", pid, proc)[0])
    return uppermost


def enter_mount_namespace(namespace: Path) -> None:
    """Let this process see the files that another one sees; ``namespace`` is of it (/proc/PID/ns/mnt)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNS):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))


def list_open_files(process: Path) -> Iterator[str]:
    """Yield the first ``OPEN_FILES`` files that a process, a directory of /proc, has open, as its links say.

    Yield none if this process may not look.
    """
    with suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in islice(entries, OPEN_FILES):
            with suppress(OSError):  # closed meanwhile
                yield os.readlink(entry.path)  # noqa: PTH115 - the text counts


def list_mounts(mountinfo: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield each mount point this process sees, and what is mounted there within its file system."""

    def unescape(word: str) -> str:
        # A blank, a tab, a newline and a backslash are octal numbers (proc(5)), every other byte is as it is:
        # whoever may mount chooses the names, and with FUSE that is everybody.
        return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8) & 255]), os.fsencode(word)))

    with suppress(OSError):
        for line in read_table(mountinfo or MOUNTINFO):
            fields = line.split(" ", 5)
            if len(fields) > 5:  # noqa: PLR2004
                yield unescape(fields[4]), unescape(fields[3])


def boot_id() -> str:
    """Return the id of this boot (random(4)); it changes with each one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def character_devices(directory: Path, prefix: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, major, minor and SELinux label of each character device whose name begins so."""
    with suppress(OSError):
        for local in sorted(directory.glob(f"{prefix}*")):
            device, label = local.lstat(), b""
            if stat.S_ISCHR(device.st_mode):
                with suppress(OSError):  # not every file system has labels
                    label = os.getxattr(local, LABEL).rstrip(b"\0")
                text = label.decode(errors="backslashreplace")
                yield local.name, os.major(device.st_rdev), os.minor(device.st_rdev), text


def kernel_log(here: Path, words: Collection[str]) -> tuple[str, ...]:
    """Return the last lines of the kernel's log that hold one of ``words``; none where it may not be read."""
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    deadline = time.monotonic() + LOG_S
    with suppress(OSError), os.fdopen(os.open(here, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as log:
        while time.monotonic() < deadline:  # the kernel may be talking
            with suppress(BrokenPipeError):  # overwritten meanwhile: the next one is there
                if not (record := log.read(RECORD_BYTES)):  # None: that was the last one
                    break
                for line in record.decode(errors="backslashreplace").splitlines():
                    text = (line.partition(";")[2] or line)[:LINE]
                    if any(word in text for word in words):
                        lines.append("".join(each if each.isprintable() else "?" for each in text))
    return tuple(lines)


def allow_files() -> None:
    """Let this process have as many files open as an install and its undo need, where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        most = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
