"""The process that holds a pidfile, and a signal to it: its lock proves it, not the number in the file."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from installer.host.glance import is_held_pidfile
from installer.host.lock_table import PROC


def holder_of(path: Path) -> int | None:
    """Return the pid, in our own pid namespace, of the ``run`` that holds the pidfile at ``path``."""
    if not is_held_pidfile(str(path)):
        return None
    with suppress(OSError):
        return next(_holders(path.lstat()), None)
    return None


def _holders(file: os.stat_result) -> Iterator[int]:
    """Yield who has locked a file by flock(2), and has it open: an inode number alone is given again."""
    for line in (PROC / "locks").read_text(errors="replace").splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].endswith(f":{file.st_ino}") and _has_open(words[4], file):
            yield int(words[4])


def _has_open(pid: str, file: os.stat_result) -> bool:
    with suppress(OSError):
        for link in (PROC / pid / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.path.samestat(file, link.stat()):
                    return True
    return False


def send(path: Path, number: signal.Signals) -> int | None:
    """Send a signal to the holder of the pidfile at ``path``; return its pid, None where nobody holds it."""
    pid = holder_of(path)
    if pid is None:
        return None
    with suppress(ProcessLookupError):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:  # before Linux 5.3, or an old seccomp profile
            if isinstance(error, ProcessLookupError):
                raise
            os.kill(pid, number)
            return pid
        try:
            if holder_of(path) == pid:  # from here on the descriptor can mean nobody else
                signal.pidfd_send_signal(descriptor, number)
                return pid
        finally:
            os.close(descriptor)
    return None
