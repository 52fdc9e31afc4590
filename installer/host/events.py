"""Events, and the standard streams: no reader that is gone or slow delays a stop.

An event is a constant text in the past tense, and facts as its fields; ``cli.log`` chooses how they look.
"""

import errno
import io
import json
import os
import re
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
# Verbs that programs watch: their log is JSON unless a person reads it on a terminal.
SERVICES: Final = frozenset({"run", "nri", "untaint"})
REMEDY: Final = "give it a file or a reader that takes it, then run again"
# Kubernetes reads here why a container has ended; a host has no such file.
TERMINATION_LOG: Final = Path("/dev/termination-log")
TERMINATION_BYTES: Final = 4096  # Kubernetes reads no more
# Characters that a terminal obeys or that change the order of others, but tab, newline and our own colours: a
# name of a file or of a runtime may have any of them.
_OBEYED: Final = re.compile(
    r"(?!\x1b\[(?:[012]|[39][0-7])m)"
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class Log:
    """The log; ``write`` gets the level, the text and the fields of each event."""

    def __init__(self, write: Writer) -> None:
        self.write = write

    def info(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event for the attention of an administrator."""
        self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure."""
        self.write("error", event, fields)


def line(level: str, event: str, fields: Mapping[str, Any]) -> str:
    """Return an event as a line of JSON; values without a form in JSON are shown in Python's form."""
    seconds, ns = divmod(time.time_ns(), 10**9)
    now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns // 1000:06}Z"
    return json.dumps({**fields, "event": event, "level": level, "timestamp": now}, default=repr)


def _print_event(level: str, event: str, fields: Mapping[str, Any]) -> None:
    print(line(level, event, fields), file=sys.stderr)  # noqa: T201 - until ``cli.log`` chooses the form


log = Log(_print_event)


def spell_value(value: Any) -> str:
    """Return the value of a field for a person: a word unchanged, other text on a line in quotes."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if text and " " not in text and text.isprintable():
        return text
    return escape(json.dumps(text, ensure_ascii=False))


def escape(text: str) -> str:
    """Return a text with escapes of JSON for the characters that a terminal would obey."""
    return _OBEYED.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def writer(*, readable: bool) -> Writer:
    """Return a function to write events to stderr without a wait for the reader."""

    def write_event(level: str, event: str, fields: Mapping[str, Any]) -> None:
        text = line(level, event, fields)
        if readable:
            words = [event]
            if level != "info":
                words.insert(0, f"{level}:")
            words += [f"{name}={spell_value(value)}" for name, value in fields.items()]
            text = " ".join(words)
        write(STDERR, f"{text}\n".encode(errors="backslashreplace"), _give_up)

    return write_event


def _give_up() -> bool:
    """Do not wait for room."""
    return False


@contextmanager
def internal_errors() -> Iterator[None]:
    """Turn an unexpected exception of the block into an InternalError, and log the origin."""
    try:
        yield
    except InstallerError:
        raise
    except Exception as error:
        internal = InternalError(error)
        if internal.code != "no-memory":  # short memory is no bug to report
            # The text is not logged: it may quote a config.
            log.error("internal error", kind=internal.kind, frames=list(internal.frames))  # noqa: TRY400
        raise internal from error


def log_others(error: InstallerError) -> None:
    """Log the problems beside the raised error."""
    for other in error.others:
        log.error("other problem found", code=other.code, problem=other.problem, remedy=other.remedy)


@contextmanager
def log_failures() -> Iterator[None]:
    """Log a failure to write or serve metrics, and go on."""
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        log.warning("metrics not written", error=error)


def write(fd: int, content: bytes, goes_on: Callable[[], bool]) -> bool:
    """Write as ``write_all`` does; return False also if the reader has gone, or the disk is full."""
    with suppress(OSError):
        return write_all(fd, content, goes_on)
    return False


def write_all(fd: int, content: bytes, goes_on: Callable[[], bool]) -> bool:
    """Write in parts of the size that poll(2) has room for: no write blocks.

    Args:
        fd: the descriptor.
        content: the bytes to write.
        goes_on: is called again and again while there is no room; False ends the write.

    Returns:
        Whether all bytes were written.

    Raises:
        OSError: the reader has gone, or the disk is full.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    waits_s = 0.0
    while content:
        if poll.poll(waits_s * 1000):
            with suppress(BlockingIOError):  # the other side of the pipe made it non-blocking
                content = content[os.write(fd, content[: select.PIPE_BUF]) :]
        elif not goes_on():
            return False
        waits_s = POLL_S
    return True


def patient() -> Callable[[], bool]:
    """Return a function to let a write go on for ``PATIENCE_S``."""
    deadline = time.monotonic() + PATIENCE_S

    def is_early() -> bool:
        return time.monotonic() < deadline

    return is_early


class _Text(io.TextIOWrapper):
    """Text for a person or a program, without characters that a terminal would obey."""

    def write(self, text: str) -> int:
        super().write(escape(text))
        return len(text)


class _Stream(io.FileIO):
    """Standard output or error; after a write without a reader, this text and all later text is lost."""

    def __init__(self, fd: int, patience: Callable[[], Callable[[], bool]], *, closed: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._patience = patience
        self._was_closed = closed
        self._lost = closed
        self.cut_short = False
        self.failure: OSError | None = None  # a reader that goes away has seen enough: that is no failure

    def write(self, content: Any) -> int:
        taken = bytes(content)
        if self._was_closed:
            self.failure = OSError(errno.EBADF, "it is closed")
        try:
            if not self._lost:
                self.cut_short = not write_all(self.fileno(), taken, self._patience())
                self._lost = self.cut_short
        except (BrokenPipeError, ConnectionResetError):
            self._lost = True
        except OSError as error:
            self._lost = True
            self.failure = error
        return len(taken)


def open_standard_streams(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """Open closed standard streams, and replace stdout and stderr by streams that block no process.

    With a closed stderr a log line would go to the next file that this process opens. Text for stdout waits
    for its reader until ``stopping``; text for stderr waits ``PATIENCE_S``.

    Returns:
        A function that flushes stdout and tells whether all text was written. It reports a failure on stderr,
        unless a stop cut the text short.
    """

    def patient_until_stop() -> Callable[[], bool]:
        return goes_on

    def goes_on() -> bool:
        return not stopping()

    closed = {fd for fd in range(STDERR + 1) if _open_closed(fd)}
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    stdout = _Stream(STDOUT, patient_until_stop, closed=STDOUT in closed)
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
    """Open a closed standard stream, or a file of ours gets the number; tell whether a stream was closed."""
    try:
        os.fstat(fd)
    except OSError:
        os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(fd, True)  # noqa: FBT003 - no name to give it
        return True
    return False


def _text(stream: _Stream, before: TextIO | None) -> io.TextIOWrapper:
    # A path may have any bytes: characters that the terminal cannot show are written as their numbers.
    encoding = getattr(before, "encoding", None) or "utf-8"
    by_lines = stream.isatty() or stream.fileno() == STDERR
    buffer = io.BufferedWriter(stream)
    return _Text(buffer, encoding, errors="backslashreplace", line_buffering=by_lines)


def write_termination_log(text: str) -> None:
    """Write ``text`` as the container's termination message; ignore every failure."""
    content = text.encode(errors="backslashreplace")[: TERMINATION_BYTES - 1]
    content = content.decode(errors="ignore").encode() + b"\n"  # drop a character that was cut in two
    # A FIFO is opened without waiting for a reader.
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(Exception), os.fdopen(os.open(TERMINATION_LOG, flags), "wb", 0) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
            file.write(content)
