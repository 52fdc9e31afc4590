"""A containerd whose CRI its owner has just switched off is not restarted into that by an uninstall."""

import pytest

from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served

CONFIG = "/etc/containerd/config.toml"
SOURCE = ("--toolkit-source", ARTIFACTS)
NOTHING_INSTALLED = 3
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


def test_a_containerd_that_runs_without_cri_has_nothing_to_read_at_an_uninstall(
    containerd_node: Node,
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    off = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
    node.write(CONFIG, off + node.read(CONFIG))
    node.restart("containerd")
    pid = node.pid_of("containerd")

    node.installer("uninstall", check=True)

    assert node.pid_of("containerd") == pid
    assert node.installer("status").returncode == NOTHING_INSTALLED
    node.write(CONFIG, node.read(CONFIG).removeprefix(off))
    assert snapshot(node) == before
