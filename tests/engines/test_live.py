"""Containers that run on our runtime: they can be used, stopped and removed whatever an undo is told to do."""

from collections.abc import Callable

import pytest

from tests.engines.live import start
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import sentence, served, snapshot

pytestmark = pytest.mark.any_version

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"


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
    link, handlers = (node.root / RUNTIME.lstrip("/")).is_symlink(), served(node)[0]
    if in_use == "force":
        _each_starts_containers(node, handlers)
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


def _each_starts_containers(node: Node, handlers: set[str]) -> None:
    needs = node.engine == "containerd" and node.containerd_version.startswith("2.")
    assert ("nvidia-cdi" in handlers) == needs
    for handler in handlers:
        new = start(node, handler, name="new")
        assert new.exec() == "alive\n"
        new.end()


def test_a_live_container_of_the_default_runtime_outlives_undos_and_installs(node: Node) -> None:
    files, before = snapshot(node), served(node)
    install = ("install", *SOURCE, "--set-as-default")
    node.installer(*install, check=True)
    live = start(node, handler="")

    kept = node.installer("uninstall", "--in-use", "keep")

    assert kept.returncode == 4, kept.stderr
    assert served(node) == (before[0] | OURS, before[1])
    pid = node.pid_of()
    again = node.installer("uninstall", "--in-use", "keep")
    assert (again.returncode, node.pid_of()) == (4, pid)
    for in_use in ("force", "keep"):
        node.installer(*install, check=True)
        assert served(node)[1] == "nvidia"
        assert not (node.root / RUNTIME.lstrip("/")).is_symlink()
        assert live.exec() == "alive\n"
        assert node.installer("uninstall", "--in-use", in_use).returncode == 4
        assert live.exec() == "alive\n"
    live.end()
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert served(node) == before


def test_an_undo_waits_for_a_container_that_ends(node: Node) -> None:
    files = snapshot(node)
    process = node.start_installer("run", *SOURCE)
    process.wait_for("waiting for a signal")
    live = start(node)
    process.terminate()
    process.wait_for("waiting for containers")

    live.end()

    assert process.wait() == 0, process.log
    assert snapshot(node) == files


@pytest.mark.parametrize("between", ["nothing", "an install", "an undo"])
@pytest.mark.parametrize("in_use", ["keep", "force"])
def test_a_config_that_its_owner_puts_back_after_an_incomplete_undo_is_undone_again(
    node: Node, in_use: str, between: str
) -> None:
    text, before = node.read(node.config), served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    installed = node.read(node.config)
    live = start(node)
    assert node.installer("uninstall", "--in-use", in_use).returncode == 4

    node.write(node.config, installed + "\n")  # from his own copy, and saved by an editor
    if between == "an install":
        node.installer("install", *SOURCE, "--set-as-default", check=True)
        assert served(node)[1] == "nvidia"
    elif between == "an undo":
        assert node.installer("uninstall", "--in-use", in_use).returncode == 4
        assert served(node)[1] == before[1]
        assert live.exec() == "alive\n"
    live.end()
    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert served(node) == before
    assert node.read(node.config) == text + "\n"
    assert not node.has("usr/local/nvidia")
