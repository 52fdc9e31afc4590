"""A containerd whose CRI its owner has just switched off is not restarted into that by an uninstall."""

import pytest

from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served

CONFIG = "/etc/containerd/config.toml"
SOURCE = ("--toolkit-source", ARTIFACTS)
WHY = "CRI is switched off"


@pytest.mark.parametrize("name", ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_an_uninstall_does_not_restart_into_a_cri_that_is_switched_off(
    containerd_node: Node, name: str
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    if "cri.v1" in name and node.containerd_version.startswith("1."):
        name = "io.containerd.grpc.v1.cri"
    node.installer("install", *SOURCE, check=True)
    written, pid = node.read(CONFIG), node.pid_of("containerd")
    node.write(CONFIG, f'disabled_plugins = ["{name}"]\n{written}')

    plan, told = node.installer("plan", *SOURCE), node.installer("status")
    kept = node.installer("uninstall")

    assert (plan.returncode, told.returncode, kept.returncode) == (1, 1, 4), kept.stderr
    assert WHY in told.stdout, told.stdout
    assert WHY in kept.stderr
    assert node.pid_of("containerd") == pid
    assert served(node)[0] >= {"nvidia"}
    node.write(CONFIG, written)
    node.installer("uninstall", check=True)
    assert snapshot(node) == before
