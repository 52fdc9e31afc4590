"""While run waits on a real node: others rewrite, restart, upgrade and stop; what we do about it is counted."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.images import IMAGE
from tests.engines.nodes import OURS, SOURCE, Node, Running
from tests.engines.told import served, snapshot, starts
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

STATE = "/run/nvidia/toolkit/toolkit.pid.state"
# A second of quiet, two starts of Python and the gate; a check by the clock comes after 120. The rest is for a busy
# machine.
REPAIR_S = 30.0


@contextmanager
def running(node: Node, *more: str) -> Iterator[Running]:
    process = node.start_run(*SOURCE, *more)
    until_ready(node)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def end(process: Running) -> None:
    process.terminate()
    assert process.wait() == 0, process.log


def look(node: Node) -> Any:
    return json.loads(node.read(STATE))


def why(node: Node) -> str:
    return node.installer("status", "--ready").stdout.strip()


def until_ready(node: Node) -> None:
    until(node.is_ready, lambda: why(node))


def until_told(node: Node, words: str) -> None:
    until(lambda: words in why(node), lambda: why(node))


def serves_by_now(node: Node) -> bool:
    """Tell whether the process that runs by now was seen to serve, and no earlier one."""
    (engine,) = (each for each in look(node)["engines"] if each["name"] == node.engine)
    return bool(engine["serves"] and engine["process"] == f"/proc/{node.pid_of()}")


def bootstrap(node: Node, before: str) -> None:
    """Do what a bootstrap script does: write the config anew, without our keys."""
    node.write(f"{node.config}.new", before)
    node.run(["mv", f"{node.config}.new", node.config])


@pytest.mark.sampled(16)
def test_a_config_that_somebody_rewrites_is_mended_in_seconds_and_nothing_is_restarted(node: Node) -> None:
    files, before, names = snapshot(node), node.read(node.config), served(node)
    program = node.run(["readlink", f"/proc/{node.pid_of()}/exe"]).stdout.strip()
    with running(node) as process:
        count, wanted = starts(node, node.unit), node.read(node.config)
        bootstrap(node, before)
        began = time.monotonic()
        until(lambda: node.read(node.config) == wanted, lambda: process.log)
        took = time.monotonic() - began
        until_ready(node)

        assert took < REPAIR_S
        assert served(node)[0] >= OURS
        assert starts(node, node.unit) == count
        assert list(look(node)["pace"]["repairs"]) == [node.config]
        said = process.log
        node.run(["sh", "-c", f"cp -a {program} {program}.new && mv {program}.new {program}"])  # an upgrade
        node.restart(node.unit)
        until(lambda: serves_by_now(node), lambda: _story(node, process))
        assert node.is_ready(), why(node)
        assert starts(node, node.unit) == count + 1
        assert "drift" not in process.log.removeprefix(said)
        end(process)
    assert snapshot(node) == files
    assert served(node) == names


@pytest.mark.sampled(16)
def test_a_restart_is_left_to_the_owner_told_and_done_when_asked_for(node: Node) -> None:
    before = node.read(node.config)
    with running(node):
        bootstrap(node, before)
        node.restart(node.unit)
        count = starts(node, node.unit)
        until_told(node, "without being asked")
        told, sentence = node.installer("status"), why(node)

        needs = {
            "docker": "Docker would have to be reloaded",
            "containerd": "containerd would have to be restarted",
        }
        assert needs[node.engine] in sentence
        assert "it does not serve nvidia" in sentence
        assert "toolkit-installer reconcile" in sentence
        assert (told.returncode, "ready: no" in told.stdout) == (1, True)
        assert not (node.root / "run/nvidia/toolkit/ready").exists()
        assert node.read(node.config) == before
        assert starts(node, node.unit) == count
        done = node.installer("reconcile")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "repaired"), done.stderr
        assert served(node)[0] >= OURS
        assert node.is_ready()
        assert starts(node, node.unit) == count + (node.engine == "containerd")


@pytest.mark.sampled(16)
def test_an_engine_that_only_its_owner_restarts_is_ok_once_he_has(node: Node) -> None:
    before, never = node.read(node.config), ("--restart-mode", "none")
    process = node.start_run(*SOURCE, *never)
    count, first, asked = starts(node, node.unit), node.installer("status"), node.installer("reconcile")
    sentence = why(node)
    node.restart(node.unit)
    until(node.is_ready, lambda: _story(node, process))

    assert served(node)[0] >= OURS
    assert starts(node, node.unit) == count + 1, "which its owner made"
    assert "has not read its configs since" in sentence
    assert "--restart-mode none leaves that to you" in sentence
    codes = [told.returncode for told in (first, asked, node.installer("status"))]
    assert codes == [0, 0, 0], (first.stdout, asked.stdout)
    process.terminate()
    assert process.wait() == 4, "it serves ours until its owner restarts it once more"
    node.restart(node.unit)
    node.installer("uninstall", check=True)
    assert node.read(node.config) == before


@pytest.mark.sampled(16)
def test_with_the_policy_repair_an_engine_that_does_not_serve_is_restarted_once(node: Node) -> None:
    files, before = snapshot(node), node.read(node.config)
    with running(node, "--drift", "repair") as process:
        bootstrap(node, before)
        count = starts(node, node.unit) + 1
        node.restart(node.unit)
        began = time.monotonic()
        until(lambda: serves_by_now(node), lambda: f"{why(node)} {process.log}")
        took = time.monotonic() - began

        assert served(node)[0] >= OURS
        assert took < 2 * REPAIR_S
        time.sleep(4)
        assert starts(node, node.unit) == count + (node.engine == "containerd")
        assert node.is_ready()
        end(process)
    assert snapshot(node) == files


def _story(node: Node, process: Running) -> str:
    """Return all that is known where a look was waited for in vain."""
    processes = node.run(["ps", "-e", "-o", "pid,etimes,stat,args"], check=False).stdout
    return f"{process.log}\n{node.read(STATE)}\n{processes}"


def test_a_docker_that_is_stopped_is_never_ok_nor_started_by_its_socket_and_ready_again_when_it_runs(
    docker_node: Node,
) -> None:
    node = docker_node
    with running(node) as process:
        node.run(["systemctl", "stop", "docker.service"])
        until_told(node, "does not run")
        for verb in (("reconcile",), ("plan", *SOURCE), ("doctor",)):
            node.installer(*verb)
        verified = node.installer("verify")

        assert verified.returncode == 1
        assert "Docker is stopped, and verify does not start it" in verified.stdout
        assert node.show("docker.service", "ActiveState") == "inactive"
        assert node.show("docker.socket", "ActiveState") == "active"
        node.run(["systemctl", "start", "docker.service"])
        until_ready(node)
        assert process.running


@pytest.mark.sampled(16)
@pytest.mark.parametrize("wait_s", [0.8, 1.3, 1.8])
def test_a_stop_while_a_repair_restarts_the_engine_undoes_everything_in_time(
    containerd_node: Node, wait_s: float
) -> None:
    node = containerd_node
    files, names, before = snapshot(node), served(node), node.read(CONTAINERD)
    with running(node, "--drift", "repair") as process:
        bootstrap(node, before)
        node.restart("containerd.service")
        time.sleep(wait_s)
        began = time.monotonic()
        process.terminate()

        assert process.wait() == 0, process.log
        assert time.monotonic() - began < 25
    assert snapshot(node) == files
    node.cri.wait()
    assert served(node) == names


def test_a_docker_that_is_being_stopped_is_not_started_again_by_a_check(docker_node: Node) -> None:
    node, unit, deaf = docker_node, "docker.service", "trap '' TERM; while true; do sleep 1; done"
    with running(node) as process:
        node.run(["docker", "run", "--detach", "--stop-timeout", "4", IMAGE, "/bin/sh", "-c", deaf])
        node.run(["systemctl", "stop", "--no-block", unit])
        until(lambda: node.show(unit, "ActiveState") == "deactivating", lambda: process.log)
        time.sleep(0.5)

        os.kill(process.outer_pid, signal.SIGHUP)

        assert node.show(unit, "ActiveState") == "deactivating"
        until(lambda: node.show(unit, "ActiveState") != "deactivating", lambda: process.log)
        time.sleep(1)
        assert node.show(unit, "ActiveState") == "inactive"
