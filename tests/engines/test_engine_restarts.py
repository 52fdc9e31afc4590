"""Containers on our runtime live on while containerd and Docker restart, whether the driver is loaded or not."""

import json

import pytest

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.live import start
from tests.engines.nodes import PYTHON, SOURCE, Node


@pytest.mark.sampled(16)
@pytest.mark.parametrize("driver", ["loaded", "not loaded"])
def test_a_live_container_outlives_restarts_of_its_engine(node: Node, driver: str) -> None:
    if node.engine == "docker":
        node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
        node.restart("docker")
    node.installer("install", *SOURCE, check=True)
    if driver == "not loaded":
        node.unload_fake_nvidia_module()
    live = start(node)
    namespace = "moby" if live.pod is None else "k8s.io"

    def process() -> list[str]:
        """Return the process of the container as its runtime's own shim numbers it."""
        tasks = node.run(["ctr", "--namespace", namespace, "tasks", "list"]).stdout
        return [line for line in tasks.splitlines() if live.id in line]

    before = process()

    for unit in ("containerd", "containerd", *(["docker"] if node.engine == "docker" else [])):
        node.restart(unit)
        if node.engine == "docker":
            node.wait_for("alive", ["docker", "exec", live.id, "echo", "alive"])
        else:
            node.cri.wait()

        assert live.exec() == "alive\n"
        assert process() == before
        assert "cleaning leaked shim process" not in node.journal("containerd")
    live.end()
    node.installer("uninstall", check=True)


# Docker takes no notice of our signal, for its config is none then, and is restarted by its owner.
RELOAD = """
import subprocess
from pathlib import Path, PurePosixPath
from installer.engines import ENGINES
from installer.engines.ask import ask
from installer.engines.reload import reload
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.engine import EngineState
from installer.model.steps import Reload
host = Host.under(PurePosixPath("/"))
engine = ask(host, EngineState.usual(ENGINES["docker"]), timeout_s=5)
config = Path("/etc/docker/daemon.json")
texts = [config.read_text()]
def restart():
    if texts:
        config.write_text(texts.pop())
        subprocess.run(["systemctl", "restart", "docker"], check=True)
reload(host, engine, Reload(ENGINES["docker"], ()), Patience(10, restart), lambda: config.write_text("{"))
"""


@pytest.mark.sampled(16)
def test_a_docker_that_is_restarted_in_the_middle_of_a_reload_has_read_its_config(docker_node: Node) -> None:
    """It knows of no reload then: an undo said that Docker has not let go, and that it serves nothing of ours."""
    before, config = docker_node.pid_of("docker"), docker_node.read(DOCKER)
    waited = RELOAD.replace("if texts:", "if False:").replace("Patience(10", "Patience(2")

    left = docker_node.run([PYTHON, "-c", waited], check=False)
    docker_node.write(DOCKER, config)
    done = docker_node.run([PYTHON, "-c", RELOAD], check=False)

    assert (
        "no longer serves our runtimes within 2 s (it has completed no reload since its signal)"
        in left.stderr
    )
    assert done.returncode == 0, done.stderr
    assert docker_node.pid_of("docker") != before
