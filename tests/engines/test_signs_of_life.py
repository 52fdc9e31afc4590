"""What a waiting run takes for a sign of life of an engine: asked as its waiter asks, once a minute."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from installer.host import asking
from installer.host.waiting import ASK
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.running import Running, until

pytestmark = pytest.mark.any_version

STATE = "/run/nvidia/toolkit/toolkit.pid.state"


@contextmanager
def running(node: Node) -> Iterator[Running]:
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    until((node.root / "run/nvidia/toolkit/ready").exists, lambda: process.log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _hangs_by_its_signs_of_life(node: Node) -> list[bool]:
    """Return whether the waiter would say that an engine hangs: as it is, stopped by a signal, and again."""
    docker, pid = node.engine == "docker", node.pid_of(f"{node.engine}.service")
    socket = node.root / ("run/docker.sock" if docker else "run/containerd/containerd.sock")
    code = "import sys, asking; asking.AT_MOST_S = 5.0; print(asking.silent([sys.argv[1]]))"
    command = [sys.executable, "-c", code, f"{'D' if docker else 'C'}{socket}"]
    found = []
    for name in ("CONT", "STOP", "CONT"):
        node.run(["kill", f"-{name}", str(pid)])
        done = subprocess.run(command, cwd=Path(asking.__file__).parent, capture_output=True, check=True)
        found.append(done.stdout == b"True\n")
    return found


def test_an_engine_that_is_stopped_by_a_signal_gives_none(node: Node) -> None:
    with running(node):
        assert _hangs_by_its_signs_of_life(node) == [False, True, False]


def _sign_of_life(node: Node, place: str) -> bool:
    """Return whether the waiter would take what listens there for alive."""
    code = "import sys, asking; asking.AT_MOST_S = 2.0; print(asking.silent([sys.argv[1]]))"
    command = [sys.executable, "-c", code, f"C{node.root / place.lstrip('/')}"]
    done = subprocess.run(command, cwd=Path(asking.__file__).parent, capture_output=True, check=True)
    return done.stdout == b"False\n"


def test_a_containerd_below_docker_that_is_stopped_by_a_signal_gives_none(docker_node: Node) -> None:
    node = docker_node
    with running(node):
        containerd = next(each["containerd"] for each in json.loads(node.read(STATE))["engines"])
        node.run(["systemctl", "kill", "--signal", "STOP", "containerd"])
        assert not _sign_of_life(node, containerd), "which leads to a look within two minutes"
        node.run(["systemctl", "kill", "--signal", "CONT", "containerd"])
        assert _sign_of_life(node, containerd)


def _asks(node: Node, process: Running) -> None:
    """Do what the waiter does once a minute, with the places that it was given."""
    words = Path(f"/proc/{process.outer_pid}/cmdline").read_text().split("\0")
    places = [word[1:] for word in words if word.startswith(ASK)]
    assert places
    code = "import sys, asking; asking.AT_MOST_S = 0.5; asking.silent(sys.argv[1:])"
    node.run(["env", f"PYTHONPATH={Path(asking.__file__).parent}", PYTHON, "-c", code, *places])


def test_a_docker_that_is_being_stopped_is_not_started_again_by_a_sign_of_life(docker_node: Node) -> None:
    node, unit, deaf = docker_node, "docker.service", "trap '' TERM; while true; do sleep 1; done"
    with running(node) as process:
        node.run(["docker", "run", "--detach", "--stop-timeout", "4", IMAGE, "/bin/sh", "-c", deaf])
        node.run(["systemctl", "stop", "--no-block", unit])
        until(lambda: node.show(unit, "ActiveState") == "deactivating", lambda: process.log)
        time.sleep(0.5)

        _asks(node, process)

        assert node.show(unit, "ActiveState") == "deactivating"
        until(lambda: node.show(unit, "ActiveState") != "deactivating", lambda: process.log)
        time.sleep(1)
        assert node.show(unit, "ActiveState") == "inactive"
