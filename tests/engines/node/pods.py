"""The DaemonSet's pod with the built image, and what it does to its node."""

from tests.deploy.rendered import Manifest, kustomized, pod_of
from tests.engines.live import run_through_us
from tests.engines.node.kubelet import Running, apply, probe
from tests.engines.node.story import Story
from tests.engines.nodes import Node
from tests.engines.told import snapshot
from tests.support.version import VERSION
from tests.support.waiting import until

TAG = VERSION
POLICY = "TOOLKIT_INSTALLER_ON_EXIT"


def daemon_set(policy: str, **more: str) -> Manifest:
    """Return the pod of the overlay for mixed clusters with a policy, and more of our variables."""
    pod = pod_of(kustomized("overlays/auto"))
    (container,) = pod["containers"]
    env = [{**each, "value": policy} if each["name"] == POLICY else each for each in container["env"]]
    env += [{"name": f"TOOLKIT_INSTALLER_{name}", "value": value} for name, value in more.items()]
    return {**pod, "containers": [{**container, "env": env}]}


def becomes_ready(pod: Running, manifest: Manifest) -> None:
    until(lambda: _ready(pod, manifest), pod.log)


def _ready(pod: Running, manifest: Manifest) -> bool:
    assert pod.runs(), pod.log()
    return probe(pod, manifest, "readinessProbe") == 0


def on_disk(files: dict[str, str]) -> dict[str, str]:
    """Return the files without those that a boot begins anew with."""
    return {path: what for path, what in files.items() if not path.startswith("/run/")}


def plans(node: Node, story: Story) -> None:
    """Have the Job of the documents print the plan of a node, which is not changed by it."""
    files, restarts = snapshot(node, times=True), story.restarts
    job = apply(node, "plan", pod_of(kustomized("plan-node")), TAG)
    until(lambda: not job.runs(), job.log)
    said, code = job.log(), job.exit_code()
    job.delete()
    assert code == 0, said
    assert "toolkit/nvidia-container-runtime.cdi" in said
    assert ("* reload Docker" if node.engine == "docker" else "* restart containerd") in said
    assert (snapshot(node, times=True), story.restarts) == (files, restarts)
    story.tell("a Job printed the plan of the node, and changed nothing")


def trains(node: Node, story: Story) -> None:
    run_through_us(node)
    story.tell("a container ran through the handler nvidia")
