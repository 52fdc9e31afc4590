"""An uninstall leaves no engine down: one that would not start as it is, or did not start without our runtimes."""

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.crios import ASKED, call, starts
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import but_the_ledger, snapshot
from tests.engines.told import sentence, served

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
VERBOSE = b"\x08\x01"
# What a site has its GPU nodes checked by ahead of each start of the engine.
ONLY_WITH_US = "[Service]\nExecStartPre=/bin/grep -rq nvidia {}\n"
NEVER = "[Service]\nExecStartPre=/bin/grep -rq nvidia /etc/hostname {}/none\n"


def edit(node: Node, engine: str, text: str) -> None:
    node.write(f"/run/systemd/system/{engine}.service.d/site.conf", text)
    node.run(["systemctl", "daemon-reload"])


def forget(node: Node, engine: str) -> None:
    node.run(["rm", "-r", f"/run/systemd/system/{engine}.service.d"])
    node.run(["systemctl", "daemon-reload"])


@pytest.mark.any_version
def test_a_containerd_that_does_not_start_without_us_has_our_runtimes_again(containerd_node: Node) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written = snapshot(node)
    edit(node, "containerd", ONLY_WITH_US.format("/etc/containerd"))

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
    assert (status.returncode, "it does not run as before without them" in status.stdout) == (1, True), (
        status.stdout
    )
    forget(node, "containerd")
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    node.cri.wait()
    assert not served(node)[0] & OURS


@pytest.mark.any_version
def test_a_containerd_that_starts_neither_way_keeps_our_texts_and_both_are_told(
    containerd_node: Node,
) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    written = snapshot(node)
    edit(node, "containerd", NEVER.format("/etc"))

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert but_the_ledger(snapshot(node)) == but_the_ledger(written)
    told = sentence(kept.stderr)
    assert "(it does not run as before without them: " in told
    assert ", nor does it start with them again (" in told
    assert told.endswith("correct that, start containerd.service, then run toolkit-installer uninstall again")
    assert node.installer("status").returncode == 1
    forget(node, "containerd")
    node.restart("containerd")
    node.cri.wait()
    assert served(node)[0] >= OURS
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_a_crio_that_does_not_start_without_us_has_our_runtimes_again(crio: Node) -> None:
    crio.installer("install", *ASKED, check=True)
    written, before, count = snapshot(crio), call(crio, "Status", VERBOSE), starts(crio)
    edit(crio, "crio", ONLY_WITH_US.format("/etc/crio"))

    kept = crio.installer("uninstall")

    again, files = call(crio, "Status", VERBOSE), snapshot(crio)
    served_again = starts(crio) - count
    forget(crio, "crio")
    done = crio.installer("uninstall")
    assert kept.returncode == 4, kept.stderr
    assert (again, but_the_ledger(files), served_again) == (before, but_the_ledger(written), 1)
    assert "so it has them again" in sentence(kept.stderr)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_an_uninstall_does_not_restart_into_a_cri_that_is_switched_off(
    containerd_node: Node, name: str
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    if "cri.v1" in name and node.containerd_version.startswith("1."):
        name = "io.containerd.grpc.v1.cri"
    node.installer("install", *SOURCE, check=True)
    written, pid = node.read(CONTAINERD), node.pid_of("containerd")
    node.write(CONTAINERD, f'disabled_plugins = ["{name}"]\n{written}')

    plan, told = node.installer("plan", *SOURCE), node.installer("status")
    kept = node.installer("uninstall")

    assert (plan.returncode, told.returncode, kept.returncode) == (1, 1, 4), kept.stderr
    assert "CRI is switched off" in told.stdout, told.stdout
    assert "CRI is switched off" in kept.stderr
    assert node.pid_of("containerd") == pid
    assert served(node)[0] >= {"nvidia"}
    node.write(CONTAINERD, written)
    node.installer("uninstall", check=True)
    assert snapshot(node) == before


def test_a_containerd_that_runs_without_cri_has_nothing_to_read_at_an_uninstall(
    containerd_node: Node,
) -> None:
    node, before = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    off = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
    node.write(CONTAINERD, off + node.read(CONTAINERD))
    node.restart("containerd")
    pid = node.pid_of("containerd")

    node.installer("uninstall", check=True)

    assert node.pid_of("containerd") == pid
    assert node.installer("status").returncode == 3
    node.write(CONTAINERD, node.read(CONTAINERD).removeprefix(off))
    assert snapshot(node) == before
