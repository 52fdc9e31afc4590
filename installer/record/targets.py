"""The files that are written for engines, and what is on the way to them."""

from collections.abc import Iterable, Iterator
from errno import ENOTDIR, EROFS
from pathlib import PurePosixPath

from installer.decide.engines import ENGINES
from installer.decide.engines.row import DropIns
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.inode import Kind
from installer.host.files import READ_ONLY, Host
from installer.host.inodes import REMEDIES


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


def unwritable(host: Host, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, InstallerError]:
    """Return why files could be neither written nor removed where they are to be."""
    found = {}
    for path in paths:
        above = host.resolve(path).parents
        standing = next(each for each in above if host.kind(each) is not Kind.ABSENT)
        if host.kind(standing) is not Kind.DIRECTORY:
            problem, remedy = f"write {path} ({standing} is not a directory)", REMEDIES[ENOTDIR]
        elif READ_ONLY in host.mounted(standing):
            problem, remedy = f"write {path} (read-only file system)", REMEDIES[EROFS]
        else:
            continue
        found[path] = InstallerError(problem, remedy=remedy, code="file-operation-failed")
    return found


def missing_above(host: Host, paths: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Return the directories that would have to be made for files.

    A link that leads nowhere is somebody's, and stays when our directories go: what it leads to is missing.
    """
    found = set[PurePosixPath]()
    for path in paths:
        above = [parent for parent in path.parents if host.kind(parent) is Kind.ABSENT]
        if any(host.link_target(parent) is not None for parent in above):
            above = [parent for parent in host.resolve(path).parents if host.kind(parent) is Kind.ABSENT]
        found.update(above)
    return found
