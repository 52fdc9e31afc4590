"""Checks of the node besides driver, toolkit and engines."""

from typing import Final

from installer.decide.doctor.facts import Node, Space
from installer.decide.doctor.model import Check, Level, Verdict, bad, listed, none, ok, warn

GROUP: Final = "Node"
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


CHECKS: Final = (
    Check(
        "apparmor",
        GROUP,
        "AppArmor's profiles, and the kernel's log",
        "signals to runc are denied; a warning where a profile named runc is loaded:"
        " `unable to signal init: permission denied`, pods stay Terminating",
        "upgrade containerd or Docker; or unload it: `apparmor_parser -R /etc/apparmor.d/runc`",
        apparmor,
        seen=("opencontainers/runc#4281", "containerd/containerd#10542"),
    ),
    Check(
        "selinux",
        GROUP,
        "whether SELinux enforces, its booleans container_use_devices and container_use_xserver_devices, the"
        " labels of /dev/nvidia*",
        "a warning where a node is labelled for others than containers: `Failed to initialize NVML:"
        " Insufficient Permissions`",
        "`setsebool -P container_use_devices on`, or relabel: `chcon -t container_file_t /dev/nvidia*`",
        selinux,
        Level.WARN,
        ("NVIDIA/gpu-operator#553", "containers/container-selinux#306"),
    ),
    Check(
        "inotify",
        GROUP,
        "inotify instances of root's processes, and fs.inotify.max_user_instances",
        f"{FULL} % are used, a warning from {NEARLY} %: `too many open files`",
        "`sysctl -w fs.inotify.max_user_instances=8192`, and in /etc/sysctl.d to keep it",
        inotify,
        seen=("k3s-io/k3s#10020",),
    ),
    Check(
        "run-space",
        GROUP,
        "space and inodes of /run",
        f"{FULL} % are used, a warning from {NEARLY} %",
        'see what fills it: `du -x /run`; the runtime\'s log is one (`log-level = "warning"`)',
        run,
        seen=("NVIDIA/nvidia-container-toolkit#511",),
    ),
    Check(
        "disk-space",
        GROUP,
        "space and inodes where engines and the toolkit are",
        f"{FULL} % are used, a warning from {NEARLY} %",
        "remove images that nobody uses, or give the disk more space",
        disk,
    ),
    Check(
        "driver-services",
        GROUP,
        "the units nvidia-persistenced, nvidia-fabricmanager and nvidia-cdi-refresh",
        "one has failed; a warning where nvidia-cdi-refresh ended badly and its unit hides it",
        "`systemctl status` of the unit",
        services,
        seen=("kaito-project/kaito#2326",),
    ),
)
