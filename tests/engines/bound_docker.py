"""A Docker that systemd stops with containerd."""

from tests.engines.configs import CONTAINERD, VERSION_2, VERSION_3
from tests.engines.images import ARCHIVE, IMAGE
from tests.engines.nodes import Node

DROP_IN = "/etc/systemd/system/docker.service.d/bound.conf"


def bind(node: Node, setting: str) -> None:
    """Have systemd stop Docker with containerd, which serves CRI as well."""
    node.write(CONTAINERD, VERSION_2 if node.containerd_version.startswith("1.") else VERSION_3)
    node.write(DROP_IN, f"[Unit]\n{setting}=containerd.service\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart("containerd")
    node.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])
    node.cri.wait()
    node.run(["systemctl", "restart", "docker"])


def run_container(node: Node, name: str = "web") -> None:
    node.run(["docker", "run", "--detach", "--network=none", "--name", name, IMAGE, "sleep", "3600"])


def is_running(node: Node, name: str = "web") -> bool:
    state = node.run(["docker", "inspect", "--format", "{{.State.Running}}", name], check=False)
    return state.stdout == "true\n"
