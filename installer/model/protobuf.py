"""Encode and decode protobuf, the format of CRI and NRI, by tables of the needed fields."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

# Types of fields on the wire, and the sizes of the fixed types in bytes.
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS: Final = 64  # a number without an end would grow for hours
_MORE: Final = 0x80
# An empty message has two bytes and takes some 500 bytes in memory. A thousand pods have 30,000 fields.
MOST_FIELDS: Final = 1 << 18
MOST_OBJECTS: Final = 1 << 15

# The kind of a field: a Python type (dict: a map of texts), the schema of a message, or a list of these.
Kind: TypeAlias = "type[int | str | bytes | dict[str, str]] | Schema | list[Kind]"
# The name and the kind of each field of a message, by its number.
Schema: TypeAlias = "Mapping[int, tuple[str, Kind]]"
ENTRY: Final[Schema] = {1: ("key", str), 2: ("value", str)}  # of a map


def pack(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Return ``values`` as protobuf; an empty value or 0 is left out, as in proto3."""
    packed = bytearray()
    for number, (name, kind) in schema.items():
        value: Any = values.get(name)
        if not value:
            continue
        if kind is dict:
            for key, text in value.items():
                packed += _pack_field(number, pack(ENTRY, {"key": key, "value": text}))
        elif isinstance(kind, list):
            for element in value:
                packed += pack({number: (name, kind[0])}, {name: element})
        elif isinstance(kind, Mapping):
            packed += _pack_field(number, pack(kind, value))
        else:
            packed += _pack_field(number, value)
    return bytes(packed)


class _Bounds:
    """The numbers of fields and objects that an answer may still have."""

    __slots__ = ("fields", "objects")

    def __init__(self) -> None:
        self.fields = MOST_FIELDS
        self.objects = MOST_OBJECTS

    def count_field(self) -> None:
        """Count a field; raise ValueError for too many."""
        self.fields -= 1
        if self.fields < 0:
            raise ValueError(f"more than {MOST_FIELDS} fields")

    def count_object(self) -> None:
        """Count an object; raise ValueError for too many."""
        self.objects -= 1
        if self.objects < 0:
            raise ValueError(f"more than {MOST_OBJECTS} objects")


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of a message that ``schema`` names; missing fields are empty, unknown fields skipped.

    Raises:
        ValueError: the content is no protobuf, a field has another type, or there are more fields than an
            engine sends.
    """
    return _unpack(schema, content, _Bounds())


def _unpack(schema: Schema, content: bytes, bounds: _Bounds) -> dict[str, Any]:
    """Return the fields of a message within the bounds of the whole answer."""
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
    """Return the value of a missing field."""
    if isinstance(kind, list):
        return []
    if isinstance(kind, Mapping):
        return unpack(kind, b"")
    return kind()


def _unpack_value(kind: Kind, value: Any, bounds: _Bounds) -> Any:
    """Return the value of a field that is no map and no list."""
    if isinstance(kind, Mapping):
        return _unpack(kind, value, bounds)
    if kind is str:
        return value.decode(errors="replace")
    return value


def read_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field, an int for a varint, else bytes.

    Raises:
        ValueError: the content is no protobuf.
    """
    pos = 0
    while pos < len(content):
        tag, pos = _unpack_varint(content, pos)
        number = tag >> 3
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, pos = _unpack_varint(content, pos)
            yield number, value
            continue

        if wire_type == _BYTES:
            size, pos = _unpack_varint(content, pos)
        elif wire_type in _FIXED:
            size = _FIXED[wire_type]
        else:
            raise ValueError(f"a field of type {wire_type}")
        if pos + size > len(content):
            raise ValueError(f"a field of {size} bytes where {len(content) - pos} are left")
        yield number, content[pos : pos + size]
        pos += size


def _pack_field(number: int, value: int | str | bytes) -> bytes:
    """Return a field as bytes."""
    if isinstance(value, int):
        return _pack_varint(number << 3 | _VARINT) + _pack_varint(value)
    content = value.encode(errors="replace") if isinstance(value, str) else value
    return _pack_varint(number << 3 | _BYTES) + _pack_varint(len(content)) + content


def pack_fields(*pairs: tuple[int, int | str | bytes]) -> bytes:
    """Return the message of the given numbers and values of fields."""
    return b"".join(_pack_field(number, value) for number, value in pairs)


def _pack_varint(value: int) -> bytes:
    """Return a number as a varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & 0x7F | _MORE)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _unpack_varint(content: bytes, pos: int) -> tuple[int, int]:
    """Return the number at ``pos``, and the position behind the number."""
    value = 0
    shift = 0
    while pos < len(content) and shift < _VARINT_BITS:
        byte = content[pos]
        value |= (byte & 0x7F) << shift
        pos += 1
        shift += 7
        if byte < _MORE:
            return value, pos
    raise ValueError("a number without an end")
