"""The installer in a container of the engine that it restarts or signals: it lives, and gives everything back."""

import pytest

from tests.engines.images import IMAGE
from tests.engines.inside import GRACE_S, MOUNTS
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

DOCKER_RUN = ("docker", "run", "--detach", "--name", "toolkit", "--read-only", "--net", "none")
RUN = (PYTHON, "-m", "installer", "run", "--host-root", "/host", *SOURCE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("where", [("--pid", "host"), ()], ids=["hostPID", "without hostPID"])
def test_a_container_of_docker_reloads_the_dockerd_it_runs_under(
    docker_node: Node, where: tuple[str, ...]
) -> None:
    node, files, before = docker_node, snapshot(docker_node), served(docker_node)
    mounts = [word for here, there in MOUNTS.items() for word in ("--volume", f"{there}:{here}")]

    def log() -> str:
        return node.run(["docker", "logs", "toolkit"]).stderr

    node.run([*DOCKER_RUN, *where, *mounts, IMAGE, *RUN])
    until((node.root / "run/nvidia/toolkit/ready").exists, log)

    assert served(node) == (before[0] | OURS, before[1])
    node.run(["docker", "stop", "--time", str(GRACE_S), "toolkit"])
    ended = node.run(["docker", "inspect", "--format", "{{.State.ExitCode}}", "toolkit"])
    assert ended.stdout == "0\n", log()
    assert (snapshot(node), served(node)) == (files, before)
