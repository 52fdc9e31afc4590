"""A config as it may be shown: all keys, and the values of the keys of runtimes.

All other values and the comments are masked, for a secret may stand in any of them. The number of lines stays
the same, so that a diff of the texts can be shown in masked lines.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from installer.config_text import Pair, Syntax, TextError, json, toml

MASK: Final = "***"
_COMMENT: Final = re.compile(r"#.*")
_PLAIN: Final = frozenset({"true", "false", "null", "[]"})
# The keys with shown values, spelled without case, hyphens and underscores.
_SHOWN: Final = frozenset(
    {
        "version",
        "imports",
        "disabledplugins",
        "defaultruntime",
        "defaultruntimename",
        "enablecdi",
        "runtimetype",
        "runtimepath",
        "runtimeroot",
        "runtimeengine",
        "path",
        "binaryname",
        "runtime",
        "monitorpath",
        "monitorcgroup",
        "containerannotations",
        "podannotations",
        "cdispecdirs",
    }
)


class _Scanner(Protocol):
    """A module for finding the pairs between two braces."""

    def pairs(self, text: str, start: int) -> list[Pair]: ...


def mask(text: str, syntax: Syntax) -> str:
    """Return ``text`` with masked values; a text that is not understood is masked line by line."""
    try:
        hidden = sorted(_find_hidden(text, syntax))
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)

    parts = []
    pos = 0
    for start, end in hidden:
        newlines = "\n" * text.count("\n", start, end)
        parts += [text[pos:start], MASK, newlines]
        pos = end
    parts.append(text[pos:])
    shown = "".join(parts)
    if syntax is Syntax.TOML:
        return _COMMENT.sub(f"# {MASK}", shown)
    return shown


def _find_hidden(text: str, syntax: Syntax) -> Iterator[tuple[int, int]]:
    """Yield the spans to be masked, comments aside."""
    if syntax is Syntax.TOML:
        for table in toml.tables(text, ()):
            yield from _hide_name(text, table.start, table.end)
            yield from _hide_values(text, toml, table.pairs(text))
    elif "{" in text:
        start = text.index("{")
        json.value(text[start:])
        yield from _hide_values(text, json, json.pairs(text, start))


def _hide_values(text: str, scanner: _Scanner, pairs: Iterable[Pair]) -> Iterator[tuple[int, int]]:
    """Yield the spans to be masked in ``pairs``, and in the pairs within them."""
    for pair in pairs:
        yield from _hide_name(text, pair.start, pair.value)
        if text[pair.value] == "{":
            yield from _hide_values(text, scanner, scanner.pairs(text, pair.value))
            continue
        name = re.sub("[-_]", "", pair.name[-1].lower())
        literal = text[pair.value : pair.end]
        if name not in _SHOWN and literal not in _PLAIN:
            yield pair.value, pair.end


def _hide_name(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the span of a name that may be an address with a password, also if written with escapes."""
    name = text[start:end]
    if "@" in name or "\\" in name:
        yield start, end
