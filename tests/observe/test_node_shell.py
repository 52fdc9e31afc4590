"""The node's shell for test containers: which loader starts it is in its program headers."""

import struct
from pathlib import Path

import pytest

from installer.engines.node_shell import find_loader

LOADER = b"/lib64/ld-linux-x86-64.so.2"
# ELF64: the header has 64 bytes, a program header has 56.
HEADER = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
PROGRAM = struct.Struct("<IIQQQQQQ")
LOAD, INTERPRETER = 1, 3


def _elf(*segments: tuple[int, int, int], text: bytes = b"", at: int = 0) -> bytes:
    """Return a program of 64 bits with segments of kind, offset and size, and a text at an offset."""
    head = HEADER.pack(b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    table = b"".join(PROGRAM.pack(kind, 4, at, at, at, length, length, 1) for kind, at, length in segments)
    content = bytearray((head + table).ljust(0x400, b"\xff"))
    content[at : at + len(text)] = text
    return bytes(content)


@pytest.mark.parametrize("at", [0x318, 0x394], ids=["behind the headers", "behind a note, as on Debian 13"])
def test_the_loader_is_what_the_program_header_names(at: int) -> None:
    text = LOADER + b"\0"

    content = _elf((LOAD, 0, 0x300), (INTERPRETER, at, len(text)), text=text, at=at)

    assert find_loader(content) == LOADER.decode()


@pytest.mark.parametrize(
    "content",
    [
        _elf((LOAD, 0, 0x300)),
        _elf((INTERPRETER, 0x5000, 28)),
        _elf((INTERPRETER, 0x318, 0)),
        _elf((INTERPRETER, 0x318, 28))[:80],
        _elf()[:20],
        b"",
    ],
    ids=["no such header", "beyond the file", "empty", "cut in the table", "cut in the header", "nothing"],
)
def test_a_program_without_a_loader_that_can_be_read_has_none(content: bytes) -> None:
    assert find_loader(content) is None


def test_the_loader_of_this_machines_shell_is_found() -> None:
    content = Path("/bin/sh").read_bytes()

    found = find_loader(content)

    assert (found is not None) == (b"\0.interp\0" in content), "sections of a linked program have that name"
    assert found is None or Path(found).exists()
