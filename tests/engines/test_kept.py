"""A text of ours that dockerd refuses, for something else in it, goes once its owner has corrected that."""

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served

SOURCE = ("--toolkit-source", ARTIFACTS)
DOUBLE = '"containerd": "/run/containerd/containerd.sock",'  # as its unit says by a flag: it refuses both


def test_what_dockerd_refused_ends_with_the_owners_text_once_that_is_corrected(docker_node: Node) -> None:
    node, before = docker_node, served(docker_node)
    validates = not str(node.docker_version).startswith("20.")  # then nothing was written
    corrected = "changed after the install"

    def double(text: str) -> None:
        node.write(DOCKER, "{" + DOUBLE + text.removeprefix("{"))

    double(DAEMON_JSON)
    stuck = node.installer("install", *SOURCE, "--timeout", "2")
    assert stuck.returncode == (1 if validates else 4), stuck.stderr
    assert corrected not in node.installer("status").stdout
    node.write(DOCKER, node.read(DOCKER).replace(DOUBLE, ""))
    node.installer("uninstall", check=True)
    assert (node.read(DOCKER), served(node)) == (DAEMON_JSON, before)

    node.installer("install", *SOURCE, "--set-as-default", check=True)
    double(node.read(DOCKER))
    stuck = node.installer("uninstall", "--timeout", "2")
    assert stuck.returncode == 4, stuck.stderr
    assert ("config is an intermediate text" in stuck.stderr) != validates
    assert corrected not in node.installer("status").stdout
    node.write(DOCKER, node.read(DOCKER).replace(DOUBLE, ""))
    assert corrected not in node.installer("status").stdout
    done = node.installer("uninstall", check=True)
    assert (node.read(DOCKER), served(node)) == (DAEMON_JSON, before)
    assert "left default-runtime" not in done.stderr
