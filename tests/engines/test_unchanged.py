"""An install that changes nothing on a real node: short where nothing has changed, and never where something has."""

import json

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot

pytestmark = pytest.mark.any_version

WORDS = ("-X", "importtime", "-m", "installer", "install", "--toolkit-source", ARTIFACTS)
DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
NVIDIA = "/usr/local/nvidia"
LEFT = "usr/local/nvidia/toolkit/.config/unchanged"


def installed(node: Node) -> tuple[bool, list[dict[str, object]]]:
    """Return whether all of the program was loaded, and what it told."""
    done = node.run([PYTHON, *WORDS], check=False)
    lines = done.stderr.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    for event in events:
        del event["timestamp"]
    return any("installer.program" in line for line in lines), events


def is_loaded(node: Node) -> bool:
    return installed(node)[0]


RESTART = "systemctl restart containerd"
READ = "systemctl daemon-reload"
ONCE, ALWAYS, NEVER = (True, False), (True, True), (False, False)  # what is as it was is known again
# What is done to the node, and whether all of the program is loaded by an install behind it, and by the next one.
ACTS = {
    RESTART: ONCE,
    f"mkdir -p {DROP_IN.rpartition('/')[0]}; printf '[Service]\\nEnvironment=OTHER=1\\n' > {DROP_IN}; {READ}": ONCE,
    f"sleep 0.1; printf '[Service]\\nEnvironment=OTHER=2\\n' > {DROP_IN}": ONCE,
    READ: ONCE,
    f"printf '[Unit]\\nRefuseManualStop=yes\\n' > {DROP_IN}; {READ}": ONCE,
    f"rm {DROP_IN}; {READ}": ONCE,
    f"touch {CONTAINERD}; {RESTART}": ONCE,
    f"mount --bind {CONTAINERD} {CONTAINERD}": ALWAYS,
    f"umount {CONTAINERD}": NEVER,
    "touch /run/docker.sock": ALWAYS,
    "rm /run/docker.sock": NEVER,
    f"mount --bind {NVIDIA} {NVIDIA}; mount -o remount,bind,ro {NVIDIA}": ALWAYS,
    f"umount {NVIDIA}": NEVER,
    "touch -h /artifacts/usr/bin/nvidia-ctk": ONCE,
}


def test_an_install_is_short_only_as_long_as_nothing_changes(containerd_node: Node) -> None:
    node = containerd_node
    node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
    installed(node)
    before, pid = snapshot(node), node.pid_of("containerd")

    short, told = installed(node)
    (node.root / LEFT).unlink()
    long, told_again = installed(node)

    assert (short, long) == (False, True)
    assert told == told_again
    assert (snapshot(node).keys(), node.pid_of("containerd")) == (before.keys(), pid)
    found = {}
    for act in ACTS:
        node.run(["sh", "-c", act])
        node.cri.wait()
        found[act] = (is_loaded(node), is_loaded(node))
    assert found == ACTS
    node.cri.run_pod("nvidia")
    assert is_loaded(node)
