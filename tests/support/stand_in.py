"""What a test's node is made of: the configs of three engines, and a toolkit that does nothing."""

import sys
from pathlib import Path

DAEMON_JSON = """\
{
  "log-driver": "json-file",
  "log-opts": { "max-size": "100m", "max-file": "3" },
  "registry-mirrors": ["https://mirror.example.com"],
\t"default-ulimits": {"memlock": {"Name": "memlock", "Hard": 18446744073709551615, "Soft": -1}}
}"""

CONTAINERD_TOML = """\
# Written by the image build. Ask the platform team before you change it.
version = 2
root = '/var/lib/containerd'   # on the fast disk

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.com/pause:3.9"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true  # kubelet uses the systemd driver

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
# end of file
"""

CRIO_CONF = """\
# The CRI-O configuration file specifies all of the available configuration options.
[crio.runtime]
default_runtime = "crun"
# pids_limit = 0
conmon_cgroup = "pod"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = [
  "io.containers.trace-syscall",  # debugging
]
"""

CONFIGS = {
    "etc/docker/daemon.json": DAEMON_JSON,
    "etc/containerd/config.toml": CONTAINERD_TOML,
    "etc/crio/crio.conf": CRIO_CONF,
}
# As NVIDIA's image has them.
PROGRAMS = tuple(
    f"usr/local/sbin/nvidia-{name}"
    for name in (
        *("cdi-hook", "container-cli", "container-runtime", "container-runtime-hook"),
        *("container-runtime.cdi", "container-runtime.legacy", "ctk"),
    )
)
LIBRARIES = ("usr/lib64/libnvidia-container-go.so.1", "usr/lib64/libnvidia-container.so.1")


def stand_in_payload(source: Path) -> None:
    """Make a toolkit whose files carry true names and ELF headers of this machine, and do nothing."""
    with Path(sys.executable).open("rb") as file:
        head = file.read(64)
    for name in (*PROGRAMS, *LIBRARIES):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = head + path.name.encode()
        if name in LIBRARIES:
            real = path.with_name(f"{path.name}.99.0")
            real.write_bytes(content)
            path.symlink_to(real.name)
        else:
            path.write_bytes(content)
            path.chmod(0o755)
