"""What may stand on a disk after a power failure: what was synced, and any part of the rest.

The promises are those of POSIX, not of one file system: a write, a mode or a size is safe when its file was
synced, a name when its directory was. What is not safe may be there or not, in any combination. A rename is there
or not as one.
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.crash.strace import SYNCING, Call, mutates

STAGED = ".toolkit-installer"  # how the name of each file ends that is renamed into its place
ALL_SUBSETS_UP_TO = 10
_ARGUMENT = re.compile(r'(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>|"((?:\\x[0-9a-f]{2})*)"')
_LAST_NUMBER = re.compile(r"(\d+)\)?$")


@dataclass
class Inode:
    """A file (bytes), a link (str) or a directory (names and numbers of inodes)."""

    mode: int
    holds: bytes | str | dict[str, int]

    @property
    def names(self) -> dict[str, int]:
        assert isinstance(self.holds, dict)
        return self.holds

    @property
    def content(self) -> bytes:
        assert isinstance(self.holds, bytes)
        return self.holds


Inodes = dict[int, Inode]


@dataclass(frozen=True)
class Op:
    """One effect, which ``play`` does to a disk that may lack what came before.

    It is safe once each inode of ``until`` was synced after it. One that has ``synced`` an inode makes that safe.
    """

    until: tuple[int, ...]
    play: Callable[[Inodes], None]
    synced: int = 0


def named(directory: int, name: str, inode: int) -> Op:
    """A directory gets a name for an inode."""

    def play(disk: Inodes) -> None:
        disk[directory].names[name] = inode

    return Op((directory,), play)


def removed(directory: int, name: str) -> Op:
    """A directory loses a name, unless that is one of a directory with names."""

    def play(disk: Inodes) -> None:
        names = disk[directory].names
        if name in names and not (isinstance(there := disk[names[name]].holds, dict) and there):
            del names[name]

    return Op((directory,), play)


def moved(inode: int, source: tuple[int, str], target: tuple[int, str], back: int = 0) -> Op:
    """An inode changes its name, in one; ``back`` is what takes its old one (0 is nothing)."""

    def play(disk: Inodes) -> None:
        names = disk[source[0]].names
        if back:
            names[source[1]] = back
        else:
            names.pop(source[1], None)
        disk[target[0]].names[target[1]] = inode

    return Op((source[0], target[0]) if back else (target[0],), play)


def written(inode: int, offset: int, data: bytes) -> Op:
    """Bytes come to a place in a file."""

    def play(disk: Inodes) -> None:
        file = disk[inode]
        before = file.content.ljust(offset, b"\0")
        file.holds = before[:offset] + data + before[offset + len(data) :]

    return Op((inode,), play)


def cut(inode: int, size: int) -> Op:
    """A file gets another size."""

    def play(disk: Inodes) -> None:
        disk[inode].holds = disk[inode].content[:size].ljust(size, b"\0")

    return Op((inode,), play)


def with_mode(inode: int, mode: int) -> Op:
    """A file or directory gets other permission bits."""

    def play(disk: Inodes) -> None:
        disk[inode].mode = mode

    return Op((inode,), play)


class Disk:
    """The directory ``root`` as it was before a program ran, and what that did to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before: Inodes = {}
        self.births: Inodes = {}
        self.ops: list[Op] = []
        self._numbers = count(1)
        self._top = self._load(root)
        self._now = copied(self.before)
        self._mask = os.umask(0)
        os.umask(self._mask)

    def _load(self, path: Path) -> int:
        number = next(self._numbers)
        holds: bytes | str | dict[str, int]
        if path.is_symlink():
            holds = str(path.readlink())
        elif path.is_dir():
            holds = {child.name: self._load(child) for child in path.iterdir()}
        else:
            holds = path.read_bytes()
        self.before[number] = Inode(path.lstat().st_mode & 0o7777, holds)
        return number

    def learn(self, calls: Iterable[Call]) -> None:
        """Add what system calls did below the root; one that changes something and is not known is an error."""
        for call in calls:
            if call.result >= 0 and (mutates(call) or call.name in SYNCING):
                self._learn(call)

    def _learn(self, call: Call) -> None:  # noqa: C901, PLR0912 - a closed set matched to the end
        paths = [self._inside(path) for path in _paths(call)]
        if not paths or paths[0 if not call.name.startswith("symlink") else -1] is None:
            return
        first = paths[0] or ()
        match call.name:
            case "openat":
                self._open(call, first)
            case "write" | "pwrite64":
                file = self._find(first)
                offset = len(self._now[file].content) if call.name == "write" else _last_number(call)
                self._add(written(file, offset, call.strings[0][: call.result]))
            case "sendfile":
                file, source = self._find(first), _paths(call)[1]
                offset = len(self._now[file].content)
                self._add(written(file, offset, source.read_bytes()[offset : offset + call.result]))
            case "ftruncate":
                self._add(cut(self._find(first), _last_number(call)))
            case "chmod" | "fchmod" | "fchmodat":
                self._add(with_mode(self._find(first), _mode(call)))
            case "fchown" | "chown" | "setxattr" | "fsetxattr":
                pass  # the nodes of these tests have one owner
            case "mkdir" | "mkdirat":
                self._create(first, Inode(_mode(call) & ~self._mask, {}))
            case "symlink" | "symlinkat":
                self._create(paths[-1] or (), Inode(0o777, call.strings[0].decode()))
            case "unlink" | "unlinkat" | "rmdir":
                self._add(removed(self._find(first[:-1]), first[-1]))
            case "rename" | "renameat" | "renameat2":
                second = paths[1] or ()
                back = self._find(second) if "RENAME_EXCHANGE" in call.arguments else 0
                here, there = ((self._find(path[:-1]), path[-1]) for path in (first, second))
                self._add(moved(self._find(first), here, there, back))
            case "fsync" | "fdatasync":
                self._add(Op((), lambda _: None, synced=self._find(first)))
            case _:
                raise AssertionError(f"what does {call.name} do to a disk? {call}")

    def _open(self, call: Call, path: tuple[str, ...]) -> None:
        if path[-1] not in self._now[self._find(path[:-1])].names:
            self._create(path, Inode(_mode(call) & ~self._mask, b""))
        elif "O_TRUNC" in call.arguments:
            self._add(cut(self._find(path), 0))

    def _create(self, path: tuple[str, ...], inode: Inode) -> None:
        number = next(self._numbers)
        self.births[number] = inode
        self._now |= copied({number: inode})
        self._add(named(self._find(path[:-1]), path[-1], number))

    def _add(self, op: Op) -> None:
        self.ops.append(op)
        op.play(self._now)

    def _inside(self, path: Path) -> tuple[str, ...] | None:
        return path.relative_to(self.root).parts if path.is_relative_to(self.root) else None

    def _find(self, path: tuple[str, ...]) -> int:
        number = self._top
        for part in path:
            number = self._now[number].names[part]
        return number

    def pending(self, end: int) -> list[int]:
        """Return which of the first ``end`` ops are not safe after them."""
        synced: set[int] = set()
        unsafe = []
        for place in range(end - 1, -1, -1):
            op = self.ops[place]
            if op.synced:
                synced.add(op.synced)
            elif not synced.issuperset(op.until):
                unsafe.append(place)
        return unsafe[::-1]

    def after(self, end: int, lost: frozenset[int]) -> Inodes:
        """Return what stands on the disk after the first ``end`` ops without those that are ``lost``."""
        disk = copied(self.before | self.births)
        for place in range(end):
            if place not in lost:
                self.ops[place].play(disk)
        return disk

    def failures(self, end: int, most: int, chance: random.Random) -> Iterator[Inodes]:
        """Yield what may stand there after ``end`` ops: all of it, or ``most`` samples where it is too much."""
        pending = self.pending(end)
        if len(pending) <= ALL_SUBSETS_UP_TO and 2 ** len(pending) <= most:
            for mask in range(2 ** len(pending)):
                yield self.after(end, frozenset(op for bit, op in enumerate(pending) if mask >> bit & 1))
            return
        for _ in range(most):
            share = chance.random()
            yield self.after(end, frozenset(op for op in pending if chance.random() < share))

    def put(self, disk: Inodes, path: Path, number: int = 0) -> None:
        """Make ``path`` what a disk holds, or what one inode of it does."""
        inode = disk[number or self._top]
        if isinstance(inode.holds, str):
            path.symlink_to(inode.holds)
            return
        if isinstance(inode.holds, bytes):
            path.write_bytes(inode.holds)
        else:
            path.mkdir()
            for name, child in inode.holds.items():
                self.put(disk, path / name, child)
        path.chmod(inode.mode)

    def seen(self, disk: Inodes) -> frozenset[tuple[str, ...]]:
        """Return what tells two disks apart; of what is staged only that it is there, for nobody reads it."""
        return frozenset(self._seen(disk, self._top, ""))

    def _seen(self, disk: Inodes, number: int, path: str) -> Iterator[tuple[str, ...]]:
        inode = disk[number]
        if path.endswith(STAGED) and not path.endswith(f"/{STAGED}"):
            yield path, type(inode.holds).__name__
            return
        holds = "" if isinstance(inode.holds, dict) else str(inode.holds)
        yield path, f"{inode.mode:o}", holds
        if isinstance(inode.holds, dict):
            for name, child in inode.holds.items():
                yield from self._seen(disk, child, f"{path}/{name}")


def copied(disk: Inodes) -> Inodes:
    """Return a disk of its own."""
    return {
        number: Inode(inode.mode, dict(inode.holds) if isinstance(inode.holds, dict) else inode.holds)
        for number, inode in disk.items()
    }


def _paths(call: Call) -> list[Path]:
    """Return the paths that a call names, whole: of a descriptor where it is open, of a string where it leads."""
    paths: list[Path] = []
    directory: Path | None = None
    strings = 0
    for descriptor, text in _ARGUMENT.findall(call.arguments):
        if descriptor:
            if directory is not None:
                paths.append(directory)
            directory = Path(bytes.fromhex(descriptor.replace("\\x", "")).decode())
            continue
        strings += 1
        if call.name in {"write", "pwrite64"} or (call.name.startswith("symlink") and strings == 1):
            continue
        named = Path(bytes.fromhex(text.replace("\\x", "")).decode())
        paths.append(directory / named if directory else named)
        directory = None
    return [*paths, directory] if directory else paths


def _mode(call: Call) -> int:
    return int(re.findall(r"\b0[0-7]+", call.arguments)[-1], 8)


def _last_number(call: Call) -> int:
    found = _LAST_NUMBER.search(call.arguments)
    assert found, call
    return int(found[1])
