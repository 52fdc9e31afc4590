"""The host's own programs, run in the host's own root: what they link to is there and not here."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
UNSTARTED: Final = range(125, 128)  # chroot(1): it failed itself; the program cannot be started; is not there


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program that came to its end gave."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """Return the last line of stderr, where Go programs say why they gave up."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self.returncode}"


def run_in(
    root: Path,
    words: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] = ENVIRONMENT,
    fds: Sequence[int] = (),
) -> Ran | None:
    """Run a program of the host whose root is ``root`` here; None where it cannot be run, or not in time.

    It inherits ``fds``.
    """
    command = list(words) if root == Path("/") else ["chroot", str(root), *words]
    ran = _ran(command, "", timeout_s, environment, fds)
    if ran is None or ran.returncode < 0 or (ran.returncode in UNSTARTED and root != Path("/")):
        return None
    return ran


def run_here(program: PurePosixPath, words: Sequence[str], text: str, *, timeout_s: float) -> Ran | None:
    """Run a program of ours in this process's own root, with ``text`` as its input; None as in ``run_in``."""
    return _ran([str(program), *words], text, timeout_s)


def _ran(
    command: Sequence[str],
    text: str,
    timeout_s: float,
    environment: Mapping[str, str] = ENVIRONMENT,
    fds: Sequence[int] = (),
) -> Ran | None:
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=timeout_s,
            pass_fds=fds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
