"""Who holds a pidfile, by the kernel's own table of locks: nobody takes a lock to look."""

import os
from _stat import S_ISREG
from pathlib import Path
from time import sleep

PROC = "/proc"
MAX_PID_BYTES = 64
# Opened as it stands: no link is followed, no other end of a FIFO waited for.
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
READ_BYTES = 1 << 16
# Why a process does not go on: proc(5), and where the kernel holds it, as far as it says that of a sleep.
HALTED = {
    "T": "stopped",
    "t": "traced",
    "D": "frozen by its cgroup, or waiting for a disk",
    "R": "in a loop",
}
FROZEN_IN, FROZEN = ("get_signal", "do_freezer_trap"), "frozen by its cgroup"
HALTED_LOOKS, HALTED_S = 3, 0.05  # who waits for a disk goes on in a moment
BUSY_LOOKS = 20  # who has to wait for a processor takes longer
PID_DIGITS = 10
DEVICE_DIGITS = 8
INODE_DIGITS = 20


def trusted_uids() -> frozenset[int]:
    """Return whose files and processes are believed: root's, and our own where we are not root (in tests)."""
    return frozenset({0, os.geteuid()})


def text_of(path: str) -> str:
    """Return a file of /proc as text, each byte a letter.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, READ_BYTES), b"")).decode("latin-1")
    finally:
        os.close(fd)


def is_held_pidfile(path: str, proc: str = PROC) -> bool:
    """Tell whether ``path`` is a pidfile of root's, held by the process of root's whose pid is in it.

    An inode number alone proves nothing: it is given again, and every file system counts for itself. So the
    holder must have this very file open. Where we may not look, the table of locks has to do; where there is
    none to be read, it seems held.
    """
    try:
        fd = os.open(path, OPEN)
    except PermissionError:
        return any(inode == Path(path).stat().st_ino for *_, inode in _table(proc) or ())
    except OSError:
        return False
    try:
        file, said = os.fstat(fd), os.pread(fd, MAX_PID_BYTES, 0).strip(b"\0 \n").decode("latin-1")
    finally:
        os.close(fd)
    if not S_ISREG(file.st_mode) or file.st_uid not in trusted_uids():
        return False
    if _table(proc) is None:
        return True
    inode = file.st_dev, file.st_ino
    return any(is_roots(pid, proc) and _is_called(pid, said, proc) for pid in holders(inode, proc))


def halted(path: str, proc: str = PROC) -> str:
    """Return why the holder of a pidfile does not go on; "" where it does."""
    before = None
    for look in range(BUSY_LOOKS):
        sleep(HALTED_S if look else 0)
        try:
            status = Path(path).stat()
            found = [_halt(pid, proc) for pid in holders((status.st_dev, status.st_ino), proc)]
        except OSError:
            return ""
        now = next((each for each in found if each[0]), None)
        if now is None or before not in {None, now}:
            return ""
        before = now
        if look + 1 >= HALTED_LOOKS and now[0] != HALTED["R"]:
            return now[0]
    return HALTED["R"]


def _halt(pid: int, proc: str) -> tuple[str, str]:
    """Return why a process does not go on, and how often it had waited by then."""
    (state, *_), (waits, *_) = (
        status_field(name, pid, proc) or [""] for name in ("State:", "voluntary_ctxt_switches:")
    )
    try:
        frozen = state == "S" and text_of(f"{proc}/{pid}/wchan") in FROZEN_IN
    except OSError:
        frozen = False
    return FROZEN if frozen else HALTED.get(state, ""), waits


def _is_called(pid: int, said: str, proc: str) -> bool:
    """Tell whether a process has the pid ``said`` in one of its namespaces; who begins has said none yet."""
    try:
        known = status_field("NSpid:", pid, proc)
    except OSError:  # it has ended
        return False
    return not said or said in (known or [str(pid)])


def status_field(name: str, pid: int, proc: str) -> list[str]:
    """Return the words of a line of /proc/PID/status; none where it has no such line."""
    lines = text_of(f"{proc}/{pid}/status").split("\n")
    return next((line.split()[1:] for line in lines if line.startswith(name)), [])


def flocks(proc: str = PROC) -> list[tuple[int, int, int, int]]:
    """Return pid, and major and minor device and inode of the file, of each flock(2) that is held.

    Raises:
        OSError: the table cannot be read.
    """
    found = (_flock(line.split()) for line in text_of(f"{proc}/locks").split("\n"))
    return [each for each in found if each is not None]


def _table(proc: str) -> list[tuple[int, int, int, int]] | None:
    try:
        return flocks(proc)
    except OSError:
        return None


def _flock(words: list[str]) -> tuple[int, int, int, int] | None:
    """Return what a line of /proc/locks says of an flock; None for what is not one, or only waits for one."""
    try:
        _, kind, _, _, pid, file, *_ = words
        major, minor, inode = file.split(":")
        if kind != "FLOCK" or len(file) > 2 * DEVICE_DIGITS + INODE_DIGITS + 2 or len(pid) > PID_DIGITS + 1:
            return None
        return int(pid), int(major, 16), int(minor, 16), int(inode)
    except ValueError:
        return None


def holders(file: tuple[int, int], proc: str = PROC) -> list[int]:
    """Return the processes that have a file, told by device and inode, open, and locked one of its number."""
    return [pid for pid, _, _, inode in _table(proc) or () if inode == file[1] and _has_open(file, pid, proc)]


def _has_open(file: tuple[int, int], pid: int, proc: str) -> bool:
    try:
        entries = [*Path(f"{proc}/{pid}/fd").iterdir()]
    except OSError:  # it has ended
        return False
    for entry in entries:
        try:
            status = entry.stat()
        except OSError:  # closed meanwhile
            continue
        if (status.st_dev, status.st_ino) == file:
            return True
    return False


def is_roots(pid: int, proc: str = PROC) -> bool:
    """Tell whether a process is root's, by all four of its uids.

    Not by the owner of /proc/PID: that is root for whoever forbids to be traced. Nor by the effective uid
    alone: anybody can start a setuid program with his lock in it, and stop that for ever.
    """
    try:
        uids = status_field("Uid:", pid, proc)
    except OSError:
        return False
    return len(uids) == 4 and set(uids) <= {str(uid) for uid in trusted_uids()}  # noqa: PLR2004 - proc(5)


def mark(path: str) -> str:
    """Return a text that becomes another one as soon as the file at ``path`` is changed in any way."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return str(error.errno)
    which = f"{status.st_dev}:{status.st_ino}:{status.st_mode}:{status.st_uid}"
    # The time of the last change of an inode is the kernel's: no call sets it to another (inode(7)).
    return f"{which}:{status.st_size}:{status.st_ctime_ns}"
