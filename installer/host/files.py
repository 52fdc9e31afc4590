"""Files, directories and links of the host, wherever this process finds them.

What goes into a config is the host's path; only ``Host`` knows where that path is mounted here. It resolves
symbolic links as the host would, never as the container would: ``/usr/local`` is one on OSTree systems, and
an absolute link in a mounted host root must not lead into our own image.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, Self, TypeVar

from installer.errors import InstallerError, Option, Remedy
from installer.host.inodes import (
    DIRECTORY,
    Place,
    copy_label,
    follow_links,
    if_there,
    is_mount_point,
    move_name,
    opened,
    remove_name,
    staged_name,
    translated,
    write_synced,
)
from installer.host.kernel import trusted_uids
from installer.model.files import ROOT, Entry, File, Kind, Meta, loads
from installer.watch import lacks_room

T = TypeVar("T")

MOST_BYTES: Final = 16 << 20  # of a file, which may be anybody's
KINDS: Final = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.LINK}
READ_ONLY, NOEXEC = "read-only", "noexec"


class Host:
    """What stands at the host's paths, seen through the mounts of this process: the longest prefix decides.

    A name is changed in the directory that was opened for it.
    """

    def __init__(self, mounts: dict[PurePosixPath, Path]) -> None:
        self._mounts = mounts

    @classmethod
    def under(cls, root: PurePosixPath, pairs: Sequence[tuple[PurePosixPath, PurePosixPath]] = ()) -> Self:
        """Return the host whose root is ``root`` here, and whose directories ``pairs`` (host, here) tell."""
        with translated("look at", root):
            there = Path(root).is_dir()
        if not there:
            problem = f"find the host's root {root} (there is no such directory)"
            remedy = Remedy("name the directory where the host's root is mounted with ", Option("host-root"))
            raise InstallerError(problem, remedy=remedy, code="path-unusable")
        mounts = {ROOT: Path(root)}
        host = cls(mounts)
        for directory, local in sorted(pairs, key=lambda pair: len(pair[0].parts)):
            mounts[host.resolve(directory)] = Path(local)  # a path is looked up without its links
        return host

    def place(self, path: PurePosixPath, *, last: bool = True) -> Place:
        """Return where ``path`` is; with ``last`` false a link in the last place is kept."""
        return self._map(self.resolve(path, last=last))

    def _map(self, path: PurePosixPath) -> Place:
        above = (ROOT,) if len(self._mounts) == 1 else (path, *path.parents)  # the host's root is one of them
        prefix = next(each for each in above if each in self._mounts)
        base, parts = self._mounts[prefix], path.parts[len(prefix.parts) :]
        return Place(base, parts) if parts or base == Path(ROOT) else Place(base.parent, (base.name,))

    def resolve(self, path: PurePosixPath, *, last: bool = True) -> PurePosixPath:
        """Return ``path`` without symbolic links, as the host's kernel would follow them.

        With ``last`` false a link in the last place is kept. What does not exist is kept as written.
        InstallerError where the links go round in a circle, a stranger could have placed one, or no file can
        have such a name.
        """
        with suppress(UnicodeEncodeError):
            if b"\0" not in os.fsencode(path):
                return follow_links(path, self._link_target, last=last)
        problem = f"look at {str(path)!a:.200} (no file can have such a name)"
        raise InstallerError(problem, remedy="correct what names it", code="path-unusable")

    def open_to_strangers(self, path: PurePosixPath) -> PurePosixPath | None:
        """Return the uppermost directory where others than root can change what leads there, if any."""
        ways = {self.resolve(each, last=last) for each in path.parents for last in (False, True)}
        ways.add(self.resolve(path, last=False))
        for step in sorted({step for way in ways for step in (way, *way.parents)} - {ROOT}):
            directory = self._status(step.parent)
            if directory is not None and not _placed_by_root(directory, self._status(step)):
                return step.parent
        return None

    def _status(self, path: PurePosixPath) -> os.stat_result | None:
        place = self._map(path)
        with suppress(OSError):  # of each part of each path: pathlib takes five times as long
            return os.lstat(os.path.join(place.base, *place.parts))  # noqa: PTH118
        return None

    def _link_target(self, path: PurePosixPath) -> PurePosixPath | None:
        """Return where a link leads to; None for what is none."""
        status = None if path in self._mounts else self._status(path)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return None
        local = self._map(path).local_path
        try:
            directory, target = os.lstat(local.parent), local.readlink()
        except OSError:
            return None
        if not _placed_by_root(directory, status):
            problem = f"follow the link {path} (a user other than root could have placed it)"
            remedy = f"let root alone write {path.parent}; remove the link only if root did not make it"
            raise InstallerError(problem, remedy=remedy, code="path-unusable")
        return PurePosixPath(target)

    def local_path(self, path: PurePosixPath, *, last: bool = True) -> Path:
        """Return where this process finds ``path``."""
        return self.place(path, last=last).local_path

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return what stands at ``path``."""
        with translated("look at", path), if_there:
            mode = self.local_path(path, last=last).lstat().st_mode
            return KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
        return Kind.ABSENT

    def read(self, path: PurePosixPath) -> File | None:
        """Return the regular file at ``path``, or None where there is nothing.

        InstallerError where something other than a file stands there, or it cannot be read, or is too large.
        """
        with translated("read", path), if_there:
            try:
                with (
                    self.place(path).opened() as (directory, name),
                    # Whatever it is: a FIFO is opened without waiting for a writer.
                    opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory) as fd,
                ):
                    return _read(fd, path)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a socket
                    raise
                raise _no_file(path, "not a regular file") from error
        return None

    def refuse_unreplaceable(self, path: PurePosixPath) -> None:
        """Raise where a file can be read but not replaced: it is hard-linked, or mounted as a single file."""
        local, status = self.local_path(path), self.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return
        if status.st_nlink > 1:
            raise InstallerError(
                f"replace {path} (it has {status.st_nlink} hard links, the others would keep the old text)",
                remedy="break the link: copy the file and move the copy over it",
                code="file-not-replaceable",
            )
        if is_mount_point(local):
            problem = f"replace {path} (it is mounted as a single file)"
            remedy = f"mount {path.parent} into the container instead"
            raise InstallerError(problem, remedy=remedy, code="file-not-replaceable")

    def replace(self, path: PurePosixPath, file: File) -> None:
        """Put ``file`` at ``path`` so that a reader sees the old or the new one, also after a power failure.

        A symbolic link stays and its target is replaced. With InstallerError it is whole as it was, or whole
        as wanted but not safe from a power failure.
        """
        with translated("write", path):
            at = self.place(path)
            with _staged(at) as (directory, name):
                write_synced(name, file.content, copy_label(at.local_path, file.meta), directory)

    def sweep(self, path: PurePosixPath) -> None:
        """Remove what a killed ``replace`` or ``link`` of ``path`` left beside it."""
        for last in (False, True):
            with suppress(OSError), _beside(self.place(path, last=last)).opened() as (directory, name):
                remove_name(name, directory)

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file or a link; nothing there is fine."""
        with translated("remove", path), if_there, self.place(path, last=False).opened() as (directory, name):
            os.stat(name, dir_fd=directory, follow_symlinks=False)  # a read-only disk has another error
            os.unlink(name, dir_fd=directory)
            os.fsync(directory)

    def make_directory(self, path: PurePosixPath, mode: int = 0o755) -> None:
        """Make one directory; one that is there already is fine."""
        with translated("make the directory", path), self.place(path).opened() as (directory, name):
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=directory)
                with opened(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as made:
                    os.fchmod(made, mode)  # the umask may have taken something away
                os.fsync(directory)
                return
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def remove_directory(self, path: PurePosixPath) -> bool:
        """Remove an empty directory, and a link that leads to it with it; tell whether it is gone."""
        with translated("remove", path):
            try:
                with self.place(path).opened() as (directory, name):
                    os.stat(name, dir_fd=directory, follow_symlinks=False)  # as in ``remove``
                    os.rmdir(name, dir_fd=directory)
                    os.fsync(directory)
            except FileNotFoundError:
                return True
            except OSError as error:
                # EBUSY is a mount point: the volume of a pod, not ours to remove.
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR}:
                    return False
                raise
        if self.link_target(path) is not None:
            self.remove(path)
        return True

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the sorted names in a directory; none where there is no directory."""
        with translated("list", path), if_there:
            return tuple(sorted(os.listdir(self.local_path(path))))  # noqa: PTH208 - names are wanted
        return ()

    def link_target(self, path: PurePosixPath) -> str | None:
        """Return what the symbolic link at ``path`` holds; None where there is none."""
        with suppress(OSError):
            return str(self.local_path(path, last=False).readlink())
        return None

    def link(self, path: PurePosixPath, target: str) -> None:
        """Let ``path`` be a symbolic link to ``target``, in one rename."""
        with translated("link", path), _staged(self.place(path, last=False)) as (directory, name):
            os.symlink(target, name, dir_fd=directory)

    def exists(self, path: PurePosixPath) -> bool:
        """Tell whether the name ``path`` is taken, by whatever it is."""
        return self.kind(path, last=False) is not Kind.ABSENT

    def rename(self, path: PurePosixPath, target: PurePosixPath, *, exchange: bool = False) -> None:
        """Give what stands at ``path`` the free name ``target``; or ``exchange`` two, whatever they are."""
        with (
            translated("exchange" if exchange else "rename", path),
            self.place(path, last=False).opened() as (source, name),
            self.place(target, last=False).opened() as (beside, other),
        ):
            move_name(source, name, beside, other, exchange=exchange)
            os.fsync(beside)
            os.fsync(source)

    def status(self, path: PurePosixPath, *, last: bool = True) -> os.stat_result | None:
        """Return what the kernel tells of what is at ``path``; None where there is nothing."""
        return self._status(self.resolve(path, last=last))

    def changed_s(self, path: PurePosixPath) -> float:
        """Return when a file or directory was changed, its name included; 0 where there is none."""
        status = self.status(path)
        return status.st_ctime if status else 0.0

    def size(self, path: PurePosixPath) -> int:
        """Return the size of a file in bytes, 0 where there is none; those of /proc have none either."""
        status = self.status(path)
        return status.st_size if status else 0

    def build_of(self, path: PurePosixPath) -> str:
        """Return what tells one build of a program from another without reading it; "" where it is gone."""
        status = self.status(path)
        return f"{status.st_size} {status.st_mtime_ns}" if status else ""

    def free_bytes(self, path: PurePosixPath) -> int:
        """Return the space left, in bytes, where ``path`` is or would be."""
        space = self._file_system(path)
        return space.f_bavail * space.f_frsize

    def mounted(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return how the file system of ``path``, which need not exist, is mounted: read-only, noexec."""
        flags = self._file_system(path).f_flag
        words = ((os.ST_RDONLY, READ_ONLY), (os.ST_NOEXEC, NOEXEC))
        return tuple(word for flag, word in words if flags & flag)

    def _file_system(self, path: PurePosixPath) -> os.statvfs_result:
        standing = next(each for each in (path, *path.parents) if self.kind(each) is not Kind.ABSENT)
        with translated("look at", standing):
            return os.statvfs(self.local_path(standing))


def _placed_by_root(directory: os.stat_result, name: os.stat_result | None) -> bool:
    """Tell whether root alone can have put a name into a directory (as protected_symlinks in proc(5)).

    ``name`` is None where root has yet to make it.
    """
    if directory.st_uid not in trusted_uids():
        return False
    # A group that may write it was given that by root (``staff`` in Debian's /usr/local).
    if not directory.st_mode & stat.S_IWOTH:
        return True
    sticky = bool(directory.st_mode & stat.S_ISVTX)
    return sticky and (name is None or name.st_uid in trusted_uids())


def _read(fd: int, path: PurePosixPath) -> File:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path, "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file")
    with os.fdopen(fd, "rb", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        problem = f"read {path} (it has more than {MOST_BYTES >> 20} MiB)"
        raise InstallerError(problem, remedy="make it smaller, or move it away", code="file-operation-failed")
    xattrs: tuple[tuple[str, bytes], ...] = ()
    with suppress(OSError):  # not every file system has them
        xattrs = tuple((name, os.getxattr(fd, name)) for name in sorted(os.listxattr(fd)))
    return File(content, Meta(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, xattrs))


def _no_file(path: PurePosixPath, found: str) -> InstallerError:
    remedy = "put a file in its place, or move it away"
    return InstallerError(f"read {path} (it is {found})", remedy=remedy, code="file-not-replaceable")


def _beside(place: Place) -> Place:
    """Return where the next content of ``place`` is written."""
    staged = staged_name(place.local_path)
    if staged.is_relative_to(place.base):
        return Place(place.base, staged.relative_to(place.base).parts)
    return Place(staged.parent, (staged.name,))


@contextmanager
def _staged(place: Place) -> Iterator[tuple[int, str]]:
    """Yield directory and name under which to make what takes its place; none stays if that fails."""
    with place.opened() as (directory, name), _beside(place).opened() as (beside, staged):
        remove_name(staged, beside)
        try:
            yield beside, staged
            os.rename(staged, name, src_dir_fd=beside, dst_dir_fd=directory)
        except Exception:
            with suppress(OSError):
                remove_name(staged, beside)
            raise
        os.fsync(directory)


CAPABILITIES: Final = "security.capability"


def entries(host: Host, path: PurePosixPath) -> dict[PurePosixPath, Entry]:
    """Return what stands at ``path``, which is ``.``, and below it; no link is followed there."""
    local, trusted = host.local_path(path), trusted_uids()
    walk = ((directory, (".", *below, *names)) for directory, below, names in os.walk(local))
    files = (Path(directory, name) for directory, names in walk for name in names)
    return {PurePosixPath(file.relative_to(local)): _entry(file, trusted) for file in files}


def entry_of(host: Host, path: PurePosixPath) -> Entry | None:
    """Return what stands at ``path``, no link followed in the last place; None where there is nothing."""
    with suppress(OSError):
        return _entry(host.local_path(path, last=False), trusted_uids())
    return None


def _entry(local: Path, trusted: frozenset[int]) -> Entry:
    status, capabilities = local.lstat(), b""
    with suppress(OSError):  # none, or a file system that has none
        capabilities = os.getxattr(local, CAPABILITIES, follow_symlinks=False)
    return Entry(
        status.st_size,
        stat.S_IMODE(status.st_mode),
        str(local.readlink()) if stat.S_ISLNK(status.st_mode) else "",
        owned=status.st_uid in trusted,
        directory=stat.S_ISDIR(status.st_mode),
        capabilities=stat.S_ISREG(status.st_mode) and bool(capabilities),
    )


def restrict(host: Host, path: PurePosixPath, mode: int) -> None:
    """Make a file or directory this user's, with ``mode``; no link is followed."""
    with (
        translated("restrict", path),
        host.place(path, last=False).opened() as (directory, name),
        opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory) as fd,
    ):
        if os.fstat(fd).st_uid not in trusted_uids():
            os.fchown(fd, os.geteuid(), -1)
        os.fchmod(fd, mode)


def text(host: Host, path: PurePosixPath) -> str:
    """Return the text of a file, whatever its bytes; "" where it cannot be read."""
    with suppress(InstallerError):
        return text_of(host.read(path))
    return ""


def text_of(file: File | None) -> str:
    """Return the text of a file that was read; "" where there is none."""
    return file.content.decode(errors="replace") if file else ""


def read_json_of_root(host: Host, path: PurePosixPath, kind: type[T]) -> T | None:
    """Return what a file of root's says in JSON; None where that cannot be had, or is of another kind."""
    with suppress(InstallerError, RecursionError, ValueError):
        file = host.read(path)
        return loads(file.content, kind) if file is not None and file.meta.uid in trusted_uids() else None
    return None


def is_file(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a file is seen at ``path``: not behind a link that a user other than root can place."""
    with suppress(InstallerError):
        return host.kind(path) is Kind.FILE
    return False


def is_absent(host: Host, path: PurePosixPath) -> bool:
    """Tell whether nothing is at ``path``; not where that is unknown, as ``is_file``."""
    with suppress(InstallerError):
        return not host.exists(path)
    return False


def is_read_only(host: Host, path: PurePosixPath) -> bool:
    """Tell whether nothing can be written at ``path``, for its file system is mounted so."""
    with suppress(InstallerError):
        return READ_ONLY in host.mounted(path)
    return False


def mount_point_of(host: Host, path: PurePosixPath, flaw: str) -> PurePosixPath:
    """Return where the file system of ``path`` is mounted that has this flaw; else ``path`` itself."""
    with suppress(InstallerError):  # above it may be nothing that is mounted here
        real = host.resolve(path)
        for each in (real, *real.parents):  # one that is bound to itself has the device of its parent
            if host.local_path(each).is_mount() or flaw not in host.mounted(each.parent):
                return each
    return path


def is_full(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a container has no room for its state at ``path``; False where there is nothing."""
    with suppress(OSError):
        return lacks_room(os.statvfs(host.local_path(path)))
    return False


def used_percent(host: Host, path: PurePosixPath) -> tuple[int, int] | None:
    """Return how many percent of space and inodes are used at ``path``, as df(1) does; -1 for no limit.

    None where it cannot be told, and of what is read-only: an image is always full.
    """

    def share(part: int, free: int) -> int:
        return -(-part * 100 // (part + free)) if part + free > 0 else -1

    with suppress(OSError):
        space = os.statvfs(host.local_path(path))
        if space.f_flag & os.ST_RDONLY:
            return None
        blocks, files = space.f_blocks - space.f_bfree, space.f_files - space.f_ffree
        return share(blocks, space.f_bavail), share(files, space.f_favail)
    return None
