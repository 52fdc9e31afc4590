"""Drift: decide whether a node that differs from its install is repaired now, later or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.plan import FOLLOWS
from installer.change.plan import Plan
from installer.change.rows import in_progress
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model import steps
from installer.model.facts import Record, count
from installer.model.options import Drift
from installer.payload.plan import THEIRS

HOUR_S: Final = 3600.0
# The pauses before the first repair of a thing within an hour, before the second, and so on. After these the
# thing is not repaired any more.
PAUSES_S: Final = (0.0, 10.0, 60.0, 300.0, 1800.0)
# The pauses after failed checks in a row: an engine takes its time to start, and an engine that hung tells
# nobody when it goes on.
RETRIES_S: Final = (2.0, 10.0, 60.0)
# The pause after nvidia-ctk failed with a loaded driver: the cause may go without a change of any file.
UNMADE_S: Final = 60.0
# After so many checks without a finding within so many seconds comes a rest: a file beside a config that is
# written all the time must not cost a check each second.
CHECKS: Final = 10
CHECKS_WITHIN_S: Final = 600.0
REST_S: Final = 60.0
TOOLKIT: Final = "the toolkit"
RECONCILE: Final = "toolkit-installer reconcile"
# The engines that restart themselves when their config is written.
RESTARTING: Final = frozenset(name for name, kind in ENGINES.items() if kind.restarts_itself)

# Steps that revert nothing an administrator did: a look at the node, and the removal of unneeded files.
# A directory is created for a file only, and the step of the file tells.
HOUSEKEEPING: Final = (steps.FindRuntimes, steps.MakeDirectory, steps.RemoveVersion, steps.RemoveDirectory)

# When each thing was repaired, in seconds of a clock that only runs on.
Repairs = Mapping[str, tuple[float, ...]]


class Refusal(Struct, frozen=True):
    """The reason why nothing is repaired, and until when (0: until something changes)."""

    reason: InstallerError
    until_s: float = 0.0


class Drifted(Struct, frozen=True):
    """The differences from the install: the things with their reasons, and the engines to reload."""

    things: Mapping[str, str]
    engines: tuple[str, ...] = ()
    theirs: bool = False  # another installer has replaced our toolkit by its own, or has begun to
    removed: tuple[PurePosixPath, ...] = ()  # removed configs with more in them than our runtimes

    @classmethod
    def of(cls, plan: Plan, record: Record, edited: Collection[str] = ()) -> "Drifted":
        """Return the drift that a plan is about to repair.

        Args:
            plan: the plan of an install, which differs from the node.
            record: the content of the ledger.
            edited: paths of configs with more in them than our text.
        """
        things: dict[str, str] = {}
        engines: list[str] = []
        removed: list[PurePosixPath] = []
        for step, reason in plan.planned:
            if not isinstance(step, HOUSEKEEPING) and reason not in FOLLOWS:
                things[_name_thing(step)] = reason
            if isinstance(step, steps.Reload):
                engines.append(step.engine)
            elif isinstance(step, steps.WriteConfig):
                if step.engine in RESTARTING:
                    engines.append(step.engine)
                row = record.config(step.path)
                had_more = row is not None and (bool(row.original) or str(row.path) in edited)
                if step.before is None and had_more:
                    removed.append(step.path)
        for name in plan.pending:
            things[name] = "it does not serve our runtimes"
            engines.append(name)
        # A restart that is postponed since the install is no drift.
        for name in plan.restarts_due:
            things.pop(name, None)
        names = [name for name in dict.fromkeys(engines) if name not in plan.restarts_due]
        return cls(things, tuple(names), theirs=is_taken_over(plan), removed=tuple(removed))

    @property
    def summary(self) -> str:
        """The things with their reasons, as part of a sentence."""
        return "; ".join(f"{thing}: {reason}" for thing, reason in self.things.items())


def is_taken_over(plan: Plan) -> bool:
    """Tell whether a plan finds another installer's toolkit at our path."""
    return any(reason == THEIRS for _, reason in plan.planned)


def _name_thing(step: steps.Step) -> str:
    match step:
        case steps.WriteConfig(_, path):
            return str(path)
        case steps.Reload(kind):
            return kind.name
        case steps.InstallVersion() | steps.SwitchToolkit():
            return TOOLKIT
        case _:
            return steps.describe(step).text


def find_refusal(
    policy: Drift, drifted: Drifted, repairs: Repairs, now_s: float, clock: Callable[[float], str]
) -> Refusal | None:
    """Return why drift is not repaired without a user's request; None: repair the drift.

    Args:
        policy: the option ``--drift``.
        drifted: the drift.
        repairs: the former repairs of each thing.
        now_s: the present moment, on the clock of ``repairs``.
        clock: words a moment of this clock for a user.
    """
    if not drifted.things:
        return None
    policy_reason = _refuse_repair(policy, drifted)
    if policy_reason is not None:
        return Refusal(policy_reason)
    recent = select_recent(repairs, now_s)
    counts = {thing: recent.get(thing, ()) for thing in drifted.things}
    worst = max(counts, key=lambda thing: len(counts[thing]))
    times = counts[worst]
    often = count(len(times), "repair")
    if len(times) >= len(PAUSES_S):
        reason = InstallerError(
            f"keep {worst} as it was installed (it is changed again and again: {often} "
            f"within an hour, the last at {clock(times[-1])})",
            remedy=f"find what changes it (configuration management? a script?), then run {RECONCILE}",
            code="drift-repeats",
        )
        return Refusal(reason, times[0] + HOUR_S)
    until_s = now_s
    pauses_end_s = []
    for moments in counts.values():
        if moments:
            pauses_end_s.append(moments[-1] + PAUSES_S[len(moments)])
    if pauses_end_s:
        until_s = max(pauses_end_s)
    if until_s > now_s:
        reason = InstallerError(
            f"keep {worst} as it was installed (it was changed again after {often})",
            remedy=f"find who changes it; the next repair is at {clock(until_s)}, or when "
            f"you run {RECONCILE}",
            code="drifted",
        )
        return Refusal(reason, until_s)
    return None


def _refuse_repair(policy: Drift, drifted: Drifted) -> InstallerError | None:
    """Return why the policy repairs nothing without a user's request; None: the policy repairs."""
    things = " and ".join(drifted.things)
    remedy = f"run {RECONCILE} at a time of your choice"
    if policy is Drift.IGNORE:
        reason = f"--drift ignore repairs nothing; {drifted.summary}"
    elif policy is Drift.REPORT:
        reason = f"--drift report repairs nothing; {drifted.summary}"
    elif drifted.theirs:
        reason = "another installer's toolkit is there"
        remedy = f"to keep the other toolkit, stop this program; to install ours again, run {RECONCILE}"
    elif drifted.removed:  # with our runtimes alone the engine would start without its owner's settings
        files = " and ".join(map(str, drifted.removed))
        things = "the node"
        reason = f"{files} was removed, with more in it than our runtimes"
        remedy = f"put it back; or run {RECONCILE} for one with our runtimes alone"
    elif drifted.engines and policy is not Drift.REPAIR:
        kinds = [ENGINES[name] for name in drifted.engines]
        verbs = dict.fromkeys(f"{kind.reload_verb}ed" for kind in kinds)
        titles = " and ".join(kind.title for kind in kinds)
        reason = f"{titles} would have to be {' or '.join(verbs)}; {drifted.summary}"
    else:
        return None
    return InstallerError(f"repair {things} without being asked ({reason})", remedy=remedy, code="drifted")


def select_specification(plan: Plan, record: Record) -> Plan | None:
    """Return the GPUs' specification of a plan, which is no drift, as a separate plan.

    The specification follows the driver. None: the plan does not write the specification, or writes the file
    for another reason.
    """
    part = next((part for part in plan.parts if part.id == steps.PartId.GPUS and part.steps), None)
    # A node that another installer has taken over gets no specification.
    if part is None or is_taken_over(plan):
        return None
    if not {reason for _, reason in part.planned} <= FOLLOWS:
        return None
    paths = {step.path for step in part.steps if isinstance(step, steps.WriteConfig)}
    parents: dict[steps.MakeDirectory, str] = {}
    for step, reason in plan.planned:
        if not isinstance(step, steps.MakeDirectory):
            continue
        if any(path.is_relative_to(step.path) for path in paths):
            parents[step] = reason
    above = steps.Part(steps.PartId.DIRECTORIES, tuple(parents.items()))
    directories = list(record.directories)
    for made in parents:
        directories.append(made.path)
    other_configs = [row for row in record.configs if row.path not in paths]
    final = replace(
        record,
        directories=tuple(dict.fromkeys(directories)),
        configs=(*other_configs, *part.rows.configs),
        cdi=part.rows.cdi or record.cdi,
    )
    return replace(plan, parts=(above, part), in_progress=in_progress(record, final, part.steps), final=final)


def select_recent(repairs: Repairs, now_s: float) -> Repairs:
    """Return the repairs of the last hour."""
    recent: dict[str, tuple[float, ...]] = {}
    for thing, moments in repairs.items():
        times = tuple(moment for moment in moments if now_s - HOUR_S < moment <= now_s)
        if times:
            recent[thing] = times
    return recent


def add_repair(repairs: Repairs, things: Collection[str], now_s: float) -> Repairs:
    """Add a repair of each thing."""
    repairs_now = dict(select_recent(repairs, now_s))
    for thing in things:
        repairs_now[thing] = (*repairs_now.get(thing, ()), now_s)
    return repairs_now


def rest_s(idle: Sequence[float], now_s: float) -> float:
    """Return for how many seconds a change starts no check; ``idle`` has the checks without a finding."""
    recent = [moment for moment in idle if now_s - moment < CHECKS_WITHIN_S]
    return REST_S if len(recent) >= CHECKS else 0.0
