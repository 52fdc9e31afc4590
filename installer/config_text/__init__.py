"""Change the named keys of a config text, and not one byte else. Imports errors.

A ``WantedKey`` is a key with its wanted value. Begin with ``apply`` in change.py: ``apply`` edits the spans
of the text and returns ``Edit`` rows, which ``undo`` reverts, also after others have edited the text. Here
are the types of an edit, and the comparison of parsed configs, in which nothing that differs is equal.
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
    """The type of ``ABSENT``, the value of a missing key."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
EMPTY: Final = "{}"  # the value of an edit that made a table or an object


class Syntax(StrEnum):
    """The syntaxes of engines' configs."""

    JSON = "json"
    TOML = "toml"


class Pair(NamedTuple):
    """A name with its value in a text."""

    name: Key
    raw: Key  # the name's parts as written
    start: int  # of the name
    value: int  # the value's start
    end: int  # of the value, and of the pair


class WantedKey(Struct, frozen=True):
    """A key with the wanted value."""

    key: Key
    value: "Value | Absent"  # ``ABSENT``: the key must be missing
    member: bool = False  # the key is an array that should contain ``value`` beside other elements


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """The change of a key; a created container is a separate edit."""

    key: Key  # () for the whole of an empty text, with the text as ``before``
    before: str | None  # a literal in the text's own syntax, None if the key was missing
    after: str | None  # the literal after the edit, None if the key was deleted; ``EMPTY`` for a container
    member: bool = False  # the key is an array: ``before`` is the array, ``after`` the added element


_KINDS: Final = (
    (NoneType, "null"),
    (bool, "a boolean"),
    (str, "a string"),
    (int | float, "a number"),
    (Mapping, "a table"),
    (Sequence, "an array"),
)
# The second pair of one name in an object is kept as (name, 2), so that no pair is lost.
Branch: TypeAlias = dict[Any, Any]


MOVED: Final = "a key to be changed is not where it was"


class TextError(ValueError):
    """The text is not valid, or not understood; ``str()`` has the place and the reason."""


class Number(float):
    """A number with its literal, for not every literal survives a float."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """Return the number of the literal ``text``."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def cut_pair(text: str, siblings: Sequence[Pair], index: int) -> str:
    """Return ``text`` without a pair between two braces, the pair's comma and the space before the pair."""
    if not siblings:
        raise TextError(MOVED)
    pair = siblings[index]
    if index:
        start = siblings[index - 1].end
        end = pair.end
    elif len(siblings) > 1:
        start = pair.start
        end = siblings[1].start
    else:
        start = text.rindex("{", 0, pair.start) + 1
        end = pair.end
    return text[:start] + text[end:]


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal in any order of keys: 1, 1.0 and true differ, nan equals nan."""
    match one, other:
        case _ if one is other:
            return True
        case (None | str(), _) | (_, None | str()):
            return one == other
        case Mapping(), Mapping():
            if len(one) != len(other):
                return False
            return all(name in other and same(child, other[name]) for name, child in one.items())
        case Sequence(), Sequence():
            return len(one) == len(other) and all(map(same, one, other))
        case float(), int() | float():
            return repr(one) == repr(other)
        case int(), int():  # repr() refuses integers of many digits
            return type(one) is type(other) and one == other
        case _:
            return type(one) is type(other) and repr(one) == repr(other)


def drop_doubles(value: Any) -> Any:
    """Return ``value`` with each name once, as Go reads JSON: of two objects the last adds to the first."""
    match value:
        case dict():
            names: dict[str, Any] = {}
            for key, child in value.items():
                name = key[0] if isinstance(key, tuple) else key
                last = drop_doubles(child)
                first = names.get(name)
                if isinstance(first, dict) and isinstance(last, dict):
                    last = first | last
                names[name] = last
            return names
        case list():
            return [drop_doubles(child) for child in value]
        case _:
            return value


def prune(tree: Branch, keys: Sequence[Key]) -> Branch:
    """Return ``tree`` without the empty containers on the way to ``keys``."""
    containers: set[Key] = set()
    for key in keys:
        containers.update(key[:depth] for depth in range(1, len(key)))

    for key in sorted(containers, key=len, reverse=True):
        parent = branch_at(tree, key[:-1])
        if parent is not None and parent.get(key[-1]) == {}:
            tree, parent = open_way(tree, key[:-1])
            del parent[key[-1]]
    return tree


def open_way(tree: Branch, key: Key) -> tuple[Branch, Branch]:
    """Return a copy of ``tree`` with new containers on the way to ``key``, and the container at ``key``."""
    root = dict(tree)
    branch = root
    for name in key:
        child = branch.get(name, {})
        if not isinstance(child, dict):
            raise TextError(f"{dotted(key)} has lost its place")
        copy = dict(child)
        branch[name] = copy
        branch = copy
    return root, branch


def branch_at(tree: Branch, key: Key) -> Branch | None:
    """Return the container at ``key``; None if there is no container, or its name is not unique."""
    branch = tree
    for name in key:
        child = branch.get(name)
        if not isinstance(child, dict) or (name, 2) in branch:
            return None
        branch = child
    return branch


def dotted(key: Key) -> str:
    """Return ``key`` as a person writes a key."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in key)


def kind_of(value: Value) -> str:
    """Return the kind of ``value`` in words."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        return "an array of tables"
    for kind, words in _KINDS:
        if isinstance(value, kind):
            return words
    return "a date"


def table(tree: Tree, key: Key, path: PurePosixPath) -> Tree:
    """Return the table at ``key``, an empty table if the key is missing.

    Raises:
        InstallerError: a value of another type is at ``key`` or on the way.
    """
    for depth, part in enumerate(key, 1):
        value = tree.get(part)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong_type(path, key[:depth], "a table", value)
        tree = value
    return tree


def text(tree: Tree, name: str, path: PurePosixPath, above: Key = ()) -> str:
    """Return the string at ``name``, "" if the name is missing.

    Raises:
        InstallerError: a value of another type is at ``name``.
    """
    value = tree.get(name)
    if not isinstance(value, str | None):
        raise wrong_type(path, (*above, name), "a string", value)
    return value or ""


def spellings(tree: Tree, word: str) -> list[str]:
    """Return the keys of a table that an engine without regard to case reads as ``word``."""
    return [name for name in tree if name.lower() == word.lower()]


def wrong_type(path: PurePosixPath, key: Key, wanted: str, found: Value) -> InstallerError:
    """Return the error for a key with a value of another type."""
    problem = f"use {path} ({dotted(key)} is {kind_of(found)} where {wanted} belongs)"
    return InstallerError(problem, remedy="correct the file, then run again")


def value_at(value: Value, key: Key) -> Value:
    """Return the value at ``key`` below ``value``; None if the key is missing."""
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def leaves(tree: Tree, above: Key = ()) -> Iterator[tuple[Key, Value]]:
    """Yield each key and value below ``tree``; of tables only empty tables are values."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def flatten(tree: Tree) -> Iterator[tuple[Key, Value]]:
    """Yield the leaves of ``tree``, with keys spelled without case and underscores."""
    for key, value in leaves(tree):
        yield tuple(name.lower().replace("_", "") for name in key), value
