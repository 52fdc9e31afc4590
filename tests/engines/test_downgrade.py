"""A containerd that its owner exchanges for an older one, under our edits."""

import shutil

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2, VERSION_3
from tests.engines.conftest import Boot
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.roots import Roots
from tests.engines.told import sentence, served, snapshot
from tests.engines.versions import EngineSet

OURS = "/etc/containerd/conf.d/99-nvidia.toml"
ASKED = ("--toolkit-source", ARTIFACTS, "--runtime", "containerd", "--drop-in-config", OURS)
GLOB = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
ROOTS = {"schema 2": VERSION_2, "schema 2 with a wildcard": GLOB + VERSION_2, "schema 3": VERSION_3}


def exchange(node: Node, roots: Roots, suite: str) -> None:
    """Put the containerd of another suite in the place of the node's, and restart it as a package does."""
    node.run(["systemctl", "stop", "containerd"])
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        (node.root / "usr/bin" / name).unlink()
        shutil.copy2(roots.suites[suite] / "usr/bin" / name, node.root / "usr/bin" / name)
    node.run(["systemctl", "start", "containerd"], check=False)


@pytest.fixture
def newest(engines_today: list[EngineSet]) -> EngineSet:
    return next(row for row in engines_today if row.suite == "sid" and row.docker is None)


@pytest.mark.parametrize(
    ("root", "default", "again"),
    [
        pytest.param("schema 2", "--set-as-default", False, id="as default, undone at once"),
        pytest.param(
            "schema 2 with a wildcard", "--no-set-as-default", True, id="by a wildcard, installed again"
        ),
        pytest.param("", "--set-as-default", False, id="over a config that an install began"),
    ],
)
def test_an_older_containerd_gets_what_it_understands_and_its_own_configs_back(  # noqa: PLR0913 - a table
    booted: Boot, roots: Roots, newest: EngineSet, root: str, default: str, *, again: bool
) -> None:
    asked = (*(ASKED if root else ASKED[:4]), default)
    with booted(newest, start=False) as node:
        if root:
            node.write(CONTAINERD, ROOTS[root])
        else:
            node.run(["rm", CONTAINERD])
        node.start_engines()
        files = snapshot(node)
        node.installer("install", *asked, check=True)
        exchange(node, roots, "trixie")

        if again:
            node.installer("install", *asked, check=True)
        if again or not root:
            node.cri.wait()
            assert served(node)[0] == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
        undone = node.installer("uninstall")

        assert undone.returncode == 0, undone.stderr
        node.cri.wait()
        assert served(node) == ({"runc"}, "runc")
        assert snapshot(node) == files


def test_our_texts_go_from_a_containerd_that_does_not_start_any_more(
    booted: Boot, roots: Roots, newest: EngineSet
) -> None:
    with booted(newest, start=False) as node:
        node.write(CONTAINERD, ROOTS["schema 3"])
        node.start_engines()
        files = snapshot(node)
        node.installer("install", *ASKED, check=True)
        exchange(node, roots, "trixie")
        written = snapshot(node)

        again = node.installer("install", *ASKED)
        unchanged = snapshot(node)
        undone = node.installer("uninstall")

        assert (again.returncode, undone.returncode) == (1, 0), (again.stderr, undone.stderr)
        assert "unsupported config version `3`" in sentence(again.stderr)
        assert unchanged == written
        assert "containerd does not start without our edits either: " in undone.stderr
        assert snapshot(node) == files
        node.write(CONTAINERD, VERSION_2)
        node.restart("containerd")
        node.cri.wait()
        assert served(node) == ({"runc"}, "runc")
