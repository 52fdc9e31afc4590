"""One call by hand says what the engine says, or nothing."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.host import unary
from tests.host.servers import answer, engine, hang, hang_up, message, serving

METHOD = "/runtime.v1.RuntimeService/Version"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"8 bytes."
END = b"\x00\x00\x00\x01\x05\x00\x00\x00\x01"
GO_AWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8)
RESET = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + bytes(4)


def data(content: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return len(content).to_bytes(3) + bytes([0, flags]) + stream.to_bytes(4) + content


def whole(said: bytes) -> bytes:
    return b"\x00" + len(said).to_bytes(4) + said


def ask(path: Path, *, timeout_s: float = 5) -> bytes | None:
    return unary.ask(str(path), METHOD, b"", timeout_s=timeout_s)


@pytest.mark.parametrize("size", [0, 1, 16 << 10, 64 << 10, 3 << 20])
def test_a_message_of_any_size_comes_whole(tmp_path: Path, size: int) -> None:
    said = message((1, os.urandom(size)))
    asked: list[bytes] = []

    with engine(tmp_path / "socket", {METHOD: said}, asked) as path:
        found = unary.ask(str(path), METHOD, b"\x08\x01", timeout_s=20)

    assert found == said
    assert asked == [b"\x08\x01"]


def test_a_method_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    with engine(tmp_path / "socket", {}) as path:
        assert ask(path) is None


PLAIN = {
    "in parts": SETTINGS + data(whole(b"abc")[:3]) + data(whole(b"abc")[3:]) + END,
    "padded": SETTINGS + data(b"\x02" + whole(b"abc") + b"..", flags=8) + END,
    "with the last data": SETTINGS + data(whole(b"abc"), flags=1),
    "with a ping and another stream between": PING + data(b"x", stream=3) + data(whole(b"abc")) + PING + END,
}
NOT_PLAIN = {
    "nothing": SETTINGS + END,
    "cut short": SETTINGS + data(whole(b"abc")[:-1]) + END,
    "too much": SETTINGS + data(whole(b"abc") + b"d") + END,
    "two messages": SETTINGS + data(whole(b"abc") * 2) + END,
    "compressed": SETTINGS + data(b"\x01" + whole(b"abc")[1:]) + END,
    "without an end": SETTINGS + data(whole(b"abc")),
    "refused": SETTINGS + GO_AWAY + data(whole(b"abc")) + END,
    "taken back": SETTINGS + data(whole(b"abc")) + RESET + END,
    "a frame that is too long": b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "padded without a length": SETTINGS + data(b"", flags=8) + data(whole(b"abc")) + END,
    "more padding than frame": SETTINGS + data(b"\x09" + whole(b"abc"), flags=8) + data(whole(b"abc")) + END,
    "another language": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "noise": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("said", PLAIN.values(), ids=PLAIN)
def test_one_whole_message_is_the_answer(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path / "socket", answer(said)) as path:
        assert ask(path) == b"abc"


@pytest.mark.parametrize("said", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_anything_else_is_no_answer(tmp_path: Path, said: bytes) -> None:
    with serving(tmp_path / "socket", answer(said)) as path:
        assert ask(path) is None


@pytest.mark.parametrize("behave", [hang, hang_up])
def test_silence_ends_with_the_deadline(tmp_path: Path, behave: Callable[[socket.socket], None]) -> None:
    with serving(tmp_path / "socket", behave) as path:
        began = time.monotonic()

        assert ask(path, timeout_s=0.3) is None
        assert time.monotonic() - began < 5


def test_nobody_listens(tmp_path: Path) -> None:
    assert ask(tmp_path / "socket") is None
