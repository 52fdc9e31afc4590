"""Whether the holder of a pidfile goes on, by what the kernel tells of it: real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from installer.host.locks import halted
from tests.support.freezer import frozen
from tests.support.waiting import stop

HOLDS = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.write(1, b"x")
"""
SLEEPS = "time.sleep(100)"
LOOPS = "while True: pass"
# As a plugin that is asked without end: it computes nearly all the time, and waits for each question.
BUSY = "while True:\n    for _ in range(10000): pass\n    time.sleep(0.001)"


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


@pytest.mark.parametrize(
    ("does", "why"),
    [
        pytest.param(SLEEPS, "", id="it waits"),
        pytest.param(BUSY, "", id="it is busy"),
        pytest.param(LOOPS, "in a loop", id="it waits for nothing"),
    ],
)
def test_one_that_goes_on_waits_for_something_now_and_then(tmp_path: Path, does: str, why: str) -> None:
    with holder(tmp_path / "lock", does):
        assert halted(tmp_path / "lock") == why


def test_one_that_was_stopped_does_not_go_on_until_it_is_told_to(tmp_path: Path) -> None:
    with holder(tmp_path / "lock", SLEEPS) as pid:
        stop(pid)
        stopped = halted(tmp_path / "lock")
        os.kill(pid, signal.SIGCONT)

        assert (stopped, halted(tmp_path / "lock")) == ("stopped", "")


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_one_whose_cgroup_is_frozen_does_not_go_on(tmp_path: Path, kind: str) -> None:
    with holder(tmp_path / "lock", SLEEPS) as pid:
        with frozen(kind, pid):
            assert "frozen by its cgroup" in halted(tmp_path / "lock")
        assert not halted(tmp_path / "lock")


def test_nobody_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()

    assert (halted(tmp_path / "lock"), halted(tmp_path / "nothing")) == ("", "")
