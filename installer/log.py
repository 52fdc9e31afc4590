"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import Any, Final

import structlog

from installer.decide.errors import InstallerError, Remedy, Spelling
from installer.host.streams import STDERR, patient, write
from installer.host.termination import leave


class LogFormat(StrEnum):
    """How events are written; ``auto`` looks whether stderr is a terminal."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


# How the verbs that change a node may end well, as a sentence for whoever finds nothing but that.
OUTCOMES: Final = {
    "installed": "installed, and configured {engines}",
    "nothing changed": "nothing changed: {engines} had everything in place",
    "everything kept": "everything kept: {reason}",
    "undo handed over": "undo handed over: on the node, journalctl -u {unit} tells how it ends",
    "undo complete": "undo complete: nothing of ours is left on this node",
    "nothing to undo": "nothing to undo: nothing of ours is in {install_dir} on this node",
}

_outcome = ""
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
        goes_on = (lambda: False) if self._lost else patient()
        if write(STDERR, f"{lost}{message}\n".encode(errors="backslashreplace"), goes_on):
            self._lost = 0
        else:
            self._lost += 1

    debug = info = warning = error = critical = log = msg


_stderr = _Stderr()


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    global _outcome  # noqa: PLW0603 - a process ends once
    _outcome = f"cannot {error.problem}; {error.remedy_spelt(_spelling)}"
    if _readable:
        _stderr.msg(f"toolkit-installer: {_outcome}")
    else:
        structlog.get_logger().error("failed", code=error.code, problem=error.problem, remedy=error.remedy)


def leave_outcome() -> None:
    """Leave the last sentence where Kubernetes looks for it, if we are in a container of its."""
    if _outcome:
        leave(_outcome)


def _outcome_noted(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    global _outcome  # noqa: PLW0603 - a process ends once
    if event["event"] in OUTCOMES:
        words = {
            name: ", ".join(value) if isinstance(value, list) else value for name, value in event.items()
        }
        _outcome = OUTCOMES[event["event"]].format_map(words)
    return event


def _errors_spelt(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn errors, which bring their code, and remedies into text, with options as the entry point spells."""
    for name, value in [*event.items()]:
        if isinstance(value, InstallerError):
            event["code"] = value.code
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
    processors: list[Any] = [structlog.processors.add_log_level, _outcome_noted, _errors_spelt]
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
