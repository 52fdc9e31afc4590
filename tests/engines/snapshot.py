"""What a node's files are, so that before and after can be told apart to the byte."""

import hashlib
import os
from pathlib import Path

from tests.engines.nodes import Node

# What the installer may touch, and the directories above it.
WATCHED = ("etc", "usr/local", "run/nvidia", "opt", "usr/share/containers")


def snapshot(node: Node, *, times: bool = False) -> dict[str, str]:
    """Return for each path what it is: mode, owner and a hash; with ``times`` inode and mtime too."""
    found = {}
    for top in WATCHED:
        for directory, directories, names in os.walk(node.root / top):
            for name in [*directories, *names]:
                path = Path(directory, name)
                found[f"/{path.relative_to(node.root)}"] = _described(path, times=times)
    return {path: text for path, text in found.items() if "/dist-packages" not in path}


def _described(path: Path, *, times: bool) -> str:
    status = path.lstat()
    content = ""
    if path.is_symlink():
        content = str(path.readlink())
    elif path.is_file():
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    moment = f" {status.st_ino} {status.st_mtime_ns}" if times else ""
    return f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {content}{moment}"
