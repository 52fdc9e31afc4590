"""A dockerd that has failed for want of a runtime that is ours is healed by an install."""

import pytest

from tests.engines.configs import DOCKER
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, served, snapshot

SOURCE = ("--toolkit-source", ARTIFACTS)
INSTALL = ("install", "--runtime", "docker", *SOURCE)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
LEFT = '{"default-runtime": "nvidia", "debug": true}'  # by a toolkit that was removed by hand
DROP_IN = "/run/systemd/system/docker.service.d/other.conf"


@pytest.fixture
def dead(docker_node: Node) -> Node:
    """Return a node whose dockerd has failed, and is not tried again."""
    docker_node.write(DOCKER, LEFT)
    docker_node.run(["systemctl", "restart", "docker"], check=False)
    docker_node.wait_for("failed", ["systemctl", "show", "-P", "ActiveState", "docker"])
    return docker_node


def test_a_dockerd_that_failed_for_want_of_our_runtime_is_started_with_it(dead: Node) -> None:
    assert dead.installer("plan", *INSTALL[1:]).returncode == 10

    dead.installer(*INSTALL, check=True)

    assert served(dead) == ({"runc"} | OURS, "nvidia")
    assert dead.installer("status").returncode == 0
    assert dead.installer("plan", *SOURCE).returncode == 0
    assert dead.installer("uninstall").returncode == 4, "it would not start without its default"
    dead.write(DOCKER, dead.read(DOCKER).replace('"default-runtime": "nvidia", ', ""))
    dead.installer("uninstall", check=True)
    assert served(dead) == ({"runc"}, "runc")
    assert dead.read(DOCKER) == '{"debug": true}'


@pytest.mark.any_version
def test_a_dockerd_that_an_install_may_not_start_is_left_as_it_was(dead: Node) -> None:
    def refused(*words: str) -> str:
        files = snapshot(dead)
        done = dead.installer(*words)
        assert done.returncode == 1, done.stderr
        assert snapshot(dead) == files
        return sentence(done.stderr)

    unnamed = refused("install", *SOURCE)
    assert "docker.service is failed/failed" in unnamed
    assert "--runtime" in unnamed

    dead.write(DROP_IN, "[Service]\nExecStartPre=/bin/false\n")
    dead.run(["systemctl", "daemon-reload"])
    files = snapshot(dead)
    other_reason = dead.installer(*INSTALL)
    assert (other_reason.returncode, dead.read(DOCKER)) == (1, LEFT), other_reason.stderr
    assert "restart docker.service" in other_reason.stderr
    dead.installer("uninstall", check=True)
    assert snapshot(dead) == files

    dead.run(["systemctl", "stop", "docker.service", "docker.socket"])
    dead.run(["systemctl", "reset-failed", "docker.service", "docker.socket"], check=False)
    assert "docker.service was stopped" in refused(*INSTALL)
    assert dead.show("docker", "ActiveState") == "inactive"
