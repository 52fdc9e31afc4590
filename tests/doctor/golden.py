"""A GPU node on which nothing is wrong: its files, and what only a kernel, programs and engines would tell."""

from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from installer import engines
from installer.config_text import Tree
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.facts import CdiRow
from installer.model.options import Options
from installer.report.doctor.model import DeviceNode, EngineExam, Node, Process, Toolkit
from installer.report.doctor.read import read_node
from tests.support.files import put

TOOLKIT = "/usr/local/nvidia/toolkit"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
GPU = "/sys/bus/pci/devices/0000:17:00.0"
SWITCH = "/sys/bus/pci/devices/0000:c1:00.0"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
SPEC = "/etc/cdi/nvidia.yaml"
CAPABILITIES = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"

# A node with an H100 and driver 550.54.15, as its files tell; the kernel's log as /dev/kmsg gives it.
FILES = {
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/class": "0x030200\n",
    f"{SWITCH}/vendor": "0x10de\n",
    f"{SWITCH}/class": "0x068000\n",
    "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
    "/sys/module/nvidia/version": "550.54.15\n",
    "/sys/module/nvidia_uvm/refcnt": "4\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory\n",
    "/sys/fs/selinux/enforce": "1",
    "/sys/fs/selinux/booleans/container_use_devices": "0 0",
    "/sys/kernel/security/apparmor/profiles": "docker-default (enforce)\n/usr/sbin/cups (complain)\n",
    SECURE_BOOT: "\x06\0\0\0\0",
    "/proc/devices": "Character devices:\n  1 mem\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
    "/proc/sys/fs/inotify/max_user_instances": "8192\n",
    f"{CAPABILITIES}/access": "DeviceFileMinor: 12\nDeviceFileMode: 292\n",
    f"{CAPABILITIES}/ci0/access": "DeviceFileMinor: 13\nDeviceFileMode: 292\n",
    "/proc/900/status": "Name:\tkubelet\nUid:\t0\t0\t0\t0\n",
    "/proc/1/comm": "systemd\n",
    "/proc/900/comm": "kubelet\n",
    "/proc/900/cmdline": "kubelet\0--config=/var/lib/kubelet/config.yaml\0",
    "/usr/bin/kubelet": "#!/bin/true\n",
    "/var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n",
    "/dev/kmsg": "6,1,0,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15": "",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "",
    "/sbin/ldconfig": "",
    "/usr/sbin/runc": "",
    "/usr/bin/nvidia-smi": "",
    "/usr/share/containers/oci/hooks.d/site.json": '{"hook": {"path": "/usr/bin/nvidia-smi"}}',
    RUNTIME: "",
    f"{TOOLKIT}/nvidia-container-cli": "",
    CONFIG: """\
[nvidia-container-cli]
ldconfig = "@/sbin/ldconfig"
no-cgroups = false
root = "/"

[nvidia-container-runtime]
debug = "/dev/null"
log-level = "info"
mode = "auto"
runtimes = ["/usr/sbin/runc"]

[nvidia-container-runtime-hook]
skip-mode-detection = true
""",
    SPEC: """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              major: 195
            - path: /dev/nvidia-uvm
              type: c
              major: 508
            - path: /dev/nvidia-caps/nvidia-cap12
            - path: /dev/nvidia-caps/nvidia-cap13
containerEdits:
    mounts:
        - hostPath: /usr/bin/nvidia-smi
          containerPath: /usr/bin/nvidia-smi
""",
}
LINKS = {
    f"{GPU}/driver": "/sys/bus/pci/drivers/nvidia",
    "/proc/900/ns/mnt": "mnt:[4026531841]",
    "/proc/1/ns/mnt": "mnt:[4026531841]",
    **{f"/dev/char/195:{minor}": "../nvidia0" for minor in (0, 255)},
    **{f"/dev/char/508:{minor}": "../nvidia-uvm" for minor in (0, 1)},
}
NODES = (
    DeviceNode(PurePosixPath("/dev/nvidia0"), 195, 0, "system_u:object_r:container_file_t:s0"),
    DeviceNode(PurePosixPath("/dev/nvidiactl"), 195, 255, "system_u:object_r:container_file_t:s0"),
    DeviceNode(PurePosixPath("/dev/nvidia-uvm"), 508, 0, "system_u:object_r:container_file_t:s0"),
    DeviceNode(PurePosixPath("/dev/nvidia-uvm-tools"), 508, 1, "system_u:object_r:container_file_t:s0"),
)
RUNC: Tree = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "", "SystemdCgroup": True}}
OURS: Tree = {
    "runtimeType": "io.containerd.runc.v2",
    "options": {"BinaryName": RUNTIME, "SystemdCgroup": True},
}
HANDLERS = {"runc": Runtime("", RUNC), "nvidia": Runtime(RUNTIME, OURS)}
SERVING = EffectiveConfig(HANDLERS, "runc", cdi=True)
CONTAINERD = PurePosixPath("/etc/containerd/config.toml")
DAEMON = PurePosixPath("/etc/docker/daemon.json")
RUNS = "active/running/success"
ENGINES = (
    EngineExam(
        *(engines.ENGINES["docker"], DAEMON, None, None, (DAEMON,)),
        *(PurePosixPath("/run/docker.sock"), "docker.service"),
        version=(28, 5, 2),
        serving=EffectiveConfig(
            {"runc": Runtime("runc"), "nvidia": Runtime(RUNTIME)}, "runc", cdi=True, cgroup_driver="systemd"
        ),
        on_disk=EffectiveConfig({"runc": Runtime("runc"), "nvidia": Runtime(RUNTIME)}, "runc"),
        unit_state=RUNS,
        has_hook=True,
    ),
    EngineExam(
        *(engines.ENGINES["containerd"], CONTAINERD, None, None, (CONTAINERD,)),
        *(PurePosixPath("/run/containerd/containerd.sock"), "containerd.service"),
        version=(2, 1, 9),
        serving=SERVING,
        on_disk=SERVING,
        trees={CONTAINERD: {"version": 3}},
        unit_state=RUNS,
    ),
)
SHIM = "/usr/bin/containerd-shim-runc-v2"
PROCESSES = (
    Process(700, "containerd", "/usr/bin/containerd", version=(2, 1, 9), label="containerd 2.1.9"),
    Process(701, "containerd-shim", SHIM, version=(2, 1, 9), label="containerd-shim 2.1.9"),
    Process(702, "nv-fabricmanage", "/usr/bin/nv-fabricmanager", version=(550, 54, 15)),
)


def link(root: Path, path: str, target: str) -> None:
    """Make a link of the node, in the place of another."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


def lay(root: Path) -> Path:
    """Lay the files of the node below ``root``."""
    put(root, FILES)
    for path, target in LINKS.items():
        link(root, path, target)
    # A process names its program by the path that it has here: nothing outside the root is looked at.
    link(root, "/proc/900/exe", str(root / "usr/bin/kubelet"))
    (root / "usr/bin/kubelet").chmod(0o755)
    (root / "run").mkdir()
    return root


def read(root: Path) -> Node:
    """Read the files as ``doctor`` does, and add what needs a kernel, programs that run, and engines."""
    node = read_node(Host.under(PurePosixPath(root)), Options(host_root=PurePosixPath(root)))
    (toolkit,) = node.toolkits
    system = replace(
        node.system, spaces={PurePosixPath("/run"): (3, -1), PurePosixPath("/var"): (60, 20)}, units=UNITS
    )
    return replace(
        node,
        driver=replace(node.driver, nodes=NODES),
        toolkits=(replace(toolkit, library=(1, 19, 1), cli=(1, 19, 1), ctk=(1, 19, 1)),),
        engines=ENGINES,
        processes=PROCESSES,
        runc={"/usr/sbin/runc": ((1, 4, 3), "runc 1.4.3")},
        programs=node.programs | {RUNTIME, "runc"},
        status_lines=(("/etc/docker/daemon.json", "as we wrote it", True),),
        system=system,
    )


def by_cdi(node: Node) -> Node:
    """Return the node as ``--mode nri`` makes it: no runtime of ours anywhere, and a plugin that is registered."""
    served = EffectiveConfig(
        {"runc": Runtime("", RUNC)}, "runc", cdi=True, cdi_dirs=(PurePosixPath("/var/run/cdi"),)
    )
    return replace(
        node,
        engines=tuple(replace(each, serving=served, on_disk=served, has_hook=False) for each in node.engines),
        toolkits=(OTHER,),
        by_cdi=CdiRow(("docker", "containerd")),
        plugin=(("registered with containerd 2.1.9, since 2026-01-01T00:00:00Z", True),),
    )


UNITS = {
    "nvidia-persistenced.service": "active/running/success",
    "nvidia-cdi-refresh.service": "inactive/dead/success",
}
OTHER = Toolkit(PurePosixPath("/usr/bin"))
