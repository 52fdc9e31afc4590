"""verify on real nodes: the way through each runtime is proven, what is missing on it is named, nothing stays.

What others have in an engine is theirs, also with our label on it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import bad, doctor, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
RUNTIMES = ["nvidia", "nvidia-cdi", "nvidia-legacy"]
LABEL = "toolkit-installer=toolkit-installer-verify"
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


def installed(node: Node) -> None:
    """Install, and have an engine's first container leave directories of its own."""
    node.installer("install", *SOURCE, check=True)
    verify(node)


def objects(node: Node) -> list[str]:
    """Return what the engine lists."""
    return [node.run(look).stdout for look in LOOKS[node.engine]]


def left(node: Node) -> list[str]:
    """Return what a container may leave behind, besides files: engine's objects, mounts, cgroups, processes."""
    look = "find /sys/fs/cgroup -type d | sort; ps -e -o comm= | grep containerd-shim; true"
    seen = node.run(["sh", "-c", look])
    mounts = sorted(line.split(" ", 4)[4] for line in node.read("/proc/1/mountinfo").splitlines())
    return [*objects(node), *seen.stdout.splitlines(), *mounts]


@pytest.mark.sampled(16)
def test_the_way_through_each_runtime_is_proven_and_nothing_stays(node: Node) -> None:
    installed(node)
    node.forget_marks()
    before, files = left(node), snapshot(node)

    code, found = verify(node)

    assert (code, [*found]) == (0, RUNTIMES), found
    assert {each["level"] for each in found.values()} == {"ok"}
    created = [mark.split()[0] for mark in node.marks() if " create " in mark]
    assert set(created) == {f"nvidia-container-runtime{mode}.real" for mode in ("", ".cdi", ".legacy")}
    node.forget_marks()
    assert left(node) == before
    assert snapshot(node) == files


@contextmanager
def replaced_runtime(node: Node, script: str) -> Iterator[None]:
    """Have the wrapper of our runtime start a script in the block."""
    real = node.path(f"{RUNTIME}.real")
    program = real.read_bytes()
    real.write_text(script)
    yield
    real.write_bytes(program)


@pytest.mark.sampled(16)
def test_what_is_missing_on_the_way_is_named_and_nothing_stays(node: Node) -> None:
    installed(node)
    before = left(node)

    node.unload_fake_nvidia_module()
    without_driver = verify(node)
    node.load_fake_nvidia_module()
    with replaced_runtime(node, "#!/bin/sh\necho 'driver rpc error: timed out' >&2\nexit 1\n"):
        failing = verify(node)
        after = left(node)
    # The engine starts runc under the name of our runtime, as by a script that renders its config.
    node.write(node.config, re.sub(rf"""["']{RUNTIME}["']""", '"/usr/sbin/runc"', node.read(node.config)))
    node.restart_engine()
    replaced = verify(node)

    assert [without_driver[0], failing[0], replaced[0]] == [1, 1, 1]
    assert all("was not started" in each["found"] for each in without_driver[1].values()), without_driver
    assert "no container could be run" in failing[1]["nvidia"]["found"]
    assert "not ours" in replaced[1]["nvidia"]["found"]
    for _, found in (failing, replaced):
        assert [found[name]["level"] for name in RUNTIMES] == ["bad", "ok", "ok"], found
    assert after == before


# The container's own process is another one: it prints a line and ends.
ENDS_AT_ONCE = """\
#!/bin/sh
for word in "$@"; do
    test -e "$word/config.json" && sed -i 's/read x/echo broken; exit 7/' "$word/config.json"
done
exec /usr/sbin/runc "$@"
"""


@pytest.mark.sampled(16)
def test_the_end_of_a_container_that_does_not_stay_is_explained(node: Node) -> None:
    installed(node)
    before = left(node)

    with replaced_runtime(node, ENDS_AT_ONCE):
        code, found = verify(node)

    assert code == 1
    printed = "; its last lines: broken" if node.engine == "docker" else ""
    reason = "" if node.engine == "docker" else ": Error"
    assert f"run a container (it ended at once with exit code 7{reason}{printed})" in found["nvidia"]["found"]
    assert f"the log of {'Docker' if node.engine == 'docker' else 'containerd'}" in found["nvidia"]["remedy"]
    assert [found[name]["level"] for name in RUNTIMES] == ["bad", "ok", "ok"], found
    assert left(node) == before


@pytest.mark.sampled(16)
def test_read_only_cgroups_are_the_reason_in_verify_and_a_bad_check_of_doctor(node: Node) -> None:
    installed(node)
    before = left(node)

    mounts = [mount.split(" ")[4:6] for mount in node.read("/proc/1/mountinfo").splitlines()]
    # With cgroup v1 there is a mount for each controller.
    cgroups = [place for place, how in mounts if place.startswith("/sys/fs/cgroup") and how.startswith("rw")]
    for place in cgroups:
        node.run(["mount", "-o", "remount,ro,bind", place])
    try:
        code, found = verify(node)
        _, checks = doctor(node)
    finally:
        for place in cgroups:
            node.run(["mount", "-o", "remount,rw,bind", place])

    assert code == 1
    for each in found.values():
        assert each["found"].startswith("no container could be run: ")
        assert "read-only file system" in each["found"]
    assert "cgroup" in bad(checks)["engine-below"]
    assert left(node) == before
    assert verify(node)[0] == 0


def kill_one(node: Node) -> None:
    """Kill a verify while its container runs."""
    node.forget_marks()
    process = node.start_installer("verify")
    until(lambda: any(" exec " in mark for mark in node.marks()), lambda: process.log)
    process.kill()
    process.wait()


@pytest.mark.sampled(16)
def test_what_a_killed_one_left_goes_with_the_next_and_with_an_undo(node: Node) -> None:
    installed(node)
    before, listed = left(node), objects(node)
    kill_one(node)
    code, found = verify(node)
    assert code == 0, found
    assert left(node) == before
    kill_one(node)

    undone = node.installer("uninstall", "--in-use", "wait", check=True)

    assert "waiting for containers" not in undone.stderr
    assert objects(node) == listed


def test_one_is_at_work_at_a_time_and_none_where_nothing_is_installed(docker_node: Node) -> None:
    assert docker_node.installer("verify").returncode == 3
    installed(docker_node)
    before = objects(docker_node)
    first = docker_node.start_installer("verify")
    second = docker_node.installer("verify")

    assert {first.wait(), second.returncode} == {0, 3}, (first.log, second.stderr)
    assert objects(docker_node) == before


def test_containers_and_images_of_others_with_our_label_outlive_verify_and_uninstall(
    docker_node: Node,
) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    label = ("--label", LABEL)
    imported = f"printf '' | tar -cT /dev/null | docker import --change 'LABEL {LABEL}' - theirs:1"
    node.run(["sh", "-c", imported])
    running = node.run(["docker", "run", "--detach", *label, IMAGE]).stdout
    name = "toolkit-installer-verify-1a2b3c4d"
    stopped = node.run(["docker", "create", *label, "--name", name, IMAGE]).stdout

    assert node.installer("verify").returncode == 0
    node.installer("uninstall", check=True)

    listed = node.run(["docker", "ps", "--all", "--quiet", "--no-trunc"]).stdout
    assert {*listed.split()} == {running.strip(), stopped.strip()}
    assert node.run(["docker", "ps", "--quiet", "--no-trunc"]).stdout == running
    assert "theirs" in node.run(["docker", "images"]).stdout


def test_pods_of_others_with_our_label_outlive_verify_and_uninstall(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod(name="toolkit-installer-verify-1a2b3c4d", labels=dict([LABEL.split("=")]))

    assert node.installer("verify").returncode == 0
    node.installer("uninstall", check=True)

    assert [*cri.pods()] == [pod.id]
