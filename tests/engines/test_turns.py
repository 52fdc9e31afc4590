"""Turns on nodes with a real containerd: ``run`` waits for its turn, restarts once, and gives the turn back."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from installer.fleet import leases
from tests.engines.nodes import OURS, SOURCE, Node, Running
from tests.engines.told import served, snapshot, starts
from tests.fleet.api_server import ApiServer, serving, settings_lease
from tests.support.waiting import until

pytestmark = pytest.mark.sampled(16)

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
CLONE_NEWNET = 0x40000000  # linux/sched.h
DROP_IN = "/run/systemd/system/containerd.service.d/site.conf"
ONE = "gpu-turn-0"
SOAK_S = 2


@contextmanager
def network_of(node: Node) -> Iterator[None]:
    """Be in the node's network: a socket that is made there stays there."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{node.leader}/ns/net", os.O_RDONLY)
    assert libc.setns(theirs, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)
        os.close(theirs)


class Cluster:
    """The API as a pod on the node reaches it."""

    def __init__(self, node: Node, server: ApiServer, port: int) -> None:
        self.node = node
        self.server = server
        self._env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    def start(self, *more: str) -> Running:
        """Start ``run`` with turns."""
        words = ("--release", "gpu", "--node-name", "a", "--soak", str(SOAK_S), "--on-exit", "keep")
        return self.node.start_installer("run", *SOURCE, *words, *more, env=self._env)

    def run(self, *more: str) -> Running:
        """Start ``run`` with turns, and return once it waits for whatever it is."""
        process = self.start(*more)
        process.wait_for("waiting for a signal")
        return process

    @property
    def holder(self) -> str:
        lease = self.server.objects.get(("leases", ONE), {"spec": {}})
        return str(lease["spec"].get("holderIdentity", ""))

    @property
    def error(self) -> str:
        """The failure that stands in the turn."""
        return str(self.server.lease(ONE)["metadata"].get("annotations", {}).get(leases.ERROR, ""))

    def let_hold(self, holder: str) -> None:
        """Let another node take the turn, or give it back."""
        with self.server.lock:
            lease = leases.new_turn(ONE, "gpu")
            if holder:
                lease = leases.taken(lease, holder, self.server.server_s, 300)
            self.server.put("leases", lease)


@pytest.fixture
def cluster(containerd_node: Node, tmp_path: Path) -> Iterator[Cluster]:
    node = containerd_node
    server = ApiServer()
    server.put("leases", settings_lease(at_most="1", stop_after="1"))
    server.put("nodes", {"metadata": {"name": "a", "labels": {}}})
    with ExitStack() as stack:
        with network_of(node):
            api = stack.enter_context(serving(server, tmp_path))
        for name in ("token", "namespace", "ca.crt"):
            node.write(f"{ACCOUNT}/{name}", (tmp_path / name).read_text())
        yield Cluster(node, server, api.port)


def test_a_first_install_waits_for_its_turn_restarts_once_and_gives_it_back(cluster: Cluster) -> None:
    node = cluster.node
    files, count = snapshot(node), starts(node)
    cluster.let_hold("b")

    process = cluster.run()

    assert '"waiting for a turn"' in process.log
    assert "1 at a time; now: b" in node.installer("status", "--ready").stdout
    assert (node.is_ready(), starts(node), served(node)[0]) == (False, count, {"runc"})
    cluster.let_hold("")
    told: list[str] = []
    holders: list[str] = []

    def is_ready() -> bool:
        told.append(node.installer("status").stdout)
        holders.append(cluster.holder)
        return node.is_ready()

    node.installer("reconcile")
    until(is_ready, lambda: process.log)
    assert (holders.count("b"), starts(node)) == (0, count + 1)
    assert "a" in holders
    assert any("asked for at" in text and " as a of " in text for text in told), told
    until(lambda: cluster.holder == "", lambda: process.log)
    assert served(node)[0] >= OURS
    assert process.log.count('"waiting for a turn"') == 1
    process.terminate()
    assert process.wait() == 0, process.log
    node.installer("uninstall", check=True)
    assert (snapshot(node), served(node)[0]) == (files, {"runc"})


def test_a_run_that_is_stopped_while_it_waits_for_a_turn_has_changed_nothing(cluster: Cluster) -> None:
    node = cluster.node
    files, count = snapshot(node), starts(node)
    cluster.let_hold("b")
    process = cluster.run()

    began = time.monotonic()
    process.terminate()

    assert process.wait() == 0, process.log
    assert time.monotonic() - began < 10
    assert (snapshot(node), starts(node), cluster.holder) == (files, count, "b")


def test_a_run_that_is_killed_during_the_soak_gives_its_turn_back_at_its_next_start(cluster: Cluster) -> None:
    node = cluster.node
    count = starts(node)
    process = cluster.run()
    assert (cluster.holder, starts(node)) == ("a", count + 1)
    process.kill()
    process.wait()

    again = cluster.run()

    until(lambda: cluster.holder == "", lambda: again.log)
    assert (starts(node), node.is_ready()) == (count + 1, True)
    again.terminate()
    assert again.wait() == 0, again.log
    node.installer("uninstall", check=True)


def test_a_restart_that_fails_keeps_the_turn_with_its_error_until_the_node_is_mended(
    cluster: Cluster,
) -> None:
    node = cluster.node
    refuses_ours = "[Service]\nExecStartPre=/bin/sh -c '! grep -q nvidia-cdi /etc/containerd/config.toml'\n"
    node.write(DROP_IN, refuses_ours)
    node.run(["systemctl", "daemon-reload"])

    for _ in range(2):  # the second is refused for the first
        failing = cluster.start()
        assert failing.wait() == 1, failing.log
        assert (cluster.holder, served(node)[0]) == ("a", {"runc"})
        assert "cannot" in cluster.error

    node.path(DROP_IN).unlink()
    node.run(["systemctl", "daemon-reload"])
    process = cluster.run()
    until(lambda: cluster.holder == "", lambda: process.log)
    assert (cluster.error, node.is_ready()) == ("", True)
    process.terminate()
    assert process.wait() == 0, process.log
    node.installer("uninstall", check=True)


def test_a_node_that_serves_its_last_install_is_ready_while_it_waits_for_a_turn(cluster: Cluster) -> None:
    node = cluster.node
    node.installer("install", *SOURCE, check=True)
    count = starts(node)
    cluster.let_hold("b")

    process = cluster.run("--set-as-default")

    assert (node.is_ready(), starts(node)) == (True, count)
    status = node.installer("status")
    assert (status.returncode, "waiting for a turn" in status.stdout) == (0, True), status.stdout
    process.terminate()
    assert process.wait() == 0, process.log
    node.installer("uninstall", check=True)
