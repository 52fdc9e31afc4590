"""Where the parts of a TOML text stand: headers, pairs, values and what is in them.

The text has passed ``tomllib``, so nothing here diagnoses; what is not understood
is an error all the same.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from installer.config_text.tree import Key, Pair, TextError

# Quantifiers are possessive (``*+``): nothing is kept to come back to, so megabytes take no memory. What they
# repeat is atomic: Debian 12's Python 3.11.2 goes on where one failed half way (python/cpython#106052).
_QUOTED: Final = (
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\])*+"' + r"|'[^']*+'"
)
_STRING: Final = re.compile(_QUOTED, re.DOTALL)
_PART: Final = re.compile(rf"[A-Za-z0-9_-]++|{_QUOTED}", re.DOTALL)
_NAME: Final = re.compile(
    rf"[ \t]*+((?>{_PART.pattern})(?>[ \t]*+\.[ \t]*+(?>{_PART.pattern}))*+)[ \t]*+", re.DOTALL
)
_SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*+")
_SPACE: Final = re.compile(r"[ \t]*+")
_VOID: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_PLAIN: Final = rf"""[^"'\#\[\]{{}}]++|\#[^\n]*+|{_QUOTED}"""
_TO_BRACKET: Final = re.compile(rf"(?>{_PLAIN})*+[\[\]{{}}]", re.DOTALL)
# The same within a value, where a bracket is no header.
_WITHIN: Final = re.compile(rf"(?>{_PLAIN}|\[[^\"'\#\[\]{{}}]*+\])*+[\[\]{{}}]", re.DOTALL)


class Table(NamedTuple):
    """A place where pairs stand: below a header, before the first one, or between braces.

    ``start`` and ``end`` are the span of the header or of the braces, ``stop`` is where its pairs end.
    ``name`` is the whole way from the root; ``raw`` the header's parts as they are written.
    """

    name: Key
    raw: Key
    start: int
    end: int
    stop: int
    inline: bool = False

    def pairs(self, text: str, first: str | None = None) -> list[Pair]:
        """Return the pairs that stand here in ``text``, or those whose name begins with ``first``."""
        begin, stop = (self.start + 1, self.end - 1) if self.inline else (self.end, self.stop)
        return [
            Pair(name, raw, begin + start, begin + value, begin + end)
            for name, raw, start, value, end in _read_pairs(text[begin:stop])
            if first in {None, name[0]}
        ]


def tables(text: str, key: Key) -> tuple[Table, ...]:
    """Return the tables of ``text``, the root first, inline ones behind those they are in.

    Inline ones only where they may be on the way to ``key``. Elements of ``[[x]]`` are all called x;
    tables between brackets have no name and are left out. A key cannot lead to either.

    Raises:
        TextError: something is not understood.
    """
    return tuple(
        table
        for section in _sections(text)
        for table in (
            _open_inline(text, section, key) if section.name == key[: len(section.name)] else (section,)
        )
    )


def pairs(text: str, start: int) -> list[Pair]:
    """Return the pairs of the inline table that starts at ``start``."""
    return Table((), (), start, _find_end(text, start), 0, inline=True).pairs(text)


def items(text: str, start: int) -> list[tuple[int, int]]:
    """Return the spans of what is in the array that starts at ``start``."""
    found: list[tuple[int, int]] = []
    pos = _skip(_VOID, text, start + 1)
    while not text.startswith("]", pos):
        found.append((pos, end := _find_end(text, pos)))
        pos = _skip_comma(text, end)
    return found


def is_first_header(text: str, pos: int) -> bool:
    """Return whether a header is written at ``pos``, with nothing but space before it on its line."""
    return text.startswith("[", _skip(_SPACE, text, pos))


def comma_after(text: str, pos: int) -> int | None:
    """Return where the comma is that follows ``pos`` behind nothing but space and comments."""
    pos = _skip(_VOID, text, pos)
    return pos if text.startswith(",", pos) else None


def _open_inline(text: str, table: Table, key: Key) -> Iterator[Table]:
    yield table
    depth = len(table.name)
    for pair in table.pairs(text, key[depth]) if depth < len(key) else ():
        name = table.name + pair.name
        if text[pair.value] == "{" and name == key[: len(name)]:
            yield from _open_inline(text, Table(name, (), pair.value, pair.end, pair.end, inline=True), key)


@lru_cache(maxsize=1)
def _sections(text: str) -> tuple[Table, ...]:
    """Return the root and what stands below each header; they are asked for again and again."""
    found = [Table((), (), 0, 0, _find_header(text, 0))]
    while (start := found[-1].stop) < len(text):
        brackets = 2 if text.startswith("[[", start) else 1
        name, raw, end = _read_name(text, start + brackets, "]" * brackets)
        found.append(Table(name, raw, start, end, _find_header(text, end)))
    return tuple(found)


def _find_header(text: str, pos: int) -> int:
    """Return where the next header begins behind the end of a header, or the text ends."""
    while bracket := _TO_BRACKET.match(text, pos):
        start = bracket.end() - 1
        if not text[text.rfind("\n", 0, start) + 1 : start].strip():
            return start
        pos = _find_end(text, start)
    return len(text)


@lru_cache(maxsize=8)
def _read_pairs(text: str) -> tuple[Pair, ...]:
    """Return the pairs of a text without headers, or of what stands between two braces."""
    found: list[Pair] = []
    pos = _skip(_VOID, text, 0)
    while pos < len(text):
        name, raw, value = _read_name(text, pos, "=")
        value = _skip(_SPACE, text, value)
        found.append(Pair(name, raw, pos, value, end := _find_end(text, value)))
        pos = _skip_comma(text, end)
    return tuple(found)


def _read_name(text: str, pos: int, closing: str) -> tuple[Key, Key, int]:
    """Return a name, its parts as they are written, and where what closes it ends."""
    found = _NAME.match(text, pos)
    if found is None or not text.startswith(closing, found.end()):
        raise _make_error(text, pos)
    raw = tuple(_PART.findall(found[1]))
    name = tuple(map(_unquote, raw))
    return (raw if name == raw else name), raw, found.end() + len(closing)


def _unquote(part: str) -> str:
    if part[0] not in "\"'":
        return part
    return part[1:-1] if "\\" not in part else str(tomllib.loads(f"x = {part}")["x"])


def _find_end(text: str, pos: int) -> int:
    """Return where a value ends; what is in it is not looked at."""
    if text[pos : pos + 1] not in {"[", "{"}:
        word = _STRING.match(text, pos) or _SCALAR.match(text, pos)
        if word is None:
            raise _make_error(text, pos)
        return pos + len(word[0].rstrip(" \t"))
    pos, depth = pos + 1, 1
    while depth:
        bracket = _WITHIN.match(text, pos)
        if bracket is None:
            raise _make_error(text, pos)
        pos = bracket.end()
        depth += 1 if text[pos - 1] in "[{" else -1
    return pos


def _skip_comma(text: str, pos: int) -> int:
    comma = comma_after(text, pos)
    return _skip(_VOID, text, pos if comma is None else comma + 1)


def _skip(pattern: re.Pattern[str], text: str, pos: int) -> int:
    match = pattern.match(text, pos)
    return pos if match is None else match.end()


def _make_error(text: str, pos: int) -> TextError:
    line = text.count("\n", 0, pos) + 1
    column = pos - text.rfind("\n", 0, pos)
    return TextError(f"line {line}, column {column} is not understood")
