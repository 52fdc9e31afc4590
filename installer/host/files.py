"""Files, directories and links of the host, wherever this process finds them.

What goes into a config is the host's path; only ``Host`` knows where that path is
mounted here. It resolves symbolic links as the host would, never as the container
would: ``/usr/local`` is a link on OSTree systems, and an absolute link in a mounted
host root must not lead into our own image.
"""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError
from installer.decide.inode import File, Kind
from installer.host.inodes import (
    exchange_names,
    kind_of,
    labelled_as_neighbours,
    meta_of,
    mount_points,
    refuse,
    refuse_missing_root,
    staged_beside,
    staged_name,
    sync_directory,
    translated,
    write_synced,
)

MAX_LINKS: Final = 40  # as the kernel (path_resolution(7))


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host and where this process finds it."""

    host: PurePosixPath
    here: Path


class Host:
    """One host, seen through the mounts of this process; the longest prefix decides."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._mounts = {mount.host: mount.here for mount in mounts}

    @classmethod
    def under(cls, root: PurePosixPath, pairs: Sequence[tuple[PurePosixPath, PurePosixPath]] = ()) -> "Host":
        """Return the host whose root is ``root`` here, and whose directories ``pairs`` (host, here) tell."""
        refuse_missing_root(root)
        return cls([Mount(host, Path(here)) for host, here in ((PurePosixPath("/"), root), *pairs)])

    def _map(self, path: PurePosixPath) -> Path:
        for prefix in (path, *path.parents):
            if prefix in self._mounts:
                return self._mounts[prefix] / path.relative_to(prefix)
        raise InstallerError(
            f"find {path} (no mounted directory holds it)",
            remedy="mount the host's root and name it with --host-root",
        )

    def resolve(self, path: PurePosixPath, *, last: bool = True) -> PurePosixPath:
        """Return ``path`` without symbolic links, as the host's kernel would follow them.

        With ``last`` false a link in the last place is kept. What does not exist is kept as written.

        Raises:
            InstallerError: the links go round in a circle.
        """
        rest = list(reversed(path.parts[1:]))
        done = PurePosixPath("/")
        followed = 0
        while rest:
            part = rest.pop()
            if part == "..":
                done = done.parent
                continue
            done /= part
            target = None if not rest and not last else self._link_target(done)
            if target is not None:
                followed += 1
                if followed > MAX_LINKS:
                    raise InstallerError(
                        f"follow {path} (its links go round in a circle)", remedy="correct the links"
                    )
                rest.extend(reversed([part for part in target.parts if part != "/"]))
                done = PurePosixPath("/") if target.is_absolute() else done.parent
        return done

    def _link_target(self, path: PurePosixPath) -> PurePosixPath | None:
        if path in self._mounts:
            return None
        try:
            return PurePosixPath(self._map(path).readlink())
        except OSError:
            return None

    def here(self, path: PurePosixPath, *, last: bool = True) -> Path:
        """Return where this process finds ``path``."""
        return self._map(self.resolve(path, last=last))

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return what stands at ``path``."""
        try:
            return kind_of(self.here(path, last=last).lstat())
        except (FileNotFoundError, NotADirectoryError):
            return Kind.ABSENT
        except OSError as error:
            refuse("look at", path, error)

    def read(self, path: PurePosixPath) -> File | None:
        """Return the regular file at ``path``, or None where there is nothing.

        Raises:
            InstallerError: something other than a file stands there, or it cannot be read.
        """
        kind = self.kind(path)
        if kind is Kind.ABSENT:
            return None
        if kind is not Kind.FILE:
            found = "a directory" if kind is Kind.DIRECTORY else "not a regular file"
            raise InstallerError(
                f"read {path} (it is {found})", remedy="put a file in its place, or move it away"
            )
        with translated("read", path):
            here = self.here(path)
            return File(here.read_bytes(), meta_of(here, here.lstat()))

    def refuse_unreplaceable(self, path: PurePosixPath) -> None:
        """Raise where a file can be read but not replaced by a rename.

        Raises:
            InstallerError: the file is hard-linked, or mounted as a single file.
        """
        try:
            here = self.here(path)
            status = here.lstat()
        except OSError:
            return
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise InstallerError(
                f"replace {path} (it has {status.st_nlink} hard links, the others would keep the old text)",
                remedy="break the link: copy the file and move the copy over it",
            )
        if stat.S_ISREG(status.st_mode) and str(here.absolute()) in mount_points():
            raise InstallerError(
                f"replace {path} (it is mounted as a single file)",
                remedy=f"mount {path.parent} into the container instead",
            )

    def replace(self, path: PurePosixPath, file: File) -> None:
        """Put ``file`` at ``path`` so that a reader sees the old or the new one, also after a power failure.

        A symbolic link stays and its target is replaced.

        Raises:
            InstallerError: it is whole as it was, or whole as wanted but not safe from a power failure.
        """
        with translated("write", path):
            here = self.here(path)
            with staged_beside(here) as staged:
                write_synced(staged, file.content, labelled_as_neighbours(here, file.meta))

    def stage(self, path: PurePosixPath, file: File) -> PurePosixPath:
        """Put ``file`` where ``replace`` would stage it, for somebody to look at; ``sweep`` removes it."""
        with translated("stage", path):
            here = self.here(path)
            staged = staged_name(here)
            staged.unlink(missing_ok=True)
            write_synced(staged, file.content, file.meta)
            up = len(here.parent.parts) - len(staged.parent.parts)
            return self.resolve(path).parents[up] / staged.name

    def sweep(self, path: PurePosixPath) -> None:
        """Remove what a killed ``replace`` or ``link`` of ``path`` left beside it."""
        with suppress(OSError):
            staged_name(self.here(path, last=False)).unlink(missing_ok=True)
            staged_name(self.here(path)).unlink(missing_ok=True)

    def remove(self, path: PurePosixPath) -> None:
        """Remove a file or a link; nothing there is fine."""
        with translated("remove", path):
            here = self.here(path, last=False)
            try:
                here.unlink()
            except OSError:  # which a read-only file system raises before it looks
                if os.path.lexists(here):
                    raise
                return
            sync_directory(here.parent)

    def make_directory(self, path: PurePosixPath, mode: int = 0o755) -> None:
        """Make one directory; one that is there already is fine."""
        with translated("make the directory", path):
            here = self.here(path)
            if not here.is_dir():
                here.mkdir()
                here.chmod(mode)
                sync_directory(here.parent)

    def remove_directory(self, path: PurePosixPath) -> bool:
        """Remove an empty directory; tell whether it is gone."""
        here = self.here(path)
        try:
            here.rmdir()
            sync_directory(here.parent)
        except OSError as error:
            if not os.path.lexists(here):
                return True
            # EBUSY is a mount point: the volume of a pod, not ours to remove.
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR}:
                return False
            refuse("remove", path, error)
        return True

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the sorted names in a directory; none where there is no directory."""
        try:
            return tuple(sorted(entry.name for entry in self.here(path).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            refuse("list", path, error)

    def link_target(self, path: PurePosixPath) -> str | None:
        """Return what the symbolic link at ``path`` holds; None where there is none."""
        try:
            return str(self.here(path, last=False).readlink())
        except OSError:
            return None

    def link(self, path: PurePosixPath, target: str) -> None:
        """Let ``path`` be a symbolic link to ``target``, in one rename."""
        with translated("link", path):
            here = self.here(path, last=False)
            with staged_beside(here) as staged:
                staged.symlink_to(target)

    def exists(self, path: PurePosixPath) -> bool:
        """Tell whether the name ``path`` is taken, by whatever it is."""
        return self.kind(path, last=False) is not Kind.ABSENT

    def rename(self, path: PurePosixPath, target: PurePosixPath) -> None:
        """Give what stands at ``path`` the name ``target``, which is free."""
        with translated("rename", path):
            here, there = self.here(path, last=False), self.here(target, last=False)
            here.rename(there)
            sync_directory(there.parent)
            sync_directory(here.parent)

    def exchange(self, one: PurePosixPath, other: PurePosixPath) -> None:
        """Let two names change places at once, whatever they are (renameat2)."""
        with translated("exchange", one):
            here, there = self.here(one, last=False), self.here(other, last=False)
            exchange_names(here, there)
            sync_directory(here.parent)
            sync_directory(there.parent)

    def build_of(self, path: PurePosixPath) -> str:
        """Return what tells one build of a program from another without reading it; "" where it is gone."""
        try:
            status = self.here(path).stat()
        except OSError:
            return ""
        return f"{status.st_size} {status.st_mtime_ns}"

    def inode(self, path: PurePosixPath) -> int | None:
        """Return the number of the inode at ``path``; None where there is nothing."""
        try:
            return self.here(path, last=False).lstat().st_ino
        except OSError:
            return None

    def free_bytes(self, path: PurePosixPath) -> int:
        """Return the space left, in bytes, where ``path`` is or would be."""
        status = self._file_system(path)
        return status.f_bavail * status.f_frsize

    def install_obstacles(self, path: PurePosixPath) -> tuple[InstallerError, ...]:
        """Return why nothing could be installed or run below ``path``, which need not exist."""
        flags = self._file_system(path).f_flag
        words = ((os.ST_RDONLY, "read-only"), (os.ST_NOEXEC, "noexec"))
        return tuple(
            InstallerError(
                f"install into {path} (its file system is mounted {word})",
                remedy="choose another --install-dir, or remount it",
            )
            for flag, word in words
            if flags & flag
        )

    def _file_system(self, path: PurePosixPath) -> os.statvfs_result:
        standing = next(each for each in (path, *path.parents) if self.kind(each) is not Kind.ABSENT)
        with translated("look at", standing):
            return os.statvfs(self.here(standing))
