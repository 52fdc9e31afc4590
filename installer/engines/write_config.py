"""The files that are written for engines: which, what is on the way to them, and how one is written."""

from collections.abc import Iterable, Iterator
from errno import ENOTDIR, EROFS
from pathlib import PurePosixPath

from installer.engines import ENGINES
from installer.errors import ConflictError, InstallerError
from installer.host.files import READ_ONLY, Host
from installer.host.inodes import REMEDIES
from installer.model.engine_spec import DropInKind
from installer.model.facts import EngineState
from installer.model.files import Kind
from installer.model.record import ConfigRow
from installer.model.steps import WriteConfig


def targets_of(engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the files that an install may write for an engine."""
    if ENGINES[engine.name].finds:
        return
    if engine.hook is not None:
        yield engine.hook
        return
    if engine.drop_in is not None:
        yield engine.drop_in
    if engine.drop_in is None or ENGINES[engine.name].drop_ins.kind is not DropInKind.READ:
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


def write_config(host: Host, write: WriteConfig) -> None:
    """Write or remove a config.

    Raises:
        ConflictError: somebody else has written it since it was read.
    """
    now = host.read(write.path)
    digest = now and now.digest
    if digest == (write.after and write.after.digest) and (now is None) == (write.after is None):
        return
    if digest != (write.before and write.before.digest):
        raise ConflictError(
            f"edit {write.path} (somebody else wrote it in this very moment)", remedy="run again"
        )
    if write.after is None:
        real = host.resolve(write.path)  # a link that led nowhere before us stays
        if write.link:
            host.remove(write.path)  # first: an engine that starts now would not read a link to nowhere
        host.remove(real)
        return
    if write.link and now is None:
        host.link(write.path, write.link)
    host.replace(write.path, write.after)


def linked_since(host: Host, rows: Iterable[ConfigRow]) -> dict[PurePosixPath, str]:
    """Return what the symbolic links hold that somebody has put in the place of files we created.

    Of a link that leads nowhere nobody knows whether it led to our file.
    """
    found = {}
    for row in rows:
        created = host.resolve(row.path.parent) / row.path.name
        link = host.link_target(row.path) if row.original is None and row.target in {None, created} else None
        if link is not None and host.kind(row.path) is Kind.FILE:
            found[row.path] = link
    return found
