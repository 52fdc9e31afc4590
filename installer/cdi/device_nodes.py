"""The driver's control device nodes: which are absent, made, and removed where nobody has made them anew."""

from pathlib import PurePosixPath
from typing import Final

from installer.cdi.generate import run_tool
from installer.host.files import Host
from installer.host.kernel import boot_id
from installer.model.options import Cdi
from installer.model.record import DeviceNode
from installer.model.steps import MakeDeviceNodes

CONTROL_NODES: Final = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")


def absent_nodes(host: Host, cdi: Cdi) -> tuple[DeviceNode, ...]:
    """Return the driver's control device nodes that are wanted and not there."""
    paths = (PurePosixPath(cdi.dev_root, "dev", name) for name in CONTROL_NODES if cdi.nodes)
    return tuple(absent_node(path) for path in paths if not host.exists(path))


def make_device_nodes(step: MakeDeviceNodes) -> None:
    """Make the driver's control device nodes that are absent.

    Raises:
        InstallerError: they cannot be made; some of them may be there.
    """
    words = ("system", "create-device-nodes", "--control-devices", f"--dev-root={step.cdi.local_dev_root}")
    run_tool(step.source, "make the control device nodes", words)


def device_node(host: Host, path: PurePosixPath) -> DeviceNode | None:
    """Return the node at ``path``; None where there is none."""
    inode = host.inode(path)
    return None if inode is None else DeviceNode(path, f"{boot_id()} {inode}")


def absent_node(path: PurePosixPath) -> DeviceNode:
    """Return a node that is about to be made: what stands there later in this boot is taken for it."""
    return DeviceNode(path, f"{boot_id()} absent")


def held_node(host: Host, device: DeviceNode) -> DeviceNode | None:
    """Return a node of the ledger as it stands there; None where it has gone, or the driver made it anew."""
    now = device_node(host, device.path)
    return now if now is not None and (now == device or device == absent_node(device.path)) else None


def remove_device_node(host: Host, device: DeviceNode) -> None:
    """Remove a node, if the driver has not made it anew."""
    if held_node(host, device) is not None:
        host.remove(device.path)
