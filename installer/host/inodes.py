"""What a path leads to, its links followed by hand, and what a file is: written whole, synced, distinguished.

Not with openat2(RESOLVE_IN_ROOT): that follows anybody's links, and knows nothing of directories that are
mounted somewhere else. What comes out has no link any more, and is opened without following one: what was
looked at is what is used, or an error. Which paths of this process are the host's says ``files.Host``.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from installer.errors import InstallerError
from installer.host.kernel import LABEL, list_mounts
from installer.model.files import ROOT, Meta

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
    """Something below a directory that the operator named; none of the ``parts`` of the way is a link."""

    base: Path
    parts: tuple[str, ...]

    @property
    def local_path(self) -> Path:
        """The path, for this process."""
        return self.base.joinpath(*self.parts)

    @contextmanager
    def opened(self) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the directory it is in, and its name there; no link on the way is followed.

        OSError where a part of the way is gone, or is a link now (ENOTDIR).
        """
        fd = os.open(self.base, DIRECTORY)  # what the operator named may be a link
        try:
            # A directory that is only a step cannot be synced.
            for part, flags in (*((part, STEP) for part in self.parts[:-1]), (".", DIRECTORY)):
                following = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = following
            yield fd, "".join(self.parts[-1:])
        finally:
            os.close(fd)


LinkTarget: TypeAlias = Callable[[PurePosixPath], PurePosixPath | None]


def follow_links(path: PurePosixPath, link_target: LinkTarget, *, last: bool = True) -> PurePosixPath:
    """Return ``path`` without ``..`` and links; ``link_target`` tells where one leads, None for what is none.

    With ``last`` false a link in the last place is kept. InstallerError where the links go round in a circle.
    """
    rest, done, followed = list(reversed(path.parts[1:])), ROOT, 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done.parent
            continue
        above, done = done, done / part
        target = link_target(done) if rest or last else None
        if target is not None:
            followed += 1
            if followed > MAX_LINKS:
                problem = f"follow {path} (its links go round in a circle)"
                raise InstallerError(problem, remedy="correct the links", code="path-unusable")
            rest.extend(reversed([part for part in target.parts if part != target.anchor]))
            done = ROOT if target.is_absolute() else above
    return done


def resolve_local(local: PurePosixPath, *hosts: PurePosixPath) -> PurePosixPath:
    """Return ``local`` as the kernel finds it: no ``..``, and no links of this container.

    Mount points are known by such names: where /var/run is a link to /run, what is mounted at /var/run/cdi is
    at /run/cdi. Links below ``hosts``, directories of the host, are the host's and are not followed.
    """

    def link_target(path: PurePosixPath) -> PurePosixPath | None:
        with suppress(OSError):
            if not any(path.parent.is_relative_to(host) for host in hosts):
                return PurePosixPath(Path(path).readlink())
        return None

    return follow_links(local, link_target)


# What is absent ends a block, and is no error.
if_there: Final = suppress(FileNotFoundError, NotADirectoryError)


@contextmanager
def translated(verb: str, path: PurePosixPath) -> Iterator[None]:
    """Turn an ``OSError`` of the block into an ``InstallerError``: what it means to the owner of the host."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = REMEDIES.get(error.errno or 0, "correct the reason in brackets, then run again")
        problem = f"{verb} {path} ({reason})"
        raise InstallerError(problem, remedy=remedy, code="file-operation-failed") from error


@contextmanager
def opened(where: str | Path, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> Iterator[int]:
    """Yield a descriptor for the block; it is closed for programs that are started."""
    fd = os.open(where, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def move_name(one_fd: int, one: str, other_fd: int, other: str, *, exchange: bool = False) -> None:
    """Give a name in one open directory another one there or in another; or ``exchange`` (renameat2(2))."""
    if not exchange:
        os.rename(one, other, src_dir_fd=one_fd, dst_dir_fd=other_fd)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(one_fd, os.fsencode(one), other_fd, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def remove_name(name: str, dir_fd: int) -> None:
    """Remove a file or a link; nothing there is fine."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)


def write_synced(name: str, content: bytes, meta: Meta, dir_fd: int) -> None:
    """Create a file in an open directory, on the disk when this returns; it is for root alone until then."""
    with opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd) as fd:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        apply_metadata(fd, meta)
        os.fsync(fd)


def apply_metadata(fd: int, meta: Meta) -> None:
    """Make an open file what ``meta`` says."""
    status = os.fstat(fd)
    owner = (status.st_uid if meta.uid is None else meta.uid, status.st_gid if meta.gid is None else meta.gid)
    if (status.st_uid, status.st_gid) != owner:
        os.fchown(fd, *owner)
    if ACCESS not in dict(meta.xattrs):
        # What the file has by the default of its directory would be opened by the mode.
        with suppress(OSError):  # not every file system has such
            if ACCESS in os.listxattr(fd):
                os.removexattr(fd, ACCESS)
    os.fchmod(fd, meta.mode)
    for name, value in meta.xattrs:
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            # A label that the file system sets by itself may be refused, or by a policy that does not let
            # us relabel (EACCES); one that stands already is fine.
            if error.errno not in {errno.EOPNOTSUPP, errno.EPERM, errno.EACCES} or name.startswith("system."):
                raise
            from installer.host.events import log

            file = Path(f"/proc/self/fd/{fd}").readlink()
            log.info("attribute not set", path=str(file), attribute=name, reason=error.strerror)


def label_of(local: Path) -> tuple[tuple[str, bytes], ...]:
    """Return the SELinux label of a file as an extended attribute; none where there is none."""
    with suppress(OSError):
        return ((LABEL, os.getxattr(local, LABEL)),)
    return ()


def copy_label(local: Path, meta: Meta) -> Meta:
    """Return ``meta``; for a new file with the label of the one in its place, or the first one beside it."""
    if meta.uid is not None:
        return meta
    beside = sorted(path for path in local.parent.iterdir() if path.is_file() and not path.is_symlink())
    like = local if local in beside else next(iter(beside), None)
    # The kernel would give it that of the directory, which need not be what an engine may read.
    return replace(meta, xattrs=label_of(like)) if like else meta


def staged_name(local: Path) -> Path:
    """Return the name for the next content of ``local``: a fixed one, so that the next run sweeps it.

    It stays out of every ``*.d``: CRI-O parses each file there (engine-facts.md#crio-drop-ins).
    """
    name = f".{local.name}{STAGED}"
    for directory in local.parents:
        if not directory.name.endswith(".d"):
            return directory / name
        if is_mount_point(directory) or directory.stat().st_dev != directory.parent.stat().st_dev:
            break
        name = f".{directory.name}{name}"
    return local.with_name(f".{local.name}{STAGED}")


def is_mount_point(local: Path) -> bool:
    """Tell whether something is mounted at just this place; the kernel names it without links."""
    named = str(local.parent.resolve() / local.name)
    return any(point == named for point, _ in list_mounts())


@contextmanager
def watch_opens(files: Iterable[Path]) -> Iterator[Callable[[], frozenset[Path]]]:
    """Watch files for the block; yield what returns which of them were opened so far."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    watches = {file: libc.inotify_add_watch(fd, os.fsencode(file), IN_OPEN | IN_ONESHOT) for file in files}

    def list_opened() -> frozenset[Path]:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text() if fd >= 0 else ""
        # A watch of one shot is gone when it has fired (proc(5)); -1 is of a file that cannot be watched.
        left = {-1, *(int(number, 16) for number in WATCHED.findall(text))}
        return frozenset(file for file, number in watches.items() if number not in left)

    try:
        yield list_opened
    finally:
        if fd >= 0:
            os.close(fd)
