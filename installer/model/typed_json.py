"""JSON of ours, as its types say: files that we read again, and what ``run`` tells its children."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import convert, to_builtins

T = TypeVar("T")


def rows_of(thing: object) -> Any:
    """Return a thing as tables, lists and words."""
    return to_builtins(thing, enc_hook=str)


def dumps(thing: object, indent: int | None = None) -> bytes:
    """Return a thing as a line, or as lines: a path that is no UTF-8 as escapes of its lone surrogates."""
    return json.dumps(rows_of(thing), indent=indent).encode() + b"\n"


def loads(content: bytes, kind: type[T]) -> T:
    """Return what ``dumps`` has made a text of.

    Raises:
        ValueError: the text is none of that kind.
        RecursionError: it is nested too deeply.
    """
    return typed(json.loads(content), kind)


def typed(rows: object, kind: type[T], read: Callable[[type, Any], Any] = lambda kind, word: kind(word)) -> T:
    """Return tables, lists and words as a kind; ``read`` makes a path of a word.

    Raises:
        ValueError: they are none of that kind.
    """
    return convert(rows, kind, dec_hook=read)
