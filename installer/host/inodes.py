"""Resolve paths link by link, and write files completely and synced.

openat2(RESOLVE_IN_ROOT) would follow any user's links, and does not know directories that are mounted
somewhere else. A resolved path has no link any more and is opened without following links: a path that
changes after the check gives an error. ``files.Host`` knows which paths of this process are the host's.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from installer.errors import InstallerError
from installer.host.kernel import LABEL, list_mounts
from installer.model.files import Meta

MAX_LINKS: Final = 40  # as the kernel (path_resolution(7))
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
RENAME_EXCHANGE: Final = 2  # linux/fs.h, since Linux 3.15
STAGED: Final = ".toolkit-installer"
ACCESS: Final = "system.posix_acl_access"  # acl(5), as the kernel stores it
IN_OPEN: Final = 0x20
IN_ONESHOT: Final = 0x80000000
WATCHED: Final = re.compile(r"^inotify wd:([0-9a-f]+)", re.MULTILINE)

REMEDIES: Final = {
    errno.EACCES: "run as root",
    errno.EPERM: "run as root, and look for an immutable attribute with lsattr",
    errno.EROFS: "mount its file system writable, or use a path on another one",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "raise the quota or free some space there",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ENOTDIR: "make every part of the path above it a directory",
    errno.EBUSY: "it is a mount point: mount the directory above it instead",
    errno.EIO: "check the disk; the kernel log says more",
}


class Place(Struct, frozen=True):
    """A path below a directory named by the operator; no part of ``parts`` is a link."""

    base: Path
    parts: tuple[str, ...]

    @property
    def local_path(self) -> Path:
        """The path, for this process."""
        return self.base.joinpath(*self.parts)

    @contextmanager
    def opened(self) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the parent directory, and the name in it; no link is followed.

        Raises:
            OSError: a part of the path is gone, or has become a link (ENOTDIR).
        """
        fd = os.open(self.base, DIRECTORY)  # the operator's directory may be a link
        try:
            # The last descriptor is opened for reading: a directory opened with O_PATH cannot be synced.
            steps = [(part, STEP) for part in self.parts[:-1]]
            for part, flags in (*steps, (".", DIRECTORY)):
                next_fd = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = next_fd
            name = self.parts[-1] if self.parts else ""
            yield fd, name
        finally:
            os.close(fd)


LinkTarget: TypeAlias = Callable[[str], str | None]


def follow_links(path: PurePosixPath, link_target: LinkTarget, *, last: bool = True) -> PurePosixPath:
    """Return ``path`` without ``..`` and links.

    Args:
        path: an absolute path.
        link_target: returns the target of a link, None for any other path.
        last: follow a link in the last part, too.

    Raises:
        InstallerError: the links go round in a circle.
    """
    rest = list(reversed(path.parts[1:]))
    done = ""  # a text, because pathlib takes five times as long, and each part of each path is looked at
    followed = 0
    while rest:
        part = rest.pop()
        above = done
        if part == "..":
            done = above.rpartition("/")[0]
            continue
        done = f"{above}/{part}"
        target = link_target(done) if rest or last else None
        if target is not None:
            followed += 1
            if followed > MAX_LINKS:
                problem = f"follow {path} (its links go round in a circle)"
                raise InstallerError(problem, remedy="correct the links", code="path-unusable")
            rest.extend(reversed([part for part in target.split("/") if part not in {"", "."}]))
            done = "" if target.startswith("/") else above
    return PurePosixPath(done or "/")


def resolve_local(local: PurePosixPath, *hosts: PurePosixPath) -> PurePosixPath:
    """Return ``local`` with the kernel's name: without ``..`` and without links of this container.

    The kernel lists mount points by these names: if /var/run is a link to /run, a mount at /var/run/cdi is
    listed at /run/cdi. Links below ``hosts``, directories of the host, are the host's and are not followed.
    """

    def link_target(path: str) -> str | None:
        here = Path(path)
        with suppress(OSError):
            if not any(here.parent.is_relative_to(host) for host in hosts):
                return str(here.readlink())
        return None

    return follow_links(local, link_target)


# Ignore a missing file: it ends the block.
if_there: Final = suppress(FileNotFoundError, NotADirectoryError)


@contextmanager
def translated(verb: str, path: PurePosixPath) -> Iterator[None]:
    """Turn an ``OSError`` of the block into an ``InstallerError`` with a remedy for the owner of the host."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = REMEDIES.get(error.errno or 0, "correct the reason in brackets, then run again")
        problem = f"{verb} {path} ({reason})"
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed") from error


@contextmanager
def opened(where: str | Path, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> Iterator[int]:
    """Yield a descriptor for the block; started programs do not inherit it."""
    fd = os.open(where, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def move_name(one_fd: int, one: str, other_fd: int, other: str, *, exchange: bool = False) -> None:
    """Rename a name in an open directory to a name in an open directory; or ``exchange`` (renameat2(2))."""
    if not exchange:
        os.rename(one, other, src_dir_fd=one_fd, dst_dir_fd=other_fd)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(one_fd, os.fsencode(one), other_fd, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove_name(name: str, dir_fd: int) -> None:
    """Remove a file or a link; ignore a missing file."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)


def write_synced(name: str, content: bytes, meta: Meta, dir_fd: int) -> None:
    """Create a file in an open directory, synced to the disk; until then only root may open it."""
    with opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd) as fd:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        apply_metadata(fd, meta)
        os.fsync(fd)


def metadata_of(fd: int) -> Meta:
    """Return the owner, mode and extended attributes of an open file."""
    status = os.fstat(fd)
    xattrs: tuple[tuple[str, bytes], ...] = ()
    with suppress(OSError):  # not every file system has them
        xattrs = tuple((name, os.getxattr(fd, name)) for name in sorted(os.listxattr(fd)))
    return Meta(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, xattrs)


def apply_metadata(fd: int, meta: Meta) -> None:
    """Give an open file the owner, mode and extended attributes of ``meta``."""
    status = os.fstat(fd)
    uid = status.st_uid if meta.uid is None else meta.uid
    gid = status.st_gid if meta.gid is None else meta.gid
    if (status.st_uid, status.st_gid) != (uid, gid):
        os.fchown(fd, uid, gid)
    if ACCESS not in dict(meta.xattrs):
        # The mode would open the ACL that the file has inherited from its directory.
        with suppress(OSError):  # not every file system has ACLs
            if ACCESS in os.listxattr(fd):
                os.removexattr(fd, ACCESS)
    os.fchmod(fd, meta.mode)
    for name, value in meta.xattrs:
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            # The file system may refuse a label because it sets labels itself, or a policy may forbid us to
            # relabel (EACCES); the file keeps its label then.
            if error.errno not in {errno.EOPNOTSUPP, errno.EPERM, errno.EACCES} or name.startswith("system."):
                raise
            from installer.host.events import log

            file = Path(f"/proc/self/fd/{fd}").readlink()
            log.info("attribute not set", path=str(file), attribute=name, reason=error.strerror)


def label_of(local: Path) -> tuple[tuple[str, bytes], ...]:
    """Return the SELinux label of a file as a tuple of the extended attribute; empty without a label."""
    with suppress(OSError):
        return ((LABEL, os.getxattr(local, LABEL)),)
    return ()


def copy_label(local: Path, meta: Meta) -> Meta:
    """Return ``meta``; for a new file with the label of the file at its path, or of a neighbouring file."""
    if meta.uid is not None:
        return meta
    beside = []
    for path in local.parent.iterdir():
        if path.is_file() and not path.is_symlink():
            beside.append(path)
    if not beside:
        return meta

    like = local if local in beside else min(beside)
    # By default the kernel would give the label of the directory, which an engine may not be allowed to read.
    return replace(meta, xattrs=label_of(like))


def staged_name(local: Path) -> Path:
    """Return the path of the staged file for ``local``: always the same, for the next run to remove the file.

    The path is outside of every ``*.d``: CRI-O parses each file there (engine-facts.md#crio-drop-ins).
    """
    name = f".{local.name}{STAGED}"
    for directory in local.parents:
        if not directory.name.endswith(".d"):
            return directory / name
        if is_mount_point(directory) or directory.stat().st_dev != directory.parent.stat().st_dev:
            break
        name = f".{directory.name}{name}"
    return local.with_name(f".{local.name}{STAGED}")


def is_same(first: os.stat_result | None, second: os.stat_result | None) -> bool:
    """Tell whether two results of stat(2) are of one file; None is the result for a missing file."""
    return first is not None and second is not None and os.path.samestat(first, second)


def is_mount_point(local: Path) -> bool:
    """Tell whether ``local`` itself is a mount point; the kernel lists mount points without links."""
    kernel_name = str(local.parent.resolve() / local.name)
    return any(point == kernel_name for point, _ in list_mounts())


@contextmanager
def watch_opens(files: Iterable[Path]) -> Iterator[Callable[[], frozenset[Path]]]:
    """Watch files for the block; yield a function that returns the files opened so far."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    watches = {file: libc.inotify_add_watch(fd, os.fsencode(file), IN_OPEN | IN_ONESHOT) for file in files}

    def list_opened() -> frozenset[Path]:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text() if fd >= 0 else ""
        # A one-shot watch is gone after its event (proc(5)); -1 stands for an unwatchable file.
        remaining = {int(number, 16) for number in WATCHED.findall(text)}
        remaining.add(-1)
        return frozenset(file for file, number in watches.items() if number not in remaining)

    try:
        yield list_opened
    finally:
        if fd >= 0:
            os.close(fd)
