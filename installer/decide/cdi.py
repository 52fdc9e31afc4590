"""The CDI specification for management containers: a file that is ours alone, given back like any other."""

from dataclasses import dataclass
from typing import Final

from installer.decide.configs import pristine
from installer.decide.facts import Facts
from installer.decide.inode import File, Meta
from installer.decide.options import Cdi
from installer.decide.rows import ConfigRow, Saved
from installer.decide.steps import WriteConfig

OWNER: Final = "cdi"  # in the place of an engine's name, in rows and steps


@dataclass(frozen=True, slots=True)
class CdiPart:
    """What the specification takes; ``rows`` are all that is held of it afterwards."""

    writes: tuple[WriteConfig, ...] = ()
    rows: tuple[ConfigRow, ...] = ()
    backups: tuple[File, ...] = ()


def plan_cdi(facts: Facts, wanted: Cdi | None) -> CdiPart:
    """Return how the specification comes to its place, and one that is not wanted any more goes."""
    rows = {row.path: row for row in facts.held.configs if row.engine == OWNER}
    path = wanted.path if wanted else None
    parts = [give_back(row, facts) for row in rows.values() if row.path != path]
    writes = [write for part in parts for write in part.writes]
    if path is None or facts.cdi_spec is None:
        return CdiPart(tuple(writes))
    now, original = facts.contents[path], pristine(path, facts).file
    after = File(facts.cdi_spec.encode(), now.meta if now else Meta())
    if path in rows and now is not None and now.content == after.content:
        return CdiPart(tuple(writes), (rows[path],))
    writes.append(WriteConfig(OWNER, path, now, after))
    row = ConfigRow(OWNER, path, None, Saved.of(original), (after.digest,), (), facts.targets.get(path))
    return CdiPart(tuple(writes), (row,), (original,) if original else ())


def give_back(row: ConfigRow, facts: Facts) -> CdiPart:
    """Return how what was in the specification's place comes back."""
    was, now = pristine(row.path, facts).file, facts.contents[row.path]
    writes = (WriteConfig(OWNER, row.path, now, was),) if was != now else ()
    return CdiPart(writes, (row,), (was,) if was else ())
