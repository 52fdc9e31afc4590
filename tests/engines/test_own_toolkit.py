"""A toolkit that a package manager keeps on a node starts containers from where it is, also after an update."""

import pytest

from tests.engines.live import run_through_us
from tests.engines.nodes import Node
from tests.engines.told import served


@pytest.mark.any_version
def test_containers_start_by_the_hosts_own_toolkit_which_an_uninstall_leaves(node: Node) -> None:
    own, before = "usr/bin/nvidia-container-runtime", served(node)
    node.add_payload("/", "1.0.0")
    node.installer("install", "--toolkit-source", "/", check=True)
    run_through_us(node)
    assert node.installer("verify").returncode == 0

    node.add_payload("/", "2.0.0")  # as its package manager does

    updated, pid = (node.root / own).read_bytes(), node.pid_of()
    assert "nothing changed" in node.installer("install", "--toolkit-source", "/").stderr
    assert node.installer("status", "--deep").returncode == 0
    node.forget_marks()
    run_through_us(node)
    assert any(mark.startswith("nvidia-container-runtime.real ") for mark in node.marks()), node.marks()
    assert node.pid_of() == pid
    node.installer("uninstall", check=True)
    assert (node.root / own).read_bytes() == updated
    assert served(node) == before
