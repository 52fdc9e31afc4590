"""The ledger is lost, and the engine's unit names a config at an unusual place, which an install finds by itself."""

from pathlib import PurePosixPath

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.live import run_through_us
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import sentence, served, snapshot

pytestmark = pytest.mark.any_version

ALL = "/usr/local/nvidia"
LEDGER = f"{ALL}/.toolkit-installer/ledger"
DEFAULT = ("--set-as-default",)
COMMANDS = {
    "docker": "/usr/sbin/dockerd -H fd:// --config-file {} --bridge=none --iptables=false --ip6tables=false",
    "containerd": "/usr/bin/containerd -c {}",
}


def elsewhere(node: Node) -> str:
    """Move the config of the engine to /opt, and have the engine's unit name it there."""
    path = f"/opt/engine/{PurePosixPath(node.config).name}"
    node.write(path, node.read(node.config))
    node.run(["rm", node.config])
    command = COMMANDS[node.engine].format(path)
    node.write(f"/etc/systemd/system/{node.unit}.d/10.conf", f"[Service]\nExecStart=\nExecStart={command}\n")
    node.run(["systemctl", "daemon-reload"])
    node.restart_engine()
    return path


def stop(node: Node) -> None:
    units = ["docker.socket", "docker.service"] if node.engine == "docker" else [node.unit]
    node.run(["systemctl", "stop", *units])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("again", [True, False], ids=["installed again", "uninstalled"])
def test_uninstall_after_the_loss_of_everything_frees_a_config_that_the_unit_names(
    node: Node, *, again: bool
) -> None:
    path = elsewhere(node)
    files = snapshot(node)
    node.installer("install", *SOURCE, *DEFAULT, check=True)
    node.run(["rm", "-r", ALL])

    told = node.installer("status")
    if again:
        second = node.installer("install", *SOURCE, *DEFAULT, check=True)
        run_through_us(node)
    undone = node.installer("uninstall", check=True)

    assert told.returncode == 1, told.stdout
    assert f"{path}  names {ALL}/toolkit, but there is no ledger" in told.stdout
    assert "ledger lost" in (second.stderr if again else undone.stderr)
    assert "nvidia" not in node.read(path)
    assert "nvidia" not in served(node)[0]
    assert node.installer("status").returncode == 3
    left = snapshot(node)
    assert {each for each in files.keys() | left.keys() if files.get(each) != left.get(each)} <= {path, ALL}
    node.restart_engine()
    run_through_us(node, "")


@pytest.mark.sampled(16)
def test_uninstall_with_the_ledger_lost_frees_the_config_of_a_stopped_engine(node: Node) -> None:
    path = elsewhere(node)
    node.installer("install", *SOURCE, *DEFAULT, check=True)
    stop(node)
    node.run(["rm", LEDGER])

    told = node.installer("status")
    done = node.installer("uninstall")

    assert told.returncode == 1, told.stdout
    assert f"{path}  " in told.stdout
    # The owner compares a copy that nobody can place any more with the config.
    assert done.returncode == 0 or "unclaimed to engines" in sentence(done.stderr)
    assert "nvidia" not in node.read(path)
    node.restart_engine()
    run_through_us(node, "")


@pytest.mark.sampled(16)
def test_uninstall_with_the_ledger_lost_keeps_the_toolkit_for_a_stopped_engine_of_a_shell(node: Node) -> None:
    path = elsewhere(node)
    usual = node.read(path)
    command = COMMANDS[node.engine].format(path)
    drop_in = f"[Service]\nExecStart=\nExecStart=/bin/sh -c 'exec {command}'\n"
    node.write(f"/etc/systemd/system/{node.unit}.d/10.conf", drop_in)
    node.run(["systemctl", "daemon-reload"])
    node.restart_engine()
    node.installer("install", *SOURCE, *DEFAULT, check=True)
    stop(node)
    node.run(["rm", LEDGER])

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"{node.unit} starts " in sentence(kept.stderr)
    assert f"start {node.unit}, then" in sentence(kept.stderr)
    assert node.has(f"{ALL}/toolkit/nvidia-container-runtime")
    node.restart_engine()
    run_through_us(node)
    named = node.installer("uninstall")
    assert named.returncode == 4, named.stderr
    assert f"runs and reads {path}, which names {ALL}/toolkit/nvidia-container-runtime" in sentence(
        named.stderr
    )

    node.write(path, usual)
    node.restart_engine()
    done = node.installer("uninstall")
    assert done.returncode == 0 or "unclaimed to engines" in sentence(done.stderr)
    assert not node.has(f"{ALL}/toolkit")
    run_through_us(node, "")


def test_uninstall_frees_a_drop_in_that_only_a_flag_of_the_lost_install_named(containerd_node: Node) -> None:
    node = containerd_node
    drop_in = "/opt/engine/99-nvidia.toml"
    node.installer("install", *SOURCE, *DEFAULT, "--drop-in-config", f"containerd={drop_in}", check=True)
    node.run(["rm", "-r", ALL])

    told = node.installer("status")
    node.installer("uninstall", check=True)

    assert f"{drop_in}  names {ALL}/toolkit, but there is no ledger" in told.stdout
    assert not node.has(drop_in)
    assert "99-nvidia" not in node.read(CONTAINERD)
    node.restart_engine()
    run_through_us(node, "")
