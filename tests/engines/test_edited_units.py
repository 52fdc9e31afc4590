"""An engine's unit that was edited since its start: we do not stop what systemd would not start again."""

import time

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, snapshot

pytestmark = pytest.mark.any_version

DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
EDITS = {
    "[Service]\nEnvironmentFile=/opt/flag\n": "its EnvironmentFile /opt/flag is not there",
    "[Unit]\nConditionPathExists=/opt/flag\n": "ConditionPathExists=/opt/flag does not hold",
}
HARMLESS = (
    "[Unit]\nConditionPathExists=!/opt/flag\nConditionPathExists=|/opt/flag\nConditionPathExists=|/etc\n"
    "[Service]\nEnvironmentFile=-/opt/flag\nExecStartPre=-/opt/flag\nExecStartPre=/usr/bin/test -d /etc\n"
)


def edit(node: Node, text: str) -> None:
    node.write(DROP_IN, text)
    node.run(["systemctl", "daemon-reload"])


def test_an_engine_that_would_not_start_again_is_not_restarted(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    files, pid = snapshot(node), node.pid_of("containerd")

    for text, reason in EDITS.items():
        edit(node, text)
        refused = node.installer("install", *SOURCE)

        assert refused.returncode == 1, refused.stderr
        assert f"containerd.service would not start it again: {reason})" in sentence(refused.stderr)
        assert snapshot(node) == files
        assert node.pid_of("containerd") == pid

    edit(node, HARMLESS)
    node.installer("install", *SOURCE, check=True)
    installed, pid = snapshot(node), node.pid_of("containerd")
    for text, reason in EDITS.items():
        edit(node, text)
        kept = node.installer("uninstall")

        assert kept.returncode == 4, kept.stderr
        assert reason in sentence(kept.stderr)
        assert but_the_ledger(snapshot(node)) == but_the_ledger(installed)
        assert node.pid_of("containerd") == pid
        assert "nvidia" in cri.status().runtimes

    node.run(["rm", "-r", DROP_IN.rpartition("/")[0]])
    node.run(["systemctl", "daemon-reload"])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_unit_that_is_edited_right_before_the_restart_is_seen(
    containerd_node: Node, cri: Cri, verb: str
) -> None:
    node = containerd_node
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    files = snapshot(node)
    pod = cri.run_pod()
    cri.create(pod, Container())  # a restart waits for what is created and not started yet
    pid, before = node.pid_of("containerd"), node.read(CONTAINERD)
    running = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    deadline = time.monotonic() + 10
    while node.read(CONTAINERD) == before:
        assert time.monotonic() < deadline, running.log
        time.sleep(0.005)
    edit(node, "[Service]\nEnvironmentFile=/opt/flag\n")

    returncode = running.wait()

    assert returncode == {"install": 1, "uninstall": 4}[verb], running.log
    assert "its EnvironmentFile /opt/flag is not there" in sentence(running.log)
    assert node.pid_of("containerd") == pid
    assert verb == "uninstall" or snapshot(node) == files
