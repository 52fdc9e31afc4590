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
    """Let a process of ``uid`` hold a lock on what it may read, as 0.1.0 did, and as anybody can."""
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
