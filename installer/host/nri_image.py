"""``toolkit-installer nri`` becomes the plugin: the same process, in a bare interpreter, with its lock.

It keeps no capability, and where ``run`` has started it, it ends with that.
"""

import ctypes
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
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
CAPABILITY_VERSION_3: Final = 0x20080522
LAST_CAPABILITY: Final = 63
_SETS: Final = struct.Struct("=6I")  # effective, permitted and inheritable, of the low 32, then of the others


@dataclass(frozen=True, slots=True)
class Parent:
    """The ``run`` that has started this process, and how the plugin before it has ended; "" for the first."""

    pid: int
    ended: str = ""


def parent() -> Parent | None:
    """Return, once, whose child this is; None where no ``run`` has started it."""
    said = os.environ.pop(nri_child.PARENT.decode(), "")
    try:
        pid, status = said.split()
        return Parent(int(pid), _told(int(status)) if status != "-" else "")
    except ValueError:
        return None


def ends_with(parent: Parent) -> bool:
    """Let this process be stopped when its parent ends; tell whether the parent runs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    return os.getppid() == parent.pid


def become_plugin(words: Sequence[str]) -> None:
    """Become the plugin that ``nri_plugin.main`` makes of ``words``; return only where that cannot be."""
    _keep_no_capability()
    command = [sys.executable, "-I", "-S", str(Path(nri_start.__file__).resolve()), *words]
    with suppress(OSError):
        os.execv(sys.executable, command)  # noqa: S606 - no shell is meant to be there


def _keep_no_capability() -> None:
    """Leave root's next program none; who may not say so has none to leave."""
    libc = ctypes.CDLL(None)
    for number in range(LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(_SETS.size)
    if libc.capget(header, sets) == 0:
        low_effective, low, _, high_effective, high, _ = _SETS.unpack(sets.raw)
        libc.capset(header, _SETS.pack(low_effective, low, 0, high_effective, high, 0))


def _told(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
