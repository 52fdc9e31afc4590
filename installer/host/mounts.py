"""Where the host keeps what this container finds somewhere else: told by mounts, proven by inodes."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.errors import InstallerError
from installer.host import inodes, kernel
from installer.host.files import Host

ROOT: Final = PurePosixPath("/")
MAX_PARTS: Final = 4096  # of a path and of all links on its way: more is a circle
DEB_LIKE: Final = frozenset({"debian", "ubuntu"})
RPM_LIKE: Final = frozenset({"rhel", "fedora", "centos", "suse", "opensuse", "sles", "amzn", "azurelinux"})
OS_RELEASES: Final = (PurePosixPath("/etc/os-release"), PurePosixPath("/usr/lib/os-release"))


def local_root(wanted: PurePosixPath) -> PurePosixPath:
    """Return where the host's root is: ``wanted`` if something is there, else ``/``."""
    try:
        return wanted if any(Path(wanted).iterdir()) else ROOT
    except OSError:
        return ROOT


def followed(local: PurePosixPath, *hosts: PurePosixPath) -> PurePosixPath:
    """Return ``local`` as the kernel finds it: no ``..``, and no links of this container.

    Mount points are known by such names: where /var/run is a link to /run, what is mounted at /var/run/cdi is
    at /run/cdi. Links below ``hosts``, directories of the host, are the host's and are not followed.
    """
    rest, done = list(reversed(local.parts[1:])), ROOT
    for _ in range(MAX_PARTS):
        if not rest:
            break
        part = rest.pop()
        target = None
        if part == "..":
            done = done.parent
            continue
        if not any(done.is_relative_to(host) for host in hosts):
            target = _link_target(done / part)
        if target is None:
            done /= part
        else:
            done = ROOT if target.is_absolute() else done
            rest += [part for part in reversed(target.parts) if part != "/"]
    return done


def _link_target(path: PurePosixPath) -> PurePosixPath | None:
    try:
        return PurePosixPath(Path(path).readlink())
    except OSError:
        return None


def host_path(
    local: PurePosixPath, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the host's path of ``local``, which a mount has brought; None where none has.

    The kernel tells what is mounted where, and the path within its file system; ``guesses`` are what
    ``local`` may be on the host. The candidate whose mount point is the same inode below the host's ``root``
    is right. Where none is, a mount at just this place is taken for the first guess, or for the host's path
    of that name; a wider one (the container's own /run) has nothing to do with the host.
    """
    real = followed(local, root)
    found = _mount_of(real)
    if found is None:
        return None
    point, within = found
    host = Host.under(root)
    below = real.relative_to(point)
    named = [path for path in (*guesses, local, real) if ".." not in path.parts]
    outer = [path for guess in named if (path := _without(guess, below)) is not None]
    tails = [PurePosixPath("/", *within.parts[cut:]) for cut in range(1, len(within.parts))]
    proven = next((path / below for path in (*outer, *tails) if _same(point, host, path)), None)
    # What hides the mount point's own inode below the host's root need not hide that of the directory in it.
    proven = proven or next((path for path in named if _same(real, host, path)), None)
    return proven or (named[0] if point == real else None)


def brought_by_root(local: PurePosixPath, there: PurePosixPath, root: PurePosixPath) -> bool:
    """Tell whether ``local`` is what the host has at ``there``, reached through its ``root`` too."""
    return _same(local, Host.under(root), there)


def _without(path: PurePosixPath, below: PurePosixPath) -> PurePosixPath | None:
    """Return ``path`` less ``below``, its end; None where that is not its end."""
    cut = len(path.parts) - len(below.parts)
    return PurePosixPath(*path.parts[:cut]) if cut > 0 and path.parts[cut:] == below.parts else None


def is_mount_point(local: PurePosixPath) -> bool:
    """Tell whether something is mounted at just this place."""
    return inodes.is_mount_point(Path(followed(local)))


def mounted_below(directory: int, name: str) -> PurePosixPath | None:
    """Return what is mounted at or below a name in an open directory, from there on; None for nothing.

    Who removes that name would take the files of others with it that are only seen there.
    """
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    above = str(Path(f"/proc/self/fd/{directory}").readlink()).rstrip("/")
    ours = f"{above}/{name}"
    points = (point for point, _ in kernel.mounts() if point == ours or point.startswith(f"{ours}/"))
    return next((PurePosixPath(point[len(above) + 1 :]) for point in points), None)


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


def resolved(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """Return a path of the host whose root is ``root`` here without its symbolic links."""
    return Host.under(root).resolve(path)


def _mount_of(local: PurePosixPath) -> tuple[PurePosixPath, PurePosixPath] | None:
    """Return the mount point above ``local``, if not the container's root, and its path within its disk."""
    mounts = [(PurePosixPath(point), PurePosixPath(within)) for point, within in kernel.mounts()]
    above = [mount for mount in mounts if mount[0] != ROOT and local.is_relative_to(mount[0])]
    return max(above, key=lambda mount: len(mount[0].parts), default=None)


def _same(local: PurePosixPath, host: Host, candidate: PurePosixPath) -> bool:
    try:
        return os.path.samestat(Path(local).stat(), host.local_path(candidate).stat())
    except (OSError, InstallerError):
        return False


def package_kind(root: PurePosixPath) -> str:
    """Return the packages that suit the host: deb or rpm, by its os-release, else by which tool it has."""
    host = Host.under(root)
    words = {word for path in OS_RELEASES for word in _families(host, path)}
    if words & DEB_LIKE:
        return "deb"
    rpm, dpkg = (host.exists(PurePosixPath("/usr/bin", name)) for name in ("rpm", "dpkg"))
    return "rpm" if words & RPM_LIKE or (rpm and not dpkg) else "deb"


def _families(host: Host, path: PurePosixPath) -> Iterator[str]:
    with suppress(InstallerError):
        file = host.read(path)
        for line in file.content.decode(errors="replace").splitlines() if file else ():
            key, _, value = line.partition("=")
            if key in {"ID", "ID_LIKE"}:
                yield from value.strip("\"'").split()
