"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import structlog

from installer.decide.errors import InstallerError


class LogFormat(StrEnum):
    """How events are written; ``auto`` looks whether stderr is a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_readable = True


class _Stderr:
    """Writes whole lines; a reader that has gone away is no reason to stop."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            os.write(2, f"{message}\n".encode(errors="replace"))

    debug = info = warning = error = critical = log = msg


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    if _readable:
        _Stderr().msg(f"toolkit-installer: {error}")
    else:
        structlog.get_logger().error("failed", problem=error.problem, remedy=error.remedy)


def configure(wanted: LogFormat, spoken: Mapping[str, str] | None = None) -> None:
    """Choose how events look from here on; ``spoken`` gives some of them other words."""
    global _readable  # noqa: PLW0603 - a process has one stderr
    terminal = sys.stderr.isatty()
    _readable = wanted is LogFormat.TEXT or (wanted is LogFormat.AUTO and terminal)
    processors: list[Any] = [structlog.processors.add_log_level]
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
