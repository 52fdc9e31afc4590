"""Errors: a sentence with a remedy, a stable code for alerts, and an exit code."""

from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import PurePosixPath
from typing import ClassVar, Final, Literal, NamedTuple, Self, TypeAlias

# The end of a remedy: the verb that has failed is to be run again.
AGAIN: Final = "run again"
RUN_AGAIN: Final = f", then {AGAIN}"
# What continues an incomplete undo, also that of a ``run``, which would install if it were run again.
UNINSTALL_AGAIN: Final = "run toolkit-installer uninstall again"


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
    """An option in a remedy: our own flag without the dashes, and the value to give."""

    name: str
    value: str = ""
    engine: str = ""

    def __str__(self) -> str:  # for our own command line; another entry point spells options by itself
        of_engine = f"{self.engine}=" if self.engine else ""
        return f"--{self.name} {of_engine}{self.value}".rstrip()


Spelling: TypeAlias = Callable[[Option], str]


class Remedy(str):
    """A remedy with options; as a text, in the words of our own command line."""

    __slots__ = ("parts",)
    parts: tuple[str | Option, ...]

    def __new__(cls, *parts: str | Option) -> Self:
        """Join ``parts``."""
        text = super().__new__(cls, "".join(map(str, parts)))
        text.parts = parts
        return text

    @classmethod
    def of(cls, text: str) -> "Remedy":
        """Return a text as a remedy."""
        return text if isinstance(text, Remedy) else cls(text)

    def with_other_end(self, end: str, other: str) -> "Remedy":
        """Return the remedy with ``other`` in place of its end; the same remedy if it has another end."""
        last = self.parts[-1]
        if isinstance(last, str) and last.endswith(end):
            return Remedy(*self.parts[:-1], last.removesuffix(end) + other)
        return self

    def spelt(self, spelling: Spelling) -> str:
        """Return the text with each option as another entry point spells it."""
        text = ""
        for part in self.parts:
            text += part if isinstance(part, str) else spelling(part)
        return text


# Alerts are made of codes: a code stays the same when its sentence is reworded. docs/troubleshooting.md lists
# all codes. With a Literal mypy finds a wrong code, and no module needs an import.
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
    Literal["turns-stopped", "waiting-for-turn"],
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
    """A failure, with a remedy; ``str()`` is "cannot <problem>; <remedy>".

    Attributes:
        problem: the failed act with its reason, as a fragment without a capital or a full stop.
        remedy: the act of the owner, as such a fragment.
        code: the kind of problem, for programs; by default ``usual``, for a config that cannot be used.
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
    """A flag or a variable makes no sense."""

    exit = Exit.USAGE
    usual = "usage"


class StoppedError(InstallerError):
    """A signal to stop came before the end of the work."""

    usual = "stopped"

    def __init__(self) -> None:
        super().__init__("finish (stopped by a signal)", remedy="run it again")


class LockedError(InstallerError):
    """Another process of this program works on this node."""

    exit = Exit.LOCKED
    usual = "locked"


class UndoIncompleteError(InstallerError):
    """Some of our changes are still on the node; the ledger is kept."""

    exit = Exit.UNDO_INCOMPLETE

    @classmethod
    def because(cls, error: InstallerError, *, again: str = UNINSTALL_AGAIN) -> Self:
        """Return an incomplete undo with the problem of another error.

        Args:
            error: the other error.
            again: the act that continues, in place of "run again" in the remedy.
        """
        remedy = Remedy.of(error.remedy).with_other_end(RUN_AGAIN, f", then {again}")
        incomplete = cls(error.problem, remedy=remedy, code=error.code)
        incomplete.others = error.others
        return incomplete


class InternalError(InstallerError):
    """A mistake in this program, or a lack of memory, which may strike anywhere and has a remedy.

    The text of the exception is left out, unless it is an OSError: the text may quote a config.

    Attributes:
        kind: the type of the exception, or the text of an OSError.
        frames: file and line of each call, the innermost last.
    """

    usual = "internal-error"

    def __init__(self, error: Exception) -> None:
        self.kind = str(error) if isinstance(error, OSError) else type(error).__name__
        self.frames = tuple(_frames(error))
        if isinstance(error, MemoryError):
            problem = "finish (no memory is left for this process)"
            remedy = "free some memory of the node, or raise ulimit -v where it is set, and run it again"
            super().__init__(problem, remedy=remedy, code="no-memory")
            return
        place = f" in {self.frames[-1]}" if self.frames else ""
        problem = f"finish (internal error: {self.kind}{place})"
        super().__init__(problem, remedy="report it with this log, as docs/troubleshooting.md says")


def _frames(error: Exception) -> Iterator[str]:
    """Yield file and line of each call in the traceback of an exception, the innermost last."""
    link = error.__traceback__
    while link is not None:
        file = PurePosixPath(link.tb_frame.f_code.co_filename)
        yield f"{file.parent.name}/{file.name}:{link.tb_lineno}"
        link = link.tb_next


class PendingError(InstallerError):
    """systemd still works on a job: another request would only add a job."""

    usual = "restart-pending"


class EngineStoppedError(InstallerError):
    """An administrator has stopped an engine during the wait for it: the same plan may be tried again."""


class OtherUnitError(InstallerError):
    """Units that systemd restarts along with an engine's unit are down after the restart.

    Attributes:
        units: their names.
    """

    usual: ClassVar[Code] = "unit-failed"
    units: tuple[str, ...] = ()


class NotBegunError(InstallerError):
    """A step was given up before its first effect, and will have none."""

    usual: ClassVar[Code] = "unit-failed"


class NotYetError(NotBegunError):
    """A restart was put off to a later plan."""

    usual = "restart-pending"


class StoppedBeforeError(StoppedError, NotBegunError):
    """A signal to stop came before the first effect of a step."""

    usual = "stopped"
