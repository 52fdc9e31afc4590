"""The standard streams: no reader that has gone away or reads no more keeps us from obeying a stop."""

import io
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

STDERR: Final = 2
PATIENCE_S: Final = 0.5
POLL_S: Final = 0.1


def write(fd: int, content: bytes, goes_on: Callable[[], bool]) -> bool:
    """Write in parts that fit whole where poll(2) sees room, so that nothing blocks; tell whether all went.

    ``goes_on`` is asked again and again while there is no room.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    waits_s = 0.0
    try:
        while content:
            if poll.poll(waits_s * 1000):
                content = _rest(fd, content)
            elif not goes_on():
                return False
            waits_s = POLL_S
    except (OSError, ValueError):  # nobody reads any more
        return False
    return True


def _rest(fd: int, content: bytes) -> bytes:
    try:
        return content[os.write(fd, content[: select.PIPE_BUF]) :]
    except BlockingIOError:  # the other side of the pipe made it so
        return content


def patient() -> Callable[[], bool]:
    """Return what says for ``PATIENCE_S`` that a write goes on."""
    until = time.monotonic() + PATIENCE_S
    return lambda: time.monotonic() < until


class _Stream(io.RawIOBase):
    """One of the two; what finds no reader is lost, and all that comes after it."""

    def __init__(self, fd: int, patience: Callable[[], Callable[[], bool]]) -> None:
        self._fd, self._patience = fd, patience
        self.lost = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, content: Any) -> int:
        said = bytes(content)
        self.lost = self.lost or not write(self._fd, said, self._patience())
        return len(said)


def open_standard_streams(stopping: Callable[[], bool]) -> Callable[[], bool]:
    """Open those of the three that are closed, and let the others hold nobody.

    A log line would go to the next file of ours where stderr is closed. What stdout is to get waits for its
    reader, as long as nobody asks us to stop; what stderr is to get waits ``PATIENCE_S``.

    Returns:
        What flushes stdout and tells whether a stop cut it short.
    """
    for fd in range(STDERR + 1):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - no name to give it
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    cut_short = False

    def goes_on() -> bool:
        nonlocal cut_short
        cut_short = stopping()
        return not cut_short

    sys.stdout = _text(_Stream(1, lambda: goes_on), sys.stdout)
    sys.stderr = _text(_Stream(STDERR, patient), sys.stderr)

    def finished() -> bool:
        sys.stdout.flush()
        return not cut_short

    return finished


def _text(stream: _Stream, before: TextIO | None) -> io.TextIOWrapper:
    # A path may have any bytes: what the terminal's encoding has no letters for is shown by its number.
    encoding = getattr(before, "encoding", None) or "utf-8"
    buffer = io.BufferedWriter(stream)
    return io.TextIOWrapper(
        buffer,
        encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream.fileno() == STDERR,
    )
