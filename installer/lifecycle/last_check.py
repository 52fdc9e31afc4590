"""The file of the last check of the node, which ``status`` and the next check read."""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.host.files import Host, read_json_of_root
from installer.host.kernel import boot_id
from installer.host.supervision import own_pid
from installer.lifecycle.readiness import stamp
from installer.model.files import File, dumps

NOT_RUNNING = "it does not run"  # ``difference`` of a stopped engine


class Problem(Struct, frozen=True, forbid_unknown_fields=True):
    """A problem that a check has found: the parts of an ``InstallerError``."""

    code: str
    text: str  # without "cannot"
    remedy: str

    @classmethod
    def of(cls, error: InstallerError) -> Self:
        """Return the parts of an error."""
        return cls(error.code, error.problem, str(error.remedy))

    @property
    def error(self) -> InstallerError:
        """The problem as an error."""
        code: Any = self.code
        return InstallerError(self.text, remedy=self.remedy, code=code)


class EngineCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine at the last check: whether it served our runtimes, and since when."""

    name: str
    serves: bool | None = None  # None if the engine was not asked
    since: str = ""
    difference: str = ""  # the difference between the served and the wanted runtimes
    process: str = ""  # the path of the engine's process below this process's /proc, "" if not visible
    start_failure: str = ""  # why the engine would not start with its present configs
    containerd: str = ""  # see ``dependencies.Dependencies``
    monitor: str = ""
    runs_hook: bool = False  # each of its containers starts our OCI hook: the engine has no runtime of ours
    program: str = ""  # the program that the engine's unit starts, "" if not known

    @property
    def refusal(self) -> InstallerError | None:
        """The error of the engine's next start with the refused configs."""
        if not self.start_failure:
            return None
        problem = (
            f"start {ENGINES[self.name].title} again with the configs that it has now ({self.start_failure})"
        )
        remedy = "correct them"
        if self.serves:
            remedy += " before its next start: it serves until then"
        return InstallerError(problem, remedy=remedy, code="config-refused")


class Repair(Struct, frozen=True, forbid_unknown_fields=True):
    """The steps of the check's repair, as sentences."""

    under_way: tuple[str, ...] = ()
    done: tuple[str, ...] = ()


class Pace(Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that slow down checks and repairs. Times are those of ``time.monotonic``.

    Attributes:
        next_check_s: The time of the next check if nothing changes; 0 for the usual time.
        failures: The number of failed checks in a row.
        engine_starts: The fingerprint of the engines' sockets and pidfiles at the last failed check.
        idle_checks: The begins of the last checks that found nothing.
        repairs: The times of the last repairs of each thing.
    """

    next_check_s: float = 0.0
    failures: int = 0
    engine_starts: str = ""
    idle_checks: tuple[float, ...] = ()
    repairs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


class TurnState(Struct, frozen=True, forbid_unknown_fields=True):
    """What this node knows of turns (``fleet.turn_rules``) from one try to the next.

    Attributes:
        cause: Why the node waits for a turn, a name of ``Cause``; "" if the node does not wait.
        reason: The same in words.
        remedy: What the owner can do, where the cause alone does not tell.
        next_try_s: The time of the next try, by ``time.monotonic``.
        told: What was logged of that.
        sightings: When this node saw the turns of others, as ``fleet.turn_rules.Sighting``.
        is_new: The node had the startup taint at the last look; None if it was not looked at.
        proven: The turn whose restart was proven, as the ledger has its ``asked``.
        proven_s: The time of that proof, by ``time.monotonic``.
        served: The revision that the node serves without a restart, with its engines; "" if none.
        served_s: The time since when the node serves it, by ``time.monotonic``.
        served_told: Whether the other nodes know, or need not know, that this node serves the revision.
    """

    cause: str = ""
    reason: str = ""
    remedy: str = ""
    told: str = ""
    next_try_s: float = 0.0
    sightings: tuple[tuple[str, str, float, float, float | None], ...] = ()
    is_new: bool | None = None
    proven: str = ""
    proven_s: float = 0.0
    served: str = ""
    served_s: float = 0.0
    served_told: bool = False


class LastCheck(Struct, frozen=True, forbid_unknown_fields=True, tag_field="version", tag=2):
    """A check of the node by ``run``.

    Attributes:
        boot_id: The boot of the check.
        pid: The process of ``run``.
        time: The end of the check, or the begin of its repair.
        number: The number of the check in this boot.
        began_s: The begin of the check, by ``time.monotonic``.
        asked: A user asked for the check.
        engines: The engines.
        repair: The repair.
        problem: The reason why the node is not as installed.
        specification_problem: The failure of nvidia-ctk with a loaded driver; an older specification holds.
        by_cdi: Containers get their GPUs by CDI alone: no engine has a runtime of ours.
        ignores_drift: The node is ready in spite of drift.
        low_level_runtime: The runtime that our runtimes start, "" if none was ever found.
        edited_configs: The configs with more in them than our text, now or before their removal.
        keeps_install: The problem is that a change waits; the engines serve what the ledger says.
        awaited: The places to watch for the act of the owner for whom a change waits.
        turn: What this node knows of turns.
        pace: The facts that slow down checks and repairs.
    """

    boot_id: str = ""
    pid: int = 0
    time: str = ""
    number: int = 0
    began_s: float = 0.0
    asked: bool = False
    engines: tuple[EngineCheck, ...] = ()
    repair: Repair = Repair()
    problem: Problem | None = None
    specification_problem: Problem | None = None
    by_cdi: bool = False
    ignores_drift: bool = False
    low_level_runtime: str = ""
    edited_configs: tuple[str, ...] = ()
    keeps_install: bool = False
    awaited: tuple[tuple[str, str], ...] = ()
    turn: TurnState = TurnState()
    pace: Pace = Pace()

    @property
    def current(self) -> bool:
        """Whether the process that has checked still waits, in this boot."""
        return self.boot_id == boot_id() and Path(f"/proc/{self.pid}").exists()

    @property
    def problems(self) -> list[InstallerError]:
        """The problem of the node, of each engine's next start, and of the GPUs' specification."""
        problems: list[InstallerError] = []
        if self.problem is not None:
            problems.append(self.problem.error)
        for engine in self.engines:
            refusal = engine.refusal
            if refusal is not None:
                problems.append(refusal)
        if self.specification_problem is not None:
            problems.append(self.specification_problem.error)
        return problems

    def with_pace(self, **changes: Any) -> Self:
        """Return the check with changed facts of its pace."""
        return replace(self, pace=replace(self.pace, **changes))

    def with_error(self, error: InstallerError) -> Self:
        """Return the check with the problem ``error``."""
        return replace(self, problem=Problem.of(error), keeps_install=False)

    def without_problem(self) -> Self:
        """Return the check without a problem, and so with the usual time of the next check."""
        fields = replace(self, problem=None, keeps_install=False, awaited=())
        return fields.with_pace(next_check_s=0.0)


def read_check(host: Host, path: PurePosixPath) -> LastCheck | None:
    """Return the last check; None if the file is missing, damaged, not root's, or of another version."""
    return read_json_of_root(host, path, LastCheck)


def publish_check(host: Host, path: PurePosixPath, check: LastCheck) -> None:
    """Replace the file of the last check."""
    published = replace(check, boot_id=boot_id(), pid=own_pid(), time=stamp())
    host.replace(path, File(dumps(published)))


def read_check_of_boot(host: Host, path: PurePosixPath) -> LastCheck:
    """Return the last check of this boot; an empty check if there was none."""
    check = read_check(host, path)
    if check is None or check.boot_id != boot_id():
        return LastCheck()
    return check


def add_since(engines: Iterable[EngineCheck], before: Iterable[EngineCheck]) -> tuple[EngineCheck, ...]:
    """Return the engines, each with the begin of the present state.

    Args:
        engines: the engines at this check.
        before: the engines at the last check; an engine in the same state keeps the begin.
    """
    known = {engine.name: engine for engine in before}
    checks: list[EngineCheck] = []
    for engine in engines:
        last = known.get(engine.name, EngineCheck(engine.name))
        is_unchanged = bool(last.since) and last.serves == engine.serves
        since = last.since if is_unchanged else stamp()
        checks.append(replace(engine, since=since))
    return tuple(checks)
