"""The files that are written for engines, and what is on the way to them."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from installer.decide.engines import ENGINES
from installer.decide.engines.row import DropIns
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.host.files import Host


def targets_of(engine: EngineFacts) -> Iterator[PurePosixPath]:
    """Yield the files that an install may write for an engine."""
    if ENGINES[engine.name].finds:
        return
    if engine.hook is not None:
        yield engine.hook
        return
    if engine.drop_in is not None:
        yield engine.drop_in
    if engine.drop_in is None or ENGINES[engine.name].drop_ins is not DropIns.READ:
        yield engine.config


def led_elsewhere(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, PurePosixPath]:
    """Return the paths that symbolic links lead elsewhere, and where to."""
    return {path: real for path in paths if (real := host.resolve(path)) != path}


def missing_above(host: Host, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Return the directories that would have to be made for files."""
    return {parent for path in paths for parent in path.parents if host.kind(parent) is Kind.ABSENT}
