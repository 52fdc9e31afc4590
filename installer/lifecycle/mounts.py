"""The directories of the host that this process finds at other paths, compared with those of the install.

A config is looked for through the mounts of this process. With other mounts than those of the install, an
undo could find another file at a config's path, and give up the edits that an engine still reads.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from installer.config_text.change import list_missing
from installer.engines import ENGINES
from installer.engines.config_edits import relocate_edits
from installer.engines.config_texts import text_of
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.facts import ConfigRow, MountRow, Record
from installer.model.options import Options


def list_mounts(host: Host, options: Options, rows: Iterable[ConfigRow]) -> tuple[MountRow, ...]:
    """Return the mounts below which a config of ours is, for the ledger."""
    if not options.mounts:
        return ()
    given = _list_given(host, options)
    used: dict[PurePosixPath, MountRow] = {}
    for row in rows:
        mount = _nearest(given, host.resolve(row.path)) if row.written else None
        status = host.status(mount.path) if mount else None
        if mount is not None and status is not None:
            used[mount.path] = MountRow(mount.path, mount.here, status.st_ino)
    return tuple(used.values())


def find_other_mounts(
    host: Host, options: Options, record: Record, *, undoes: bool = False
) -> InstallerError | None:
    """Return the error for a config of ours that was written through other mounts, and is not found here.

    Mounts may change: an old pod has the host's /etc at one path, a new pod the whole host below another.
    What counts is that they lead to the directory of the install, or to a text with all our edits.

    Args:
        host: the host, through the mounts of this process.
        options: the options of the verb.
        record: the content of the ledger.
        undoes: whether the verb is an undo. An install may write its edits anew where they are gone, as for
            any drift; an undo would take them for removed.
    """
    if not options.mounts and not record.mounts:  # each check asks: nearly all nodes end here
        return None
    given = _list_given(host, options)
    root = Host.under(options.host_root)
    for row in record.configs:
        # A specification that is gone names no device any more: no engine waits for its return.
        if not row.written or (row.engine not in ENGINES and host.read(row.path) is None):
            continue
        path = host.resolve(row.path)
        mount = _nearest(given, path)
        former = _nearest(record.mounts, path)
        error = None
        if former is not None:
            error = _find_other_directory(host, row, mount, former, undoes=undoes)
        elif mount is not None:
            error = _find_unused_mount(host, root, row, mount)
        if error is not None:
            return error
    return None


def _find_other_directory(
    host: Host, row: ConfigRow, mount: MountRow | None, former: MountRow, *, undoes: bool
) -> InstallerError | None:
    """Return the error for a config whose directory of the install is not the one that is found now."""
    status = host.status(former.path)
    if status is not None and status.st_ino == former.inode:
        return None
    problem = f"find our edits of {row.path} (install used --mount {former.path}={former.here})"
    if _has_inode(former.here, former.inode):
        return InstallerError(problem, remedy="give it again", code="path-unusable")
    if _holds_all_edits(host, row):
        return None
    if mount is None:
        remedy = f"give it again, or name the present place with --mount {former.path}=HERE"
        return InstallerError(problem, remedy=remedy, code="path-unusable")
    # A mount that has gone leaves an empty directory, or none. An /etc or a /run that each boot makes anew is
    # another directory, and the undo goes on there.
    if not undoes or host.names(former.path):
        return None
    problem = (
        f"find our edits of {row.path} ({mount.here} is empty, and install has mounted another directory)"
    )
    remedy = "mount that one again; or, if it is gone for good, run install here and then uninstall"
    return InstallerError(problem, remedy=remedy, code="path-unusable")


def _find_unused_mount(host: Host, root: Host, row: ConfigRow, mount: MountRow) -> InstallerError | None:
    """Return the error for a mount that hides a config with our edits, which ``root`` shows."""
    directory = row.path.parent
    here = host.status(directory)
    below_root = root.status(directory)
    is_same = False
    if here is not None and below_root is not None:
        is_same = (here.st_dev, here.st_ino) == (below_root.st_dev, below_root.st_ino)
    if is_same or not _holds_all_edits(root, row):
        return None
    problem = f"find our edits of {row.path} (install did not use --mount {mount.path}={mount.here})"
    return InstallerError(problem, remedy="leave it out", code="path-unusable")


def refuse_other_mounts(host: Host, options: Options, record: Record, *, undoes: bool = False) -> None:
    """Raise the error of ``find_other_mounts``."""
    error = find_other_mounts(host, options, record, undoes=undoes)
    if error is not None:
        raise error


def _list_given(host: Host, options: Options) -> list[MountRow]:
    """Return the mounts of the options, without their inodes."""
    return [MountRow(host.resolve(path), here, 0) for path, here in options.mounts]


def _nearest(mounts: Sequence[MountRow], path: PurePosixPath) -> MountRow | None:
    """Return the lowest mount above ``path``; None for a path below none of them."""
    nearest = None
    for mount in mounts:
        if path.is_relative_to(mount.path) and (
            nearest is None or len(mount.path.parts) > len(nearest.path.parts)
        ):
            nearest = mount
    return nearest


def _has_inode(directory: PurePosixPath, inode: int) -> bool:
    """Tell whether a path of this process leads to the directory with an inode."""
    with suppress(OSError):
        return Path(directory).stat().st_ino == inode
    return False


def _holds_all_edits(host: Host, row: ConfigRow) -> bool:
    """Tell whether a config is a text of ours, or has all our edits: one alone may be an owner's own."""
    with suppress(InstallerError):  # a config that cannot be read shows no edit
        file = host.read(row.path)
        if file is None:
            return False
        if file.digest in row.ours:
            return True
        if row.syntax is None:
            return False
        edits = [edit for edit in relocate_edits(row, file) if edit.after is not None]
        missing = list_missing(text_of(file, row.path), edits, row.syntax, name=str(row.path))
        return bool(edits) and not missing
    return False
