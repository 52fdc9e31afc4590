"""Files, directories and links of the host, wherever this process finds them.

Configs get the paths of the host; only ``Host`` knows where these paths are mounted here. ``Host`` resolves
symbolic links as the host would, never as the container would: ``/usr/local`` is a link on OSTree systems,
and an absolute link in a mounted host root must not lead into our own image.
"""

import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path, PurePosixPath
from select import select
from typing import Final, Self, TypeVar

from installer.errors import InstallerError, Option, Remedy
from installer.host.inodes import (
    DIRECTORY,
    Place,
    copy_label,
    follow_links,
    if_there,
    metadata_of,
    move_name,
    opened,
    remove_name,
    staged_name,
    translated,
    write_synced,
)
from installer.host.kernel import trusted_uids
from installer.model.files import ROOT, Entry, File, Kind, loads
from installer.watch import lacks_room

T = TypeVar("T")

MOST_BYTES: Final = 16 << 20  # of a file; any user may have written it
PIPE_BYTES: Final = 64 << 10
KINDS: Final = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFIFO: Kind.FIFO,
}
# Attributes of files: see ioctl_iflags(2) and linux/fs.h.
FS_IOC_GETFLAGS: Final = 0x80086601
FS_IMMUTABLE_FL: Final = 0x10
FS_APPEND_FL: Final = 0x20
READ_ONLY: Final = "read-only"
NOEXEC: Final = "noexec"


class Host:
    """The host's files, seen through the mounts of this process; the mount with the longest prefix counts.

    Every change of a name goes through a descriptor of its directory.
    """

    def __init__(self, mounts: Mapping[PurePosixPath, Path]) -> None:
        self._mounts = mounts
        # The same as texts, the longest path of the host first, and "" for the root of this container.
        below = sorted(mounts.keys() - {ROOT}, key=_count_parts, reverse=True)
        self._local_names = {str(path): str(mounts[path]).rstrip("/") for path in below}
        self._local_root = str(mounts[ROOT]).rstrip("/")

    @classmethod
    def under(cls, root: PurePosixPath, pairs: Sequence[tuple[PurePosixPath, PurePosixPath]] = ()) -> Self:
        """Return the host whose root is mounted at ``root``.

        Args:
            root: the path of the host's root for this process.
            pairs: further directories, each by the host's path and by the path for this process.
        """
        with translated("look at", root):
            is_directory = Path(root).is_dir()
            exists = Path(root).exists()
        if not is_directory:
            reason = "it is not a directory" if exists else "there is no such directory"
            problem = f"find the host's root {root} ({reason})"
            remedy = Remedy("name the directory where the host's root is mounted with ", Option("host-root"))
            raise InstallerError(problem, remedy=remedy, code="path-unusable")
        mounts = {ROOT: Path(root)}
        for directory, local in sorted(pairs, key=_depth):
            mounts[cls(mounts).resolve(directory)] = Path(local)  # ``_map`` looks up paths without links
        return cls(mounts)

    def place(self, path: PurePosixPath, *, last: bool = True) -> Place:
        """Return the place of ``path``; with ``last`` false a link in the last part is not followed."""
        return self._map(self.resolve(path, last=last))

    def _map(self, path: PurePosixPath) -> Place:
        local, rest = self._find_mount(str(path))
        base = Path(local or "/")
        parts = tuple(rest.split("/")[1:])
        if parts or base == Path(ROOT):
            return Place(base, parts)
        return Place(base.parent, (base.name,))

    def resolve(self, path: PurePosixPath, *, last: bool = True) -> PurePosixPath:
        """Return ``path`` without symbolic links, as the host's kernel would follow them.

        With ``last`` false a link in the last part is not followed. Missing parts stay as written.

        Raises:
            InstallerError: the links go round in a circle, a user other than root could have placed a link,
                or no file can have such a name.
        """
        with suppress(UnicodeEncodeError):
            if b"\0" not in os.fsencode(path):
                return follow_links(path, self._link_target, last=last)
        problem = f"look at {str(path)!a:.200} (no file can have such a name)"
        raise InstallerError(problem, remedy="correct what names it", code="path-unusable")

    def open_to_strangers(self, path: PurePosixPath) -> PurePosixPath | None:
        """Return the uppermost directory above ``path`` in which others than root can change names."""
        targets: set[PurePosixPath] = set()
        for parent in path.parents:
            targets.add(self.resolve(parent, last=False))
            targets.add(self.resolve(parent, last=True))
        targets.add(self.resolve(path, last=False))
        steps: set[PurePosixPath] = set()
        for target in targets:
            steps.update((target, *target.parents))
        for step in sorted(steps - {ROOT}):
            directory = self._status(step.parent)
            if directory is not None and not _placed_by_root(directory, self._status(step)):
                return step.parent
        return None

    def _find_mount(self, path: str) -> tuple[str, str]:
        """Return where this process finds the mount with the host's ``path``, and the rest of the path.

        The path has no links. Both are texts without a "/" at the end, so "" for the root.
        """
        below = "" if path == "/" else path
        for prefix, local in self._local_names.items():
            if below == prefix or below.startswith(f"{prefix}/"):
                return local, below[len(prefix) :]
        return self._local_root, below

    def _local_name(self, path: str) -> str:
        """Return the path for this process of the host's ``path``, which has no links."""
        return "".join(self._find_mount(path)) or "/"

    def _status(self, path: PurePosixPath) -> os.stat_result | None:
        with suppress(OSError):
            return self._look_up(path)
        return None

    def _look_up(self, path: PurePosixPath) -> os.stat_result:
        """Return the status of the host's ``path``, which has no links; the name of a mount may be a link."""
        local, rest = self._find_mount(str(path))
        if rest:
            return os.lstat(f"{local}{rest}")
        return Path(local or "/").stat()

    def _link_target(self, path: str) -> str | None:
        """Return the target of a link; None if ``path`` is no link."""
        if path in self._local_names:
            return None
        local = self._local_name(path)
        try:
            status = os.lstat(local)
            if not stat.S_ISLNK(status.st_mode):
                return None
            directory = Path(local).parent.lstat()
            target = str(Path(local).readlink())
        except OSError:
            return None
        if not _placed_by_root(directory, status):
            problem = f"follow the link {path} (a user other than root could have placed it)"
            parent = PurePosixPath(path).parent
            remedy = f"let root alone write {parent}; remove the link only if root did not make it"
            raise InstallerError(problem, remedy=remedy, code="path-unusable")
        return target

    def local_path(self, path: PurePosixPath, *, last: bool = True) -> Path:
        """Return the path of the host's ``path`` for this process."""
        return Path(self._local_name(str(self.resolve(path, last=last))))

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return the kind of the file at ``path``."""
        with translated("look at", path), if_there:
            mode = self._look_up(self.resolve(path, last=last)).st_mode
            return KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
        return Kind.ABSENT

    def read(self, path: PurePosixPath) -> File | None:
        """Return the regular file at ``path``; None if ``path`` is missing.

        Raises:
            InstallerError: ``path`` is no regular file, cannot be read, or is too large.
        """
        with translated("read", path), if_there:
            try:
                with (
                    self.place(path).opened() as (directory, name),
                    # A FIFO is opened without waiting for a writer.
                    opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory) as fd,
                ):
                    return _read(fd, path)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a socket
                    raise
                raise _no_file(path, "not a regular file") from error
        return None

    def refuse_hard_linked(self, path: PurePosixPath) -> None:
        """Raise InstallerError for a file with several names: the others would keep the old text."""
        status = self.status(path)
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise InstallerError(
                f"replace {path} (it has {status.st_nlink} hard links, the others would keep the old text)",
                remedy="break the link: copy the file and move the copy over it",
                code="file-not-replaceable",
            )

    def replace(self, path: PurePosixPath, file: File) -> None:
        """Replace ``path`` by ``file``: a reader sees the old or the new file, also after a power failure.

        A symbolic link stays and its target is replaced.

        Raises:
            InstallerError: the file is complete in its old form, or complete in its new form but not safe
                from a power failure.
        """
        with translated("write", path):
            place = self.place(path)
            with _staged(place) as (directory, name):
                write_synced(name, file.content, copy_label(place.local_path, file.meta), directory)

    def sweep(self, path: PurePosixPath) -> None:
        """Remove the staged file beside ``path``, left by a killed ``replace`` or ``link``."""
        for last in (False, True):
            with suppress(OSError), _beside(self.place(path, last=last)).opened() as (directory, name):
                remove_name(name, directory)

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file or a link; ignore a missing file."""
        with translated("remove", path), if_there, self.place(path, last=False).opened() as (directory, name):
            os.stat(
                name, dir_fd=directory, follow_symlinks=False
            )  # on a read-only disk unlink(2) would not tell that the name is missing
            os.unlink(name, dir_fd=directory)
            os.fsync(directory)

    def make_directory(self, path: PurePosixPath, mode: int = 0o755) -> None:
        """Make a single directory; ignore an existing directory."""
        with translated("make the directory", path), self.place(path).opened() as (directory, name):
            with suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=directory)
                with opened(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as made:
                    os.fchmod(made, mode)  # the umask may have removed bits of the mode
                os.fsync(directory)
                return
            if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def remove_directory(self, path: PurePosixPath) -> bool:
        """Remove an empty directory together with a link to the directory; tell whether both are gone."""
        with translated("remove", path):
            try:
                with self.place(path).opened() as (directory, name):
                    os.stat(name, dir_fd=directory, follow_symlinks=False)  # as in ``remove``
                    os.rmdir(name, dir_fd=directory)
                    os.fsync(directory)
            except FileNotFoundError:
                return True
            except OSError as error:
                # EBUSY means a mount point: the volume of a pod, for example.
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR}:
                    return False
                raise
        if self.link_target(path) is not None:
            self.remove(path)
        return True

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the sorted names in a directory; an empty tuple if the directory is missing."""
        with translated("list", path), if_there:
            return tuple(sorted(os.listdir(self.local_path(path))))  # noqa: PTH208 - names are wanted
        return ()

    def kinds(self, path: PurePosixPath) -> dict[str, Kind]:
        """Return the sorted names in a directory with their kinds; empty for a missing directory.

        No link is followed. The kernel tells most kinds with the names, so that no file is looked at.
        """
        kinds: dict[str, Kind] = {}
        with translated("list", path), if_there:
            real = self.resolve(path)
            with os.scandir(self._local_name(str(real))) as listed:
                for entry in listed:
                    kinds[entry.name] = _kind_of(entry)
            for mounted in self._mounts:  # this process finds these names somewhere else
                if mounted.parent == real and mounted.name in kinds:
                    kinds[mounted.name] = self.kind(mounted)
        return dict(sorted(kinds.items()))

    def link_target(self, path: PurePosixPath) -> str | None:
        """Return the target of the symbolic link at ``path`` as written; None if ``path`` is no link."""
        with suppress(OSError):
            return str(self.local_path(path, last=False).readlink())
        return None

    def link(self, path: PurePosixPath, target: str) -> None:
        """Make ``path`` a symbolic link to ``target``, in a single rename."""
        with translated("link", path), _staged(self.place(path, last=False)) as (directory, name):
            os.symlink(target, name, dir_fd=directory)

    def exists(self, path: PurePosixPath) -> bool:
        """Tell whether the name ``path`` is taken, be it by a file, a link or a directory."""
        return self.kind(path, last=False) is not Kind.ABSENT

    def rename(self, path: PurePosixPath, target: PurePosixPath, *, exchange: bool = False) -> None:
        """Rename ``path`` to the free name ``target``; or ``exchange`` both files or directories."""
        with (
            translated("exchange" if exchange else "rename", path),
            self.place(path, last=False).opened() as (source, name),
            self.place(target, last=False).opened() as (beside, other),
        ):
            move_name(source, name, beside, other, exchange=exchange)
            os.fsync(beside)
            os.fsync(source)

    def status(self, path: PurePosixPath, *, last: bool = True) -> os.stat_result | None:
        """Return the result of stat(2) for ``path``; None for a missing path."""
        return self._status(self.resolve(path, last=last))

    def list_steps(self, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, float]]:
        """Yield each directory, link and file on the way to ``path``, with the time of its own last change.

        The time is 0 for a directory in which an entry came or went last, and was not moved itself since.
        """
        names: list[str] = []

        def link_target(name: str) -> str | None:
            names.append(name)
            return self._link_target(name)

        follow_links(path, link_target)
        for name in names:
            status = self._status(PurePosixPath(name))
            if status is None:
                continue
            by_entry = stat.S_ISDIR(status.st_mode) and status.st_ctime <= status.st_mtime
            yield PurePosixPath(name), 0.0 if by_entry else status.st_ctime

    def changed_s(self, path: PurePosixPath) -> float:
        """Return the time of a file's or directory's last change, renames included; 0 for a missing file."""
        status = self.status(path)
        return status.st_ctime if status else 0.0

    def size(self, path: PurePosixPath) -> int:
        """Return the size of a file in bytes, 0 for a missing file; the files of /proc have size 0, too."""
        status = self.status(path)
        return status.st_size if status else 0

    def build_of(self, path: PurePosixPath) -> str:
        """Return a text that differs between builds of a program, from its status; "" if missing."""
        status = self.status(path)
        return f"{status.st_size} {status.st_mtime_ns}" if status else ""

    def free_bytes(self, path: PurePosixPath) -> int:
        """Return the free space, in bytes, of the file system of ``path``, which need not exist."""
        space = self._file_system(path)
        return space.f_bavail * space.f_frsize

    def mounted(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return how the file system of ``path``, which need not exist, is mounted: read-only, noexec."""
        flags = self._file_system(path).f_flag
        words = ((os.ST_RDONLY, READ_ONLY), (os.ST_NOEXEC, NOEXEC))
        return tuple(word for flag, word in words if flags & flag)

    def directory_above(self, path: PurePosixPath) -> PurePosixPath:
        """Return the lowest existing directory above ``path``, which need not exist."""
        return next(each for each in path.parents if self.kind(each) is not Kind.ABSENT)

    def _file_system(self, path: PurePosixPath) -> os.statvfs_result:
        existing = next(each for each in (path, *path.parents) if self.kind(each) is not Kind.ABSENT)
        with translated("look at", existing):
            return os.statvfs(self.local_path(existing))


def _depth(pair: tuple[PurePosixPath, PurePosixPath]) -> int:
    """Return the number of parts of the host's path of a mount."""
    return _count_parts(pair[0])


def _count_parts(path: PurePosixPath) -> int:
    return len(path.parts)


def _kind_of(entry: "os.DirEntry[str]") -> Kind:
    """Return the kind of a name in a directory, no link followed."""
    if entry.is_symlink():
        return Kind.LINK
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIRECTORY
    if entry.is_file(follow_symlinks=False):
        return Kind.FILE
    return Kind.OTHER


def _placed_by_root(directory: os.stat_result, name: os.stat_result | None) -> bool:
    """Tell whether only root can have put a name into a directory (as protected_symlinks in proc(5)).

    ``name`` is None for a missing name.
    """
    if directory.st_uid not in trusted_uids():
        return False
    # If a group may write the directory, root allowed that (``staff`` in Debian's /usr/local).
    if not directory.st_mode & stat.S_IWOTH:
        return True
    sticky = bool(directory.st_mode & stat.S_ISVTX)
    return sticky and (name is None or name.st_uid in trusted_uids())


def _read(fd: int, path: PurePosixPath) -> File:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise _no_file(path, kind)
    with os.fdopen(fd, "rb", closefd=False) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        problem = f"read {path} (it has more than {MOST_BYTES >> 20} MiB)"
        raise InstallerError(problem, remedy="make it smaller, or move it away", code="file-operation-failed")
    return File(content, metadata_of(fd))


def _no_file(path: PurePosixPath, found: str) -> InstallerError:
    remedy = "remove it, or put a regular file in its place"
    return InstallerError(f"read {path} (it is {found})", remedy=remedy, code="file-not-replaceable")


def _beside(place: Place) -> Place:
    """Return the place of the staged file for ``place``."""
    staged = staged_name(place.local_path)
    if staged.is_relative_to(place.base):
        return Place(place.base, staged.relative_to(place.base).parts)
    return Place(staged.parent, (staged.name,))


@contextmanager
def _staged(place: Place) -> Iterator[tuple[int, str]]:
    """Yield directory and name for a staged file; then rename it to ``place``, or remove it on error."""
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
    """List the entries at and below ``path``, by their paths relative to ``path``; no link is followed."""
    local = host.local_path(path)
    trusted = trusted_uids()
    found: dict[PurePosixPath, Entry] = {}
    for directory, below, names in os.walk(local):
        for name in (".", *below, *names):
            file = Path(directory, name)
            found[PurePosixPath(file.relative_to(local))] = _entry(file, trusted)
    return found


def entry_of(host: Host, path: PurePosixPath) -> Entry | None:
    """Return the entry at ``path``, a link in the last part not followed; None for a missing path."""
    with suppress(OSError):
        return _entry(host.local_path(path, last=False), trusted_uids())
    return None


def _entry(local: Path, trusted: frozenset[int]) -> Entry:
    status = local.lstat()
    capabilities = b""
    with suppress(OSError):  # the file, or its file system, has no capabilities
        capabilities = os.getxattr(local, CAPABILITIES, follow_symlinks=False)
    target = str(local.readlink()) if stat.S_ISLNK(status.st_mode) else ""
    return Entry(
        status.st_size,
        stat.S_IMODE(status.st_mode),
        target,
        owned=status.st_uid in trusted,
        directory=stat.S_ISDIR(status.st_mode),
        capabilities=stat.S_ISREG(status.st_mode) and bool(capabilities),
    )


def restrict(host: Host, path: PurePosixPath, mode: int) -> None:
    """Give a file or directory to this user, with ``mode``; no link is followed."""
    with (
        translated("restrict", path),
        host.place(path, last=False).opened() as (directory, name),
        opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory) as fd,
    ):
        if os.fstat(fd).st_uid not in trusted_uids():
            os.fchown(fd, os.geteuid(), -1)
        os.fchmod(fd, mode)


def text(host: Host, path: PurePosixPath) -> str:
    """Return the text of a file, invalid bytes replaced; "" for an unreadable file."""
    with suppress(InstallerError):
        return text_of(host.read(path))
    return ""


def text_of(file: File | None) -> str:
    """Return the text of a file; "" for None."""
    return file.content.decode(errors="replace") if file else ""


def read_json_of_root(host: Host, path: PurePosixPath, kind: type[T]) -> T | None:
    """Return the JSON content of root's file at ``path``; None if missing, not root's or no ``kind``."""
    with suppress(InstallerError, RecursionError, ValueError):
        file = host.read(path)
        if file is not None and file.meta.uid in trusted_uids():
            return loads(file.content, kind)
    return None


def is_file(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a regular file is at ``path``; False behind a link that others than root can place."""
    with suppress(InstallerError):
        return host.kind(path) is Kind.FILE
    return False


def is_absent(host: Host, path: PurePosixPath) -> bool:
    """Tell whether ``path`` is missing; False if unknown, as behind a link of another user."""
    with suppress(InstallerError):
        return not host.exists(path)
    return False


def find_absent(host: Host, paths: Iterable[PurePosixPath], *, timeout_s: float) -> Iterator[PurePosixPath]:
    """Find the missing files of ``paths``, as far as their file systems answer in time.

    A child looks, and is killed: a user's file system (FUSE), or an NFS server, need not answer.
    """
    paths = tuple(paths)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for number, path in enumerate(paths):
                if is_absent(host, path):
                    os.write(writer, b"%d\n" % number)
        finally:
            os._exit(0)
    os.close(writer)
    content = b""
    deadline = time.monotonic() + timeout_s
    with os.fdopen(reader, "rb", 0) as answers:
        while (left_s := deadline - time.monotonic()) > 0 and select([answers], [], [], left_s)[0]:
            part = answers.read(PIPE_BYTES)
            if not part:
                break
            content += part
    os.kill(pid, signal.SIGKILL)
    # A child that the kernel cannot end yet, for it waits for a disk, is left behind.
    os.waitpid(pid, os.WNOHANG)
    for line in content.splitlines():
        yield paths[int(line)]


def is_read_only(host: Host, path: PurePosixPath) -> bool:
    """Tell whether the file system of ``path`` is mounted read-only."""
    with suppress(InstallerError):
        return READ_ONLY in host.mounted(path)
    return False


def is_immutable(host: Host, path: PurePosixPath) -> bool:
    """Tell whether an attribute keeps root from replacing a file or changing a directory: chattr +i or +a."""
    flags = bytearray(8)  # the kernel writes an int, though its header says long
    with (
        suppress(OSError),  # a file system without attributes
        opened(host.local_path(host.resolve(path)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as fd,
    ):
        ioctl(fd, FS_IOC_GETFLAGS, flags)
        return bool(int.from_bytes(flags[:4], sys.byteorder) & (FS_IMMUTABLE_FL | FS_APPEND_FL))
    return False


def mount_point_of(host: Host, path: PurePosixPath, flaw: str) -> PurePosixPath:
    """Return the mount point of the file system of ``path`` with a ``flaw``; ``path`` itself if unknown."""
    with suppress(InstallerError):  # the directories above may not be mounted here
        real = host.resolve(path)
        for each in (real, *real.parents):  # a directory that is bound to itself has the device of its parent
            if host.local_path(each).is_mount() or flaw not in host.mounted(each.parent):
                return each
    return path


def is_full(host: Host, path: PurePosixPath) -> bool:
    """Tell whether a container has no room for its state at ``path``; False for a missing ``path``."""
    with suppress(OSError):
        return lacks_room(os.statvfs(host.local_path(path)))
    return False


def used_percent(host: Host, path: PurePosixPath) -> tuple[int, int] | None:
    """Return how many percent of space and inodes are used at ``path``, as df(1) does; -1 for no limit.

    None if unknown, and for a read-only file system: an image is always full.
    """
    with suppress(OSError):
        space = os.statvfs(host.local_path(path))
        if space.f_flag & os.ST_RDONLY:
            return None
        blocks = space.f_blocks - space.f_bfree
        files = space.f_files - space.f_ffree
        return _percent(blocks, space.f_bavail), _percent(files, space.f_favail)
    return None


def _percent(used: int, free: int) -> int:
    """Return how many percent are used, rounded up; -1 without a limit."""
    if used + free <= 0:
        return -1
    return -(-used * 100 // (used + free))
