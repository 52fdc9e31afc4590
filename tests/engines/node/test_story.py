"""The built image as the DaemonSet's pod, on nodes whose engine it reconfigures from inside."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.deploy.rendered import kustomized, pod_of
from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.live import start
from tests.engines.node.kubelet import apply, probe
from tests.engines.node.pods import OURS, TAG, becomes_ready, daemon_set, on_disk, trains
from tests.engines.node.story import Story
from tests.engines.nodes import Node
from tests.engines.running import until
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.waiting import command_line

NEXT = "next"
READY = "run/nvidia/toolkit/ready"
PSS_MB = 6.0
CPU_S = 3.6  # a millicore


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


def waiter_of(node: Node) -> Path:
    """Return the directory below /proc of the pod's ``run`` while it waits."""
    import psutil

    below = psutil.Process(node.leader).children(recursive=True)
    (found,) = (each.pid for each in below if "waiter.py" in "".join(command_line(each.pid)))
    return Path(f"/proc/{found}")


def pss_mb(process: Path) -> float:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def waits(node: Node) -> bool:
    try:
        return bool(waiter_of(node))
    except (ValueError, OSError):
        return False


def test_a_config_that_a_bootstrap_script_rewrites_is_mended(
    node: Node, tell: Callable[[Node], Story]
) -> None:
    story, manifest = tell(node), daemon_set("undo")
    files, path = snapshot(node), DOCKER if node.engine == "docker" else CONTAINERD
    before = node.read(path)
    pod = apply(node, "toolkit", manifest, TAG)
    becomes_ready(pod, manifest)
    wanted = node.read(path)
    story.tell("the pod is ready")
    ours = story.restarts

    began = time.monotonic()
    node.write(path, before)
    until(lambda: node.read(path) == wanted, pod.log)
    took = time.monotonic() - began
    becomes_ready(pod, manifest)
    story.tell(
        f"somebody rewrote {path}: mended after {took:.1f} s, restarts caused: {story.restarts - ours}"
    )
    assert story.restarts == ours
    assert served(node)[0] >= OURS

    node.write(path, before)
    node.restart(f"{node.engine}.service")
    story.tell("somebody rewrote it and restarted the engine")
    restarts = story.restarts
    (container,) = manifest["containers"]
    command = container["readinessProbe"]["exec"]["command"]
    until(lambda: "without being asked" in pod.exec(*command).stdout, pod.log)
    story.tell(f"the probe: {pod.exec(*command).stdout.strip()}")
    asked = pod.exec("toolkit-installer", "reconcile")
    becomes_ready(pod, manifest)
    story.tell(f"kubectl exec ... reconcile: exit code {asked.returncode}, {asked.stdout.splitlines()[-1:]}")
    assert served(node)[0] >= OURS
    assert story.restarts == restarts + int(node.engine == "containerd")

    assert pod.delete() == 0
    assert snapshot(node) == files


def test_what_a_wait_costs(newest_node: Node, tell: Callable[[Node], Story]) -> None:
    story, manifest = tell(newest_node), daemon_set("undo")
    pod = apply(newest_node, "toolkit", manifest, TAG)
    becomes_ready(pod, manifest)
    until(lambda: waits(newest_node), pod.log)
    process = waiter_of(newest_node)
    before_ns = int((process / "schedstat").read_text().split()[0])
    began = time.monotonic()

    time.sleep(65)  # the slow check comes once a minute

    used_ns = int((process / "schedstat").read_text().split()[0]) - before_ns
    an_hour_s = used_ns / 1e9 / (time.monotonic() - began) * 3600
    memory = pss_mb(process)
    story.tell(f"the waiter takes {memory:.1f} MB (limit {PSS_MB}), and {an_hour_s:.2f} s of CPU in an hour")
    assert memory <= PSS_MB
    assert an_hour_s <= CPU_S
    assert pod.delete() == 0
