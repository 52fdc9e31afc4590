"""Whether a restart of an engine is ours to make: what its unit has for that stop, and for that start."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.data import dataclass
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Engine, ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.restarts import ending_containers, masked, moved, not_by_hand, not_started_again
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.unit_start import UnitStart
from installer.record.cmdline import value_of
from installer.record.next_start import missing

KILLING: Final = frozenset({"control-group", "mixed"})  # systemd.kill(5); the others leave the shims
CONFIG: Final = "config"


@dataclass(frozen=True, slots=True)
class Restart:
    """What a restart of an engine would be.

    ``process`` is the one of the engine, a directory of /proc, ``now`` are the words of its command line,
    ``later`` those that its unit will give it; None where nobody knows.
    """

    unit: UnitStart
    process: Path | None
    now: Sequence[str] | None
    later: Sequence[str] | None


def not_restarted(host: Host, engine: EngineFacts, restart: Restart) -> InstallerError | None:
    """Return why an engine is not restarted by us, as far as anybody can tell."""
    if ENGINES[engine.name].reload is not ReloadMethod.RESTART:
        return None
    return next(_reasons(host, engine, restart), None)


def _reasons(host: Host, engine: EngineFacts, restart: Restart) -> Iterator[InstallerError]:
    unit, process = restart.unit, restart.process
    if unit.masked:
        yield masked(engine)
    if reason := missing(host, unit):
        yield not_started_again(engine, reason)
    yield from (not_by_hand(engine, setting) for setting in unit.refuses)
    if restart.later is not None:
        yield from _moved(host, engine, restart.now, restart.later)
    if unit.kill_mode in KILLING and process is not None and (count := monitors_in_unit_of(process)):
        yield ending_containers(engine, unit.kill_mode, count)


def _moved(
    host: Host, engine: EngineFacts, now: Sequence[str] | None, later: Sequence[str]
) -> Iterator[InstallerError]:
    """Yield which places of an engine its unit has changed; those that files give are compared elsewhere."""
    row, told = ENGINES[engine.name], engine.serving.places if engine.serving else {}
    usual = {CONFIG: str(row.config), **told}
    for place, flags in _flags(row).items():
        was, will = value_of(now or (), flags), value_of(later, flags)
        if (now is None and place == CONFIG) or (now is not None and was == will):
            continue
        was, will = was or usual.get(place), will or (usual[CONFIG] if place == CONFIG else None)
        if will and not (was and _same(host, was, will)):
            what = f"{engine.unit} gives it {flags[0]} {will}"
            yield moved(engine, what, was or "what its config says", "the unit")


def places_by_files(row: Engine, now: Sequence[str] | None, later: Sequence[str] | None) -> frozenset[str]:
    """Return which places the configs of an engine will give it: those that no flag does, if known."""
    words = now if later is None else later
    if words is None:
        return frozenset()
    return frozenset(place for place, flags in row.cmdline.places.items() if value_of(words, flags) is None)


def _flags(row: Engine) -> Mapping[str, tuple[str, ...]]:
    return {CONFIG: row.cmdline.config, **row.cmdline.places} if row.cmdline.config else row.cmdline.places


def _same(host: Host, one: str, other: str) -> bool:
    """Tell whether two paths lead to the same place."""
    paths = PurePosixPath(one), PurePosixPath(other)
    if paths[0] == paths[1]:
        return True
    with suppress(InstallerError):
        return all(each.is_absolute() for each in paths) and host.resolve(paths[0]) == host.resolve(paths[1])
    return False
