"""What answers Docker's API and is no dockerd of the host's own: a process of root, which no engine need be."""

import sys
from pathlib import Path

from tests.engines.told import sentence
from tests.host.servers import answer, serving
from tests.support.site import Site

# Podman 4.3.1 of Debian 12 said so of itself.
PODMAN = answer(b"HTTP/1.1 200 OK\r\nLibpod-Api-Version: 4.3.1\r\nContent-Length: 2\r\n\r\n{}")


class Machine(Site):
    """A host whose docker.sock is where somebody else may listen."""

    def command(self, verb: str, *more: str) -> list[str]:
        where = ("--host-root", str(self.root), "--toolkit-source", str(self.source))
        sockets = ("--socket", f"docker={self.root}/run/docker.sock")
        return [sys.executable, "-m", "installer", verb, *where, *sockets, *more]


def test_podman_in_the_place_of_docker_is_left_alone_and_keeps_no_undo_from_its_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    socket = machine.write("run/docker.sock")
    socket.unlink()
    before = machine.tree()
    with serving(socket, PODMAN):
        by_itself, asked_for = machine.call("install"), machine.call("install", "--runtime", "docker")
    socket.unlink()
    after = machine.tree()
    installed = machine.call("install", "--runtime", "docker", "--restart-mode", "none")
    with serving(socket, PODMAN):
        undone = machine.call("uninstall")
    socket.unlink()

    words = f"Podman answers on {socket}, and reads no daemon.json"
    assert (by_itself.returncode, asked_for.returncode) == (1, 1)
    assert f"cannot find a running engine (left docker alone: {words})" in sentence(by_itself.stderr)
    assert sentence(asked_for.stderr) == (
        f"cannot configure Docker ({words}); leave docker out of --runtime; "
        "Podman takes GPUs by CDI, without a runtime of ours"
    )
    assert (installed.returncode, undone.returncode) == (0, 0), installed.stderr + undone.stderr
    assert (after, machine.tree()) == (before, before)
