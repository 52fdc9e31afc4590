"""A container on our runtime, and what its owner does with it."""

from dataclasses import dataclass

from tests.engines.cri import Pod
from tests.engines.images import IMAGE
from tests.engines.nodes import Node


@dataclass
class Live:
    """A container that was started through the handler nvidia, and what its owner does with it."""

    node: Node
    id: str
    name: str
    pod: Pod | None = None

    def exec(self) -> str:
        if self.pod is None:
            return self.node.run(["docker", "exec", self.id, "echo", "alive"]).stdout
        return self.node.cri.exec(self.id, "echo", "alive").stdout

    def stop(self) -> None:
        if self.pod is None:
            self.node.run(["docker", "stop", "--time", "1", self.id])
        else:
            self.node.cri.stop_container(self.id)

    def remove(self) -> None:
        if self.pod is None:
            self.node.run(["docker", "rm", self.id])
        else:
            self.node.cri.remove_container(self.id)
            self.node.cri.remove_pod(self.pod)

    def end(self) -> None:
        self.stop()
        self.remove()


def run_through_us(node: Node, handler: str = "nvidia") -> None:
    """Run a container through a handler, use it and remove it."""
    live = start(node, handler, "passing")
    assert live.exec() == "alive\n"
    live.end()


def start(node: Node, handler: str = "nvidia", name: str = "trainer") -> Live:
    if node.engine == "docker":
        runtime = ("--runtime", handler) if handler else ()
        command = ["docker", "run", "--detach", "--net", "none", "--name", name, *runtime, IMAGE]
        return Live(node, node.run(command).stdout.strip(), name)
    pod = node.cri.run_pod(handler, name)
    return Live(node, node.cri.start_container(pod), f"default/{name}", pod)
