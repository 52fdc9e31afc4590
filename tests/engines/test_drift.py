"""While run waits on a real node: others rewrite, restart, upgrade and stop; what we do about it is counted."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.running import Running
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
TITLES = {"docker": "Docker", "containerd": "containerd"}
PAUSES_S = (0, 10, 60, 300, 1800)  # between two repairs of one config
STATE = "/run/nvidia/toolkit/toolkit.pid.state"
REPAIR_S = 10.0  # a second of quiet, two starts of Python and the gate; the rest is for a busy machine
STOPPED_S = 15.0
REWRITES_S = float(os.environ.get("REWRITES_S", "20"))  # minutes in `make torture`


def config_of(node: Node) -> str:
    return DOCKER if node.engine == "docker" else CONTAINERD


@contextmanager
def running(node: Node, *more: str) -> Iterator[Running]:
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS, *more)
    process.wait_for("waiting for a signal")
    until(lambda: ready(node), lambda: why(node))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def look(node: Node) -> Any:
    return json.loads(node.read(STATE))


def why(node: Node) -> str:
    return node.installer("status", "--ready").stdout.strip()


def ready(node: Node) -> bool:
    return node.installer("status", "--ready").returncode == 0


def serves_by_now(node: Node) -> bool:
    """Tell whether the process that runs by now was seen to serve, and no earlier one."""
    (engine,) = (each for each in look(node)["engines"] if each["name"] == node.engine)
    return bool(engine["serves"] and engine["process"] == f"/proc/{node.pid_of(f'{node.engine}.service')}")


def times_s(done: Callable[[], bool], said: Callable[[], str]) -> float:
    began = time.monotonic()
    until(done, said)
    return time.monotonic() - began


class Starts:
    """How often an engine has been started since this was made, less what the test itself asked for."""

    def __init__(self, node: Node) -> None:
        self.unit, self.node, self.own = f"{node.engine}.service", node, 0
        self._last, self._seen = node.pid_of(self.unit), 0

    def restart(self) -> None:
        self.ours()
        self.node.restart(self.unit)
        self._last = self.node.pid_of(self.unit)

    def ours(self) -> int:
        """Return how many processes were not the one before; to be asked often."""
        if (now := self.node.pid_of(self.unit)) != self._last:
            self._seen, self._last = self._seen + 1, now
        return self._seen


def bootstrap(node: Node, before: str) -> None:
    """Do what a bootstrap script does: write the config anew, without our keys."""
    path = config_of(node)
    node.write(f"{path}.new", before)
    node.run(["mv", f"{path}.new", path])


def test_a_config_that_somebody_rewrites_is_mended_in_seconds_and_nothing_is_restarted(node: Node) -> None:
    files, before, names = snapshot(node), node.read(config_of(node)), served(node)
    with running(node) as process:
        starts, wanted = Starts(node), node.read(config_of(node))
        bootstrap(node, before)
        took = times_s(lambda: node.read(config_of(node)) == wanted, lambda: process.log)
        until(lambda: ready(node), lambda: why(node))

        assert took < REPAIR_S
        assert served(node)[0] >= OURS
        assert starts.ours() == 0
        assert list(look(node)["repairs"]) == [config_of(node)]
        process.terminate()
        assert process.wait() == 0, process.log
    assert snapshot(node) == files
    assert served(node) == names


def _with_a_key_of_its_owner(node: Node) -> None:
    now = node.read(config_of(node))
    if node.engine == "docker":
        node.write(DOCKER, json.dumps(json.loads(now) | {"max-concurrent-downloads": 4}))
    else:
        node.write(CONTAINERD, f"{now}\n# its owner was here\n")


def test_the_same_bytes_and_others_keys_are_no_drift(node: Node) -> None:
    if node.engine == "docker":  # then the file is made by us, and its owner's key is the first of his
        node.run(["rm", "-f", DOCKER])
        node.restart("docker.service")
    with running(node) as process:
        starts, number, said = Starts(node), look(node)["number"], process.log
        bootstrap(node, node.read(config_of(node)))
        until(lambda: look(node)["number"] > number, lambda: process.log)
        node.write(f"{config_of(node)}.bak", "somebody's copy")
        until(lambda: look(node)["number"] > number + 1, lambda: process.log)
        number = look(node)["number"]
        _with_a_key_of_its_owner(node)
        until(lambda: look(node)["number"] > number, lambda: process.log)

        assert ready(node), why(node)
        assert process.log == said, "not a word"
        assert (starts.ours(), look(node)["repairs"]) == (0, {})


def _with(text: str, line: str) -> str:
    """Return a config of containerd with a line in the place of the one for its key, or ahead of all tables."""
    key = line.partition(" ")[0]
    there = re.search(rf"^\s*{key} = .*\n", text, re.MULTILINE)
    assert there or key == "oom_score", text
    return text.replace(there[0] if there else "version =", line + ("" if there else "version ="), 1)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param('oom_score = "x"\n', id="a value of another type"),
        pytest.param('default_runtime_name = "nope"\n', id="a default that nobody defines"),
    ],
)
def test_an_edit_that_will_keep_the_engine_from_its_next_start_is_told_and_the_node_stays_ready(
    containerd_node: Node, broken: str
) -> None:
    node = containerd_node
    with running(node) as process:
        starts, before = Starts(node), node.read(CONTAINERD)
        node.write(CONTAINERD, _with(before, broken))
        until(lambda: node.installer("status").returncode == 1, lambda: process.log)
        told, asked = node.installer("status").stdout, node.installer("reconcile")
        doctor = node.installer("doctor").stdout

        assert "with the configs that it has now" in told
        assert ready(node)
        assert (asked.returncode, "config-refused" in asked.stderr) == (1, True), asked.stdout
        assert re.search(r"^ +bad +config-accepted", doctor, re.MULTILINE), doctor
        node.write(CONTAINERD, before)
        until(lambda: node.installer("status").returncode == 0, lambda: process.log)
        assert starts.ours() == 0


@pytest.mark.night
def test_somebody_who_rewrites_at_random_makes_no_restart_and_at_most_five_repairs(node: Node) -> None:
    before, choices = node.read(config_of(node)), random.Random(15)  # noqa: S311 - reproducible
    with running(node) as process:
        starts, wanted = Starts(node), node.read(config_of(node))
        over = time.monotonic() + REWRITES_S
        while time.monotonic() < over:
            choices.choice(
                (
                    lambda: bootstrap(node, before),
                    lambda: node.write(config_of(node), before),
                    lambda: bootstrap(node, node.read(config_of(node))),
                    lambda: node.write(config_of(node), wanted),
                    lambda: node.run(["touch", config_of(node)]),
                )
            )()
            assert starts.ours() == 0
            time.sleep(choices.uniform(0.05, 3))
        repairs = sum(map(len, look(node)["repairs"].values()))

        assert repairs <= sum(each <= REWRITES_S for each in accumulate(PAUSES_S)) + 1
        assert served(node)[0] >= OURS
        done = node.installer("reconcile")
        assert done.returncode == 0, done.stderr
        assert ready(node)
        assert starts.ours() == 0
        assert process.running


def test_a_restart_is_left_to_the_owner_told_and_done_when_asked_for(node: Node) -> None:
    before = node.read(config_of(node))
    with running(node) as process:
        starts = Starts(node)
        bootstrap(node, before)
        starts.restart()
        until(lambda: "without being asked" in why(node), lambda: f"{why(node)} {process.log}")
        told, sentence = node.installer("status"), why(node)

        verb = "reloaded" if node.engine == "docker" else "restarted"
        assert f"{TITLES[node.engine]} would have to be {verb}" in sentence
        assert "it does not serve nvidia" in sentence
        assert "toolkit-installer reconcile" in sentence
        assert (told.returncode, "ready: no" in told.stdout) == (1, True)
        assert not (node.root / "run/nvidia/toolkit/ready").exists()
        assert node.read(config_of(node)) == before
        assert starts.ours() == 0
        done = node.installer("reconcile")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "repaired"), done.stderr
        assert served(node)[0] >= OURS
        assert ready(node)
        assert starts.ours() == int(node.engine == "containerd")


def test_an_engine_that_only_its_owner_restarts_is_ok_once_he_has(node: Node) -> None:
    before = node.read(config_of(node))
    node.installer("install", "--toolkit-source", ARTIFACTS, "--restart-mode", "none", check=True)
    alone = node.installer("status")
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS, "--restart-mode", "none")
    process.wait_for("waiting for a signal")
    starts, first, asked = Starts(node), node.installer("status"), node.installer("reconcile")
    sentence = why(node)
    starts.restart()
    until(lambda: ready(node), lambda: _story(node, process))
    then = node.installer("status")
    bootstrap(node, before)
    starts.restart()
    until(lambda: "has not read its configs since" in why(node), lambda: _story(node, process))
    again = node.installer("status")
    starts.restart()
    until(lambda: ready(node), lambda: _story(node, process))

    assert served(node)[0] >= OURS
    assert starts.ours() == 0
    assert "pending since the last install: its restart or reload" in alone.stdout
    assert "has not read its configs since" in sentence
    assert "TOOLKIT_INSTALLER_RESTART_MODE" not in sentence
    assert "--restart-mode none leaves that to you" in sentence
    codes = [told.returncode for told in (alone, first, asked, then, again)]
    assert codes == [0, 1, 1, 0, 1], (first.stdout, asked.stdout, then.stdout, again.stdout)
    process.terminate()
    assert process.wait() == 0, process.log
    assert node.read(config_of(node)) == before


def test_with_the_policy_repair_an_engine_that_does_not_serve_is_restarted_once(node: Node) -> None:
    files, before = snapshot(node), node.read(config_of(node))
    with running(node, "--drift", "repair") as process:
        starts = Starts(node)
        bootstrap(node, before)
        starts.restart()
        took = times_s(lambda: serves_by_now(node), lambda: f"{why(node)} {process.log}")

        assert served(node)[0] >= OURS
        assert took < 2 * REPAIR_S
        time.sleep(4)
        assert starts.ours() == int(node.engine == "containerd")
        assert ready(node)
        process.terminate()
        assert process.wait() == 0, process.log
    assert snapshot(node) == files


def test_drift_that_is_ignored_takes_readiness_when_the_engine_does_not_serve_any_more(node: Node) -> None:
    before = node.read(config_of(node))
    with running(node, "--drift", "ignore") as process:
        starts, number = Starts(node), look(node)["number"]
        bootstrap(node, before)
        until(lambda: look(node)["number"] > number, lambda: process.log)
        told = node.installer("status")

        assert ready(node), why(node)
        assert (told.returncode, told.stdout.splitlines()[-1]) == (1, "ready: yes")
        assert f"BAD {node.engine}" in told.stdout
        assert "drift" not in process.log
        starts.restart()
        until(lambda: not ready(node), lambda: process.log)
        until(lambda: "--drift ignore repairs nothing" in why(node), lambda: f"{why(node)} {process.log}")
        assert node.read(config_of(node)) == before
        assert node.installer("reconcile").returncode == 0
        assert ready(node), why(node)
        assert starts.ours() == int(node.engine == "containerd")


def _story(node: Node, process: Running) -> str:
    """Return all that is known where a look was waited for in vain."""
    processes = node.run(["ps", "-e", "-o", "pid,etimes,stat,args"], check=False).stdout
    return f"{process.log}\n{node.read(STATE)}\n{processes}"


def test_an_engine_that_its_owner_restarts_or_upgrades_is_looked_at_and_left(node: Node) -> None:
    program = node.run(["readlink", f"/proc/{node.pid_of(f'{node.engine}.service')}/exe"]).stdout.strip()
    with running(node) as process:
        for upgrade in (False, True):
            starts = Starts(node)
            if upgrade:
                node.run(["sh", "-c", f"cp -a {program} {program}.new && mv {program}.new {program}"])
            starts.restart()
            until(lambda: serves_by_now(node), lambda: _story(node, process))

            assert ready(node), why(node)
            assert starts.ours() == 0
        assert "drift" not in process.log


def test_a_runc_that_is_gone_is_told_within_seconds_and_the_node_is_ready_when_it_is_back(node: Node) -> None:
    runc = node.run(["sh", "-c", "command -v runc"]).stdout.strip()
    with running(node) as process:
        starts = Starts(node)
        node.run(["mv", runc, f"{runc}.moved"])
        until(lambda: not ready(node), lambda: process.log)
        until(lambda: "which they start, is missing or not executable" in why(node), lambda: why(node))
        sentence = why(node)
        node.run(["mv", f"{runc}.moved", runc])
        until(lambda: ready(node), lambda: why(node))

        assert f"cannot start containers with our runtimes ({runc}" in sentence
        assert "install it again" in sentence
        assert starts.ours() == 0


@pytest.mark.parametrize("drift", ["auto", "ignore"])
def test_an_engine_that_is_stopped_is_never_ok_and_ready_again_when_it_runs(node: Node, drift: str) -> None:
    units = ["docker.service", "docker.socket"] if node.engine == "docker" else ["containerd.service"]
    with running(node, "--drift", drift) as process:
        node.run(["systemctl", "stop", *units])
        until(lambda: not ready(node), lambda: process.log)
        sentence, looks = why(node), look(node)["number"]
        time.sleep(STOPPED_S)
        looks = look(node)["number"] - looks
        node.run(["systemctl", "start", *reversed(units)])
        until(lambda: ready(node), lambda: why(node))

        assert "engine" in sentence or "serve" in sentence, sentence
        assert looks <= 3, "it is looked at again after 2, 10 and 60 s, not all the time"
        assert process.running


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


@pytest.mark.parametrize("wait_s", [1.2, 1.6, 2.0])
def test_a_run_killed_while_it_repairs_is_taken_over_by_the_next(
    containerd_node: Node, wait_s: float
) -> None:
    node = containerd_node
    files, names, before = snapshot(node), served(node), node.read(CONTAINERD)
    with running(node, "--drift", "repair") as process:
        bootstrap(node, before)
        node.restart("containerd.service")
        time.sleep(wait_s)
        process.kill()
        process.wait()
    with running(node) as process:
        assert served(node)[0] >= OURS
        process.terminate()
        assert process.wait() == 0, process.log
    assert snapshot(node) == files
    assert served(node) == names


@pytest.mark.night
def test_a_docker_that_answers_and_can_start_no_container_is_never_ok(docker_node: Node) -> None:
    node, shim = docker_node, "/usr/bin/containerd-shim-runc-v2"
    with running(node) as process:
        node.run(["mv", shim, f"{shim}.moved"])
        until(lambda: "containerd-shim-runc-v2, which holds each container" in why(node), lambda: why(node))
        assert "engine-below" in node.installer("doctor").stdout
        node.run(["mv", f"{shim}.moved", shim])
        until(lambda: ready(node), lambda: why(node))

        node.run(["systemctl", "kill", "--signal", "STOP", "containerd"])
        assert node.installer("reconcile").returncode == 1
        assert "its containerd hangs" in why(node)
        node.run(["systemctl", "kill", "--signal", "CONT", "containerd"])
        assert node.installer("reconcile").returncode == 0
        assert ready(node)
        assert process.running


def test_a_docker_that_its_owner_has_stopped_is_not_started_by_its_socket(docker_node: Node) -> None:
    node = docker_node
    with running(node):
        node.run(["systemctl", "stop", "docker.service"])
        until(lambda: "does not run" in why(node), lambda: why(node))
        for verb in (("reconcile",), ("plan", "--toolkit-source", ARTIFACTS), ("doctor",)):
            node.installer(*verb)
        verified = node.installer("verify")

        assert verified.returncode == 1
        assert "Docker is stopped, and verify does not start it" in verified.stdout
        assert node.show("docker.service", "ActiveState") == "inactive"
        assert node.show("docker.socket", "ActiveState") == "active"
        node.run(["systemctl", "start", "docker.service"])
        until(lambda: ready(node), lambda: why(node))


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
