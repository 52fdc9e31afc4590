"""One call of gRPC over a unix socket, by hand: what a node whose engine is well takes to ask it.

grpcio is a fifth of an install that changes nothing, for two calls. It is loaded where the answer is any
other than one whole message: it knows what an engine means by that, and says so. With the modules of a bare
interpreter: a start that only asks whether anything has changed loads no more.
"""

from _socket import AF_UNIX, socket
from time import monotonic

# HTTP/2 (RFC 9113): what a client says first, and the kinds of frames and flags that matter here.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
INITIAL_WINDOW_SIZE = 4
MAX_WINDOW = (1 << 31) - 1
USUAL_WINDOW = (1 << 16) - 1
STREAM = 1
HEAD_BYTES = 9
MAX_FRAME_BYTES = 1 << 14
MAX_VARINT_BITS = 70  # ten bytes
MAX_ANSWER_BYTES = 16 << 20  # as containerd's and the kubelet's own limit


def ask(socket_path: str, method: str, request: bytes, *, timeout_s: float) -> bytes | None:
    """Return the message that ``method`` answers with; None where it is not as plain as that.

    Only for calls that change nothing: who gets None asks again.
    """
    deadline = monotonic() + timeout_s
    try:
        connection = socket(AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(socket_path)
            connection.sendall(_opening() + _call(method, request))
            return _message(_answer(connection, deadline))
        finally:
            connection.close()
    except (OSError, ValueError):
        return None


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def _opening() -> bytes:
    """Return what opens a connection, on which as much may come as the other side likes."""
    window = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + MAX_WINDOW.to_bytes(4, "big")
    more = (MAX_WINDOW - USUAL_WINDOW).to_bytes(4, "big")
    return PREFACE + _frame(SETTINGS, 0, 0, window) + _frame(WINDOW_UPDATE, 0, 0, more)


def _call(method: str, request: bytes) -> bytes:
    """Return the frames of a call, with headers as literals of HPACK (RFC 7541)."""
    fields = b"\x83\x86"  # :method POST, :scheme http
    # :path, :authority and content-type by their numbers in the static table; te by its name.
    for name, value in ((b"\x04", method), (b"\x01", "localhost"), (b"\x0f\x10", "application/grpc")):
        fields += name + bytes((len(value),)) + value.encode()
    fields += b"\x00\x02te\x08trailers"
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return _frame(HEADERS, END_HEADERS, STREAM, fields) + _frame(DATA, END_STREAM, STREAM, message)


def _answer(connection: socket, deadline: float) -> bytes:
    """Return all data of the answer.

    Raises:
        OSError: it did not come, not in time, or is too long.
        ValueError: it was refused, or is not HTTP/2.
    """
    answer = bytearray()
    while len(answer) <= MAX_ANSWER_BYTES:
        head = _exactly(HEAD_BYTES, connection, deadline)
        size, kind, flags, stream = (
            int.from_bytes(head[:3], "big"),
            head[3],
            head[4],
            int.from_bytes(head[5:], "big"),
        )
        if size > MAX_FRAME_BYTES:
            break
        content = _exactly(size, connection, deadline)
        if kind in {RESET, GO_AWAY}:
            break
        if kind in {SETTINGS, PING} and not flags & ACK:
            _acknowledge(connection, kind, content)
        if stream == STREAM and kind == DATA:
            answer += _unpadded(content) if flags & PADDED else content
        if stream == STREAM and kind in {DATA, HEADERS} and flags & END_STREAM:
            return bytes(answer)
    raise ValueError("no answer in HTTP/2")


def _acknowledge(connection: socket, kind: int, content: bytes) -> None:
    try:
        connection.sendall(_frame(kind, ACK, 0, content if kind == PING else b""))
    except OSError:  # who has answered may have hung up
        return


def _unpadded(content: bytes) -> bytes:
    """Return what is in a padded frame, whose first byte says how long the padding at its end is."""
    if not content or content[0] >= len(content):
        raise ValueError("more padding than frame")
    return content[1 : len(content) - content[0]]


def _exactly(size: int, connection: socket, deadline: float) -> bytes:
    content = bytearray()
    while len(content) < size:
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionResetError
        content += part
    return bytes(content)


def _message(answer: bytes) -> bytes | None:
    """Return the one message, not compressed, that an answer consists of.

    A server in Go sends one only where the call succeeded, so the status in the trailers need not be read.
    """
    whole = len(answer) >= 5 and answer[:5] == b"\0" + (len(answer) - 5).to_bytes(4, "big")  # noqa: PLR2004
    return answer[5:] if whole else None


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint of protobuf, and where it ends.

    Raises:
        ValueError, IndexError: it has no end within ten bytes, or within the message.
    """
    value = shift = 0
    while shift < MAX_VARINT_BITS:  # without an end it would grow for hours
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not byte & 0x80:
            return value, at
    raise ValueError("protobuf number too long")
