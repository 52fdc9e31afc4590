"""CDI for management containers: the driver's device nodes, and a specification that is ours alone."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from installer.decide.configs import pristine
from installer.decide.facts import Facts
from installer.decide.inode import File, Meta
from installer.decide.options import Options
from installer.decide.rows import ConfigRow, DeviceNode, Saved
from installer.decide.steps import MakeDeviceNodes, Step, WriteConfig, WriteSpecification

OWNER: Final = "cdi"  # in the place of an engine's name, in rows and steps


@dataclass(frozen=True, slots=True)
class CdiPart:
    """What CDI takes; ``rows`` and ``nodes`` are all that is held of it afterwards."""

    nodes_made: tuple[MakeDeviceNodes, ...] = ()
    writes: tuple[WriteConfig | WriteSpecification, ...] = ()
    rows: tuple[ConfigRow, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    backups: tuple[File, ...] = ()


def plan_cdi(facts: Facts, options: Options) -> CdiPart:
    """Return how nodes and specification come to their places, and one that is not wanted any more goes."""
    wanted = options.cdi
    held = {row.path: row for row in facts.held.configs if row.engine == OWNER}
    path = wanted.path if wanted else None
    parts = [give_back(row, facts) for row in held.values() if row.path != path]
    writes = [write for part in parts for write in part.writes]
    if wanted is None or path is None:
        return CdiPart((), tuple(writes), nodes=facts.held_nodes)
    absent, source = facts.absent_nodes, options.toolkit_source
    makes = (MakeDeviceNodes(absent, wanted, source),) if absent else ()
    nodes = (*facts.held_nodes, *absent)
    now, original = facts.contents[path], pristine(path, facts).file
    ours: tuple[str, ...] = held[path].ours if path in held else ()
    if facts.cdi_spec is None:
        writes.append(WriteSpecification(wanted, source, now))
    else:
        after = File(facts.cdi_spec.encode(), now.meta if now else Meta())
        if path in held and now is not None and now.content == after.content:
            return CdiPart(makes, tuple(writes), (held[path],), nodes)
        writes.append(WriteConfig(OWNER, path, now, after))
        ours = (after.digest,)
    if path in held and path in facts.lost:
        # What is there is ours; what was before it is only known by name.
        saved, original = held[path].original, None
    else:
        saved = Saved.of(original)
    row = ConfigRow(OWNER, path, None, saved, ours, (), facts.targets.get(path))
    return CdiPart(makes, tuple(writes), (row,), nodes, (original,) if original else ())


def generated(rows: Iterable[ConfigRow], steps: Iterable[Step]) -> tuple[ConfigRow, ...]:
    """Return the rows, that of a specification with the text which a step has written there."""
    texts = {
        step.path: step.after for step in steps if isinstance(step, WriteConfig) and step.engine == OWNER
    }
    return tuple(_with_text(row, texts.get(row.path)) for row in rows)


def _with_text(row: ConfigRow, text: File | None) -> ConfigRow:
    return replace(row, ours=tuple(dict.fromkeys((*row.ours, text.digest)))) if text else row


def give_back(row: ConfigRow, facts: Facts) -> CdiPart:
    """Return the step that restores what was in the specification's place."""
    was, now = pristine(row.path, facts).file, facts.contents[row.path]
    writes = (WriteConfig(OWNER, row.path, now, was, facts.relinked.get(row.path, "")),) if was != now else ()
    return CdiPart((), writes, (row,), (), (was,) if was else ())
