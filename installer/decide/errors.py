"""An error is one sentence with a remedy, and knows the exit code it ends in."""

from enum import IntEnum


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


class PendingError(InstallerError):
    """systemd is still at work on what it was asked for: asking again would only add to it."""


class ConflictError(InstallerError):
    """Somebody else has just written a config that was about to be written: it is as they left it."""
