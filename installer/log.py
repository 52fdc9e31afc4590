"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import structlog

from installer.decide.errors import InstallerError, Remedy, Spelling


class LogFormat(StrEnum):
    """How events are written; ``auto`` looks whether stderr is a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_readable = True
_spelling: Spelling = str


class _Stderr:
    """Writes whole lines; a reader that has gone away is no reason to stop."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            os.write(2, f"{message}\n".encode(errors="replace"))

    debug = info = warning = error = critical = log = msg


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    if _readable:
        _Stderr().msg(f"toolkit-installer: cannot {error.problem}; {error.remedy_spelt(_spelling)}")
    else:
        structlog.get_logger().error("failed", problem=error.problem, remedy=error.remedy)


def _errors_spelt(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn errors and remedies into text, with options as the entry point spells them."""
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
        processors=processors, logger_factory=lambda *_: _Stderr(), cache_logger_on_first_use=True
    )
