"""verify on real nodes: the way through each runtime is proven, what is missing on it is named, nothing stays."""

import json
import signal
import time
from typing import Any

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.conftest import Boot
from tests.engines.cri import Pod
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.versions import EngineSet

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
RUNTIMES = ["nvidia", "nvidia-cdi", "nvidia-legacy"]
SLOW_S = 20
LOOKS = {
    "docker": (["docker", "ps", "--all", "--quiet"], ["docker", "images", "--all", "--quiet"]),
    "containerd": tuple(
        ["ctr", "--namespace", "k8s.io", what, "list"] for what in ("containers", "images", "snapshots")
    ),
}


def verify(node: Node) -> tuple[int, dict[str, dict[str, Any]]]:
    done = node.installer("verify", "--json")
    assert done.stdout, done.stderr
    return done.returncode, {each["runtime"]: each for each in json.loads(done.stdout)["runtimes"]}


def left(node: Node) -> list[str]:
    """Return what a container may leave behind, besides files: engine's objects, mounts, cgroups, processes."""
    asked = [node.run(look).stdout for look in LOOKS[node.engine]]
    seen = node.run(
        ["sh", "-c", "find /sys/fs/cgroup -type d | sort; ps -e -o comm= | grep containerd-shim; true"]
    )
    mounts = sorted(line.split(" ", 4)[4] for line in node.read("/proc/1/mountinfo").splitlines())
    return [*asked, *seen.stdout.splitlines(), *mounts]


def test_the_way_through_each_runtime_is_proven_and_nothing_stays(node: Node) -> None:
    node.installer("install", *SOURCE, check=True)
    verify(node)  # an engine's first container leaves directories of its own
    node.forget_marks()
    before, files = left(node), snapshot(node)

    code, found = verify(node)

    assert (code, [*found]) == (0, RUNTIMES), found
    assert {each["level"] for each in found.values()} == {"ok"}
    created = [mark.split()[0] for mark in node.marks() if " create " in mark]
    assert set(created) == {"nvidia-container-runtime.real"} | {
        f"nvidia-container-runtime.{mode}.real" for mode in ("cdi", "legacy")
    }
    node.forget_marks()
    assert left(node) == before
    assert snapshot(node) == files


def test_what_is_missing_on_the_way_is_named_and_nothing_stays(node: Node) -> None:
    node.installer("install", *SOURCE, check=True)
    verify(node)
    before = left(node)
    real = node.root / f"{RUNTIME}.real".lstrip("/")
    program = real.read_bytes()

    node.unload_fake_nvidia_module()
    without_driver = verify(node)
    node.load_fake_nvidia_module()
    real.write_text("#!/bin/sh\necho 'driver rpc error: timed out' >&2\nexit 1\n")
    failing = verify(node)
    after = left(node)
    real.write_bytes(program)
    replace_runtime(node)
    replaced = verify(node)

    assert [without_driver[0], failing[0], replaced[0]] == [1, 1, 1]
    assert all("took no part" in each["found"] for each in without_driver[1].values()), without_driver
    assert "no container could be run" in failing[1]["nvidia"]["found"]
    assert "not ours" in replaced[1]["nvidia"]["found"]
    for _, found in (failing, replaced):
        assert [found[name]["level"] for name in RUNTIMES] == ["bad", "ok", "ok"], found
    assert after == before


def replace_runtime(node: Node) -> None:
    """Let the engine start runc under the name of our runtime, as a script that renders its config may."""
    config = DOCKER if node.engine == "docker" else CONTAINERD
    text = node.read(config)
    for quote in "\"'":
        text = text.replace(f"{quote}{RUNTIME}{quote}", f"{quote}/usr/sbin/runc{quote}")
    node.write(config, text)
    node.restart(node.engine)
    if node.engine == "containerd":
        node.cri.wait()


def kill_one(node: Node) -> None:
    """Kill a verify while its container runs."""
    node.forget_marks()
    process = node.start_installer("verify")
    deadline = time.monotonic() + 20
    while not any(" exec " in mark for mark in node.marks()):
        assert time.monotonic() < deadline, process.log
        time.sleep(0.002)
    node.run(["kill", f"-{signal.SIGKILL}", str(process.pid)])
    process.wait()


def test_what_a_killed_one_left_goes_with_the_next(node: Node) -> None:
    node.installer("install", *SOURCE, check=True)
    verify(node)
    before = left(node)
    kill_one(node)

    code, found = verify(node)

    assert code == 0, found
    assert left(node) == before


def test_one_is_at_work_at_a_time(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    verify(docker_node)
    images = ["docker", "images", "--all", "--quiet"]
    before = docker_node.run(images).stdout
    first = docker_node.start_installer("verify")
    second = docker_node.installer("verify")

    assert {first.wait(), second.returncode} == {0, 3}, (first.log, second.stderr)
    assert docker_node.run(images).stdout == before


@pytest.mark.parametrize("in_use", ["wait", "keep"])
def test_what_a_killed_one_left_goes_with_an_undo(node: Node, in_use: str) -> None:
    node.installer("install", *SOURCE, check=True)
    verify(node)
    before = [node.run(look).stdout for look in LOOKS[node.engine]]
    kill_one(node)

    undone = node.installer("uninstall", "--in-use", in_use)

    assert undone.returncode == 0, undone.stderr
    assert "waiting for containers" not in undone.stderr
    assert [node.run(look).stdout for look in LOOKS[node.engine]] == before


def take_container(node: Node) -> None:
    """Take away what runs of a killed verify, as one does that was killed while it removed its own."""
    if node.engine == "docker":
        node.run(["sh", "-c", "docker rm --force $(docker ps --all --quiet)"])
        return
    for pod, handler in node.cri.pods().items():
        node.cri.stop_pod(Pod(pod, b"", handler, ""))


@pytest.mark.night
def test_what_one_left_that_was_killed_at_its_end_goes_with_an_undo(node: Node) -> None:
    node.installer("install", *SOURCE, check=True)
    verify(node)
    before = [node.run(look).stdout for look in LOOKS[node.engine]]
    kill_one(node)
    take_container(node)
    left_over = [node.run(look).stdout for look in LOOKS[node.engine]]

    node.installer("uninstall", check=True)

    assert left_over != before
    assert [node.run(look).stdout for look in LOOKS[node.engine]] == before


def signal_shims(node: Node, number: signal.Signals) -> None:
    """Send a signal to every shim of the node."""
    listed = (line.split() for line in node.run(["ps", "-e", "-o", "pid=,comm="]).stdout.splitlines())
    shims = [pid for pid, name in listed if name.startswith("containerd-shim")]
    assert shims
    node.run(["kill", f"-{number}", *shims])


@pytest.mark.parametrize("docker", [True, False], ids=["dockerd", "containerd"])
@pytest.mark.night
def test_what_a_killed_one_left_goes_with_an_undo_however_slow_the_engine_is(
    booted: Boot, engines_today: list[EngineSet], *, docker: bool
) -> None:
    with booted(next(engines for engines in engines_today if bool(engines.docker) is docker)) as node:
        node.installer("install", *SOURCE, check=True)
        verify(node)
        before = [node.run(look).stdout for look in LOOKS[node.engine]]
        kill_one(node)
        signal_shims(node, signal.SIGSTOP)  # as on a machine that has no time for them
        undoing = node.start_installer("uninstall", "--in-use", "keep")
        time.sleep(SLOW_S)
        signal_shims(node, signal.SIGCONT)

        assert undoing.wait() == 0, undoing.log
        assert [node.run(look).stdout for look in LOOKS[node.engine]] == before


def test_there_is_nothing_to_verify_where_nothing_is_installed(node: Node) -> None:
    assert node.installer("verify").returncode == 3
