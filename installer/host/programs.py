"""The host's own programs, run in the host's own root: what they link to is there and not here."""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError
from installer.host import signals
from installer.host.files import Host

if TYPE_CHECKING:
    from subprocess import Popen

ENVIRONMENT: Final[dict[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
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
    ran = _ran(command, timeout_s, environment, fds)
    if ran is None or ran.returncode < 0 or (ran.returncode in UNSTARTED and root != Path("/")):
        return None
    return ran


@contextmanager
def run_beside(program: PurePosixPath, words: Sequence[str]) -> Iterator[Callable[[float], Ran | None]]:
    """Run a program of ours in this process's own root while the block goes on.

    What is yielded waits for its end, for so many seconds at most; it returns None as ``run_in`` does. A
    program that still runs at the end of the block is ended.
    """
    from subprocess import DEVNULL, PIPE, Popen, SubprocessError

    command = [str(program), *words]
    try:
        child = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT, cwd="/")
    except (OSError, SubprocessError):  # the second where it is killed before it is that program
        yield lambda _: None
        return
    with child:
        try:
            yield partial(_ended, child)
        finally:
            child.kill()


def _ended(child: "Popen[bytes]", timeout_s: float) -> Ran | None:
    from subprocess import TimeoutExpired

    try:
        out, err = child.communicate(timeout=timeout_s)
    except TimeoutExpired:
        return None
    return Ran(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def run_until_stopped(
    program: PurePosixPath, words: Sequence[str], text: str, *, timeout_s: float
) -> Ran | None:
    """Run a program of ours in this process's own root, with ``text`` as its input; None as in ``run_in``.

    It may take long: it is ended where we are told to stop.

    Raises:
        LateError: it had not come to its end after ``timeout_s``.
        StoppedError: a stop is pending.
    """
    import subprocess

    deadline = time.monotonic() + timeout_s
    pipe = subprocess.PIPE
    try:
        # Not by a pipe: communicate() takes a text once, and gives none of it on when it is called again.
        with os.fdopen(os.memfd_create("text"), "wb+") as given:
            given.write(text.encode())
            given.seek(0)
            child = subprocess.Popen(
                [str(program), *words], stdin=given, stdout=pipe, stderr=pipe, env=ENVIRONMENT
            )
    except (OSError, subprocess.SubprocessError):  # as in run_beside
        return None
    with child:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, err = child.communicate(timeout=STOP_POLL_S)
                    return Ran(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
                signals.check()
                if time.monotonic() > deadline:
                    raise _late(str(program), timeout_s)
        finally:
            child.kill()


def _ran(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str], fds: Sequence[int]
) -> Ran | None:
    import subprocess

    try:
        done = subprocess.run(
            command,
            input=b"",
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=timeout_s,
            pass_fds=fds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _late(command[0], timeout_s) from error
    except (OSError, subprocess.SubprocessError):  # as in run_beside
        return None
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def _late(program: str, timeout_s: float) -> LateError:
    return LateError(f"run {program} within {timeout_s:g} s", remedy="run it by hand on the node")
