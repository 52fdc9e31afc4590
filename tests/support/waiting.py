"""A ``run`` that waits, seen from outside."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def _asleep(pid: int) -> bool:
    """Tell whether the interpreter has come to its wait: only there it sleeps with its script closed."""
    return "sigtimedwait" in Path(f"/proc/{pid}/wchan").read_text()


def until_it_sleeps(pid: int) -> None:
    deadline = time.monotonic() + 10
    while "/waiter." not in "".join(command_line(pid)) or not _asleep(pid):
        assert time.monotonic() < deadline, command_line(pid)
        time.sleep(0.01)


def until(done: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stop a process, and see it stopped: the signal alone only asks for it, and a processor may be long in coming."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
