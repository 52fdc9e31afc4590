"""A command that runs in a node while the test goes on."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGTERM, Signals


class Running:
    """A started process: ``pid`` is what the node calls it, ``outer_pid`` what the tests do."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._nsenter = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.outer_pid = self._child()
        status = Path(f"/proc/{self.outer_pid}/status").read_text()
        self.pid = int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])

    def _child(self, timeout_s: float = 60) -> int:
        """Return the one child of nsenter, once it no longer is nsenter itself."""
        import psutil

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            children = psutil.Process(self._nsenter.pid).children() if self._nsenter.poll() is None else []
            if children and children[0].name() not in {"nsenter", "env"}:
                return int(children[0].pid)
            time.sleep(0.005)
        raise RuntimeError(f"nothing runs in the node: {self.log}")

    @property
    def log(self) -> str:
        """Return what it wrote so far, to either output."""
        return self._log.read_text()

    @property
    def running(self) -> bool:
        return self._nsenter.poll() is None

    def signal(self, number: Signals) -> None:
        """Send a signal to the process itself; nothing happens when it has just ended."""
        with suppress(ProcessLookupError):
            os.kill(self.outer_pid, number)
        if number in {SIGCONT, SIGKILL}:  # nsenter stops itself where its child is stopped
            self._nsenter.send_signal(SIGCONT)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.signal(SIGTERM)

    def kill(self) -> None:
        """Stop it as a crash would."""
        self.signal(SIGKILL)

    def wait(self, timeout_s: float = 120) -> int:
        """Return the exit code; minus the number of the signal that ended it."""
        return self._nsenter.wait(timeout_s)

    def wait_for(self, text: str, timeout_s: float = 90) -> None:
        """Return as soon as the log holds ``text``."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            if time.monotonic() > deadline or not self.running:
                raise AssertionError(f"never said {text!r}: {self.log}")
            time.sleep(0.01)
