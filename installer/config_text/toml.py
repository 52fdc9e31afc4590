"""The spans of TOML text: where a key's value stands, and where a new one belongs.

Every function takes text that ``load`` has accepted, so nothing here diagnoses; what is not understood is an
error all the same. A line is added behind the end of the line before it and removed together with that line's
end: adding and removing mirror each other.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, NamedTuple

from installer.config_text import MOVED, Branch, Key, Number, Pair, TextError, Value, cut_pair

_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")
# A key of so many parts; tomllib keeps every beginning of a key, which takes the square of it.
DEEP: Final = re.compile(
    r"(?<![A-Za-z0-9_-])"
    r"""(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,256}+"|'[^'\n]{0,256}+')[ \t]*+\.[ \t]*+){32}"""
)
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
    """A place where pairs stand: below a header, before the first one, or between braces."""

    name: Key  # the whole way from the root
    raw: Key  # the header's parts as they are written
    start: int  # of the header, or of the braces
    end: int
    stop: int  # where its pairs end
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
    tables between brackets have no name and are left out. A key cannot lead to either. TextError where
    something is not understood.
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


def load(text: str) -> Branch:
    """Return the tree of ``text``; TextError where it is none, RecursionError where it is too deep."""
    if DEEP.search(text):
        raise RecursionError
    try:
        return tomllib.loads(text, parse_float=Number)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
        raise TextError(f"{place.rstrip(')')}: {reason[:1].lower()}{reason[1:]}") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise TextError("a number has more than 4300 digits") from error


def value(text: str) -> Any:
    """Return what a literal stands for."""
    return load(f"x = {text}")["x"]


def literal(value: Value) -> str:
    """Return ``value`` as TOML on one line, characters beyond ASCII as they are."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
        case Mapping():
            pairs = ", ".join(f"{_quote(name)} = {literal(child)}" for name, child in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case Sequence():
            return f"[{', '.join(literal(child) for child in value)}]"
        case date() | time():
            return value.isoformat()
        case _:
            raise TextError("TOML knows no null")


def span(text: str, key: Key) -> slice | None:
    """Return where the literal of ``key`` stands; None if there is none, or it is a table below a header."""
    place = _find_pair(text, key)
    return slice(place[1].value, place[1].end) if place else None


def remove(text: str, key: Key) -> str:
    """Return ``text`` without ``key``: without its line, or its place between the braces."""
    place = _find_pair(text, key)
    if place is None:
        raise TextError(MOVED)
    table, pair = place
    if not table.inline:
        return _remove_line(text, pair.start, pair.end)
    pairs = table.pairs(text)
    return cut_pair(text, pairs, pairs.index(pair))


def close(text: str, key: Key) -> str:
    """Return ``text`` without the header or the braces of ``key``, if no pair is left in them."""
    table = next((each for each in tables(text, key) if each.name == key and not each.pairs(text)), None)
    if table is None or table.inline:
        return remove(text, key) if table else text
    return _remove_line(text, table.start, table.end, header=True)


def insert(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``key`` where TOML allows it, written like its neighbours.

    That is behind the last pair of its table, between the braces of an inline
    one, beside a dotted one, and else below a header of its own at the end.
    """
    found = tables(text, key)
    for depth in range(len(key) - 1, -1, -1):
        parent, rest = key[:depth], key[depth:]
        own = next((table for table in found if table.name == parent), None)
        if own is not None and own.inline:
            return _insert_into_braces(text, own, rest, literal)
        if own is not None and len(rest) == 1 and literal != "{}":
            return _insert_into_section(text, own, f"{_quote(rest[0])} = {literal}")
        if own is None and (sibling := _find_dotted(text, found, parent)):
            table, pair = sibling
            raw = (*pair.raw[: depth - len(table.name)], *map(_quote, rest))
            added = f"{'.'.join(raw)} = {literal}"
            if table.inline:
                return f"{text[: pair.end]}, {added}{text[pair.end :]}"
            return _add_lines(text, pair.end, [_read_indent(text, pair.start) + added])
        if own is not None or any(table.name[:depth] == parent for table in found):
            break
    return _insert_below_header(text, found, key, literal)


def add_element(array: str, element: str) -> str:
    """Return the literal ``array`` with ``element`` at its end."""
    spans = items(array, 0)
    if not spans:
        head, newline, tail = array[:-1].rpartition("\n")
        if not newline:
            return f"[{element}{array[1:]}"
        eol = "\r\n" if head.endswith("\r") else "\n"
        head = head.removesuffix("\r")
        return f"{head}{eol}{tail}  {element},{eol}{tail}]"
    start, end = spans[-1]
    head, newline, tail = array[spans[-2][1] if len(spans) > 1 else 1 : start].rpartition("\n")
    line_start = ("\r\n" if head.endswith("\r") else "\n") + re.sub(r"[^ \t].*", "", tail)
    comma = comma_after(array, end)
    added = (line_start if newline else " ") + element
    at = end if comma is None else comma + 1
    if newline and (rest := _REST_OF_LINE.match(array, at)):  # nothing or a comment: it stays on its line
        at = rest.end()
    if comma is None:
        return f"{array[:end]},{array[end:at]}{added}{array[at:]}"
    return f"{array[:at]}{added},{array[at:]}"


def remove_element(array: str, index: int) -> str:
    """Return the literal ``array`` without its element ``index``, its comma and its line."""
    spans = items(array, 0)
    start, end = spans[index]
    comma = comma_after(array, end)
    if comma is not None:
        array = array[:end] + array[end:comma].strip(" \t") + array[comma + 1 :]
    elif index:
        comma = comma_after(array, spans[index - 1][1])
        if comma is not None:
            array = array[:comma] + array[comma + 1 :]
            start, end = start - 1, end - 1
    head, tail = array[:start].rstrip(" \t"), array[end:].lstrip(" \t")
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        return head.removesuffix("\n").removesuffix("\r") + tail
    if comma is not None and index == len(spans) - 1:
        return head + array[end:]
    return array[:start] + tail


def unopened(text: str, key: Key) -> bool:
    """Return whether ``key`` is a table only because headers name it on their way."""
    found = tables(text, key)
    named = any(table.name[: len(key)] == key for table in found)
    return named and all(table.name != key for table in found) and not _find_dotted(text, found, key)


def _find_pair(text: str, key: Key) -> tuple[Table, Pair] | None:
    on_the_way = (table for table in tables(text, key) if table.name == key[: len(table.name)] != key)
    found = ((table, pair) for table in on_the_way for pair in table.pairs(text, key[len(table.name)]))
    return next(((table, pair) for table, pair in found if table.name + pair.name == key), None)


def _find_dotted(text: str, found: Sequence[Table], key: Key) -> tuple[Table, Pair] | None:
    """Return the last pair that makes ``key`` a table by a dotted name, and where it stands."""
    for table in (table for table in found if table.name == key[: len(table.name)] != key):
        for pair in reversed(table.pairs(text, key[len(table.name)])):
            name = table.name + pair.name
            if len(key) < len(name) and name[: len(key)] == key:
                return table, pair
    return None


def _insert_into_braces(text: str, table: Table, rest: Key, literal: str) -> str:
    for name in reversed(rest[1:]):
        literal = f"{{ {_quote(name)} = {literal} }}"
    pair = f"{_quote(rest[0])} = {literal}"
    if pairs := table.pairs(text):
        end = pairs[-1].end
        return f"{text[:end]}, {pair}{text[end:]}"
    # What stood between the braces stays behind the pair: remove() finds it there.
    return text[: table.start + 1] + text[table.start + 1 : table.end - 1] + pair + text[table.start + 1 :]


def _insert_into_section(text: str, table: Table, pair: str) -> str:
    if pairs := table.pairs(text):
        return _add_lines(text, pairs[-1].end, [_read_indent(text, pairs[-1].start) + pair])
    if table.name:
        return _add_lines(text, table.end, [_read_indent(text, table.start) + pair])
    if not text:
        return f"{pair}\n"
    if text.startswith("[", _skip(_SPACE, text, 0)):  # its first line is a header
        eol = _read_eol(text, 0)
        return f"{pair}{eol}{eol}{text}"
    # Behind the comment the file begins with, be it a licence or about what follows.
    comment = re.match(r"(?:[ \t]*#[^\n]*\n(?=[ \t]*#))*", text)
    return _add_lines(text, comment.end() if comment else 0, [pair])


def _insert_below_header(text: str, found: Sequence[Table], key: Key, literal: str) -> str:
    name = key if literal == "{}" else key[:-1]
    raw, outer, inner = _find_style(text, found, name)
    lines = [f"{outer}[{'.'.join(raw)}]"]
    if literal != "{}":
        lines.append(f"{inner}{_quote(key[-1])} = {literal}")
    if not text:
        return "\n".join(lines) + "\n"
    end = _find_eol(text, len(text)) if text.endswith("\n") else len(text)
    return _add_lines(text, end, ["", *lines])


def _find_style(text: str, found: Sequence[Table], name: Key) -> tuple[Key, str, str]:
    """Return how headers like ``name`` are written: their parts, their indentation, that of their pairs."""
    raw: Key = ()
    outer = inner = ""
    headers = [table for table in found if table.raw and (table.name[0] == name[0] or len(name) == 1)]
    for table in headers:
        common = takewhile(lambda pair: pair[0] == pair[1], zip(table.name, name, strict=False))
        raw = max(raw, table.raw[: len([*common])], key=len)
        if table.name == name[:-1]:
            outer, inner = _read_indents(text, table)
            # Where headers are indented, a sub-table stands at the height of its parent's pairs.
            outer, inner = (inner, inner + inner.removeprefix(outer)) if outer else (outer, inner)
    siblings = [table for table in headers if len(table.name) == len(name) and table.name[:-1] == name[:-1]]
    if siblings:
        outer, inner = _read_indents(text, siblings[-1])
    return (*raw, *map(_quote, name[len(raw) :])), outer, inner


def _read_indents(text: str, table: Table) -> tuple[str, str]:
    outer = _read_indent(text, table.start)
    return outer, next((_read_indent(text, pair.start) for pair in table.pairs(text)), outer)


def _add_lines(text: str, pos: int, lines: Sequence[str]) -> str:
    """Return ``text`` with ``lines`` behind the line in which ``pos`` is."""
    end, eol = _find_line_end(text, pos), _read_eol(text, pos)
    return text[:end] + "".join(eol + line for line in lines) + text[end:]


def _remove_line(text: str, start: int, end: int, *, header: bool = False) -> str:
    """Return ``text`` without the line from ``start`` to ``end``, but with a comment that follows on it."""
    line_start, line_end = text.rfind("\n", 0, start) + 1, _find_line_end(text, end)
    if text[end:line_end].strip():
        return text[:start] + text[end:].lstrip(" \t")
    if line_start == 0:
        rest = re.sub(r"\A\r?\n", "", text[line_end:])
        alone = re.match(r"\r?\n", rest)
        # What is added above a header comes with an empty line, see _insert_into_section().
        above_header = alone and rest.startswith("[", _skip(_SPACE, rest, alone.end()))
        return rest[alone.end() :] if alone and above_header else rest
    cut = _find_eol(text, line_start)
    above = text.rfind("\n", 0, cut) + 1
    if header and 0 < above == cut:
        cut = _find_eol(text, above)
    return text[:cut] + text[line_end:]


def _find_line_end(text: str, pos: int) -> int:
    newline = text.find("\n", pos)
    return len(text) if newline < 0 else _find_eol(text, newline + 1)


def _find_eol(text: str, after: int) -> int:
    """Return where the line end that stops at ``after`` begins."""
    return after - (2 if text.endswith("\r\n", 0, after) else 1)


def _read_eol(text: str, pos: int) -> str:
    newline = text.find("\n", pos)
    if newline < 0:
        newline = text.rfind("\n")
    return "\r\n" if newline > 0 and text[newline - 1] == "\r" else "\n"


def _read_indent(text: str, pos: int) -> str:
    return text[text.rfind("\n", 0, pos) + 1 : pos]


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)
