"""An undo whose engine is not restarted: its texts are without us, and programs stay until it has read them."""

from signal import SIGCONT, SIGSTOP

import pytest

from tests.engines.cri import Container, Cri
from tests.engines.live import run_through_us, start
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import sentence, served, snapshot
from tests.support.waiting import until

NEVER = ("--restart-mode", "none")
UNIT = "/run/systemd/system/containerd.service.d/site.conf"
PROGRAM = "/usr/local/nvidia/toolkit/nvidia-container-runtime"


def check_left(node: Node, before: str, *more: str) -> str:
    """Undo, and see that the config is as before us and the programs are there; return the sentence of it."""
    pid = node.pid_of()

    left = node.installer("uninstall", *more)
    told = node.installer("status")

    assert left.returncode == 4, left.stderr
    assert node.read(node.config) == before
    assert node.has(PROGRAM)
    assert node.pid_of() == pid
    assert told.returncode == 1
    assert "pending since the last undo: its restart" in told.stdout
    assert "as it was before the install; last changed " in told.stdout
    return sentence(left.stderr)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("last", [NEVER, ()], ids=["restarted by its owner", "by the next uninstall"])
def test_programs_stay_while_the_running_engine_starts_them(node: Node, last: tuple[str, ...]) -> None:
    files, before, text = snapshot(node), served(node), node.read(node.config)
    node.installer("install", *SOURCE, "--set-as-default", check=True)

    for _ in range(2):
        said = check_left(node, text, *NEVER)
        assert f"run systemctl restart {node.unit}, then run toolkit-installer uninstall again" in said
    assert served(node) == (before[0] | OURS, "nvidia")
    run_through_us(node, "")

    if last:
        node.restart_engine()
    undone = node.installer("uninstall", *last, check=True)
    assert "was changed after the start" not in undone.stderr, "the last undo has changed it"
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_an_engine_that_is_not_to_be_restarted_by_us_is_undone_up_to_that(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    files, before, text = snapshot(node), served(node), node.read(node.config)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    neighbour = start(node, "runc")
    node.write(UNIT, "[Service]\nKillMode=mixed\n")
    node.run(["systemctl", "daemon-reload"])

    said = check_left(node, text)

    assert "a stop would kill them" in said
    assert f"{node.config} is without us, and the toolkit stays until containerd has read that" in said
    assert neighbour.exec() == "alive\n"
    run_through_us(node)
    neighbour.end()
    node.restart_engine()
    cri.wait()
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_while_a_container_runs_on_ours_only_the_default_goes(containerd_node: Node, cri: Cri) -> None:
    node = containerd_node
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    trainer = start(node)
    node.write(UNIT, "[Service]\nKillMode=mixed\n")
    node.run(["systemctl", "daemon-reload"])

    left = node.installer("uninstall", "--in-use", "keep")

    assert left.returncode == 4
    assert "our runtime runs default/trainer" in sentence(left.stderr)
    assert "a stop would kill them" in left.stderr
    assert PROGRAM in node.read(node.config)
    assert served(node) == (before[0] | OURS, "nvidia")
    assert trainer.exec() == "alive\n"
    trainer.end()
    node.run(["rm", UNIT])
    node.run(["systemctl", "daemon-reload"])
    node.installer("uninstall", check=True)
    cri.wait()
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.any_version
def test_what_is_written_while_an_engine_restarts_keeps_the_program_that_it_names(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod()
    cri.create(pod, Container())  # a restart waits for what is created and not started yet
    before = node.read(node.config)
    running = node.start_installer("uninstall")
    until(lambda: node.read(node.config) != before, lambda: running.log)
    node.write("/etc/cdi/site.json", f'{{"path": "{PROGRAM}"}}')

    returncode = running.wait()

    assert returncode == 4, running.log
    assert f"remove the toolkit (/etc/cdi/site.json names {PROGRAM}" in sentence(running.log)
    assert node.has(PROGRAM)
    node.run(["rm", "/etc/cdi/site.json"])
    node.installer("uninstall", check=True)
    assert not node.has(PROGRAM)


@pytest.mark.any_version
def test_a_dockerd_that_hangs_is_undone_up_to_its_signal(docker_node: Node) -> None:
    node = docker_node
    files, before, text = snapshot(node), served(node), node.read(node.config)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    node.run(["kill", f"-{SIGSTOP}", str(node.pid_of())])

    said = check_left(node, text)
    node.run(["kill", f"-{SIGCONT}", str(node.pid_of())])

    assert said.startswith("cannot verify that Docker no longer serves our runtimes")
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_an_undo_of_a_config_that_was_mounted_alone_loses_nothing(node: Node) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, check=True)
    installed = node.read(node.config)
    node.run(["cp", node.config, "/root/mine"])
    node.run(["mount", "--bind", "/root/mine", node.config])
    directory = node.config.rpartition("/")[0]

    left = node.installer("uninstall")

    assert left.returncode == 4, left.stderr
    reason = f"cannot replace {node.config} (it is mounted as a single file)"
    assert sentence(left.stderr) == f"{reason}; mount its directory {directory} instead"
    assert node.read(node.config) == installed
    run_through_us(node)
    node.run(["umount", node.config])
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)
