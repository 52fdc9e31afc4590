"""A call of gRPC gives one whole message, or says what the server or the connection did instead."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from installer.host import sockets
from tests.host.servers import answer, engine, message, serving

METHOD = "/runtime.v1.RuntimeService/Version"


def frame(kind: int, content: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content


def headers(*fields: tuple[str, str], end: bool = False) -> bytes:
    """Encode fields as HPACK's literals with a name (RFC 7541, 6.2.2)."""
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields
    )
    return frame(1, block, flags=5 if end else 4)


def data(content: bytes, *, flags: int = 0) -> bytes:
    return frame(0, content, flags=flags)


def whole(said: bytes) -> bytes:
    return b"\x00" + len(said).to_bytes(4) + said


SETTINGS = frame(4, b"", stream=0)
PING = frame(6, b"8 bytes.", stream=0)
GO_AWAY = frame(7, bytes(8), stream=0)
RESET = frame(3, bytes(4))
OK = headers((":status", "200"))
END = headers(("grpc-status", "0"), end=True)
ABC = data(whole(b"abc"))


def call(path: Path, *, timeout_s: float = 5) -> bytes:
    return sockets.call_grpc(str(path), METHOD, b"", timeout_s=timeout_s)


@pytest.mark.parametrize("size", [0, (16 << 20) - 20])
def test_a_message_of_any_size_comes_whole(tmp_path: Path, size: int) -> None:
    said, asked = message((1, os.urandom(size))), list[bytes]()

    with engine(tmp_path / "socket", {METHOD: said}, asked) as path:
        found = sockets.call_grpc(str(path), METHOD, b"\x08\x01", timeout_s=60)

    assert found == said
    assert asked == [b"\x08\x01"]


def test_a_message_of_more_than_16_mb_is_refused(tmp_path: Path) -> None:
    with (
        engine(tmp_path / "socket", {METHOD: bytes(17 << 20)}) as path,
        pytest.raises(sockets.StatusError, match="RESOURCE_EXHAUSTED: the answer is longer than 16 MB"),
    ):
        call(path, timeout_s=60)


BEGUN = SETTINGS + OK
NAIVE = (("grpc-status", "9"), ("grpc-message", "no %22na%C3%AFve%22 100%25"))
NOT_WHOLE = "INTERNAL: the answer is not one whole message"
REFUSED = {
    "without a status": (BEGUN + data(whole(b"abc"), flags=1), "UNKNOWN: HTTP status 200"),
    "in the engine's words": (
        SETTINGS + headers((":status", "200"), *NAIVE, end=True),
        'FAILED_PRECONDITION: no "naïve" 100%',
    ),
    "no message": (BEGUN + END, NOT_WHOLE),
    "cut short": (BEGUN + data(whole(b"abc")[:-1]) + END, NOT_WHOLE),
}
BROKEN = {
    "without an end": BEGUN + ABC,
    "the server goes away": SETTINGS + GO_AWAY + OK + ABC + END,
    "taken back": BEGUN + ABC + RESET,
}


def test_one_whole_message_is_the_answer_also_in_parts_and_with_pings_between(tmp_path: Path) -> None:
    parts = data(whole(b"abc")[:3]) + PING + data(whole(b"abc")[3:])
    with serving(tmp_path / "socket", answer(SETTINGS + PING + OK + parts + END)) as path:
        assert call(path) == b"abc"


@pytest.mark.parametrize(("said", "words"), REFUSED.values(), ids=REFUSED)
def test_another_status_than_ok_is_told_in_the_servers_words(tmp_path: Path, said: bytes, words: str) -> None:
    with serving(tmp_path / "socket", answer(said)) as path, pytest.raises(sockets.StatusError) as refused:
        call(path)

    assert str(refused.value).startswith(words)


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
def test_what_is_no_grpc_is_an_error_of_the_connection(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path / "socket", answer(said)) as path, pytest.raises(ConnectionError):
        call(path)


def dripping(connection: Any) -> None:
    connection.sendall(SETTINGS + OK)
    while True:
        connection.sendall(PING)
        time.sleep(0.05)


def test_a_server_that_only_pings_does_not_hold_a_call_past_its_deadline(tmp_path: Path) -> None:
    with serving(tmp_path / "socket", dripping) as path, pytest.raises(TimeoutError):
        call(path, timeout_s=0.3)
