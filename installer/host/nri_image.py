"""``toolkit-installer nri`` becomes the plugin: the same process, in a bare interpreter, with its lock.

It keeps no capability, and where ``run`` has started it, it ends with that.
"""

import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from installer.host.supervision import BARE, START

# linux/prctl.h, linux/capability.h
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITY_VERSION_3: Final = 0x20080522
HUNG: Final = "hung"  # as in supervisor.py
SETS_BYTES: Final = 24  # effective, permitted and inheritable, of the low 32, then of the others


def become_plugin(lock: int, words: Sequence[str]) -> None:
    """Become the plugin that ``nri_plugin.main`` makes of ``words``, with its lock; return if that fails."""
    os.set_inheritable(lock, True)  # noqa: FBT003 - its parameters have no names
    _keep_no_capability()
    command = [*BARE, START, "plugin", *words]
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


def told(status: str) -> str:
    """Return how a plugin has ended, of which the kernel has told ``status``."""
    if status == HUNG:
        return "killed, for it hung"
    code = os.waitstatus_to_exitcode(int(status))
    return f"signal {-code}" if code < 0 else f"exit code {code}"
