"""The built image as the DaemonSet's pod, on nodes whose engine it reconfigures from inside."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.rendered import Manifest, kustomized, pod_of
from tests.engines.by_cdi import GPU, TELLS, Client, answers, driver
from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.cri import Container
from tests.engines.going_down import held_back
from tests.engines.live import start
from tests.engines.node.kubelet import Running, announce, apply, forget, probe
from tests.engines.node.pods import OURS, TAG, becomes_ready, daemon_set, on_disk, plans, trains
from tests.engines.node.story import Story
from tests.engines.nodes import Node
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.waiting import command_line, until, until_it_sleeps

NEXT = "next"
FIRST, SECOND = "toolkit-aaaaa", "toolkit-bbbbb"
READY = "run/nvidia/toolkit/ready"
# With Python 3.13 alone on its node: 1.5 of its own, which are os, signal, enum and what those load, and 1.1 of pages
# of the interpreter's file that a bare one does not read. A host's other Pythons share those, and 1.3 are left.
OVER_BARE_MB = 2.8
PLUGINS_MB = 12.0
WISH = {"nvidia.cdi.k8s.io/container.main": GPU}
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
    (found,) = _called(node, "/start.py supervisor")
    return found


def _called(node: Node, words: str) -> list[Path]:
    """Return the processes of a node with ``words`` in their command, less those that start them."""
    import psutil

    below = psutil.Process(node.leader).children(recursive=True)
    names = {each.pid: each.name() for each in below}
    return [
        Path(f"/proc/{pid}")
        for pid, name in names.items()
        if name.startswith(("python", "toolkit")) and words in " ".join(command_line(pid))
    ]


def pss_mb(process: Path) -> float:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def beside_a_bare_interpreter(node: Node, pod: Running) -> tuple[float, float]:
    """Return the Pss of a run that waits and of a bare interpreter of the same image, which share its pages."""
    sleep = "import time; time.sleep(100)"
    bare = threading.Thread(
        target=pod.exec, args=("/opt/toolkit-installer/bin/python", "-I", "-S", "-c", sleep)
    )
    bare.start()
    until(lambda: bool(_called(node, sleep)), pod.log)
    sleeps = int(_called(node, sleep)[0].name)
    until_it_sleeps(sleeps)
    found = pss_mb(waiter_of(node)), pss_mb(Path(f"/proc/{sleeps}"))
    os.kill(sleeps, signal.SIGKILL)
    bare.join()
    return found


def waits(node: Node) -> bool:
    try:
        return bool(waiter_of(node))
    except (ValueError, OSError):
        return False


def restarts_by_others(node: Node, pod: Running, manifest: Manifest, before: str, story: Story) -> None:
    """Let somebody rewrite the config and restart the engine, and ask the pod to put that right."""
    node.write(CONTAINERD, before)
    node.restart("containerd.service")
    node.cri.wait()
    story.tell("somebody rewrote it and restarted the engine")
    restarts = story.restarts
    (container,) = manifest["containers"]
    command = container["readinessProbe"]["exec"]["command"]
    until(lambda: "without being asked" in pod.exec(*command).stdout, pod.log)
    story.tell(f"the probe: {pod.exec(*command).stdout.strip()}")
    # The restart of the engine that serves it ends a kubectl exec; the answer is that of the next one.
    pod.exec("toolkit-installer", "reconcile")
    becomes_ready(pod, manifest)
    asked = pod.exec("toolkit-installer", "reconcile")
    story.tell(f"kubectl exec ... reconcile, twice: {asked.stdout.splitlines()[-1]}")
    assert (asked.returncode, asked.stdout.splitlines()[-1]) == (0, "nothing to do"), asked
    assert served(node)[0] >= OURS
    assert story.restarts == restarts + 1


@pytest.mark.any_version
@pytest.mark.night
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

    if node.engine == "containerd":  # a restart of dockerd ends this pod, whose runs nobody starts again here
        restarts_by_others(node, pod, manifest, before, story)

    assert pod.delete() == 0
    assert snapshot(node) == files


def without_runtimes(node: Node, story: Story, mode: str) -> None:
    """Have a pod give GPUs without a runtime, see one in a container, and delete the pod."""
    manifest = daemon_set("undo", MODE=mode, DRIVER_ROOT="/opt/driver", NRI_ALLOW="default=nvidia.com/gpu")
    files, before, restarts = snapshot(node), served(node), story.restarts
    with Client(partial(answers, node)) as client:
        pod = apply(node, f"by-{mode}", manifest, TAG)
        becomes_ready(pod, manifest)
        if mode == "nri":
            until(lambda: '"event": "NRI plugin registered"' in pod.log(), pod.log)
            told = f", beside a plugin of {plugins_mb(node):.1f} MB without capabilities"
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
        f"mode {mode}: a container had its GPU{told if mode == 'nri' else ''}, the pod was deleted: all is undone; "
        f"{client.answered} calls of CRI, none refused"
    )


def plugins_mb(node: Node) -> float:
    """Return the Pss of the NRI plugin, which has no capability."""
    (plugin,) = _called(node, "/start.py plugin")
    assert "CapPrm:\t0000000000000000" in (plugin / "status").read_text()
    memory = pss_mb(plugin)
    assert memory <= PLUGINS_MB
    return memory


@pytest.mark.night
def test_without_runtimes_no_engine_is_touched_and_what_a_wait_costs(
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
    until(lambda: waits(newest_node), pod.log)
    process = waiter_of(newest_node)
    before_ns = int((process / "schedstat").read_text().split()[0])
    began = time.monotonic()

    time.sleep(20)  # ten looks at what is watched

    used_ns = int((process / "schedstat").read_text().split()[0]) - before_ns
    an_hour_s = used_ns / 1e9 / (time.monotonic() - began) * 3600
    memory, bare = beside_a_bare_interpreter(newest_node, pod)
    story.tell(
        f"run takes {memory:.1f} MB, a bare interpreter beside it {bare:.1f} MB (limit {OVER_BARE_MB} MB more)"
    )
    story.tell(f"and {an_hour_s:.2f} s of CPU in an hour (limit {CPU_S})")
    assert an_hour_s <= CPU_S

    pod = deleted_by_force(newest_node, pod, manifest, story)
    # Which pages of its program a process has differs by a tenth of a MB at each start.
    if memory > bare + OVER_BARE_MB:
        until(lambda: waits(newest_node), pod.log)
        memory, bare = beside_a_bare_interpreter(newest_node, pod)
        story.tell(f"that of the next pod takes {memory:.1f} MB")
    assert memory <= bare + OVER_BARE_MB
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
    live = start(node)
    assert live.exec() == "alive\n"

    live.stop()
    live.remove()

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
