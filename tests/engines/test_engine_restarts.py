"""Containers on our runtime live on while containerd and Docker restart, whether the driver is loaded or not."""

import json

import pytest

from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER
from tests.engines.live import Live, start
from tests.engines.nodes import PYTHON, SOURCE, Node
from tests.engines.told import served


@pytest.mark.parametrize("driver", ["loaded", "not loaded"])
def test_a_live_container_outlives_restarts_of_its_engine(node: Node, driver: str) -> None:
    if node.engine == "docker":
        node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
        node.restart("docker")
    node.installer("install", *SOURCE, check=True)
    if driver == "not loaded":
        node.unload_fake_nvidia_module()
    live = start(node)
    process = init_of(live)

    for unit in ("containerd", "containerd", *(["docker"] if node.engine == "docker" else [])):
        node.restart(unit)
        if node.engine == "docker":
            node.wait_for("alive", ["docker", "exec", live.id, "echo", "alive"])
        else:
            node.cri.wait()

        assert live.exec() == "alive\n"
        assert init_of(live) == process
        assert "cleaning leaked shim process" not in node.journal("containerd")
    live.stop()
    live.remove()
    node.installer("uninstall", check=True)


@pytest.mark.any_version
def test_the_processes_of_a_container_can_be_listed_without_the_driver(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    docker_node.unload_fake_nvidia_module()
    live = start(docker_node)

    listed = docker_node.run(["docker", "top", live.id]).stdout

    assert "sleep" in listed


# Docker takes no notice of our signal, for its config is none then, and is restarted by its owner.
RELOAD = """
import subprocess
from pathlib import Path, PurePosixPath
from installer.engines import ENGINES
from installer.engines.restart import ask, reload
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.facts import EngineState
from installer.model.steps import Reload
host = Host.under(PurePosixPath("/"))
engine = ask(host, EngineState.usual(ENGINES["docker"]), timeout_s=5)
config = Path("/etc/docker/daemon.json")
texts = [config.read_text()]
def restart():
    if texts:
        config.write_text(texts.pop())
        subprocess.run(["systemctl", "restart", "docker"], check=True)
reload(host, engine, Reload("docker", ()), Patience(10, restart), lambda: config.write_text("{"))
"""


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


def test_containerd_2_asks_each_runtime_for_its_features_at_its_start(containerd_node: Node) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    node.write("/run/runc", '#!/bin/sh\necho "$1" >>/run/asked\nexec /usr/sbin/runc.real "$@"\n')
    node.run(["sh", "-c", "touch /run/asked; mv /usr/sbin/runc /usr/sbin/runc.real; cp /run/runc /usr/sbin"])
    node.run(["chmod", "755", "/usr/sbin/runc"])
    node.forget_marks()

    node.restart("containerd")

    assert node.read("/run/asked").split() == ["features"] * (0 if node.containerd_version < "2" else 4)
    assert node.marks() == [], "NVIDIA's program, which would pass that on, is not started"


@pytest.mark.any_version
def test_what_failed_for_what_a_unit_runs_is_tried_again_when_that_has_changed(containerd_node: Node) -> None:
    node, guard = containerd_node, "/usr/local/sbin/guard"
    node.write(guard, f"#!/bin/sh\n! grep -q nvidia-container-runtime {CONTAINERD}\n")
    node.run(["chmod", "755", guard])
    node.write("/etc/systemd/system/containerd.service.d/guard.conf", f"[Service]\nExecStartPre={guard}\n")
    node.run(["systemctl", "daemon-reload"])
    for said in ("restart containerd", "configure again what failed before"):
        refused = node.installer("install", *SOURCE)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr

    node.write(guard, "#!/bin/sh\n")

    node.installer("install", *SOURCE, check=True)
    assert "nvidia" in served(node)[0]


def init_of(live: Live) -> list[str]:
    """Return the processes of a container as its runtime's own shim numbers them."""
    namespace = "moby" if live.pod is None else "k8s.io"
    tasks = live.node.run(["ctr", "--namespace", namespace, "tasks", "list"]).stdout
    return [line for line in tasks.splitlines() if live.id in line]
