"""One call of gRPC over a unix socket: a message there and one back, with one deadline for all of it."""

import socket
import time
from typing import Final
from urllib.parse import unquote

MAX_ANSWER_BYTES: Final = 16 << 20  # as containerd's and the kubelet's own limit
HEAD_BYTES: Final = 5  # of a message: whether it is compressed, and its size

# The status codes by their numbers (https://grpc.io/docs/guides/status-codes).
CODES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


class StatusError(Exception):
    """The call ended with another status than OK: ``code`` is its name, ``words`` are the server's."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.words = code, text


def call(path: str, method: str, request: bytes, *, timeout_s: float) -> bytes:
    """Return the message that ``method`` (``/package.Service/Method``) answers with.

    Raises:
        StatusError: the server refuses, or answers with more or less than one message.
        TimeoutError: the answer is not there within ``timeout_s``.
        OSError: the socket cannot be connected to, or what answers does not speak HTTP/2 to the end.
    """
    from h2.exceptions import H2Error

    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        try:
            headers, content = _exchange(connection, method, request, deadline)
            code = CODES[int(headers.get("grpc-status", "2"))]
        except (H2Error, IndexError, ValueError) as error:
            raise ConnectionError(f"what answers does not speak gRPC: {error}") from error
    if code != "OK":
        raise StatusError(code, unquote(headers.get("grpc-message", f"HTTP status {headers.get(':status')}")))
    message = content[HEAD_BYTES:]
    if content[:HEAD_BYTES] != b"\0" + len(message).to_bytes(4, "big"):
        raise StatusError("INTERNAL", "the answer is not one whole message")
    return message


def _exchange(
    connection: socket.socket, method: str, request: bytes, deadline: float
) -> tuple[dict[str, str], bytes]:
    """Send a request; return the headers and trailers of its answer, and the content."""
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    target = ((":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"))
    http.send_headers(stream, [*target, ("content-type", "application/grpc"), ("te", "trailers")])
    message = b"\0" + len(request).to_bytes(4, "big") + request
    http.send_data(stream, message, end_stream=True)
    headers: dict[str, str] = {}
    content = bytearray()
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.sendall(http.data_to_send())
        received = connection.recv(1 << 16)
        if not received or time.monotonic() > deadline:
            raise TimeoutError if received else ConnectionResetError("closed by the other side")
        for event in http.receive_data(received):
            match event:
                case events.ResponseReceived() | events.TrailersReceived():
                    headers.update((str(name), str(value)) for name, value in event.headers)
                case events.DataReceived():
                    content += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if len(content) > MAX_ANSWER_BYTES:
                        raise StatusError("RESOURCE_EXHAUSTED", "the answer is longer than 16 MB")
                case events.StreamReset() | events.ConnectionTerminated():
                    raise ConnectionResetError("taken back by the other side")
                case events.StreamEnded():
                    return headers, bytes(content)
                case _:
                    pass
