"""Checks of the node: the driver and its device nodes, and what else containers need of it."""

from functools import partial
from typing import Final

from installer.report.doctor.model import Node, Version, given
from installer.report.doctor.verdict import Verdict, bad, judge, list_words, none, ok, warn

VFIO: Final = "vfio-pci"
CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CUDA_11: Final = 450  # containers of CUDA 11 and later ask for it
FALLEN: Final = ("fallen off the bus", "Xid")
UNSIGNED: Final = ("Key was rejected", "Required key not available", "unsigned module")
FABRIC_MANAGER: Final = "nv-fabricmanage"  # as the kernel cuts a process's name
NOT_LOADED: Final = "the driver's module is not loaded"
LOSES_DEVICES: Final = ((1, 1, 3), (1, 1, 7))  # runc, from and before
FULL: Final = 95
NEARLY: Final = 85
# The types that containers may use without a boolean (container-selinux).
USABLE: Final = (":container_file_t:", ":container_ro_file_t:", ":svirt_sandbox_file_t:")
FABRIC_UNIT: Final = "nvidia-fabricmanager.service"  # it fails where there is nothing for it to do
REFRESH_UNIT: Final = "nvidia-cdi-refresh.service"
UNITS: Final = ("nvidia-persistenced.service", FABRIC_UNIT, REFRESH_UNIT)


@given(lambda node: node.driver.gpus, "no GPU of NVIDIA's on the PCI bus")
def check_gpu_driver(node: Node) -> Verdict:
    gpus = node.driver.gpus
    if all(gpu.driver == VFIO for gpu in gpus):
        return ok(f"{len(gpus)} GPUs are given to virtual machines ({VFIO})")
    if not node.driver.loaded:
        return bad(f"{len(gpus)} GPUs, but no module nvidia in the kernel")
    idle = [gpu.address for gpu in gpus if gpu.driver not in {"nvidia", VFIO}]
    return judge(idle, "not driven by nvidia: ", f"{len(gpus)} GPUs, nvidia loaded")


def check_nouveau(node: Node) -> Verdict:
    if driven := [gpu.address for gpu in node.driver.gpus if gpu.driver == "nouveau"]:
        return bad(f"nouveau drives {list_words(driven)}")
    return warn("the module nouveau is loaded") if "nouveau" in node.driver.modules else ok("not loaded")


def check_driver_signature(node: Node) -> Verdict:
    if node.driver.loaded:
        return ok("the module is loaded")
    if refused := [line for line in node.driver.log if any(words in line for words in UNSIGNED)]:
        return bad(f"the kernel's log says: {refused[-1]}")
    if node.driver.secure_boot and node.driver.gpus:
        return warn("Secure Boot is on and the module is not loaded")
    return ok("nothing in the kernel's log")


@given(lambda node: node.driver.loaded, NOT_LOADED)
def check_driver_libraries(node: Node) -> Verdict:
    library = f"libnvidia-ml.so.1 below {node.driver.root}"
    return ok(library) if "libnvidia-ml.so.1" in node.driver.libraries else bad(f"no {library}")


def check_driver_version(node: Node) -> Verdict:
    loaded = node.driver.version
    suffixes = [name.removeprefix("libnvidia-ml.so.") for name in node.driver.libraries]
    versions = [suffix for suffix in suffixes if len(_parse_version(suffix)) > 1]
    if not loaded or not versions:
        return none("the version of the module or that of its libraries is not to be seen")
    if loaded not in versions:
        return bad(f"the module is {loaded}, the libraries are {list_words(versions)}")
    return ok(f"both are {loaded}")


def _parse_version(text: str) -> Version:
    """Return a driver's version as numbers; () where it is none."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


@given(lambda node: _parse_version(node.driver.version), "the driver's version is not to be seen")
def check_driver_age(node: Node) -> Verdict:
    if _parse_version(node.driver.version)[0] < CUDA_11:
        return warn(f"{node.driver.version}: images of CUDA 11 and later refuse it")
    return ok(node.driver.version)


@given(lambda node: node.driver.loaded and node.driver.version, NOT_LOADED)
def check_control_nodes(node: Node) -> Verdict:
    there = {str(each.path) for each in node.driver.nodes}
    return judge([path for path in CONTROL if path not in there], "absent: ", f"{len(there)} nodes")


@given(lambda node: node.driver.loaded and node.driver.version, NOT_LOADED)
def check_uvm(node: Node) -> Verdict:
    served = "nvidia-uvm" in node.driver.majors
    return ok("nvidia-uvm is served") if served else bad("/proc/devices has no nvidia-uvm")


@given(lambda node: node.driver.nodes, "no device nodes of the driver")
def check_char_links(node: Node) -> Verdict:
    links = node.driver.char_links
    absent = [str(each.path) for each in node.driver.nodes if (each.major, each.minor) not in links]
    first, fixed = LOSES_DEVICES
    losing = [label for version, label in node.runc.values() if first <= version < fixed]
    verdict = judge(absent, "no link in /dev/char for ", "a link for each node", warn)
    return bad(f"{verdict.found}, and {losing[0]} drops such devices") if absent and losing else verdict


def check_xid(node: Node) -> Verdict:
    lines = [line for line in node.driver.log if "NVRM" in line and any(word in line for word in FALLEN)]
    if lost := [line for line in lines if "fallen off the bus" in line or ": 79," in line]:
        return bad(lost[-1])
    return warn(lines[-1]) if lines else ok("no Xid in the kernel's log")


@given(lambda node: node.driver.switches, "no NVSwitch on the PCI bus")
def check_fabric_manager(node: Node) -> Verdict:
    running = next((each for each in node.processes if each.name == FABRIC_MANAGER), None)
    if running is None and not node.sees_host:
        return none("the host's processes are not in view")
    if running is None:
        return bad(f"{len(node.driver.switches)} NVSwitches, and no nv-fabricmanager runs")
    versions = ".".join(map(str, running.version)), ".".join(map(str, _parse_version(node.driver.version)))
    if all(versions) and versions[0] != versions[1]:
        return bad(f"the fabric manager is {versions[0]}, the driver {versions[1]}")
    return ok("nv-fabricmanager runs")


def check_persistenced(node: Node) -> Verdict:
    if node.driver.persistenced == "dead":
        return bad("/run/nvidia-persistenced/socket is there, and nobody listens")
    return ok(f"socket {node.driver.persistenced}")


def check_apparmor(node: Node) -> Verdict:
    if denied := [line for line in node.driver.log if 'apparmor="DENIED"' in line and 'peer="runc"' in line]:
        return bad(f"the kernel's log says: {denied[-1]}")
    if "runc" in node.system.apparmor_profiles:
        return warn("a profile named runc is loaded")
    return ok("no profile named runc")


@given(lambda node: node.system.selinux_enforcing, "SELinux does not enforce")
def check_selinux(node: Node) -> Verdict:
    if node.system.devices_for_containers:
        return ok("a boolean lets containers use devices")
    nodes = [each for each in node.driver.nodes if not any(kind in f"{each.label}:" for kind in USABLE)]
    wrong = [f"{each.path} ({each.label})" for each in nodes]
    return judge(wrong, "not for containers: ", "labelled for containers", warn)


@given(lambda node: node.system.inotify[1], "the limit is not to be seen")
def check_inotify(node: Node) -> Verdict:
    used, allowed = node.system.inotify
    return _judge_share(used * 100 / allowed, f"{used} of {allowed} instances")


def _judge_spaces(node: Node, *, of_run: bool) -> Verdict:
    spaces = [each for each in node.system.spaces if each.path.is_relative_to("/run") is of_run]
    if not spaces:
        return none("not to be seen")
    worst = max(spaces, key=lambda each: max(each.used, each.inodes_used))
    share = max(worst.used, worst.inodes_used)
    of = "of its inodes" if worst.inodes_used > worst.used else "full"
    return _judge_share(share, f"{worst.path} is {share} % {of}")


check_run_space: Final = partial(_judge_spaces, of_run=True)
check_disk_space: Final = partial(_judge_spaces, of_run=False)


def _judge_share(percent: float, found: str) -> Verdict:
    return bad(found) if percent >= FULL else warn(found) if percent >= NEARLY else ok(found)


def check_driver_services(node: Node) -> Verdict:
    states = {name: state for name, state in node.system.units.items() if name in UNITS}
    if not states:
        return none("none of the driver's units is there")
    failed = [name for name, state in states.items() if state.startswith("failed")]
    if failed := [name for name in failed if name != FABRIC_UNIT or node.driver.switches]:
        return bad(list_words([f"{name} is {states[name]}" for name in failed]))
    # A drop-in may call any exit code of it a success.
    quiet = [
        f"{name} ended with {state}"
        for name, state in states.items()
        if name == REFRESH_UNIT and not state.endswith("/success")
    ]
    return judge(quiet, "", list_words(sorted(states)), warn)
