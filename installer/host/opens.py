"""Which of some files were opened meanwhile: the kernel tells, and whoever starts a program opens it."""

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass, field

IN_OPEN: Final = 0x20
IN_CLOEXEC: Final = os.O_CLOEXEC
IN_NONBLOCK: Final = os.O_NONBLOCK
EVENT: Final = struct.Struct("iIII")  # struct inotify_event: watch, mask, cookie, length of the name
READ_BYTES: Final = 1 << 16


@dataclass(slots=True)
class Opens:
    """The files that are watched; ``those`` returns which were opened since the watch began."""

    fd: int
    watched: dict[int, list[Path]] = field(default_factory=dict)
    opened: set[Path] = field(default_factory=set)

    def those(self) -> frozenset[Path]:
        """Return the files that somebody has opened so far."""
        while events := self._events():
            at = 0
            while at + EVENT.size <= len(events):
                watch, _, _, length = EVENT.unpack_from(events, at)
                self.opened.update(self.watched.get(watch, ()))
                at += EVENT.size + length
        return frozenset(self.opened)

    def _events(self) -> bytes:
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""


@contextmanager
def opens(files: Iterable[Path]) -> Iterator[Opens]:
    """Watch files for the block; one that cannot be watched is never called opened."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
    if fd < 0:  # no instance left: nobody can tell
        yield Opens(fd)
        return
    try:
        watch = Opens(fd)
        for file in files:
            number = libc.inotify_add_watch(fd, os.fsencode(file), IN_OPEN)
            if number >= 0:
                watch.watched.setdefault(number, []).append(file)
        yield watch
    finally:
        os.close(fd)
