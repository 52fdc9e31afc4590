"""Where the parts of a TOML text stand: headers, pairs, values and what is in them.

The text has passed ``tomllib``, so nothing here diagnoses; what is not understood
is an error all the same.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from installer.decide.edits.model import Key
from installer.decide.edits.tree import TextError

_QUOTED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\])*"' + r"|'[^']*'",
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*")
_SPACE: Final = re.compile(r"[ \t]*")
_VOID: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")


@dataclass(frozen=True, slots=True)
class Node:
    """The span of a value, of its ``items`` if it is an array, its ``pairs`` if an inline table."""

    start: int
    end: int
    items: tuple["Node", ...] | None = None
    pairs: tuple["Pair", ...] | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """``name = value``; ``raw`` is the name's parts as they are written."""

    name: Key
    raw: Key
    start: int
    value: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A place where pairs stand: below a header, before the first one, or between braces.

    ``start`` and ``end`` are the span of the header or of the braces. ``name`` is
    the whole way from the root; ``raw`` the header's parts as they are written.
    """

    name: Key
    raw: Key
    start: int
    end: int
    pairs: tuple[Pair, ...]
    inline: bool = False


@lru_cache(maxsize=4)
def tables(text: str) -> tuple[Table, ...]:
    """Return the tables of ``text``, the root first, inline ones behind those they are in.

    Elements of ``[[x]]`` are all called x; tables between brackets have no name
    and are left out. A key cannot lead to either.

    Raises:
        TextError: something is not understood.
    """
    return tuple(table for section in _sections(text) for table in _with_inline(section))


def array_at(text: str, pos: int) -> Node:
    """Return the array that starts at ``pos``."""
    return _value(text, pos)


def is_first_header(text: str, pos: int) -> bool:
    """Return whether a header is written at ``pos``, with nothing but space before it on its line."""
    return text.startswith("[", _skip(_SPACE, text, pos))


def comma_after(text: str, pos: int) -> int | None:
    """Return where the comma is that follows ``pos`` behind nothing but space and comments."""
    pos = _skip(_VOID, text, pos)
    return pos if text.startswith(",", pos) else None


def _with_inline(table: Table) -> Iterator[Table]:
    yield table
    for pair in table.pairs:
        value = pair.value
        if value.pairs is not None:
            name = table.name + pair.name
            yield from _with_inline(Table(name, (), value.start, value.end, value.pairs, inline=True))


def _sections(text: str) -> Iterator[Table]:
    name: Key = ()
    raw: Key = ()
    start = end = 0
    pairs: list[Pair] = []
    pos = _skip(_VOID, text, 0)
    while pos < len(text):
        if text[pos] == "[":
            yield Table(name, raw, start, end, tuple(pairs))
            pairs, start = [], pos
            brackets = 2 if text.startswith("[[", pos) else 1
            name, raw, pos = _name(text, pos + brackets)
            _expect(text, pos, "]" * brackets)
            pos = end = pos + brackets
        else:
            pair = _pair(text, pos)
            pairs.append(pair)
            pos = pair.value.end
        pos = _skip(_VOID, text, pos)
    yield Table(name, raw, start, end, tuple(pairs))


def _pair(text: str, start: int) -> Pair:
    name, raw, pos = _name(text, start)
    _expect(text, pos, "=")
    return Pair(name, raw, start, _value(text, _skip(_SPACE, text, pos + 1)))


def _name(text: str, pos: int) -> tuple[Key, Key, int]:
    raw: list[str] = []
    while True:
        pos = _skip(_SPACE, text, pos)
        part = _QUOTED.match(text, pos) or _BARE.match(text, pos)
        if part is None:
            raise _unclear(text, pos)
        raw.append(part[0])
        pos = _skip(_SPACE, text, part.end())
        if not text.startswith(".", pos):
            return tuple(_unquoted(part) for part in raw), tuple(raw), pos
        pos += 1


def _unquoted(part: str) -> str:
    if part[0] not in "\"'":
        return part
    return part[1:-1] if "\\" not in part else str(tomllib.loads(f"x = {part}")["x"])


def _value(text: str, pos: int) -> Node:
    if text.startswith("[", pos):
        return _array(text, pos)
    if text.startswith("{", pos):
        return _inline(text, pos)
    quoted = _QUOTED.match(text, pos)
    if quoted is not None:
        return Node(pos, quoted.end())
    scalar = _SCALAR.match(text, pos)
    if scalar is None:
        raise _unclear(text, pos)
    return Node(pos, pos + len(scalar[0].rstrip(" \t")))


def _array(text: str, start: int) -> Node:
    items: list[Node] = []
    pos = _skip(_VOID, text, start + 1)
    while not text.startswith("]", pos):
        items.append(_value(text, pos))
        pos = _after_comma(text, items[-1].end, "]")
    return Node(start, pos + 1, items=tuple(items))


def _inline(text: str, start: int) -> Node:
    pairs: list[Pair] = []
    pos = _skip(_VOID, text, start + 1)
    while not text.startswith("}", pos):
        pairs.append(_pair(text, pos))
        pos = _after_comma(text, pairs[-1].value.end, "}")
    return Node(start, pos + 1, pairs=tuple(pairs))


def _after_comma(text: str, pos: int, closing: str) -> int:
    pos = _skip(_VOID, text, pos)
    if text.startswith(",", pos):
        return _skip(_VOID, text, pos + 1)
    _expect(text, pos, closing)
    return pos


def _skip(pattern: re.Pattern[str], text: str, pos: int) -> int:
    match = pattern.match(text, pos)
    return pos if match is None else match.end()


def _expect(text: str, pos: int, token: str) -> None:
    if not text.startswith(token, pos):
        raise _unclear(text, pos)


def _unclear(text: str, pos: int) -> TextError:
    line = text.count("\n", 0, pos) + 1
    column = pos - text.rfind("\n", 0, pos)
    return TextError(f"line {line}, column {column} is not understood")
