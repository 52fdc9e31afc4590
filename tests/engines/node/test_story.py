"""The built image as the DaemonSet's pod, on nodes whose engine it reconfigures from inside."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.deploy.rendered import Manifest, kustomized, pod_of
from tests.engines.by_cdi import GPU, TELLS, Client, answers, driver
from tests.engines.cri import Container
from tests.engines.going_down import held_back
from tests.engines.live import run_through_us, start
from tests.engines.node.kubelet import Running, announce, apply, forget, probe
from tests.engines.node.pods import TAG, becomes_ready, daemon_set, on_disk, plans, trains
from tests.engines.node.story import Story
from tests.engines.nodes import OURS, Node
from tests.engines.told import served, snapshot
from tests.support.waiting import until

NEXT = "next"
FIRST, SECOND = "toolkit-aaaaa", "toolkit-bbbbb"
WISH = {"nvidia.cdi.k8s.io/container.main": GPU}


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


@pytest.mark.any_version
def test_with_the_policy_keep_an_update_restarts_nothing(node: Node, tell: Callable[[Node], Story]) -> None:
    story, manifest = tell(node), daemon_set("keep")
    restarting = int(node.engine == "containerd")
    files, before = snapshot(node), served(node)
    plans(node, story)
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
    live.end()
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


def without_runtimes(node: Node, story: Story, mode: str) -> None:
    """Have a pod give GPUs without a runtime, see one in a container, and delete the pod."""
    manifest = daemon_set("undo", MODE=mode, DRIVER_ROOT="/opt/driver", NRI_ALLOW="default=nvidia.com/gpu")
    files, before, restarts = snapshot(node), served(node), story.restarts
    with Client(partial(answers, node)) as client:
        pod = apply(node, f"by-{mode}", manifest, TAG)
        becomes_ready(pod, manifest)
        if mode == "nri":
            until(lambda: '"event": "NRI plugin registered"' in pod.log(), pod.log)
        asks = node.cri.run_pod(annotations=WISH if mode == "nri" else {})
        container = Container(
            command=("/bin/sleep", "100000"), name="main", devices=(GPU,) if mode == "cdi" else ()
        )
        seen = node.cri.exec(node.cri.start(asks, container), "sh", "-c", TELLS).stdout
        node.cri.remove_pod(asks)
        assert pod.delete() == 0
    assert seen.split() == ["void", "libcuda.so.550.1", "device"]
    assert (client.refused, story.restarts) == (0, restarts)
    assert served(node) == before
    assert snapshot(node) == files
    story.tell(
        f"mode {mode}: a container had its GPU, the pod was deleted: {client.answered} calls of CRI, none refused"
    )


@pytest.mark.night
def test_without_runtimes_no_engine_is_touched_and_pods_go_in_every_way(
    newest_node: Node, tell: Callable[[Node], Story]
) -> None:
    story, manifest = tell(newest_node), daemon_set("undo")
    driver(newest_node, "550.1")
    for mode in ("cdi", "nri"):
        without_runtimes(newest_node, story, mode)
    files, before = snapshot(newest_node), served(newest_node)
    announce(newest_node, FIRST)
    pod = apply(newest_node, FIRST, manifest, TAG)
    becomes_ready(pod, manifest)
    story.tell("the pod is ready")

    pod = deleted_by_force(newest_node, pod, manifest, story)
    drained(newest_node, pod, manifest, story)
    assert pod.delete() == 0
    forget(newest_node)
    story.tell("its label was taken away, so its pod went: all is undone")
    assert snapshot(newest_node) == files
    assert served(newest_node) == before

    pod = apply(newest_node, "toolkit-again", manifest, TAG)
    becomes_ready(pod, manifest)
    story.tell("it has the label again: the pod is ready")
    goes_down(newest_node, pod, manifest, story)


def deleted_by_force(node: Node, pod: Running, manifest: Manifest, story: Story) -> Running:
    """Delete the first pod by force, and return the next one: the DaemonSet makes it before the first has ended."""
    restarts, codes = story.restarts, list[int]()
    announce(node, SECOND)
    ends = threading.Thread(target=lambda: codes.append(pod.delete()))
    ends.start()
    until(lambda: "waiting for the next pod" in pod.log(), pod.log)

    following = apply(node, SECOND, manifest, TAG)

    becomes_ready(following, manifest)
    ends.join()
    story.tell("the pod was deleted by force: the next one is ready, and nothing was undone")
    assert codes == [0]
    assert "the next run takes over" in pod.log()
    assert "nothing changed" in following.log()
    assert story.restarts == restarts
    assert served(node)[0] >= OURS
    return following


def drained(node: Node, pod: Running, manifest: Manifest, story: Story) -> None:
    """Let all pods but those of DaemonSets be evicted."""
    restarts = story.restarts
    run_through_us(node)

    becomes_ready(pod, manifest)
    story.tell("the node was drained: the pod of the DaemonSet stays, and so does the toolkit")
    assert served(node)[0] >= OURS
    assert story.restarts == restarts


def goes_down(node: Node, pod: Running, manifest: Manifest, story: Story) -> None:
    """Shut the node down and boot it; its kubelet has a grace for that, and ends the pod first."""
    restarts, installed, serving = story.restarts, on_disk(snapshot(node)), served(node)

    with held_back(node):
        assert pod.delete() == 0
        story.tell("the kubelet ended the pod, for the node goes down: all is kept")
        assert "the node is going down" in pod.log()
        assert story.restarts == restarts
    node.shut_down_and_boot()
    node.cri.wait()
    story.tell("the node has booted: it serves as before")
    assert served(node) == serving
    restarts = story.restarts
    pod = apply(node, "toolkit-booted", manifest, TAG)
    becomes_ready(pod, manifest)
    story.tell("the pod found it as it should be")
    assert story.restarts == restarts
    assert installed.items() <= on_disk(snapshot(node)).items()
    assert pod.delete() == 0
