"""The built image as the DaemonSet's pod, on nodes whose engine it reconfigures from inside."""

from collections.abc import Callable

from tests.deploy.rendered import kustomized, pod_of
from tests.engines.live import start
from tests.engines.node.kubelet import apply, probe
from tests.engines.node.pods import OURS, TAG, becomes_ready, daemon_set, on_disk, trains
from tests.engines.node.story import Story
from tests.engines.nodes import Node
from tests.engines.running import until
from tests.engines.snapshot import snapshot
from tests.engines.told import served

NEXT = "next"
READY = "run/nvidia/toolkit/ready"


def payload(node: Node) -> str:
    """Return which version of the payload containers run on."""
    runtime = node.root / "usr/local/nvidia"
    link = runtime / "toolkit"
    return (runtime / link.readlink() / "nvidia-container-runtime.real").read_bytes().split()[-1].decode()


def test_with_the_policy_undo_a_pod_leaves_no_trace(node: Node, tell: Callable[[Node], Story]) -> None:
    story, manifest = tell(node), daemon_set("undo")
    restarting = int(node.engine == "containerd")  # Docker reads its config on a signal
    files, before = snapshot(node), served(node)

    pod = apply(node, "toolkit", manifest, TAG)
    becomes_ready(pod, manifest)
    story.tell("the pod is ready: its engine was configured and proven")
    assert story.restarts == restarting
    assert served(node) == (before[0] | OURS, before[1])
    assert payload(node) == "1.0.0"
    assert probe(pod, manifest, "livenessProbe") == 0
    story.tell("it is alive, in the engine that it restarted")
    trains(node, story)

    pod.kill()
    pod.delete()
    installed = on_disk(snapshot(node, times=True))
    pod = apply(node, "toolkit-again", manifest, TAG)
    until(lambda: "waiting for a signal" in pod.log(), pod.log)
    becomes_ready(pod, manifest)
    story.tell("it crashed and was created again: nothing changed")
    assert "nothing changed" in pod.log()
    assert on_disk(snapshot(node, times=True)) == installed, "not one inode is another"
    assert story.restarts == restarting

    assert pod.delete() == 0
    story.tell("the pod was deleted for an update: all is undone")
    assert snapshot(node) == files
    assert served(node) == before
    pod = apply(node, "toolkit-next", manifest, NEXT)
    becomes_ready(pod, manifest)
    story.tell("the next image is ready")
    assert story.restarts == 3 * restarting, "one undo, one install"
    assert payload(node) == "2.0.0"

    for goes_down, line in (
        (node.shut_down_and_boot, "the node was rebooted"),
        (node.reboot, "the node lost its power and booted"),
    ):
        goes_down()
        if node.engine == "containerd":
            node.cri.wait()
        assert served(node) == (before[0] | OURS, before[1])
        story.tell(f"{line}: the engine serves as before")
        restarts = story.restarts
        pod = apply(node, f"toolkit-{restarts}-{goes_down.__name__}", manifest, NEXT)
        becomes_ready(pod, manifest)
        story.tell("the pod found it as it should be")
        assert story.restarts == restarts
    trains(node, story)

    assert pod.delete() == 0
    story.tell("the pod was deleted: all is undone")
    assert served(node) == before
    assert on_disk(snapshot(node)) == on_disk(files)


def test_with_the_policy_keep_an_update_restarts_nothing(node: Node, tell: Callable[[Node], Story]) -> None:
    story, manifest = tell(node), daemon_set("keep")
    restarting = int(node.engine == "containerd")
    files, before = snapshot(node), served(node)
    pod = apply(node, "toolkit", manifest, TAG)
    becomes_ready(pod, manifest)
    story.tell("the pod is ready")
    live = start(node)

    assert pod.delete() == 0
    story.tell("the pod was deleted for an update: all is kept")
    assert served(node)[0] >= OURS
    pod = apply(node, "toolkit-next", manifest, NEXT)
    becomes_ready(pod, manifest)
    story.tell("the next image is ready: its payload is in place")
    assert payload(node) == "2.0.0"
    assert story.restarts == restarting, "the update restarted nothing"
    assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    story.tell("a container on the payload of before lived through it")
    trains(node, story)

    assert pod.delete() == 0
    manifest = pod_of(kustomized("uninstall"))
    uninstall = apply(node, "uninstall", manifest, NEXT)
    becomes_ready(uninstall, manifest)
    story.tell("the DaemonSet that uninstalls is ready: nothing is left on the node")
    assert uninstall.delete() == 0
    assert snapshot(node) == files
    assert served(node) == before
