"""A node that goes down keeps everything, also where a kubelet stops the pods before systemd begins."""

import pytest

from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.running import until
from tests.engines.told import served

pytestmark = pytest.mark.any_version

OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
STATUS = [PYTHON, "-m", "installer", "status"]
LOGIND = "org.freedesktop.login1"
MANAGER = [LOGIND, "/org/freedesktop/login1", f"{LOGIND}.Manager"]
# What the kubelet does for its shutdownGracePeriod: a longer delay, and an inhibitor.
DELAY = "[Login]\nInhibitDelayMaxSec=60\n"
HOLD = ["systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=kubelet", "sleep", "60"]


def test_a_stop_while_the_kubelet_holds_a_shutdown_back_keeps_everything(containerd_node: Node) -> None:
    node, before = containerd_node, served(containerd_node)
    node.write("/etc/systemd/logind.conf.d/99-kubelet.conf", DELAY)
    node.run(["systemctl", "restart", "systemd-logind"])
    running = node.start_installer("run", "--toolkit-source", ARTIFACTS)
    node.wait_for("ready: yes", STATUS)
    engine = node.pid_of("containerd.service")
    held = node.start(HOLD)
    until(lambda: "kubelet" in node.run(["systemd-inhibit", "--list"]).stdout, lambda: held.log)

    node.run(["busctl", "call", *MANAGER, "Reboot", "b", "false"])
    assert node.run(["systemctl", "is-system-running"], check=False).stdout.strip() != "stopping"
    running.terminate()

    code, kept = running.wait(), (served(node), node.pid_of("containerd.service"))
    held.kill()
    held.wait()

    assert code == 0
    assert "the node is going down" in running.log
    assert kept == ((before[0] | OURS, before[1]), engine), "nothing undone or restarted in the middle of it"
