"""Configs and container states as large nodes have them."""

import json
from pathlib import Path, PurePosixPath

from installer.engines.stopped_units import TASKS

OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def config(size_bytes: int) -> str:
    """Return a config.toml of that size: the mirrors of many registries, as a large platform's has them."""
    head = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    mirror = (
        '\n[plugins."io.containerd.grpc.v1.cri".registry.mirrors."registry-{0}.example.com"]\n'
        '  # the one of building {0}\n  endpoint = ["https://mirror-{0}.example.com", "https://other-{0}.example.com"]\n'
    )
    return head + "".join(mirror.format(number) for number in range(size_bytes // 210))


def shims(root: Path, count: int) -> None:
    """Make the bundles of ``count`` containers, the last of which runs on ours."""
    for number in range(count):
        bundle = root / "run/containerd" / TASKS / "k8s.io" / f"{number:064x}"
        bundle.mkdir(parents=True)
        binary = str(OURS) if number == count - 1 else "/usr/bin/runc"
        (bundle / "options.json").write_text(json.dumps({"binary_name": binary, "systemd_cgroup": True}))
        (bundle / "config.json").write_text(json.dumps({"ociVersion": "1.2.1", "root": {"path": "rootfs"}}))
