"""NRI as bytes: frames of its mux, messages of ttrpc, and the tables of the messages that are needed.

The field numbers are the same from NRI 0.2 to 0.12 (pkg/api/api.proto of NRI and ttrpc's request.proto,
engine-facts.md#nri-fields). What is left out is skipped when it comes, and never sent. Whatever comes is
refused in a sentence where it is none of this.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from installer.errors import InstallerError
from installer.model import protobuf
from installer.model.protobuf import Schema

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


class WireError(InstallerError):
    """What came is not what NRI says it is."""

    usual = "nri-failed"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"understand the engine over NRI ({problem})", remedy="report it with the version of the engine"
        )


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
        for (number, _), payload in _cut(self._bytes, _MUX, 1, MAX_MESSAGE_BYTES + _TTRPC.size, "frame"):
            if number in self._connections:
                waiting = self._connections[number]
                waiting += payload
                for (_, stream, kind, _), whole in _cut(waiting, _TTRPC, 0, MAX_MESSAGE_BYTES, "message"):
                    yield Message(number, stream, kind, whole)


def _cut(
    waiting: bytearray, header: struct.Struct, place: int, most: int, what: str
) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Take off each header that has come whole, with what it announces; its size stands at ``place``."""
    while len(waiting) >= header.size:
        words = header.unpack_from(waiting)
        end = header.size + words[place]
        if words[place] > most:
            raise WireError(f"a {what} of {words[place]} bytes")
        if len(waiting) < end:
            return
        content = bytes(waiting[header.size : end])
        del waiting[:end]
        yield words, content


def unpack(schema: Schema, content: bytes) -> dict[str, Any]:
    """Return the fields of ``schema`` that a message has, or raise WireError."""
    try:
        return protobuf.unpack(schema, content)
    except ValueError as error:
        raise WireError(str(error)) from error


PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

# ttrpc
ASKED: Final[Schema] = {1: ("service", str), 2: ("method", str), 3: ("payload", bytes)}
STATUS: Final[Schema] = {1: ("code", int), 2: ("message", str)}
ANSWERED: Final[Schema] = {1: ("status", STATUS), 2: ("payload", bytes)}

# Registration
REGISTER: Final[Schema] = {1: ("name", str), 2: ("index", str)}
CONFIGURE: Final[Schema] = {2: ("engine", str), 3: ("version", str)}
CONFIGURED: Final[Schema] = {2: ("events", int)}
# Bit n - 1 for event n. 0 would be all of them, which makes the plugin a validator on containerd 2.2 and
# fails every container of the node; a bit that the engine does not know ends the connection.
CREATE_CONTAINER_ALONE: Final = 1 << (4 - 1)

# Pods and containers
POD: Final[Schema] = {1: ("id", str), 2: ("name", str), 4: ("namespace", str), 6: ("annotations", dict)}
CONTAINER: Final[Schema] = {
    1: ("id", str),
    2: ("pod", str),
    3: ("name", str),
    4: ("state", int),
    6: ("annotations", dict),
}
STOPPED: Final = 4
SYNCHRONIZE: Final[Schema] = {
    1: ("pods", [POD]),
    2: ("containers", [CONTAINER]),
    3: ("more", int),
}
SYNCHRONIZED: Final[Schema] = {2: ("more", int)}
CREATE: Final[Schema] = {1: ("pod", POD), 2: ("container", CONTAINER)}
DEVICE: Final[Schema] = {1: ("name", str)}
ADJUSTMENT: Final[Schema] = {2: ("annotations", dict), 8: ("devices", [DEVICE])}
CREATED: Final[Schema] = {1: ("adjust", ADJUSTMENT)}

# Codes of gRPC, which ttrpc has too.
INVALID_ARGUMENT: Final = 3
PERMISSION_DENIED: Final = 7
UNIMPLEMENTED: Final = 12
# What newer and older engines tell a plugin without being asked, and what needs no words for an answer.
TOLD_ONLY: Final = frozenset(
    {
        *("StateChange", "Shutdown", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("PostCreateContainer", "StartContainer", "PostStartContainer", "RemoveContainer"),
    }
)
