"""The three layers of NRI as bytes: frames of its mux, messages of ttrpc, fields of protobuf.

Field numbers are in ``messages``; here is only how bytes are cut and put together. Whatever comes is refused
in a sentence where it is none of this.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError

# The connections that share the socket: on one the engine asks, on the other the plugin.
PLUGIN: Final = 1
RUNTIME: Final = 2
REQUEST: Final = 1
RESPONSE: Final = 2
MAX_MESSAGE_BYTES: Final = 4 << 20  # ttrpc's own limit
# Go's side reads into a buffer of this size: one frame with a byte more breaks the connection, and the
# container starts without its device. No document says so (engine-facts.md#nri-frames).
MAX_PAYLOAD_BYTES: Final = 4096
_MUX: Final = struct.Struct(">II")
_TTRPC: Final = struct.Struct(">IIBB")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS: Final = 64
_MORE: Final = 0x80

INT: Final = "an integer"
TEXT: Final = "a text"
BYTES: Final = "bytes"
MAP: Final = "a map of texts"


class WireError(InstallerError):
    """What came is not what NRI says it is."""

    usual = "nri-failed"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"understand the engine over NRI ({problem})", remedy="report it with the version of the engine"
        )


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: its name, its kind, and for a message in it the fields of that."""

    name: str
    kind: str = TEXT
    inner: "Mapping[int, Field] | None" = None
    many: bool = False


Schema: TypeAlias = Mapping[int, Field]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of ttrpc: the connection it came on, its stream, its type and what is in it."""

    connection: int
    stream: int
    kind: int
    content: bytes


def encoded(message: Message) -> bytes:
    """Return a message as frames, none of which is longer than the other side can read."""
    whole = _TTRPC.pack(len(message.content), message.stream, message.kind, 0) + message.content
    parts = (whole[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(whole), MAX_PAYLOAD_BYTES))
    return b"".join(_MUX.pack(message.connection, len(part)) + part for part in parts)


class Messages:
    """Cuts the bytes of one socket into messages; frames of a connection that nobody knows are dropped."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._connections = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def of(self, content: bytes) -> Iterator[Message]:
        """Yield the messages that are whole with ``content``.

        Raises:
            WireError: a frame or a message is longer than the protocol allows.
        """
        self._bytes += content
        while len(self._bytes) >= _MUX.size:
            number, size = _MUX.unpack_from(self._bytes)
            if size > MAX_MESSAGE_BYTES + _TTRPC.size:
                raise WireError(f"a frame of {size} bytes")
            if len(self._bytes) < _MUX.size + size:
                return
            payload = bytes(self._bytes[_MUX.size : _MUX.size + size])
            del self._bytes[: _MUX.size + size]
            if number in self._connections:
                yield from self._cut(number, payload)

    def _cut(self, number: int, payload: bytes) -> Iterator[Message]:
        waiting = self._connections[number]
        waiting += payload
        while len(waiting) >= _TTRPC.size:
            size, stream, kind, _ = _TTRPC.unpack_from(waiting)
            if size > MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {size} bytes")
            end = _TTRPC.size + size
            if len(waiting) < end:
                return
            content = bytes(waiting[_TTRPC.size : end])
            del waiting[:end]
            yield Message(number, stream, kind, content)


def pack(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Return ``values`` as protobuf; what is empty or 0 is left out, as proto3 does."""
    packed = bytearray()
    for number, field in schema.items():
        value = values.get(field.name)
        if not value and not field.many:
            continue
        for each in value or () if field.many else (value,):
            packed += _packed(number, field, each)
    return bytes(packed)


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of ``schema`` that a message has, the others as if empty; unknown ones are skipped.

    Raises:
        WireError: it is no protobuf, or a field is of another type.
    """
    values: dict[str, Any] = {field.name: _empty(field) for field in schema.values()}
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        value, at = _value(content, at, tag & 7)
        field = schema.get(tag >> 3)
        if field is None:
            continue
        if (tag & 7) != (_VARINT if field.kind == INT else _BYTES):
            raise WireError(f"field {tag >> 3} is of type {tag & 7}")
        _put(values, field, value)
    return values


def _empty(field: Field) -> Any:
    if field.many:
        return []
    if field.inner is not None:
        return unpack(field.inner, b"")
    return {INT: 0, TEXT: "", BYTES: b"", MAP: {}}[field.kind]


ENTRY: Final[Schema] = {1: Field("key"), 2: Field("value")}


def _put(values: dict[str, Any], field: Field, value: Any) -> None:
    if field.kind == MAP:
        entry = unpack(ENTRY, value)
        values[field.name][entry["key"]] = entry["value"]
        return
    if field.inner is not None:
        value = unpack(field.inner, value)
    elif field.kind == TEXT:
        value = value.decode(errors="replace")
    if field.many:
        values[field.name].append(value)
    else:
        values[field.name] = value


def _packed(number: int, field: Field, value: Any) -> bytes:
    if field.kind == INT:
        return _number(number << 3 | _VARINT) + _number(int(value))
    if field.kind == MAP:
        entries = ({"key": key, "value": each} for key, each in value.items())
        return b"".join(_with_size(number, pack(ENTRY, entry)) for entry in entries)
    if field.inner is not None:
        return _with_size(number, pack(field.inner, value))
    return _with_size(number, value if field.kind == BYTES else value.encode(errors="replace"))


def _with_size(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


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
    raise WireError("a number without an end")


def _value(content: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == _VARINT:
        return _varint(content, at)
    if kind == _BYTES:
        size, at = _varint(content, at)
    elif kind in _FIXED:
        size = _FIXED[kind]
    else:
        raise WireError(f"a field of type {kind}")
    if at + size > len(content):
        raise WireError(f"a field of {size} bytes where {len(content) - at} are left")
    return content[at : at + size], at + size
