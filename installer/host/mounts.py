"""Where the host keeps what this container finds somewhere else: told by mounts, proven by inodes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.host.files import Host

ROOT: Final = PurePosixPath("/")
DEB_LIKE: Final = frozenset({"debian", "ubuntu"})
RPM_LIKE: Final = frozenset({"rhel", "fedora", "centos", "suse", "opensuse", "sles", "amzn", "azurelinux"})
OS_RELEASES: Final = (PurePosixPath("/etc/os-release"), PurePosixPath("/usr/lib/os-release"))


def root_here(wanted: PurePosixPath) -> PurePosixPath:
    """Return where the host's root is: ``wanted`` if something is there, else ``/``."""
    try:
        return wanted if any(Path(wanted).iterdir()) else ROOT
    except OSError:
        return ROOT


def host_directory(
    here: PurePosixPath, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the host's path of ``here``, a directory that a mount has brought; None where none has.

    The kernel tells the path within the file system that is mounted, and ``guesses`` come first: the one that
    is the same inode below the host's ``root`` is right. Where none is, a mount at just this place is taken
    for what was guessed; a wider one (the container's own /run) has nothing to do with the host.
    """
    found = _mount_of(here)
    if found is None:
        return None
    point, within = found
    host = Host.under(root)
    below = here.relative_to(point)
    tails = [PurePosixPath("/", *within.parts[cut:]) / below for cut in range(1, len(within.parts))]
    candidates = [*guesses, here, *tails]
    proven = next((path for path in candidates if _same(here, host, path)), None)
    return proven or (candidates[0] if point == here else None)


def resolved(path: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """Return a path of the host whose root is ``root`` here without its symbolic links."""
    return Host.under(root).resolve(path)


def _mount_of(here: PurePosixPath) -> tuple[PurePosixPath, PurePosixPath] | None:
    """Return the mount point above ``here``, if not the container's root, and its path within its disk."""
    found = [mount for mount in _mounts() if mount[0] != ROOT and here.is_relative_to(mount[0])]
    return max(found, key=lambda mount: len(mount[0].parts), default=None)


def _mounts() -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
    """Yield each mount point and what is mounted there within its file system (proc(5), mountinfo)."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        root, point = line.split(" ", 5)[3:5]
        yield PurePosixPath(_unescaped(point)), PurePosixPath(_unescaped(root))


def _unescaped(word: str) -> str:
    return word.encode().decode("unicode_escape") if "\\" in word else word


def _same(here: PurePosixPath, host: Host, candidate: PurePosixPath) -> bool:
    try:
        return os.path.samestat(Path(here).stat(), host.here(candidate).stat())
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
