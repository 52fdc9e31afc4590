"""A ``run`` that only the owner can help waits for his restart: it neither ends nor restarts the engine for him."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node, Running
from tests.engines.told import served, snapshot, starts
from tests.support.waiting import until

pytestmark = pytest.mark.sampled(16)

DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
STATE = "/run/nvidia/toolkit/toolkit.pid.state"
CHECK_S = 120.0  # the time between two checks: what is told to a run has to come before
GOES_ON_S = CHECK_S / 2


def probed(node: Node, word: str) -> bool:
    """Tell what a kubelet is told; the program that the probe becomes for a reason is in the image alone."""
    words = f"import sys; from installer.probe import main; sys.exit(main(['{word}']))"
    return node.run([PYTHON, "-c", words], check=False).returncode == 0


@contextmanager
def waiting(node: Node, *more: str) -> Iterator[Running]:
    """Start a ``run`` that has to wait, and see that it does."""
    process = node.start_run(*SOURCE, *more)
    try:
        assert '"waiting for the owner"' in process.log
        assert (probed(node, "--started"), probed(node, "--alive")) == (True, True)
        yield process
    finally:
        process.kill()
        process.wait()


def code(node: Node) -> str:
    found: str = json.loads(node.read(STATE))["problem"]["code"]
    return found


def kata(node: Node) -> str:
    plugin = "grpc.v1.cri" if node.containerd_version.startswith("1.") else "cri.v1.runtime"
    return f"[plugins.'io.containerd.{plugin}'.containerd.runtimes.kata]\nruntime_type = 'io.containerd.runc.v2'\n"


def test_an_owner_who_has_removed_a_runtime_restarts_and_the_install_goes_on(containerd_node: Node) -> None:
    node = containerd_node
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, f"{text}\n{kata(node)}")
    node.restart_engine()
    node.write(CONTAINERD, text)
    files, count = snapshot(node), starts(node)

    with waiting(node) as process:
        assert (code(node), probed(node, "--ready")) == ("pending-by-others", False)
        told = node.installer("status", "--ready").stdout
        assert "its next start takes away the runtime kata" in told
        assert "run goes on by itself then" in told
        time.sleep(3)
        assert starts(node) == count
        node.restart_engine()
        began = time.monotonic()
        until(node.is_ready, lambda: process.log)

        assert time.monotonic() - began < GOES_ON_S
        assert served(node)[0] >= OURS
        assert starts(node) == count + 2, "his restart, and the one that the install needs"
        assert process.log.count('"waiting for the owner"') == 1
        process.terminate()
        assert process.wait() == 0, process.log
    assert snapshot(node) == files


def test_a_run_that_waits_and_is_stopped_has_changed_nothing(containerd_node: Node) -> None:
    node = containerd_node
    node.write(DROP_IN, "[Unit]\nRefuseManualStop=yes\n")
    node.run(["systemctl", "daemon-reload"])
    files, count = snapshot(node), starts(node)

    with waiting(node) as process:
        assert code(node) == "unit-failed"
        began = time.monotonic()
        process.terminate()
        assert process.wait() == 0, process.log
        assert time.monotonic() - began < GOES_ON_S
    assert (snapshot(node), starts(node)) == (files, count)
    node.path(DROP_IN).unlink()
    node.run(["systemctl", "daemon-reload"])


def test_a_node_that_serves_its_last_install_stays_ready_while_the_next_one_waits(
    containerd_node: Node,
) -> None:
    node = containerd_node
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, f"{text}\n{kata(node)}")
    node.restart_engine()
    node.installer("install", *SOURCE, check=True)
    node.write(CONTAINERD, node.read(CONTAINERD).replace(kata(node), ""))
    count = starts(node)

    with waiting(node, "--set-as-default") as process:
        assert (code(node), probed(node, "--ready")) == ("pending-by-others", True)
        status = node.installer("status")
        assert status.returncode == 0, status.stdout
        node.restart_engine()
        until(lambda: '"installed"' in process.log, lambda: process.log)
        until(node.is_ready, lambda: process.log)
        assert served(node)[1] == "nvidia"
        assert starts(node) == count + 2
        process.terminate()
        assert process.wait() == 0, process.log
    assert served(node)[0] == {"runc"}


@pytest.mark.parametrize("verb", ["install", "run"])
def test_an_install_waits_for_the_restart_of_who_has_just_edited_a_config(
    containerd_node: Node, verb: str
) -> None:
    node = containerd_node
    count = starts(node)
    node.write(CONTAINERD, f"{node.read(CONTAINERD)}\n{kata(node)}")

    plan = node.installer("plan", *SOURCE)
    process = node.start_installer(verb, *SOURCE)
    process.wait_for('"waiting for a restart by others"')
    node.restart_engine()
    began = time.monotonic()
    process.wait_for('"installed"')

    assert time.monotonic() - began < GOES_ON_S
    assert f"{CONTAINERD} was changed less than 30 s ago" in plan.stdout
    assert served(node)[0] == OURS | {"runc", "kata"}
    assert starts(node) == count + 2
    process.terminate()
    process.wait()


def test_an_edit_that_nobody_restarts_for_is_waited_for_once_and_an_undo_does_not_wait(
    containerd_node: Node,
) -> None:
    node = containerd_node
    node.write(CONTAINERD, f"{node.read(CONTAINERD)}\n{kata(node)}")
    began = time.monotonic()
    done = node.installer("install", *SOURCE, check=True)
    took_s = time.monotonic() - began
    again = node.installer("install", *SOURCE, check=True)
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, f"{text}\n# edited\n")
    undone = node.installer("uninstall", check=True)

    assert done.stderr.count('"waiting for a restart by others"') == 1
    assert took_s < 30 + GOES_ON_S
    for each in (again, undone):
        assert "waiting for a restart" not in each.stderr


def test_what_others_have_changed_is_brought_into_force_where_that_is_accepted(containerd_node: Node) -> None:
    node = containerd_node
    text = node.read(CONTAINERD)
    node.write(CONTAINERD, f"{text}\n{kata(node)}")
    node.restart_engine()
    node.write(CONTAINERD, text)
    accepted = "by --accept-pending: its next start takes away the runtime kata, which it serves"

    refused = node.installer("install", *SOURCE)
    plan = node.installer("plan", *SOURCE, "--accept-pending")
    done = node.installer("install", *SOURCE, env={"TOOLKIT_INSTALLER_ACCEPT_PENDING": "true"})

    assert (refused.returncode, plan.returncode, done.returncode) == (1, 10, 0), done.stderr
    assert accepted in plan.stdout
    assert accepted in done.stderr
    assert served(node)[0] == OURS | {"runc"}
    rest = re.sub(r"^ *root = .*\n", "", node.read(CONTAINERD), flags=re.MULTILINE)
    node.write(CONTAINERD, f'root = "/srv/root"\n{rest}')
    moved = node.installer("install", *SOURCE, "--accept-pending", "--set-as-default")
    assert "root /srv/root, and it runs with /var/lib/containerd" in moved.stderr
    assert moved.returncode == 1
