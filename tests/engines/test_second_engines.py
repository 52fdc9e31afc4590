"""A second engine beside ours: it is not restarted for ours, and the toolkit outlives what starts it."""

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.cri import Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import sentence, snapshot

pytestmark = pytest.mark.any_version

DOCKERD = (
    "/usr/sbin/dockerd --config-file /etc/docker2/daemon.json --data-root /var/lib/docker/second"
    " --exec-root /run/docker2 -p /run/docker2.pid -H unix:///run/docker2.sock"
    " --containerd /run/containerd/containerd.sock --containerd-namespace moby2"
    " --bridge=none --iptables=false --ip6tables=false"
)
OTHER = "/usr/bin/containerd --config /etc/other/config.toml --address /run/other/containerd.sock"


def started(node: Node, unit: str, command: str) -> None:
    service = f"[Service]\nType=notify\nExecStart={command}\nDelegate=yes\nKillMode=process\n"
    node.write(f"/run/systemd/system/{unit}", service)
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", unit])


def second_containerd(node: Node) -> Cri:
    """Start another containerd with the config of the first."""
    config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write("/etc/other/config.toml", f'state = "/run/other"\n{config}')
    started(node, "other.service", OTHER)
    return Cri(node.root / "run/other/containerd.sock")


def kept(node: Node, said: str) -> None:
    """Undo, which is to keep the toolkit and to say why."""
    done = node.installer("uninstall")

    assert done.returncode == 4, done.stderr
    assert said in sentence(done.stderr)
    assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")


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
    other = second_containerd(node)

    kept(
        node,
        "containerd of other.service runs and reads /etc/other/config.toml, which names /usr/local/nvidia",
    )

    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in other.status().runtimes
    node.run(["systemctl", "stop", "other"])
    node.installer("uninstall", check=True)
    node.run(["rm", "-r", "/etc/other"])
    assert snapshot(node) == files


def test_of_two_containerds_the_one_behind_the_socket_is_restarted(containerd_node: Node, cri: Cri) -> None:
    node, other = containerd_node, second_containerd(containerd_node)
    files, pids = snapshot(node), (node.pid_of("containerd"), node.pid_of("other"))
    socket = ("--socket", "containerd=/run/other/containerd.sock")

    node.installer("install", *SOURCE, "--runtime", "containerd", *socket, check=True)

    assert node.pid_of("containerd") == pids[0]
    assert node.pid_of("other") != pids[1]
    assert "nvidia-container-runtime" in node.read("/etc/other/config.toml")
    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in other.status().runtimes
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert node.pid_of("containerd") == pids[0]
