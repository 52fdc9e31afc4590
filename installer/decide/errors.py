"""An error is one sentence with a remedy, and knows the exit code it ends in."""

from collections.abc import Iterator
from enum import IntEnum
from pathlib import PurePosixPath


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOCKED = 3
    NOTHING_INSTALLED = 3
    UNDO_INCOMPLETE = 4
    WOULD_CHANGE = 10


class InstallerError(Exception):
    """Something could not be done: ``problem`` says what, ``remedy`` what to do about it.

    Both are fragments without a capital or a full stop; ``str()`` joins them to
    "cannot <problem>; <remedy>".
    """

    exit = Exit.FAILED

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"cannot {self.problem}; {self.remedy}"


class UsageError(InstallerError):
    """The command line or the environment asks for something that makes no sense."""

    exit = Exit.USAGE


class StoppedError(InstallerError):
    """A signal asked us to stop before the work was done."""

    def __init__(self) -> None:
        super().__init__("finish (a signal asked to stop)", remedy="run again when the node is ready")


class LockedError(InstallerError):
    """Another instance is at work on this node."""

    exit = Exit.LOCKED


class UndoIncompleteError(InstallerError):
    """Something of ours is still on the node; the ledger is kept."""

    exit = Exit.UNDO_INCOMPLETE


class InternalError(InstallerError):
    """A mistake in this program: the ``kind`` of exception, and the ``frames`` that led to it.

    What the exception says is left out but for an OSError's: it may quote a config.
    """

    def __init__(self, error: Exception) -> None:
        self.kind = str(error) if isinstance(error, OSError) else type(error).__name__
        self.frames = tuple(_frames(error))
        where = f" in {self.frames[-1]}" if self.frames else ""
        super().__init__(
            f"finish (internal error: {self.kind}{where})",
            remedy="report it with this log, as docs/troubleshooting.md says",
        )


def _frames(error: Exception) -> Iterator[str]:
    """Yield the file and line of each call that the exception went through, the innermost last."""
    link = error.__traceback__
    while link is not None:
        file = PurePosixPath(link.tb_frame.f_code.co_filename)
        yield f"{file.parent.name}/{file.name}:{link.tb_lineno}"
        link = link.tb_next


class ConflictError(InstallerError):
    """Somebody else has just written a config that was about to be written: it is as they left it."""
