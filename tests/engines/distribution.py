"""A distribution of Kubernetes by a stand-in: its unit does what the real one does, its containerd is a real one."""

from dataclasses import dataclass

from tests.engines.cri import Cri
from tests.engines.images import ARCHIVE
from tests.engines.nodes import Node
from tests.engines.versions import EngineSet

TOOLKIT = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
OURS = {"nvidia": TOOLKIT, "nvidia-cdi": f"{TOOLKIT}.cdi", "nvidia-legacy": f"{TOOLKIT}.legacy"}
UNSEEN = ("unshare", "--pid", "--fork", "--mount-proc")
UNIT = "[Service]\nKillMode=process\nDelegate=yes\nRestart=always\n"


@dataclass
class Distribution:
    """A node that runs it, the unit that starts it and the socket of its containerd."""

    node: Node
    unit: str
    socket: str

    @property
    def cri(self) -> Cri:
        return Cri(self.node.root / self.socket.lstrip("/"))

    def handlers(self) -> dict[str, str]:
        """Return the handlers that the running engine serves, and what each starts."""
        runtimes = self.cri.status().runtimes
        return {name: (each.get("options") or {}).get("BinaryName", "") for name, each in runtimes.items()}


def newest(engines: list[EngineSet], major: str) -> EngineSet:
    """Return the newest containerd of a major version."""
    return [row for row in engines if not row.docker and row.containerd.startswith(f"{major}.")][-1]


def begin(node: Node, unit: str, service: str, socket: str) -> Distribution:
    """Start a unit, and give its containerd the image of the tests."""
    node.write(f"/etc/systemd/system/{unit}", UNIT + service)
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", unit])
    node.wait_for(socket, ["ls", socket])
    node.run(["ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", ARCHIVE])
    made = Distribution(node, unit, socket)
    made.cri.wait()
    return made
