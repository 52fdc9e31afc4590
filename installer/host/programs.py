"""The host's own programs, run in the host's own root: what they link to is there and not here."""

import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError, StoppedError
from installer.host.files import Host

ENVIRONMENT: Final[dict[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})  # blocked, as in signals.py
STOP_POLL_S: Final = 0.1
UNSTARTED: Final = range(125, 128)  # chroot(1): it failed itself; the program cannot be started; is not there


class LateError(InstallerError):
    """A program of the host's did not come to its end in time."""


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


def is_program(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a file that can be started stands at ``path``, or a link that leads to one."""
    try:
        mode = host.local_path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


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
    with suppress(LateError):
        return run_in_time(root, words, timeout_s=timeout_s, environment=environment, fds=fds)
    return None


def run_in_time(
    root: Path,
    words: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] = ENVIRONMENT,
    fds: Sequence[int] = (),
) -> Ran | None:
    """Run a program as ``run_in`` does.

    Raises:
        LateError: it was started, and had not come to its end after ``timeout_s``.
    """
    command = list(words) if root == Path("/") else ["chroot", str(root), *words]
    ran = _ran(command, "", timeout_s, environment, fds)
    if ran is None or ran.returncode < 0 or (ran.returncode in UNSTARTED and root != Path("/")):
        return None
    return ran


def run_locally(program: PurePosixPath, words: Sequence[str], text: str, *, timeout_s: float) -> Ran | None:
    """Run a program of ours in this process's own root, with ``text`` as its input; None as in ``run_in``."""
    with suppress(LateError):
        return _ran([str(program), *words], text, timeout_s)
    return None


def run_until_stopped(
    program: PurePosixPath, words: Sequence[str], text: str, *, timeout_s: float
) -> Ran | None:
    """Do what ``run_locally`` does, for one that may take long: it is ended where we are told to stop.

    Raises:
        LateError: it had not come to its end after ``timeout_s``.
        StoppedError: a stop is pending.
    """
    deadline = time.monotonic() + timeout_s
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(
            [str(program), *words], stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT
        )
    except OSError:
        return None
    with child:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, err = child.communicate(text.encode(), timeout=STOP_POLL_S)
                    return Ran(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
                if signal.sigpending() & STOP:
                    raise StoppedError
                if time.monotonic() > deadline:
                    raise _late(str(program), timeout_s)
        finally:
            child.kill()


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
    except subprocess.TimeoutExpired as error:
        raise _late(command[0], timeout_s) from error
    except OSError:
        return None
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def _late(program: str, timeout_s: float) -> LateError:
    return LateError(f"run {program} within {timeout_s:g} s", remedy="run it by hand on the node")
