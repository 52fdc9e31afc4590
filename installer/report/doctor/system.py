"""Checks of the node: the driver and its device nodes, and what else containers need of it."""

from collections.abc import Mapping
from typing import Final

from installer.report.doctor.model import Judge, Node, Space, Version
from installer.report.doctor.verdict import Verdict, bad, listed, none, ok, warn

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
    absent = [
        str(each.path) for each in node.driver.nodes if (each.major, each.minor) not in node.driver.char_links
    ]
    if not absent:
        return ok("a link for each node")
    first, fixed = LOSES_DEVICES
    losing = [said for version, said in node.runc.values() if first <= version < fixed]
    where = f"no link in /dev/char for {listed(absent)}"
    return bad(f"{where}, and {losing[0]} drops such devices") if losing else warn(where)


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


FULL: Final = 95
NEARLY: Final = 85
# The types that containers may use without a boolean (container-selinux).
USABLE: Final = ("container_file_t", "container_ro_file_t", "svirt_sandbox_file_t")
SERVICES: Final = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")
REFRESH: Final = "nvidia-cdi-refresh.service"
NOTHING_TO_DO: Final = "nvidia-fabricmanager.service"


def apparmor(node: Node) -> Verdict:
    """Judge whether AppArmor keeps runc from ending containers."""
    denied = [line for line in node.driver.log if 'apparmor="DENIED"' in line and 'peer="runc"' in line]
    if denied:
        return bad(f"the kernel's log says: {denied[-1]}")
    if "runc" in node.system.apparmor_profiles:
        return warn("a profile named runc is loaded")
    return ok("no profile named runc")


def selinux(node: Node) -> Verdict:
    """Judge whether SELinux lets containers use the driver's nodes."""
    if not node.system.selinux_enforcing:
        return none("SELinux does not enforce")
    if node.system.devices_for_containers:
        return ok("a boolean lets containers use devices")
    wrong = [f"{each.path} ({each.label})" for each in node.driver.nodes if not _usable(each.label)]
    return warn(f"not for containers: {listed(wrong)}") if wrong else ok("labelled for containers")


def _usable(label: str) -> bool:
    return any(f":{kind}:" in f"{label}:" for kind in USABLE)


def inotify(node: Node) -> Verdict:
    """Judge whether root's inotify instances run out."""
    used, allowed = node.system.inotify
    if not allowed:
        return none("the limit is not to be seen")
    found = f"{used} of {allowed} instances"
    if used * 100 >= allowed * FULL:
        return bad(found)
    return warn(found) if used * 100 >= allowed * NEARLY else ok(found)


def _fullness(spaces: list[Space]) -> Verdict:
    if not spaces:
        return none("not to be seen")
    worst = max(spaces, key=lambda each: max(each.used, each.inodes_used))
    share = max(worst.used, worst.inodes_used)
    of = "of its inodes" if worst.inodes_used > worst.used else "full"
    found = f"{worst.path} is {share} % {of}"
    if share >= FULL:
        return bad(found)
    return warn(found) if share >= NEARLY else ok(found)


def run(node: Node) -> Verdict:
    """Judge whether /run is full, where each container has its state."""
    return _fullness([each for each in node.system.spaces if each.path.is_relative_to("/run")])


def disk(node: Node) -> Verdict:
    """Judge whether the disks of engines and toolkit are full."""
    return _fullness([each for each in node.system.spaces if not each.path.is_relative_to("/run")])


def services(node: Node) -> Verdict:
    """Judge whether the driver's own services are well."""
    there = {name: state for name, state in node.system.units.items() if name in (*SERVICES, REFRESH)}
    if not there:
        return none("none of the driver's units is there")
    failed = [
        f"{name} is {state}"
        for name, state in there.items()
        if state.startswith("failed") and (name != NOTHING_TO_DO or node.driver.switches)
    ]
    if failed:
        return bad(listed(failed))
    quiet = [f"{name} ended with {state}" for name, state in there.items() if _hidden(name, state)]
    return warn(listed(quiet)) if quiet else ok(listed(sorted(there)))


def _hidden(name: str, state: str) -> bool:
    """Tell whether a unit has failed that does not say so: a drop-in may call any exit code a success."""
    return name == REFRESH and not state.endswith("/success")


JUDGES: Final[Mapping[str, Judge]] = {
    "gpu-driver": gpu_driver,
    "nouveau": nouveau,
    "driver-signature": signature,
    "driver-libraries": libraries,
    "driver-version": same_version,
    "driver-age": age,
    "control-nodes": control_nodes,
    "uvm": uvm,
    "char-links": char_links,
    "xid": fallen,
    "fabric-manager": fabric,
    "persistenced": persistenced,
    "apparmor": apparmor,
    "selinux": selinux,
    "inotify": inotify,
    "run-space": run,
    "disk-space": disk,
    "driver-services": services,
}
