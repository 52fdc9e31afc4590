"""docs/migrate.md: from NVIDIA's packages of the host to our install and back, while containers run."""

import json

import pytest

from tests.engines import live
from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.payload import ARTIFACTS, MARK
from tests.engines.told import served, snapshot

CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
PACKAGES = "/usr/bin/nvidia-container-runtime"
IN_USE = 4


def _install_packages(node: Node) -> None:
    """Put NVIDIA's programs into /usr/bin, as apt and dnf do."""
    node.run(["sh", "-c", f"cp {ARTIFACTS}/usr/bin/* /usr/bin/"])


def _configure(node: Node) -> None:
    """Configure the engine as ``nvidia-ctk runtime configure`` does, and restart it as its manual says.

    For containerd 1.x it writes into config.toml; since toolkit 1.18 it writes a drop-in and an import.
    """
    if node.engine == "docker":
        said = json.loads(node.read(DOCKER))
        said["runtimes"] = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
        node.write(DOCKER, json.dumps(said, indent=4))
    else:
        text = node.read(CONTAINERD)
        schema = 3 if "version = 3" in text else 2
        key = f'plugins."{CRI[schema]}".containerd.runtimes.nvidia'
        table = (
            f'[{key}]\nruntime_type = "io.containerd.runc.v2"\n'
            f'[{key}.options]\nBinaryName = "{PACKAGES}"\nSystemdCgroup = false\n'
        )
        if schema == 3:
            node.write(DROP_IN, f"version = 3\n{table}")
            node.write(CONTAINERD, f'imports = ["/etc/containerd/conf.d/*.toml"]\n{text}')
        else:
            node.write(CONTAINERD, f"{text}\n{table}")
    node.restart_engine()


@pytest.mark.sampled(16)
def test_from_the_packages_of_the_host_to_us_and_back_while_containers_run(node: Node) -> None:
    _install_packages(node)
    _configure(node)
    files = snapshot(node)
    before = served(node)
    pid = node.pid_of()
    old = live.start(node, name="old")

    node.installer("install", *SOURCE, check=True)

    assert served(node)[0] >= OURS
    assert (node.pid_of() == pid) == (node.engine == "docker"), "containerd is restarted, Docker is reloaded"
    new = live.start(node, name="new")
    undone = node.installer("uninstall", "--in-use", "keep")
    assert undone.returncode == IN_USE
    assert "our runtime runs" in undone.stderr
    assert "/new (" in undone.stderr or "new (docker)" in undone.stderr
    assert "old (" not in undone.stderr, "it runs on NVIDIA's own program"
    assert old.exec() == new.exec() == "alive\n"
    old.end()
    new.end()
    node.installer("uninstall", check=True)

    assert served(node) == before
    assert {path: what for path, what in snapshot(node).items() if path != MARK} == files
