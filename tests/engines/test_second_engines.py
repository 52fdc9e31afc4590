"""A second engine beside ours, and other ways to name the toolkit: it outlives what starts it."""

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.cri import Cri
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
TOOLKIT = "/usr/local/nvidia/toolkit"
UNITS = "/run/systemd/system"
DOCKERD = (
    "/usr/sbin/dockerd --config-file /etc/docker2/daemon.json --data-root /var/lib/docker/second"
    " --exec-root /run/docker2 -p /run/docker2.pid -H unix:///run/docker2.sock"
    " --containerd /run/containerd/containerd.sock --containerd-namespace moby2"
    " --bridge=none --iptables=false --ip6tables=false"
)
OTHER = "/usr/bin/containerd --config /etc/other/config.toml --address /run/other/containerd.sock"


def started(node: Node, unit: str, command: str) -> None:
    node.write(f"{UNITS}/{unit}", f"[Service]\nType=notify\nExecStart={command}\nKillMode=process\n")
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", unit])


def kept(node: Node, said: str) -> None:
    """Undo, which is to keep the toolkit and to say why."""
    done = node.installer("uninstall")

    assert done.returncode == 4, done.stderr
    assert said in sentence(done.stderr)
    assert (node.root / TOOLKIT.lstrip("/") / "nvidia-container-runtime").exists()


def test_the_toolkit_outlives_a_second_dockerd(docker_node: Node) -> None:
    node, files = docker_node, snapshot(docker_node)
    node.installer("install", *SOURCE, check=True)
    node.write("/etc/docker2/daemon.json", node.read(DOCKER))
    started(node, "docker2.service", DOCKERD)

    kept(
        node,
        "Docker of docker2.service runs and reads /etc/docker2/daemon.json, which names /usr/local/nvidia",
    )
    node.write("/etc/docker2/daemon.json", "{}")
    node.run(["systemctl", "restart", "docker2"])

    node.installer("uninstall", check=True)
    node.run(["systemctl", "stop", "docker2"])
    node.run(["rm", "-r", "/etc/docker2"])
    assert snapshot(node) == files


def test_the_toolkit_outlives_a_second_containerd(containerd_node: Node, cri: Cri) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write("/etc/other/config.toml", f'state = "/run/other"\n{config}')
    started(node, "other.service", OTHER)

    kept(
        node,
        "containerd of other.service runs and reads /etc/other/config.toml, which names /usr/local/nvidia",
    )

    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in Cri(node.root / "run/other/containerd.sock").status().runtimes
    node.run(["systemctl", "stop", "other"])
    node.installer("uninstall", check=True)
    node.run(["rm", "-r", "/etc/other"])
    assert snapshot(node) == files


def test_the_toolkit_outlives_a_second_containerd_that_is_started_by_a_link(containerd_node: Node) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write("/etc/other/config.toml", f'state = "/run/other"\n{config}')
    node.run(["ln", "-s", "/usr/bin/containerd", "/opt/gpud"])
    started(node, "other.service", OTHER.replace("/usr/bin/containerd", "/opt/gpud"))

    kept(node, "containerd of other.service runs and reads /etc/other/config.toml, which names /usr/local")

    node.run(["systemctl", "stop", "other"])
    node.installer("uninstall", check=True)
    assert not (node.root / TOOLKIT.lstrip("/")).exists()


def test_the_toolkit_outlives_a_runc_that_leads_to_it(containerd_node: Node) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    node.run(["mv", "/usr/sbin/runc", "/usr/sbin/runc.distrib"])
    if node.containerd_version.startswith("2."):  # which asks runc at its start what it can do
        own = '[ "$*" = features ] && exec /usr/sbin/runc.distrib "$@"'
        node.write("/usr/sbin/runc", f'#!/bin/sh\n{own}\nexec {TOOLKIT}/nvidia-container-runtime "$@"\n')
        node.run(["chmod", "755", "/usr/sbin/runc"])
    else:
        node.run(["ln", "-s", f"{TOOLKIT}/nvidia-container-runtime", "/usr/sbin/runc"])

    kept(node, "/sbin/runc, which is started though no config names it, leads to /usr/local/nvidia/")

    node.run(["mv", "/usr/sbin/runc.distrib", "/usr/sbin/runc"])
    node.installer("uninstall", check=True)
    assert not (node.root / TOOLKIT.lstrip("/")).exists()


def with_runtime(node: Node, name: str) -> None:
    plugin = (
        "io.containerd.cri.v1.runtime"
        if node.containerd_version.startswith("2.")
        else "io.containerd.grpc.v1.cri"
    )
    table = f'plugins."{plugin}".containerd.runtimes.gpu'
    text = f'\n[{table}]\nruntime_type = "io.containerd.runc.v2"\n[{table}.options]\nBinaryName = "{name}"\n'
    node.write(CONTAINERD, node.read(CONTAINERD) + text)


def test_the_toolkit_outlives_a_runtime_of_another_name(containerd_node: Node, cri: Cri) -> None:
    node, name = containerd_node, "gpu-runc"
    node.installer("install", *SOURCE, check=True)
    node.run(["mkdir", "-p", "/opt/site/bin"])
    node.run(["ln", "-s", f"{TOOLKIT}/nvidia-container-runtime", "/opt/site/bin/gpu-runc"])
    path = "Environment=PATH=/opt/site/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    node.write(f"{UNITS}/containerd.service.d/path.conf", f"[Service]\n{path}\n")
    node.run(["systemctl", "daemon-reload"])
    with_runtime(node, name)
    node.restart("containerd")
    cri.wait()

    kept(node, f"remove the toolkit ({CONTAINERD} names {name}, which leads to /usr/local/nvidia/")

    assert "gpu" in cri.status().runtimes
    node.write(CONTAINERD, node.read(CONTAINERD).replace(name, "/usr/sbin/runc"))
    node.restart("containerd")
    cri.wait()
    node.installer("uninstall", check=True)
    assert not (node.root / TOOLKIT.lstrip("/")).exists()
