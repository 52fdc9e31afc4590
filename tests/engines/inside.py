"""What a container with the installer is given of its node, also by the GPU Operator of today, and how it is stopped."""

from contextlib import suppress
from pathlib import Path

from tests.engines.cri import Cri, CriError
from tests.engines.payload import ARTIFACTS

PROJECT = str(Path(__file__).parent.parent.parent)
# The test image is a busybox: the node's own Python and the project come in as mounts.
PYTHONS = {"/host": "/", "/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", PROJECT: PROJECT}
MOUNTS = {**PYTHONS, ARTIFACTS: ARTIFACTS}
LOG = "installer.log"
GRACE_S = 30

# The variables and the mounts of the operator's DaemonSet.
INSTALL_DIR = "/usr/local/nvidia"
# What the operator mounts (object_controls.go, 0500_daemonset.yaml).
OPERATORS_MOUNTS = {
    **PYTHONS,
    "/artifacts/deb": ARTIFACTS,
    INSTALL_DIR: INSTALL_DIR,
    "/run/nvidia/toolkit": "/run/nvidia/toolkit",
    "/run/nvidia/validations": "/run/nvidia/validations",
    "/driver-root": "/run/nvidia/driver",
    "/var/run/cdi": "/var/run/cdi",
}
PLACES = {
    "/runtime/config-dir": "/etc/containerd",
    "/runtime/config-dir.d": "/etc/containerd/conf.d",
    "/runtime/sock-dir": "/run/containerd",
}
COMMON = {
    "ROOT": INSTALL_DIR,
    "TOOLKIT_PID_FILE": "/run/nvidia/toolkit/toolkit.pid",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND": "management.nvidia.com/gpu",
    "NRI_NAMESPACE": "gpu-operator",
    "IS_HOST_DRIVER": "false",
    "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    "DRIVER_ROOT_CTR_PATH": "/driver-root",
    "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
    "DEV_ROOT_CTR_PATH": "/driver-root",
    "foo": "bar",
}
CONTAINERD = {
    "RUNTIME": "containerd",
    "CONTAINERD_RUNTIME_CLASS": "nvidia",
    "RUNTIME_CONFIG": "/runtime/config-dir/config.toml",
    "CONTAINERD_CONFIG": "/runtime/config-dir/config.toml",
    "RUNTIME_DROP_IN_CONFIG": "/runtime/config-dir.d/99-nvidia.toml",
    "RUNTIME_DROP_IN_CONFIG_HOST_PATH": "/etc/containerd/conf.d/99-nvidia.toml",
    "RUNTIME_SOCKET": "/runtime/sock-dir/containerd.sock",
    "CONTAINERD_SOCKET": "/runtime/sock-dir/containerd.sock",
}
CDI = {
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
}


def stop(cri: Cri, container: str) -> None:
    """Stop a container as the kubelet does: its call ends with the containerd that took it, so it asks again."""
    with suppress(CriError):
        cri.stop_container(container, GRACE_S)
    cri.wait()
    cri.stop_container(container, GRACE_S)
