"""CDI for management containers: a specification that is ours alone."""

from collections.abc import Iterable
from typing import Final

from installer.decide.configs import without_us
from installer.decide.data import replace
from installer.decide.facts import Facts
from installer.decide.inode import File, Meta
from installer.decide.options import Options
from installer.decide.part import Part
from installer.decide.rows import ConfigRow, Record, Saved
from installer.decide.steps import Step, WriteConfig, WriteSpecification

OWNER: Final = "cdi"  # in the place of an engine's name, in rows and steps; and the id of this part


def install(facts: Facts, options: Options) -> Part:
    """Return how the specification comes to its place, and one that is not wanted any more goes."""
    wanted = options.cdi
    held = {row.path: row for row in facts.held.configs if row.engine == OWNER}
    others = {facts.gpus.path} if facts.gpus else set()  # planned in a part of its own
    going = [row for row in held.values() if row.path not in others | ({wanted.path} if wanted else set())]
    steps: list[Step] = [step for row in going for step in restored(row, facts)]
    why = ["no CDI specification is asked for there any more"] * len(steps)
    if wanted is None:
        return Part(OWNER, tuple(steps), tuple(why))
    path = wanted.path
    now, original = facts.contents[path], without_us(path, facts).file
    ours: tuple[str, ...] = held[path].ours if path in held else ()
    if facts.cdi_spec is None:
        steps.append(WriteSpecification(wanted, options.toolkit_source, now))
        why.append("it is to name device nodes that are not there yet")
    else:
        after = File(facts.cdi_spec.encode(), now.meta if now else Meta())
        if path in held and now is not None and now.content == after.content:
            return Part(OWNER, tuple(steps), tuple(why), Record(configs=(held[path],)))
        steps.append(WriteConfig(OWNER, path, now, after))
        why.append("it is not there" if now is None else "it is not what nvidia-ctk generates for this node")
        ours = (after.digest,)
    if path in held and path in facts.lost:
        # What is there is ours; what was before it is only known by name.
        saved, original = held[path].original, None
    else:
        saved = Saved.of(original)
    row = ConfigRow(OWNER, path, None, saved, ours, (), facts.targets.get(path))
    backups = (original,) if original else ()
    return Part(OWNER, tuple(steps), tuple(why), Record(configs=(row,)), backups=backups)


def undo(facts: Facts, *, stays: bool) -> Part:
    """Return what restores what stood where the specification is, unless something of ours ``stays``."""
    rows = tuple(row for row in facts.held.configs if row.engine == OWNER)
    steps = tuple(step for row in rows if not stays for step in restored(row, facts))
    originals = (without_us(row.path, facts).file for row in rows)
    return Part(
        OWNER,
        steps,
        ("the CDI specification there is ours",) * len(steps),
        Record(configs=rows, cdi=facts.held.cdi),
        in_progress=rows,
        backups=tuple(file for file in originals if file is not None),
    )


def restored(row: ConfigRow, facts: Facts) -> Iterable[WriteConfig]:
    """Yield the step that brings back what was in the specification's place."""
    was, now = without_us(row.path, facts).file, facts.contents[row.path]
    if was != now:
        yield WriteConfig(row.engine, row.path, now, was, facts.relinked.get(row.path, ""))


def generated(rows: Iterable[ConfigRow], steps: Iterable[Step]) -> tuple[ConfigRow, ...]:
    """Return the rows, that of a specification with the text which a step has written there."""
    texts = {
        step.path: step.after for step in steps if isinstance(step, WriteConfig) and step.engine == OWNER
    }
    return tuple(_with_text(row, texts.get(row.path)) for row in rows)


def _with_text(row: ConfigRow, text: File | None) -> ConfigRow:
    return replace(row, ours=tuple(dict.fromkeys((*row.ours, text.digest)))) if text else row
