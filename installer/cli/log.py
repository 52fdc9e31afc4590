"""Structured events in the past tense, to stderr: JSON lines off a terminal, readable ones on it."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from installer.errors import Exit, InstallerError, Remedy, Spelling
from installer.host import events

# How the verbs that change a node may end well, as a sentence for whoever finds nothing but that.
OUTCOMES: Final = {
    "installed": "installed, and configured {engines}",
    "nothing changed": "nothing changed: {engines} had everything in place",
    "everything kept": "everything kept: {reason}",
    "undo handed over": "undo handed over: on the node, journalctl -u {unit} shows how it ends",
    "undo complete": "undo complete: nothing of ours is left on this node",
    "nothing to undo": "nothing to undo: nothing of ours is in {install_dir} on this node",
}


class _Speech:
    """How this process speaks, which has one stderr, and the sentence by which it ends."""

    readable = True
    spelling: Spelling = str
    outcome = ""
    lost_lines = 0


_speech = _Speech()


def say_failed(error: InstallerError) -> None:
    """Say in one line what could not be done and what to do about it, as a sentence or as an event."""
    _speech.outcome = _spell(error)
    if _speech.readable:
        _write_line(f"toolkit-installer: {_speech.outcome}")
    else:
        left = {"undo": "incomplete"} if error.exit is Exit.UNDO_INCOMPLETE else {}
        events.log.error("failed", code=error.code, problem=error.problem, remedy=error.remedy, **left)
    events.log_others(error)


def conclude(act: Callable[[], int], *, leaves: bool) -> int:
    """Return the exit code of ``act``, whose error is said; ``leaves`` its last sentence for Kubernetes."""
    try:
        with events.internal_errors():
            return act()
    except InstallerError as error:
        say_failed(error)
        return error.exit
    finally:
        if leaves:
            leave_outcome()


def leave_outcome() -> None:
    """Leave the last sentence where Kubernetes looks for it, if we are in a container of its."""
    if _speech.outcome:
        events.write_termination_log(_speech.outcome)


def current_format() -> str:
    """Return how events look, for a program that writes to the same place."""
    return "text" if _speech.readable else "json"


def configure(wanted: str, spoken: Mapping[str, str] | None = None, spelling: Spelling = str) -> None:
    """Write from here on as ``--log-format`` says; ``spoken`` and ``spelling`` give other words."""
    terminal = sys.stderr.isatty()
    _speech.spelling = spelling
    _speech.readable = wanted == "text" or (wanted == "auto" and terminal)

    def write_event(level: str, event: str, fields: Mapping[str, Any]) -> None:
        if event in OUTCOMES:
            lists = {name: ", ".join(each) for name, each in fields.items() if isinstance(each, list)}
            _speech.outcome = OUTCOMES[event].format_map({**fields, **lists})
        spelt = {name: _spell(value) for name, value in fields.items()}
        for error in (each for each in fields.values() if isinstance(each, InstallerError)):
            spelt["code"] = error.code
        event = (spoken or {}).get(event, event)
        if "problem" in spelt:  # of an ``InstallerError``
            spelt["problem"] = f"cannot {spelt['problem']}"
        if _speech.readable:
            _write_line(_render(level, event, spelt, colors=terminal and "NO_COLOR" not in os.environ))
        else:
            _write_line(events.line(level, event, spelt))

    events.log.write = write_event


def _render(level: str, event: str, fields: Mapping[str, Any], *, colors: bool) -> str:
    """Return an event as a line for a person: a level that is not info, the event, its fields."""
    from structlog import dev  # it loads as much as all of ours: only a terminal waits for it

    style = dev.ConsoleRenderer.get_default_column_styles(colors=colors)
    level_style = {"warning": style.level_warn, "error": style.level_error}.get(level, "")
    look = partial(dev.KeyValueColumnFormatter, reset_style=style.reset)
    columns = [
        dev.Column("level", look(None, level_style, value_repr=str, postfix=":")),
        dev.Column("event", look(None, style.bright, value_repr=str)),
        dev.Column("", look(style.kv_key, style.kv_value, value_repr=events.spell_value)),
    ]
    shown = {"level": level} if level != "info" else {}
    render = dev.ConsoleRenderer(columns=columns, sort_keys=False)
    return str(render(None, level, {**shown, "event": event, **fields}))


def _spell(value: Any) -> Any:
    """Return an error, or a remedy, as text, with options as the entry point spells them."""
    if isinstance(value, InstallerError):
        return f"cannot {value.problem}; {_spell(value.remedy)}"
    return value.spelt(_speech.spelling) if isinstance(value, Remedy) else value


def _write_line(message: str) -> None:
    """Write a line whole; a reader that has gone away, or reads no more, is no reason to stop or to wait.

    A full pipe without a reader would hold us for ever, with a stop pending. What finds no room within
    ``PATIENCE_S`` is lost, and from then on nothing is waited for until there is room again.
    """
    lost = f"({_speech.lost_lines} lines were lost here)\n" if _speech.lost_lines else ""
    goes_on = (lambda: False) if lost else events.patient()
    written = events.write(events.STDERR, f"{lost}{message}\n".encode(errors="backslashreplace"), goes_on)
    _speech.lost_lines = 0 if written else _speech.lost_lines + 1
