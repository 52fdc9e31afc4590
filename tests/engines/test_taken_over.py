"""Runtimes of ours that an admin has made to start another program are his: they start after an undo as before."""

import re

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def _config(node: Node) -> str:
    return DOCKER if node.engine == "docker" else CONTAINERD


def _repoint(node: Node, pattern: str) -> None:
    """Do what an admin does with sed."""
    node.write(
        _config(node),
        re.sub(rf'"/usr/local/nvidia/toolkit/{pattern}"', '"/usr/sbin/runc"', node.read(_config(node))),
    )
    _restart(node)


def _restart(node: Node) -> None:
    node.run(["systemctl", "reset-failed", node.engine])
    node.restart(node.engine)
    if node.engine == "containerd":
        node.cri.wait()


def _starts(node: Node, handler: str) -> None:
    if node.engine == "docker":
        chosen = ["--runtime", handler] if handler else []
        node.run(["docker", "run", "--rm", "--net", "none", *chosen, IMAGE, "true"])
        return
    pod = node.cri.run_pod(handler)
    assert node.cri.exec(node.cri.start_container(pod), "true").returncode == 0
    node.cri.remove_pod(pod)


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "not restarted yet"])
def test_a_runtime_that_leads_elsewhere_starts_containers_after_an_undo(
    node: Node, *, restarted: bool
) -> None:
    node.installer("install", *SOURCE, check=True)
    before = node.read(_config(node))
    _repoint(node, "nvidia-container-runtime")
    if not restarted:  # as if somebody had edited the file since
        text = node.read(_config(node))
        node.write(_config(node), before)
        _restart(node)
        node.write(_config(node), text)

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node)[0] & OURS == {"nvidia"}
    for handler in ("nvidia", ""):
        _starts(node, handler)
    _restart(node)
    for handler in ("nvidia", ""):
        _starts(node, handler)
    assert not (node.root / "usr/local/nvidia").exists()
