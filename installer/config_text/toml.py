"""The spans of TOML text: where a key's value stands, and where a new one belongs.

Every function takes text that ``load`` has accepted. A line is added behind the
end of the line before it and removed together with that line's end: adding and removing mirror each other.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from installer.config_text.toml_scan import Table, comma_after, is_first_header, items, tables
from installer.config_text.tree import Branch, Key, Number, Pair, TextError, Value, cut_pair

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")
_TO_ESCAPE: Final = re.compile(r'[\x00-\x1f\x7f"\\]')
# A key of so many parts; tomllib keeps every beginning of a key, which takes the square of it.
_DEEP: Final = re.compile(
    r"(?<![A-Za-z0-9_-])"
    r"""(?:(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.){0,256}+"|'[^'\n]{0,256}+')[ \t]*+\.[ \t]*+){32}"""
)


def load(text: str) -> Branch:
    """Return the tree of ``text``; TextError where it is none, RecursionError where it is too deep."""
    if is_deep(text):
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
            return '"' + _TO_ESCAPE.sub(_escape, value) + '"'
        case Mapping():
            pairs = ", ".join(f"{_quote(name)} = {literal(child)}" for name, child in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case Sequence():
            return f"[{', '.join(literal(child) for child in value)}]"
        case _:
            raise TextError("TOML knows no null")


def find(text: str, key: Key) -> str | None:
    """Return the literal that ``key`` holds, ``None`` if there is none or it is a table below a header."""
    place = _find_pair(text, key)
    return None if place is None else text[place[1].value : place[1].end]


def replace(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``literal`` in the place of what ``key`` holds."""
    pair = _get_pair(text, key)[1]
    return text[: pair.value] + literal + text[pair.end :]


def remove(text: str, key: Key) -> str:
    """Return ``text`` without ``key``: without its line, or its place between the braces."""
    table, pair = _get_pair(text, key)
    if not table.inline:
        return _remove_line(text, pair.start, pair.end)
    pairs = table.pairs(text)
    return cut_pair(text, pairs, pairs.index(pair))


def close(text: str, key: Key) -> str:
    """Return ``text`` without the header or the braces of ``key``, if no pair is left in them."""
    for table in tables(text, key):
        if table.name == key and not table.pairs(text):
            return (
                remove(text, key) if table.inline else _remove_line(text, table.start, table.end, header=True)
            )
    return text


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
        if own is None:
            sibling = _find_dotted(text, found, parent)
            if sibling is not None:
                table, pair = sibling
                raw = pair.raw[: depth - len(table.name)] + tuple(_quote(name) for name in rest)
                return _insert_beside(text, table, pair, raw, literal)
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
    newline, indent = _read_line_start(array, spans[-2][1] if len(spans) > 1 else 1, start)
    comma = comma_after(array, end)
    added = f"{newline}{indent}{element}" if newline else f" {element}"
    if comma is None:
        at = _skip_comment(array, end) if newline else end
        return f"{array[:end]},{array[end:at]}{added}{array[at:]}"
    at = _skip_comment(array, comma + 1) if newline else comma + 1
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


def _read_line_start(array: str, after: int, start: int) -> tuple[str, str]:
    """Return the line end and the indentation before ``start``, empty if it shares a line."""
    head, newline, indent = array[after:start].rpartition("\n")
    if not newline:
        return "", ""
    return ("\r\n" if head.endswith("\r") else "\n"), re.sub(r"[^ \t].*", "", indent)


def _skip_comment(array: str, pos: int) -> int:
    """Return where the line of ``pos`` ends, or ``pos`` if more than a comment follows on it."""
    match = _REST_OF_LINE.match(array, pos)
    return match.end() if match else pos


def unopened(text: str, key: Key) -> bool:
    """Return whether ``key`` is a table only because headers name it on their way."""
    found = tables(text, key)
    own = any(table.name == key for table in found)
    return (
        not own
        and _find_dotted(text, found, key) is None
        and any(table.name[: len(key)] == key for table in found)
    )


def _find_pair(text: str, key: Key) -> tuple[Table, Pair] | None:
    on_the_way = (table for table in tables(text, key) if table.name == key[: len(table.name)] != key)
    found = ((table, pair) for table in on_the_way for pair in table.pairs(text, key[len(table.name)]))
    return next(((table, pair) for table, pair in found if table.name + pair.name == key), None)


def _get_pair(text: str, key: Key) -> tuple[Table, Pair]:
    place = _find_pair(text, key)
    if place is None:
        raise TextError("a key to be changed is not where it was")
    return place


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
    if is_first_header(text, 0):
        eol = _read_eol(text, 0)
        return f"{pair}{eol}{eol}{text}"
    # Behind the comment the file begins with, be it a licence or about what follows.
    comment = re.match(r"(?:[ \t]*#[^\n]*\n(?=[ \t]*#))*", text)
    return _add_lines(text, comment.end() if comment else 0, [pair])


def _insert_beside(text: str, table: Table, pair: Pair, raw: Key, literal: str) -> str:
    added = f"{'.'.join(raw)} = {literal}"
    if table.inline:
        return f"{text[: pair.end]}, {added}{text[pair.end :]}"
    return _add_lines(text, pair.end, [_read_indent(text, pair.start) + added])


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
    headers = [table for table in found if table.raw]
    for table in headers:
        depth = next(
            (i for i, pair in enumerate(zip(table.name, name, strict=False)) if pair[0] != pair[1]), None
        )
        depth = min(len(table.name), len(name)) if depth is None else depth
        if depth > len(raw):
            raw = table.raw[:depth]
        if table.name == name[:-1]:
            outer, inner = _read_indents(text, table)
            # Where headers are indented, a sub-table stands at the height of its parent's pairs.
            outer, inner = (inner, inner + inner.removeprefix(outer)) if outer else (outer, inner)
    siblings = [table for table in headers if len(table.name) == len(name) and table.name[:-1] == name[:-1]]
    if siblings:
        outer, inner = _read_indents(text, siblings[-1])
    return raw + tuple(_quote(part) for part in name[len(raw) :]), outer, inner


def _read_indents(text: str, table: Table) -> tuple[str, str]:
    outer = _read_indent(text, table.start)
    pairs = table.pairs(text)
    return outer, _read_indent(text, pairs[0].start) if pairs else outer


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
        return rest[alone.end() :] if alone and is_first_header(rest, alone.end()) else rest
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


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}")


def is_deep(text: str) -> bool:
    """Return whether a key of ``text``, which need not be TOML, has more parts than anybody writes."""
    return _DEEP.search(text) is not None
