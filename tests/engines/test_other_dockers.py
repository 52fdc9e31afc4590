"""What answers Docker's API and is no dockerd of the host's own."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.engines.dockerds import podman_on
from tests.engines.roots import Roots
from tests.engines.told import sentence
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
    assert (installed.returncode, undone.returncode) == (0, 0), installed.stderr + undone.stderr
    assert (after, in_the_end) == (before, before)
