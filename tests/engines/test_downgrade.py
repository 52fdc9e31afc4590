"""A containerd that its owner exchanges for an older one, under our edits."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2, VERSION_3
from tests.engines.conftest import Boot
from tests.engines.nodes import OURS, SOURCE, Node
from tests.engines.roots import Roots
from tests.engines.told import sentence, served, snapshot
from tests.engines.versions import EngineSet

ASKED = (*SOURCE, "--runtime", "containerd", "--drop-in-config", "/etc/containerd/conf.d/99-nvidia.toml")
GLOB = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
Downgraded = Callable[..., AbstractContextManager[tuple[Node, dict[str, str]]]]


@pytest.fixture
def downgraded(booted: Boot, roots: Roots, engines_today: list[EngineSet]) -> Downgraded:
    """Return how to have a node installed to whose newest containerd became that of trixie, as a package does it."""
    newest = next(row for row in engines_today if row.suite == "sid" and row.docker is None)

    @contextmanager
    def boot(root: str, *asked: str) -> Iterator[tuple[Node, dict[str, str]]]:
        with booted(newest, start=False) as node:
            node.write(CONTAINERD, root)
            if not root:
                node.path(CONTAINERD).unlink()
            node.start_engines()
            files = snapshot(node)
            node.installer("install", *asked, check=True)
            node.run(["systemctl", "stop", "containerd"])
            for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
                node.path(f"/usr/bin/{name}").unlink()
                shutil.copy2(roots.suites["trixie"] / "usr/bin" / name, node.path(f"/usr/bin/{name}"))
            node.run(["systemctl", "start", "containerd"], check=False)
            yield node, files

    return boot


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("root", "default", "again"),
    [
        pytest.param(VERSION_2, "--set-as-default", False, id="as default, undone at once"),
        pytest.param(GLOB + VERSION_2, "--no-set-as-default", True, id="by a wildcard, installed again"),
        pytest.param("", "--set-as-default", False, id="over a config that an install began"),
    ],
)
def test_an_older_containerd_gets_what_it_understands_and_its_own_configs_back(
    downgraded: Downgraded, root: str, default: str, *, again: bool
) -> None:
    asked = (*(ASKED if root else ASKED[:4]), default)
    with downgraded(root, *asked) as (node, files):
        if again:
            node.installer("install", *asked, check=True)
        if again or not root:
            node.cri.wait()
            assert served(node)[0] == {"runc"} | OURS
        undone = node.installer("uninstall")

        assert undone.returncode == 0, undone.stderr
        node.cri.wait()
        assert served(node) == ({"runc"}, "runc")
        assert snapshot(node) == files


def test_our_texts_go_from_a_containerd_that_does_not_start_any_more(downgraded: Downgraded) -> None:
    with downgraded(VERSION_3, *ASKED) as (node, files):
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
