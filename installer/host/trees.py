"""Whole directories: a payload installed complete or not at all, and removed."""

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
    move_name,
    opened,
    translated,
    write_synced,
)
from installer.host.kernel import list_mounts, trusted_uids
from installer.model.files import OTHERS_WRITE, Copy, Meta, PayloadFile, Symlink, Text

Label = tuple[tuple[str, bytes], ...]

PRIVATE: Final = 0o700
WIDE: Final = 0o755


def install_tree(
    host: Host, path: PurePosixPath, files: Sequence[PayloadFile], like: PurePosixPath | None = None
) -> None:
    """Make ``path`` a directory of ``files``, in one rename, on the disk when this returns.

    What is executable takes the SELinux label of the program ``like``: an engine may run it as it runs that.
    With InstallerError nothing is at ``path`` that was not there before.
    """
    with translated("install", path), host.place(path).opened() as (directory, name):
        staged = f"{name}{STAGED}"
        _refuse_mounts_below(directory, (name, staged), path)
        _remove(staged, directory)
        try:
            os.mkdir(staged, WIDE, dir_fd=directory)
            _fill(staged, directory, files, label_of(host.local_path(like)) if like else ())
            _switch(directory, staged, name, exchange=_kind(name, directory) == stat.S_IFDIR)
        finally:
            _remove(staged, directory)


def _mounted_below(directory: int, name: str) -> PurePosixPath | None:
    """Return what is mounted at or below a name in an open directory, from there on; None for nothing."""
    if not _kind(name, directory):
        return None
    above = PurePosixPath(Path(f"/proc/self/fd/{directory}").readlink())
    points = (PurePosixPath(point) for point, _ in list_mounts())
    return next((point.relative_to(above) for point in points if point.is_relative_to(above / name)), None)


def _refuse_mounts_below(directory: int, names: Iterable[str], path: PurePosixPath) -> None:
    """Raise where one of the ``names``, to be removed as ``path``, has something mounted on it or below."""
    for name in names:
        if point := _mounted_below(directory, name):
            there = path.parent / point
            problem = f"remove {path} (something is mounted at {there})"
            remedy = f"run umount {there} on the host, then run again"
            raise InstallerError(problem, remedy=remedy, code="file-not-replaceable")


def _switch(directory: int, staged: str, name: str, *, exchange: bool = False) -> None:
    """Give what is staged its name, on the disk when this returns, or else nothing of the kind."""
    move_name(directory, staged, directory, name, exchange=exchange)
    try:
        os.fsync(directory)
    except Exception:
        move_name(directory, name, directory, staged, exchange=exchange)
        raise


def create_tree(host: Host, path: PurePosixPath, files: Sequence[PayloadFile]) -> None:
    """Make ``path`` a directory of ``files`` as ``install_tree`` does, unless it is there by then."""
    with translated("make", path), host.place(path, last=False).opened() as (directory, name):
        staged = f"{name}.{os.urandom(4).hex()}{STAGED}"
        try:
            os.mkdir(staged, PRIVATE, dir_fd=directory)
            _fill(staged, directory, files, ())
            _switch(directory, staged, name)  # to no directory that holds something
        except OSError:  # another one was quicker, and has perhaps swept what is not finished
            if not _kind(name, directory):
                raise
        finally:
            _remove(staged, directory)


def _kind(name: str, directory: int) -> int:
    """Return what has a name in an open directory, by stat(2); 0 where nothing has it."""
    with suppress(FileNotFoundError):
        return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return 0


def _remove(name: str, directory: int) -> None:
    """Remove a directory with all below it, or a file, as far as can be; no link or mount is followed."""
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
        below = sorted({str(parent) for file in files for parent in file.path.parents} - {"."})
        for each in below:
            os.mkdir(each, WIDE, dir_fd=top)
        for file in files:
            _put(top, file, label, noted)
        if noted and str(NOTES.parent) in below:
            write_synced(str(NOTES), "".join(sorted(noted)).encode(), Meta(0o600), top)
        for each in (*below, "."):
            with opened(each, DIRECTORY, dir_fd=top) as made:
                os.fchmod(made, WIDE)  # whatever the umask: user-namespaced pods must reach the payload
                os.fsync(made)


def _put(top: int, shipped: PayloadFile, label: Label, noted: list[str]) -> None:
    match shipped:
        case Copy(path, source, size_bytes, digest, mode):
            meta = Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())
            # Never wider than it will be: under an umask of 0 everybody could write a program meanwhile.
            flags, done = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0
            with Path(source).open("rb") as file, opened(str(path), flags, dir_fd=top) as fd:
                while done < size_bytes and (step := os.sendfile(fd, file.fileno(), done, size_bytes - done)):
                    done += step
                apply_metadata(fd, meta)
                os.fsync(fd)
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
        case _:
            assert_never(shipped)


def remove_staged(host: Host, path: PurePosixPath) -> None:
    """Remove what a killed function of these left beside ``path``."""
    with translated("remove", path), if_there, host.place(path, last=False).opened() as (directory, name):
        is_ours = re.compile(rf"{re.escape(name)}(\.[0-9a-f]{{8}})?{STAGED}").fullmatch
        for staged in filter(is_ours, os.listdir(directory)):  # noqa: PTH208 - a Path has no descriptor
            _refuse_mounts_below(directory, (staged,), path)
            _remove(staged, directory)


def remove_tree(host: Host, path: PurePosixPath) -> None:
    """Remove a directory and all below it; none there is fine.

    It is renamed first, so that a half-removed one never carries the name of a complete one. InstallerError
    where something is mounted in it, of which nothing was removed; or where it cannot be removed.
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


LARGE_BYTES: Final = 1 << 20  # what is smaller is hashed sooner than looked up
NOTES: Final = PurePosixPath(".config/digests")  # in a version of the toolkit: what was noted at its copy
SUMS: Final = "SHA256SUMS"
MOST_BYTES: Final = 1 << 20
_SUM: Final = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")


def sums_of(root: PurePosixPath) -> dict[str, str]:
    """Return the sha256 of files of a toolkit's source by their paths below ``root``, as a build has them."""
    with suppress(OSError, ValueError), (Path(root) / SUMS).open("rb") as file:
        lines = file.read(MOST_BYTES).decode().splitlines()
        return {found[2]: found[1] for line in lines if (found := _SUM.fullmatch(line))}
    return {}


def mark_of(path: str, directory: int | None = None) -> str:
    """Return a text that each change of the large file at ``path`` changes; "" for any other."""
    with suppress(OSError):
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_size >= LARGE_BYTES:
            which = f"{status.st_ino}:{status.st_mode}:{status.st_uid}"
            # The time of its last change is the kernel's: no call sets it to another (inode(7)).
            return f"{which}:{status.st_size}:{status.st_ctime_ns}"
    return ""


def digests_below(host: Host, path: PurePosixPath, *, anew: bool = False) -> dict[PurePosixPath, str]:
    """Return the sha256 in hex of each regular file below ``path``, "" for one that cannot be read."""
    # A file with a mark that was noted at the copy is not read, but where all are ``anew``.
    top, noted = host.local_path(path), {} if anew else read_noted_digests(host, path)
    files = [os.path.join(place, name) for place, _, names in os.walk(top) for name in names]  # noqa: PTH118
    digests = {file: noted.get(mark_of(file)) or digest_of(file) for file in files}
    return {PurePosixPath(file).relative_to(top): digest for file, digest in digests.items()}


def read_noted_digests(host: Host, path: PurePosixPath) -> dict[str, str]:
    """Return the digests noted at a version's copy, by marks; none that others than root may have written."""
    with suppress(InstallerError, ValueError):
        file = host.read(path / NOTES)
        if file is not None and file.meta.uid in trusted_uids() and not file.meta.mode & OTHERS_WRITE:
            return dict(line.split(" ") for line in file.content.decode("ascii").splitlines())
    return {}


def digest_of(path: str, directory: int | None = None, check: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of the regular file at ``path``, which may be below an open directory; else "".

    ``check`` is called between two blocks, and may raise.
    """
    try:
        # Not what a link leads to, and no wait for the other end of a FIFO.
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
