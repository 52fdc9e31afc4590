"""A toolkit that a package manager keeps on a node starts containers from where it is, also after an update."""

import pytest

from tests.engines.live import start
from tests.engines.nodes import Node
from tests.engines.told import served

pytestmark = pytest.mark.any_version

RUNTIME = "usr/bin/nvidia-container-runtime"


def test_containers_start_by_the_hosts_own_toolkit_which_an_uninstall_leaves(node: Node) -> None:
    before = served(node)
    node.add_payload("/", "1.0.0")

    done = node.installer("install", "--toolkit-source", "/")

    assert done.returncode == 0, done.stderr
    _starts_a_container(node)
    assert node.installer("verify").returncode == 0
    node.add_payload("/", "2.0.0")  # as its package manager does
    updated = (node.root / RUNTIME).read_bytes()
    engine = node.pid_of(f"{node.engine}.service")
    assert "nothing changed" in node.installer("install", "--toolkit-source", "/").stderr
    assert node.installer("status", "--deep").returncode == 0
    _starts_a_container(node)
    assert node.pid_of(f"{node.engine}.service") == engine
    assert node.installer("uninstall").returncode == 0
    assert (node.root / RUNTIME).read_bytes() == updated
    assert served(node) == before


def _starts_a_container(node: Node) -> None:
    node.forget_marks()
    live = start(node)
    assert live.exec() == "alive\n"
    assert any(mark.startswith("nvidia-container-runtime.real ") for mark in node.marks()), node.marks()
    live.stop()
    live.remove()
