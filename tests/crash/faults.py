"""The program in a forked child whose n-th effect on the disk is its last, or goes wrong.

The effects are the audited calls that change a disk, and the writes and syncs of a file, which nobody audits. A
child that is killed leaves by ``os._exit``, so that nothing is cleaned up behind it, as after SIGKILL.
"""

import errno
import importlib
import mmap
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.entry import SCRIPTS
from tests.support.preloaded import load

# Each point is a few forks; a run that has hours may take every one of them.
STRIDE = int(os.environ.get("CRASH_STRIDE", "15"))

AUDITED = frozenset(
    {
        *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link"),
        *("os.truncate", "os.chmod", "os.chown", "os.setxattr"),
        "ctypes.call_function",  # renameat2, which Python does not have
    }
)
GROWING = frozenset(  # what a full disk refuses
    {"open", "os.mkdir", "os.symlink", "os.link", "os.write", "os.pwrite", "os.sendfile"}
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KILLED = 77
BUG = -1
STDERR = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the n-th effect, or at the n-th on a path that ends with ``name``.

    ``number`` is an errno; 0 kills, a write when half of it is done, and ``BUG`` raises what nobody expects. One that
    ``stays`` meets later effects too.
    """

    at: int
    number: int = 0
    stays: bool = False
    name: str = ""

    def meets(self, event: str) -> bool:
        return self.number not in {errno.ENOSPC, errno.EDQUOT} or event in GROWING


NEVER = Fault(sys.maxsize)
_COUNT = struct.Struct("=q")
_shared = mmap.mmap(-1, _COUNT.size)  # what a child counts, its parent reads
_fault: Fault | None = None


def effects() -> int:
    """Return how many effects the last call had, the one of its fault included."""
    return int(_COUNT.unpack(_shared)[0])


def _kills(event: str, path: object = "") -> bool:
    """Count one effect; tell whether it is the last one."""
    if _fault is None or not str(path).endswith(_fault.name):
        return False
    now = effects()
    _shared[:] = _COUNT.pack(now + 1)
    if now != _fault.at and not (_fault.stays and now > _fault.at):
        return False
    if _fault.number == BUG:
        raise RuntimeError(event)
    if _fault.number and _fault.meets(event):
        raise OSError(_fault.number, os.strerror(_fault.number))
    return _fault.number == 0


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        # A stream over a descriptor that is open is no effect.
        effect = not isinstance(path, int) and isinstance(flags, int) and bool(flags & WRITING)
    else:
        effect = event in AUDITED
    if effect and _kills(event, arguments[0]):
        os._exit(KILLED)


sys.addaudithook(_audit)


def begin(fault: Fault | None) -> None:
    """Let a fault be the one of this process."""
    global _fault  # noqa: PLW0603 - an audit hook cannot be given a state of its own
    _fault = fault


def _watch_writes() -> None:
    """Let the writes and syncs of this process be effects; a kill tears a write in two."""
    write, pwrite, sendfile = os.write, os.pwrite, os.sendfile

    def torn_write(fd: int, data: bytes) -> int:
        if fd > STDERR:
            _tear("os.write", lambda: write(fd, data[: len(data) // 2]))
        return write(fd, data)

    def torn_pwrite(fd: int, data: bytes, offset: int) -> int:
        _tear("os.pwrite", lambda: pwrite(fd, data[: len(data) // 2], offset))
        return pwrite(fd, data, offset)

    def torn_sendfile(out: int, source: int, offset: int, count: int) -> int:
        _tear("os.sendfile", lambda: sendfile(out, source, offset, count // 2))
        return sendfile(out, source, offset, count)

    def counted_fsync(_: int) -> None:  # a killed process loses nothing: syncs are for test_power.py
        _tear("os.fsync", lambda: None)

    os.write, os.pwrite, os.sendfile = torn_write, torn_pwrite, torn_sendfile  # type: ignore[assignment]
    os.fsync = counted_fsync  # type: ignore[assignment]


def _tear(event: str, half: Callable[[], object]) -> None:
    """Count one effect; where a kill comes at it, it is half done."""
    if _kills(event):
        half()
        os._exit(KILLED)


def call(words: list[str], fault: Fault = NEVER) -> int:
    """Say ``words`` to the program in a child; return its exit code, ``KILLED`` if it was killed."""

    def act() -> int:
        sys.argv = ["toolkit-installer", *words]
        module, _, function = SCRIPTS["toolkit-installer"].partition(":")
        try:
            getattr(importlib.import_module(module), function)()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return forked(act, lambda: begin(fault))


def forked(act: Callable[[], int], prepare: Callable[[], None], log: str = os.devnull) -> int:
    """Act in a child that is prepared, whose writes are effects; return its exit code."""
    load()  # each child would do it anew
    _shared[:] = _COUNT.pack(0)
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        sys.dont_write_bytecode = True
        _watch_writes()
        prepare()
        code = act()
    finally:
        begin(None)
        os._exit(code)
