"""What engines keep: texts that they refuse, runtimes that they have in memory only, a default of a flag."""

import json
import re
from typing import Final

import pytest

from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, served

pytestmark = pytest.mark.any_version

SOURCE: Final = ("--toolkit-source", ARTIFACTS)
OURS: Final = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
# The unit says the same by a flag: dockerd refuses to start with it, and to reload.
DOUBLE: Final = '"containerd": "/run/containerd/containerd.sock",'


def _restarted_with(node: Node, flags: str) -> None:
    command = "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"
    lines = ["[Service]", "ExecStart=", f"ExecStart={command} {flags}"]
    node.write("/run/systemd/system/docker.service.d/own.conf", "\n".join(lines) + "\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart("docker")


def _doubled(text: str) -> str:
    assert text.startswith("{")
    return "{" + DOUBLE + text[1:]


@pytest.mark.parametrize("default", [(), ("--set-as-default",)], ids=["a runtime", "the default"])
def test_an_undo_that_dockerd_refused_ends_with_the_owners_text_once_that_is_corrected(
    docker_node: Node, default: tuple[str, ...]
) -> None:
    node, before = docker_node, served(docker_node)
    node.installer("install", *SOURCE, *default, check=True)
    node.write(DOCKER, _doubled(node.read(DOCKER)))

    stuck = node.installer("uninstall", "--timeout", "2")
    told = node.installer("status").stdout
    node.write(DOCKER, node.read(DOCKER).replace(DOUBLE, ""))
    between = node.installer("status").stdout
    done = node.installer("uninstall")

    assert stuck.returncode == 4, stuck.stderr
    refused = str(node.docker_version).startswith("20.")  # the others validate: nothing was written
    assert ("config is an intermediate text" in stuck.stderr) == refused
    assert "changed after the install" not in told + between
    assert done.returncode == 0, done.stderr
    assert node.read(DOCKER) == DAEMON_JSON
    assert served(node) == before
    assert "left default-runtime" not in done.stderr


def test_an_install_that_dockerd_refused_ends_with_the_owners_text_once_that_is_corrected(
    docker_node: Node,
) -> None:
    node, before = docker_node, served(docker_node)
    node.write(DOCKER, _doubled(DAEMON_JSON))

    stuck = node.installer("install", *SOURCE, "--timeout", "2")
    between = node.installer("status").stdout
    node.write(DOCKER, node.read(DOCKER).replace(DOUBLE, ""))
    node.installer("uninstall", check=True)

    validates = not str(node.docker_version).startswith("20.")
    assert stuck.returncode == (1 if validates else 4), stuck.stderr
    assert "changed after the install" not in between
    assert node.read(DOCKER) == DAEMON_JSON
    assert served(node) == before


@pytest.mark.parametrize("reloads", [True, False], ids=["a first install", "after one that did not reload"])
def test_a_runtime_that_dockerd_has_in_memory_only_is_told_before_it_goes(
    docker_node: Node, *, reloads: bool
) -> None:
    node = docker_node
    others = {"gone": {"path": "/usr/sbin/runc"}, "other": {"path": "/usr/sbin/runc"}}
    node.write(DOCKER, json.dumps({"runtimes": others}))
    node.restart("docker")
    node.write(DOCKER, json.dumps({"runtimes": {"other": {"path": "/usr/bin/runc"}}}))
    if not reloads:
        node.installer("install", *SOURCE, "--restart-mode", "none", check=True)

    planned = node.installer("plan", *SOURCE)
    done = node.installer("install", *SOURCE)

    assert done.returncode == 0, done.stderr
    for told in (planned.stdout, done.stderr):
        assert f"Docker serves the runtime gone, which is not defined in {DOCKER}" in told
        assert f"Docker serves the runtime other, which is not defined as it is in {DOCKER}" in told
    assert served(node)[0] == {"runc", "other"} | OURS


def test_an_undo_tells_of_a_runtime_that_dockerd_has_in_memory_only(docker_node: Node) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    text = node.read(DOCKER)
    said = json.loads(text)
    said["runtimes"]["gone"] = {"path": "/usr/sbin/runc"}
    node.write(DOCKER, json.dumps(said))
    node.run(["systemctl", "reload", "docker"])
    node.wait_for("gone", ["docker", "info", "--format", "{{.Runtimes}}"])
    node.write(DOCKER, text)

    done = node.installer("uninstall", check=True)

    assert f"Docker serves the runtime gone, which is not defined in {DOCKER}" in done.stderr
    assert served(node)[0] == {"runc"}


def test_names_of_its_own_that_dockerd_forgets_in_a_reload_are_told_before(docker_node: Node) -> None:
    node, before = docker_node, _listed(docker_node)

    planned = node.installer("plan", *SOURCE).stdout
    done = node.installer("install", *SOURCE, check=True)
    gone = before - _listed(node)
    again = node.installer("plan", *SOURCE).stdout
    node.restart("docker")

    # 20.10 alone: io.containerd.runc.v2 and io.containerd.runtime.v1.linux
    assert bool(gone) == str(node.docker_version).startswith("20.")
    for told in (planned, done.stderr):
        assert all(name in told for name in gone)
        assert ("forgets in each reload" in told) == bool(gone)
    assert "forgets in each reload" not in again
    assert _listed(node) >= before


def _listed(node: Node) -> set[str]:
    return set(json.loads(node.run(["docker", "info", "--format", "{{json .Runtimes}}"]).stdout))


def test_a_runtime_that_containerd_has_in_memory_only_is_told_before_it_goes(containerd_node: Node) -> None:
    node, text = containerd_node, containerd_node.read(CONTAINERD)
    quiet = node.installer("plan", *SOURCE).stdout
    runc = re.search(r"^ *\[(plugins.*runtimes)\.runc\]$", text, re.MULTILINE)
    assert runc is not None
    gone = f'\n[{runc[1]}.gone]\nruntime_type = "io.containerd.runc.v2"\n'
    node.write(CONTAINERD, text + gone)
    node.restart("containerd")
    node.write(CONTAINERD, text)

    planned = node.installer("plan", *SOURCE)
    done = node.installer("install", *SOURCE)

    assert "containerd serves the runtime" not in quiet
    assert done.returncode == 0, done.stderr
    for told in (planned.stdout, done.stderr):
        assert told.count("containerd serves the runtime") == 1
        assert "containerd serves the runtime gone, which is not defined in its configs" in told
    assert served(node)[0] >= OURS
    assert "gone" not in served(node)[0]
    node.write(CONTAINERD, node.read(CONTAINERD) + gone)
    node.restart("containerd")
    node.write(CONTAINERD, node.read(CONTAINERD).replace(gone, ""))
    back = node.installer("uninstall", check=True)
    assert "containerd serves the runtime gone, which is not defined in its configs" in back.stderr
    assert node.read(CONTAINERD) == text


@pytest.mark.parametrize("text", ["{}", ""], ids=["an empty object", "no byte"])
@pytest.mark.parametrize("kept", [False, True], ids=["by a flag", "by a text of before"])
def test_a_default_of_a_flag_is_named_with_its_remedy(docker_node: Node, text: str, *, kept: bool) -> None:
    node = docker_node
    runtime = {"runtimes": {"x": {"path": "/usr/sbin/runc"}}}
    node.write(DOCKER, json.dumps(runtime) if kept else "{}")
    flags = "--default-runtime x" if kept else "--default-runtime x --add-runtime x=/usr/sbin/runc"
    _restarted_with(node, flags)
    node.write(DOCKER, text)

    done = node.installer("install", *SOURCE, "--set-as-default")
    plain = node.installer("install", *SOURCE)

    assert (done.returncode, plain.returncode) == (1, 1)
    both = "" if kept else " and --add-runtime"
    assert "(it was started with --default-runtime, which must not be in its config as well" in sentence(
        done.stderr
    )
    remedy = f"move --default-runtime{both} from its command line to its config, and restart it"
    assert sentence(done.stderr).endswith(remedy)
    remedy = f"define x in {DOCKER}, or start Docker without that flag"
    empty = not text and str(node.docker_version).startswith("20.")  # which 20.10 does not read
    assert empty or (remedy if kept else "move --add-runtime from its command line") in sentence(plain.stderr)
    assert node.read(DOCKER) == text
