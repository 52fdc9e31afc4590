"""An uninstall leaves no engine down: one that would not start as it is, or did not start without our runtimes."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, served, snapshot

GUARD = "/run/systemd/system/containerd.service.d/site.conf"
# What a site has its GPU nodes checked by ahead of each start of the engine.
ONLY_WITH_US = "/bin/grep -rq nvidia /etc/containerd"
NEVER = "/bin/grep -rq nvidia /etc/hostname /etc/none"


def guard(node: Node, command: str) -> None:
    """Have a command checked ahead of each start; "" takes that back."""
    node.write(GUARD, f"[Service]\nExecStartPre={command}\n")
    node.run(["systemctl", "daemon-reload"])


@pytest.mark.any_version
def test_a_containerd_that_does_not_start_without_us_has_our_runtimes_again(containerd_node: Node) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written = snapshot(node)
    guard(node, ONLY_WITH_US)

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    node.cri.wait()
    assert served(node)[0] >= OURS
    assert but_the_ledger(snapshot(node)) == but_the_ledger(written)
    told = sentence(kept.stderr)
    assert told.startswith("cannot undo our edits of containerd (it does not run as before without them: ")
    assert "its ExecStartPre /bin/grep exited with status 1" in told
    assert told.endswith("so it has them again; correct that, then run toolkit-installer uninstall again")
    status = node.installer("status")
    assert status.returncode == 1
    assert "it does not run as before without them" in status.stdout

    guard(node, NEVER)
    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert but_the_ledger(snapshot(node)) == but_the_ledger(written), "which stay where neither starts"
    told = sentence(kept.stderr)
    assert "(it does not run as before without them: " in told
    assert ", nor does it start with them again (" in told
    assert told.endswith("correct that, start containerd.service, then run toolkit-installer uninstall again")
    guard(node, "")
    node.restart_engine()
    assert served(node)[0] >= OURS
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert not served(node)[0] & OURS


@pytest.mark.any_version
def test_an_uninstall_does_not_restart_into_a_cri_that_is_switched_off_nor_one_that_runs_without(
    containerd_node: Node,
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written, pid = node.read(CONTAINERD), node.pid_of()
    new = "" if node.containerd_version.startswith("1.") else ', "io.containerd.cri.v1.runtime"'
    off = f'disabled_plugins = ["io.containerd.grpc.v1.cri"{new}]\n'
    node.write(CONTAINERD, off + written)

    plan, told = node.installer("plan", *SOURCE), node.installer("status")
    kept = node.installer("uninstall")

    assert (plan.returncode, told.returncode, kept.returncode) == (1, 1, 4), kept.stderr
    assert "CRI is switched off" in told.stdout, told.stdout
    assert "CRI is switched off" in kept.stderr
    assert node.pid_of() == pid
    assert served(node)[0] >= {"nvidia"}
    node.restart("containerd")
    pid = node.pid_of()
    node.installer("uninstall", check=True)
    assert node.pid_of() == pid, "there is nothing for it to read"
    assert node.installer("status").returncode == 3
    node.write(CONTAINERD, node.read(CONTAINERD).removeprefix(off))
    assert snapshot(node) == before
