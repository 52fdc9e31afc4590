"""The operator's DaemonSet as it is, with CDI on, our image in NVIDIA's place: on a clean node, and after NVIDIA's."""

import tomllib
from collections.abc import Callable

import pytest

from tests.engines.cri import Container
from tests.engines.node.kubelet import Running, start
from tests.engines.node.nvidias import PIDFILE, SPECIFICATION, leave, pod_of_the_operator, prepare
from tests.engines.node.pods import trains
from tests.engines.node.story import Story
from tests.engines.nodes import OURS, Node
from tests.engines.told import served, snapshot
from tests.image.__main__ import OWN_VAR_RUN
from tests.support.version import VERSION
from tests.support.waiting import until

pytestmark = pytest.mark.night
IMAGE = f"node-toolkit-installer:{VERSION}"
GRACE_S = 30


def _waits(node: Node, name: str, container: Container) -> Running:
    pod = start(node, name, container, GRACE_S)
    until(lambda: "Waiting for signal" in pod.log(), pod.log)
    return pod


def _nodes(node: Node) -> list[str]:
    return sorted(path.name for path in (node.root / "run/nvidia/driver/dev").iterdir())


def test_the_operators_pod_installs_takes_over_and_gives_back(node: Node, tell: Callable[..., Story]) -> None:
    story = tell(node, IMAGE, OWN_VAR_RUN)
    prepare(node)
    files, before, specification = snapshot(node), served(node), node.root / SPECIFICATION

    pod = _waits(node, "operator", pod_of_the_operator(node.engine, IMAGE))
    story.tell("the operator's command has become our program, which serves")
    assert served(node) == (before[0] | OURS, before[1])
    assert "hostPath: /run/nvidia/driver/dev/nvidiactl\n" in specification.read_text()
    assert len(_nodes(node)) == 4
    assert pod.delete() == 0
    story.tell("the pod was deleted: all is undone")
    assert snapshot(node) == files
    assert served(node) == before
    assert not specification.exists()

    leave(node)
    left, theirs, written = snapshot(node), served(node), specification.read_text()
    story.tell("a pod of NVIDIA's image was killed: all of it is left behind")
    assert theirs[0] >= OURS
    pod = _waits(node, "operator-again", pod_of_the_operator(node.engine, OWN_VAR_RUN))
    story.tell("the image was switched: ours serves in its place")
    assert (node.root / "usr/local/nvidia/toolkit").is_symlink()
    assert served(node) == theirs
    assert "path: /usr/local/nvidia/toolkit/nvidia-cdi-hook\n" in specification.read_text()
    trains(node, story)
    assert pod.delete() == 0
    story.tell("the pod was deleted: every file is as NVIDIA's left it")
    left.pop(PIDFILE)  # of a process that is gone
    assert snapshot(node) == left
    assert served(node) == theirs
    assert specification.read_text() == written
    assert len(_nodes(node)) == 4


@pytest.mark.parametrize("image", [IMAGE, OWN_VAR_RUN], ids=["/var/run is a link", "/var/run is a directory"])
def test_the_operators_pod_writes_the_files_of_a_crio_that_nobody_asks(
    newest_node: Node, tell: Callable[..., Story], image: str
) -> None:
    node, story = newest_node, tell(newest_node, image)
    prepare(node, "crio")
    files = snapshot(node)

    pod = _waits(node, "operator", pod_of_the_operator("crio", image, RUNTIME_RESTART_MODE="none"))
    story.tell("the operator's command has become our program")
    written = tomllib.loads(node.read("/etc/crio/crio.conf.d/99-nvidia.conf"))["crio"]["runtime"]
    assert written["runtimes"].keys() == OURS
    assert "default_runtime" not in written
    assert "hostPath: /run/nvidia/driver/dev/nvidiactl\n" in (node.root / SPECIFICATION).read_text()
    assert len(_nodes(node)) == 4
    assert pod.delete() == 0
    story.tell("the pod was deleted: all is undone")
    assert snapshot(node) == files
    assert not (node.root / SPECIFICATION).exists()
