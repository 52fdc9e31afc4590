"""The file in which Kubernetes looks why a container has ended (its ``terminationMessagePath``)."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

# Kubernetes' default, which it mounts into every container; on a host there is no such file.
PATH: Final = Path("/dev/termination-log")
AT_MOST_BYTES: Final = 4096  # Kubernetes reads no more


def leave(text: str) -> None:
    """Let ``text`` be the container's last words, if it is one; that it cannot be written stops nothing."""
    with suppress(OSError):
        # Whatever it is: a FIFO is opened without waiting for somebody to read it.
        fd = os.open(PATH, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.ftruncate(fd, 0)
                content = text.encode(errors="backslashreplace")[: AT_MOST_BYTES - 1]
                # A character that is cut in two is none.
                os.write(fd, content.decode(errors="ignore").encode() + b"\n")
        finally:
            os.close(fd)
