"""What may stand on a disk after a power failure: what was synced, and any part of the rest.

The promises are those of POSIX, not of one file system: a write, a mode or a size is safe when its file was
synced, a name when its directory was. What is not safe may be there or not, in any combination. A rename is there
or not as one.
"""

import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
class Op(ABC):
    """One effect: it is safe once each inode of ``until`` was synced after it."""

    until: tuple[int, ...]

    @abstractmethod
    def play(self, disk: Inodes) -> None:
        """Let it happen on a disk that may lack what came before."""


@dataclass(frozen=True)
class Name(Op):
    """A directory gets a name for an inode, or with ``inode`` 0 loses it."""

    directory: int
    name: str
    inode: int

    def play(self, disk: Inodes) -> None:
        names = disk[self.directory].names
        if self.inode:
            names[self.name] = self.inode
        elif self.name in names and not (isinstance(there := disk[names[self.name]].holds, dict) and there):
            del names[self.name]


@dataclass(frozen=True)
class Move(Op):
    """An inode changes its name, in one; ``back`` is what takes its old one (0 is nothing)."""

    inode: int
    source: tuple[int, str]
    target: tuple[int, str]
    back: int = 0

    def play(self, disk: Inodes) -> None:
        names = disk[self.source[0]].names
        if self.back:
            names[self.source[1]] = self.back
        else:
            names.pop(self.source[1], None)
        disk[self.target[0]].names[self.target[1]] = self.inode


@dataclass(frozen=True)
class Write(Op):
    """Bytes come to a place in a file."""

    inode: int
    offset: int
    data: bytes

    def play(self, disk: Inodes) -> None:
        file = disk[self.inode]
        before = file.content.ljust(self.offset, b"\0")
        file.holds = before[: self.offset] + self.data + before[self.offset + len(self.data) :]


@dataclass(frozen=True)
class Cut(Op):
    """A file gets another size."""

    inode: int
    size: int

    def play(self, disk: Inodes) -> None:
        disk[self.inode].holds = disk[self.inode].content[: self.size].ljust(self.size, b"\0")


@dataclass(frozen=True)
class Mode(Op):
    """A file or directory gets other permission bits."""

    inode: int
    mode: int

    def play(self, disk: Inodes) -> None:
        disk[self.inode].mode = self.mode


@dataclass(frozen=True)
class Sync(Op):
    """All that has happened to an inode is safe."""

    inode: int

    def play(self, disk: Inodes) -> None:
        """Change nothing that can be seen."""


@dataclass
class Disk:
    """The directory ``root`` as it was before a program ran, and what that did to it."""

    root: Path
    before: Inodes = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    births: Inodes = field(default_factory=dict)
    _now: Inodes = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._top = self._load(self.root)
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
                self._add(Write((file,), file, offset, call.strings[0][: call.result]))
            case "sendfile":
                file, source = self._find(first), _paths(call)[1]
                offset = len(self._now[file].content)
                self._add(Write((file,), file, offset, source.read_bytes()[offset : offset + call.result]))
            case "ftruncate":
                self._add(Cut((self._find(first),), self._find(first), _last_number(call)))
            case "chmod" | "fchmod" | "fchmodat":
                self._add(Mode((self._find(first),), self._find(first), _mode(call)))
            case "fchown" | "chown" | "setxattr" | "fsetxattr":
                pass  # the nodes of these tests have one owner
            case "mkdir" | "mkdirat":
                self._create(first, Inode(_mode(call) & ~self._mask, {}))
            case "symlink" | "symlinkat":
                self._create(paths[-1] or (), Inode(0o777, call.strings[0].decode()))
            case "unlink" | "unlinkat" | "rmdir":
                directory = self._find(first[:-1])
                self._add(Name((directory,), directory, first[-1], 0))
            case "rename" | "renameat" | "renameat2":
                self._move(first, paths[1] or (), exchanged="RENAME_EXCHANGE" in call.arguments)
            case "fsync" | "fdatasync":
                self._add(Sync((), self._find(first)))
            case _:
                raise AssertionError(f"what does {call.name} do to a disk? {call}")

    def _open(self, call: Call, path: tuple[str, ...]) -> None:
        if path[-1] not in self._now[self._find(path[:-1])].names:
            self._create(path, Inode(_mode(call) & ~self._mask, b""))
        elif "O_TRUNC" in call.arguments:
            self._add(Cut((self._find(path),), self._find(path), 0))

    def _create(self, path: tuple[str, ...], inode: Inode) -> None:
        number, directory = next(self._numbers), self._find(path[:-1])
        self.births[number] = inode
        self._now |= copied({number: inode})
        self._add(Name((directory,), directory, path[-1], number))

    def _move(self, source: tuple[str, ...], target: tuple[str, ...], *, exchanged: bool) -> None:
        here, there = self._find(source[:-1]), self._find(target[:-1])
        back = self._find(target) if exchanged else 0
        until = (here, there) if exchanged else (there,)
        self._add(Move(until, self._find(source), (here, source[-1]), (there, target[-1]), back))

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
            if isinstance(op, Sync):
                synced.add(op.inode)
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

    def put(self, disk: Inodes, path: Path) -> None:
        """Make ``path`` what a disk holds."""
        self._put(disk, self._top, path)

    def _put(self, disk: Inodes, number: int, path: Path) -> None:
        inode = disk[number]
        if isinstance(inode.holds, str):
            path.symlink_to(inode.holds)
            return
        if isinstance(inode.holds, bytes):
            path.write_bytes(inode.holds)
        else:
            path.mkdir()
            for name, child in inode.holds.items():
                self._put(disk, child, path / name)
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
