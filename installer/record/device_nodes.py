"""Device nodes of the driver: one that we made is told from a later one of the same name."""

from pathlib import PurePosixPath

from installer.decide.rows import DeviceNode
from installer.host.boot import boot_id
from installer.host.files import Host


def device_node(host: Host, path: PurePosixPath) -> DeviceNode | None:
    """Return the node at ``path``; None where there is none."""
    inode = host.inode(path)
    return None if inode is None else DeviceNode(path, f"{boot_id()} {inode}")


def remove_device_node(host: Host, node: DeviceNode) -> None:
    """Remove a node, if the driver has not made it anew."""
    if device_node(host, node.path) == node:
        host.remove(node.path)
