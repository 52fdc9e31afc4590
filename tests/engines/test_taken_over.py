"""Runtimes of ours that an admin has made to start another program are his: they start after an undo as before."""

import json
import re

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.live import run_through_us
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import served

pytestmark = pytest.mark.any_version


def _with_v2(node: Node) -> None:
    """Give the engine a default runtime of its owner's."""
    text = node.read(node.config)
    if node.engine == "docker":
        said = {**json.loads(text), "default-runtime": "v2", "runtimes": {"v2": {"path": "/usr/sbin/runc"}}}
        node.write(DOCKER, json.dumps(said))
    else:
        runc = re.search(r"^ *\[(plugins.*runtimes)\.runc\]$", text, re.MULTILINE)
        assert runc is not None
        text = re.sub(r"(default_runtime_name = .)runc", r"\1v2", text)
        node.write(CONTAINERD, text + f'\n[{runc[1]}.v2]\nruntime_type = "io.containerd.runc.v2"\n')
    node.restart_engine()


def _repoint(node: Node, pattern: str) -> None:
    """Do what an admin does with sed."""
    text = re.sub(rf'"/usr/local/nvidia/toolkit/{pattern}"', '"/usr/sbin/runc"', node.read(node.config))
    node.write(node.config, text)
    node.restart_engine()


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "not restarted yet"])
def test_a_runtime_that_leads_elsewhere_starts_containers_after_an_undo(
    node: Node, *, restarted: bool
) -> None:
    node.installer("install", *SOURCE, check=True)
    before = node.read(node.config)
    _repoint(node, "nvidia-container-runtime")
    if not restarted:  # as if somebody had edited the file since
        text = node.read(node.config)
        node.write(node.config, before)
        node.restart_engine()
        node.write(node.config, text)

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node)[0] & OURS == {"nvidia"}
    for handler in ("nvidia", ""):
        run_through_us(node, handler)
    node.restart_engine()
    for handler in ("nvidia", ""):
        run_through_us(node, handler)
    assert not node.has("usr/local/nvidia")


def test_a_default_that_is_undone_is_in_force_though_no_runtime_of_ours_is_served(node: Node) -> None:
    _with_v2(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    _repoint(node, "nvidia-container-runtime[a-z.]*")
    assert served(node)[1] == "nvidia"

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node)[1] == "v2"
    for handler in (*OURS, ""):
        run_through_us(node, handler)
