"""Containers on our runtime live on while containerd and Docker restart, whether the driver is loaded or not."""

import json

import pytest

from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER
from tests.engines.live import Live, start
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served


@pytest.mark.parametrize("driver", ["loaded", "not loaded"])
def test_a_live_container_outlives_restarts_of_its_engine(node: Node, driver: str) -> None:
    if node.engine == "docker":
        node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
        node.restart("docker")
    node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
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
    docker_node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
    docker_node.unload_fake_nvidia_module()
    live = start(docker_node)

    listed = docker_node.run(["docker", "top", live.id]).stdout

    assert "sleep" in listed


def test_containerd_2_asks_each_runtime_for_its_features_at_its_start(containerd_node: Node) -> None:
    node = containerd_node
    node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
    node.write("/run/runc", '#!/bin/sh\necho "$1" >>/run/asked\nexec /usr/sbin/runc.real "$@"\n')
    node.run(["sh", "-c", "touch /run/asked; mv /usr/sbin/runc /usr/sbin/runc.real; cp /run/runc /usr/sbin"])
    node.run(["chmod", "755", "/usr/sbin/runc"])
    node.forget_marks()

    node.restart("containerd")

    assert node.read("/run/asked").split() == ["features"] * (0 if node.containerd_version < "2" else 4)
    assert node.marks() == [], "NVIDIA's program, which would pass that on, is not started"


@pytest.mark.any_version
@pytest.mark.parametrize("bus", ["system bus", "systemd's own socket"])
def test_a_systemd_that_executes_itself_anew_is_waited_for(containerd_node: Node, bus: str) -> None:
    node = containerd_node
    node.write("/etc/systemd/system/containerd.service.d/slow.conf", "[Service]\nExecStartPre=sleep 3\n")
    node.run(["systemctl", "daemon-reload"])
    if bus == "system bus":
        (node.root / "run/systemd/private").rename(node.root / "run/systemd/kept")
    installing = node.start_installer("install", "--toolkit-source", ARTIFACTS)
    node.wait_for("activating", ["systemctl", "show", "-P", "ActiveState", "containerd"])

    node.run(["systemctl", "daemon-reexec"])

    assert installing.wait() == 0, installing.log
    assert "nvidia" in served(node)[0]
    assert node.installer("status").returncode == 0


GUARD = "/usr/local/sbin/guard"
DROP_IN = "/etc/systemd/system/containerd.service.d/guard.conf"


@pytest.mark.any_version
@pytest.mark.parametrize("change", ["the unit", "what the unit runs", "nothing that is looked at"])
def test_what_failed_for_a_unit_is_tried_again_when_that_has_changed_or_after_an_uninstall(
    containerd_node: Node, change: str
) -> None:
    node = containerd_node
    node.write(GUARD, f"#!/bin/sh\n[ -e /etc/allowed ] || ! grep -q nvidia-container-runtime {CONTAINERD}\n")
    node.run(["chmod", "755", GUARD])
    node.write(DROP_IN, f"[Service]\nExecStartPre={GUARD}\n")
    node.run(["systemctl", "daemon-reload"])
    for said in ("restart containerd", "configure again what failed before"):
        refused = node.installer("install", "--toolkit-source", ARTIFACTS)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr

    if change == "the unit":
        node.run(["rm", DROP_IN])
        node.run(["systemctl", "daemon-reload"])
    elif change == "what the unit runs":
        node.write(GUARD, "#!/bin/sh\n")
    else:
        node.write("/etc/allowed", "")
        assert node.installer("install", "--toolkit-source", ARTIFACTS).returncode == 1
        node.installer("uninstall", check=True)

    node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
    assert "nvidia" in served(node)[0]


def init_of(live: Live) -> list[str]:
    """Return the processes of a container as its runtime's own shim numbers them."""
    namespace = "moby" if live.pod is None else "k8s.io"
    tasks = live.node.run(["ctr", "--namespace", namespace, "tasks", "list"]).stdout
    return [line for line in tasks.splitlines() if live.id in line]
