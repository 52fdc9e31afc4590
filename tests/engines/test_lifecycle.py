"""The main job on real engines: install, run a container through us, take it all back."""

import re
from subprocess import CompletedProcess

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.distribution import UNSEEN
from tests.engines.live import run_through_us
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import sentence, served, snapshot, starts

READY = "/run/nvidia/toolkit/ready"
LEDGER = "/usr/local/nvidia/.toolkit-installer/ledger"
CONTAINERDS = ("--runtime", "containerd")
TAKES_PART = "nvidia-container-runtime.real "


@pytest.mark.sampled(16)
def test_run_serves_our_runtime_and_a_stop_undoes_everything(node: Node) -> None:
    files, before = snapshot(node), served(node)

    process = node.start_run(*SOURCE, "--set-as-default")
    ready, during = node.has(READY), served(node)
    run_through_us(node)
    marks = node.marks()
    process.terminate()

    assert process.wait() == 0, process.log
    assert ready
    assert during == (before[0] | OURS, "nvidia")
    assert [mark for mark in marks if mark.startswith(TAKES_PART)]
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_a_second_install_touches_signals_and_restarts_nothing(node: Node) -> None:
    first = node.installer("install", *SOURCE, check=True)
    files, pid = snapshot(node, times=True), node.pid_of()
    journal = node.journal(node.unit)

    second = node.installer("install", *SOURCE, check=True)

    assert "nothing changed" in second.stderr
    assert "nothing changed" not in first.stderr
    assert snapshot(node, times=True) == files
    assert node.pid_of() == pid
    assert [line for line in node.journal(node.unit)[len(journal) :].splitlines() if "SIGHUP" in line] == []


@pytest.mark.sampled(16)
@pytest.mark.parametrize("is_repaired", [True, False], ids=["repaired", "in force"])
def test_an_undo_reverts_a_runtime_that_an_owner_has_pointed_at_another_program_of_the_toolkit(
    node: Node, *, is_repaired: bool
) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, check=True)
    installed = node.read(node.config)
    edited = re.sub(r'nvidia-container-runtime"', 'nvidia-container-runtime.cdi"', installed)
    assert edited != installed
    node.write(node.config, edited)
    if is_repaired:
        node.installer("install", *SOURCE, check=True)
        assert node.read(node.config) == installed
    else:
        node.restart_engine()

    node.installer("uninstall", check=True)

    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_another_root_is_never_left_although_an_engine_runs(node: Node) -> None:
    files, before, pid = snapshot(node), served(node), node.pid_of()
    node.write("/opt/elsewhere/etc/docker/daemon.json", "{}\n")
    node.write("/opt/elsewhere/etc/containerd/config.toml", "version = 2\n")
    arguments = ("--host-root", "/opt/elsewhere", "--runtime", node.engine, *SOURCE)

    plan = node.installer("plan", *arguments)
    refused = node.installer("install", *arguments)
    installed = node.installer("install", *arguments, "--restart-mode", "none")
    undone = node.installer("uninstall", *arguments, "--restart-mode", "none")

    assert [each.returncode for each in (plan, refused, installed, undone)] == [1, 1, 0, 0]
    assert (served(node), node.pid_of()) == (before, pid)
    after = {path: text for path, text in snapshot(node).items() if not path.startswith("/opt/elsewhere")}
    assert after == files


def _from_elsewhere(node: Node, *words: str) -> CompletedProcess[str]:
    """Run the installer where no process of the node is seen."""
    return node.run([*UNSEEN, PYTHON, "-m", "installer", *words], check=False, timeout_s=120)


@pytest.mark.any_version
def test_what_an_engine_serves_in_the_end_is_what_counts_and_what_failed_is_not_tried_again(
    containerd_node: Node, cri: Cri
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    node.run(["cp", CONTAINERD, "/opt/frozen.toml"])
    drop_in = "/run/systemd/system/containerd.service.d/frozen.conf"
    # Its words are not known through a shell, from a pid namespace of our own.
    command = "/bin/sh -c 'exec /usr/bin/containerd --config /opt/frozen.toml'"
    node.write(drop_in, f"[Service]\nExecStart=\nExecStart={command}\n")
    node.restart_engine()
    files, count = snapshot(node), starts(node)
    node.add_payload("/run/other", "1.1.0")
    told = ("--config", f"containerd={CONTAINERD}", *CONTAINERDS, "--timeout", "3")
    over = ("--toolkit-source", "/run/other", "--set-as-default", *told)

    failed = _from_elsewhere(node, "install", *over)

    assert failed.returncode == 1, failed.stderr
    assert "cannot verify that containerd serves our runtimes" in sentence(failed.stderr)
    assert {**snapshot(node), LEDGER: files[LEDGER]} == files, "the ledger alone knows of this"
    assert served(node) == ({"runc"} | OURS, "runc")
    run_through_us(node)
    tried, left = starts(node), snapshot(node, times=True)
    again = _from_elsewhere(node, "install", *over)
    assert "cannot configure again what failed before (verify that containerd" in sentence(again.stderr)
    planned = _from_elsewhere(node, "plan", *SOURCE, *told, "--runtime-name", "gpu")
    assert "failed before" not in planned.stdout
    assert (tried - count, starts(node) - tried) == (2, 0)
    assert snapshot(node, times=True) == left
    node.run(["rm", "-r", drop_in.rpartition("/")[0], "/opt/frozen.toml"])
    node.restart_engine()
    node.installer("uninstall", check=True)
    assert snapshot(node) == before
    assert served(node) == ({"runc"}, "runc")
    assert cri.status().conditions["RuntimeReady"]


@pytest.mark.sampled(16)
def test_a_drop_in_is_used_where_it_merges_and_edited_in_place_elsewhere(
    containerd_node: Node, cri: Cri
) -> None:
    node, files, before = containerd_node, snapshot(containerd_node), served(containerd_node)
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"

    done = node.installer("install", *SOURCE, *CONTAINERDS, "--drop-in-config", drop_in, check=True)

    written = node.has(drop_in)
    assert written == node.containerd_version.startswith("2.")
    assert (f"editing {CONTAINERD} in place" in done.stderr) is not written
    assert served(node)[0] == {"runc"} | OURS
    assert cri.status().conditions["RuntimeReady"]
    run_through_us(node)
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_uninstall_restores_a_cri_that_our_config_took_down(containerd_node: Node, cri: Cri) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    config = node.read(CONTAINERD)
    node.write(CONTAINERD, re.sub(r"(default_runtime_name = .)runc", r"\1gone", config))
    node.restart("containerd")
    # Somebody mends the line after the restart: the file is ours again, and the engine still lies down.
    node.write(CONTAINERD, config)

    node.installer("uninstall", check=True)

    assert set(cri.wait().runtimes) == {"runc"}
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.any_version
def test_containers_start_by_the_hosts_own_toolkit_which_an_uninstall_leaves(node: Node) -> None:
    own, before = "usr/bin/nvidia-container-runtime", served(node)
    node.add_payload("/", "1.0.0")
    node.installer("install", "--toolkit-source", "/", check=True)
    run_through_us(node)
    assert node.installer("verify").returncode == 0

    node.add_payload("/", "2.0.0")  # as its package manager does

    updated, pid = (node.root / own).read_bytes(), node.pid_of()
    assert "nothing changed" in node.installer("install", "--toolkit-source", "/").stderr
    assert node.installer("status", "--deep").returncode == 0
    node.forget_marks()
    run_through_us(node)
    assert any(mark.startswith(TAKES_PART) for mark in node.marks()), node.marks()
    assert node.pid_of() == pid
    node.installer("uninstall", check=True)
    assert (node.root / own).read_bytes() == updated
    assert served(node) == before
