"""The spans of JSON text: where a key's value stands, and how its neighbours are written.

Every function takes text that ``load`` has accepted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from installer.config_text.grammar import Grammar
from installer.config_text.model import Key, Value
from installer.config_text.tree import Branch, Number, TextError

_TOKEN: Final = re.compile(r'\s*+("(?:[^"\\]|\\.)*+"|[^\s"{}\[\],:]++|[{}\[\],:])')
_TO_BRACKET: Final = re.compile(r'(?:[^"{}\[\]]++|"(?:[^"\\]|\\.)*+")*+[{}\[\]]')


class _Member(Struct, frozen=True):
    """One pair of an object; ``start`` and ``colon`` are where its name begins and ends."""

    name: str
    start: int
    colon: int
    value: "_Node"


class _Node(Struct, frozen=True):
    """The span of one value; ``members`` is ``None`` unless it is an object that was looked into."""

    start: int
    end: int
    members: tuple[_Member, ...] | None = None


def load(text: str) -> Branch:
    """Return the tree of ``text``; a name that occurs again is kept beside the first.

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


def find(text: str, key: Key) -> str | None:
    """Return the literal that ``key`` holds, or ``None``."""
    node = _node(text, key)
    return None if node is None else text[node.start : node.end]


def replace(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``literal`` in the place of what ``key`` holds."""
    node = _node(text, key)
    if node is None:
        raise TextError("a key to be replaced is not there")
    return text[: node.start] + literal + text[node.end :]


def insert(text: str, key: Key, literal: str) -> str:
    """Return ``text`` with ``key`` at the end of its object, written like the pairs before it."""
    node, colon, depth = _opened(text), ": ", 0
    while node.members is not None and depth < len(key):
        member = next((m for m in node.members if m.name == key[depth]), None)
        if member is None:
            break
        colon, node, depth = _colon(text, member), _opened(text, member.value.start), depth + 1
    if node.members is None or depth == len(key):
        raise TextError("a key to be created has no place")
    if node.members:
        colon = _colon(text, node.members[-1])
    gap, unit = _gap(text, node, colon), _unit(text, node)
    pair = _nested(key[depth:], literal, colon, gap if "\n" in gap else "", unit)
    if node.members:
        end = node.members[-1].value.end
        return f"{text[:end]},{gap}{pair}{text[end:]}"
    # What stood between the braces stays behind the pair: remove() finds it there.
    return text[: node.start + 1] + gap + pair + text[node.start + 1 :]


def remove(text: str, key: Key) -> str:
    """Return ``text`` without ``key``, and without the comma and space that came with it."""
    node = _node(text, key[:-1])
    members = (node.members if node else None) or ()
    index = next((i for i, member in enumerate(members) if member.name == key[-1]), None)
    if node is None or index is None:
        raise TextError("a key to be removed is not there")
    if index:
        start, end = members[index - 1].value.end, members[index].value.end
    elif len(members) > 1:
        start, end = members[0].start, members[1].start
    else:
        start, end = node.start + 1, members[0].value.end
    return text[:start] + text[end:]


def close(text: str, key: Key) -> str:
    """Return ``text`` without the object ``key``, if it is empty."""
    node = _node(text, key)
    return remove(text, key) if node is not None and node.members == () else text


def value(text: str) -> Any:
    """Return what a text stands for, be it a literal or all of a config."""
    constants: list[str] = []
    try:
        tree = json.loads(
            text,
            object_pairs_hook=_branch,
            parse_int=_number,
            parse_float=Number,
            parse_constant=constants.append,
        )
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise TextError(f"line {error.lineno}, column {error.colno}: {reason}") from error
    if constants:
        pos = next(word.start(1) for word in _TOKEN.finditer(text) if word[1] == constants[0])
        line, column = text.count("\n", 0, pos) + 1, pos - text.rfind("\n", 0, pos)
        raise TextError(f"line {line}, column {column}: {constants[0]} is not JSON")
    return tree


def _branch(pairs: list[tuple[str, Any]]) -> Branch:
    branch: Branch = {}
    seen: dict[str, int] = {}
    for name, child in pairs:
        seen[name] = seen.get(name, 0) + 1
        branch[name if seen[name] == 1 else (name, seen[name])] = child
    return branch


def _number(text: str) -> int | Number:
    # int() refuses more than 4300 digits, and -0 would come back as 0.
    return int(text) if len(text) < 1000 and text != "-0" else Number(text)  # noqa: PLR2004


def _node(text: str, key: Key) -> _Node | None:
    node = _opened(text)
    for name in key:
        found = next((m.value for m in node.members or () if m.name == name), None)
        if found is None:
            return None
        node = _opened(text, found.start)
    return node


def _opened(text: str, pos: int = 0) -> _Node:
    """Return the value at ``pos``; of an object's members only where they stand, not what is in them."""
    start, word, end = _word(text, pos)
    if word != "{":
        return _value_at(text, pos)
    members: list[_Member] = []
    name_start, word, end = _word(text, end)
    while word != "}":
        if word == ",":
            name_start, word, end = _word(text, end)
        child = _value_at(text, _word(text, end)[2])  # behind the colon
        members.append(_Member(json.loads(word), name_start, end, child))
        _, word, end = _word(text, child.end)
    return _Node(start, end, tuple(members))


def _value_at(text: str, pos: int) -> _Node:
    start, word, end = _word(text, pos)
    depth = int(word in "{[")
    while depth:
        bracket = _TO_BRACKET.match(text, end)
        if bracket is None:
            raise TextError("the text ends too early")
        end = bracket.end()
        depth += 1 if text[end - 1] in "{[" else -1
    return _Node(start, end)


def _word(text: str, pos: int) -> tuple[int, str, int]:
    """Return where the word behind ``pos`` begins, what it is and where it ends."""
    word = _TOKEN.match(text, pos)
    if word is None:
        raise TextError("the text ends too early")
    return word.start(1), word[1], word.end()


def _colon(text: str, member: _Member) -> str:
    between = text[member.colon : member.value.start]
    return ": " if "\n" in between else between


def _gap(text: str, node: _Node, colon: str) -> str:
    """Return the white space a new pair of ``node`` starts with."""
    members = node.members or ()
    if not members:
        inner = text[node.start + 1 : node.end - 1]
        head, newline, tail = inner.rpartition("\n")
        if not newline:
            return inner
        return ("\r\n" if head.endswith("\r") else "\n") + tail + _unit(text, node)
    if len(members) > 1:
        between = text[members[-2].value.end : members[-1].start].partition(",")[2]
    else:
        between = text[node.start + 1 : members[0].start]
    head, newline, tail = between.rpartition("\n")
    if newline:
        return ("\r\n" if head.endswith("\r") else "\n") + tail
    if len(members) > 1:
        return between
    return " " if colon.endswith(" ") or between else ""


def _unit(text: str, node: _Node) -> str:
    """Return by how much a level is indented below ``node``."""
    members = node.members or ()
    if members:
        outer = text[: node.end - 1].rpartition("\n")[2]
        own = text[: members[-1].start].rpartition("\n")[2]
        if not outer.strip() and not own.strip() and own.startswith(outer) and own != outer:
            return own[len(outer) :]
    first = re.search(r"\n([ \t]+)\S", text)
    return first[1] if first else "    "


def _nested(names: Key, literal: str, colon: str, newline: str, unit: str) -> str:
    """Return the pair for ``names[0]``, with an object for each further name around ``literal``."""
    name = json.dumps(names[0], ensure_ascii=False)
    if len(names) == 1:
        return f"{name}{colon}{literal}"
    deeper = newline + unit if newline else ""
    return f"{name}{colon}{{{deeper}{_nested(names[1:], literal, colon, deeper, unit)}{newline}}}"


GRAMMAR: Final = Grammar(
    title="JSON",
    container="an object",
    start="{\n}\n",
    vanishing=False,
    load=load,
    value=value,
    literal=literal,
    find=find,
    replace=replace,
    insert=insert,
    remove=remove,
    close=close,
    unopened=lambda _text, _key: False,
)
