"""An error is one sentence with a remedy, a stable code for alerts, and the exit code it ends in."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import PurePosixPath
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LOCKED = 3
    NOTHING_INSTALLED = 3
    NO_RUN_WAITS = 3
    UNDO_INCOMPLETE = 4
    WOULD_CHANGE = 10


class Option(NamedTuple):
    """An option that a remedy names: our own flag without the dashes, and what it should be given."""

    name: str
    value: str = ""
    engine: str = ""

    def __str__(self) -> str:  # as our own command line has it; another entry point has a word of its own
        of_engine = f"{self.engine}=" if self.engine else ""
        return f"--{self.name} {of_engine}{self.value}".rstrip()


Spelling: TypeAlias = Callable[[Option], str]


class Remedy(str):
    """A remedy that names options; as a text it is in the words of our own command line."""

    __slots__ = ("parts",)
    parts: tuple[str | Option, ...]

    def __new__(cls, *parts: str | Option) -> Self:
        """Join ``parts``."""
        text = super().__new__(cls, "".join(map(str, parts)))
        text.parts = parts
        return text

    def spelt(self, spelling: Spelling) -> str:
        """Return the text with each option as another entry point spells it."""
        return "".join(part if isinstance(part, str) else spelling(part) for part in self.parts)


# What alerts are made of: a code stays as it is when its sentence is reworded. docs/troubleshooting.md lists
# each; a Literal, so that mypy knows a wrong one and no module has to import anything for it.
Code: TypeAlias = Literal[  # noqa: RUF041 - a line for each subject
    Literal["config-changed", "config-disturbs-others", "config-refused", "config-unusable"],
    Literal["engine-flags", "engine-generates-config", "engine-not-found", "engine-unknown"],
    Literal["engine-not-answering", "engine-not-proven", "others-not-served"],
    Literal["engine-not-reloaded", "engine-not-signalled", "systemd-unreachable", "unit-failed"],
    Literal["pending-by-others", "restart-kills-containers", "restart-moves-engine", "restart-pending"],
    Literal["cdi-failed", "cri-disabled", "cri-failed", "mode-unusable"],
    Literal["nri-failed", "nri-refused", "nri-unusable"],
    Literal["payload-unusable", "toolkit-config-unusable", "toolkit-needed", "toolkit-not-visible"],
    Literal["in-use", "name-taken", "no-low-level-runtime", "runtime-needed"],
    Literal["backup-lost", "installed-elsewhere", "ledger-unusable", "locked"],
    Literal["file-not-replaceable", "file-operation-failed", "install-dir-unusable", "path-unusable"],
    Literal["no-memory", "no-space"],
    Literal["drift-repeats", "drifted", "failed-before", "roll-back-failed"],
    Literal["undo-killed", "undo-not-handed-over"],
    Literal["demo-failed", "kubernetes-api", "no-answer", "verify-failed"],
    Literal["internal-error", "not-supported", "stopped", "usage"],
]


# What only the owner of an engine can change: the engine's next start, its configs and its unit. A ``run``
# that is refused for one of these, before its first step, waits for the owner.
OWNERS_ACTS: frozenset[Code] = frozenset({
    "config-refused", "engine-flags", "pending-by-others", "restart-kills-containers", "restart-moves-engine",
    "unit-failed",
})  # fmt: skip


class InstallerError(Exception):
    """Something could not be done: ``problem`` says what, ``remedy`` what to do about it.

    Both are fragments without a capital or a full stop; ``str()`` joins them to
    "cannot <problem>; <remedy>". ``code`` tells programs what kind of problem it is; without one it is
    ``usual``, which stands for a config that cannot be used as it is.
    """

    exit = Exit.FAILED
    usual: ClassVar[Code] = "config-unusable"
    others: tuple["InstallerError", ...] = ()  # further problems, which the log has after this one
    # The places, as ``watch`` has them, of which one changes when somebody solves the problem.
    watched: tuple[tuple[str, str], ...] = ()

    def __init__(self, problem: str, *, remedy: str, code: Code | None = None) -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy
        self.code: Code = code or self.usual

    def __str__(self) -> str:
        return f"cannot {self.problem}; {self.remedy}"


class UsageError(InstallerError):
    """The command line or the environment asks for something that makes no sense."""

    exit = Exit.USAGE
    usual = "usage"


class StoppedError(InstallerError):
    """A signal asked us to stop before the work was done."""

    usual = "stopped"

    def __init__(self) -> None:
        super().__init__("finish (a signal asked to stop)", remedy="run again when the node is ready")


class LockedError(InstallerError):
    """Another instance is at work on this node."""

    exit = Exit.LOCKED
    usual = "locked"


class UndoIncompleteError(InstallerError):
    """Something of ours is still on the node; the ledger is kept."""

    exit = Exit.UNDO_INCOMPLETE

    @classmethod
    def because(cls, error: InstallerError) -> Self:
        """Return another error as the reason why something is left."""
        made = cls(error.problem, remedy=error.remedy, code=error.code)
        made.others = error.others
        return made


class InternalError(InstallerError):
    """A mistake in this program: the ``kind`` of exception, and the ``frames`` that led to it.

    A lack of memory may strike anywhere; it is no mistake, and has a remedy.
    What the exception says is left out but for an OSError's: it may quote a config.
    """

    usual = "internal-error"

    def __init__(self, error: Exception) -> None:
        self.kind = str(error) if isinstance(error, OSError) else type(error).__name__
        self.frames = tuple(_frames(error))
        where = f" in {self.frames[-1]}" if self.frames else ""
        problem = f"finish (internal error: {self.kind}{where})"
        remedy = "report it with this log, as docs/troubleshooting.md says"
        if isinstance(error, MemoryError):
            problem = "finish (no memory is left for this process)"
            remedy = "free some memory of the node, or raise ulimit -v where it is set, and run it again"
        super().__init__(problem, remedy=remedy, code="no-memory" if isinstance(error, MemoryError) else None)


def _frames(error: Exception) -> Iterator[str]:
    """Yield the file and line of each call that the exception went through, the innermost last."""
    link = error.__traceback__
    while link is not None:
        file = PurePosixPath(link.tb_frame.f_code.co_filename)
        yield f"{file.parent.name}/{file.name}:{link.tb_lineno}"
        link = link.tb_next


class PendingError(InstallerError):
    """systemd is still at work on what it was asked for: asking again would only add to it."""

    usual = "restart-pending"


class EngineStoppedError(InstallerError):
    """An administrator has stopped an engine that was waited for: the same plan may be tried again."""


class NotBegunError(InstallerError):
    """A step was given up before anything of it was done, and nothing of it will be."""

    usual: ClassVar[Code] = "unit-failed"


class NotYetError(NotBegunError):
    """A restart was put off: a later plan has it done."""

    usual = "restart-pending"


class StoppedBeforeError(StoppedError, NotBegunError):
    """A signal asked us to stop before anything of a step was done."""

    usual = "stopped"
