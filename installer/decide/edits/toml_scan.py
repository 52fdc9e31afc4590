"""Where the parts of a TOML text stand: headers, pairs, values and what is in them.

The text has passed ``tomllib``, so nothing here diagnoses; what is not understood
is an error all the same.
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from sys import intern
from typing import Final, NamedTuple

from installer.decide.edits.model import Key
from installer.decide.edits.tree import TextError

# Quantifiers are possessive (``*+``): nothing is kept to come back to, so megabytes take no memory.
_QUOTED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\])*+"' + r"|'[^']*+'",
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*+")
_SPACE: Final = re.compile(r"[ \t]*")
_VOID: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
# Lines that end what they begin: empty ones, comments, and pairs without brackets within brackets. Behind
# a value there can only be a comment. Any other line is left to ``_pair``.
# Each is atomic: Debian 12's Python 3.11.2 goes on where one failed half way (python/cpython#106052).
_PLAIN_LINES: Final = re.compile(
    r"""(?:(?>
        [ \t\r]*+ (?:\#[^\n]*+)? \n
      | [ \t]*+ (?:[A-Za-z0-9_.\-]++ | "[^"\\\n]*+" | '[^'\n]*+' | [ \t]++)++ = [ \t]*+
        (?:
            [^\s\[{"'] [^\n]*+
          | "(?!"") (?:[^"\\\n]++ | \\.)*+ " [^\n]*+
          | '(?!'') [^'\n]*+ ' [^\n]*+
          | \[ (?:[^\[\]{}"'\#\n]++ | "(?!"") (?:[^"\\\n]++ | \\.)*+ " | '(?!'') [^'\n]*+ ')*+ \] [^\n]*+
        ) \n
    ))*+""",
    re.VERBOSE,
)


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

    def pairs(self, text: str) -> tuple[Pair, ...]:
        """Return the pairs that stand here in ``text``; they are only looked at when asked for."""
        if self.inline:
            return _inline(text, self.start).pairs or ()
        return tuple(_pairs(text, self.end, self.stop))


class _Section(NamedTuple):
    """A header and all up to the next one, by lengths: they stay true when text before it changes."""

    name: Key
    raw: Key
    header: int
    length: int


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
        for table in (_with_inline(text, section) if section.name == key[: len(section.name)] else (section,))
    )


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


def _with_inline(text: str, table: Table) -> Iterator[Table]:
    yield table
    for pair in table.pairs(text):
        value = pair.value
        if value.pairs is not None:
            name = table.name + pair.name
            yield from _with_inline(text, Table(name, (), value.start, value.end, value.end, inline=True))


# The text that was scanned last, with its sections: an edit changes a few lines of what may be megabytes.
_latest: Final[list[tuple[str, tuple[_Section, ...]]]] = []


@lru_cache(maxsize=1)
def _sections(text: str) -> tuple[Table, ...]:
    sections = _rescanned(text, *_latest[0]) if _latest else tuple(_scan(text, 0, root=True))
    _latest[:] = [(text, sections)]
    starts = accumulate((section.length for section in sections), initial=0)
    return tuple(
        Table(name, raw, start, start + header, start + length)
        for (name, raw, header, length), start in zip(sections, starts, strict=False)
    )


def _rescanned(text: str, before: str, sections: tuple[_Section, ...]) -> tuple[_Section, ...]:
    """Return the sections of ``text``: those of the text ``before`` where both are the same."""
    head = _common(text, before)
    tail = _common(text[head:][::-1], before[head:][::-1])
    starts = list(accumulate((section.length for section in sections), initial=0))[:-1]
    first = max(bisect_left(starts, head) - 1, 0)
    grown = len(text) - len(before)
    same = {
        start + grown: index for index, start in enumerate(starts) if index and start >= len(before) - tail
    }
    found: list[_Section] = []
    pos = starts[first]
    for section in _scan(text, pos, root=first == 0):
        found.append(section)
        pos += section.length
        if pos in same:
            return (*sections[:first], *found, *sections[same[pos] :])
    return (*sections[:first], *found)


def _common(one: str, other: str) -> int:
    """Return with how many equal characters both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _scan(text: str, start: int, *, root: bool) -> Iterator[_Section]:
    """Yield the sections from ``start`` on, where the text or, if not ``root``, a header begins."""
    while root or start < len(text):
        name, raw, end = ((), (), start) if root else _header(text, start)
        stop = _next_header(text, end)
        yield _Section(name, raw, end - start, stop - start)
        start, root = stop, False


def _header(text: str, pos: int) -> tuple[Key, Key, int]:
    brackets = 2 if text.startswith("[[", pos) else 1
    name, raw, pos = _name(text, pos + brackets)
    _expect(text, pos, "]" * brackets)
    return name, raw, pos + brackets


def _next_header(text: str, pos: int) -> int:
    """Return where the next header begins behind the end of a header or of a value, or the text ends."""
    while True:
        pos = _skip(_VOID, text, _skip(_PLAIN_LINES, text, pos))
        if pos == len(text) or text[pos] == "[":
            return pos
        pos = _pair(text, pos).value.end


def _pairs(text: str, pos: int, stop: int) -> Iterator[Pair]:
    while (pos := _skip(_VOID, text, pos)) < stop:
        pair = _pair(text, pos)
        yield pair
        pos = pair.value.end


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
        raw.append(intern(part[0]))
        pos = _skip(_SPACE, text, part.end())
        if not text.startswith(".", pos):
            written = tuple(raw)
            name = tuple(map(_unquoted, raw))
            return (written if name == written else name), written, pos
        pos += 1


def _unquoted(part: str) -> str:
    if part[0] not in "\"'":
        return part
    return intern(part[1:-1] if "\\" not in part else str(tomllib.loads(f"x = {part}")["x"]))


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
