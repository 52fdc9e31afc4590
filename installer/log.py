"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import select
import sys
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

import structlog

from installer.decide.errors import InstallerError, Remedy, Spelling

STDERR: Final = 2
PATIENCE_S: Final = 0.5


class LogFormat(StrEnum):
    """How events are written; ``auto`` looks whether stderr is a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_readable = True
_spelling: Spelling = str


class _Stderr:
    """Writes whole lines; a reader that has gone away, or reads no more, is no reason to stop or to wait.

    A pipe of 64 KB that nobody empties would hold us for ever, with a stop pending. What finds no room within
    ``PATIENCE_S`` is lost, and from then on nothing is waited for until there is room again.
    """

    def __init__(self) -> None:
        self._lost = 0

    def msg(self, message: str) -> None:
        lost = f"({self._lost} lines were lost here)\n" if self._lost else ""
        patience_s = 0.0 if self._lost else PATIENCE_S
        if self._write(f"{lost}{message}\n".encode(errors="backslashreplace"), patience_s):
            self._lost = 0
        else:
            self._lost += 1

    @staticmethod
    def _write(line: bytes, patience_s: float) -> bool:
        """Write in parts that fit whole where poll(2) sees room; tell whether all of it was written."""
        until = time.monotonic() + patience_s
        poll = select.poll()
        poll.register(STDERR, select.POLLOUT)
        with suppress(OSError, ValueError):
            while line:
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    return False
                line = line[os.write(STDERR, line[: select.PIPE_BUF]) :]
        return True

    debug = info = warning = error = critical = log = msg


_stderr = _Stderr()


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    remedy = error.remedy_spelt(_spelling)
    if _readable:
        _stderr.msg(f"toolkit-installer: cannot {error.problem}; {remedy}")
    else:
        structlog.get_logger().error("failed", problem=error.problem, remedy=remedy)


def _errors_spelt(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn errors, and the remedies of errors, into text."""
    for name, value in event.items():
        if isinstance(value, InstallerError):
            event[name] = f"cannot {value.problem}; {value.remedy_spelt(_spelling)}"
        elif isinstance(value, Remedy):
            event[name] = value.spelt(_spelling)
    return event


def configure(wanted: LogFormat, spoken: Mapping[str, str] | None = None, spelling: Spelling = str) -> None:
    """Choose how events look from here on; ``spoken`` and ``spelling`` give them and options other words."""
    global _readable, _spelling  # noqa: PLW0603 - a process has one stderr
    _spelling = spelling
    terminal = sys.stderr.isatty()
    _readable = wanted is LogFormat.TEXT or (wanted is LogFormat.AUTO and terminal)
    processors: list[Any] = [structlog.processors.add_log_level, _errors_spelt]
    if spoken:
        processors.append(lambda _, __, event: event | {"event": spoken.get(event["event"], event["event"])})
    if _readable:
        processors.append(structlog.dev.ConsoleRenderer(colors=terminal and "NO_COLOR" not in os.environ))
    else:
        processors += [
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=processors, logger_factory=lambda *_: _stderr, cache_logger_on_first_use=True
    )
