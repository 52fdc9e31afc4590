"""Whether the holder of a pidfile goes on, by what the kernel tells of it: real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installer.host.locks import describe_halt
from tests.support.waiting import stop

HOLDS = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.write(1, b"x")
"""
SLEEPS = "time.sleep(100)"


@contextmanager
def holder(lock: Path, does: str) -> Iterator[int]:
    command = [sys.executable, "-I", "-S", "-c", HOLDS + does, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.read(1)
            yield child.pid
        finally:
            child.kill()


def test_one_that_was_stopped_does_not_go_on_until_it_is_told_to(tmp_path: Path) -> None:
    with holder(tmp_path / "lock", SLEEPS) as pid:
        stop(pid)
        stopped = describe_halt(tmp_path / "lock")
        os.kill(pid, signal.SIGCONT)

        assert (stopped, describe_halt(tmp_path / "lock")) == ("stopped", "")


def test_nobody_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()

    assert (describe_halt(tmp_path / "lock"), describe_halt(tmp_path / "nothing")) == ("", "")
