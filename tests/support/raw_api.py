"""A server with the certificate of the tests' API that answers each request with given bytes."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from installer.host.kubernetes import Api
from tests.support.site import PROJECT

# For 127.0.0.1, with its key: of no use to anybody. Then its authority, which has no keyUsage.
CERTIFICATE = PROJECT / "tests/support/api.pem"
DATE = b"Date: Sat, 28 Nov 2026 12:00:00 GMT\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def head(*fields: bytes) -> bytes:
    """Return the head of an answer; each field ends with its line break."""
    return b"HTTP/1.1 200 OK\r\n" + b"".join(fields) + b"\r\n"


def whole(body: bytes) -> bytes:
    """Return an answer with its body."""
    return head(DATE, b"Content-Length: %d\r\n" % len(body)) + body


def write_account(directory: Path) -> None:
    """Make ``directory`` that of a pod's account."""
    begin = "-----BEGIN CERTIFICATE-----"
    authority = begin + CERTIFICATE.read_text().rpartition(begin)[2]
    for name, text in (("token", "token-1"), ("namespace", "gpu"), ("ca.crt", authority)):
        (directory / name).write_text(text)


@contextmanager
def answering(act: Callable[[ssl.SSLSocket], object], directory: Path) -> Iterator[Api]:
    """Serve until the block ends: ``act`` answers a request that was read, and the connection is closed then."""
    write_account(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1 << 16)
            act(secure)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield Api("127.0.0.1", listener.getsockname()[1], directory, directory / "ready")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
