"""The words an edit is made of."""

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

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
    """What one key should hold.

    ``ABSENT`` means the key must not be there. With ``member`` the key is an
    array that should contain ``value`` beside whatever else it holds.
    """

    key: Key
    value: "Value | Absent"
    member: bool = False


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """What was done to one key.

    ``before`` and ``after`` are literals in the text's own syntax, ``None`` where
    there was or is no such key. A container that had to be created is an edit of
    its own whose ``after`` is ``{}``; the whole of an empty text is the key ``()``,
    and its ``before`` the text. With ``member`` the key is an array: ``before`` is
    the array, ``after`` the one element that was added.
    """

    key: Key
    before: str | None
    after: str | None
    member: bool = False
