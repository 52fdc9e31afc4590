"""What the files below a directory are, so that before and after can be told apart to the byte."""

import hashlib
import os
from collections.abc import Callable, Iterable
from enum import Flag, auto
from pathlib import Path

WHOLE_BYTES = 1 << 16  # of a larger file its digest stands for its content


class Aspect(Flag):
    """What of a path counts: TIMES are its inode and the time of its last change."""

    MODE = auto()
    CONTENT = auto()
    OWNER = auto()
    XATTRS = auto()
    TIMES = auto()


USUAL = Aspect.MODE | Aspect.CONTENT


def tree(root: Path, aspects: Aspect = USUAL, *, tops: Iterable[str] = ("",)) -> dict[str, str]:
    """Return each path below ``root``, or below ``tops`` in it, and what it is."""
    found = {}
    for top in tops:
        for directory, directories, names in os.walk(root / top):
            for name in [*directories, *names]:
                path = Path(directory, name)
                found[str(path.relative_to(root))] = described(path, aspects)
    return found


def described(path: Path, aspects: Aspect = USUAL) -> str:
    """Return what one path is, a link for itself; its content is the last word, in hex."""
    status = path.lstat()
    words: dict[Aspect, Callable[[], str]] = {
        Aspect.MODE: lambda: f"{status.st_mode:o}",
        Aspect.OWNER: lambda: f"{status.st_uid}:{status.st_gid}",
        Aspect.XATTRS: lambda: str(
            {name: os.getxattr(path, name, follow_symlinks=False) for name in _xattrs(path)}
        ),
        Aspect.TIMES: lambda: f"{status.st_ino} {status.st_mtime_ns}",
        Aspect.CONTENT: lambda: _content(path),
    }
    return " ".join(say() for aspect, say in words.items() if aspect in aspects)


def _xattrs(path: Path) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def _content(path: Path) -> str:
    if path.is_symlink():
        return str(path.readlink())
    if not path.is_file():
        return ""
    content = path.read_bytes()
    return content.hex() if len(content) <= WHOLE_BYTES else hashlib.sha256(content).hexdigest()
