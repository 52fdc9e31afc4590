"""Protobuf as bytes: the fields of a message, and one field as bytes; CRI and NRI are spoken in it."""

from collections.abc import Iterator
from typing import Any, Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS: Final = 64  # without an end it would grow for hours
_MORE: Final = 0x80


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: an int for a varint, bytes for everything else.

    Raises:
        ValueError: it is no protobuf.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if tag & 7 == _BYTES:
            size, at = _varint(message, at)
        elif tag & 7 in _FIXED:
            size = _FIXED[tag & 7]
        else:
            raise ValueError(f"a field of type {tag & 7}")
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes where {len(message) - at} are left")
        yield tag >> 3, message[at : at + size]
        at += size


def field(number: int, value: int | str | bytes) -> bytes:
    """Return a field as bytes."""
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(value)
    content = value.encode(errors="replace") if isinstance(value, str) else value
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def message(*pairs: tuple[int, int | str | bytes]) -> bytes:
    """Return a message as bytes, of the numbers and values of its fields."""
    return b"".join(field(number, value) for number, value in pairs)


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
