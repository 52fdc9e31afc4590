"""What answers Docker's API and is no dockerd of the host's own; a containerd that nobody uses beside Docker."""

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2, VERSION_3
from tests.engines.dockerds import podman_on
from tests.engines.images import ARCHIVE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.roots import Roots
from tests.engines.told import sentence, served
from tests.engines.versions import BASE
from tests.support.site import Site

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
WORDS = "Podman answers on {}, and reads no daemon.json"


class Machine(Site):
    """A host whose docker.sock is where somebody else may listen."""

    def command(self, verb: str, *more: str) -> list[str]:
        where = ("--host-root", str(self.root), "--toolkit-source", str(self.source))
        sockets = ("--socket", f"docker={self.root}/run/docker.sock")
        return [sys.executable, "-m", "installer", verb, *where, *sockets, *more]

    def files(self) -> set[str]:
        return self.tree().keys() - {"run/log"}


@pytest.fixture
def machine() -> Iterator[Machine]:
    with TemporaryDirectory() as directory:  # tmp_path is too long for the name of a socket
        made = Machine(Path(directory))
        (made.root / "run").mkdir()
        yield made


def test_podman_on_the_socket_of_docker_is_left_alone(machine: Machine, roots: Roots) -> None:
    with podman_on(roots.suites[BASE], machine.root / "run") as socket:
        before = machine.files()
        by_itself = machine.call("install")
        asked_for = machine.call("install", "--runtime", "docker")
        after = machine.files()

    words = WORDS.format(socket)
    assert (by_itself.returncode, asked_for.returncode) == (1, 1)
    assert f"cannot find a running engine (left docker alone: {words})" in sentence(by_itself.stderr)
    assert sentence(asked_for.stderr) == (
        f"cannot configure Docker ({words}); leave docker out of --runtime; "
        "Podman takes GPUs by CDI, without a runtime of ours"
    )
    assert after == before


def test_an_undo_is_complete_where_podman_has_come_in_the_place_of_docker(
    machine: Machine, roots: Roots
) -> None:
    before = machine.files()
    installed = machine.call("install", "--runtime", "docker", "--restart-mode", "none")
    assert installed.returncode == 0, installed.stderr

    with podman_on(roots.suites[BASE], machine.root / "run"):
        done = machine.call("uninstall")

    assert done.returncode == 0, done.stderr
    assert machine.files() - {"run/docker.sock"} == before


def _with_cri(node: Node) -> None:
    """Let the containerd of a Docker node serve CRI, as Debian's package has it; it can run a pod then."""
    node.write(CONTAINERD, VERSION_2 if node.containerd_version.startswith("1.") else VERSION_3)
    node.restart("containerd")
    node.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])
    node.cri.wait()
    node.restart("docker")


def test_a_containerd_that_serves_docker_only_is_not_restarted(docker_node: Node) -> None:
    node = docker_node
    _with_cri(node)
    config, pid = node.read(CONTAINERD), node.pid_of("containerd")

    planned = node.installer("plan", *SOURCE)
    node.installer("install", *SOURCE, check=True)

    assert "left containerd alone: it serves Docker, and its CRI is not used" in planned.stdout
    assert "nvidia" in served(node)[0]
    assert node.pid_of("containerd") == pid
    assert node.read(CONTAINERD) == config
    node.installer("uninstall", check=True)
    assert node.pid_of("containerd") == pid


def test_a_containerd_beside_docker_that_runs_a_pod_is_configured(docker_node: Node) -> None:
    node = docker_node
    _with_cri(node)
    pod = node.cri.run_pod()

    planned = node.installer("plan", *SOURCE)

    assert "left containerd alone" not in planned.stdout
    assert CONTAINERD in planned.stdout
    node.cri.remove_pod(pod)
