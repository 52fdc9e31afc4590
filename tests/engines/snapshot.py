"""What a node's files are, so that before and after can be told apart to the byte."""

from tests.engines.nodes import Node
from tests.support.tree import USUAL, Aspect, tree

# What the installer may touch, and the directories above it.
WATCHED = ("etc", "usr/local", "run/nvidia", "opt", "usr/share/containers")


def snapshot(node: Node, *, times: bool = False) -> dict[str, str]:
    """Return what each path of a node is: mode, owner and content; with ``times`` inode and mtime too."""
    aspects = USUAL | Aspect.OWNER | (Aspect.TIMES if times else Aspect(0))
    found = tree(node.root, aspects, tops=WATCHED)
    # What an install leaves for the next one tells of the boot, of mounts and of the engine's process, too.
    passing = ("/dist-packages", "/.config/unchanged")
    return {f"/{path}": what for path, what in found.items() if not any(each in path for each in passing)}


def but_the_ledger(files: dict[str, str]) -> dict[str, str]:
    """Return files without the ledger, which remembers why an undo was refused."""
    return {path: what for path, what in files.items() if not path.endswith("/.toolkit-installer/ledger")}
