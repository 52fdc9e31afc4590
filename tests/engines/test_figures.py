"""Metrics, labels and last words of a real node: its containerd is proven, restarted and repaired."""

import signal
from collections.abc import Iterator

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.conftest import Boot
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import snapshot
from tests.engines.versions import EngineSet
from tests.figures.prometheus import exporting, scraped
from tests.support.waiting import until

DIRECTORY = "/var/lib/node_exporter/textfile_collector"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
LAST_WORDS = "/dev/termination-log"  # where the kubelet mounts a file into each container
ASKED = (
    *("--metrics-textfile", f"{DIRECTORY}/toolkit-installer.prom"),
    *("--nfd-features", f"{FEATURES}/toolkit-installer"),
)
RESTARTS = 'engine_restarts_total{engine="containerd"}'
WAITS = "waiting for a signal"


@pytest.fixture
def newest_node(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node with the newest containerd: what is told differs in no version."""
    with booted([row for row in engines_today if row.name == "containerd"][-1]) as node:
        for path in (DIRECTORY, FEATURES):
            (node.root / path.lstrip("/")).mkdir(parents=True)
        node.write(LAST_WORDS, "")
        yield node


def told(address: str) -> dict[str, float]:
    prefix = "toolkit_installer_"
    found = scraped(address)
    assert found["node_textfile_scrape_error"] == 0
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def labels(node: Node) -> dict[str, str]:
    lines = node.read(f"{FEATURES}/toolkit-installer").splitlines()
    pairs = (line.partition("/")[2].split("=") for line in lines if not line.startswith("#"))
    return {name: value for name, value in pairs}  # noqa: C416 - of lists


def test_a_node_tells_its_life_and_forgets_it_with_the_undo(newest_node: Node) -> None:
    node, source = newest_node, ("--toolkit-source", ARTIFACTS)
    files, before = snapshot(node), node.read(CONTAINERD)

    with exporting(node.root / DIRECTORY.lstrip("/")) as address:
        process = node.start_installer("run", *source, *ASKED)
        process.wait_for(WAITS)
        installed, labelled = told(address), labels(node)
        process.kill()
        process.wait()

        process = node.start_installer("run", *source, *ASKED)
        process.wait_for(WAITS)
        again = told(address)

        node.write(CONTAINERD, before)  # a bootstrap script has run again
        process.signal(signal.SIGHUP)
        until(lambda: process.log.count(WAITS) == 2, lambda: process.log)
        repaired = told(address)

        process.terminate()
        code, log = process.wait(), process.log
        after = told(address)

    assert (installed["ready"], installed['engine_serves{engine="containerd"}']) == (1, 1)
    assert (installed["installs_total"], installed[RESTARTS]) == (1, 1)
    assert 'toolkit_version="1.0.0"' in next(name for name in installed if name.startswith("info"))
    assert (labelled["ready"], labelled["engine-containerd"]) == ("true", "true")
    assert labelled["toolkit-version"] == "1.0.0"
    assert (again["installs_total"], again[RESTARTS], again["ready"]) == (2, 1, 1)
    assert (repaired["repairs_total"], repaired["ready"]) == (1, 1)
    assert code == 0, log
    assert after == {}
    assert node.read(LAST_WORDS) == "undo complete: nothing of ours is left on this node\n"
    assert snapshot(node) == files
    assert not list((node.root / DIRECTORY.lstrip("/")).iterdir())
