"""Run programs of the host in the host's own root, and give them texts that are on no disk."""

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from installer.errors import InstallerError
from installer.host import supervision
from installer.host.files import Host, is_file
from installer.host.inodes import opened
from installer.model.files import EXECUTABLE_DIRS

if TYPE_CHECKING:
    from subprocess import Popen

ENVIRONMENT: Final[dict[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
STOP_POLL_S: Final = 0.1
OUTPUT_BYTES: Final = (
    16 << 20
)  # the most output of a program, as of a file; an effective config has some 10 KB
PART_BYTES: Final = 64 << 10
BY_HAND: Final = "run it by hand on the node"
# Users can fill the first directory, which is writable even in a container with a read-only root. Users
# cannot fill the second.
MEMORY: Final = ("/dev/shm", "/run", None)  # noqa: S108 - a directory of our own is made there
TEXTS: Final = "texts"
UNSTARTED: Final = range(125, 128)  # chroot(1): chroot failed; the program cannot be started; it is missing
OF_SIGNALS: Final = 128  # a shell adds the number of the signal that ended its program
# Words of Go's runtime on stderr, which no text brings about (src/runtime/panic.go, signal_unix.go).
CUT_SHORT: Final = re.compile(r"^(?:fatal error: |runtime/cgo: |SIG[A-Z]+: )", re.MULTILINE)
PANIC: Final = re.compile(r"^panic: .*", re.MULTILINE)
TRACE: Final = "\ngoroutine "


class LateError(InstallerError):
    """A program did not end in time, or wrote more than ``OUTPUT_BYTES``."""


class Ran(Struct, frozen=True):
    """The exit code and the output of an ended program."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """Return the last line of stderr, where Go programs write why they gave up."""
        panic = _find_panic(self.stderr)
        if panic:  # the trace of the goroutines follows
            return panic[:300]
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        if not lines:
            return f"exit code {self.returncode}"
        return lines[-1][:300]

    @property
    def was_cut_short(self) -> bool:
        """Whether a signal or the runtime of Go ended the program, as for want of memory or of threads."""
        return self.returncode > OF_SIGNALS or CUT_SHORT.search(self.stderr) is not None

    @property
    def has_panicked(self) -> bool:
        """Whether a Go program has ended by a panic, perhaps because of the text that it was to read."""
        return _find_panic(self.stderr) != ""


def _find_panic(stderr: str) -> str:
    """Return the first line of a panic of Go's runtime; "" without a trace of the goroutines below it."""
    panic = PANIC.search(stderr)
    if panic is None or stderr.find(TRACE, panic.end()) < 0:
        return ""
    return panic[0]


def is_program(host: Host, path: PurePosixPath) -> bool:
    """Tell whether ``path`` is an executable file, or a link to an executable file."""
    status = host.status(path)
    return status is not None and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)


def can_be_started(host: Host, path: PurePosixPath) -> bool:
    """Tell whether ``path`` is a program, not empty, and not behind a link of a stranger's."""
    return is_file(host, path) and is_program(host, path) and host.size(path) > 0


def find_file(
    root: PurePosixPath, places: Iterable[PurePosixPath], *, executable: bool
) -> PurePosixPath | None:
    """Return the first of ``places`` with a file below ``root``, a path as seen by this process."""
    for place in places:
        path = Path(root / place)
        if path.is_file() and (not executable or path.stat().st_mode & 0o111):
            return place
    return None


def find_program(root: PurePosixPath, name: str) -> PurePosixPath | None:
    """Return the path of a program in the usual directories below ``root``, with links followed."""
    places = (PurePosixPath(directory, name) for directory in EXECUTABLE_DIRS)
    place = find_file(root, places, executable=True)
    if place is None:
        return None
    return PurePosixPath(Path(root / place).resolve())


def run_in(
    root: Path,
    words: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] = ENVIRONMENT,
    fds: Sequence[int] = (),
) -> Ran | None:
    """Run a program of the host.

    Args:
        root: the host's root, as seen by this process.
        words: the program and the arguments.
        timeout_s: the longest time.
        environment: the environment variables of the program.
        fds: descriptors to be inherited by the program.

    Returns:
        None if the program cannot be run, is killed or late, or writes more than ``OUTPUT_BYTES``.
    """
    own_root = root == Path("/")
    command = list(words) if own_root else ["chroot", str(root), *words]
    try:
        ran = _run(command, timeout_s, env=environment, pass_fds=fds)
    except LateError:
        return None
    if ran is None or ran.returncode < 0:
        return None
    if not own_root and ran.returncode in UNSTARTED:
        return None
    return ran


def run_until_stopped(
    program: PurePosixPath, words: Sequence[str], text: str, *, timeout_s: float
) -> Ran | None:
    """Run a program of ours in this process's own root, with ``text`` as the input.

    Returns:
        None if the program cannot be started.

    Raises:
        StoppedError: a stop was requested, and the program was ended.
        LateError: the program has run for ``timeout_s``, or wrote too much, and was ended.
    """
    # Not by a pipe: communicate() takes a text once, and passes nothing on when it is called again.
    with os.fdopen(os.memfd_create("text"), "wb+") as file:
        file.write(text.encode())
        file.seek(0)
        return _run([str(program), *words], timeout_s, supervision.raise_if_stopped, stdin=file.fileno())


def _run(
    command: Sequence[str], timeout_s: float, check: Callable[[], None] | None = None, **options: Any
) -> Ran | None:
    """Run a program to the end.

    Args:
        command: the program and the arguments.
        timeout_s: the longest time.
        check: is called again and again meanwhile; an exception of ``check`` ends the program.
        options: further arguments of Popen.
    """
    from subprocess import DEVNULL, PIPE, Popen, SubprocessError

    deadline = time.monotonic() + timeout_s

    def pause_s() -> float:
        """Return the time to wait before the next ``check``."""
        if check is not None:
            check()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise LateError(f"run {command[0]} within {timeout_s:g} s", remedy=BY_HAND)
        return min(left_s, STOP_POLL_S)

    usual: dict[str, Any] = {"stdin": DEVNULL, "env": ENVIRONMENT, "stdout": PIPE, "stderr": PIPE, "cwd": "/"}
    try:
        child: Popen[bytes] = Popen(command, **usual | options)
    except (OSError, SubprocessError):  # SubprocessError: the child is killed before it becomes the program
        return None
    with child:
        try:
            out, err = _read_output(child, pause_s)
            returncode = _await_end(child, pause_s)
        finally:
            child.kill()
    return Ran(returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def _read_output(child: "Popen[bytes]", pause_s: Callable[[], float]) -> tuple[bytes, bytes]:
    """Read the output of a program on stdout and stderr, until the program has closed both.

    communicate() would keep output of any size.
    """
    from selectors import EVENT_READ, DefaultSelector

    out = bytearray()
    err = bytearray()
    with DefaultSelector() as selector:
        for stream, written in ((child.stdout, out), (child.stderr, err)):
            if stream is not None:
                selector.register(stream, EVENT_READ, written)
        while selector.get_map():
            for key, _ in selector.select(pause_s()):
                part = os.read(key.fd, PART_BYTES)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fileobj)
            if len(out) + len(err) > OUTPUT_BYTES:
                problem = f"run a program (it writes more than {OUTPUT_BYTES >> 20} MiB)"
                raise LateError(problem, remedy=BY_HAND)
    return bytes(out), bytes(err)


def _await_end(child: "Popen[bytes]", pause_s: Callable[[], float]) -> int:
    from subprocess import TimeoutExpired

    while True:
        with suppress(TimeoutExpired):
            return child.wait(pause_s())


class OpenText(Struct, frozen=True):
    """A text, or a directory of texts, for a program that inherits ``fd``."""

    fd: int
    name: str  # the kernel's link to the text (proc(5), /proc/PID/fd), valid in the root of any program


def names_open_files(root: Path) -> bool:
    """Tell whether a program in ``root`` finds the texts of ``OpenText``: not by an empty /proc."""
    return (root / "proc/self/fd").is_dir()


@contextmanager
def memory_file() -> Iterator[OpenText]:
    """Yield an empty text (memfd_create(2)); the text is gone after the block."""
    with os.fdopen(os.memfd_create("config"), "wb") as file:
        yield OpenText(file.fileno(), f"/proc/self/fd/{file.fileno()}")


@contextmanager
def private_directory(texts: Mapping[PurePosixPath, str]) -> Iterator[OpenText]:
    """Yield a directory with ``texts`` by their relative paths; only the owner can enter the directory."""
    with _written(texts) as directory, opened(directory, os.O_RDONLY | os.O_DIRECTORY) as fd:
        # Programs do not walk into a link at the end of a path: the name goes on to a directory behind it.
        yield OpenText(fd, f"/proc/self/fd/{fd}/{TEXTS}")


@contextmanager
def _written(texts: Mapping[PurePosixPath, str]) -> Iterator[str]:
    """Write the texts into a new directory below the first of ``MEMORY`` with enough room."""
    import tempfile

    failure: OSError | None = None
    for place in MEMORY:
        directory = None
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(tempfile.TemporaryDirectory(dir=place))
                _write(Path(directory, TEXTS), texts)
            except OSError as error:
                failure = error
                continue
            yield directory
            return
    if failure is not None:
        raise failure


def _write(top: Path, texts: Mapping[PurePosixPath, str]) -> None:
    top.mkdir()
    for path, text in texts.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(text.encode())
