"""A config as it may be shown: its keys, and the values of those that tell how runtimes are served.

All other values and the comments are masked, for a secret may stand in any of them. The lines stay what they
are, one for one, so that a diff of the texts can be shown in masked lines.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from installer.config_text import Pair, Syntax, TextError, json, toml

MASK: Final = "***"
_COMMENT: Final = re.compile(r"#.*")
_PLAIN: Final = frozenset({"true", "false", "null", "[]"})
# Spelled without case, hyphens and underscores.
_SHOWN: Final = frozenset(
    {
        *("version", "imports", "disabledplugins", "defaultruntime", "defaultruntimename", "enablecdi"),
        *("runtimetype", "runtimepath", "runtimeroot", "runtimeengine", "path", "binaryname", "runtime"),
        *("monitorpath", "monitorcgroup", "containerannotations", "podannotations", "cdispecdirs"),
    }
)


class _Scanner(Protocol):
    def pairs(self, text: str, start: int) -> list[Pair]: ...


def mask(text: str, syntax: Syntax) -> str:
    """Return ``text`` with the values masked that are not shown; of one that is not understood every line."""
    try:
        hidden = sorted(_find_hidden(text, syntax))
    except (TextError, RecursionError):
        return re.sub(r"[^\n]+", MASK, text)
    out, done = [], 0
    for start, end in hidden:
        out += [text[done:start], MASK, "\n" * text.count("\n", start, end)]
        done = end
    shown = "".join((*out, text[done:]))
    return _COMMENT.sub(f"# {MASK}", shown) if syntax is Syntax.TOML else shown


def _find_hidden(text: str, syntax: Syntax) -> Iterator[tuple[int, int]]:
    if syntax is Syntax.TOML:
        for table in toml.tables(text, ()):
            yield from _hide_name(text, table.start, table.end)
            yield from _hide_values(text, toml, table.pairs(text))
    elif "{" in text:
        start = text.index("{")
        json.value(text[start:])
        yield from _hide_values(text, json, json.pairs(text, start))


def _hide_values(text: str, scanner: _Scanner, pairs: Iterable[Pair]) -> Iterator[tuple[int, int]]:
    for pair in pairs:
        yield from _hide_name(text, pair.start, pair.value)
        if text[pair.value] == "{":
            yield from _hide_values(text, scanner, scanner.pairs(text, pair.value))
        elif (
            re.sub("[-_]", "", pair.name[-1].lower()) not in _SHOWN
            and text[pair.value : pair.end] not in _PLAIN
        ):
            yield pair.value, pair.end


def _hide_name(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the span of a name that may be an address with a password, be it in escapes."""
    if "@" in text[start:end] or "\\" in text[start:end]:
        yield start, end
