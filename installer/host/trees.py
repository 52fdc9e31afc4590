"""Whole directories: a payload installed complete or not at all, and removed."""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

from installer.decide.errors import InstallerError, LockedError
from installer.decide.inode import Meta
from installer.decide.toolkit import Copy, PayloadFile, Symlink, Text
from installer.host.digests import NOTES, SUMS, digest_of, mark_of
from installer.host.files import Host
from installer.host.inodes import (
    STAGED,
    apply_metadata,
    exchange_names,
    label_of,
    translated,
    write_synced,
)
from installer.host.lock_table import root_holds
from installer.host.mounts import mounted_below, refuse_mounts_below
from installer.host.places import DIRECTORY

Label = tuple[tuple[str, bytes], ...]

PRIVATE: Final = 0o700
OTHERS: Final = 0o077
WIDE: Final = 0o755
WAIT_S: Final = 5.0
WAIT_POLL_S: Final = 0.01
COPIES_AT_ONCE: Final = 4  # the disk's queue, not the processor, is what the syncs wait for


def install_tree(
    host: Host, path: PurePosixPath, files: Sequence[PayloadFile], like: PurePosixPath | None = None
) -> None:
    """Make ``path`` a directory of ``files``, in one rename, on the disk when this returns.

    What is executable takes the SELinux label of the program ``like``: an engine may run it as it runs that.

    Raises:
        InstallerError: nothing is at ``path`` that was not there before.
    """
    with translated("install", path), host.place(path).opened() as (directory, name):
        staged = f"{name}{STAGED}"
        refuse_mounts_below(directory, (name, staged), path)
        _remove(staged, directory)
        try:
            os.mkdir(staged, WIDE, dir_fd=directory)
            _fill(staged, directory, files, label_of(host.local_path(like)) if like else ())
            switch = exchange_names if _is_directory(name, directory) else _rename
            switch(directory, staged, directory, name)
            try:
                os.fsync(directory)
            except Exception:
                switch(directory, name, directory, staged)
                raise
        finally:
            _remove(staged, directory)


def _rename(one_fd: int, one: str, other_fd: int, other: str) -> None:
    os.rename(one, other, src_dir_fd=one_fd, dst_dir_fd=other_fd)


def create_tree(
    host: Host, path: PurePosixPath, files: Sequence[PayloadFile], check: Callable[[], None]
) -> None:
    """Make ``path`` a directory of ``files`` as ``install_tree`` does, unless it is there by then.

    Of several that start at once one makes it: who holds the lock on what is staged, which only root opens.

    Raises:
        InstallerError: nothing was made; or another one is at it for too long.
    """
    with translated("make", path), host.place(path, last=False).opened() as (directory, name):
        staged = f"{name}{STAGED}"
        with _locked_unless_there(staged, name, directory, check) as is_free:
            if not is_free:
                return
            try:
                _fill(staged, directory, files, ())
                _rename(directory, staged, directory, name)
                try:
                    os.fsync(directory)
                except Exception:
                    _rename(directory, name, directory, staged)
                    raise
            except Exception:
                _remove(staged, directory)
                raise


@contextmanager
def _locked_unless_there(staged: str, name: str, directory: int, check: Callable[[], None]) -> Iterator[bool]:
    """Make the directory ``staged`` and lock it; yield False where ``name`` is taken by then."""
    deadline = time.monotonic() + WAIT_S
    while _status(name, directory) is None:
        with suppress(FileExistsError):
            os.mkdir(staged, PRIVATE, dir_fd=directory)
        try:
            fd = os.open(staged, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:  # the other one was quicker
            continue
        try:
            if _lock(fd, staged, directory):
                if _status(name, directory) is not None:  # finished between our look and our lock
                    _remove(staged, directory)
                    break
                os.fchmod(fd, PRIVATE)
                for left in os.listdir(fd):  # noqa: PTH208 - a Path has no descriptor
                    _remove(left, fd)
                yield True
                return
        finally:
            os.close(fd)
        check()
        if time.monotonic() > deadline:
            raise LockedError(f"start (another instance is making {name})", remedy="stop it first")
        time.sleep(WAIT_POLL_S)
    yield False


def _lock(fd: int, staged: str, directory: int) -> bool:
    """Lock what is staged; False where another one is at it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # 0.1.0 left one for everybody to open, and so to lock, if it was killed.
        held = root_holds(fd)
        if held is False or (held is None and os.fstat(fd).st_mode & OTHERS):
            _remove(staged, directory)
        return False
    status = _status(staged, directory)
    return status is not None and os.path.samestat(os.fstat(fd), status)


def _status(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_directory(name: str, directory: int) -> bool:
    status = _status(name, directory)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _remove(name: str, directory: int) -> None:
    """Remove a directory with all below it, or a file, as far as can be; no link or mount is followed."""
    if not _is_directory(name, directory):
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
    elif mounted_below(directory, name) is None:
        from shutil import rmtree

        rmtree(name, ignore_errors=True, dir_fd=directory)


def _fill(staged: str, directory: int, files: Sequence[PayloadFile], label: Label) -> None:
    """Put ``files`` into the directory ``staged``."""
    top = os.open(staged, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    from installer.host.progress import Progress
    from installer.host.threads import each as put_each

    noted: list[str] = []
    try:
        below = sorted({str(parent) for file in files for parent in file.path.parents} - {"."})
        for each in below:
            os.mkdir(each, WIDE, dir_fd=top)
        put = Progress(files).of(lambda file: _put(top, file, label, noted))
        put_each(put, files, at_once=COPIES_AT_ONCE)
        if noted and str(NOTES.parent) in below:
            write_synced(str(NOTES), "".join(sorted(noted)).encode(), Meta(0o600), top)
        for each in (*below, "."):
            made = os.open(each, DIRECTORY, dir_fd=top)
            try:
                os.fchmod(made, WIDE)  # whatever the umask: user-namespaced pods must reach the payload
                os.fsync(made)
            finally:
                os.close(made)
    finally:
        os.close(top)


def _put(top: int, file: PayloadFile, label: Label, noted: list[str]) -> None:
    match file:
        case Copy(path, source, size_bytes, digest, mode):
            _copy(Path(source), str(path), top, size_bytes, _labelled(mode, label))
            mark = mark_of(str(path), top)
            if digest_of(str(path), top) != digest:
                raise InstallerError(
                    f"copy {source} (it changed while it was copied, or since its {SUMS} was written)",
                    remedy=f"run again, with a {SUMS} that sha256sum has written since, or without one",
                    code="file-operation-failed",
                )
            if mark:
                noted.append(f"{mark} {digest}\n")
        case Text(path, content, mode):
            write_synced(str(path), content.encode(), _labelled(mode, label), top)
        case Symlink(path, target):
            os.symlink(target, str(path), dir_fd=top)
        case _:
            assert_never(file)


def _labelled(mode: int, label: Label) -> Meta:
    return Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())


def _copy(source: Path, target: str, top: int, size_bytes: int, meta: Meta) -> None:
    # Never wider than it will be: under an umask of 0 everybody could write a program while it is copied.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with source.open("rb") as reader, os.fdopen(os.open(target, flags, 0o600, dir_fd=top), "wb") as writer:
        done = 0
        while done < size_bytes:
            step = os.sendfile(writer.fileno(), reader.fileno(), done, size_bytes - done)
            if step == 0:
                break
            done += step
        apply_metadata(writer.fileno(), meta)
        os.fsync(writer.fileno())
    if done != size_bytes or source.stat().st_size != size_bytes:
        raise OSError(None, f"{source} changed while it was copied")


def remove_staged(host: Host, path: PurePosixPath) -> None:
    """Remove what a killed ``install_tree`` or ``remove_tree`` of ``path`` left beside it."""
    with (
        translated("remove", path),
        suppress(FileNotFoundError, NotADirectoryError),
        host.place(path, last=False).opened() as (directory, name),
    ):
        refuse_mounts_below(directory, (f"{name}{STAGED}",), path)
        _remove(f"{name}{STAGED}", directory)


def remove_tree(host: Host, path: PurePosixPath) -> None:
    """Remove a directory and all below it; none there is fine.

    It is renamed first, so that a half-removed one never carries the name of a complete one.

    Raises:
        InstallerError: something is mounted in it, of which nothing was removed; or it cannot be removed.
    """
    with (
        translated("remove", path),
        suppress(FileNotFoundError, NotADirectoryError),
        host.place(path, last=False).opened() as (directory, name),
    ):
        staged = f"{name}{STAGED}"
        refuse_mounts_below(directory, (name, staged), path)
        _remove(staged, directory)
        if _is_directory(name, directory):
            from shutil import rmtree

            with _kept_from_others(name, directory):
                _rename(directory, name, directory, staged)
                os.fsync(directory)
                rmtree(staged, dir_fd=directory)


@contextmanager
def _kept_from_others(name: str, directory: int) -> Iterator[None]:
    """Lock a directory: who makes it anew fills nothing that is being removed under the staged name."""
    fd = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        with suppress(BlockingIOError):  # it is our own ledger's, and locked as that
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
