"""Drift: whether a node that is not as installed is repaired now, later or not at all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.cdi.plan import FOLLOWS, GPUS
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.engines.reloading import in_progress
from installer.errors import InstallerError
from installer.model import steps
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import Record, count
from installer.model.options import Drift
from installer.payload.plan import THEIRS

HOUR_S: Final = 3600.0
# Before the first repair of a thing within an hour, before the second, and so on; then comes the end.
PAUSES_S: Final = (0.0, 10.0, 60.0, 300.0, 1800.0)
# Before a node is checked again where no check succeeds: an engine that starts takes its time, and one that
# has hung does not say that it goes on.
RETRIES_S: Final = (2.0, 10.0, 60.0)
# Before nvidia-ctk is asked again that has failed with a loaded driver: what it waits for may change no file.
UNMADE_S: Final = 60.0
# A file beside a config that is written all the time shall not cost a check each second.
CHECKS: Final = 10
CHECKS_WITHIN_S: Final = 600.0
REST_S: Final = 60.0
TOOLKIT: Final = "the toolkit"
RECONCILE: Final = "toolkit-installer reconcile"
# Those that restart when they see a write.
RESTARTING: Final = frozenset(name for name, spec in ENGINES.items() if spec.reload is ReloadMethod.ITSELF)

# What takes nothing back that an administrator did: a check, and what is not needed any more.
# A directory is made for a file alone, and that tells.
HOUSEKEEPING: Final = (steps.FindRuntimes, steps.MakeDirectory, steps.RemoveVersion, steps.RemoveDirectory)

# When each thing was repaired, in seconds of a clock that only runs on.
Repairs = Mapping[str, tuple[float, ...]]


class Refusal(Struct, frozen=True):
    """Why nothing is repaired, and until when (0: until something changes)."""

    reason: InstallerError
    until_s: float = 0.0


class Drifted(Struct, frozen=True):
    """What is not as installed: the things with the reason of each, and the engines that need a reload."""

    things: Mapping[str, str]
    engines: tuple[str, ...] = ()
    theirs: bool = False  # another installer has put its toolkit, or begun to, in the place of ours
    removed: tuple[PurePosixPath, ...] = ()  # configs that held more than our runtimes

    @classmethod
    def of(cls, plan: Plan, record: Record, edited: Collection[str] = ()) -> "Drifted":
        """Return what a plan is about to change of what is ``record``; ``edited`` held more than we wrote."""
        things: dict[str, str] = {}
        engines: dict[str, None] = {}
        removed = []
        for step, reason in plan.planned:
            if not isinstance(step, HOUSEKEEPING) and reason not in FOLLOWS:
                things[_name_thing(step)] = reason
            if isinstance(step, steps.Reload) or (
                isinstance(step, steps.WriteConfig) and step.engine in RESTARTING
            ):
                engines[step.engine] = None
            if isinstance(step, steps.WriteConfig) and step.before is None:
                row = record.config(step.path)
                removed += [step.path] if row and (row.original or str(row.path) in edited) else []
        # One whose restart is put off has drifted, unless it was put off since the install.
        things |= dict.fromkeys(plan.pending, "it does not serve our runtimes")
        return cls(
            {thing: why for thing, why in things.items() if thing not in plan.due},
            tuple(name for name in (engines | dict.fromkeys(plan.pending)) if name not in plan.due),
            theirs=is_taken_over(plan),
            removed=tuple(removed),
        )

    @property
    def summary(self) -> str:
        """The things with their reasons, as part of a sentence."""
        return "; ".join(f"{thing}: {why}" for thing, why in self.things.items())


def is_taken_over(plan: Plan) -> bool:
    """Tell whether a plan finds another installer's toolkit in the place of ours."""
    return any(reason == THEIRS for _, reason in plan.planned)


def _name_thing(step: steps.Step) -> str:
    match step:
        case steps.WriteConfig(_, path):
            return str(path)
        case steps.Reload(spec):
            return spec.name
        case steps.InstallVersion() | steps.SwitchToolkit():
            return TOOLKIT
        case _:
            return steps.describe(step).text


def find_refusal(
    policy: Drift, drifted: Drifted, repairs: Repairs, now_s: float, clock: Callable[[float], str]
) -> Refusal | None:
    """Return why drift is not repaired without being asked; ``clock`` words a moment."""
    if not drifted.things:
        return None
    if (reason := _refuse_repair(policy, drifted)) is not None:
        return Refusal(reason)
    recent = select_recent(repairs, now_s)
    counts = {thing: recent.get(thing, ()) for thing in drifted.things}
    worst = max(counts, key=lambda thing: len(counts[thing]))
    times = counts[worst]
    often = count(len(times), "repair")
    if len(times) >= len(PAUSES_S):
        reason = InstallerError(
            f"keep {worst} as it was installed (it is changed again and again: {often} "
            f"within an hour, the last at {clock(times[-1])})",
            remedy=f"find who does (a bootstrap script? configuration management?), then run {RECONCILE}",
            code="drift-repeats",
        )
        return Refusal(reason, times[0] + HOUR_S)
    until_s = max(((each[-1] + PAUSES_S[len(each)]) for each in counts.values() if each), default=now_s)
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
    """Return why nothing is repaired without being asked; None where that is not so."""
    things, remedy = " and ".join(drifted.things), f"run {RECONCILE} at a time of your choice"
    if policy is Drift.IGNORE:
        why = f"--drift ignore repairs nothing; {drifted.summary}"
    elif policy is Drift.REPORT:
        why = f"--drift report only tells; {drifted.summary}"
    elif drifted.theirs:
        why = "another installer's toolkit is there"
        remedy = f"to leave the node to that, stop this program; to make the node ours again, run {RECONCILE}"
    elif drifted.removed:  # with ours alone in it the engine would start without all that its owner had there
        files = " and ".join(map(str, drifted.removed))
        things, why = "the node", f"{files} was removed, with more in it than our runtimes"
        remedy = f"put it back; or run {RECONCILE} for one with our runtimes alone"
    elif drifted.engines and policy is not Drift.REPAIR:
        specs = [ENGINES[name] for name in drifted.engines]
        ways = (spec.reload for spec in specs)
        verbs = dict.fromkeys("reloaded" if way is ReloadMethod.HUP else "restarted" for way in ways)
        titles = " and ".join(spec.title for spec in specs)
        why = f"{titles} would have to be {' or '.join(verbs)}; {drifted.summary}"
    else:
        return None
    return InstallerError(f"repair {things} without being asked ({why})", remedy=remedy, code="drifted")


def select_specification(plan: Plan, record: Record) -> Plan | None:
    """Return what of a plan is no drift, alone: the specification of the GPUs follows the driver."""
    part = next((part for part in plan.parts if part.id == GPUS and part.steps), None)
    # A node that is another installer's now has none.
    if part is None or is_taken_over(plan) or not {reason for _, reason in part.planned} <= FOLLOWS:
        return None
    paths = {step.path for step in part.steps if isinstance(step, steps.WriteConfig)}
    made = {
        step: reason
        for step, reason in plan.planned
        if isinstance(step, steps.MakeDirectory) and any(path.is_relative_to(step.path) for path in paths)
    }
    above = steps.Part("directories", tuple(made.items()))
    final = replace(
        record,
        directories=tuple(dict.fromkeys((*record.directories, *(step.path for step in made)))),
        configs=(*(row for row in record.configs if row.path not in paths), *part.rows.configs),
        cdi=part.rows.cdi or record.cdi,
    )
    return replace(plan, parts=(above, part), in_progress=in_progress(record, final, part.steps), final=final)


def select_recent(repairs: Repairs, now_s: float) -> Repairs:
    """Return the repairs of the last hour."""
    recent = {thing: [each for each in repairs[thing] if now_s - HOUR_S < each <= now_s] for thing in repairs}
    return {thing: tuple(times) for thing, times in recent.items() if times}


def add_repair(repairs: Repairs, things: Collection[str], now_s: float) -> Repairs:
    """Return the repairs with one more of each thing."""
    recent = select_recent(repairs, now_s)
    return {**recent, **{thing: (*recent.get(thing, ()), now_s) for thing in things}}


def rest_s(idle: Sequence[float], now_s: float) -> float:
    """Return for how many seconds no change leads to a check; ``idle`` are those that found nothing."""
    return REST_S if sum(now_s - each < CHECKS_WITHIN_S for each in idle) >= CHECKS else 0.0
