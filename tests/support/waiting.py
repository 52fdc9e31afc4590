"""Waiting for a fact; and a ``run`` that waits, seen from outside."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_S = 300  # of a busy machine
HANGS_S = 1800  # a command that lasts longer hangs, however busy the machine is
PENDING = re.compile(r"^ShdPnd:\s*0*1$", re.MULTILINE)  # SIGHUP


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Tell whether a process has not ended: one that is a zombie holds nothing any more."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def _processes(pid: int) -> dict[int, list[str]]:
    """Return the threads of a process and of all below it: each one's state, its processor time, its program."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        _, _, rest = (task / "stat").read_text().rpartition(")")
        fields = rest.split()
        found[int(task.name)] = [fields[0], *fields[11:15], *command_line(pid)]
        for child in (task / "children").read_text().split():
            found |= _processes(int(child))
    return found


def acts(pid: int) -> list[str]:
    """Return what the children of a run do, as its command line says it."""
    found = []
    for child in children(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            words = command_line(child)
            found += [words[at + 1] for at, word in enumerate(words) if word.endswith("/start.py")]
    return found


def until_it_sleeps(pid: int) -> None:
    """Wait until a run has come to rest: for a third of a second nothing of it works, begins or ends."""
    deadline = time.monotonic() + PATIENCE_S
    seen, since = dict[int, list[str]](), 0.0
    while time.monotonic() < since + 0.3 or not since:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
        try:
            now = _processes(pid)
        except OSError:  # one has just ended
            now = {}
        if now != seen or not now or any(words[0] != "S" for words in now.values()):
            seen, since = now, time.monotonic()


def until(
    done: Callable[[], object], said: Callable[[], object] = lambda: "", patience_s: float = PATIENCE_S
) -> None:
    """Return as soon as something holds; fail with what was ``said``. All tests wait for a fact by this."""
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


def until_told(path: Path, words: str) -> str:
    """Return the text of a file as soon as it has some words."""
    text = ""

    def told() -> bool:
        nonlocal text
        text = path.read_text() if path.exists() else ""
        return words in text

    until(told, lambda: text)
    return text


@contextmanager
def full_pipe() -> Iterator[int]:
    """Yield the end for writing of a pipe that has no room and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(writer)
        os.close(reader)


def kill(pid: int) -> None:
    """Kill a ``run`` with what it has begun, and see that gone: whoever acts holds the ledger."""
    begun: list[int] = []
    with suppress(FileNotFoundError):
        begun += children(pid)
    for each in (pid, *begun):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    until(lambda: not any(map(runs, begun)), lambda: begun)


def until_asked(pid: int) -> None:
    """Wait until somebody has asked a stopped ``run`` for a check: its signal is there, and is not taken."""
    until(lambda: PENDING.search(Path(f"/proc/{pid}/status").read_text()))


def stop(pid: int) -> None:
    """Stop a process, and see it stopped: the signal alone only asks for it, and a processor may be long in coming."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
