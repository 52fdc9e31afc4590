"""From a path of the host to where it is here, and back: links count as on the host, but root's alone.

It is done by hand, step by step, and not with openat2(RESOLVE_IN_ROOT): that follows anybody's links, and
knows nothing of directories that are mounted somewhere else. What comes out has no link any more, and is
opened without following one: what was looked at is what is used, or an error.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct

from installer.errors import InstallerError, Option, Remedy
from installer.host.kernel import list_mounts, trusted_uids

MAX_LINKS: Final = 40  # as the kernel (path_resolution(7))
ROOT: Final = PurePosixPath("/")
DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
                raise InstallerError(
                    f"follow {path} (its links go round in a circle)",
                    remedy="correct the links",
                    code="path-unusable",
                )
            rest.extend(reversed([part for part in target.parts if part != target.anchor]))
            done = ROOT if target.is_absolute() else above
    return done


class Places:
    """One host, seen through the mounts of this process; the longest prefix decides."""

    def __init__(self, mounts: Mapping[PurePosixPath, Path]) -> None:
        self._mounts = {**mounts}

    def mount(self, host: PurePosixPath, local: Path) -> None:
        """Take a directory of the host, whose path has no links, from where this process finds it."""
        self._mounts[host] = local

    def place(self, path: PurePosixPath, *, last: bool = True) -> Place:
        """Return where ``path`` is; with ``last`` false a link in the last place is kept."""
        return self._map(self.resolve(path, last=last))

    def _map(self, path: PurePosixPath) -> Place:
        for prefix in (ROOT,) if self._mounts.keys() == {ROOT} else (path, *path.parents):
            if prefix in self._mounts:
                base, parts = self._mounts[prefix], path.parts[len(prefix.parts) :]
                if parts or base == Path(ROOT):
                    return Place(base, parts)
                return Place(base.parent, (base.name,))
        raise InstallerError(
            f"find {path} (no mounted directory holds it)",
            remedy=Remedy("mount the host's root and name it with ", Option("host-root")),
            code="path-unusable",
        )

    def below(self, path: PurePosixPath) -> Iterator[Path]:
        """Yield where this process finds what stands at ``path`` and below it; no link is followed there."""
        for directory, below, names in os.walk(self.place(path).local_path):
            links = (name for name in below if Path(directory, name).is_symlink())
            yield from (Path(directory), *(Path(directory, name) for name in (*names, *links)))

    def resolve(self, path: PurePosixPath, *, last: bool = True) -> PurePosixPath:
        """Return ``path`` without symbolic links, as the host's kernel would follow them.

        With ``last`` false a link in the last place is kept. What does not exist is kept as written.
        InstallerError where the links go round in a circle, a stranger could have placed one, or no file can
        have such a name.
        """
        with suppress(UnicodeEncodeError):
            if b"\0" not in os.fsencode(path):
                return follow_links(path, self._link_target, last=last)
        raise InstallerError(
            f"look at {str(path)!a:.200} (no file can have such a name)",
            remedy="correct what names it",
            code="path-unusable",
        )

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
            raise InstallerError(
                f"follow the link {path} (a user other than root could have placed it)",
                remedy=f"remove it, or let root alone write {path.parent}",
                code="path-unusable",
            )
        return PurePosixPath(target)


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


def is_empty(local: PurePosixPath) -> bool:
    """Tell whether there is nothing in a directory, or no directory."""
    with suppress(OSError):
        return not any(Path(local).iterdir())
    return True


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


def find_host_path(
    local: PurePosixPath, host: Places, root: PurePosixPath, guesses: Sequence[PurePosixPath]
) -> PurePosixPath | None:
    """Return the path of the ``host`` of ``local``, which a mount has brought; None where none has.

    The kernel tells what is mounted where, and the path within its file system; ``guesses`` are what
    ``local`` may be on the host. The candidate whose mount point is the same inode below the host's ``root``
    is right. Where none is, a mount at just this place is taken for the first guess, or for the host's path
    of that name; a wider one (the container's own /run) has nothing to do with the host.
    """
    real = resolve_local(local, root)
    points = [(PurePosixPath(point), PurePosixPath(within)) for point, within in list_mounts()]
    above = [mount for mount in points if mount[0] != ROOT and real.is_relative_to(mount[0])]
    if not above:
        return None
    point, within = max(above, key=lambda mount: len(mount[0].parts))
    below = real.relative_to(point)
    named = [path for path in (*guesses, local, real) if ".." not in path.parts]
    cuts = [(path.parts, len(path.parts) - len(below.parts)) for path in named]
    outer = [PurePosixPath(*parts[:cut]) for parts, cut in cuts if cut > 0 and parts[cut:] == below.parts]
    tails = [PurePosixPath("/", *within.parts[cut:]) for cut in range(1, len(within.parts))]
    proven = next((path / below for path in (*outer, *tails) if is_same(point, host, path)), None)
    # What hides the mount point's own inode below the host's root need not hide that of the directory in it.
    proven = proven or next((path for path in named if is_same(real, host, path)), None)
    return proven or (named[0] if point == real else None)


def is_same(local: PurePosixPath, host: Places, candidate: PurePosixPath) -> bool:
    """Tell whether ``local`` is what the host has at ``candidate``."""
    with suppress(OSError, InstallerError):
        return os.path.samestat(Path(local).stat(), host.place(candidate).local_path.stat())
    return False
