"""The payload's own nvidia-ctk makes device nodes and the CDI specification (compat.md 2, "CDI")."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.layout import Layout
from installer.decide.options import Cdi, Options
from installer.decide.rows import DeviceNode
from installer.host.artifacts import find_artifact
from installer.host.files import Host
from installer.host.programs import run_here
from installer.record.device_nodes import device_node, remove_device_node
from installer.record.ledger import Ledger

TOOL: Final = "nvidia-ctk"
ANSWER_S: Final = 60.0
CONTROL_NODES: Final = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")


def make_device_nodes(host: Host, options: Options, ledger: Ledger) -> tuple[DeviceNode, ...]:
    """Make the driver's control device nodes where they are absent, record them, and return them.

    One whose making was interrupted is nobody's: it stays, as the driver would have it.

    Raises:
        InstallerError: they cannot be made; none is there that was not before.
    """
    cdi = options.cdi
    if cdi is None or not cdi.nodes:
        return ()
    paths = (PurePosixPath(cdi.dev_root, "dev", name) for name in CONTROL_NODES)
    absent = tuple(path for path in paths if not host.exists(path))
    if not absent:
        return ()
    words = ("system", "create-device-nodes", "--control-devices", f"--dev-root={cdi.dev_here}")
    try:
        _run(options, "make the control device nodes", words)
    except InstallerError:
        for path in absent:
            host.remove(path)
        raise
    made = tuple(node for path in absent if (node := device_node(host, path)) is not None)
    # What an earlier boot had made is gone, or is the driver's by now.
    present = [node for node in ledger.held.nodes if device_node(host, node.path) == node]
    ledger.write(replace(ledger.held, nodes=(*present, *made)))
    return made


def remove_device_nodes(host: Host, ledger: Ledger, made: Collection[DeviceNode]) -> None:
    """Take back what ``make_device_nodes`` has made."""
    for node in made:
        remove_device_node(host, node)
    if made:
        kept = tuple(node for node in ledger.held.nodes if node not in made)
        ledger.write(replace(ledger.held, nodes=kept))


def specification(options: Options, cdi: Cdi) -> str:
    """Return the specification for this node, with the host's paths.

    Raises:
        InstallerError: there is no driver, or it has no device nodes.
    """
    vendor, _, kind = cdi.kind.partition("/")
    hook = Layout(options.install_dir).toolkit / "nvidia-cdi-hook"
    places = (f"--driver-root={cdi.driver_here}", f"--dev-root={cdi.dev_here}")
    named = (f"--vendor={vendor}", f"--class={kind}", f"--nvidia-cdi-hook-path={hook}")
    text = _run(
        options, "generate the CDI specification", ("cdi", "generate", "--mode=management", *places, *named)
    )
    moves = dict.fromkeys(((cdi.driver_here, cdi.driver_root), (cdi.dev_here, cdi.dev_root)))
    for here, there in moves:
        if here != there:
            words = ("cdi", "transform", "root", f"--from={here}", f"--to={there}")
            text = _run(options, "give the CDI specification the host's paths", words, text)
    return text


def _run(options: Options, what: str, words: tuple[str, ...], text: str = "") -> str:
    tool = find_artifact(options.toolkit_source, TOOL)
    ran = run_here(tool, words, text, timeout_s=ANSWER_S) if tool else None
    if ran is None:
        raise InstallerError(
            f"{what} (the toolkit's {TOOL} cannot be run from here)",
            remedy=Remedy("check ", Option("toolkit-source"), ", or switch CDI off"),
        )
    if ran.returncode:
        raise InstallerError(
            f"{what} ({ran.last_line})", remedy="install the driver and load its modules, or switch CDI off"
        )
    return ran.stdout
