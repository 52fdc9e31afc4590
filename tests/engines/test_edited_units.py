"""An engine's unit that was edited since its start: we do not stop what systemd would not start again."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, snapshot
from tests.support.waiting import until

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
    files = snapshot(node)

    def refuses(code: int, *words: str) -> None:
        files, pid = snapshot(node), node.pid_of()
        for text, reason in EDITS.items():
            edit(node, text)
            done = node.installer(*words)
            assert done.returncode == code, done.stderr
            assert f"containerd.service would not start it again: {reason})" in sentence(done.stderr)
            assert but_the_ledger(snapshot(node)) == but_the_ledger(files)
            assert node.pid_of() == pid

    refuses(1, "install", *SOURCE)
    assert snapshot(node) == files
    edit(node, HARMLESS)
    node.installer("install", *SOURCE, check=True)
    refuses(4, "uninstall")
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
    pid, before = node.pid_of(), node.read(CONTAINERD)
    running = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    until(lambda: node.read(CONTAINERD) != before, lambda: running.log)
    edit(node, "[Service]\nEnvironmentFile=/opt/flag\n")

    returncode = running.wait()

    assert returncode == {"install": 1, "uninstall": 4}[verb], running.log
    assert "its EnvironmentFile /opt/flag is not there" in sentence(running.log)
    assert node.pid_of() == pid
    assert verb == "uninstall" or snapshot(node) == files
