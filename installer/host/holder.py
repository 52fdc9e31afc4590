"""The process that holds a pidfile, and a signal to it: its lock proves it, not the number in the file."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from installer.host.glance import holders, is_held_pidfile
from installer.host.processes import pidfd


def holder_of(path: Path) -> int | None:
    """Return the pid, in our own pid namespace, of the ``run`` that holds the pidfile at ``path``."""
    if not is_held_pidfile(str(path)):
        return None
    with suppress(OSError):
        file = path.lstat()
        return next(iter(holders((file.st_dev, file.st_ino))), None)
    return None


def send(path: Path, number: signal.Signals) -> int | None:
    """Send a signal to the holder of the pidfile at ``path``; return its pid, None where nobody holds it."""
    pid = holder_of(path)
    if pid is None:
        return None
    with suppress(ProcessLookupError), pidfd(pid) as process:
        if process is None:
            os.kill(pid, number)
            return pid
        if holder_of(path) == pid:  # from here on the descriptor can mean nobody else
            signal.pidfd_send_signal(process, number)
            return pid
    return None
