"""Texts that a program of the host reads, and that are on no disk: what they hold is nobody else's to see."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass

MEMORY: Final = "/dev/shm"  # noqa: S108 - writable also where a container's root is not


@dataclass(frozen=True, slots=True)
class Held:
    """One text, or a directory of texts: ``name`` is its path for a program that inherits ``fd``.

    The name is the kernel's link to an open file (proc(5), /proc/PID/fd), so it holds in whatever root the
    program runs.
    """

    fd: int
    name: str

    def fill(self, text: str) -> None:
        """Write the text."""
        with open(self.fd, "wb", closefd=False) as file:
            file.write(text.encode())


@contextmanager
def held_texts(count: int) -> Iterator[Sequence[Held]]:
    """Yield ``count`` empty texts (memfd_create(2)), gone at the end."""
    fds: list[int] = []
    try:
        fds.extend(os.memfd_create("config") for _ in range(count))
        yield [Held(fd, f"/proc/self/fd/{fd}") for fd in fds]
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def held_directory(texts: Mapping[PurePosixPath, str]) -> Iterator[Held]:
    """Yield a directory with ``texts`` by their relative paths, which nobody but its owner can enter."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        top = Path(directory, "texts")
        top.mkdir()
        for path, text in texts.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(text.encode())
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # A link at the end would not be walked into, so the directory itself is named behind it.
            yield Held(fd, f"/proc/self/fd/{fd}/texts")
        finally:
            os.close(fd)
