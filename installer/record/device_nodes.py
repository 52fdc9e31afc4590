"""Device nodes of the driver: one that we made is told from a later one of the same name."""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.rows import DeviceNode
from installer.host.boot import boot_id
from installer.host.files import Host

UNBORN: Final = "absent"


def device_node(host: Host, path: PurePosixPath) -> DeviceNode | None:
    """Return the node at ``path``; None where there is none."""
    inode = host.inode(path)
    return None if inode is None else DeviceNode(path, f"{boot_id()} {inode}")


def absent_node(path: PurePosixPath) -> DeviceNode:
    """Return a node that is about to be made: what stands there later in this boot is taken for it."""
    return DeviceNode(path, f"{boot_id()} {UNBORN}")


def held_node(host: Host, node: DeviceNode) -> DeviceNode | None:
    """Return a node of the ledger as it stands there; None where it has gone, or the driver made it anew."""
    now = device_node(host, node.path)
    return now if now is not None and (now == node or node == absent_node(node.path)) else None


def remove_device_node(host: Host, node: DeviceNode) -> None:
    """Remove a node, if the driver has not made it anew."""
    if held_node(host, node) is not None:
        host.remove(node.path)
