"""An NRI plugin that nobody attends any more: its ``run`` was killed, or it was and cannot end yet.

A number in a file proves nothing. It is found by its lock, which the kernel gives to one process, and known
by the word with which a ``run`` has started it: one that somebody has started by hand is left alone.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass
from installer.host import nri_child
from installer.host.glance import holders, is_roots, status_field, text_of, trusted_uids
from installer.host.processes import pidfd

END_S: Final = 2.0  # after each signal
LOOK_S: Final = 0.02
PROC: Final = "/proc"
WHY: Final = "nobody attends it: the run that had started it was killed"
CANNOT: Final = "it was killed, and is gone as soon as its cgroup is thawed, or its disk answers"
_KILLED: Final = 1 << (signal.SIGKILL - 1)  # in a mask of proc(5)


@dataclass(frozen=True, slots=True)
class Left:
    """A plugin that has been left, and whether it is ``gone``: else it ends before it does anything more."""

    pid: int
    gone: bool


def left_plugin(lock: Path) -> int | None:
    """Return the pid of the plugin that holds ``lock`` and that nobody attends; None where there is none.

    A process that is not seen from here, as one in another pod, is none.
    """
    try:
        file = lock.lstat()
    except OSError:
        return None
    if file.st_uid not in trusted_uids():
        return None
    found = holders((file.st_dev, file.st_ino))
    return next((pid for pid in found if is_roots(pid) and _is_left(pid)), None)


def end(lock: Path) -> Left | None:
    """End the plugin that holds ``lock`` and that nobody attends, within four seconds; None for none.

    One that cannot end, as its cgroup is frozen or its disk does not answer, does nothing any more once it
    was killed. Its lock then loses its name, so that another plugin can serve.
    """
    pid = left_plugin(lock)
    if pid is None:
        return None
    gone = _ends(lock, pid, signal.SIGTERM, signal.SIGCONT) or _ends(lock, pid, signal.SIGKILL)
    if not gone and _is_killed(pid) and left_plugin(lock) == pid:
        lock.unlink(missing_ok=True)
    return Left(pid, gone)


def _ends(lock: Path, pid: int, *numbers: signal.Signals) -> bool:
    """Send signals to a plugin that was left; tell whether it has let its lock go in time."""
    with suppress(ProcessLookupError), pidfd(pid) as process:
        if left_plugin(lock) == pid:  # from here on the descriptor can mean nobody else
            for number in numbers:
                if process is None:
                    os.kill(pid, number)
                else:
                    signal.pidfd_send_signal(process, number)
    until_s = time.monotonic() + END_S
    while (holds := left_plugin(lock) == pid) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    return not holds


def run_of(pid: int) -> str:
    """Return the pid, in its own namespace, of the ``run`` that has started a plugin; "" where none has."""
    with suppress(OSError, IndexError):
        name = f"{nri_child.PARENT.decode()}="
        variables = text_of(f"{PROC}/{pid}/environ").split("\0")
        return next((each for each in variables if each.startswith(name)), name).removeprefix(name).split()[0]
    return ""


def _is_left(pid: int) -> bool:
    """Tell whether a process is a plugin of a ``run``, which is not its parent any more; or was killed."""
    run = run_of(pid)
    with suppress(OSError, ValueError):
        (parent,) = status_field("PPid:", pid, PROC)
        if not run or parent == "0":  # of a namespace that is not seen from here
            return False
        return run not in (status_field("NSpid:", int(parent), PROC) or [parent]) or _is_killed(pid)
    return False


def _is_killed(pid: int) -> bool:
    """Tell whether SIGKILL waits for a process, which then never gets back to its program."""
    with suppress(OSError):
        return any(
            int(mask, 16) & _KILLED
            for mask in status_field("ShdPnd:", pid, PROC) + status_field("SigPnd:", pid, PROC)
        )
    return False
