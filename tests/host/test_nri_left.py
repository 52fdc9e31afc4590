"""Whom the end of a plugin that was left may meet, and whom never."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from installer.host import nri_left
from installer.host.nri_child import PARENT
from tests.support.freezer import frozen

HOLDS = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
os.write(1, b"x")
time.sleep(100)
"""


@contextmanager
def holder(lock: Path, run: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Have a process hold a lock that was started by a ``run`` of this pid, "" by none."""
    environment = {PARENT.decode(): f"{run} -"} if run else {}
    command = [sys.executable, "-I", "-S", "-c", HOLDS, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout is not None
            child.stdout.read(1)
            yield child
        finally:
            child.kill()


def _gone_pid() -> int:
    with subprocess.Popen(["true"]) as child:
        return child.pid


def test_one_whose_run_has_gone_is_ended_and_its_lock_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with holder(lock, str(_gone_pid())) as child:
        assert nri_left.end(lock) == nri_left.Left(child.pid, gone=True)
        assert child.wait(5) == -15
    assert nri_left.end(lock) is None


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(str(os.getpid()), id="its run lives"),
        pytest.param("", id="somebody has started it by hand"),
    ],
)
def test_one_that_is_attended_is_left_alone(tmp_path: Path, run: str) -> None:
    lock = tmp_path / "lock"
    with holder(lock, run) as child:
        assert nri_left.end(lock) is None
        assert child.poll() is None


def test_a_pid_in_a_file_that_nobody_holds_is_nobody(tmp_path: Path) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    with holder(other, str(_gone_pid())) as child:
        lock.write_text(f"{child.pid}\n")

        assert nri_left.end(lock) is None
        assert child.poll() is None


def test_a_holder_is_found_whatever_is_written_into_its_file(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with holder(lock, str(_gone_pid())) as child:
        lock.write_text("1\n")

        assert nri_left.end(lock) == nri_left.Left(child.pid, gone=True)


def test_a_file_that_is_not_roots_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    with holder(lock, str(_gone_pid())) as child:
        monkeypatch.setattr(nri_left, "trusted_uids", lambda: frozenset({-1}))

        assert nri_left.end(lock) is None
        assert child.poll() is None


def test_one_that_was_killed_and_cannot_end_gives_its_lock_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a real one with a frozen cgroup did: SigPnd 0x100, state D, gone at the thaw, having done nothing."""
    monkeypatch.setattr(nri_left, "END_S", 0.1)
    lock = tmp_path / "lock"
    with holder(lock, str(os.getpid())) as child:
        with frozen("v1", child.pid):
            assert nri_left.end(lock) is None
            child.kill()

            assert nri_left.end(lock) == nri_left.Left(child.pid, gone=False)
            assert not lock.exists()
            with lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert child.poll() is None
        assert child.wait(5) == -9
