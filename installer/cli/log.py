"""Write structured events to stderr: as lines for a person, or as lines of JSON."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from installer.errors import Exit, InstallerError, Remedy, Spelling
from installer.host import events

# The good ends of the verbs that change a node, as a sentence for a reader who sees nothing but the sentence.
OUTCOMES: Final = {
    "installed": "installed, and configured {engines}",
    "nothing changed": "nothing changed: {engines} had everything in place",
    "everything kept": "everything kept: {reason}",
    "undo handed over": "undo handed over: on the node, journalctl -u {unit} shows how it ends",
    "undo complete": "undo complete: nothing of ours is left on this node",
    "nothing to undo": "nothing to undo: nothing of ours is in {install_dir} on this node",
}


class _Speech:
    """The form of this process's only log, and the sentence at the end of the process."""

    readable = True
    spelling: Spelling = str
    outcome = ""
    lost_lines = 0


_speech = _Speech()


def say_failed(error: InstallerError) -> None:
    """Report a failure with the remedy in a line: as a sentence, or as an event."""
    _speech.outcome = events.escape(str(_spell(error)).replace("\n", "\\n"))
    if _speech.readable:
        _write_line(f"toolkit-installer: {_speech.outcome}")
    else:
        fields = {"code": error.code, "problem": error.problem, "remedy": error.remedy}
        if error.exit is Exit.UNDO_INCOMPLETE:
            fields["undo"] = "incomplete"
        events.log.error("failed", **fields)
    events.log_others(error)


def conclude(act: Callable[[], int], *, leaves: bool) -> int:
    """Do an act, and report its failure.

    Args:
        act: returns an exit code.
        leaves: leave the last sentence of this process for Kubernetes.

    Returns:
        The exit code of the act, or of its failure.
    """
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
    """Write the last sentence for Kubernetes, if this process runs in a container of a pod."""
    if _speech.outcome:
        events.write_termination_log(_speech.outcome)


def wants_colors() -> bool:
    """Tell whether a terminal gets colours: not with NO_COLOR (no-color.org), and not if it has none."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def current_format() -> str:
    """Return the form of events, for a process with the same stderr."""
    return "text" if _speech.readable else "json"


def configure(wanted: str, spoken: Mapping[str, str] | None = None, spelling: Spelling = str) -> None:
    """Write events from here on in another form.

    Args:
        wanted: the value of ``--log-format``.
        spoken: other texts for some events.
        spelling: how options are spelt in remedies.
    """
    terminal = sys.stderr.isatty()
    _speech.spelling = spelling
    _speech.readable = wanted == "text" or (wanted == "auto" and terminal)
    texts = spoken or {}

    def write_event(level: str, event: str, fields: Mapping[str, Any]) -> None:
        if event in OUTCOMES:
            _speech.outcome = events.escape(_sentence(OUTCOMES[event], fields))
        spelt = {}
        for name, value in fields.items():
            spelt[name] = _spell(value)
        for value in fields.values():
            if isinstance(value, InstallerError):
                spelt["code"] = value.code
        if "problem" in spelt:  # of an ``InstallerError``
            spelt["problem"] = f"cannot {spelt['problem']}"
        text = texts.get(event, event)
        if _speech.readable:
            colors = terminal and wants_colors()
            _write_line(_render(level, text, spelt, colors=colors))
        else:
            _write_line(events.line(level, text, spelt))

    events.log.write = write_event


def _sentence(template: str, fields: Mapping[str, Any]) -> str:
    """Return the sentence of an outcome; the values of a list stand between commas."""
    words = dict(fields)
    for name, value in fields.items():
        if isinstance(value, list):
            words[name] = ", ".join(value)
    return template.format_map(words)


def _render(level: str, event: str, fields: Mapping[str, Any], *, colors: bool) -> str:
    """Return an event as a line for a person: the level unless it is info, the event, the fields."""
    from structlog import dev  # as large as all our modules: JSON does not wait for it

    style = dev.ConsoleRenderer.get_default_column_styles(colors=colors)
    level_styles = {"warning": style.level_warn, "error": style.level_error}
    column = partial(dev.KeyValueColumnFormatter, reset_style=style.reset)
    columns = [
        dev.Column("level", column(None, level_styles.get(level, ""), value_repr=str, postfix=":")),
        dev.Column("event", column(None, style.bright, value_repr=str)),
        dev.Column("", column(style.kv_key, style.kv_value, value_repr=events.spell_value)),
    ]
    shown: dict[str, Any] = {}
    if level != "info":
        shown["level"] = level
    shown["event"] = event
    shown.update(fields)
    render = dev.ConsoleRenderer(columns=columns, sort_keys=False)
    return str(render(None, level, shown))


def _spell(value: Any) -> Any:
    """Return an error or a remedy as text, with options as the entry point spells them; else the value."""
    if isinstance(value, InstallerError):
        return f"cannot {value.problem}; {_spell(value.remedy)}"
    if isinstance(value, Remedy):
        return value.spelt(_speech.spelling)
    return value


def _write_line(message: str) -> None:
    """Write a whole line; a missing or slow reader of stderr neither stops nor delays this process.

    A full pipe without a reader would delay us for ever, even with a stop pending. A line without room after
    ``PATIENCE_S`` is lost, and later lines do not wait until there is room again.
    """
    text = f"{message}\n"
    goes_on = events.patient()
    if _speech.lost_lines:
        text = f"({_speech.lost_lines} lines were lost here)\n{text}"
        goes_on = _give_up
    is_written = events.write(events.STDERR, text.encode(errors="backslashreplace"), goes_on)
    if is_written:
        _speech.lost_lines = 0
    else:
        _speech.lost_lines += 1


def _give_up() -> bool:
    """Do not wait for room."""
    return False
