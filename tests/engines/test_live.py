"""Containers that run on our runtime, and what an administrator has written into our text, outlive an undo."""

import pytest

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.live import run_through_us, start
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import sentence, served, snapshot

pytestmark = pytest.mark.any_version

RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
DOUBLE = '"containerd": "/run/containerd/containerd.sock",'  # as its unit says by a flag: it refuses both


@pytest.mark.sampled(16)
@pytest.mark.parametrize("in_use", ["keep", "wait", "force"])
def test_a_live_container_outlives_an_undo(node: Node, in_use: str) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, check=True)
    idle = node.installer("uninstall", "--in-use", in_use)
    node.installer("install", *SOURCE, check=True)
    live = start(node)

    undone = node.installer("uninstall", "--in-use", in_use)

    assert live.exec() == "alive\n"
    stays = node.installer("uninstall", "--in-use", "keep").returncode  # as often as one likes
    assert live.exec() == "alive\n"
    link, handlers = node.path(RUNTIME).is_symlink(), served(node)[0]
    if in_use == "force":
        needs = node.engine == "containerd" and node.containerd_version.startswith("2.")
        assert ("nvidia-cdi" in handlers) == needs
        for handler in handlers:
            run_through_us(node, handler)
    live.end()
    assert (idle.returncode, undone.returncode) == (0, 4)
    assert f"{live.name} (" in sentence(undone.stderr)
    assert (link, stays) == (in_use == "force", 4)
    assert served(node)[1] == before[1]
    node.installer("uninstall", "--in-use", in_use, check=True)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
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
    as_it_stands = node.installer("install", *SOURCE)
    assert "nothing changed" in as_it_stands.stderr, as_it_stands.stderr
    assert node.pid_of() == pid
    for in_use in ("force", "keep"):
        node.installer(*install, check=True)
        assert served(node)[1] == "nvidia"
        assert not node.path(RUNTIME).is_symlink()
        assert live.exec() == "alive\n"
        assert node.installer("uninstall", "--in-use", in_use).returncode == 4
        assert live.exec() == "alive\n"
    live.end()
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_an_undo_waits_for_a_container_that_ends(node: Node) -> None:
    files = snapshot(node)
    process = node.start_run(*SOURCE)
    live = start(node)
    process.terminate()
    process.wait_for("waiting for containers")

    live.end()

    assert process.wait() == 0, process.log
    assert snapshot(node) == files


@pytest.mark.sampled(16)
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
    node.installer("uninstall", check=True)

    assert served(node) == before
    assert node.read(node.config) == text + "\n"
    assert not node.has("usr/local/nvidia")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "not restarted yet"])
def test_a_runtime_that_leads_elsewhere_starts_containers_after_an_undo(
    node: Node, *, restarted: bool
) -> None:
    node.installer("install", *SOURCE, check=True)
    before = node.read(node.config)
    # What an admin does with sed.
    ours = '"/usr/local/nvidia/toolkit/nvidia-container-runtime"'
    node.write(node.config, before.replace(ours, '"/usr/sbin/runc"'))
    node.restart_engine()
    if not restarted:  # as if somebody had edited the file since
        text = node.read(node.config)
        node.write(node.config, before)
        node.restart_engine()
        node.write(node.config, text)

    node.installer("uninstall", check=True)

    assert served(node)[0] & OURS == {"nvidia"}
    for handler in ("nvidia", ""):
        run_through_us(node, handler)
    node.restart_engine()
    for handler in ("nvidia", ""):
        run_through_us(node, handler)
    assert not node.has("usr/local/nvidia")


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
    assert ("intermediate text left in config" in stuck.stderr) != validates
    assert corrected not in node.installer("status").stdout
    node.write(DOCKER, node.read(DOCKER).replace(DOUBLE, ""))
    assert corrected not in node.installer("status").stdout
    done = node.installer("uninstall", check=True)
    assert (node.read(DOCKER), served(node)) == (DAEMON_JSON, before)
    assert "left default-runtime" not in done.stderr
