"""The spans of JSON text: where a key's value stands, and the style of the pairs beside a new key.

Every function takes text that ``load`` has accepted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from installer.config_text import Branch, Key, Number, Pair, TextError, Value, cut_pair

START: Final = "{\n}\n"  # the text to begin with if the file is empty
MANY_DIGITS: Final = 1000
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_CONSTANT: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|-?[A-Z]\w+')
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)  # used only to find the end of a value


def load(text: str) -> Branch:
    """Return the tree of ``text``, with every pair of a repeated name.

    Raises:
        TextError: the text is not one JSON object.
    """
    if not text.strip(" \t\r\n"):
        return {}
    tree = value(text)
    if not isinstance(tree, dict):
        raise TextError("line 1, column 1: expected an object")
    return tree


def literal(value: Value) -> str:
    """Return ``value`` as JSON on one line, characters beyond ASCII as they are."""
    match value:
        case Number():
            return value.text
        case Mapping():
            pairs = ", ".join(f"{literal(name)}: {literal(child)}" for name, child in value.items())
            return f"{{{pairs}}}"
        case Sequence() if not isinstance(value, str):
            return f"[{', '.join(literal(child) for child in value)}]"
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)


def span(text: str, key: Key) -> slice | None:
    """Return the span of the literal of ``key``; None if the key is missing."""
    siblings, index = _find(text, key)
    if not siblings:
        return None
    pair = siblings[index]
    return slice(pair.value, pair.end)


def insert(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``key`` at the end of the key's object, in the style of the pairs before."""
    start = _skip(text, 0)
    colon = ": "
    rest = key
    while rest:
        pair = next((pair for pair in pairs(text, start) if pair.name == rest[:1]), None)
        if pair is None:
            break
        start = pair.value
        colon = _read_colon(text, pair)
        rest = rest[1:]
    if text[start] != "{" or not rest:
        raise TextError("a key to be created has no place")

    siblings = pairs(text, start)
    if siblings:
        colon = _read_colon(text, siblings[-1])
    unit = _read_unit(text, siblings)
    gap = _read_gap(text, start, siblings, colon, unit)
    added = _nest(rest, literal, colon, gap if "\n" in gap else "", unit)
    if siblings:
        end = siblings[-1].end
        return f"{text[:end]},{gap}{added}{text[end:]}"
    # The space between the braces stays behind the pair, too: remove() finds it there.
    return text[: start + 1] + gap + added + text[start + 1 :]


def remove(text: str, key: Key) -> str:
    """Return ``text`` without ``key``, and without the key's comma and the space before."""
    return cut_pair(text, *_find(text, key))


def close(text: str, key: Key) -> str:
    """Return ``text`` without the object ``key``, if the object is empty."""
    siblings, index = _find(text, key)
    if not siblings:
        return text
    start = siblings[index].value
    is_empty = text[start] == "{" and not pairs(text, start)
    return remove(text, key) if is_empty else text


def value(text: str) -> Any:
    """Return the value of a literal or of a whole config."""
    constants: list[str] = []
    try:
        tree = json.loads(
            text,
            object_pairs_hook=_make_branch,
            parse_int=_parse_integer,
            parse_float=Number,
            parse_constant=constants.append,
        )
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        if text.startswith(("//", "/*", "#"), error.pos):
            reason = "comments are not allowed"
        raise TextError(f"line {error.lineno}, column {error.colno}: {reason}") from error
    if constants:
        pos = next(word.start() for word in _CONSTANT.finditer(text) if word[0] == constants[0])
        line = text.count("\n", 0, pos) + 1
        column = pos - text.rfind("\n", 0, pos)
        raise TextError(f"line {line}, column {column}: {constants[0]} is not JSON")
    return tree


def _parse_integer(literal: str) -> int | Number:
    """Return an integer; as a number with its literal if int() refuses or changes the literal."""
    # int() refuses more than 4300 digits, and -0 would come back as 0.
    if len(literal) >= MANY_DIGITS or literal == "-0":
        return Number(literal)
    return int(literal)


def _make_branch(pairs: list[tuple[str, Any]]) -> Branch:
    """Return the object of ``pairs``; the second pair of one name gets the key (name, 2)."""
    branch: Branch = {}
    counts: dict[str, int] = {}
    for name, child in pairs:
        counts[name] = counts.get(name, 0) + 1
        key = name if counts[name] == 1 else (name, counts[name])
        branch[key] = child
    return branch


def pairs(text: str, start: int) -> list[Pair]:
    """Return the pairs of the object that starts at ``start``; none if no object starts at ``start``."""
    siblings: list[Pair] = []
    pos = _skip(text, start + 1)
    while text[start] == "{" and text[pos] != "}":
        begin = _skip(text, pos + 1) if siblings else pos
        name, name_end = _DECODER.raw_decode(text, begin)
        value = _skip(text, _skip(text, name_end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        siblings.append(Pair((name,), (text[begin:name_end],), begin, value, end))
        pos = _skip(text, end)
    return siblings


def _find(text: str, key: Key) -> tuple[list[Pair], int]:
    """Return the pairs of the object of ``key``, and the index of ``key``; no pairs if the key is missing."""
    siblings: list[Pair] = []
    index = 0
    start = _skip(text, 0)
    for name in key:
        siblings = pairs(text, start)
        index = next((index for index, pair in enumerate(siblings) if pair.name == (name,)), -1)
        if index < 0:
            return [], 0
        start = siblings[index].value
    return siblings, index


def _skip(text: str, pos: int) -> int:
    """Return the position behind the white space at ``pos``."""
    space = _SPACE.match(text, pos)
    return space.end() if space else pos


def _read_colon(text: str, pair: Pair) -> str:
    """Return the text between the name and the value of ``pair``, on one line."""
    between = text[pair.start + len(pair.raw[0]) : pair.value]
    return ": " if "\n" in between else between


def _read_gap(text: str, start: int, siblings: Sequence[Pair], colon: str, unit: str) -> str:
    """Return the white space before a new pair of the object at ``start``."""
    if len(siblings) > 1:
        _, _, between = text[siblings[-2].end : siblings[-1].start].partition(",")
    else:
        between = text[start + 1 : _skip(text, start + 1)]

    head, newline, tail = between.rpartition("\n")
    if newline:
        eol = "\r\n" if head.endswith("\r") else "\n"
        return eol + tail if siblings else eol + tail + unit
    if len(siblings) != 1:
        return between
    return " " if colon.endswith(" ") or between else ""


def _read_unit(text: str, siblings: Sequence[Pair]) -> str:
    """Return the indentation of one level below the object of ``siblings``."""
    if siblings:
        outer = text[: _skip(text, siblings[-1].end)].rpartition("\n")[2]
        own = text[: siblings[-1].start].rpartition("\n")[2]
        if not outer.strip() and not own.strip() and own.startswith(outer) and own != outer:
            return own[len(outer) :]
    first = re.search(r"\n([ \t]+)\S", text)
    return first[1] if first else "    "


def _nest(names: Key, literal: str, colon: str, newline: str, unit: str) -> str:
    """Return the pair for ``names[0]``, with an object for each further name around ``literal``."""
    name = json.dumps(names[0], ensure_ascii=False)
    if len(names) == 1:
        return f"{name}{colon}{literal}"
    deeper = newline + unit if newline else ""
    return f"{name}{colon}{{{deeper}{_nest(names[1:], literal, colon, deeper, unit)}{newline}}}"
