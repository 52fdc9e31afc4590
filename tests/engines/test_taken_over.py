"""Runtimes of ours that an admin has made to start another program are his: they start after an undo as before."""

import json
import re

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def _config(node: Node) -> str:
    return DOCKER if node.engine == "docker" else CONTAINERD


def _with_v2(node: Node) -> None:
    """Give the engine a default runtime of its owner's."""
    text = node.read(_config(node))
    if node.engine == "docker":
        said = {**json.loads(text), "default-runtime": "v2", "runtimes": {"v2": {"path": "/usr/sbin/runc"}}}
        text = json.dumps(said)
    else:
        runc = re.search(r"^ *\[(plugins.*runtimes)\.runc\]$", text, re.MULTILINE)
        assert runc is not None
        text = re.sub(r"(default_runtime_name = .)runc", r"\1v2", text)
        text += f'\n[{runc[1]}.v2]\nruntime_type = "io.containerd.runc.v2"\n'
    node.write(_config(node), text)
    _restart(node)


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


def test_a_default_that_is_undone_is_in_force_though_no_runtime_of_ours_is_served(node: Node) -> None:
    _with_v2(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    _repoint(node, "nvidia-container-runtime[a-z.]*")
    assert served(node)[1] == "nvidia"

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node)[1] == "v2"
    for handler in (*OURS, ""):
        _starts(node, handler)


def test_what_a_remedy_asks_for_is_in_force_in_the_end(node: Node) -> None:
    _with_v2(node)
    with_v2 = node.read(_config(node))
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    if node.engine == "docker":
        said = json.loads(node.read(DOCKER))
        v2 = said["runtimes"].pop("v2")
        node.write(DOCKER, json.dumps(said))
    else:
        table = with_v2[with_v2.rindex("\n[") :]
        node.write(CONTAINERD, node.read(CONTAINERD).replace(table, "\n"))
    _restart(node)

    kept = node.installer("uninstall")
    if node.engine == "docker":
        said = json.loads(node.read(DOCKER))
        said["runtimes"]["v2"] = v2
        node.write(DOCKER, json.dumps(said))
    else:
        node.write(CONTAINERD, node.read(CONTAINERD) + table)
    done = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert done.returncode == 0, done.stderr
    assert served(node) == ({"runc", "v2"}, "v2")
    for handler in ("v2", ""):
        _starts(node, handler)
