"""--restart-mode when-idle: containerd is restarted at the first look at which it is creating no container."""

import json

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Container, Cri
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.running import Running
from tests.engines.snapshot import snapshot
from tests.engines.told import served
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


def ready(node: Node) -> bool:
    return node.installer("status", "--ready").returncode == 0


def why(node: Node) -> str:
    return node.installer("status", "--ready").stdout


def running(node: Node, *more: str) -> Running:
    process = node.start_installer("run", *IDLE, *more)
    process.wait_for("waiting for a signal")
    return process


def test_run_tells_that_a_restart_is_pending_until_the_engine_is_idle(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    node.run(["mkdir", "-p", "/etc/features"])
    files, pid, before, creating = snapshot(node), node.pid_of("containerd"), served(node), Creating(cri)
    process = running(node, *TOLD)
    process.wait_for("restart pending")
    plan, status = node.installer("plan", *IDLE), node.installer("status")
    document = json.loads(node.installer("status", "--json").stdout)

    reason = (
        f"cannot restart containerd yet (it has created containers that are not started: {creating.id[:12]})"
    )
    assert "nvidia-container-runtime" in node.read(CONTAINERD)
    assert (node.pid_of("containerd"), served(node)) == (pid, before)
    assert (plan.returncode, reason in plan.stdout) == (10, True), plan.stdout
    assert status.returncode == 1
    assert "BAD containerd" in status.stdout
    assert "pending since the last install: its restart" in status.stdout
    assert (document["ready"], document["look"]["code"]) == (False, "restart-pending")
    assert reason in why(node)
    assert not (node.root / "run/nvidia/toolkit/ready").exists()
    assert 'engine_restart_pending{engine="containerd"} 1' in node.read(TEXTFILE)
    assert "/engine-containerd=pending\n" in node.read(FEATURES)

    creating.start()
    until(lambda: ready(node), lambda: f"{why(node)} {process.log}")

    assert served(node)[0] >= OURS
    assert creating.lives()
    assert process.log.count('"event": "engine re') == 1, process.log
    assert 'engine_restart_pending{engine="containerd"} 0' in node.read(TEXTFILE)
    assert "/engine-containerd=true\n" in node.read(FEATURES)
    assert "pending" not in node.installer("status").stdout
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), served(node)) == (files, before)
    assert creating.lives()


def test_an_undo_restarts_no_engine_that_has_never_read_our_config(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    files, pid, creating = snapshot(node), node.pid_of("containerd"), Creating(cri)
    process = running(node)
    process.terminate()
    assert process.wait() == 0, process.log
    assert (snapshot(node), node.pid_of("containerd")) == (files, pid)

    once = node.installer("install", *IDLE, "--timeout", "3")

    assert once.returncode == 0, once.stderr
    assert "restart pending" in once.stderr
    assert "nvidia-container-runtime" in node.read(CONTAINERD)
    status = node.installer("status")
    assert (status.returncode, "pending since the last install: its restart" in status.stdout) == (1, True)
    node.installer("uninstall", check=True)
    assert (snapshot(node), node.pid_of("containerd")) == (files, pid)
    node.installer("install", *IDLE, "--timeout", "3", check=True)
    creating.start()
    node.installer("install", *IDLE, check=True)
    assert node.pid_of("containerd") != pid
    assert served(node)[0] >= OURS
    assert node.installer("status").returncode == 0
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert creating.lives()


def test_a_repair_waits_as_well_and_is_done_at_once_when_asked_for(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    before, process = node.read(CONTAINERD), running(node, "--drift", "repair")
    until(lambda: ready(node), lambda: f"{why(node)} {process.log}")
    creating = Creating(cri)
    node.write(f"{CONTAINERD}.new", before)
    node.run(["mv", f"{CONTAINERD}.new", CONTAINERD])
    node.restart("containerd")
    pid = node.pid_of("containerd")
    until(lambda: "cannot restart containerd yet" in why(node), lambda: f"{why(node)} {process.log}")

    assert "nvidia-container-runtime" in node.read(CONTAINERD)
    assert node.pid_of("containerd") == pid
    done = node.installer("reconcile")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "repaired"), done.stderr
    assert node.pid_of("containerd") != pid
    assert ready(node)
    assert served(node)[0] >= OURS
    cri.remove_pod(creating.pod)
    process.terminate()
    assert process.wait() == 0, process.log
