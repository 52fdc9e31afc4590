"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from installer.errors import InstallerError, Remedy, Spelling
from installer.host.events import STDERR, leave, line, log, patient, write


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


class _Speech:
    """How this process speaks, and the sentence by which it ends; a process has one stderr."""

    def __init__(self) -> None:
        self.readable = True
        self.spelling: Spelling = str
        self.outcome = ""


_stderr = _Stderr()
_speech = _Speech()


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    _speech.outcome = f"cannot {error.problem}; {error.remedy_spelt(_speech.spelling)}"
    if _speech.readable:
        _stderr.msg(f"toolkit-installer: {_speech.outcome}")
    else:
        log.error("failed", code=error.code, problem=error.problem, remedy=error.remedy)


def leave_outcome() -> None:
    """Leave the last sentence where Kubernetes looks for it, if we are in a container of its."""
    if _speech.outcome:
        leave(_speech.outcome)


def _note_outcome(event: str, fields: Mapping[str, Any]) -> None:
    if event in OUTCOMES:
        words = {
            name: ", ".join(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        _speech.outcome = OUTCOMES[event].format_map(words)


def _spelt(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Turn errors, which bring their code, and remedies into text, with options as the entry point spells."""
    event = {**fields}
    for name, value in fields.items():
        if isinstance(value, InstallerError):
            event["code"] = value.code
            event[name] = f"cannot {value.problem}; {value.remedy_spelt(_speech.spelling)}"
        elif isinstance(value, Remedy):
            event[name] = value.spelt(_speech.spelling)
    return event


def chosen() -> LogFormat:
    """Return how events look by now, for a program that writes to the same place."""
    return LogFormat.TEXT if _speech.readable else LogFormat.JSON


def configure(wanted: LogFormat, spoken: Mapping[str, str] | None = None, spelling: Spelling = str) -> None:
    """Choose how events look from here on; ``spoken`` and ``spelling`` give them and options other words."""
    _speech.spelling = spelling
    terminal = sys.stderr.isatty()
    _speech.readable = wanted is LogFormat.TEXT or (wanted is LogFormat.AUTO and terminal)
    write = _in_words if _speech.readable else _in_json
    words = spoken or {}

    def told(level: str, event: str, fields: Mapping[str, Any]) -> None:
        _note_outcome(event, fields)
        write(level, words.get(event, event), _spelt(fields))

    log.write = told


def _in_json(level: str, event: str, fields: dict[str, Any]) -> None:
    _stderr.msg(line(level, event, fields))


def _in_words(level: str, event: str, fields: dict[str, Any]) -> None:
    import structlog  # which loads as much as all of ours; nobody waits for a terminal

    colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    render = structlog.dev.ConsoleRenderer(colors=colors)
    _stderr.msg(str(render(None, level, fields | {"event": event, "level": level})))
