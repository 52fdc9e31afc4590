"""``run`` and its children: how it becomes the supervisor, what a child knows of it, and signals to stop.

Termination signals are values to look at between steps, never interruptions. They are blocked before anything
else happens and stay pending until they are read: no handler, flag, thread or lock, and it works as pid 1.
"""

import os
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from installer.errors import InstallerError, StoppedError
from installer.supervisor import BETWEEN_STEPS, IN_STEP

START: Final = str(Path(__file__).resolve().parents[1] / "start.py")
# An interpreter that loads nothing by itself; what it loads is compiled beside it where that is wanted.
BARE: Final = (sys.executable, "-I", "-S", *("-B",) * sys.flags.dont_write_bytecode)
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITY_VERSION_3: Final = 0x20080522  # linux/capability.h
SETS_BYTES: Final = 24  # effective, permitted and inheritable, of the low 32, then of the others
# QUIT as NVIDIA's installer takes it: it is the stop signal of some images.
STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
HANDLED: Final = STOP | {signal.SIGHUP}


def block_signals() -> None:
    """Keep TERM, INT, QUIT and HUP pending from here on, in every thread that is started later."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


@contextmanager
def unblocked_signals() -> Iterator[None]:
    """Let a child of the block start with an empty mask."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_requested() -> bool:
    """Tell whether a stop is pending, or can no longer come because ``run`` was killed."""
    return bool(signal.sigpending() & STOP) or is_orphan()


def raise_if_stopped() -> None:
    """Raise StoppedError where a stop is pending."""
    if stop_requested():
        raise StoppedError


def raise_if_orphan() -> None:
    """Raise StoppedError where the ``run`` that started this was killed; a second stop is ignored."""
    if is_orphan():
        raise StoppedError


def await_stop(seconds: float) -> bool:
    """Return whether a stop came within some seconds; it is taken."""
    return signal.sigtimedwait(STOP, seconds) is not None


class Run(NamedTuple):
    """The ``run`` whose child this process is; of pid 0 where it is none."""

    pid: int = 0
    options: Path = Path()  # the file of what it was asked for
    lock: tuple[int, ...] = ()  # a descriptor of the ledger's lock
    answers: int = -1  # the descriptor of what a child does, and what a check answers
    plugin_ends: int = 0  # how often the NRI plugin has ended by itself, or hung


class _Own:
    run = Run()


def current_run() -> Run:
    """Return the ``run`` that has started this process; one of pid 0 where none has."""
    return _Own.run


def serve(options: Path, fds: str, plugin_ends: str, run_pid: str) -> None:
    """Take that this process is a child of the ``run`` with that pid, which has given it these descriptors.

    The pid is "0" for a process that carries on the undo of a ``run`` which may end before it.
    """
    answers, *lock = map(int, (fds or "-1").split())
    own = [int(options.name)] if options.name.isdigit() else []  # else a copy, of one that carries on
    for fd in (*own, *((answers, *lock) if fds else ())):
        os.set_inheritable(fd, False)  # noqa: FBT003 - its only form
    _Own.run = Run(int(run_pid), options, tuple(lock), answers, int(plugin_ends))


def is_orphan() -> bool:
    """Tell whether the ``run`` whose child this is has ended."""
    return bool(_Own.run.pid) and os.getppid() != _Own.run.pid


def end_with_run() -> bool:
    """Let this process be killed when its ``run`` ends, though it be stopped; tell whether that runs."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return not is_orphan()


def own_pid() -> int:
    """Return the pid of ``run``, in its own pid namespace."""
    return _Own.run.pid or os.getpid()


def send_answer(before: str, due_s: float, rest_s: float, places: Sequence[str]) -> None:
    """Tell ``run`` what it is to watch, as ``Watch`` has it."""
    content = os.fsencode("\0".join((before, str(due_s), str(rest_s), *places)))
    offset = len(IN_STEP)
    with suppress(OSError):  # it has been killed
        while content:
            written = os.pwrite(_Own.run.answers, content, offset)
            content = content[written:]
            offset += written


@contextmanager
def in_step() -> Iterator[None]:
    """Tell ``run`` during the block that this process changes the node, and is not to be killed."""
    _mark(IN_STEP)
    try:
        yield
    finally:
        _mark(BETWEEN_STEPS)


def _mark(mark: bytes) -> None:
    if _Own.run.answers >= 0:
        with suppress(OSError):  # no memory for a byte
            os.pwrite(_Own.run.answers, mark, 0)


def child_command() -> tuple[str, ...]:
    """Return the beginning of the command of a child: this very interpreter, however it was started."""
    flags = ("-I",) * sys.flags.isolated + ("-S",) * sys.flags.no_site + BARE[3:]
    return (sys.executable, *flags, START)


def become_supervisor(  # noqa: PLR0913 - the words of the supervisor
    held: Sequence[tuple[Path, int]], options: Path, *, most: int, kept: str, left: Sequence[str], form: str
) -> NoReturn:
    """Become the supervisor.

    ``held`` are path and descriptor of pidfile and ledger's lock, ``options`` the file of what was asked for,
    ``most`` the largest exit code, ``kept`` what runs in the wait, ``left`` its files, ``form`` of events.
    """
    words = [word for path, fd in held for word in (str(path), str(fd))]
    words += [str(options), str(most), kept, form, str(len(left)), *left, *child_command()]
    _exec("supervisor", words, [fd for _, fd in held])


def become_plugin(lock: int, words: Sequence[str]) -> NoReturn:
    """Become the plugin that ``nri.plugin.main`` makes of ``words``, with its lock."""
    import ctypes

    libc = ctypes.CDLL(None)
    # No capability is left now, and with no_new_privs an exec brings none back. The bounding set would need
    # CAP_SETPCAP, which a pod has no other use for.
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(SETS_BYTES))
    _exec("plugin", words, [lock])


def _exec(what: str, words: Sequence[str], fds: Sequence[int]) -> NoReturn:
    for fd in fds:
        os.set_inheritable(fd, True)  # noqa: FBT003 - its only form
    try:
        os.execv(sys.executable, [*BARE, START, what, *words])  # noqa: S606 - no shell is meant to be there
    except OSError as error:
        problem, remedy = f"start {sys.executable} once more", "install the program anew"
        raise InstallerError(problem, remedy=remedy, code="internal-error") from error
