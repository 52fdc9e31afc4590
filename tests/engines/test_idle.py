"""--restart-mode when-idle: containerd is restarted at the first look at which it is creating no container."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, Cri
from tests.engines.nodes import Node, Running
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

IDLE = ("--toolkit-source", ARTIFACTS, "--restart-mode", "when-idle")
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
TEXTFILE = "/var/lib/toolkit.prom"
FEATURES = "/etc/features/toolkit"
TOLD = ("--metrics-textfile", TEXTFILE, "--nfd-features", FEATURES)


class Creating:
    """A pod with a container that is created, and started when the test says so."""

    def __init__(self, cri: Cri) -> None:
        self.cri, self.pod = cri, cri.run_pod()
        self.id = cri.create(self.pod, Container(command=("/bin/sleep", "100000")))

    def start(self) -> None:
        self.cri.call("RuntimeService/StartContainer", b"\x0a" + bytes([len(self.id)]) + self.id.encode())

    def lives(self) -> bool:
        return self.cri.exec(self.id, "echo", "alive").stdout == "alive\n"


def why(node: Node) -> str:
    return node.installer("status", "--ready").stdout


def running(node: Node) -> Running:
    process = node.start_installer("run", *IDLE, *TOLD)
    process.wait_for("restart pending")
    process.wait_for("waiting for a signal")
    return process


def test_a_restart_is_pending_until_the_engine_is_idle_and_an_undo_before_it_restarts_nothing(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    node.run(["mkdir", "-p", "/etc/features"])
    files, pid, before, creating = snapshot(node), node.pid_of("containerd"), served(node), Creating(cri)
    process = running(node)
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), node.pid_of("containerd")) == (files, pid)

    process = running(node)
    plan, status = node.installer("plan", *IDLE), node.installer("status")

    reason = (
        f"cannot restart containerd yet (it has created containers that are not started: {creating.id[:12]})"
    )
    assert "nvidia-container-runtime" in node.read(CONTAINERD)
    assert (node.pid_of("containerd"), served(node)) == (pid, before)
    assert (plan.returncode, reason in plan.stdout) == (10, True), plan.stdout
    assert (status.returncode, "pending since the last install: its restart" in status.stdout) == (1, True)
    assert reason in why(node)
    assert not (node.root / "run/nvidia/toolkit/ready").exists()
    assert 'engine_restart_pending{engine="containerd"} 1' in node.read(TEXTFILE)
    assert "/engine-containerd=pending\n" in node.read(FEATURES)

    creating.start()
    until((node.root / "run/nvidia/toolkit/ready").exists, lambda: f"{why(node)} {process.log}")

    assert served(node)[0] >= OURS
    assert creating.lives()
    assert process.log.count('"event": "engine re') == 1, process.log
    assert 'engine_restart_pending{engine="containerd"} 0' in node.read(TEXTFILE)
    assert "/engine-containerd=true\n" in node.read(FEATURES)
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), served(node)) == (files, before)
    assert creating.lives()
