"""Where the host keeps what this container finds somewhere else: told by mounts, proven by inodes."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from installer.errors import InstallerError
from installer.host import kernel
from installer.host.files import Host
from installer.host.paths import ROOT, follow


def is_empty(local: PurePosixPath) -> bool:
    """Tell whether there is nothing in a directory, or no directory."""
    try:
        return not any(Path(local).iterdir())
    except OSError:
        return True


def resolve_local(local: PurePosixPath, *hosts: PurePosixPath) -> PurePosixPath:
    """Return ``local`` as the kernel finds it: no ``..``, and no links of this container.

    Mount points are known by such names: where /var/run is a link to /run, what is mounted at /var/run/cdi is
    at /run/cdi. Links below ``hosts``, directories of the host, are the host's and are not followed.

    Raises:
        InstallerError: the links go round in a circle.
    """

    def link_target(path: PurePosixPath) -> PurePosixPath | None:
        if any(path.parent.is_relative_to(host) for host in hosts):
            return None
        try:
            return PurePosixPath(Path(path).readlink())
        except OSError:
            return None

    return follow(local, link_target)


def find_host_path(
    local: PurePosixPath, host: Host, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the path of the ``host`` of ``local``, which a mount has brought; None where none has.

    The kernel tells what is mounted where, and the path within its file system; ``guesses`` are what
    ``local`` may be on the host. The candidate whose mount point is the same inode below the host's ``root``
    is right. Where none is, a mount at just this place is taken for the first guess, or for the host's path
    of that name; a wider one (the container's own /run) has nothing to do with the host.
    """
    real = resolve_local(local, root)
    mounts = [(PurePosixPath(point), PurePosixPath(within)) for point, within in kernel.mounts()]
    above = [mount for mount in mounts if mount[0] != ROOT and real.is_relative_to(mount[0])]
    if not above:
        return None
    point, within = max(above, key=lambda mount: len(mount[0].parts))
    below = real.relative_to(point)
    named = [path for path in (*guesses, local, real) if ".." not in path.parts]
    outer = [path for guess in named if (path := _without(guess, below)) is not None]
    tails = [PurePosixPath("/", *within.parts[cut:]) for cut in range(1, len(within.parts))]
    proven = next((path / below for path in (*outer, *tails) if is_same(point, host, path)), None)
    # What hides the mount point's own inode below the host's root need not hide that of the directory in it.
    proven = proven or next((path for path in named if is_same(real, host, path)), None)
    return proven or (named[0] if point == real else None)


def _without(path: PurePosixPath, below: PurePosixPath) -> PurePosixPath | None:
    """Return ``path`` less ``below``, its end; None where that is not its end."""
    cut = len(path.parts) - len(below.parts)
    return PurePosixPath(*path.parts[:cut]) if cut > 0 and path.parts[cut:] == below.parts else None


def is_same(local: PurePosixPath, host: Host, candidate: PurePosixPath) -> bool:
    """Tell whether ``local`` is what the host has at ``candidate``."""
    try:
        return os.path.samestat(Path(local).stat(), host.local_path(candidate).stat())
    except (OSError, InstallerError):
        return False


def mounted_below(directory: int, name: str) -> PurePosixPath | None:
    """Return what is mounted at or below a name in an open directory, from there on; None for nothing.

    Who removes that name would take the files of others with it that are only seen there.
    """
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    above = PurePosixPath(Path(f"/proc/self/fd/{directory}").readlink())
    points = (PurePosixPath(point) for point, _ in kernel.mounts())
    return next((point.relative_to(above) for point in points if point.is_relative_to(above / name)), None)


def refuse_mounts_below(directory: int, names: Iterable[str], path: PurePosixPath) -> None:
    """Raise where one of the ``names``, to be removed as ``path``, has something mounted on it or below."""
    for name in names:
        if point := mounted_below(directory, name):
            there = path.parent / point
            raise InstallerError(
                f"remove {path} (something is mounted at {there})",
                remedy=f"say umount {there} on the host, then run again",
                code="file-not-replaceable",
            )
