"""What a node's files are, so that before and after can be told apart to the byte."""

from tests.engines.nodes import Node
from tests.support.tree import USUAL, Aspect, tree

# What the installer may touch, and the directories above it.
WATCHED = ("etc", "usr/local", "run/nvidia", "opt", "usr/share/containers")


def snapshot(node: Node, *, times: bool = False) -> dict[str, str]:
    """Return what each path of a node is: mode, owner and content; with ``times`` inode and mtime too."""
    aspects = USUAL | Aspect.OWNER | (Aspect.TIMES if times else Aspect(0))
    found = tree(node.root, aspects, tops=WATCHED)
    return {f"/{path}": what for path, what in found.items() if "/dist-packages" not in path}
