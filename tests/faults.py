"""A verb in a forked child whose n-th effect on the disk is its last, or goes wrong.

The effects are the audited calls that change a disk; a child that is killed leaves by ``os._exit``, so that
nothing is cleaned up behind it, as after SIGKILL.
"""

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from installer import signals
from installer.decide.errors import InstallerError
from installer.decide.options import Options

EFFECTS = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
)
GROWING = frozenset({"open", "os.mkdir", "os.symlink", "os.link"})  # what a full disk refuses
KILLED = 77
Verb = Callable[[Options], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the n-th effect: ``number`` is an errno, 0 kills; one that ``stays`` meets later ones too."""

    at: int
    number: int = 0
    stays: bool = False

    def meets(self, event: str) -> bool:
        return self.number not in {errno.ENOSPC, errno.EDQUOT} or event in GROWING


_fault: Fault | None = None
_seen = 0


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    global _seen  # noqa: PLW0603 - an audit hook cannot be given a state of its own
    if _fault is None:
        return
    if not (
        event in EFFECTS or event == "ctypes.call_function" or (event == "open" and _writes(arguments[2]))
    ):
        return
    _seen += 1
    now = _seen - 1 == _fault.at or (_fault.stays and _seen > _fault.at)
    if now and _fault.number == 0:
        os._exit(KILLED)
    if now and _fault.meets(event):
        raise OSError(_fault.number, os.strerror(_fault.number))


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


sys.addaudithook(_audit)


def call(verb: Verb, options: Options, fault: Fault | None = None) -> int:
    """Run a verb in a child; return its exit code, ``KILLED`` if it was killed."""
    global _fault  # noqa: PLW0603 - as above
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 99
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signals.block()
        _fault = fault
        verb(options)
        code = 0
    except InstallerError as error:
        code = error.exit
    finally:
        _fault = None
        os._exit(code)
