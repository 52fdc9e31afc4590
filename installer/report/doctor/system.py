"""Checks of the node: the driver and its device nodes, CDI specifications, what else containers need."""

import re
from functools import partial
from typing import Final

from installer.cdi.plan import lacking, read_by
from installer.cdi.specification import ALL_GPUS
from installer.model.facts import count
from installer.model.options import GPU_KIND
from installer.report.doctor import model
from installer.report.doctor.model import Node, Verdict, bad, given, judge, list_words, none, ok, warn

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
WRITTEN_IN: Final = re.compile(r"""["']?cdiVersion["']?:\s*["']?(\d{1,3}(?:\.\d{1,3}){1,2})""")
# A device node as YAML or JSON: its path, then, before the next one, its major number.
UVM_MAJOR: Final = re.compile(
    r"""["']?path["']?:\s*["']?/dev/nvidia-uvm["']?[,\s]"""
    r"""(?:(?!["']?path["']?:).){0,400}?["']?major["']?:\s*(\d{1,6})""",
    re.DOTALL,
)
CAP: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})")
NEW: Final = (0, 7, 0)  # no engine was seen to refuse an older one
MAKE_IT: Final = "`toolkit-installer install --mode cdi`"


@given(lambda node: node.driver.gpus, "no GPU of NVIDIA's on the PCI bus")
def check_gpu_driver(node: Node) -> Verdict:
    gpus = node.driver.gpus
    if all(driver == VFIO for driver in gpus.values()):
        return ok(f"given to virtual machines ({VFIO}): {count(len(gpus), 'GPU')}")
    if not node.driver.loaded:
        return bad(f"{count(len(gpus), 'GPU')}, but no module nvidia in the kernel")
    idle = [address for address, driver in gpus.items() if driver not in {"nvidia", VFIO}]
    return judge(idle, "not driven by nvidia: ", f"{count(len(gpus), 'GPU')}, nvidia loaded")


def check_nouveau(node: Node) -> Verdict:
    if driven := [address for address, driver in node.driver.gpus.items() if driver == "nouveau"]:
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
        return none("the version of the module or of its libraries cannot be read")
    if loaded not in versions:
        return bad(f"the module is {loaded}, the libraries are {list_words(versions)}")
    return ok(f"both are {loaded}")


def _parse_version(text: str) -> model.Version:
    """Return a driver's version as numbers; () where it is none."""
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


@given(lambda node: _parse_version(node.driver.version), "the driver's version cannot be read")
def check_driver_age(node: Node) -> Verdict:
    version = node.driver.version
    old = _parse_version(version)[0] < CUDA_11
    return warn(f"{version}: images of CUDA 11 and later refuse it") if old else ok(version)


@given(lambda node: node.driver.loaded and node.driver.version, NOT_LOADED)
def check_control_nodes(node: Node) -> Verdict:
    there = {str(each.path) for each in node.driver.nodes}
    return judge([path for path in CONTROL if path not in there], "absent: ", count(len(there), "node"))


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
        return bad(f"{count(node.driver.switches, 'NVSwitch device')}, and no nv-fabricmanager runs")
    versions = model.spell_version(running.version), model.spell_version(_parse_version(node.driver.version))
    if all(versions) and versions[0] != versions[1]:
        return bad(f"the fabric manager is {versions[0]}, the driver {versions[1]}")
    return ok("nv-fabricmanager runs")


def check_persistenced(node: Node) -> Verdict:
    if node.driver.persistenced == "dead":
        return bad("/run/nvidia-persistenced/socket exists, but nothing answers on it")
    return ok(f"socket {node.driver.persistenced}")


def check_apparmor(node: Node) -> Verdict:
    if denied := [line for line in node.driver.log if 'apparmor="DENIED"' in line and 'peer="runc"' in line]:
        return bad(f"the kernel's log says: {denied[-1]}")
    loaded = "runc" in node.system.apparmor_profiles
    return warn("a profile named runc is loaded") if loaded else ok("no profile named runc")


@given(lambda node: node.system.selinux_enforcing, "SELinux does not enforce")
def check_selinux(node: Node) -> Verdict:
    if node.system.devices_for_containers:
        return ok("a boolean lets containers use devices")
    nodes = [each for each in node.driver.nodes if not any(kind in f"{each.label}:" for kind in USABLE)]
    wrong = [f"{each.path} ({each.label})" for each in nodes]
    return judge(wrong, "not for containers: ", "labelled for containers", warn)


@given(lambda node: node.system.inotify[1], "the limit cannot be read")
def check_inotify(node: Node) -> Verdict:
    used, allowed = node.system.inotify
    return _judge_share(used * 100 / allowed, f"{used} of {allowed} instances")


def _judge_spaces(node: Node, *, of_run: bool) -> Verdict:
    found = [each for each in node.system.spaces.items() if each[0].is_relative_to("/run") is of_run]
    if not found:
        return none("cannot be read from here")
    path, (used, inodes) = max(found, key=lambda each: max(each[1]))
    share, of = max(used, inodes), "of its inodes" if inodes > used else "full"
    return _judge_share(share, f"{path} is {share} % {of}")


check_run_space: Final = partial(_judge_spaces, of_run=True)
check_disk_space: Final = partial(_judge_spaces, of_run=False)


def _judge_share(percent: float, found: str) -> Verdict:
    return bad(found) if percent >= FULL else warn(found) if percent >= NEARLY else ok(found)


def check_driver_services(node: Node) -> Verdict:
    states = {name: state for name, state in node.system.units.items() if name in UNITS}
    if not states:
        return none("none of the driver's units is there")
    counted = [name for name in states if name != FABRIC_UNIT or node.driver.switches]
    if failed := [f"{name} is {states[name]}" for name in counted if states[name].startswith("failed")]:
        return bad(list_words(failed))
    refreshed = states.get(REFRESH_UNIT, "/success")  # a drop-in may call any exit code of it a success
    quiet = [] if refreshed.endswith("/success") else [f"{REFRESH_UNIT} ended with {refreshed}"]
    return judge(quiet, "", list_words(sorted(states)), warn)


def _select_gpu_specs(node: Node) -> list[model.Spec]:
    return [spec for spec in node.specs if spec.gpus]


def check_cdi_specification(node: Node) -> Verdict:
    if found := [str(spec.path) for spec in _select_gpu_specs(node)]:
        return ok(list_words(found))
    if node.by_cdi is not None:
        return none("cdi-alone judges that of --mode cdi")
    modes = {toolkit.value("nvidia-container-runtime", "mode") for toolkit in node.toolkits}
    if "cdi" in modes and node.driver.loaded:
        return bad('mode is "cdi", and there is no specification for nvidia.com/gpu')
    return none("no mode needs one; nvidia-cdi makes its own")


def check_cdi_alone(node: Node) -> Verdict:
    if node.by_cdi is None:
        return none("engines were not left to CDI alone by us")
    names = {each.name for each in node.engines} & {*node.by_cdi.engines}
    wrong, todo = [], []
    given = {gpu for spec in node.specs for gpu in spec.gpus}
    reason = node.by_cdi.lacking
    partly = given and ALL_GPUS not in given and reason  # another's, of a few GPUs alone
    if node.driver.loaded and (partly or not given):
        what = f"{GPU_KIND}={ALL_GPUS}" if given else GPU_KIND
        wrong.append(f"there is no specification of {what} ({reason or 'it was removed after the install'})")
        todo.append("correct the reason in brackets; then " + MAKE_IT if reason else MAKE_IT)
    for each in node.engines:
        if each.name in names and each.serving is not None and (reason := lacking(each)):
            wrong.append(f"{each.name} takes no devices by CDI ({reason})")
            todo.append(f"give {each.name} CDI: {each.spec.cdi.since}")
    if wrong:
        return bad(list_words(wrong), "; ".join(todo))
    return ok(f"{list_words(sorted(names)) or 'no engine seen here'}: by CDI")


@given(lambda node: node.plugin, "no NRI plugin of ours")
def check_nri_plugin(node: Node) -> Verdict:
    wrong = [state for state, good in node.plugin if not good]
    return judge(wrong, "", list_words([state for state, _ in node.plugin]))


def check_cdi_uvm_number(node: Node) -> Verdict:
    real = node.driver.majors.get("nvidia-uvm")
    majors = {major: spec.path for spec in node.specs for major in spec.uvm_majors}
    if real is None or not majors:
        return none("no specification gives a number, or nvidia-uvm is not served")
    wrong = [f"{path} says {major}" for major, path in majors.items() if major != real]
    return judge(wrong, f"nvidia-uvm has major {real}, ", f"major {real}")


@given(lambda node: node.specs, "no CDI specification")
def check_cdi_paths(node: Node) -> Verdict:
    if gone := [f"{path} ({spec.path})" for spec in node.specs for path in spec.gone]:
        return bad(f"not on the node: {list_words(gone)}")
    unreadable = [spec.unreadable for spec in node.specs if spec.unreadable]
    return judge(unreadable, "", count(len(node.specs), "specification"), warn)


@given(lambda node: node.driver.mig_minors and _select_gpu_specs(node), "no MIG device, or no specification")
def check_cdi_mig(node: Node) -> Verdict:
    minors = {minor for spec in _select_gpu_specs(node) for minor in spec.caps}
    absent = [str(minor) for minor in node.driver.mig_minors if minor not in minors]
    fine = f"{len(node.driver.mig_minors)} MIG nodes"
    return judge(absent, "not in any specification: nvidia-cap ", fine)


def check_cdi_version(node: Node) -> Verdict:
    newest = max((spec.version for spec in node.specs), default=())
    asked = [(exam.label, exam.name, version) for exam in node.engines if (version := exam.version)]
    if not newest or not asked:
        return none("no specification, or no engine that says its version")
    # An engine reads all versions, unless the highest one is known.
    old = [label for label, name, version in asked if (read_by(name, version) or newest) < newest]
    found = f"cdiVersion {model.spell_version(newest)}"
    return judge(old if newest >= NEW else (), f"{found}, which is too new for ", found)


@given(_select_gpu_specs, "no CDI specification for nvidia.com/gpu")
def check_cdi_enabled(node: Node) -> Verdict:
    off = [each.name for each in node.engines if each.serving is not None and each.serving.cdi is False]
    return judge(off, "CDI is switched off in ", "no engine has it switched off", warn)
