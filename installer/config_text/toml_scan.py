"""Where the parts of a TOML text stand: headers, pairs, values and what is in them.

The text has passed ``tomllib``, so nothing here diagnoses; what is not understood
is an error all the same.
"""

import re
import tomllib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from sys import intern
from typing import Final, NamedTuple

from msgspec import Struct

from installer.config_text.model import Key
from installer.config_text.tree import TextError

# Quantifiers are possessive (``*+``): nothing is kept to come back to, so megabytes take no memory.
QUOTED: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\])*+"' + r"|'[^']*+'",
    re.DOTALL,
)
BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*+")
SPACE: Final = re.compile(r"[ \t]*")
VOID: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
# Lines that end what they begin: empty ones, comments, and pairs without brackets within brackets. Behind
# a value there can only be a comment. Any other line is left to ``_pair``.
# Each is atomic: Debian 12's Python 3.11.2 goes on where one failed half way (python/cpython#106052).
LINES: Final = r"""(?:(?>
        [ \t\r]*+ (?:\#[^\n]*+)? \n
      | {unless} [ \t]*+ (?:[A-Za-z0-9_.\-]++ | "[^"\\\n]*+" | '[^'\n]*+' | [ \t]++)++ = [ \t]*+
        (?:
            [^\s\[{"'] [^\n]*+
          | "(?!"") (?:[^"\\\n]++ | \\.)*+ " [^\n]*+
          | '(?!'') [^'\n]*+ ' [^\n]*+
          | \[ (?:[^\[\]{}"'\#\n]++ | "(?!"") (?:[^"\\\n]++ | \\.)*+ " | '(?!'') [^'\n]*+ ')*+ \] [^\n]*+
        ) \n
    ))*+"""
PLAIN_LINES: Final = re.compile(LINES.replace("{unless}", ""), re.VERBOSE)
TO_BRACKET: Final = re.compile(
    rf"""(?>[^"'\#\[\]{{}}]++|\[[^"'\#\[\]{{}}]*+\]|\#[^\n]*+|{QUOTED.pattern})*+[\[\]{{}}]""", re.DOTALL
)


class Node(Struct, frozen=True):
    """The span of a value, of its ``items`` if it is an array, its ``pairs`` if an inline table."""

    start: int
    end: int
    items: tuple["Node", ...] | None = None
    pairs: tuple["Pair", ...] | None = None


class Pair(Struct, frozen=True):
    """``name = value``; ``raw`` is the name's parts as they are written."""

    name: Key
    raw: Key
    start: int
    value: Node


@lru_cache(maxsize=64)
def lines_of_others(first: str) -> re.Pattern[str]:
    """Return what takes lines as ``PLAIN_LINES`` does, but for those that may be of a name's."""
    unless = rf"""(?![ \t]*+ (?:["'] | {re.escape(first)} (?![A-Za-z0-9_\-]) ))"""
    return re.compile(LINES.replace("{unless}", unless), re.VERBOSE)


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

    def pairs(self, text: str, first: str | None = None) -> Iterator[Pair]:
        """Yield the pairs that stand here in ``text``, or those whose name begins with ``first``."""
        if not self.inline:
            return _pairs(text, self.end, self.stop, first)
        found = _inline(text, self.start).pairs or ()
        return (pair for pair in found if first in {None, pair.name[0]})

    def last(self, text: str) -> Pair | None:
        """Return the last of the pairs, which may be very many; None where there is none."""
        return next(iter(deque(self.pairs(text), maxlen=1)), None)


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
        for table in (
            _with_inline(text, section, key) if section.name == key[: len(section.name)] else (section,)
        )
    )


def array_at(text: str, pos: int) -> Node:
    """Return the array that starts at ``pos``."""
    return _value(text, pos)


def is_first_header(text: str, pos: int) -> bool:
    """Return whether a header is written at ``pos``, with nothing but space before it on its line."""
    return text.startswith("[", _skip(SPACE, text, pos))


def comma_after(text: str, pos: int) -> int | None:
    """Return where the comma is that follows ``pos`` behind nothing but space and comments."""
    pos = _skip(VOID, text, pos)
    return pos if text.startswith(",", pos) else None


def _with_inline(text: str, table: Table, key: Key) -> Iterator[Table]:
    yield table
    depth = len(table.name)
    for pair in table.pairs(text, key[depth]) if depth < len(key) else ():
        name, value = table.name + pair.name, pair.value
        if value.pairs is not None and name == key[: len(name)]:
            below = Table(name, (), value.start, value.end, value.end, inline=True)
            yield from _with_inline(text, below, key)


LONG: Final = 1 << 14  # what is shorter is read line by line sooner than its pattern is compiled

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
        pos = _skip(VOID, text, _skip(PLAIN_LINES, text, pos))
        if pos == len(text) or text[pos] == "[":
            return pos
        pos = _end(text, _named(text, pos)[2])


def _pairs(text: str, pos: int, stop: int, first: str | None = None) -> Iterator[Pair]:
    lines = VOID if first is None or stop - pos < LONG else lines_of_others(first)
    while (pos := _skip(VOID, text, _skip(lines, text, pos))) < stop:
        name, raw, value = _named(text, pos)
        if first in {None, name[0]}:
            pair = Pair(name, raw, pos, _value(text, value))
            yield pair
            pos = pair.value.end
        else:
            pos = _end(text, value)


def _pair(text: str, start: int) -> Pair:
    name, raw, value = _named(text, start)
    return Pair(name, raw, start, _value(text, value))


def _named(text: str, pos: int) -> tuple[Key, Key, int]:
    """Return the name of a pair, as it is written too, and where its value begins."""
    name, raw, pos = _name(text, pos)
    _expect(text, pos, "=")
    return name, raw, _skip(SPACE, text, pos + 1)


def _end(text: str, pos: int) -> int:
    """Return where a value ends; what is in it is not looked at."""
    if text[pos : pos + 1] not in {"[", "{"}:
        return _value(text, pos).end
    pos, depth = pos + 1, 1
    while depth:
        bracket = TO_BRACKET.match(text, pos)
        if bracket is None:
            raise _unclear(text, pos)
        pos = bracket.end()
        depth += 1 if text[pos - 1] in "[{" else -1
    return pos


def _name(text: str, pos: int) -> tuple[Key, Key, int]:
    raw: list[str] = []
    while True:
        pos = _skip(SPACE, text, pos)
        part = QUOTED.match(text, pos) or BARE.match(text, pos)
        if part is None:
            raise _unclear(text, pos)
        raw.append(intern(part[0]))
        pos = _skip(SPACE, text, part.end())
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
    quoted = QUOTED.match(text, pos)
    if quoted is not None:
        return Node(pos, quoted.end())
    scalar = SCALAR.match(text, pos)
    if scalar is None:
        raise _unclear(text, pos)
    return Node(pos, pos + len(scalar[0].rstrip(" \t")))


def _array(text: str, start: int) -> Node:
    items: list[Node] = []
    pos = _skip(VOID, text, start + 1)
    while not text.startswith("]", pos):
        items.append(_value(text, pos))
        pos = _after_comma(text, items[-1].end, "]")
    return Node(start, pos + 1, items=tuple(items))


def _inline(text: str, start: int) -> Node:
    pairs: list[Pair] = []
    pos = _skip(VOID, text, start + 1)
    while not text.startswith("}", pos):
        pairs.append(_pair(text, pos))
        pos = _after_comma(text, pairs[-1].value.end, "}")
    return Node(start, pos + 1, pairs=tuple(pairs))


def _after_comma(text: str, pos: int, closing: str) -> int:
    pos = _skip(VOID, text, pos)
    if text.startswith(",", pos):
        return _skip(VOID, text, pos + 1)
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
