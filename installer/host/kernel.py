"""Read processes, mounts, devices and limits from the kernel, as text of any bytes; name trusted users."""

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
RECORD_BYTES: Final = 8192  # the kernel's own limit for a record
LOG_S: Final = 0.5
KEPT_LINES: Final = 50
LINE: Final = 200
ENOUGH_FILES: Final = 1024
# Every user can create processes, mounts, locks and sockets, and by them long texts in /proc.
PROC_BYTES: Final = 64 << 10
TABLE_S: Final = 2.0
OPEN_FILES: Final = 16 << 10
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


def trusted_uids() -> frozenset[int]:
    """Return the trusted users: root, and this process's own user: in tests another user than root."""
    return frozenset({0, os.geteuid()})


def may_read_all(root: Path) -> bool:
    """Tell whether this process may read all files below ``root``: as root, or as the owner."""
    with suppress(OSError):
        return os.geteuid() in {0, root.stat().st_uid}
    return False


def is_roots(pid: int, proc: Path) -> bool:
    """Tell whether a process is root's, by all four uids."""
    uids = list[str]()
    with suppress(OSError):
        uids = status_field("Uid:", pid, proc)
    # /proc/PID belongs to root, too, for a process that forbids to be traced. And every user can start a
    # setuid program with his lock in it, whose effective uid is root's, and stop that program for ever.
    return len(uids) == 4 and set(uids) <= {str(uid) for uid in trusted_uids()}  # noqa: PLR2004 - proc(5)


def status_field(name: str, pid: int, proc: Path) -> list[str]:
    """Return the words of a line of /proc/PID/status; an empty list if the line is missing."""
    lines = read_proc(proc / f"{pid}/status").split("\n")
    return next((line.split()[1:] for line in lines if line.startswith(name)), [])


def read_proc(here: Path) -> str:
    """Return a file of /proc as text; os.fsencode gives the bytes again.

    Raises:
        OSError: the file has more than ``PROC_BYTES``: a process can give itself a command line of gigabytes.
    """
    with here.open("rb") as file:
        content = file.read(PROC_BYTES + 1)
    if len(content) > PROC_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(here))
    return os.fsdecode(content)


def read_table(here: Path) -> Iterator[str]:
    """Yield the lines of a table of /proc, as many as can be read within ``TABLE_S``.

    A line of more than ``PROC_BYTES`` is skipped.

    Raises:
        OSError: the table cannot be read.
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
    """List the sorted pids of a /proc, our own or the host's; an empty list for a /proc without processes."""
    import psutil

    own_path = psutil.PROCFS_PATH
    psutil.PROCFS_PATH = str(proc)
    try:
        return psutil.pids()
    except (OSError, LookupError):  # psutil looks for the lowest pid, which an empty /proc lacks
        return []
    finally:
        psutil.PROCFS_PATH = own_path


def mount_namespace(process: Path) -> str:
    """Return the mount namespace of a process, a directory of /proc; "" if this process may not look."""
    with suppress(OSError):
        return os.readlink(process / "ns/mnt")  # noqa: PTH115 - the text counts
    return ""


def find_pid_beside_us(proc: Path) -> int | None:
    """Return the uppermost of this process and its parents with our mount namespace, as ``proc`` counts.

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
    """Enter a mount namespace of another process, given by the file ``namespace`` (/proc/PID/ns/mnt)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNS):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))


def list_open_files(process: Path) -> Iterator[str]:
    """Yield the first ``OPEN_FILES`` open files of a process, a directory of /proc, from the links there.

    Yield none without the right to look.
    """
    with suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in islice(entries, OPEN_FILES):
            with suppress(OSError):  # the file was closed meanwhile
                yield os.readlink(entry.path)  # noqa: PTH115 - the text counts


def list_mounts(mountinfo: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield each mount point of this process, and the mounted directory within its file system."""
    with suppress(OSError):
        for line in read_table(mountinfo or MOUNTINFO):
            fields = line.split(" ", 5)
            if len(fields) > 5:  # noqa: PLR2004
                yield _unescape(fields[4]), _unescape(fields[3])


def _unescape(word: str) -> str:
    """Return a name of /proc/PID/mountinfo without its octal numbers.

    A blank, a tab, a newline and a backslash are octal numbers (proc(5)); all other bytes are unchanged.
    Every user may choose such names, because FUSE lets every user mount.
    """
    return os.fsdecode(_OCTAL.sub(_byte_of, os.fsencode(word)))


def _byte_of(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8) & 255])


def boot_id() -> str:
    """Return the id of this boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def character_devices(directory: Path, prefix: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, major, minor and SELinux label of each character device with the name ``prefix``*."""
    with suppress(OSError):
        for local in sorted(directory.glob(f"{prefix}*")):
            device = local.lstat()
            label = b""
            if stat.S_ISCHR(device.st_mode):
                with suppress(OSError):  # not every file system has labels
                    label = os.getxattr(local, LABEL).rstrip(b"\0")
                text = label.decode(errors="backslashreplace")
                yield local.name, os.major(device.st_rdev), os.minor(device.st_rdev), text


def kernel_log(here: Path, words: Collection[str]) -> tuple[str, ...]:
    """Return the last lines of the kernel's log with any of ``words``; none for an unreadable log."""
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    deadline = time.monotonic() + LOG_S
    with suppress(OSError), os.fdopen(os.open(here, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as log:
        while time.monotonic() < deadline:  # the kernel may be talking
            with suppress(BrokenPipeError):  # the record was overwritten meanwhile: read the next record
                record = log.read(RECORD_BYTES)
                if not record:  # None after the last record
                    break
                for line in record.decode(errors="backslashreplace").splitlines():
                    text = (line.partition(";")[2] or line)[:LINE]
                    if any(word in text for word in words):
                        lines.append(_printable(text))
    return tuple(lines)


def _printable(text: str) -> str:
    """Return a text with ? for each character that is not printable."""
    return "".join(character if character.isprintable() else "?" for character in text)


def allow_files() -> None:
    """Raise the limit of open files to the need of an install and its undo, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        most = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
