"""A shutdown of a node that its kubelet holds back, to end its pods first."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.engines.nodes import Node
from tests.support.waiting import until

LOGIND = "org.freedesktop.login1"
MANAGER = [LOGIND, "/org/freedesktop/login1", f"{LOGIND}.Manager"]
# What the kubelet does for its shutdownGracePeriod: a longer delay, and an inhibitor.
DELAY = "[Login]\nInhibitDelayMaxSec=60\n"
HOLD = ["systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=kubelet", "sleep", "60"]


@contextmanager
def held_back(node: Node) -> Iterator[None]:
    """Ask for a reboot, which begins when the block is over: until then systemd says that it runs."""
    node.write("/etc/systemd/logind.conf.d/99-kubelet.conf", DELAY)
    node.run(["systemctl", "restart", "systemd-logind"])
    held = node.start(HOLD)
    until(lambda: "kubelet" in node.run(["systemd-inhibit", "--list"]).stdout, lambda: held.log)
    node.run(["busctl", "call", *MANAGER, "Reboot", "b", "false"])
    assert node.run(["systemctl", "is-system-running"], check=False).stdout.strip() != "stopping"
    try:
        yield
    finally:
        held.kill()
        held.wait()
