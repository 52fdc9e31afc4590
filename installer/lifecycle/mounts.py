"""The directories of the host that this process finds at other paths, compared with those of the install.

A config is looked for through the mounts of this process. With other mounts than those of the install, an
undo could find another file at a config's path, and give up the edits that an engine still reads.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from installer.config_text.change import has_any
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


def find_other_mounts(host: Host, options: Options, record: Record) -> InstallerError | None:
    """Return the error for a config of ours that was written through other mounts, and is not found here.

    Mounts may change: an old pod has the host's /etc at one path, a new pod the whole host below another.
    So edits that are found are enough, and so is the directory of the install without edits.
    """
    if not options.mounts and not record.mounts:  # each check asks: nearly all nodes end here
        return None
    given = _list_given(host, options)
    visible = [(mount.path, mount.here) for mount in record.mounts if _is_directory(mount.here)]
    then = Host.under(options.host_root, visible)
    for row in record.configs:
        if not row.written:
            continue
        path = host.resolve(row.path)
        mount = _nearest(given, path)
        former = _nearest(record.mounts, path)
        if _is_same(mount, former) or _holds_edits(host, row):
            continue
        problem = f"find our edits of {row.path}"
        if former is None or _is_directory(former.here):
            if not _holds_edits(then, row):
                continue
            if former is not None:
                problem += f" (install used --mount {former.path}={former.here})"
                return InstallerError(problem, remedy="give it again", code="path-unusable")
            if mount is not None:
                problem += f" (install did not use --mount {mount.path}={mount.here})"
                return InstallerError(problem, remedy="leave it out", code="path-unusable")
        elif mount is None and not _has_inode(host, former):
            problem += f" (install used --mount {former.path}={former.here})"
            remedy = f"give it again, or name the present place with --mount {former.path}=HERE"
            return InstallerError(problem, remedy=remedy, code="path-unusable")
    return None


def refuse_other_mounts(host: Host, options: Options, record: Record) -> None:
    """Raise the error of ``find_other_mounts``."""
    error = find_other_mounts(host, options, record)
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


def _is_same(mount: MountRow | None, other: MountRow | None) -> bool:
    if mount is None or other is None:
        return mount is other
    return (mount.path, mount.here) == (other.path, other.here)


def _is_directory(path: PurePosixPath) -> bool:
    with suppress(OSError):
        return Path(path).is_dir()
    return False


def _has_inode(host: Host, mount: MountRow) -> bool:
    """Tell whether this process finds the directory of the install at the host's path."""
    status = host.status(mount.path)
    return status is not None and status.st_ino == mount.inode


def _holds_edits(host: Host, row: ConfigRow) -> bool:
    """Tell whether a config is a text of ours, or has one of our edits."""
    with suppress(InstallerError):  # a config that cannot be read shows no edit
        file = host.read(row.path)
        if file is None:
            return False
        if file.digest in row.ours:
            return True
        if row.syntax is None:
            return False
        edits = [edit for edit in relocate_edits(row, file) if edit.after is not None]
        return has_any(text_of(file, row.path), edits, row.syntax, name=str(row.path))
    return False
