"""The installer in a container of the engine that it restarts or signals: it lives, and gives everything back."""

import pytest

from tests.engines.cri import CONTAINER, NODE, Cri
from tests.engines.images import IMAGE
from tests.engines.inside import GRACE_S, LOG, MOUNTS, OURS, stop
from tests.engines.live import start
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

RUN = (PYTHON, "-m", "installer", "run", "--host-root", "/host", "--toolkit-source", ARTIFACTS)


@pytest.mark.parametrize("pid", [NODE, CONTAINER], ids=["hostPID", "without hostPID"])
def test_a_pod_restarts_the_containerd_it_runs_under_and_lives(
    containerd_node: Node, cri: Cri, pid: int
) -> None:
    node = containerd_node
    files, before = snapshot(node), served(node)
    log, ready = node.root / f"run/podlogs/{LOG}", node.root / "run/nvidia/toolkit/ready"
    old = node.pid_of("containerd")

    pod = cri.run_pod(name="toolkit", pid=pid)
    container = cri.start_container(pod, *RUN, mounts=MOUNTS, pid=pid, log=LOG, read_only_root=True)
    until(ready.exists, log.read_text)

    assert node.pid_of("containerd") != old
    assert cri.container_state(container)[0] == 1
    assert served(node) == (before[0] | OURS, before[1])
    live = start(node)
    assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    assert cri.exec(container, PYTHON, "-m", "installer", "status", "--host-root", "/host").returncode == 0
    stop(cri, container)
    assert cri.container_state(container) == (2, 0), log.read_text()
    assert served(node) == before
    cri.remove_container(container)
    cri.remove_pod(pod)
    assert snapshot(node) == files


def test_a_pod_that_is_created_again_touches_nothing(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    files = snapshot(node)
    ready = node.root / "run/nvidia/toolkit/ready"
    pids = []
    for turn in ("first", "second"):
        log = node.root / f"run/podlogs/{turn}"
        pod = cri.run_pod(name="toolkit", pid=NODE)
        container = cri.start_container(pod, *RUN, mounts=MOUNTS, pid=NODE, log=turn)
        until(lambda log=log: "waiting for a signal" in log.read_text(), log.read_text)  # type: ignore[misc]
        pids.append(node.pid_of("containerd"))
        assert ready.exists()
        if turn == "first":
            cri.stop_container(container)  # at once: SIGKILL, as after an out-of-memory
            cri.remove_pod(pod)

    assert "nothing changed" in log.read_text()
    assert pids[0] == pids[1]
    stop(cri, container)
    cri.remove_pod(pod)
    assert snapshot(node) == files


@pytest.mark.parametrize("namespace", ["host", ""], ids=["hostPID", "without hostPID"])
def test_a_container_of_docker_reloads_the_dockerd_it_runs_under(docker_node: Node, namespace: str) -> None:
    files, before = snapshot(docker_node), served(docker_node)
    mounts = [word for here, there in MOUNTS.items() for word in ("--volume", f"{there}:{here}")]
    where = ["--pid", namespace] if namespace else []
    command = [
        "docker",
        "run",
        "--detach",
        "--name",
        "toolkit",
        "--read-only",
        "--net",
        "none",
        *where,
        *mounts,
    ]

    docker_node.run([*command, IMAGE, *RUN])
    until(
        (docker_node.root / "run/nvidia/toolkit/ready").exists,
        lambda: docker_node.run(["docker", "logs", "toolkit"]).stderr,
    )

    assert served(docker_node) == (before[0] | OURS, before[1])
    docker_node.run(["docker", "stop", "--time", str(GRACE_S), "toolkit"])
    code = docker_node.run(["docker", "inspect", "--format", "{{.State.ExitCode}}", "toolkit"]).stdout
    assert code == "0\n", docker_node.run(["docker", "logs", "toolkit"]).stderr
    assert snapshot(docker_node) == files
    assert served(docker_node) == before
