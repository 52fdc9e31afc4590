"""What answers Docker's API and is no dockerd of the host's own; a containerd that nobody uses beside Docker."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2, VERSION_3
from tests.engines.dockerds import podman_on
from tests.engines.images import ARCHIVE
from tests.engines.nodes import SOURCE, Node
from tests.engines.roots import Roots
from tests.engines.told import sentence, served
from tests.engines.versions import BASE
from tests.support.site import Site


class Machine(Site):
    """A host whose docker.sock is where somebody else may listen."""

    def command(self, verb: str, *more: str) -> list[str]:
        where = ("--host-root", str(self.root), "--toolkit-source", str(self.source))
        sockets = ("--socket", f"docker={self.root}/run/docker.sock")
        return [sys.executable, "-m", "installer", verb, *where, *sockets, *more]

    def files(self) -> set[str]:
        return self.tree().keys() - {"run/log", "run/docker.sock"}


def test_podman_in_the_place_of_docker_is_left_alone_and_keeps_no_undo_from_its_end(roots: Roots) -> None:
    with TemporaryDirectory() as directory:  # tmp_path is too long for the name of a socket
        machine = Machine(Path(directory))
        (machine.root / "run").mkdir()
        before = machine.files()
        with podman_on(roots.suites[BASE], machine.root / "run") as socket:
            by_itself, asked_for = machine.call("install"), machine.call("install", "--runtime", "docker")
            after = machine.files()
        installed = machine.call("install", "--runtime", "docker", "--restart-mode", "none")
        with podman_on(roots.suites[BASE], machine.root / "run"):
            undone = machine.call("uninstall")
        in_the_end = machine.files()

    words = f"Podman answers on {socket}, and reads no daemon.json"
    assert (by_itself.returncode, asked_for.returncode) == (1, 1)
    assert f"cannot find a running engine (left docker alone: {words})" in sentence(by_itself.stderr)
    assert sentence(asked_for.stderr) == (
        f"cannot configure Docker ({words}); leave docker out of --runtime; "
        "Podman takes GPUs by CDI, without a runtime of ours"
    )
    assert installed.returncode == 0, installed.stderr
    assert undone.returncode == 0, undone.stderr
    assert (after, in_the_end) == (before, before)


@pytest.mark.any_version
def test_a_containerd_that_serves_docker_only_is_left_alone_until_it_runs_a_pod(docker_node: Node) -> None:
    node = docker_node
    # As Debian's package has it.
    node.write(CONTAINERD, VERSION_2 if node.containerd_version.startswith("1.") else VERSION_3)
    node.restart("containerd")
    node.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])
    node.cri.wait()
    node.restart("docker")
    config, pid = node.read(CONTAINERD), node.pid_of("containerd")

    planned = node.installer("plan", *SOURCE)
    node.installer("install", *SOURCE, check=True)

    assert "left containerd alone: it serves Docker, and its CRI is not used" in planned.stdout
    assert "nvidia" in served(node)[0]
    assert (node.read(CONTAINERD), node.pid_of("containerd")) == (config, pid)
    node.installer("uninstall", check=True)
    assert node.pid_of("containerd") == pid
    pod = node.cri.run_pod()
    planned = node.installer("plan", *SOURCE)
    assert "left containerd alone" not in planned.stdout
    assert CONTAINERD in planned.stdout
    node.cri.remove_pod(pod)
