"""What stands in a directory of ours: kind, mode and owner of each name, and a mode put right."""

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.inode import Entry
from installer.host.files import Host
from installer.host.inodes import translated
from installer.host.kernel import trusted_uids

CAPABILITIES: Final = "security.capability"


def entries(host: Host, path: PurePosixPath) -> dict[PurePosixPath, Entry]:
    """Return what stands at ``path``, which is ``.``, and below it."""
    local = host.local_path(path)
    trusted = trusted_uids()
    return {PurePosixPath(file.relative_to(local)): _entry(file, trusted) for file in host.below(path)}


def entry_of(host: Host, path: PurePosixPath) -> Entry | None:
    """Return what stands at ``path``, no link followed in the last place; None where there is nothing."""
    try:
        return _entry(host.local_path(path, last=False), trusted_uids())
    except OSError:
        return None


def _entry(local: Path, trusted: frozenset[int]) -> Entry:
    status = local.lstat()
    return Entry(
        status.st_size,
        stat.S_IMODE(status.st_mode),
        str(local.readlink()) if stat.S_ISLNK(status.st_mode) else "",
        owned=status.st_uid in trusted,
        directory=stat.S_ISDIR(status.st_mode),
        capabilities=stat.S_ISREG(status.st_mode) and _has_capabilities(local),
    )


def _has_capabilities(local: Path) -> bool:
    try:
        return bool(os.getxattr(local, CAPABILITIES, follow_symlinks=False))
    except OSError:  # none, or a file system that has none
        return False


def restrict(host: Host, path: PurePosixPath, mode: int) -> None:
    """Make a file or directory this user's, with ``mode``; no link is followed."""
    with translated("restrict", path), host.place(path, last=False).opened() as (directory, name):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            if os.fstat(fd).st_uid not in trusted_uids():
                os.fchown(fd, os.geteuid(), -1)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
