"""The payload's own nvidia-ctk makes device nodes and the CDI specification.

Both are then those of NVIDIA's installer (engine-facts.md#nvidia-ctk-cdi).
"""

from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.layout import Layout
from installer.decide.options import Cdi
from installer.decide.rows import DeviceNode
from installer.decide.steps import MakeDeviceNodes
from installer.host.artifacts import find_artifact
from installer.host.files import Host
from installer.host.programs import LateError, run_until_stopped
from installer.record.device_nodes import absent_node

TOOL: Final = "nvidia-ctk"
ANSWER_S: Final = 30.0  # seconds are enough for eight GPUs that have to be woken
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


def specification(source: PurePosixPath, layout: Layout, cdi: Cdi) -> str:
    """Return the specification for this node, with the host's paths.

    Raises:
        InstallerError: there is no driver, or it has no device nodes.
    """
    vendor, _, kind = cdi.kind.partition("/")
    hook = layout.toolkit / "nvidia-cdi-hook"
    places = (f"--driver-root={cdi.local_driver_root}", f"--dev-root={cdi.local_dev_root}")
    named = (f"--vendor={vendor}", f"--class={kind}", f"--nvidia-cdi-hook-path={hook}")
    text = run_tool(
        source, "generate the CDI specification", ("cdi", "generate", "--mode=management", *places, *named)
    )
    moves = dict.fromkeys(((cdi.local_driver_root, cdi.driver_root), (cdi.local_dev_root, cdi.dev_root)))
    for local, there in moves:
        if local != there:
            words = ("cdi", "transform", "root", f"--from={local}", f"--to={there}")
            text = run_tool(source, "give the CDI specification the host's paths", words, text)
    return text


def run_tool(source: PurePosixPath, what: str, words: tuple[str, ...], text: str = "") -> str:
    """Return what the toolkit's nvidia-ctk says; ``what`` is what it is asked for, in the imperative.

    Raises:
        InstallerError: it cannot be run, does not end, or refuses.
        StoppedError: a stop is pending.
    """
    tool = find_artifact(source, TOOL)
    try:
        ran = run_until_stopped(tool, words, text, timeout_s=ANSWER_S) if tool else None
    except LateError as error:
        raise InstallerError(
            f"{what} (the toolkit's {TOOL} did not come to its end in {ANSWER_S:g} s)",
            remedy="see whether nvidia-smi answers on the node: a GPU that hangs holds both up",
            code="cdi-failed",
        ) from error
    if ran is None:
        raise InstallerError(
            f"{what} (the toolkit's {TOOL} cannot be run from here)",
            remedy=Remedy("check ", Option("toolkit-source"), ", or switch CDI off"),
            code="cdi-failed",
        )
    if ran.returncode:
        raise InstallerError(
            f"{what} ({ran.last_line})",
            remedy="install the driver and load its modules, or switch CDI off",
            code="cdi-failed",
        )
    return ran.stdout
