"""While ``run`` waits beside a real engine: status, its probe, plan, install, reconcile and the engine agree."""

from functools import partial

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
OK, FAILED, LOCKED, WOULD_CHANGE = 0, 1, 3, 10


def config_of(node: Node) -> str:
    return DOCKER if node.engine == "docker" else CONTAINERD


def says_more(node: Node) -> None:
    """Add what has nothing to do with runtimes, as an administrator may."""
    text = node.read(config_of(node))
    more = text.replace("{", '{"shutdown-timeout": 20, ', 1) if node.engine == "docker" else f"{text}# mine\n"
    node.write(config_of(node), more)


def replaces_the_inode(node: Node) -> None:
    node.run(["cp", config_of(node), f"{config_of(node)}.new"])
    node.run(["mv", f"{config_of(node)}.new", config_of(node)])


def restarts_the_engine(node: Node) -> None:
    node.restart(f"{node.engine}.service")
    until(lambda: bool(served(node)[0]), lambda: node.journal(node.engine))


def takes_a_runtime(node: Node) -> None:
    """Let one of ours start another program."""
    text = node.read(config_of(node))
    node.write(
        config_of(node),
        text.replace("/usr/local/nvidia/toolkit/nvidia-container-runtime.legacy", "/usr/sbin/runc"),
    )


def removes_the_toolkit(node: Node) -> None:
    node.run(["rm", "/usr/local/nvidia/toolkit"])


ACTS = {
    says_more: OK,
    replaces_the_inode: OK,
    restarts_the_engine: OK,
    takes_a_runtime: WOULD_CHANGE,
    removes_the_toolkit: WOULD_CHANGE,
}


def told_as(node: Node, status: int, ready: int, plan: int) -> bool:
    """Tell whether the probe, status and plan end with these codes; the dear ones are asked when the first agrees."""
    asked = {("status", "--ready"): ready, ("status",): status, ("plan", *SOURCE): plan}
    return all(node.installer(*words).returncode == code for words, code in asked.items())


def told(node: Node) -> str:
    return node.installer("status").stdout + node.installer("plan", *SOURCE).stdout


@pytest.mark.parametrize("order", [1, -1], ids=["forth", "back"])
def test_none_contradicts_another_or_the_engine(node: Node, order: int) -> None:
    run = node.start_installer("run", "--drift", "report", *SOURCE)
    run.wait_for("waiting for a signal")
    until(lambda: told_as(node, OK, OK, OK), lambda: told(node))
    for act, planned in [*ACTS.items()][::order]:
        act(node)
        agreed = (OK, OK, OK) if planned == OK else (FAILED, FAILED, WOULD_CHANGE)
        until(partial(told_as, node, *agreed), lambda: told(node))
        assert node.installer("install", *SOURCE).returncode == LOCKED

        done = node.installer("reconcile")

        assert done.returncode == OK, done
        assert done.stdout.splitlines()[-1] == ("nothing to do" if planned == OK else "repaired"), act
        until(partial(told_as, node, OK, OK, OK), lambda: told(node))
        assert served(node)[0] >= OURS
    run.terminate()
    assert run.wait() == OK, run.log
    assert served(node)[0] & OURS == {"nvidia-legacy"}, "what an administrator made of it comes back"
