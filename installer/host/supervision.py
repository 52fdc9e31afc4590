"""``run`` and its children: become the supervisor, know the own ``run`` as a child, and read signals to stop.

Termination signals are values that are read between steps, never interruptions. They are blocked before
anything else happens and stay pending until they are read: without a handler, flag, thread or lock, and also
as pid 1.
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
# An interpreter that loads nothing by itself; it compiles modules beside their source unless forbidden.
BARE: Final = (sys.executable, "-I", "-S", *("-B",) * sys.flags.dont_write_bytecode)
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITY_VERSION_3: Final = 0x20080522  # linux/capability.h
SETS_BYTES: Final = 24  # effective, permitted and inheritable, of the low 32 capabilities, then of the high
# QUIT stops NVIDIA's installer, too: it is the stop signal of some images.
STOP: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
HANDLED: Final = STOP | {signal.SIGHUP}


def block_signals() -> None:
    """Keep TERM, INT, QUIT and HUP pending from here on, also in all later threads."""
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
    """Raise StoppedError if a stop is pending."""
    if stop_requested():
        raise StoppedError


def raise_if_orphan() -> None:
    """Raise StoppedError if the ``run`` of this process was killed; ignore a second stop."""
    if is_orphan():
        raise StoppedError


def await_stop(seconds: float) -> bool:
    """Wait ``seconds`` for a stop, and consume the stop; tell whether a stop came."""
    return signal.sigtimedwait(STOP, seconds) is not None


class Run(NamedTuple):
    """The ``run`` of this child process; with pid 0 for a process without a ``run``."""

    pid: int = 0
    options: Path = Path()  # the file with the options of ``run``
    lock: tuple[int, ...] = ()  # a descriptor of the ledger's lock
    answers: int = -1  # a descriptor for the child's progress and a check's answer
    plugin_ends: int = 0  # how often the NRI plugin has ended by itself, or hung


class _ThisProcess:
    """The start of this process: ``serve`` writes it once, before the act of a child begins.

    No argument, as the pid of a process is none: between all steps, and wherever a program or a unit is
    awaited, this process looks whether its ``run`` has ended.
    """

    run = Run()


def current_run() -> Run:
    """Return the ``run`` that started this process; with pid 0 for a process without a ``run``."""
    return _ThisProcess.run


def is_child() -> bool:
    """Tell whether a ``run`` has started this process."""
    return _ThisProcess.run.pid > 0


def serve(options: Path, fds: str, plugin_ends: str, run_pid: str) -> None:
    """Record that this process is a child of a ``run``.

    Args:
        options: the file of the options: a descriptor, or a copy for a process that finishes an undo later.
        fds: the numbers of the descriptors for answers and of the lock; "" without them.
        plugin_ends: how often the NRI plugin has ended.
        run_pid: the pid of ``run``; "0" for a process that finishes an undo and may outlive the ``run``.
    """
    answers, *lock = map(int, (fds or "-1").split())
    inherited: list[int] = []
    if options.name.isdigit():
        inherited.append(int(options.name))
    if fds:
        inherited += [answers, *lock]
    for fd in inherited:
        os.set_inheritable(fd, False)  # noqa: FBT003 - its only form
    _ThisProcess.run = Run(int(run_pid), options, tuple(lock), answers, int(plugin_ends))


def is_orphan() -> bool:
    """Tell whether the ``run`` of this process has ended."""
    return is_child() and os.getppid() != _ThisProcess.run.pid


def end_with_run() -> bool:
    """Have the kernel kill this process, stopped or not, when ``run`` ends; tell whether ``run`` runs."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return not is_orphan()


def own_pid() -> int:
    """Return the pid of ``run``, in the pid namespace of ``run``."""
    return _ThisProcess.run.pid or os.getpid()


def send_answer(content: bytes) -> None:
    """Send ``run`` the answer of a check."""
    offset = len(IN_STEP)
    with suppress(OSError):  # ``run`` was killed
        while content:
            written = os.pwrite(_ThisProcess.run.answers, content, offset)
            content = content[written:]
            offset += written


@contextmanager
def in_step() -> Iterator[None]:
    """Tell ``run`` during the block about a change of the node: this process must not be killed."""
    _mark(IN_STEP)
    try:
        yield
    finally:
        _mark(BETWEEN_STEPS)


def _mark(mark: bytes) -> None:
    if _ThisProcess.run.answers >= 0:
        with suppress(OSError):  # no memory for a byte
            os.pwrite(_ThisProcess.run.answers, mark, 0)


def child_command() -> tuple[str, ...]:
    """Return the beginning of a child's command: this interpreter with the same flags."""
    flags: list[str] = []
    if sys.flags.isolated:
        flags.append("-I")
    if sys.flags.no_site:
        flags.append("-S")
    if sys.flags.dont_write_bytecode:
        flags.append("-B")
    return (sys.executable, *flags, START)


def become_supervisor(  # noqa: PLR0913 - the words of the supervisor
    locks: Sequence[tuple[Path, int]],
    options: Path,
    *,
    highest_exit: int,
    hung_s: float,
    sidecars: str,
    leftovers: Sequence[str],
    log_format: str,
) -> NoReturn:
    """Become the supervisor.

    Args:
        locks: path and descriptor of the pidfile and of the ledger's lock.
        options: the file with the options of ``run``.
        highest_exit: the highest exit code.
        hung_s: the time after which a child other than the install is ended.
        sidecars: the verbs of the sidecars, which run during the wait.
        leftovers: the files that a killed sidecar leaves.
        log_format: the form of log events.
    """
    words: list[str] = []
    for path, fd in locks:
        words += [str(path), str(fd)]
    words += [str(options), str(highest_exit), f"{hung_s:g}", sidecars, log_format]
    words += [str(len(leftovers)), *leftovers, *child_command()]
    _exec("supervisor", words, [fd for _, fd in locks])


def become_plugin(lock: int, words: Sequence[str]) -> NoReturn:
    """Become the NRI plugin, with its lock; ``words`` are the arguments of ``nri.plugin.main``."""
    import ctypes

    libc = ctypes.CDLL(None)
    # The plugin runs without capabilities, and with no_new_privs an exec brings none back. To drop the
    # bounding set would need CAP_SETPCAP, which a pod needs for nothing else.
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(SETS_BYTES))
    _exec("plugin", words, [lock])


def _exec(program: str, words: Sequence[str], fds: Sequence[int]) -> NoReturn:
    for fd in fds:
        os.set_inheritable(fd, True)  # noqa: FBT003 - its only form
    try:
        os.execv(sys.executable, [*BARE, START, program, *words])  # noqa: S606 - no shell is meant to be there
    except OSError as error:
        problem = f"start {sys.executable} once more"
        raise InstallerError(problem, remedy="install the program anew", code="internal-error") from error
