"""A node that goes down keeps everything, also where a kubelet stops the pods before systemd begins."""

import pytest

from tests.engines.going_down import held_back
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import served


@pytest.mark.any_version
def test_a_stop_while_the_kubelet_holds_a_shutdown_back_keeps_everything(containerd_node: Node) -> None:
    node, before = containerd_node, served(containerd_node)
    running = node.start_installer("run", *SOURCE)
    running.wait_for("waiting for a signal")
    pid = node.pid_of()

    with held_back(node):
        running.terminate()
        code, kept = running.wait(), (served(node), node.pid_of())

    assert code == 0
    assert "the node is going down" in running.log
    assert kept == ((before[0] | OURS, before[1]), pid), "nothing undone or restarted in the middle of it"
