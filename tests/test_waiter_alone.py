"""A waiter whose program is gone ends, whoever reads what it prints."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.site import PROJECT

OURS, COMPAT = [sys.executable, "-m", "installer"], [sys.executable, "-m", "installer.compat"]


@contextmanager
def _full_pipe() -> Iterator[int]:
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


def _ends(child: "subprocess.Popen[bytes]", within_s: float) -> int | None:
    try:
        return child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return None


@pytest.mark.parametrize("command", [OURS, COMPAT], ids=["ours", "NVIDIA's words"])
def test_a_waiter_without_its_program_ends_though_nobody_reads_why(
    tmp_path: Path, command: list[str]
) -> None:
    gone = tmp_path / "gone.py"
    script = PROJECT / "installer/host/waiter.py"
    again = [sys.executable, str(gone), *command]
    code = f"import signal, os; signal.pthread_sigmask(0, {{15}}); os.execv({sys.executable!r}, " + repr(
        [sys.executable, "-I", "-S", str(script), "1", "15", "0", str(len(again)), *again]
    )
    with _full_pipe() as full, subprocess.Popen([sys.executable, "-c", code + ")"], stderr=full) as child:
        _until_it_writes(child.pid)
        child.terminate()

        assert _ends(child, 20) == 4


def _until_it_writes(pid: int) -> None:
    """Wait until a process has come to rest: its processor time does not grow any more."""
    last, since = "", time.monotonic()
    deadline = since + 30
    while time.monotonic() < min(since + 1.5, deadline):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent = "".join(fields[11:13])
        if spent != last and int(spent) > int(last or 0) + 1:
            last, since = spent, time.monotonic()
        time.sleep(0.1)
