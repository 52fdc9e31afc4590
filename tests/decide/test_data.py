"""Our ``dataclass`` does what that of the standard library does."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from installer.decide.data import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Ours:
    """A point."""

    x: int
    y: int = 2
    more: Mapping[str, int] = field(default_factory=dict)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    x: int
    y: int = 2
    more: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(slots=True)
class Open:
    at: int = 0


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing is in it."""


@dataclass(frozen=True, slots=True)
class Checked:
    at: int

    def __post_init__(self) -> None:
        if self.at < 0:
            raise ValueError("negative")


ACTS: dict[str, Callable[[Any], object]] = {
    "by place": lambda cls: cls(1, 3, {"a": 1}).more,
    "by name": lambda cls: cls(y=3, x=1).sum,
    "defaults": lambda cls: (cls(1).y, cls(1).more, cls(1).more is cls(1).more),
    "a field less": lambda cls: cls(),
    "a field too much": lambda cls: cls(1, 2, {}, 4),
    "a name that is no field": lambda cls: cls(1, z=3),
    "twice": lambda cls: cls(1, x=1),
    "equal": lambda cls: (cls(1) == cls(1), cls(1) == cls(2), cls(1) == 1, cls(1) != cls(1)),
    "hash": lambda cls: len({cls.__name__: 1, (1, 2): hash(cls(1, 2, ())) == hash(cls(1, 2, ()))}),
    "no hash": lambda cls: hash(cls(1)),
    "text": lambda cls: repr(cls(1)).partition("(")[2],
    "assigned": lambda cls: setattr(cls(1), "x", 2),
    "deleted": lambda cls: delattr(cls(1), "x"),
    "no dictionary": lambda cls: vars(cls(1)),
    "replaced": lambda cls: (replace(cls(1), y=5).y, dataclasses.replace(cls(1), y=5).y),
    "fields": lambda cls: [(each.name, each.default) for each in dataclasses.fields(cls)],
    "as a dictionary": lambda cls: dataclasses.asdict(cls(1)),
    "signature": lambda cls: str(inspect.signature(cls)).replace("data.", "dataclasses."),
    "matched": lambda cls: cls.__match_args__,
    "copied": lambda cls: (copy.copy(cls(1)) == cls(1), copy.deepcopy(cls(1)) == cls(1)),
    "pickled": lambda cls: pickle.loads(pickle.dumps(cls(1))) == cls(1),  # noqa: S301 - its own
}


def _outcome(act: Callable[[Any], object], cls: type) -> object:
    try:
        return act(cls)
    except (TypeError, AttributeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_it_is_as_in_the_standard_library(act: Callable[[Any], object]) -> None:
    assert _outcome(act, Ours) == _outcome(act, Theirs)


def test_one_that_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    thing = Open()
    thing.at = 3

    assert thing == Open(3)
    with pytest.raises(TypeError):
        hash(thing)


def test_a_class_without_a_field_has_one_value() -> None:
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert (repr(Empty()), replace(Empty())) == ("Empty()", Empty())


def test_what_is_checked_after_it_was_made_is() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), at=-1)
