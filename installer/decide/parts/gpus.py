"""GPUs by CDI alone: the specification of the node's GPUs, and engines that have CDI in effect already."""

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import replace
from installer.decide.facts import Facts, GpuSpecification
from installer.decide.for_runtimes import without_effect
from installer.decide.inode import File, Meta
from installer.decide.mode import against_cdi
from installer.decide.options import GPU_KIND, Mode, Options
from installer.decide.part import Part
from installer.decide.parts.cdi import OWNER, restored
from installer.decide.rows import CdiRow, ConfigRow, Record
from installer.decide.steps import Step, WriteConfig

ID: Final = "gpus"
NAMED: Final = 4  # of the devices that nobody has
NEW: Final = "it is not there"
REMOVED: Final = "somebody has removed it"
CHANGED: Final = "it is not what nvidia-ctk generates for this node any more"
STALE: Final = "it names what is not there any more, and no container could start with it"
GIVES_WAY: Final = "somebody else has put one with the same devices there"
WITHDRAWN: Final = "the last one was of no use any more and is removed, and what was to follow failed"
# That the driver, devices or specifications of others change is no drift: nobody has touched what is ours.
FOLLOWS: Final = frozenset({NEW, CHANGED, STALE, GIVES_WAY})


def install(facts: Facts, options: Options, why: str) -> Part:
    """Return how the specification comes to its place, follows the driver, and gives way to another's.

    ``why`` is the reason for the mode, where somebody wants to know it. Engines drop both of two devices of
    one name in one directory, and hide one in another: so each has one owner.
    """
    spec = facts.gpus
    if spec is None:
        return Part(ID, notes=(f"mode {Mode.RUNTIME}: {why}",) if why else ())
    pairs, row, lacking = _specification(facts, spec)
    names = tuple(engine.name for engine in facts.engines)
    return Part(
        ID,
        tuple(step for step, _ in pairs),
        tuple(why for _, why in pairs),
        Record(configs=(row,) if row else (), cdi=CdiRow(names, lacking)),
        notes=(
            *([f"mode {Mode.CDI}: {why}"] if why else ()),
            *([said] if (said := without_effect(options)) else ()),
            *([f"no CDI specification of the GPUs: {lacking}"] if lacking else ()),
            *([f"kept the CDI specification of the GPUs: {spec.lacking}"] if row and spec.lacking else ()),
        ),
        obstacles=tuple(against_cdi(facts.engines, facts.held)),
    )


def _specification(
    facts: Facts, spec: GpuSpecification
) -> tuple[list[tuple[Step, str]], ConfigRow | None, str]:
    """Return the steps with their reasons, the row that is held then, and why there is no specification.

    One that is stale, or beside another's, ends containers as long as it is there: it goes first, which takes
    no space, and a roll-back does not bring it back.
    """
    held, now = facts.held.config(spec.path), facts.contents[spec.path]
    going = [replace(step, unwanted=True) for step in restored(held, facts)] if held and now else []
    if spec.others:
        why = " and ".join(f"{path} has devices of {GPU_KIND}" for path in spec.others) + _without(spec)
        return [(step, GIVES_WAY) for step in going], None, why
    if not spec.text:
        if going and not spec.stale:  # a GPU that does not answer takes nothing from the others
            return [], held, ""
        return [(step, STALE) for step in going], None, spec.lacking
    after = File(spec.text.encode(), now.meta if now else Meta())
    row = ConfigRow(OWNER, spec.path, None, None, (after.digest,), (), facts.targets.get(spec.path))
    if held and now is not None and now.content == after.content:
        return [], held, ""
    reason = CHANGED if now else REMOVED if held else NEW
    if now and spec.stale:
        gone = WriteConfig(OWNER, spec.path, now, None, unwanted=True)
        return [(gone, STALE), (WriteConfig(OWNER, spec.path, None, after), reason)], row, ""
    return [(WriteConfig(OWNER, spec.path, now, after), reason)], row, ""


def _without(spec: GpuSpecification) -> str:
    """Return what nobody has of the devices that ours would have."""
    more = f" and {len(spec.missing) - NAMED} more" if len(spec.missing) > NAMED else ""
    return f", without {', '.join(spec.missing[:NAMED])}{more}" if spec.missing else ""


def withdrawn(held: Record, done: Iterable[Step]) -> Record:
    """Return the rows of before an install that failed, less a specification that nobody wants back."""
    gone = {step.path for step in done if isinstance(step, WriteConfig) and step.unwanted}
    return without(held, gone) if gone and held.cdi is not None else held


def without(held: Record, gone: Collection[PurePosixPath]) -> Record:
    """Return the rows less those of specifications that are ``gone``."""
    rows = tuple(row for row in held.configs if row.path not in gone)
    return replace(held, configs=rows, cdi=held.cdi and replace(held.cdi, lacking=WITHDRAWN))
