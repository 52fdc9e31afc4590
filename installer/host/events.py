"""Events, and the standard streams: no reader that is gone or slow delays a stop.

An event is a constant text in the past tense, and facts as its fields; ``cli.log`` chooses how they look.
"""

import errno
import io
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from installer.errors import InstallerError, InternalError

Writer = Callable[[str, str, Mapping[str, Any]], None]

STDOUT: Final = 1
STDERR: Final = 2
PATIENCE_S: Final = 0.5
POLL_S: Final = 0.1
REMEDY: Final = "give it a file or a reader that takes it, then run again"
# Where Kubernetes looks why a container has ended; on a host there is no such file.
TERMINATION_LOG: Final = Path("/dev/termination-log")
TERMINATION_BYTES: Final = 4096  # Kubernetes reads no more


class Log:
    """Where events are logged; ``write`` gets the level, the text and the fields of each."""

    def __init__(self, write: Writer) -> None:
        self.write = write

    def info(self, event: str, **fields: Any) -> None:
        """Tell what has happened."""
        self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what an administrator should look at."""
        self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Tell what has failed."""
        self.write("error", event, fields)


def line(level: str, event: str, fields: Mapping[str, Any]) -> str:
    """Return an event as one line of JSON; what JSON has no form for is shown as Python does."""
    seconds, ns = divmod(time.time_ns(), 10**9)
    now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns // 1000:06}Z"
    return json.dumps({**fields, "event": event, "level": level, "timestamp": now}, default=repr)


log = Log(lambda *words: print(line(*words), file=sys.stderr))  # noqa: T201 - until ``cli.log`` says how


def spell_value(value: Any) -> str:
    """Return the value of a field for a person, on one line: a word as it is, other text in quotes."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if text and " " not in text and text.isprintable() else json.dumps(text, ensure_ascii=False)


def writer(*, readable: bool) -> Writer:
    """Return what writes events to stderr, and never waits for who reads them."""

    def write_event(level: str, event: str, fields: Mapping[str, Any]) -> None:
        text = line(level, event, fields)
        if readable:
            words = (f"{name}={spell_value(value)}" for name, value in fields.items())
            text = " ".join((*([f"{level}:"] if level != "info" else ()), event, *words))
        write(STDERR, f"{text}\n".encode(errors="backslashreplace"), lambda: False)

    return write_event


@contextmanager
def internal_errors() -> Iterator[None]:
    """Let an unexpected exception of the block be an InternalError, and log where it came from."""
    try:
        yield
    except InstallerError:
        raise
    except Exception as error:
        internal = InternalError(error)
        if internal.code != "no-memory":  # that sentence says all, and there is nothing to report
            # Not its text, which may quote a config.
            log.error("internal error", kind=internal.kind, frames=list(internal.frames))  # noqa: TRY400
        raise internal from error


def log_others(error: InstallerError) -> None:
    """Log the problems that were found beside the one that was raised."""
    for other in error.others:
        log.error("other problem found", code=other.code, problem=other.problem, remedy=other.remedy)


@contextmanager
def log_failures() -> Iterator[None]:
    """Log what keeps metrics from being written or answered, and go on."""
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        log.warning("metrics not written", error=error)


def write(fd: int, content: bytes, goes_on: Callable[[], bool]) -> bool:
    """Do what ``write_all`` does; False also where the reader has gone, or its disk is full."""
    with suppress(OSError):
        return write_all(fd, content, goes_on)
    return False


def write_all(fd: int, content: bytes, goes_on: Callable[[], bool]) -> bool:
    """Write in parts that fit whole where poll(2) sees room, so that nothing blocks; tell whether all went.

    ``goes_on`` is asked again and again while there is no room. OSError where the other side takes nothing.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    waits_s = 0.0
    while content:
        if poll.poll(waits_s * 1000):
            with suppress(BlockingIOError):  # the other side of the pipe made it so
                content = content[os.write(fd, content[: select.PIPE_BUF]) :]
        elif not goes_on():
            return False
        waits_s = POLL_S
    return True


def patient() -> Callable[[], bool]:
    """Return what says for ``PATIENCE_S`` that a write goes on."""
    until = time.monotonic() + PATIENCE_S
    return lambda: time.monotonic() < until


class _Stream(io.FileIO):
    """Standard output or error; what finds no reader is lost, and all that comes after it."""

    def __init__(self, fd: int, patience: Callable[[], Callable[[], bool]], *, closed: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._patience, self._was_closed, self._lost = patience, closed, closed
        self.cut_short = False
        self.failure: OSError | None = None  # not of a reader that has gone: that has seen what it wanted

    def write(self, content: Any) -> int:
        taken = bytes(content)
        if self._was_closed:
            self.failure = OSError(errno.EBADF, "it is closed")
        try:
            if not self._lost:
                self._lost = self.cut_short = not write_all(self.fileno(), taken, self._patience())
        except (BrokenPipeError, ConnectionResetError):
            self._lost = True
        except OSError as error:
            self._lost, self.failure = True, error
        return len(taken)


def open_standard_streams(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """Open those of the three that are closed, and let the others block no process.

    A log line would go to the next file of ours where stderr is closed. What stdout is to get waits for its
    reader, as long as no stop is asked for; what stderr is to get waits ``PATIENCE_S``. What is returned
    flushes stdout and tells whether all got there; why not is said, unless a stop cut it short.
    """
    closed = {fd for fd in range(STDERR + 1) if _open_closed(fd)}
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    stdout = _Stream(STDOUT, lambda: lambda: not stopping(), closed=STDOUT in closed)
    sys.stdout = _text(stdout, sys.stdout)
    sys.stderr = _text(_Stream(STDERR, patient, closed=STDERR in closed), sys.stderr)

    def finish() -> bool:
        sys.stdout.flush()
        if stdout.failure is not None:
            reason = (stdout.failure.strerror or str(stdout.failure)).lower()
            sys.stderr.write(f"toolkit-installer: cannot write to standard output ({reason}); {REMEDY}\n")
        return not stdout.cut_short and stdout.failure is None

    return finish


def _open_closed(fd: int) -> bool:
    """Open a standard stream that is closed, so that no file of ours gets its number; tell whether it was."""
    try:
        os.fstat(fd)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(fd, True)  # noqa: FBT003 - no name to give it
        return True
    return False


def _text(stream: _Stream, before: TextIO | None) -> io.TextIOWrapper:
    # A path may have any bytes: what the terminal's encoding has no letters for is shown by its number.
    encoding = getattr(before, "encoding", None) or "utf-8"
    by_lines = stream.isatty() or stream.fileno() == STDERR
    buffer = io.BufferedWriter(stream)
    return io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=by_lines)


def write_termination_log(text: str) -> None:
    """Let ``text`` be the container's last words, if it is one; that it cannot be written stops nothing."""
    content = text.encode(errors="backslashreplace")[: TERMINATION_BYTES - 1]
    content = content.decode(errors="ignore").encode() + b"\n"  # a character that is cut in two is none
    # Whatever it is: a FIFO is opened without waiting for a reader.
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(Exception), os.fdopen(os.open(TERMINATION_LOG, flags), "wb", 0) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
            file.write(content)
