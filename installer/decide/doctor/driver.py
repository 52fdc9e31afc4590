"""Checks of the driver and its device nodes: not ours to mend, but what users meet first."""

from typing import Final

from installer.decide.doctor.facts import Node, Version
from installer.decide.doctor.model import Check, Level, Verdict, bad, listed, none, ok, warn

GROUP: Final = "Driver and device nodes"
VFIO: Final = "vfio-pci"
CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CUDA_11: Final = 450  # containers of CUDA 11 and later ask for it
FALLEN: Final = ("fallen off the bus", "Xid")
UNSIGNED: Final = ("Key was rejected", "Required key not available", "unsigned module")
FABRIC: Final = "nv-fabricmanage"  # as the kernel cuts a process's name
NOT_LOADED: Final = none("the driver's module is not loaded")
LOSES_DEVICES: Final = ((1, 1, 3), (1, 1, 7))  # runc, from and before


def numbers(text: str) -> Version:
    """Return a driver's version as numbers; () where it is none."""
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def gpu_driver(node: Node) -> Verdict:
    """Judge whether each GPU is driven."""
    gpus = node.driver.gpus
    if not gpus:
        return none("no GPU of NVIDIA's on the PCI bus")
    if all(gpu.driver == VFIO for gpu in gpus):
        return ok(f"{len(gpus)} GPUs are given to virtual machines ({VFIO})")
    idle = [gpu.address for gpu in gpus if gpu.driver not in {"nvidia", VFIO}]
    if not node.driver.loaded:
        return bad(f"{len(gpus)} GPUs, but no module nvidia in the kernel")
    return bad(f"not driven by nvidia: {listed(idle)}") if idle else ok(f"{len(gpus)} GPUs, nvidia loaded")


def nouveau(node: Node) -> Verdict:
    """Judge whether nouveau holds a GPU."""
    held = [gpu.address for gpu in node.driver.gpus if gpu.driver == "nouveau"]
    if held:
        return bad(f"nouveau drives {listed(held)}")
    return warn("the module nouveau is loaded") if "nouveau" in node.driver.modules else ok("not loaded")


def signature(node: Node) -> Verdict:
    """Judge whether the kernel refuses the module for its signature."""
    refused = [line for line in node.driver.log if any(words in line for words in UNSIGNED)]
    if node.driver.loaded:
        return ok("the module is loaded")
    if refused:
        return bad(f"the kernel's log says: {refused[-1]}")
    if node.driver.secure_boot and node.driver.gpus:
        return warn("Secure Boot is on and the module is not loaded")
    return ok("nothing in the kernel's log")


def libraries(node: Node) -> Verdict:
    """Judge whether the driver's libraries are where the toolkit looks for them."""
    if not node.driver.loaded:
        return NOT_LOADED
    if "libnvidia-ml.so.1" not in node.driver.libraries:
        return bad(f"no libnvidia-ml.so.1 below {node.driver.root}")
    return ok(f"libnvidia-ml.so.1 below {node.driver.root}")


def same_version(node: Node) -> Verdict:
    """Judge whether the module and the libraries are of one driver."""
    loaded = node.driver.version
    found = [name.removeprefix("libnvidia-ml.so.") for name in node.driver.libraries]
    versions = [text for text in found if len(numbers(text)) > 1]
    if not loaded or not versions:
        return none("the version of the module or that of its libraries is not to be seen")
    if loaded not in versions:
        return bad(f"the module is {loaded}, the libraries are {listed(versions)}")
    return ok(f"both are {loaded}")


def age(node: Node) -> Verdict:
    """Judge whether today's images run on this driver."""
    version = numbers(node.driver.version)
    if not version:
        return none("the driver's version is not to be seen")
    if version[0] < CUDA_11:
        return warn(f"{node.driver.version}: images of CUDA 11 and later refuse it")
    return ok(node.driver.version)


def control_nodes(node: Node) -> Verdict:
    """Judge whether the nodes are there that every CUDA program opens."""
    if not node.driver.loaded or not node.driver.version:
        return NOT_LOADED
    there = {str(each.path) for each in node.driver.nodes}
    absent = [path for path in CONTROL if path not in there]
    return bad(f"absent: {listed(absent)}") if absent else ok(f"{len(there)} nodes")


def uvm(node: Node) -> Verdict:
    """Judge whether the kernel serves nvidia-uvm, which CUDA needs and nvidia-smi does not."""
    if not node.driver.loaded or not node.driver.version:
        return NOT_LOADED
    return (
        ok("nvidia-uvm is served")
        if "nvidia-uvm" in node.driver.majors
        else bad("/proc/devices has no nvidia-uvm")
    )


def char_links(node: Node) -> Verdict:
    """Judge whether a daemon-reload would take GPUs away from running containers."""
    if not node.driver.nodes:
        return none("no device nodes of the driver")
    absent = [str(each.path) for each in node.driver.nodes if (each.major, each.minor) not in _links(node)]
    if not absent:
        return ok("a link for each node")
    first, fixed = LOSES_DEVICES
    losing = [said for version, said in node.runc.values() if first <= version < fixed]
    where = f"no link in /dev/char for {listed(absent)}"
    return bad(f"{where}, and {losing[0]} drops such devices") if losing else warn(where)


def _links(node: Node) -> frozenset[tuple[int, int]]:
    return node.driver.char_links


def fallen(node: Node) -> Verdict:
    """Judge whether the driver has complained of its hardware since boot."""
    lines = [line for line in node.driver.log if "NVRM" in line and any(word in line for word in FALLEN)]
    lost = [line for line in lines if "fallen off the bus" in line or ": 79," in line]
    if lost:
        return bad(lost[-1])
    return warn(lines[-1]) if lines else ok("no Xid in the kernel's log")


def fabric(node: Node) -> Verdict:
    """Judge whether the fabric manager runs where NVSwitches need it, in the driver's version."""
    if not node.driver.switches:
        return none("no NVSwitch on the PCI bus")
    running = next((each for each in node.processes if each.name == FABRIC), None)
    if running is None and not node.sees_host:
        return none("the host's processes are not in view")
    if running is None:
        return bad(f"{len(node.driver.switches)} NVSwitches, and no nv-fabricmanager runs")
    versions = ".".join(map(str, running.version)), ".".join(map(str, numbers(node.driver.version)))
    if all(versions) and versions[0] != versions[1]:
        return bad(f"the fabric manager is {versions[0]}, the driver {versions[1]}")
    return ok("nv-fabricmanager runs")


def persistenced(node: Node) -> Verdict:
    """Judge whether a socket was left behind that containers would be given."""
    if node.driver.persistenced == "dead":
        return bad("/run/nvidia-persistenced/socket is there, and nobody listens")
    return ok(f"socket {node.driver.persistenced}")


CHECKS: Final = (
    Check(
        "gpu-driver",
        GROUP,
        "GPUs on the PCI bus, and what drives them",
        "a GPU is there, and the module nvidia is not loaded or does not drive it",
        "install or load the driver; `nvidia-smi` on the node has to work first",
        gpu_driver,
        seen=("NVIDIA/nvidia-docker#291",),
    ),
    Check(
        "nouveau",
        GROUP,
        "/sys/module/nouveau, and what drives the GPUs",
        "nouveau drives a GPU; a warning where it is loaded",
        "write `blacklist nouveau` and `options nouveau modeset=0` into /etc/modprobe.d, make a new"
        " initramfs, reboot",
        nouveau,
        seen=("NVIDIA/gpu-operator#974",),
    ),
    Check(
        "driver-signature",
        GROUP,
        "the kernel's log, Secure Boot",
        "the kernel has refused the module for its signature; a warning where Secure Boot may be why",
        "install a signed driver, enrol its key (MOK), or switch Secure Boot off",
        signature,
        seen=("NVIDIA/gpu-operator#266", "NVIDIA/gpu-operator#1726"),
    ),
    Check(
        "driver-libraries",
        GROUP,
        "libnvidia-ml.so.1 below the driver root that the toolkit's config.toml names",
        "the library is not there: `load library failed: libnvidia-ml.so.1`",
        "install the driver, or set the driver root to where it is (`--driver-root`)",
        libraries,
        seen=("NVIDIA/libnvidia-container#231", "NVIDIA/gpu-operator#511"),
    ),
    Check(
        "driver-version",
        GROUP,
        "the version of the loaded module, and those in the names of its libraries",
        "they differ: `Driver/library version mismatch`",
        "reboot, or unload and load all modules of the driver; hold its packages back from"
        " unattended upgrades",
        same_version,
        seen=("NVIDIA/nvidia-container-toolkit#394",),
    ),
    Check(
        "driver-age",
        GROUP,
        "the version of the loaded module",
        f"it is older than {CUDA_11}: `unsatisfied condition: cuda>=...`",
        "install a newer driver, or use images of an older CUDA",
        age,
        Level.WARN,
        ("NVIDIA/nvidia-docker#1442",),
    ),
    Check(
        "control-nodes",
        GROUP,
        ", ".join(CONTROL),
        "one is absent although the driver is loaded",
        "`nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules`",
        control_nodes,
        seen=("NVIDIA/nvidia-docker#139",),
    ),
    Check(
        "uvm",
        GROUP,
        "nvidia-uvm in /proc/devices",
        "it is not there: nvidia-smi works and CUDA does not",
        "`nvidia-modprobe -u -c=0`",
        uvm,
        seen=("NVIDIA/nvidia-docker#396", "NVIDIA/gpu-operator#2685"),
    ),
    Check(
        "char-links",
        GROUP,
        "a link in /dev/char for each node of the driver, and the version of runc",
        "a link is absent and runc is 1.1.3 to 1.1.6; a warning with any other runc:"
        " `Failed to initialize NVML: Unknown Error` after `systemctl daemon-reload`",
        "`nvidia-ctk system create-dev-char-symlinks --create-all` at each boot, or use CDI;"
        " runc 1.1.7 or later",
        char_links,
        seen=("NVIDIA/nvidia-container-toolkit#48", "opencontainers/runc#3671"),
    ),
    Check(
        "xid",
        GROUP,
        "lines of the driver in the kernel's log",
        "a GPU has fallen off the bus (Xid 79); a warning for any other Xid",
        "drain the node, reset the GPU or reboot; if it comes again it is the hardware",
        fallen,
        seen=("leptonai/gpud#1209",),
    ),
    Check(
        "fabric-manager",
        GROUP,
        "NVSwitches on the PCI bus, the process nv-fabricmanager and its version",
        "it does not run where there are switches, or is of another version than the driver: CUDA error 802",
        "start nvidia-fabricmanager, of exactly the driver's version",
        fabric,
        seen=("NVIDIA/gpu-operator#1043",),
    ),
    Check(
        "persistenced",
        GROUP,
        "/run/nvidia-persistenced/socket",
        "the socket is there and nobody listens: `mount error: ... no such device or address`",
        "start nvidia-persistenced, or remove the dead socket",
        persistenced,
        seen=("containerd/containerd#3151", "NVIDIA/nvidia-docker#1300"),
    ),
)
