"""Others on the host, without root's rights, who hold locks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
LOCKER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
os.setresuid(*[int(sys.argv[2])] * 3)
fcntl.flock(fd, fcntl.LOCK_EX)
if len(sys.argv) > 3 and os.fork():
    os._exit(0)
print("locked", flush=True)
time.sleep(60)
"""


@contextmanager
def locking(path: Path, uid: int, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """Let a process of ``uid`` hold a lock on what it may read, as anybody can."""
    command = [sys.executable, "-I", "-S", "-c", LOCKER, str(path), str(uid), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        try:
            yield locker
        finally:
            os.killpg(locker.pid, signal.SIGKILL)


def orphaned(path: Path, uid: int) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Leave a lock whose taker has ended: the kernel's table names a pid that is gone."""
    return locking(path, uid, "orphan")


ENLARGED = """
import ctypes, mmap, struct, sys, time
MAP_NORESERVE = 0x4000
name, size = sys.argv[1].encode(), int(sys.argv[2])
open("/proc/self/comm", "wb").write(name)
region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
start = ctypes.addressof(ctypes.c_char.from_buffer(region))
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
fields = ["", "", "", *open("/proc/self/stat").read().rpartition(")")[2].split()]
at = [int(fields[number]) for number in (26, 27, 45, 46, 47)]
stack, environment = int(fields[28]), [int(fields[number]) for number in (50, 51)]
words = [*at, libc.sbrk(0), stack, start, start + size, *environment]
# struct prctl_mm_map (linux/prctl.h): no auxiliary vector, no other program
memory = struct.pack("=11QQII", *words, 0, 0, 0xFFFFFFFF)
if libc.prctl(35, 14, memory, len(memory), 0):
    sys.exit(f"prctl: {ctypes.get_errno()}")
print("enlarged", flush=True)
time.sleep(600)
"""


@contextmanager
def enlarged(name: str, size: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a process called ``name`` whose command line is ``size`` zero bytes, which takes no memory."""
    command = [sys.executable, "-I", "-S", "-c", ENLARGED, name, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "enlarged\n"
        try:
            yield process
        finally:
            process.kill()
