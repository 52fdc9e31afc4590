"""One part of a plan, whatever it is about; a plan is the sum of its parts."""

from collections.abc import Callable, Iterable
from typing import Final

from installer.decide.data import dataclass, field
from installer.decide.errors import InstallerError
from installer.decide.inode import File
from installer.decide.rows import ConfigRow, Record
from installer.decide.steps import Step

TRY_AGAIN: Final = "run toolkit-installer uninstall again"


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of an install or an undo takes.

    ``why`` has the reason of each step. ``rows`` is what is held of it after the steps; an undo also says
    in ``in_progress`` what is held of its configs while they go on, and in ``needed`` why something stays.
    ``backups`` are saved ahead of all steps; ``obstacles`` keep the whole plan from being carried out.
    ``refused`` tells that nobody can say what the part would take.
    """

    id: str
    steps: tuple[Step, ...] = ()
    why: tuple[str, ...] = ()
    rows: Record = field(default_factory=Record)
    in_progress: tuple[ConfigRow, ...] = ()
    backups: tuple[File, ...] = ()
    notes: tuple[str, ...] = ()
    obstacles: tuple[InstallerError, ...] = ()
    needed: tuple[InstallerError, ...] = ()
    refused: bool = False

    @property
    def reasons(self) -> tuple[tuple[Step, str], ...]:
        """Each step with its reason."""
        return tuple(zip(self.steps, self.why, strict=True))


def id_of(engine: str) -> str:
    """Return the id of the part that is about an engine."""
    return f"engine-{engine}"


def attempted(part: str, make: Callable[[], Part]) -> Part:
    """Return what ``make`` makes, or a part that says why nobody can: a plan tells all its obstacles."""
    try:
        return make()
    except InstallerError as error:
        return Part(part, obstacles=(error,), refused=True)


def rows_of(parts: Iterable[Part]) -> Record:
    """Return what is held of all parts; where two have a row for the same thing, that of the later one."""
    rows = [part.rows for part in parts]
    return Record(
        directories=tuple(dict.fromkeys(path for each in rows for path in each.directories)),
        toolkit=next((each.toolkit for each in reversed(rows) if each.toolkit), None),
        engines=tuple({row.name: row for each in rows for row in each.engines}.values()),
        configs=tuple({row.path: row for each in rows for row in each.configs}.values()),
        nodes=tuple(node for each in rows for node in each.nodes),
        cdi=next((each.cdi for each in rows if each.cdi), None),
        nri=next((each.nri for each in rows if each.nri), None),
    )
