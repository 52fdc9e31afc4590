"""``toolkit-installer nri`` becomes the plugin: the same process, in a bare interpreter, with its lock.

It keeps no capability, and where ``run`` has started it, it ends with that.
"""

import os
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from installer.decide.data import dataclass
from installer.host import nri_child, nri_start

# linux/prctl.h, linux/capability.h
PR_SET_PDEATHSIG: Final = 1
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITY_VERSION_3: Final = 0x20080522
SETS_BYTES: Final = 24  # effective, permitted and inheritable, of the low 32, then of the others


@dataclass(frozen=True, slots=True)
class Parent:
    """The ``run`` that has started this process, and how the plugin before it has ended; "" for the first."""

    pid: int
    ended: str = ""


def parent() -> Parent | None:
    """Return whose child this is; None where no ``run`` has started it.

    It stays in the environment of the plugin, by which one that was left is known (nri_left.py).
    """
    said = os.environ.get(nri_child.PARENT.decode(), "")
    try:
        pid, status = said.split()
        return Parent(int(pid), _told(status) if status != "-" else "")
    except ValueError:
        return None


def ends_with(parent: Parent) -> bool:
    """Let this process be stopped when its parent ends; tell whether the parent runs."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    return os.getppid() == parent.pid


def become_plugin(words: Sequence[str]) -> None:
    """Become the plugin that ``nri_plugin.main`` makes of ``words``; return only where that cannot be."""
    _keep_no_capability()
    command = [sys.executable, "-I", "-S", str(Path(nri_start.__file__).resolve()), *words]
    with suppress(OSError):
        os.execv(sys.executable, command)  # noqa: S606 - no shell is meant to be there


def _keep_no_capability() -> None:
    """Leave root's next program none: none is left now, and with no_new_privs an exec brings none back.

    The bounding set would need CAP_SETPCAP, which a pod has no other use for.
    """
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(SETS_BYTES))


def _told(status: str) -> str:
    if status == nri_child.HUNG.decode():
        return "killed, for it hung"
    code = os.waitstatus_to_exitcode(int(status))
    return f"signal {-code}" if code < 0 else f"exit code {code}"
