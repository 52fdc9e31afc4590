"""Containers that run on our runtime: they can be used, stopped and removed whatever an undo is told to do."""

from collections.abc import Callable

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.images import ARCHIVE, IMAGE
from tests.engines.live import start
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.roots import DOCKER_DEFAULTS
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, served

SOURCE = ("--toolkit-source", ARTIFACTS)
RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"


@pytest.mark.any_version
@pytest.mark.parametrize("in_use", ["keep", "wait", "force"])
def test_a_live_container_outlives_an_undo(
    node: Node, in_use: str, record_row: Callable[[str], None]
) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, check=True)
    idle = node.installer("uninstall", "--in-use", in_use)
    node.installer("install", *SOURCE, check=True)
    live = start(node)

    undone = node.installer("uninstall", "--in-use", in_use)

    done = []
    assert live.exec() == "alive\n"
    done.append("exec")
    stays = node.installer("uninstall", "--in-use", "keep").returncode  # as often as one likes
    assert live.exec() == "alive\n"
    link = (node.root / RUNTIME.lstrip("/")).is_symlink()
    live.stop()
    done.append("stop")
    live.remove()
    done.append("remove")
    record_row(
        f"{node.engines!s:<40}{in_use:<7}none: exit {idle.returncode}   "
        f"live: exit {undone.returncode}, {', '.join(done)}"
    )
    assert (idle.returncode, undone.returncode) == (0, 4)
    assert f"{live.name} (" in sentence(undone.stderr)
    assert (link, stays) == (in_use == "force", 4)
    assert served(node)[1] == before[1]
    again = node.installer("uninstall", "--in-use", in_use)
    assert again.returncode == 0, again.stderr
    assert snapshot(node) == files
    assert served(node) == before


@pytest.mark.any_version
def test_a_live_container_of_the_default_runtime_outlives_it(node: Node) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    live = start(node, handler="")

    kept = node.installer("uninstall", "--in-use", "keep")

    assert kept.returncode == 4, kept.stderr
    assert served(node) == (before[0] | {"nvidia", "nvidia-cdi", "nvidia-legacy"}, before[1])
    assert live.exec() == "alive\n"
    pid = node.pid_of(f"{node.engine}.service")
    again = node.installer("uninstall", "--in-use", "keep")
    assert (again.returncode, node.pid_of(f"{node.engine}.service")) == (4, pid)
    forced = node.installer("uninstall", "--in-use", "force")
    assert forced.returncode == 4, forced.stderr
    assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    assert node.installer("uninstall").returncode == 0
    assert snapshot(node) == files
    assert served(node) == before


@pytest.mark.any_version
def test_every_handler_that_a_forced_undo_leaves_starts_containers(node: Node) -> None:
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    live = start(node)

    forced = node.installer("uninstall", "--in-use", "force")

    assert forced.returncode == 4, forced.stderr
    handlers = served(node)[0]
    needs = node.engine == "containerd" and node.containerd_version.startswith("2.")
    assert ("nvidia-cdi" in handlers) == needs
    for handler in handlers:
        new = start(node, handler, name="new")
        assert new.exec() == "alive\n"
        new.stop()
        new.remove()
    live.stop()
    live.remove()
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.any_version
def test_an_undo_waits_for_a_container_that_ends(node: Node) -> None:
    files = snapshot(node)
    process = node.start_installer("run", *SOURCE)
    process.wait_for("waiting for a signal")
    live = start(node)
    process.terminate()
    process.wait_for("waiting for containers")

    live.stop()
    live.remove()

    assert process.wait() == 0, process.log
    assert snapshot(node) == files


@pytest.mark.any_version
def test_an_install_takes_over_what_an_undo_had_to_leave(node: Node) -> None:
    files = snapshot(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    live = start(node)
    for in_use in ("force", "keep"):
        assert node.installer("uninstall", "--in-use", in_use).returncode == 4

        node.installer("install", *SOURCE, "--set-as-default", check=True)

        assert served(node)[1] == "nvidia"
        assert not (node.root / RUNTIME.lstrip("/")).is_symlink()
        assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.any_version
@pytest.mark.parametrize("between", ["nothing", "an install", "an undo"])
@pytest.mark.parametrize("in_use", ["keep", "force"])
def test_a_config_that_its_owner_puts_back_after_an_incomplete_undo_is_undone_again(
    node: Node, in_use: str, between: str
) -> None:
    path = DOCKER if node.engine == "docker" else CONTAINERD
    text, before = node.read(path), served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    installed = node.read(path)
    live = start(node)
    assert node.installer("uninstall", "--in-use", in_use).returncode == 4

    node.write(path, installed + "\n")  # from his own copy, and saved by an editor
    if between == "an install":
        node.installer("install", *SOURCE, "--set-as-default", check=True)
        assert served(node)[1] == "nvidia"
    elif between == "an undo":
        assert node.installer("uninstall", "--in-use", in_use).returncode == 4
        assert served(node)[1] == before[1]
        assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node) == before
    assert node.read(path) == text + "\n"
    assert not (node.root / "usr/local/nvidia").exists()


@pytest.mark.any_version
def test_a_runtime_keeps_its_name_while_containers_run_on_it(node: Node) -> None:
    node.installer("install", *SOURCE, check=True)
    live = start(node)
    pid = node.pid_of(f"{node.engine}.service")

    refused = node.installer("install", *SOURCE, "--runtime-name", "gpu")

    assert refused.returncode == 1
    assert f"(it runs {live.name} (" in sentence(refused.stderr)
    assert node.pid_of(f"{node.engine}.service") == pid
    live.stop()
    live.remove()
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)
    assert {"gpu", "nvidia-cdi"} < served(node)[0]
    assert "nvidia" not in served(node)[0]


@pytest.mark.any_version
def test_stopped_containers_that_need_our_runtime_are_named(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    live = start(docker_node)
    live.stop()

    done = docker_node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert "stopped containers that need our runtime to start again: trainer" in done.stderr


@pytest.mark.any_version
def test_a_container_that_docker_starts_again_and_again_is_in_use(docker_node: Node) -> None:
    node = docker_node
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    run = ["docker", "run", "--detach", "--net", "none", "--name", "trainer", "--restart", "always"]
    node.run([*run, IMAGE, "sh", "-c", "exit 1"])
    node.wait_for(
        "true 3", ["docker", "inspect", "--format", "{{.State.Restarting}} {{.RestartCount}}", "trainer"]
    )

    undone = node.installer("uninstall")

    assert undone.returncode == 4, undone.stderr
    assert "waiting for containers" in undone.stderr
    assert "our runtime runs trainer (docker)" in sentence(undone.stderr)
    assert served(node)[0] >= {"nvidia"}
    node.run(["docker", "rm", "--force", "trainer"])
    assert node.installer("uninstall").returncode == 0
    assert served(node) == ({"runc"}, "runc")


@pytest.mark.any_version
@pytest.mark.parametrize("data_root", ["", "/var/lib/docker/own"], ids=["usual", "data-root of a flag"])
def test_stopped_containers_are_named_although_docker_is_stopped(docker_node: Node, data_root: str) -> None:
    if data_root:
        options = DOCKER_DEFAULTS.rstrip('"\n')
        docker_node.write("/etc/default/docker", f'{options} --data-root {data_root}"\n')
        docker_node.restart("docker")
        docker_node.run(["docker", "load", "--input", ARCHIVE])
    docker_node.installer("install", *SOURCE, check=True)
    start(docker_node)
    docker_node.run(["systemctl", "stop", "docker.service", "docker.socket"])

    done = docker_node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert "stopped containers that need our runtime to start again: trainer" in done.stderr


@pytest.mark.any_version
def test_a_stop_that_keeps_hands_the_node_to_the_next_instance_untouched(node: Node) -> None:
    process = node.start_installer("run", *SOURCE, "--on-exit", "keep")
    process.wait_for("waiting for a signal")
    process.terminate()
    first = process.wait()
    files, pid = snapshot(node, times=True), node.pid_of(f"{node.engine}.service")

    following = node.start_installer("run", *SOURCE, "--on-exit", "keep")
    following.wait_for("waiting for a signal")

    assert (first, "nothing changed" in following.log) == (0, True)
    assert node.pid_of(f"{node.engine}.service") == pid
    assert (node.root / "run/nvidia/toolkit/ready").exists()
    after = snapshot(node, times=True)
    assert {path: after[path] for path in files if path.startswith(("/etc", "/usr/local"))} == {
        path: text for path, text in files.items() if path.startswith(("/etc", "/usr/local"))
    }
    following.kill()
    following.wait()
