"""Whole directories: a payload installed complete or not at all, and removed."""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

from installer.decide.errors import LockedError
from installer.decide.inode import Entry, Meta
from installer.decide.toolkit import Copy, PayloadFile, Symlink, Text
from installer.host.files import Host
from installer.host.inodes import (
    STAGED,
    exchange_names,
    give,
    label_of,
    sync_directory,
    translated,
    write_synced,
)
from installer.host.lock_table import root_holds

Label = tuple[tuple[str, bytes], ...]

PRIVATE: Final = 0o700
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
    with translated("install", path):
        here = host.here(path)
        staged = here.with_name(f"{here.name}{STAGED}")
        shutil.rmtree(staged, ignore_errors=True)
        try:
            _fill(staged, files, label_of(host.here(like)) if like else ())
            switch = exchange_names if here.is_dir() else Path.rename
            switch(staged, here)
            try:
                sync_directory(here.parent)
            except OSError:
                switch(here, staged)
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def create_tree(
    host: Host, path: PurePosixPath, files: Sequence[PayloadFile], check: Callable[[], None]
) -> None:
    """Make ``path`` a directory of ``files`` as ``install_tree`` does, unless it is there by then.

    Of several that start at once one makes it: who holds the lock on what is staged, which only root opens.

    Raises:
        InstallerError: nothing was made; or another one is at it for too long.
    """
    with translated("make", path):
        here = host.here(path, last=False)
        staged = here.with_name(f"{here.name}{STAGED}")
        with _locked_unless_there(staged, here, check) as is_free:
            if not is_free:
                return
            try:
                _fill(staged, files, ())
                staged.rename(here)
                try:
                    sync_directory(here.parent)
                except OSError:
                    here.rename(staged)
                    raise
            except OSError:
                shutil.rmtree(staged, ignore_errors=True)
                raise


@contextmanager
def _locked_unless_there(staged: Path, here: Path, check: Callable[[], None]) -> Iterator[bool]:
    """Make the directory ``staged`` and lock it; yield False where there is something at ``here`` by then."""
    deadline = time.monotonic() + WAIT_S
    while not os.path.lexists(here):
        with suppress(FileExistsError):
            staged.mkdir(mode=PRIVATE)
        try:
            fd = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # the other one was quicker
            continue
        try:
            if _lock(fd, staged):
                _empty(staged)
                yield True
                return
        finally:
            os.close(fd)
        check()
        if time.monotonic() > deadline:
            raise LockedError(f"start (another instance is making {here})", remedy="stop it first")
        time.sleep(WAIT_POLL_S)
    yield False


def _lock(fd: int, staged: Path) -> bool:
    """Lock what is staged; False where another one is at it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # 0.1.0 left one for everybody to open, and so to lock, if it was killed.
        if root_holds(fd) is False:
            shutil.rmtree(staged, ignore_errors=True)
        return False
    try:
        return os.path.samestat(os.fstat(fd), staged.lstat())
    except FileNotFoundError:
        return False


def _empty(staged: Path) -> None:
    staged.chmod(PRIVATE)
    for left in staged.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def _fill(staged: Path, files: Sequence[PayloadFile], label: Label) -> None:
    """Put ``files`` into the directory ``staged``, which is made where it is not there."""
    directories = {staged, *(staged / parent for file in files for parent in file.path.parents)}
    for directory in sorted(directories):
        with suppress(FileExistsError):
            directory.mkdir(mode=0o755)
        directory.chmod(0o755)  # whatever the umask: user-namespaced pods must reach the payload
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(lambda file: _put(staged, file, label), files))
    for directory in directories:
        sync_directory(directory)


def _put(directory: Path, file: PayloadFile, label: Label) -> None:
    match file:
        case Copy(path, source, size_bytes, _, mode):
            _copy(Path(source), directory / path, size_bytes, _labelled(mode, label))
        case Text(path, content, mode):
            write_synced(directory / path, content.encode(), _labelled(mode, label))
        case Symlink(path, target):
            (directory / path).symlink_to(target)
        case _:
            assert_never(file)


def _labelled(mode: int, label: Label) -> Meta:
    return Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())


def _copy(source: Path, target: Path, size_bytes: int, meta: Meta) -> None:
    # Never wider than it will be: under an umask of 0 everybody could write a program while it is copied.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with source.open("rb") as reader, os.fdopen(os.open(target, flags, 0o600), "wb") as writer:
        done = 0
        while done < size_bytes:
            step = os.sendfile(writer.fileno(), reader.fileno(), done, size_bytes - done)
            if step == 0:
                break
            done += step
        give(writer.fileno(), meta)
        os.fsync(writer.fileno())
    if done != size_bytes or source.stat().st_size != size_bytes:
        raise OSError(None, f"{source} changed while it was copied")


def remove_staged(host: Host, path: PurePosixPath) -> None:
    """Remove what a killed ``install_tree`` or ``remove_tree`` of ``path`` left beside it."""
    with translated("remove", path):
        here = host.here(path, last=False)
        shutil.rmtree(here.with_name(f"{here.name}{STAGED}"), ignore_errors=True)


def remove_tree(host: Host, path: PurePosixPath) -> None:
    """Remove a directory and all below it; none there is fine.

    It is renamed first, so that a half-removed one never carries the name of a complete one.
    """
    with translated("remove", path):
        here = host.here(path, last=False)
        staged = here.with_name(f"{here.name}{STAGED}")
        shutil.rmtree(staged, ignore_errors=True)
        if here.exists():
            here.rename(staged)
            sync_directory(here.parent)
            shutil.rmtree(staged)


def entries(host: Host, path: PurePosixPath) -> dict[PurePosixPath, Entry]:
    """Return what stands below ``path``, directories left out."""
    here = host.here(path)
    found = {}
    for directory, _, names in os.walk(here):
        for name in names:
            file = Path(directory, name)
            status = file.lstat()
            link = str(file.readlink()) if file.is_symlink() else ""
            found[PurePosixPath(file.relative_to(here))] = Entry(
                status.st_size, stat.S_IMODE(status.st_mode), link
            )
    return found
