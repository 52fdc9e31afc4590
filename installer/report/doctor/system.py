"""Check the node: the driver, its device nodes, CDI specifications, and other needs of containers."""

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.cdi.plan import lacking, read_by
from installer.cdi.specification import ALL_GPUS
from installer.model.facts import CdiRow, count
from installer.model.options import GPU_KIND
from installer.report.doctor import model
from installer.report.doctor.model import Node, Verdict, bad, given, judge, list_words, none, ok, warn

VFIO: Final = "vfio-pci"
CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CUDA_11: Final = 450  # the oldest driver for containers of CUDA 11 and later
FALLEN: Final = ("fallen off the bus", "Xid")
UNSIGNED: Final = ("Key was rejected", "Required key not available", "unsigned module")
FABRIC_MANAGER: Final = "nv-fabricmanage"  # as the kernel cuts a process's name
NOT_LOADED: Final = "the driver's module is not loaded"
LOSES_DEVICES: Final = ((1, 1, 3), (1, 1, 7))  # runc: the first version, and the first without the fault
FULL: Final = 95
NEARLY: Final = 85
# The types that containers may use without a boolean (container-selinux).
USABLE: Final = (":container_file_t:", ":container_ro_file_t:", ":svirt_sandbox_file_t:")
FABRIC_UNIT: Final = "nvidia-fabricmanager.service"
REFRESH_UNIT: Final = "nvidia-cdi-refresh.service"
UNITS: Final = ("nvidia-persistenced.service", FABRIC_UNIT, REFRESH_UNIT)
WRITTEN_IN: Final = re.compile(r"""cdiVersion["']?:\s*["']?(\d{1,3}(?:\.\d{1,3}){1,2})""")
# A device node as YAML or JSON: its path, then, before the next path, its major number.
UVM_MAJOR: Final = re.compile(
    r"""path["']?:\s*["']?/dev/nvidia-uvm["']?[,\s]"""
    r"""(?:(?!path["']?:).){0,400}?major["']?:\s*(\d{1,6})""",
    re.DOTALL,
)
CAP: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})")
NEW: Final = (0, 7, 0)  # no engine is known to refuse an older version
MAKE_IT: Final = "`toolkit-installer install --mode cdi`"


def _has_gpus(node: Node) -> bool:
    return bool(node.driver.gpus)


@given(_has_gpus, "no GPU of NVIDIA's on the PCI bus")
def check_gpu_driver(node: Node) -> Verdict:
    gpus = node.driver.gpus
    gpu_count = count(len(gpus), "GPU")
    if all(driver == VFIO for driver in gpus.values()):
        return ok(f"given to virtual machines ({VFIO}): {gpu_count}")
    if not node.driver.loaded:
        return bad(f"{gpu_count}, but no module nvidia in the kernel")

    idle = [address for address, driver in gpus.items() if driver not in {"nvidia", VFIO}]
    return judge(idle, "not driven by nvidia: ", f"{gpu_count}, nvidia loaded")


def check_nouveau(node: Node) -> Verdict:
    driven = [address for address, driver in node.driver.gpus.items() if driver == "nouveau"]
    if driven:
        return bad(f"nouveau drives {list_words(driven)}")
    if "nouveau" in node.driver.modules:
        return warn("the module nouveau is loaded")
    return ok("not loaded")


def _find_lines(node: Node, words: Collection[str]) -> list[str]:
    """Return the lines of the kernel's log with one of ``words``."""
    lines = []
    for line in node.driver.log:
        if any(word in line for word in words):
            lines.append(line)
    return lines


def check_driver_signature(node: Node) -> Verdict:
    if node.driver.loaded:
        return ok("the module is loaded")
    refusals = _find_lines(node, UNSIGNED)
    if refusals:
        return bad(f"the kernel's log says: {refusals[-1]}")
    if node.driver.secure_boot and node.driver.gpus:
        return warn("Secure Boot is on and the module is not loaded")
    return ok("nothing in the kernel's log")


def _has_module(node: Node) -> bool:
    return node.driver.loaded


@given(_has_module, NOT_LOADED)
def check_driver_libraries(node: Node) -> Verdict:
    library = f"libnvidia-ml.so.1 below {node.driver.root}"
    if "libnvidia-ml.so.1" in node.driver.libraries:
        return ok(library)
    return bad(f"no {library}")


def check_driver_version(node: Node) -> Verdict:
    loaded = node.driver.version
    versions = []
    for name in node.driver.libraries:
        suffix = name.removeprefix("libnvidia-ml.so.")
        if len(_parse_version(suffix)) > 1:
            versions.append(suffix)
    if not loaded or not versions:
        return none("the version of the module or of its libraries cannot be read")
    if loaded not in versions:
        return bad(f"the module is {loaded}, the libraries are {list_words(versions)}")
    return ok(f"both are {loaded}")


def _parse_version(text: str) -> model.Version:
    """Return a driver's version as numbers; () for another text."""
    parts = text.split(".")
    if all(part.isdecimal() for part in parts):
        return tuple(map(int, parts))
    return ()


def _has_driver_version(node: Node) -> bool:
    return bool(_parse_version(node.driver.version))


@given(_has_driver_version, "the driver's version cannot be read")
def check_driver_age(node: Node) -> Verdict:
    version = node.driver.version
    if _parse_version(version)[0] < CUDA_11:
        return warn(f"{version}: images of CUDA 11 and later refuse it")
    return ok(version)


def _has_module_version(node: Node) -> bool:
    return node.driver.loaded and bool(node.driver.version)


@given(_has_module_version, NOT_LOADED)
def check_control_nodes(node: Node) -> Verdict:
    present = {str(device.path) for device in node.driver.nodes}
    absent = [path for path in CONTROL if path not in present]
    return judge(absent, "absent: ", count(len(present), "node"))


@given(_has_module_version, NOT_LOADED)
def check_uvm(node: Node) -> Verdict:
    if "nvidia-uvm" in node.driver.majors:
        return ok("nvidia-uvm is served")
    return bad("/proc/devices has no nvidia-uvm")


def _has_device_nodes(node: Node) -> bool:
    return bool(node.driver.nodes)


@given(_has_device_nodes, "no device nodes of the driver")
def check_char_links(node: Node) -> Verdict:
    links = node.driver.char_links
    unlinked = []
    for device in node.driver.nodes:
        if (device.major, device.minor) not in links:
            unlinked.append(str(device.path))
    verdict = judge(unlinked, "no link in /dev/char for ", "a link for each node", warn)

    first, fixed = LOSES_DEVICES
    losing = [label for version, label in node.runc.values() if first <= version < fixed]
    if unlinked and losing:
        return bad(f"{verdict.text}, and {losing[0]} drops such devices")
    return verdict


def check_xid(node: Node) -> Verdict:
    lines = []
    lost = []
    for line in _find_lines(node, FALLEN):
        if "NVRM" in line:
            lines.append(line)
            if "fallen off the bus" in line or ": 79," in line:
                lost.append(line)
    if lost:
        return bad(lost[-1])
    if lines:
        return warn(lines[-1])
    return ok("no Xid in the kernel's log")


def _has_switches(node: Node) -> bool:
    return node.driver.switches > 0


@given(_has_switches, "no NVSwitch on the PCI bus")
def check_fabric_manager(node: Node) -> Verdict:
    managers = [process for process in node.processes if process.name == FABRIC_MANAGER]
    if not managers and not node.sees_host:
        return none("the host's processes are not in view")
    if not managers:
        return bad(f"{count(node.driver.switches, 'NVSwitch device')}, and no nv-fabricmanager runs")

    version = model.spell_version(managers[0].version)
    driver_version = model.spell_version(_parse_version(node.driver.version))
    if version and driver_version and version != driver_version:
        return bad(f"the fabric manager is {version}, the driver {driver_version}")
    return ok("nv-fabricmanager runs")


def check_persistenced(node: Node) -> Verdict:
    if node.driver.persistenced == "dead":
        return bad("/run/nvidia-persistenced/socket exists, but nothing answers on it")
    return ok(f"socket {node.driver.persistenced}")


def check_apparmor(node: Node) -> Verdict:
    denials = []
    for line in node.driver.log:
        if 'apparmor="DENIED"' in line and 'peer="runc"' in line:
            denials.append(line)
    if denials:
        return bad(f"the kernel's log says: {denials[-1]}")
    if "runc" in node.system.apparmor_profiles:
        return warn("a profile named runc is loaded")
    return ok("no profile named runc")


def _enforces_selinux(node: Node) -> bool:
    return node.system.selinux_enforcing


@given(_enforces_selinux, "SELinux does not enforce")
def check_selinux(node: Node) -> Verdict:
    if node.system.devices_for_containers:
        return ok("a boolean lets containers use devices")

    mislabelled = []
    for device in node.driver.nodes:
        if not _is_usable(device):
            mislabelled.append(f"{device.path} ({device.label})")
    return judge(mislabelled, "not for containers: ", "labelled for containers", warn)


def _is_usable(device: model.DeviceNode) -> bool:
    """Tell whether the SELinux type of a device node lets containers use the device."""
    return any(kind in f"{device.label}:" for kind in USABLE)


def _has_inotify_limit(node: Node) -> bool:
    _, limit = node.system.inotify
    return limit > 0


@given(_has_inotify_limit, "the limit cannot be read")
def check_inotify(node: Node) -> Verdict:
    used, limit = node.system.inotify
    return _judge_share(used * 100 / limit, f"{used} of {limit} instances")


def check_run_space(node: Node) -> Verdict:
    return _judge_spaces(_select_spaces(node, in_run=True))


def check_disk_space(node: Node) -> Verdict:
    return _judge_spaces(_select_spaces(node, in_run=False))


def _select_spaces(node: Node, *, in_run: bool) -> dict[PurePosixPath, tuple[int, int]]:
    """Return the used space of the file systems in /run, or of all others."""
    spaces = {}
    for path, space in node.system.spaces.items():
        if path.is_relative_to("/run") is in_run:
            spaces[path] = space
    return spaces


def _judge_spaces(spaces: Mapping[PurePosixPath, tuple[int, int]]) -> Verdict:
    """Judge the fullest file system.

    Args:
        spaces: The used percentage of a file system and of its inodes, by a path in the file system.
    """
    if not spaces:
        return none("cannot be read from here")

    def largest_share(path: PurePosixPath) -> int:
        return max(spaces[path])

    path = max(spaces, key=largest_share)
    space, inodes = spaces[path]
    if inodes > space:
        return _judge_share(inodes, f"{path} is {inodes} % of its inodes")
    return _judge_share(space, f"{path} is {space} % full")


def _judge_share(percent: float, text: str) -> Verdict:
    if percent >= FULL:
        return bad(text)
    if percent >= NEARLY:
        return warn(text)
    return ok(text)


def check_driver_services(node: Node) -> Verdict:
    states = {name: state for name, state in node.system.units.items() if name in UNITS}
    if not states:
        return none("none of the driver's units is there")

    failed = []
    for name, state in states.items():
        # Without an NVSwitch the fabric manager fails: there is nothing for it to do.
        has_work = name != FABRIC_UNIT or node.driver.switches
        if has_work and state.startswith("failed"):
            failed.append(f"{name} is {state}")
    if failed:
        return bad(list_words(failed))

    # A drop-in of the unit may call any exit code a success.
    refresh = states.get(REFRESH_UNIT, "/success")
    refresh_failed = []
    if not refresh.endswith("/success"):
        refresh_failed.append(f"{REFRESH_UNIT} ended with {refresh}")
    return judge(refresh_failed, "", list_words(sorted(states)), warn)


def _select_gpu_specs(node: Node) -> list[model.Spec]:
    return [spec for spec in node.specs if spec.gpus]


def check_cdi_specification(node: Node) -> Verdict:
    paths = [str(spec.path) for spec in _select_gpu_specs(node)]
    if paths:
        return ok(list_words(paths))
    if node.by_cdi is not None:
        return none("see cdi-alone: an install with --mode cdi or nri is there")
    modes = {toolkit.value("nvidia-container-runtime", "mode") for toolkit in node.toolkits}
    if "cdi" in modes and node.driver.loaded:
        return bad('mode is "cdi", and there is no specification for nvidia.com/gpu')
    return none("not needed: no toolkit has mode cdi, and nvidia-cdi makes its own")


def check_cdi_alone(node: Node) -> Verdict:
    if node.by_cdi is None:
        return none("no install with --mode cdi or nri")

    problems = []
    remedies = []
    missing = _find_missing_specification(node, node.by_cdi)
    if missing:
        reason = node.by_cdi.lacking
        problems.append(
            f"there is no specification of {missing} ({reason or 'it was removed after the install'})"
        )
        remedy = MAKE_IT
        if reason:
            remedy = f"correct the reason in brackets; then {MAKE_IT}"
        remedies.append(remedy)

    names = set(node.by_cdi.engines)
    names.intersection_update(exam.name for exam in node.engines)
    for exam in node.engines:
        if exam.name not in names or exam.serving is None:
            continue
        reason = lacking(exam)
        if reason:
            problems.append(f"{exam.name} takes no devices by CDI ({reason})")
            remedies.append(f"give {exam.name} CDI: {exam.kind.cdi.since}")

    if problems:
        return bad(list_words(problems), "; ".join(remedies))
    return ok(f"{list_words(sorted(names)) or 'no engine seen here'}: by CDI")


def _find_missing_specification(node: Node, by_cdi: CdiRow) -> str:
    """Return the CDI name of missing GPU devices, "" if a specification has them."""
    if not node.driver.loaded:
        return ""

    devices: set[str] = set()
    for spec in node.specs:
        devices |= spec.gpus
    if not devices:
        return GPU_KIND
    # A specification of another program may have a few GPUs only.
    if ALL_GPUS not in devices and by_cdi.lacking:
        return f"{GPU_KIND}={ALL_GPUS}"
    return ""


def _has_plugin(node: Node) -> bool:
    return bool(node.plugin)


@given(_has_plugin, "no NRI plugin of ours")
def check_nri_plugin(node: Node) -> Verdict:
    flaws = [state for state, good in node.plugin if not good]
    return judge(flaws, "", list_words([state for state, _ in node.plugin]))


def check_cdi_uvm_number(node: Node) -> Verdict:
    served = node.driver.majors.get("nvidia-uvm")
    specified: dict[int, PurePosixPath] = {}
    for spec in node.specs:
        for major in spec.uvm_majors:
            specified[major] = spec.path
    if served is None or not specified:
        return none("no specification gives a number, or nvidia-uvm is not served")

    wrong = []
    for major, path in specified.items():
        if major != served:
            wrong.append(f"{path} says {major}")
    return judge(wrong, f"nvidia-uvm has major {served}, ", f"major {served}")


def _has_specifications(node: Node) -> bool:
    return bool(node.specs)


@given(_has_specifications, "no CDI specification")
def check_cdi_paths(node: Node) -> Verdict:
    gone: list[str] = []
    for spec in node.specs:
        for path in spec.missing_paths:
            gone.append(f"{path} ({spec.path})")
    if gone:
        return bad(f"not on the node: {list_words(gone)}")

    unreadable = [spec.read_error for spec in node.specs if spec.read_error]
    return judge(unreadable, "", count(len(node.specs), "specification"), warn)


def _has_mig_specification(node: Node) -> bool:
    return bool(node.driver.mig_minors and _select_gpu_specs(node))


@given(_has_mig_specification, "no MIG device, or no specification")
def check_cdi_mig(node: Node) -> Verdict:
    specified: set[int] = set()
    for spec in _select_gpu_specs(node):
        specified |= spec.caps
    absent = [str(minor) for minor in node.driver.mig_minors if minor not in specified]
    fine = f"{len(node.driver.mig_minors)} MIG nodes"
    return judge(absent, "not in any specification: nvidia-cap ", fine)


def check_cdi_version(node: Node) -> Verdict:
    newest = max((spec.version for spec in node.specs), default=())
    says_version = False
    too_old = []
    for exam in node.engines:
        if not exam.version:
            continue
        says_version = True
        # An engine without a known highest version reads all versions.
        highest = read_by(exam.name, exam.version) or newest
        if highest < newest:
            too_old.append(exam.label)

    if not newest or not says_version:
        return none("no specification, or no engine that says its version")
    text = f"cdiVersion {model.spell_version(newest)}"
    if newest < NEW:
        return ok(text)
    return judge(too_old, f"{text}, which is too new for ", text)


@given(_select_gpu_specs, "no CDI specification for nvidia.com/gpu")
def check_cdi_enabled(node: Node) -> Verdict:
    off = [exam.name for exam in node.engines if exam.serving is not None and exam.serving.cdi is False]
    return judge(off, "CDI is switched off in ", "no engine has it switched off", warn)
