"""Protobuf as bytes, by a table of the fields that matter; CRI and NRI are spoken in it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS: Final = 64  # without an end it would grow for hours
_MORE: Final = 0x80
# An empty message has two bytes and becomes some 500 in memory. A thousand pods have 30,000 fields.
MOST_FIELDS: Final = 1 << 18
MOST_OBJECTS: Final = 1 << 15

# What a field is: a Python type (dict: a map of texts), the schema of a message, or a list of one of these.
Kind: TypeAlias = "type[int | str | bytes | dict[str, str]] | Schema | list[Kind]"
# The name and the kind of each field of a message, by its number.
Schema: TypeAlias = "Mapping[int, tuple[str, Kind]]"
ENTRY: Final[Schema] = {1: ("key", str), 2: ("value", str)}  # of a map


def pack(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Return ``values`` as protobuf; what is empty or 0 is left out, as proto3 does."""
    packed = bytearray()
    for number, (name, kind) in schema.items():
        found: Any = values.get(name)
        if kind is dict:
            entries = ({"key": key, "value": text} for key, text in (found or {}).items())
            packed += pack_fields(*((number, pack(ENTRY, entry)) for entry in entries))
        elif isinstance(kind, list):
            packed += b"".join(pack({number: (name, kind[0])}, {name: each}) for each in found or ())
        elif found:
            packed += _field(number, pack(kind, found) if isinstance(kind, Mapping) else found)
    return bytes(packed)


class _Bounds:
    """How many fields and objects one answer may still have."""

    __slots__ = ("fields", "objects")

    def __init__(self) -> None:
        self.fields = MOST_FIELDS
        self.objects = MOST_OBJECTS

    def count_field(self) -> None:
        self.fields -= 1
        if self.fields < 0:
            raise ValueError(f"more than {MOST_FIELDS} fields")

    def count_object(self) -> None:
        self.objects -= 1
        if self.objects < 0:
            raise ValueError(f"more than {MOST_OBJECTS} objects")


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of ``schema`` that a message has, the others as if empty; unknown ones are skipped.

    Raises ValueError for what is no protobuf, a field of another type, or more fields than an engine sends.
    """
    return _unpack(schema, content, _Bounds())


def _unpack(schema: Schema, content: bytes, bounds: _Bounds) -> dict[str, Any]:
    bounds.count_object()
    values: dict[str, Any] = {name: _empty_value(kind) for name, kind in schema.values()}
    for number, value in read_fields(content):
        bounds.count_field()
        if number not in schema:
            continue
        name, kind = schema[number]
        if isinstance(value, int) != (kind is int):
            raise ValueError(f"field {number} is of another type")
        if kind is dict:
            entry = _unpack(ENTRY, value, bounds)
            values[name][entry["key"]] = entry["value"]
        elif isinstance(kind, list):
            values[name].append(_unpack_value(kind[0], value, bounds))
        else:
            values[name] = _unpack_value(kind, value, bounds)
    return values


def _empty_value(kind: Kind) -> Any:
    if isinstance(kind, list):
        return []
    return unpack(kind, b"") if isinstance(kind, Mapping) else kind()


def _unpack_value(kind: Kind, value: Any, bounds: _Bounds) -> Any:
    if isinstance(kind, Mapping):
        return _unpack(kind, value, bounds)
    return value.decode(errors="replace") if kind is str else value


def read_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message, an int for a varint, else bytes; raise ValueError for no protobuf."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        if tag & 7 == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if tag & 7 == _BYTES:
            size, at = _varint(content, at)
        elif tag & 7 in _FIXED:
            size = _FIXED[tag & 7]
        else:
            raise ValueError(f"a field of type {tag & 7}")
        if at + size > len(content):
            raise ValueError(f"a field of {size} bytes where {len(content) - at} are left")
        yield tag >> 3, content[at : at + size]
        at += size


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(value)
    content = value.encode(errors="replace") if isinstance(value, str) else value
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def pack_fields(*pairs: tuple[int, int | str | bytes]) -> bytes:
    """Return a message as bytes, of the numbers and values of its fields."""
    return b"".join(_field(number, value) for number, value in pairs)


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & 0x7F | _MORE)
        value >>= 7
    return bytes((*encoded, value))


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < _VARINT_BITS:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _MORE:
            return value, at
    raise ValueError("a number without an end")
