"""Others on the host, without root's rights, who hold locks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
LOCKER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
os.setresuid(*[int(sys.argv[2])] * 3)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


@contextmanager
def locking(path: Path, uid: int) -> Iterator[None]:
    """Let a process of ``uid`` hold a lock on what it may read, as 0.1.0 did, and as anybody can."""
    command = [sys.executable, "-I", "-S", "-c", LOCKER, str(path), str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            locker.kill()
