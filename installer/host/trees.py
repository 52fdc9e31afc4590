"""Whole directories: install a payload completely or not at all, and remove it."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.inodes import (
    DIRECTORY,
    STAGED,
    apply_metadata,
    if_there,
    label_of,
    metadata_of,
    move_name,
    opened,
    translated,
    write_synced,
)
from installer.host.kernel import list_mounts, trusted_uids
from installer.model.files import NOTES, OTHERS_WRITE, Carried, Copy, Meta, PayloadFile, Symlink, Text

Label = tuple[tuple[str, bytes], ...]

PRIVATE: Final = 0o700
WIDE: Final = 0o755


def install_tree(
    host: Host, path: PurePosixPath, files: Sequence[PayloadFile], like: PurePosixPath | None = None
) -> None:
    """Make ``path`` a directory of ``files``, in a single rename, synced to the disk.

    Args:
        host: the host.
        path: the directory.
        files: the content of the directory.
        like: a program with the SELinux label for executable files: an engine has to run them, too.

    Raises:
        InstallerError: the directory cannot be installed; ``path`` is as before.
    """
    with translated("install", path), host.place(path).opened() as (directory, name):
        staged = f"{name}{STAGED}"
        _refuse_mounts_below(directory, (name, staged), path)
        _remove(staged, directory)
        try:
            os.mkdir(staged, WIDE, dir_fd=directory)
            label = label_of(host.local_path(like)) if like else ()
            _fill(staged, directory, files, label)
            _switch(directory, staged, name, exchange=_kind(name, directory) == stat.S_IFDIR)
        finally:
            _remove(staged, directory)


def _mounted_below(directory: int, name: str) -> PurePosixPath | None:
    """Return the first mount point at or below a name in an open directory, relative to the directory."""
    if not _kind(name, directory):
        return None
    parent = PurePosixPath(Path(f"/proc/self/fd/{directory}").readlink())
    for mount_point, _ in list_mounts():
        point = PurePosixPath(mount_point)
        if point.is_relative_to(parent / name):
            return point.relative_to(parent)
    return None


def _refuse_mounts_below(directory: int, names: Iterable[str], path: PurePosixPath) -> None:
    """Raise InstallerError for a mount at or below any of ``names``, the parts of ``path``."""
    for name in names:
        point = _mounted_below(directory, name)
        if point is not None:
            mount_point = path.parent / point
            problem = f"remove {path} (something is mounted at {mount_point})"
            remedy = f"run umount {mount_point} on the host, then run again"
            raise InstallerError(problem, remedy=remedy, code="file-not-replaceable")


def _switch(directory: int, staged: str, name: str, *, exchange: bool = False) -> None:
    """Rename ``staged`` to ``name``, synced to the disk; after an error rename the directory back."""
    move_name(directory, staged, directory, name, exchange=exchange)
    try:
        os.fsync(directory)
    except Exception:
        move_name(directory, name, directory, staged, exchange=exchange)
        raise


def create_tree(host: Host, path: PurePosixPath, files: Sequence[PayloadFile]) -> None:
    """Make ``path`` a directory of ``files`` as ``install_tree`` does, unless another process is quicker."""
    with translated("make", path), host.place(path, last=False).opened() as (directory, name):
        staged = f"{name}.{os.urandom(4).hex()}{STAGED}"
        try:
            os.mkdir(staged, PRIVATE, dir_fd=directory)
            _fill(staged, directory, files, ())
            _switch(directory, staged, name)  # the kernel does not replace a directory with files in it
        except OSError:  # another process was quicker, and perhaps has removed the staged directory
            if not _kind(name, directory):
                raise
        finally:
            _remove(staged, directory)


def _kind(name: str, directory: int) -> int:
    """Return the file type of a name in an open directory, by stat(2); 0 if the name is free."""
    with suppress(FileNotFoundError):
        return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return 0


def _remove(name: str, directory: int) -> None:
    """Remove a directory with all content, or a file, as far as possible; follow no link and no mount."""
    if _kind(name, directory) != stat.S_IFDIR:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
    elif _mounted_below(directory, name) is None:
        from shutil import rmtree

        rmtree(name, ignore_errors=True, dir_fd=directory)


def _fill(staged: str, directory: int, files: Sequence[PayloadFile], label: Label) -> None:
    """Put ``files`` into the directory ``staged``."""
    noted: list[str] = []
    with opened(staged, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory) as top:
        parents: set[str] = set()
        for file in files:
            parents.update(str(parent) for parent in file.path.parents)
        directories = sorted(parents - {"."})
        for each in directories:
            os.mkdir(each, WIDE, dir_fd=top)
        for file in files:
            _put(top, file, label, noted)
        if noted and str(NOTES.parent) in directories:
            write_synced(str(NOTES), "".join(sorted(noted)).encode(), Meta(0o600), top)
        owners = _find_owners_directories(files)
        for each in (*reversed(directories), "."):
            with opened(each, DIRECTORY, dir_fd=top) as made:
                os.fchmod(made, WIDE)  # regardless of the umask: user-namespaced pods must reach the payload
                if each in owners:
                    with opened(str(owners[each]), DIRECTORY) as source:
                        apply_metadata(made, metadata_of(source))
                os.fsync(made)


def _find_owners_directories(files: Iterable[PayloadFile]) -> dict[str, PurePosixPath]:
    """Map each directory with only an owner's files to the directory that these are copied from."""
    owners: dict[str, PurePosixPath] = {}
    ours: set[str] = set()
    for file in files:
        if isinstance(file, Carried):
            for parent, source in zip(file.path.parents, file.source.parents, strict=False):
                owners.setdefault(str(parent), source)
        else:
            ours.update(map(str, file.path.parents))
    return {each: source for each, source in owners.items() if each not in {*ours, "."}}


def _put(top: int, shipped: PayloadFile, label: Label, noted: list[str]) -> None:
    match shipped:
        case Copy(path, source, size_bytes, digest, mode):
            meta = Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())
            with Path(source).open("rb") as file:
                _copy(file.fileno(), size_bytes, str(path), top, meta)
            mark = mark_of(str(path), top)
            if digest_of(str(path), top) != digest:
                problem = f"copy {source} (it changed while it was copied, or since its {SUMS} was written)"
                remedy = f"run again, with a {SUMS} that sha256sum has written since, or without one"
                raise InstallerError(problem, remedy=remedy, code="file-operation-failed")
            if mark:
                noted.append(f"{mark} {digest}\n")
        case Text(path, content, mode):
            meta = Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())
            write_synced(str(path), content.encode(), meta, top)
        case Symlink(path, target):
            os.symlink(target, str(path), dir_fd=top)
        case Carried(path, source, _, target):
            if target:
                os.symlink(target, str(path), dir_fd=top)
            else:
                _carry(source, str(path), top)
        case _:
            assert_never(shipped)


def _copy(source: int, size_bytes: int, name: str, directory: int, meta: Meta) -> None:
    """Copy an open file to a new name in an open directory, synced to the disk."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    # Until the copy is complete its mode is 0600: under an umask of 0 every user could write it.
    with opened(name, flags, dir_fd=directory) as fd:
        copied_bytes = 0
        while copied_bytes < size_bytes:
            sent_bytes = os.sendfile(fd, source, copied_bytes, size_bytes - copied_bytes)
            if not sent_bytes:
                break
            copied_bytes += sent_bytes
        apply_metadata(fd, meta)
        os.fsync(fd)


def _carry(source: PurePosixPath, name: str, directory: int) -> None:
    """Copy an owner's file with mode, owner and extended attributes; follow no link, open no device."""
    with opened(str(source), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            problem = f"copy {source} (it was a regular file when the install began, and is none now)"
            raise InstallerError(problem, remedy="run again", code="file-operation-failed")
        _copy(file, status.st_size, name, directory, metadata_of(file))


def remove_staged(host: Host, path: PurePosixPath) -> None:
    """Remove the staged directories beside ``path`` left by a killed function of this module."""
    with translated("remove", path), if_there, host.place(path, last=False).opened() as (directory, name):
        is_ours = re.compile(rf"{re.escape(name)}(\.[0-9a-f]{{8}})?{STAGED}").fullmatch
        for staged in filter(is_ours, os.listdir(directory)):  # noqa: PTH208 - a Path has no descriptor
            _refuse_mounts_below(directory, (staged,), path)
            _remove(staged, directory)


def remove_tree(host: Host, path: PurePosixPath) -> None:
    """Remove a directory with all content; ignore a missing directory.

    The directory is renamed first: a half-removed directory never has the name of a complete directory.

    Raises:
        InstallerError: something is mounted in the directory, and nothing was removed; or the directory
            cannot be removed.
    """
    with translated("remove", path), if_there, host.place(path, last=False).opened() as (directory, name):
        staged = f"{name}{STAGED}"
        _refuse_mounts_below(directory, (name, staged), path)
        _remove(staged, directory)
        if _kind(name, directory) == stat.S_IFDIR:
            from shutil import rmtree

            move_name(directory, name, directory, staged)
            os.fsync(directory)
            rmtree(staged, dir_fd=directory)


LARGE_BYTES: Final = 1 << 20  # smaller files are hashed faster than looked up
SUMS: Final = "SHA256SUMS"
MOST_BYTES: Final = 1 << 20
_SUM: Final = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")


def sums_of(root: PurePosixPath) -> dict[str, str]:
    """Read the sha256 of files of a toolkit's source from the sums file, by their paths below ``root``."""
    with suppress(OSError, ValueError), (Path(root) / SUMS).open("rb") as file:
        sums: dict[str, str] = {}
        for line in file.read(MOST_BYTES).decode().splitlines():
            match = _SUM.fullmatch(line)
            if match is not None:
                sums[match[2]] = match[1]
        return sums
    return {}


def mark_of(path: str, directory: int | None = None) -> str:
    """Return a text that changes with each change of the large file at ``path``; "" for other files."""
    with suppress(OSError):
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_size >= LARGE_BYTES:
            identity = f"{status.st_ino}:{status.st_mode}:{status.st_uid}"
            # Only the kernel sets the time of the last change: no call sets another time (inode(7)).
            return f"{identity}:{status.st_size}:{status.st_ctime_ns}"
    return ""


def digests_below(host: Host, path: PurePosixPath, *, anew: bool = False) -> dict[PurePosixPath, str]:
    """Compute the sha256 in hex of each regular file below ``path``, "" for an unreadable file.

    A file with a mark noted at the copy is not read, unless all files are to be read ``anew``.
    """
    top = host.local_path(path)
    noted = {} if anew else read_noted_digests(host, path)
    files: list[str] = []
    for directory, _, names in os.walk(top):
        files += [os.path.join(directory, name) for name in names]  # noqa: PTH118
    digests: dict[PurePosixPath, str] = {}
    for file in files:
        digest = noted.get(mark_of(file)) or digest_of(file)
        digests[PurePosixPath(file).relative_to(top)] = digest
    return digests


def read_noted_digests(host: Host, path: PurePosixPath) -> dict[str, str]:
    """Return the digests noted at a version's copy, by marks; none if others than root could write them."""
    with suppress(InstallerError, ValueError):
        file = host.read(path / NOTES)
        if file is not None and file.meta.uid in trusted_uids() and not file.meta.mode & OTHERS_WRITE:
            return dict(line.split(" ") for line in file.content.decode("ascii").splitlines())
    return {}


def _never_stop() -> None:
    """Let a long reading go on."""


def digest_of(path: str, directory: int | None = None, check: Callable[[], None] = _never_stop) -> str:
    """Compute the sha256 of the regular file at ``path``, "" for any other file.

    Args:
        path: the path, relative to ``directory`` if given.
        directory: a descriptor of an open directory.
        check: is called between two blocks, and may raise.
    """
    try:
        # Follow no link, and do not wait for the other end of a FIFO.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        digest = hashlib.sha256()
        while block := file.read(LARGE_BYTES):
            check()
            digest.update(block)
        return digest.hexdigest()
