"""The installer in a container of the engine that it restarts or signals: it lives, and gives everything back."""

import pytest

from tests.engines.images import IMAGE
from tests.engines.inside import GRACE_S, MOUNTS, OURS
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

RUN = (PYTHON, "-m", "installer", "run", "--host-root", "/host", "--toolkit-source", ARTIFACTS)


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
