"""``run`` waits in a bare interpreter (waiter.py), a fifth of the full program, and comes back as itself."""

import os
import signal
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from installer.decide.data import dataclass
from installer.decide.errors import InstallerError
from installer.host import dnotify, nri_child, successor, waiter

SUCCEEDS: Final = successor.SUCCEEDS.decode()
SUCCESSOR: Final = Path(successor.__file__)
WOKEN_BY: Final = waiter.WOKEN_BY.decode()
LISTENS: Final = waiter.LISTENS.decode()
PLUGIN: Final = nri_child.PLUGIN.decode()
THERE, ASK, ROOM, KEPT = waiter.THERE, waiter.ASK, waiter.ROOM, waiter.KEPT
LOCKS: Final = "_TOOLKIT_INSTALLER_LOCKS"
_HEADER = struct.Struct("<4xIII")  # of a compiled module (PEP 552): its kind, time and size of its source
_TIMED, _UNCHECKED = 0, 1


CHANGED: Final = signal.Signals(waiter.CHANGED)


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched during a wait; no ``places`` is nothing.

    A place is a path as this process finds it, with / at its end all that is in a directory, with * all whose
    names begin so: with one of these all are compared every other second, else as they change. Behind
    ``THERE`` it is to be there, whatever it is; behind ``ASK`` an engine is to answer (asking.py);
    behind ``ROOM`` a directory whose file system may become writable, or get space, behind ``KEPT``
    one whose file system may be mounted otherwise, or get full. ``before`` is the ``signature`` that they had
    when they were looked at. After ``due_s`` seconds (0 is never) it is time for a look whatever happens, and
    before ``rest_s`` no change is a reason for one.
    """

    places: tuple[str, ...] = ()
    before: str = ""
    due_s: float = 0.0
    rest_s: float = 0.0


def signature(places: Sequence[str]) -> str:
    """Return what is another text as soon as one of ``places`` is not as it was."""
    return waiter.signature(list(places))


@dataclass(frozen=True, slots=True)
class Woken:
    """What the waiter left: the signal that woke it, and the file descriptors of the locks it held.

    The signal is ``CHANGED`` where it is the watch that ended the wait.
    """

    number: signal.Signals
    fds: tuple[int, ...]


def woken() -> Woken | None:
    """Return how this process was woken, once; None where it was started afresh.

    Raises:
        InstallerError: somebody else has set the variables that tell it.
    """
    number, fds = os.environ.pop(WOKEN_BY, ""), os.environ.pop(LOCKS, "")
    if not number:
        for name in (LISTENS, PLUGIN):
            os.environ.pop(name, None)  # whoever has set it
        return None
    try:
        return Woken(signal.Signals(int(number)), tuple(int(fd) for fd in fds.split(",")))
    except ValueError as error:
        raise InstallerError(
            f"understand {WOKEN_BY}={number!r} with {LOCKS}={fds!r} (they are for this program alone)",
            remedy="unset both, then run again",
            code="usage",
        ) from error


def attend_plugin(script: str, words: Sequence[str]) -> None:
    """Have a plugin run during each wait from here on: a script with words."""
    program = (sys.executable, str(Path(script).resolve()))
    separator = nri_child.SEPARATOR.decode()
    os.environ[PLUGIN] = separator.join((nri_child.NEW.decode(), *program, *words))


def plugin_ends() -> int:
    """Return how often the plugin that is attended has ended by itself, or hung."""
    with suppress(KeyError, ValueError):
        return nri_child.Child(os.environb).ends
    return 0


def stop_plugin() -> None:
    """End the plugin that was attended, if there is one."""
    if PLUGIN in os.environ:
        with suppress(ValueError):
            nri_child.Child().stop()
        del os.environ[PLUGIN]


def succeeds() -> bool:
    """Tell, once, whether this process carries on what one in a container has begun."""
    return bool(os.environ.pop(SUCCEEDS, ""))


def command_again(script: Path) -> tuple[str, ...]:
    """Return the command that starts ``script`` with who we are and how we were started."""
    again = (sys.executable, *sys.orig_argv[1:])
    return (sys.executable, "-I", "-S", str(script), str(os.getpid()), str(Path.cwd()), *again)


def script(module: ModuleType) -> Path:
    """Return a script as Python has compiled it, if of its text: to compile costs half a megabyte."""
    text = Path(str(module.__file__))
    compiled = Path((module.__spec__ and module.__spec__.cached) or text)
    try:
        kind, time, size = _HEADER.unpack(compiled.read_bytes()[: _HEADER.size])
        status = text.stat()
    except (OSError, struct.error):
        return text
    same = (time, size) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    return compiled if kind == _UNCHECKED or (kind == _TIMED and same) else text


def waits(numbers: Iterable[signal.Signals], watch: Watch, again: Sequence[str]) -> list[str]:
    """Return the command of a process that waits for a signal or a change, and then executes ``again``."""
    words = [str(int(number)) for number in numbers]
    watched = [watch.before, str(watch.due_s), str(watch.rest_s), *watch.places] if watch.places else []
    lists = [word for each in (words, watched, again) for word in (str(len(each)), *each)]
    bare = [sys.executable, "-I", "-S"]
    command = [*bare, str(script(waiter)), *lists]
    directories = waiter.directories(list(watch.places))
    return (
        [*bare, str(script(dnotify)), str(len(directories)), *directories, *command]
        if directories
        else command
    )


def become_waiter(numbers: Iterable[signal.Signals], fds: Sequence[int], watch: Watch) -> None:
    """Wait for one of the blocked signals ``numbers``, or a change, in another image, holding ``fds``.

    It comes back as this program, started anew and told by ``woken``. This returns only where that
    image cannot be started.
    """
    os.environ[LOCKS] = ",".join(map(str, fds))
    with suppress(OSError):
        os.execv(sys.executable, waits(numbers, watch, [sys.executable, *sys.orig_argv[1:]]))  # noqa: S606 - no shell is meant to be there
    del os.environ[LOCKS]
