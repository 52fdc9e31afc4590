"""The spans of TOML text: where a key's value stands, and where a new key belongs.

Every function takes text accepted by ``load``, so no function explains a mistake in a text; a text not
understood is an error all the same. A line is added behind the end of the line before, and removed together
with the end of the line before: adding and removing mirror each other.
"""

import json
import re
import tomllib
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from functools import lru_cache
from typing import Any, Final, NamedTuple

from installer.config_text import MOVED, Branch, Key, Number, Pair, TextError, Value, cut_pair

_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")
# A key of 33 parts or more: tomllib keeps every beginning of a key, which takes the square of the parts.
DEEP: Final = re.compile(
    r"(?<![A-Za-z0-9_-])"
    r"""(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,256}+"|'[^'\n]{0,256}+')[ \t]*+\.[ \t]*+){32}"""
)
# Quantifiers are possessive (``*+``): nothing is kept to come back to, so megabytes take no memory. A
# repeated group is atomic: Debian 12's Python 3.11.2 goes on where a repetition failed half way
# (python/cpython#106052).
_QUOTED: Final = (
    r'"""(?>[^"\\]++|\\.|"{1,2}+(?!"))*+"{3,5}+'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\])*+"'
    r"|'[^']*+'"
)
_STRING: Final = re.compile(_QUOTED, re.DOTALL)
_PART: Final = re.compile(rf"[A-Za-z0-9_-]++|{_QUOTED}", re.DOTALL)
_NAME: Final = re.compile(
    rf"[ \t]*+((?>{_PART.pattern})(?>[ \t]*+\.[ \t]*+(?>{_PART.pattern}))*+)[ \t]*+", re.DOTALL
)
_SCALAR: Final = re.compile(r"[^\s,\[\]{}#=\"'][^,\]}#\r\n]*+")
# Reasons of tomllib with a name: a table with two headers, or a name with two kinds of value.
_REPEATED: Final = re.compile(
    r"Cannot (?:(?P<table>declare)|mutate immutable namespace|redefine namespace) (?P<name>\(.*\))(?: twice)?"
)
_SPACE: Final = re.compile(r"[ \t]*+")
_VOID: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_PLAIN: Final = rf"""[^"'\#\[\]{{}}]++|\#[^\n]*+|{_QUOTED}"""
_TO_BRACKET: Final = re.compile(rf"(?>{_PLAIN})*+[\[\]{{}}]", re.DOTALL)
# The next bracket within a value, where a bracket is no header; a flat array is skipped as a whole.
_WITHIN: Final = re.compile(rf"(?>{_PLAIN}|\[[^\"'\#\[\]{{}}]*+\])*+[\[\]{{}}]", re.DOTALL)


class Table(NamedTuple):
    """A place where pairs stand: below a header, before the first header, or between braces."""

    name: Key  # the full key, from the root
    raw: Key  # the header's parts as they are written
    start: int  # of the header, or of the braces
    end: int  # of the header, or of the braces
    stop: int  # the end of the table's pairs
    inline: bool = False

    def pairs(self, text: str, first: str | None = None) -> list[Pair]:
        """Return the pairs of this table in ``text``; given ``first``, only pairs with this first part."""
        if self.inline:
            begin = self.start + 1
            stop = self.end - 1
        else:
            begin = self.end
            stop = self.stop

        return [
            Pair(pair.name, pair.raw, begin + pair.start, begin + pair.value, begin + pair.end)
            for pair in _read_pairs(text[begin:stop])
            if first is None or pair.name[0] == first
        ]


def tables(text: str, key: Key) -> tuple[Table, ...]:
    """Return the tables of ``text``, the root first, each inline table behind its parent.

    Inline tables are included only on the way to ``key``. Elements of ``[[x]]`` are all called x; tables
    between brackets have no name and are left out. A key cannot lead to either.

    Raises:
        TextError: some text is not understood.
    """
    all_tables: list[Table] = []
    for section in _sections(text):
        if section.name == key[: len(section.name)]:
            all_tables += _open_inline(text, section, key)
        else:
            all_tables.append(section)
    return tuple(all_tables)


def pairs(text: str, start: int) -> list[Pair]:
    """Return the pairs of the inline table at ``start``."""
    end = _find_end(text, start)
    table = Table(name=(), raw=(), start=start, end=end, stop=end, inline=True)
    return table.pairs(text)


def items(text: str, start: int) -> list[tuple[int, int]]:
    """Return the spans of the elements of the array at ``start``."""
    spans: list[tuple[int, int]] = []
    pos = _skip(_VOID, text, start + 1)
    while not text.startswith("]", pos):
        end = _find_end(text, pos)
        spans.append((pos, end))
        pos = _skip_comma(text, end)
    return spans


def comma_after(text: str, pos: int) -> int | None:
    """Return the position of the next comma, behind nothing but space and comments; None if there is none."""
    pos = _skip(_VOID, text, pos)
    return pos if text.startswith(",", pos) else None


def _open_inline(text: str, table: Table, key: Key) -> Iterator[Table]:
    """Yield ``table``, then the inline tables within ``table`` on the way to ``key``."""
    yield table
    depth = len(table.name)
    if depth >= len(key):
        return

    for pair in table.pairs(text, key[depth]):
        name = table.name + pair.name
        if text[pair.value] == "{" and name == key[: len(name)]:
            inline = Table(name, (), start=pair.value, end=pair.end, stop=pair.end, inline=True)
            yield from _open_inline(text, inline, key)


@lru_cache(maxsize=1)
def _sections(text: str) -> tuple[Table, ...]:
    """Return the root and the table of each header; cached, because callers ask again and again."""
    start = _find_header(text, 0)
    sections = [Table(name=(), raw=(), start=0, end=0, stop=start)]
    while start < len(text):
        brackets = 2 if text.startswith("[[", start) else 1
        name, raw, end = _read_name(text, start + brackets, "]" * brackets)
        stop = _find_header(text, end)
        sections.append(Table(name, raw, start, end, stop))
        start = stop
    return tuple(sections)


def _find_header(text: str, pos: int) -> int:
    """Return the start of the next header behind ``pos``, the end of a header; or the length of the text."""
    bracket = _TO_BRACKET.match(text, pos)
    while bracket is not None:
        start = bracket.end() - 1
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if not before.strip():
            return start
        pos = _find_end(text, start)
        bracket = _TO_BRACKET.match(text, pos)
    return len(text)


@lru_cache(maxsize=8)
def _read_pairs(text: str) -> tuple[Pair, ...]:
    """Return the pairs of a text without headers, or of the text between two braces."""
    pairs: list[Pair] = []
    pos = _skip(_VOID, text, 0)
    while pos < len(text):
        name, raw, value = _read_name(text, pos, "=")
        value = _skip(_SPACE, text, value)
        end = _find_end(text, value)
        pairs.append(Pair(name, raw, pos, value, end))
        pos = _skip_comma(text, end)
    return tuple(pairs)


def _read_name(text: str, pos: int, closing: str) -> tuple[Key, Key, int]:
    """Return the name at ``pos``, the name's parts as written, and the end of ``closing`` behind the name."""
    match = _NAME.match(text, pos)
    if match is None or not text.startswith(closing, match.end()):
        raise _make_error(text, pos)
    raw = tuple(_PART.findall(match[1]))
    name = tuple(map(_unquote, raw))
    if name == raw:
        name = raw  # keep one tuple in memory, not two
    return name, raw, match.end() + len(closing)


def _unquote(part: str) -> str:
    """Return the text of a part of a name, without quotes and escapes."""
    if part[0] not in "\"'":
        return part
    if "\\" not in part:
        return part[1:-1]
    return str(tomllib.loads(f"x = {part}")["x"])


def _find_end(text: str, pos: int) -> int:
    """Return the end of the value at ``pos``, without reading an array's or a table's contents."""
    if text[pos : pos + 1] not in {"[", "{"}:
        word = _STRING.match(text, pos) or _SCALAR.match(text, pos)
        if word is None:
            raise _make_error(text, pos)
        return pos + len(word[0].rstrip(" \t"))

    pos += 1
    depth = 1
    while depth:
        bracket = _WITHIN.match(text, pos)
        if bracket is None:
            raise _make_error(text, pos)
        pos = bracket.end()
        if text[pos - 1] in "[{":
            depth += 1
        else:
            depth -= 1
    return pos


def _skip_comma(text: str, pos: int) -> int:
    """Return the position behind space, comments and at most one comma at ``pos``."""
    comma = comma_after(text, pos)
    if comma is not None:
        pos = comma + 1
    return _skip(_VOID, text, pos)


def _skip(pattern: re.Pattern[str], text: str, pos: int) -> int:
    """Return the end of the match of ``pattern`` at ``pos``, or ``pos``."""
    match = pattern.match(text, pos)
    return pos if match is None else match.end()


def _make_error(text: str, pos: int) -> TextError:
    """Return the error for text at ``pos`` that is not understood."""
    line = text.count("\n", 0, pos) + 1
    column = pos - text.rfind("\n", 0, pos)
    return TextError(f"line {line}, column {column} is not understood")


def load(text: str) -> Branch:
    """Return the tree of ``text``.

    Raises:
        TextError: the text is not valid.
        RecursionError: the text is nested too deeply.
    """
    if DEEP.search(text):
        raise RecursionError
    try:
        return tomllib.loads(text, parse_float=Number)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
        raise TextError(f"{place.rstrip(')')}: {_reword(reason)}") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise TextError("a number has more than 4300 digits") from error


def _reword(reason: str) -> str:
    """Return a reason of tomllib as a fragment; tomllib writes a repeated name as a tuple of Python."""
    if reason == "Cannot overwrite a value":
        return "a key is there twice"
    repeated = _REPEATED.fullmatch(reason)
    if repeated is None:
        return f"{reason[:1].lower()}{reason[1:]}"
    name = ".".join(map(_quote, literal_eval(repeated["name"])))
    return f"{'the table ' if repeated['table'] else ''}{name} is there twice"


def value(text: str) -> Any:
    """Return the value of a literal."""
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
    """Return the span of the literal of ``key``; None if ``key`` is missing, or a table below a header."""
    location = _find_pair(text, key)
    if location is None:
        return None
    _, pair = location
    return slice(pair.value, pair.end)


def remove(text: str, key: Key) -> str:
    """Return ``text`` without ``key``: without the key's line, or without the pair between the braces."""
    location = _find_pair(text, key)
    if location is None:
        raise TextError(MOVED)
    table, pair = location
    if not table.inline:
        return _remove_line(text, pair.start, pair.end)
    pairs = table.pairs(text)
    return cut_pair(text, pairs, pairs.index(pair))


def close(text: str, key: Key) -> str:
    """Return ``text`` without the header or the braces of ``key``, if no pair is left in them."""
    table = next((each for each in tables(text, key) if each.name == key and not each.pairs(text)), None)
    if table is None:
        return text
    if table.inline:
        return remove(text, key)
    return _remove_line(text, table.start, table.end, header=True)


def insert(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``key`` in an allowed place, written like the neighbours.

    The places, in this order: behind the last pair of the key's table, between the braces of an inline table,
    beside a dotted name, below a new header at the end.
    """
    all_tables = tables(text, key)
    for depth in range(len(key) - 1, -1, -1):
        parent = key[:depth]
        rest = key[depth:]
        own = next((table for table in all_tables if table.name == parent), None)
        if own is None:
            sibling = _find_dotted(text, all_tables, parent)
            if sibling is not None:
                table, pair = sibling
                raw = (*pair.raw[: depth - len(table.name)], *map(_quote, rest))
                return _insert_beside_pair(text, table, pair, f"{'.'.join(raw)} = {literal}")
            if any(table.name[:depth] == parent for table in all_tables):
                break
            continue

        if own.inline:
            return _insert_into_braces(text, own, rest, literal)
        if len(rest) == 1 and literal != "{}":
            return _insert_into_section(text, own, f"{_quote(rest[0])} = {literal}")
        break
    return _insert_below_header(text, all_tables, key, literal)


def add_element(array: str, element: str) -> str:
    """Return the literal ``array`` with ``element`` at the end."""
    spans = items(array, 0)
    if not spans:
        return _add_first_element(array, element)

    start, end = spans[-1]
    before = 1  # behind the bracket
    if len(spans) > 1:
        _, before = spans[-2]
    head, newline, tail = array[before:start].rpartition("\n")
    if newline:
        eol = "\r\n" if head.endswith("\r") else "\n"
        indent = re.sub(r"[^ \t].*", "", tail)
        added = eol + indent + element
    else:
        added = f" {element}"

    comma = comma_after(array, end)
    at = end if comma is None else comma + 1
    if newline:
        rest = _REST_OF_LINE.match(array, at)
        if rest is not None:  # nothing or a comment, which stays on its line
            at = rest.end()
    if comma is None:
        return f"{array[:end]},{array[end:at]}{added}{array[at:]}"
    return f"{array[:at]}{added},{array[at:]}"


def _add_first_element(array: str, element: str) -> str:
    """Return the empty literal ``array`` with ``element``."""
    head, newline, tail = array[:-1].rpartition("\n")
    if not newline:
        return f"[{element}{array[1:]}"
    eol = "\r\n" if head.endswith("\r") else "\n"
    head = head.removesuffix("\r")
    return f"{head}{eol}{tail}  {element},{eol}{tail}]"


def remove_element(array: str, index: int) -> str:
    """Return the literal ``array`` without the element ``index``, the element's comma and its line."""
    spans = items(array, 0)
    start, end = spans[index]
    comma = comma_after(array, end)
    if comma is not None:
        array = array[:end] + array[end:comma].strip(" \t") + array[comma + 1 :]
    elif index:
        _, previous_end = spans[index - 1]
        comma = comma_after(array, previous_end)
        if comma is not None:
            array = array[:comma] + array[comma + 1 :]
            start -= 1
            end -= 1

    head = array[:start].rstrip(" \t")
    tail = array[end:].lstrip(" \t")
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        return head.removesuffix("\n").removesuffix("\r") + tail
    if comma is not None and index == len(spans) - 1:
        return head + array[end:]
    return array[:start] + tail


def unopened(text: str, key: Key) -> bool:
    """Tell whether ``key`` is a table only because headers of its sub-tables name it."""
    all_tables = tables(text, key)
    if any(table.name == key for table in all_tables):
        return False
    if not any(table.name[: len(key)] == key for table in all_tables):
        return False
    return _find_dotted(text, all_tables, key) is None


def _find_pair(text: str, key: Key) -> tuple[Table, Pair] | None:
    """Return the first pair of ``key``, and the pair's table."""
    for table in _list_parents(tables(text, key), key):
        for pair in table.pairs(text, key[len(table.name)]):
            if table.name + pair.name == key:
                return table, pair
    return None


def _find_dotted(text: str, all_tables: Sequence[Table], key: Key) -> tuple[Table, Pair] | None:
    """Return the last pair that makes ``key`` a table by a dotted name, and the pair's table."""
    for table in _list_parents(all_tables, key):
        for pair in reversed(table.pairs(text, key[len(table.name)])):
            name = table.name + pair.name
            if len(key) < len(name) and name[: len(key)] == key:
                return table, pair
    return None


def _list_parents(all_tables: Sequence[Table], key: Key) -> Iterator[Table]:
    """Yield the tables above ``key``."""
    for table in all_tables:
        if table.name == key[: len(table.name)] and table.name != key:
            yield table


def _insert_beside_pair(text: str, table: Table, pair: Pair, added: str) -> str:
    """Return ``text`` with the pair ``added`` behind ``pair``, a pair of ``table``."""
    if table.inline:
        return f"{text[: pair.end]}, {added}{text[pair.end :]}"
    return _add_lines(text, pair.end, [_read_indent(text, pair.start) + added])


def _insert_into_braces(text: str, table: Table, rest: Key, literal: str) -> str:
    """Return ``text`` with the key ``rest`` at the end of an inline table, in further braces if needed."""
    for name in reversed(rest[1:]):
        literal = f"{{ {_quote(name)} = {literal} }}"
    pair = f"{_quote(rest[0])} = {literal}"

    pairs = table.pairs(text)
    if pairs:
        end = pairs[-1].end
        return f"{text[:end]}, {pair}{text[end:]}"
    # The space between the braces stays behind the pair, too: remove() finds it there.
    return text[: table.start + 1] + text[table.start + 1 : table.end - 1] + pair + text[table.start + 1 :]


def _insert_into_section(text: str, table: Table, pair: str) -> str:
    """Return ``text`` with the line ``pair`` at the end of the pairs of a table without braces."""
    pairs = table.pairs(text)
    if pairs:
        last = pairs[-1]
        return _add_lines(text, last.end, [_read_indent(text, last.start) + pair])
    if table.name:
        return _add_lines(text, table.end, [_read_indent(text, table.start) + pair])
    if not text:
        return f"{pair}\n"

    if text.startswith("[", _skip(_SPACE, text, 0)):  # the first line is a header
        eol = _read_eol(text, 0)
        return f"{pair}{eol}{eol}{text}"
    # Behind the first lines of comments, be they a licence or about the lines below.
    comment = re.match(r"(?:[ \t]*#[^\n]*\n(?=[ \t]*#))*", text)
    return _add_lines(text, comment.end() if comment else 0, [pair])


def _insert_below_header(text: str, all_tables: Sequence[Table], key: Key, literal: str) -> str:
    """Return ``text`` with a new header at the end, and ``key`` below the header."""
    is_table = literal == "{}"
    name = key if is_table else key[:-1]
    raw, outer, inner = _find_style(text, all_tables, name)
    lines = [f"{outer}[{'.'.join(raw)}]"]
    if not is_table:
        lines.append(f"{inner}{_quote(key[-1])} = {literal}")
    if not text:
        return "\n".join(lines) + "\n"

    end = len(text)
    if text.endswith("\n"):
        end = _find_eol(text, end)
    return _add_lines(text, end, ["", *lines])


def _find_style(text: str, all_tables: Sequence[Table], name: Key) -> tuple[Key, str, str]:
    """Return the style of headers like ``name``: their parts, their indentation, the indentation of pairs."""
    raw: Key = ()
    outer = ""
    inner = ""
    headers = [table for table in all_tables if table.raw and (table.name[0] == name[0] or len(name) == 1)]
    for table in headers:
        common = table.raw[: _count_common(table.name, name)]
        if len(common) > len(raw):
            raw = common
        if table.name == name[:-1]:
            outer, inner = _read_indents(text, table)
            if outer:
                # Where headers are indented, a sub-table stands at the height of its parent's pairs.
                step = inner.removeprefix(outer)
                outer = inner
                inner += step

    siblings = [table for table in headers if len(table.name) == len(name) and table.name[:-1] == name[:-1]]
    if siblings:
        outer, inner = _read_indents(text, siblings[-1])
    return (*raw, *map(_quote, name[len(raw) :])), outer, inner


def _count_common(name: Key, other: Key) -> int:
    """Return the number of common parts at the beginning of both names."""
    count = 0
    for part, other_part in zip(name, other, strict=False):
        if part != other_part:
            break
        count += 1
    return count


def _read_indents(text: str, table: Table) -> tuple[str, str]:
    """Return the indentation of a header, and the indentation of the pairs below the header."""
    outer = _read_indent(text, table.start)
    pairs = table.pairs(text)
    if not pairs:
        return outer, outer
    return outer, _read_indent(text, pairs[0].start)


def _add_lines(text: str, pos: int, lines: Sequence[str]) -> str:
    """Return ``text`` with ``lines`` behind the line of ``pos``."""
    end = _find_line_end(text, pos)
    eol = _read_eol(text, pos)
    return text[:end] + "".join(eol + line for line in lines) + text[end:]


def _remove_line(text: str, start: int, end: int, *, header: bool = False) -> str:
    """Return ``text`` without the line from ``start`` to ``end``; a comment on the same line stays."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = _find_line_end(text, end)
    if text[end:line_end].strip():
        return text[:start] + text[end:].lstrip(" \t")

    if line_start == 0:
        rest = re.sub(r"\A\r?\n", "", text[line_end:])
        empty_line = re.match(r"\r?\n", rest)
        # A pair that was added above a header brought an empty line, see _insert_into_section().
        if empty_line is not None and rest.startswith("[", _skip(_SPACE, rest, empty_line.end())):
            return rest[empty_line.end() :]
        return rest

    cut = _find_eol(text, line_start)
    above = text.rfind("\n", 0, cut) + 1
    if header and 0 < above == cut:
        cut = _find_eol(text, above)
    return text[:cut] + text[line_end:]


def _find_line_end(text: str, pos: int) -> int:
    """Return the end of the line of ``pos``, before the line break."""
    newline = text.find("\n", pos)
    return len(text) if newline < 0 else _find_eol(text, newline + 1)


def _find_eol(text: str, after: int) -> int:
    """Return the start of the line break before ``after``."""
    length = 2 if text.endswith("\r\n", 0, after) else 1
    return after - length


def _read_eol(text: str, pos: int) -> str:
    """Return the line break of the line of ``pos``, or of the text's last line."""
    newline = text.find("\n", pos)
    if newline < 0:
        newline = text.rfind("\n")
    return "\r\n" if newline > 0 and text[newline - 1] == "\r" else "\n"


def _read_indent(text: str, pos: int) -> str:
    """Return the text of the line of ``pos`` up to ``pos``."""
    return text[text.rfind("\n", 0, pos) + 1 : pos]


def _quote(name: str) -> str:
    """Return a part of a key as TOML, quoted if needed."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)
