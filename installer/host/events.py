"""What happened, told as events: a constant text in the past tense, and facts as its fields.

``installer.log`` chooses how they look. No library is loaded to tell one: each start tells a few.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Writer = Callable[[str, str, Mapping[str, Any]], None]


class Log:
    """Where events are told; ``write`` gets the level, the text and the fields of each."""

    def __init__(self, write: Writer) -> None:
        self.write = write

    def info(self, event: str, **fields: Any) -> None:
        """Tell what has happened."""
        self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Tell what somebody should look at."""
        self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Tell what has failed."""
        self.write("error", event, fields)


def line(fields: Mapping[str, Any]) -> str:
    """Return an event as one line of JSON; what JSON has no form for is shown as Python does."""
    return json.dumps(fields, default=repr)


def _write(level: str, event: str, fields: Mapping[str, Any]) -> None:
    sys.stderr.write(line({**fields, "event": event, "level": level}) + "\n")


log = Log(_write)
