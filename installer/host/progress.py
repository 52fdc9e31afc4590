"""How far the copy of a toolkit is, told where a disk has people wait for it."""

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from installer.decide.toolkit import Copy, PayloadFile
from installer.host.events import log

TELL_S: Final = 2.0  # on a disk as usual all of it takes a tenth of that


class Progress:
    """Counts the bytes of files that are there, and tells them every two seconds."""

    def __init__(self, files: Sequence[PayloadFile]) -> None:
        self._total = sum(map(_size, files))
        self._done = 0
        self._told = time.monotonic()
        self._lock = Lock()

    def of(self, put: Callable[[PayloadFile], None]) -> Callable[[PayloadFile], None]:
        """Return ``put``, whose files are counted; it may be called by several threads."""

        def counted(file: PayloadFile) -> None:
            put(file)
            with self._lock:
                self._done += _size(file)
                now = time.monotonic()
                if self._done < self._total and now - self._told >= TELL_S:
                    self._told = now
                    log.info("toolkit partly copied", mb=self._done >> 20, of_mb=self._total >> 20)

        return counted


def _size(file: PayloadFile) -> int:
    return file.size_bytes if isinstance(file, Copy) else 0
