"""A ``run`` that waits, seen from outside."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def _asleep(pid: int) -> bool:
    return "sigtimedwait" in Path(f"/proc/{pid}/wchan").read_text()


def acts(pid: int) -> list[str]:
    """Return what the children of a run do, as its command line says it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = []
    for child in children:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            words = command_line(int(child))
            found += [words[at + 1] for at, word in enumerate(words) if word.endswith("/start.py")]
    return found


def until_it_sleeps(pid: int) -> None:
    """Return when a run waits, and neither installs nor checks."""
    deadline = time.monotonic() + 10
    while (
        "/start.py supervisor" not in " ".join(command_line(pid))
        or not _asleep(pid)
        or {"install", "check", "asked", "stop"} & {*acts(pid)}
    ):
        assert time.monotonic() < deadline, (command_line(pid), acts(pid))
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
