"""``run --mode nri`` on a real containerd: refused where NRI is switched off, ready once the engine asks the plugin."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.engines.by_cdi import GPU, MODE, driver
from tests.engines.configs import CONTAINERD
from tests.engines.nodes import Node, boot
from tests.engines.nri import STATE
from tests.engines.roots import Roots
from tests.engines.running import Running
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence
from tests.engines.versions import EngineSet

WORDS = (*MODE[:2], "--mode", "nri", *MODE[4:], "--nri-allow", f"default={GPU.partition('=')[0]}")
READY = "run/nvidia/toolkit/ready"
INJECTS = (2, 1)
DEADLINE_S = 60


@pytest.fixture(scope="module")
def with_nri(roots: Roots, engines_today: list[EngineSet]) -> Iterator[Node]:
    engines = next(
        row
        for row in engines_today
        if row.docker is None and tuple(map(int, row.containerd.split("."))) >= INJECTS
    )
    with boot(roots, engines) as node:
        driver(node, "550.1")
        yield node


@pytest.mark.parametrize("key", ["disable", "disable_connections"])
def test_an_engine_whose_config_has_nri_switched_off_is_refused_before_anything(
    with_nri: Node, key: str
) -> None:
    node, before = with_nri, with_nri.read(CONTAINERD)
    node.write(CONTAINERD, f'{before}\n[plugins."io.containerd.nri.v1.nri"]\n  {key} = true\n')
    node.restart("containerd")
    node.cri.wait()
    files = snapshot(node)

    done = node.installer("run", *WORDS)

    assert done.returncode == 1
    assert "cannot serve containerd by NRI (its config has NRI switched off)" in sentence(done.stderr)
    assert snapshot(node) == files
    node.write(CONTAINERD, before)
    node.restart("containerd")
    node.cri.wait()


def _registered(node: Node) -> bool:
    path = node.root / STATE.lstrip("/")
    return path.exists() and bool(json.loads(path.read_text())["registered"])


def _first_ready(node: Node, process: Running) -> bool:
    """Wait until the node is ready; tell whether the plugin was registered by then."""
    deadline = time.monotonic() + DEADLINE_S
    while not (node.root / READY).exists():
        assert time.monotonic() < deadline, process.log
        time.sleep(0.002)
    return _registered(node)


def test_the_node_is_ready_once_the_engine_has_taken_the_plugin(with_nri: Node) -> None:
    process = with_nri.start_installer("run", *WORDS)
    registered = _first_ready(with_nri, process)
    process.wait_for("waiting for a signal")
    process.terminate()

    assert process.wait(60) == 0, process.log
    assert registered
