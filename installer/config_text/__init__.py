"""Change the keys that are named in a config text, and not one byte else. Imports errors.

A ``Want`` says what a key should hold. Begin with ``apply`` in change.py: it edits the spans of the text that
this takes and returns what it did as ``Edit`` rows, which ``undo`` reverts, also after others have edited the
text. Here are the words of an edit, and parsed configs, compared so that nothing that differs is equal.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from types import NoneType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from msgspec import Struct

from installer.errors import InstallerError

Key: TypeAlias = tuple[str, ...]
Value: TypeAlias = "None | bool | int | float | str | Sequence[Value] | Mapping[str, Value]"
Tree: TypeAlias = Mapping[str, Value]


class Absent(Enum):
    """The type of ``ABSENT``: there is no such key."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class Syntax(StrEnum):
    """The syntaxes that engines read."""

    JSON = "json"
    TOML = "toml"


class Pair(NamedTuple):
    """A name and its value; ``raw`` is the name's parts as written, and the value ends with the pair."""

    name: Key
    raw: Key
    start: int
    value: int
    end: int


class Want(Struct, frozen=True):
    """What one key should hold."""

    key: Key
    value: "Value | Absent"  # ``ABSENT``: the key must not be there
    member: bool = False  # the key is an array that should contain ``value`` beside whatever else it holds


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """What was done to one key; a container that had to be created is an edit of its own."""

    key: Key  # (), whose ``before`` is the text, for the whole of an empty one
    before: str | None  # a literal in the text's own syntax, None where there was no such key
    after: str | None  # the same now; {} for a container
    member: bool = False  # the key is an array: ``before`` is that, ``after`` the one element that was added


_KINDS: Final = (
    *((NoneType, "null"), (bool, "a boolean"), (str, "a string"), (int | float, "a number")),
    *((Mapping, "a table"), (Sequence, "an array")),
)
# A name that occurs a second time in one object is kept as (name, 2), so that no pair is lost.
Branch: TypeAlias = dict[Any, Any]


MOVED: Final = "a key to be changed is not where it was"


class TextError(ValueError):
    """The text is not valid, or not understood; ``str()`` says where and why."""


class Number(float):
    """A number that remembers how it was written, for not every literal survives a float."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """Return the number that ``text`` is a literal of."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def cut_pair(text: str, siblings: Sequence[Pair], index: int) -> str:
    """Return ``text`` without one of the pairs between two braces, its comma and the space before it."""
    if not siblings:
        raise TextError(MOVED)
    if index:
        start, end = siblings[index - 1].end, siblings[index].end
    elif len(siblings) > 1:
        start, end = siblings[0].start, siblings[1].start
    else:
        start, end = text.rindex("{", 0, siblings[0].start) + 1, siblings[0].end
    return text[:start] + text[end:]


def same(one: object, other: object) -> bool:
    """Return whether both hold the same in any order of keys: 1, 1.0 and true differ, nan equals nan."""
    match one, other:
        case _ if one is other:
            return True
        case (None | str(), _) | (_, None | str()):
            return one == other
        case Mapping(), Mapping():
            return len(one) == len(other) and all(
                name in other and same(child, other[name]) for name, child in one.items()
            )
        case Sequence(), Sequence():
            return len(one) == len(other) and all(map(same, one, other))
        case float(), int() | float():
            return repr(one) == repr(other)
        case int(), int():  # which may have more digits than may be written
            return type(one) is type(other) and one == other
        case _:
            return type(one) is type(other) and repr(one) == repr(other)


def drop_doubles(value: Any) -> Any:
    """Return ``value`` with each name once, as Go reads it: of two objects the last adds to the first."""
    match value:
        case dict():
            names: dict[str, Any] = {}
            for doubled, child in value.items():
                name, now = doubled[0] if isinstance(doubled, tuple) else doubled, drop_doubles(child)
                before = names.get(name)
                names[name] = before | now if isinstance(before, dict) and isinstance(now, dict) else now
            return names
        case list():
            return [drop_doubles(child) for child in value]
        case _:
            return value


def prune(tree: Branch, keys: Sequence[Key]) -> Branch:
    """Return ``tree`` without the empty containers on the way to ``keys``."""
    on_the_way = {key[:depth] for key in keys for depth in range(1, len(key))}
    for key in sorted(on_the_way, key=len, reverse=True):
        parent = branch_at(tree, key[:-1])
        if parent is not None and parent.get(key[-1]) == {}:
            tree, parent = open_way(tree, key[:-1])
            del parent[key[-1]]
    return tree


def open_way(tree: Branch, key: Key) -> tuple[Branch, Branch]:
    """Return a copy of ``tree`` with containers of its own on the way to ``key``, and the last of them."""
    root = branch = dict(tree)
    for name in key:
        child = branch.get(name, {})
        if not isinstance(child, dict):
            raise TextError(f"{dotted(key)} has lost its place")
        branch[name] = branch = dict(child)
    return root, branch


def branch_at(tree: Branch, key: Key) -> Branch | None:
    """Return the container at ``key``, or ``None`` when there is none or its name is not unique."""
    branch = tree
    for name in key:
        child = branch.get(name)
        if not isinstance(child, dict) or (name, 2) in branch:
            return None
        branch = child
    return branch


def dotted(key: Key) -> str:
    """Return ``key`` as a person writes it."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in key)


def kind_of(value: Value) -> str:
    """Return what ``value`` is, in words."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return "an array of tables"
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "a date")


def table(tree: Tree, key: Key, path: PurePosixPath) -> Tree:
    """Return the table at ``key``; an empty one where there is none, an error for anything else."""
    for depth, part in enumerate(key, 1):
        value = tree.get(part)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong_type(path, key[:depth], "a table", value)
        tree = value
    return tree


def text(tree: Tree, name: str, path: PurePosixPath, above: Key = ()) -> str:
    """Return the string at ``name``; "" where there is none, an error for anything else."""
    value = tree.get(name)
    if not isinstance(value, str | None):
        raise wrong_type(path, (*above, name), "a string", value)
    return value or ""


def spellings(tree: Tree, word: str) -> list[str]:
    """Return how a key is written in a table whose engine ignores case."""
    return [name for name in tree if name.lower() == word.lower()]


def wrong_type(path: PurePosixPath, key: Key, wanted: str, found: Value) -> InstallerError:
    """Return the error for a key that holds a value of another type."""
    problem = f"use {path} ({dotted(key)} is {kind_of(found)} where {wanted} belongs)"
    return InstallerError(problem, remedy="correct the file, then run again")


def value_at(value: Value, key: Key) -> Value:
    """Return what a tree holds at a key, None where there is nothing."""
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def leaves(tree: Tree, above: Key = ()) -> Iterator[tuple[Key, Value]]:
    """Yield each value below ``tree`` that is not a table, with its key."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def flatten(tree: Tree) -> Iterator[tuple[Key, Value]]:
    """Yield what ``leaves`` does, with keys spelled without case and underscores."""
    for key, value in leaves(tree):
        yield tuple(name.lower().replace("_", "") for name in key), value
