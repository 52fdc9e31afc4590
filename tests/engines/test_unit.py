"""The installer as a systemd service of the host itself, by the unit of deploy/systemd."""

import pytest

from tests.engines.cache import PROJECT
from tests.engines.live import run_through_us, start
from tests.engines.nodes import OURS, PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot

pytestmark = pytest.mark.any_version

UNIT = "toolkit-installer.service"
PATH = f"/etc/systemd/system/{UNIT}"
READY = [PYTHON, "-m", "installer", "status"]


@pytest.fixture
def service(node: Node) -> Node:
    """Put the program and a toolkit where the unit looks for them, and enable the unit."""
    # A copy: the checkout may lie below /tmp, and the unit has one of its own.
    node.run(["mkdir", "/opt/program"])
    node.run(["cp", "-r", f"{PROJECT}/installer", "/opt/program/"])
    program = f'PYTHONPATH=/opt/program PYTHONDONTWRITEBYTECODE=1 exec {PYTHON} -m installer "$@"'
    node.write("/usr/local/bin/toolkit-installer", f"#!/bin/sh\n{program}\n")
    (node.root / "usr/local/bin/toolkit-installer").chmod(0o755)
    node.run(["cp", "-r", ARTIFACTS, "/opt/nvidia-toolkit"])
    node.write(PATH, (PROJECT / "deploy/systemd" / UNIT).read_text())
    node.run(["systemctl", "enable", "--quiet", UNIT])
    return node


@pytest.mark.sampled(16)
def test_the_unit_installs_outlives_a_reboot_and_gives_back_when_stopped(service: Node) -> None:
    node, files, before = service, snapshot(service), served(service)
    node.run(["systemd-analyze", "verify", PATH])
    # In tenths: fails above 5.0, of 10. It has no more rights than the work needs.
    said = node.run(["systemd-analyze", "security", "--offline=true", "--threshold=50", PATH]).stdout
    assert "Overall exposure level" in said

    node.run(["systemctl", "start", UNIT])
    node.wait_for("ready: yes", READY)
    assert served(node) == (before[0] | OURS, before[1])

    engine = node.pid_of()
    node.run(["systemctl", "reload", UNIT])
    assert "nothing to do" in node.run(["journalctl", "--output=cat", "--unit", UNIT]).stdout
    assert node.pid_of() == engine

    node.add_payload("/opt/nvidia-toolkit", "2.0.0")
    node.run(["systemctl", "reload", UNIT])
    reloaded = node.run(["journalctl", "--output=cat", "--lines=8", "--unit", UNIT]).stdout
    assert "repaired" in reloaded
    assert "ready: yes" in node.run(READY).stdout
    assert node.pid_of() == engine, "an upgrade restarts nothing"

    node.run(["mv", "/opt/nvidia-toolkit", "/opt/moved"])
    assert node.run(["systemctl", "reload", UNIT], check=False).returncode == 1
    assert node.show(UNIT, "ActiveState") == "active"
    node.run(["mv", "/opt/moved", "/opt/nvidia-toolkit"])
    node.run(["systemctl", "reload", UNIT])
    run_through_us(node)

    node.shut_down_and_boot()
    if node.engine == "containerd":
        node.cri.wait()
    node.wait_for("ready: yes", READY)
    assert served(node) == (before[0] | OURS, before[1])
    assert node.show(node.unit, "NRestarts") == "0"

    live = start(node)
    node.run(["systemctl", "stop", UNIT])
    assert node.show(UNIT, "ActiveState") == "failed", "it leaves something of ours, and does not try again"
    live.end()
    node.run(["systemctl", "start", UNIT])
    node.wait_for("ready: yes", READY)
    node.run(["systemctl", "stop", UNIT])
    assert node.show(UNIT, "Result") == "success"
    assert served(node) == before
    ours = ("/run/", "/opt/nvidia-toolkit")  # what a boot begins anew with, and what this test has put there
    left = snapshot(node)
    changed = {path for path in {*files, *left} if files.get(path) != left.get(path)}
    assert not [path for path in changed if not path.startswith(ours)]
