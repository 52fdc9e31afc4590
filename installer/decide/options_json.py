"""Options as JSON, for the children of ``run``: what its command line has said is read once."""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from installer.decide.data import fields_of
from installer.decide.options import Options


def dumps(options: Options, *, nvidia: bool, log_format: str) -> str:
    """Return options, and how ``run`` speaks, as a text from which ``loads`` makes the same."""
    return json.dumps({"nvidia": nvidia, "log_format": log_format, "options": options}, default=_plain)


def loads(text: str) -> tuple[Options, bool, str]:
    """Return what ``dumps`` has made a text of."""
    said = json.loads(text)
    return _value(Options, said["options"]), said["nvidia"], said["log_format"]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePosixPath) else fields_of(value)


def _value(kind: Any, said: Any) -> Any:
    """Return what ``said`` is as a ``kind``, which a field of ours is annotated with."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        found = [each for each in inner if each is not NoneType]
        return said if said is None or len(found) > 1 else _value(found[0], said)
    if origin is tuple:
        kinds = inner[:1] * len(said) if inner[-1] is ... else inner
        return tuple(_value(each, value) for each, value in zip(kinds, said, strict=True))
    if origin is Mapping:
        return {name: _value(inner[1], value) for name, value in said.items()}
    if hasattr(kind, "__match_args__") and isinstance(said, dict):
        hints = kind.__annotations__
        return kind(**{name: _value(hints[name], value) for name, value in said.items()})
    return kind(said) if isinstance(kind, type) and issubclass(kind, PurePosixPath | StrEnum) else said
