"""``dataclass`` as in the standard library, for classes with slots, at a twentieth of its cost at each start.

That one writes the text of each method of each class and compiles it: a quarter of what a verb takes to
start. Here all classes share their methods, which go by the names of the fields. ``dataclasses.fields`` and
its like know these classes, too.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:

    def dataclass(*, slots: Literal[True], frozen: bool = False) -> Callable[[type], type]:  # noqa: ARG001 - always
        """Return what makes fields of a class's annotations."""
        return lambda cls: _made(cls, frozen=frozen)

    def field(*, default_factory: Callable[[], Any]) -> Any:
        """Return a default that is made anew for each object."""
        return _Factory(default_factory)

    def replace(thing: Any, /, **changes: Any) -> Any:
        """Return an object of the same class with other values in some fields."""
        return type(thing)(**fields_of(thing) | changes)


__all__ = ["dataclass", "field", "fields_of", "replace"]


def fields_of(thing: Any) -> dict[str, Any]:
    """Return the fields of an object by their names."""
    return {name: getattr(thing, name) for name in thing.__match_args__}


class _Factory:
    """What makes the value of a field that is not given."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Lazily:
    """What only the standard library asks for: made by itself, of a class of its own."""

    def __init__(self, of: Callable[[type], Any]) -> None:
        self._of = of

    def __get__(self, _: object, cls: type) -> Any:
        import dataclasses

        space: dict[str, Any] = {"__annotations__": cls.__annotations__}
        for name, default in cls.__dict__["__defaults__"].items():
            made = isinstance(default, _Factory)
            space[name] = dataclasses.field(default_factory=default.make) if made else default
        return self._of(dataclasses.dataclass(type(cls.__name__, (), space)))


def _fields(cls: Any) -> Any:
    return cls.__dataclass_fields__


def _signature(cls: Any) -> Any:
    import inspect

    return inspect.signature(cls)


def _made(cls: type, *, frozen: bool) -> type:
    names = tuple(cls.__annotations__)
    space = {name: value for name, value in vars(cls).items() if name not in {"__dict__", "__weakref__"}}
    space |= {"__defaults__": {name: space.pop(name) for name in names if name in space}}
    space |= {"__slots__": names, "__match_args__": names, "__qualname__": cls.__qualname__}
    space |= {"__values__": attrgetter(*names) if names else lambda _: ()}
    space |= {"__dataclass_fields__": _Lazily(_fields), "__signature__": _Lazily(_signature)}
    space |= {"__init__": _init, "__eq__": _eq, "__repr__": _repr, "__reduce__": _reduce, "__hash__": None}
    space |= {"__hash__": _hash, "__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
    made = type(cls)(cls.__name__, cls.__bases__, space)
    setters = {name: made.__dict__[name].__set__ for name in names}
    type.__setattr__(made, "__setters__", setters)
    return made


def _init(self: Any, /, *values: Any, **given: Any) -> None:
    cls = type(self)
    setters, rest = cls.__setters__, len(values)
    if rest > len(setters):
        raise TypeError(f"{cls.__name__} has {len(setters)} fields, not {rest}")
    given_names = 0
    for at, (name, put) in enumerate(setters.items()):
        if at < rest:
            put(self, values[at])
        elif name in given:
            put(self, given[name])
            given_names += 1
        elif name in cls.__defaults__:
            default = cls.__defaults__[name]
            put(self, default.make() if type(default) is _Factory else default)
        else:
            raise TypeError(f"{cls.__name__} needs {name}")
    if given_names != len(given):
        raise TypeError(f"{cls.__name__} takes {', '.join(setters)} once each, not also {', '.join(given)}")
    if hasattr(cls, "__post_init__"):
        self.__post_init__()


def _eq(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return type(self).__values__(self) == type(self).__values__(other)


def _hash(self: Any) -> int:
    return hash(type(self).__values__(self))


def _repr(self: Any) -> str:
    said = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({said})"


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)


def _refuse(self: Any, name: str, *_: object) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r} of {type(self).__name__}")
