"""Whole directories: a payload installed complete or not at all, and removed."""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

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

Label = tuple[tuple[str, bytes], ...]

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


def _fill(staged: Path, files: Sequence[PayloadFile], label: Label) -> None:
    from concurrent.futures import ThreadPoolExecutor

    directories = {staged, *(staged / parent for file in files for parent in file.path.parents)}
    for directory in sorted(directories):
        directory.mkdir(mode=0o755)
        directory.chmod(0o755)  # whatever the umask: user-namespaced pods must reach the payload
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(lambda file: _put(staged, file, label), files))
    for directory in directories:
        sync_directory(directory)


def _put(directory: Path, file: PayloadFile, label: Label) -> None:
    match file:
        case Copy(path, source, size_bytes, digest, mode):
            _copy(Path(source), directory / path, size_bytes, _labelled(mode, label))
            if _digest(directory / path) != digest:
                raise OSError(None, f"{source} changed while it was copied")
        case Text(path, content, mode):
            write_synced(directory / path, content.encode(), _labelled(mode, label))
        case Symlink(path, target):
            (directory / path).symlink_to(target)
        case _:
            assert_never(file)


def _labelled(mode: int, label: Label) -> Meta:
    return Meta(mode, xattrs=label if mode & stat.S_IXUSR else ())


def _copy(source: Path, target: Path, size_bytes: int, meta: Meta) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
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


@contextmanager
def digests_below(host: Host, path: PurePosixPath | None) -> Iterator[Callable[[], dict[PurePosixPath, str]]]:
    """Hash the regular files below ``path``, if one is given, while the block goes on.

    What is yielded returns their sha256 in hex, "" for one that cannot be read.
    """
    if path is None:
        yield dict
        return
    from concurrent.futures import ThreadPoolExecutor

    here = host.here(path)
    files = [Path(place, name) for place, _, names in os.walk(here) for name in names]
    with ThreadPoolExecutor() as pool:
        hashed = {PurePosixPath(file.relative_to(here)): pool.submit(_digest, file) for file in files}
        yield lambda: {name: digest.result() for name, digest in hashed.items()}


def _digest(here: Path) -> str:
    try:
        # Not what a link leads to, and no wait for the other end of a FIFO.
        fd = os.open(here, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()
