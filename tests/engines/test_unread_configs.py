"""A ``--config`` that the running engine does not read: refused before a write, and a failed try leaves what serves."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.distribution import UNSEEN
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, served, snapshot

pytestmark = pytest.mark.any_version

TYPO = "/etc/dokcer/daemon.json"
OTHER = "/etc/dokcer.json"
REAL = "/etc/docker/daemon.json"
DOCKERD = "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"


def _restart_with(node: Node, command: str) -> None:
    node.write(
        f"/run/systemd/system/{node.unit}.d/site.conf", f"[Service]\nExecStart=\nExecStart={command}\n"
    )
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "reset-failed", node.unit], check=False)
    done = node.run(["systemctl", "restart", node.unit], check=False)
    assert not done.returncode, node.journal(node.unit)[-3000:]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("named", [TYPO, f"docker={TYPO}"])
def test_a_config_that_dockerd_does_not_read_is_refused_before_a_write(docker_node: Node, named: str) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    files, words = snapshot(node), ("--runtime", "docker", "--config", named, *SOURCE)

    planned, refused = node.installer("plan", *words), node.installer("install", *words)

    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    said = f"cannot configure Docker in {TYPO} (it reads {REAL}); "
    assert said in planned.stdout + planned.stderr
    assert sentence(refused.stderr).startswith(said)
    assert f"--config docker={REAL}" in sentence(refused.stderr)
    assert snapshot(node) == files
    assert served(node) == ({"runc"} | OURS, "runc")
    node.installer("install", "--runtime", "docker", "--config", f"docker={REAL}", *SOURCE, check=True)


@pytest.mark.sampled(16)
def test_a_config_that_containerd_was_not_started_with_is_refused(containerd_node: Node) -> None:
    node = containerd_node
    node.run(["cp", CONTAINERD, "/opt/mine.toml"])
    _restart_with(node, "/usr/bin/containerd --config /opt/mine.toml")
    files, pid = snapshot(node), node.pid_of()

    refused = node.installer("install", *SOURCE, "--config", f"containerd={CONTAINERD}")

    assert refused.returncode == 1, refused.stderr
    assert f"cannot configure containerd in {CONTAINERD} (it reads /opt/mine.toml)" in sentence(
        refused.stderr
    )
    assert (snapshot(node), node.pid_of()) == (files, pid)
    node.installer("install", *SOURCE, "--config", "containerd=/opt/mine.toml", check=True)
    assert served(node) == ({"runc"} | OURS, "runc")
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.parametrize("by", ["a link", "a mount"])
def test_another_name_of_the_file_that_containerd_reads_is_that_file(containerd_node: Node, by: str) -> None:
    node = containerd_node
    if by == "a link":
        named = "/opt/link.toml"
        node.run(["ln", "-s", CONTAINERD, named])
    else:
        named = "/opt/site/config.toml"
        node.run(["mkdir", "/opt/site"])
        node.run(["mount", "--bind", "/etc/containerd", "/opt/site"])
    before = (snapshot(node), served(node))

    node.installer("install", *SOURCE, "--config", f"containerd={named}", check=True)
    again = node.installer("plan", *SOURCE)
    undone = node.installer("uninstall")

    assert again.returncode == 0, again.stdout
    assert undone.returncode == 0, undone.stderr
    assert (snapshot(node), served(node)) == before


@pytest.mark.sampled(16)
def test_a_try_with_a_config_that_cannot_be_compared_leaves_docker_serving_as_before(
    docker_node: Node,
) -> None:
    node = docker_node
    _restart_with(node, f"/bin/sh -c 'exec {DOCKERD}'")
    node.installer("install", *SOURCE, check=True)
    node.write(OTHER, "{}\n")
    files = snapshot(node)

    failed = node.run(
        [*UNSEEN, PYTHON, "-m", "installer", "install", *SOURCE, "--runtime", "docker", "--config", OTHER]
        + ["--timeout", "3"],
        check=False,
    )

    assert failed.returncode == 1, failed.stderr
    assert f"if that config is not {OTHER}, name it with --config docker=PATH" in sentence(failed.stderr)
    assert "another process" not in failed.stderr
    assert but_the_ledger(snapshot(node)) == but_the_ledger(files)
    assert served(node) == ({"runc"} | OURS, "runc")
