"""What dockerd has in force beside its daemon.json: kept defaults, other people's runtimes, defaults of theirs."""

import json
from typing import Any

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
OTHER = {"other": {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}}


def _runtimes(node: Node) -> dict[str, Any]:
    """Return the runtimes in dockerd's own words, but for what runc says of itself and the shims."""
    said = json.loads(node.run(["docker", "info", "--format", "{{json .Runtimes}}"]).stdout)
    return {
        name: {key: value for key, value in entry.items() if key != "status"}
        for name, entry in said.items()
        if not name.startswith("io.containerd.")
    }


def test_another_name_for_the_default_runtime_does_not_end_dockerd(docker_node: Node) -> None:
    files, before, pid = snapshot(docker_node), served(docker_node), docker_node.pid_of("docker")
    docker_node.installer("install", *SOURCE, "--set-as-default", check=True)

    done = docker_node.installer("install", *SOURCE, "--runtime-name", "gpu")

    assert done.returncode == 0, done.stderr
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc", "gpu", "nvidia-cdi", "nvidia-legacy"}, "runc")
    docker_node.installer("uninstall", check=True)
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == before
    assert snapshot(docker_node) == files


def test_a_default_that_the_file_names_no_more_does_not_end_dockerd(docker_node: Node) -> None:
    text = json.dumps({"default-runtime": "other", "runtimes": OTHER})
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")
    docker_node.write(DOCKER, DAEMON_JSON)
    pid = docker_node.pid_of("docker")

    planned = docker_node.installer("plan", *SOURCE)
    done = docker_node.installer("install", *SOURCE)

    assert "docker has the default runtime other in force" in planned.stdout
    assert done.returncode == 0, done.stderr
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    docker_node.installer("uninstall", check=True)
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc"}, "runc")
    assert docker_node.read(DOCKER) == DAEMON_JSON


def test_a_default_that_is_asked_for_no_more_is_not_in_force_any_more(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    plain = docker_node.read(DOCKER)
    docker_node.installer("install", *SOURCE, "--set-as-default", check=True)

    planned = docker_node.installer("plan", *SOURCE)
    docker_node.installer("install", *SOURCE, check=True)

    assert planned.returncode == 10
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    assert docker_node.read(DOCKER) == plain
    assert docker_node.installer("plan", *SOURCE).returncode == 0
    assert docker_node.installer("status").returncode == 0


def test_a_default_that_dockerd_keeps_is_set_back_also_where_the_file_is_right(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    plain = json.loads(docker_node.read(DOCKER))
    text = docker_node.read(DOCKER)
    docker_node.write(DOCKER, json.dumps(plain | {"default-runtime": "nvidia"}))
    docker_node.run(["systemctl", "reload", "docker"])
    docker_node.wait_for("nvidia", ["docker", "info", "--format", "{{.DefaultRuntime}}"])
    docker_node.write(DOCKER, text)

    planned = docker_node.installer("plan", *SOURCE)
    docker_node.installer("install", *SOURCE, check=True)

    assert planned.returncode == 10
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    assert docker_node.read(DOCKER) == text


def test_the_runtimes_of_others_are_served_as_before(docker_node: Node) -> None:
    others = OTHER | {"plain": {"path": "/usr/bin/runc"}}
    text = json.dumps({"default-runtime": "other", "runtimes": others}, indent=4)
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")
    before = _runtimes(docker_node)

    docker_node.installer("install", *SOURCE, check=True)
    during = _runtimes(docker_node)
    default = served(docker_node)[1]
    docker_node.installer("uninstall", check=True)

    assert {name: entry for name, entry in during.items() if name not in OURS} == before
    assert default == "other"
    assert _runtimes(docker_node) == before
    assert served(docker_node)[1] == "other"
    assert docker_node.read(DOCKER) == text
