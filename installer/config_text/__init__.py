"""Change the keys that are named in a config text, and not one byte else.

A config is text. A ``Want`` says what a key should hold; ``apply`` edits the
spans of the text that this takes and returns what it did as ``Edit`` rows, which
``undo`` reverts, also after others have edited the text.
"""

from installer.config_text.change import apply, list_missing, parse, undo
from installer.config_text.tree import (
    ABSENT,
    Absent,
    Edit,
    Key,
    Syntax,
    Tree,
    Value,
    Want,
    flatten,
    leaves,
    spellings,
    table,
    text,
    value_at,
)

__all__ = [
    "ABSENT",
    "Absent",
    "Edit",
    "Key",
    "Syntax",
    "Tree",
    "Value",
    "Want",
    "apply",
    "flatten",
    "leaves",
    "list_missing",
    "parse",
    "spellings",
    "table",
    "text",
    "undo",
    "value_at",
]
