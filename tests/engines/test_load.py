"""What containerd accepts when its config is dumped, and refuses when it loads: no restart of ours runs into it."""

import json
import re

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.cri import Cri
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import but_the_ledger, sentence, snapshot

pytestmark = pytest.mark.any_version

CERTS = "/etc/containerd/certs.d"


class Waiting:
    """A containerd whose config was edited after its start: it serves as before, and CRI would not load."""

    def __init__(self, node: Node, cri: Cri) -> None:
        self.node, self.cri = node, cri
        self.pod = cri.run_pod()
        self.container = cri.start_container(self.pod)
        self.pid = node.pid_of()

    def refuses(self, verb: str, *words: str) -> None:
        """Run a verb that would restart: it says why not, and nothing is changed."""
        files = snapshot(self.node)
        done = self.node.installer(verb, *(SOURCE if verb == "install" else ()))

        assert done.returncode == {"install": 1, "uninstall": 4}[verb], done.stderr
        for word in words:
            assert word in sentence(done.stderr), done.stderr
        assert sentence(done.stderr).count("cannot ") == 1
        assert but_the_ledger(snapshot(self.node)) == but_the_ledger(files)
        self.lives()

    def lives(self) -> None:
        assert self.node.pid_of() == self.pid
        assert self.cri.exec(self.container, "echo", "alive").stdout == "alive\n"


def _settings_of_images(node: Node) -> str:
    old = node.containerd_version.startswith("1.")
    return "io.containerd.grpc.v1.cri" if old else "io.containerd.cri.v1.images"


def _registry(node: Node) -> str:
    """Return ``mirrors`` beside ``config_path``, as a node has after half of a migration."""
    table = f"plugins.'{_settings_of_images(node)}'.registry"
    return (
        f"\n[{table}]\nconfig_path = '{CERTS}'\n"
        f"[{table}.mirrors.'docker.io']\nendpoint = ['https://mirror.invalid']\n"
    )


@pytest.mark.sampled(16)
def test_no_restart_of_ours_meets_registry_mirrors_beside_a_config_path(
    containerd_node: Node, cri: Cri
) -> None:
    node, usual = containerd_node, containerd_node.read(CONTAINERD)
    waiting = Waiting(node, cri)
    node.write(CONTAINERD, usual + _registry(node))
    words = (
        f"its CRI would not load: {CONTAINERD} sets registry.mirrors, and registry.config_path is set too",
    )

    plan = node.installer("plan", *SOURCE, "--json")
    waiting.refuses("install", *words, f"remove registry.mirrors from {CONTAINERD}")

    assert plan.returncode == 1
    assert any(words[0] in each["problem"] for each in json.loads(plan.stdout)["obstacles"])
    node.write(CONTAINERD, usual)
    node.installer("install", *SOURCE, check=True)
    waiting.pid = node.pid_of()
    node.write(CONTAINERD, node.read(CONTAINERD) + _registry(node))
    status = node.installer("status")
    assert status.returncode == 1
    assert words[0] in re.sub(r"\s+", " ", status.stdout)
    waiting.refuses("uninstall", *words, f"remove registry.mirrors from {CONTAINERD}")
    node.write(CONTAINERD, node.read(CONTAINERD).replace(_registry(node), ""))
    node.installer("uninstall", check=True)
    assert node.read(CONTAINERD) == usual
