"""The image on a node: what ``make image`` built is loaded as a registry's would be pulled."""

from collections.abc import Iterator

import pytest

from tests.documents import starting
from tests.engines.conftest import Boot
from tests.engines.nodes import Node
from tests.engines.versions import EngineSet
from tests.image.__main__ import IMAGES, path_of


def load(node: Node) -> Node:
    """Load both images, as the document for clusters tells people to where there is no registry."""
    first_words = "docker load" if node.engine == "docker" else "ctr --namespace k8s.io images import"
    (command,) = starting(first_words)
    *words, file = command.text.split()
    assert file == "toolkit.tar"
    for tag in IMAGES:
        assert path_of(tag).exists(), "there is no image: say `make image` first"
        node.run([*words, str(path_of(tag))])
    return node


@pytest.fixture
def containerd_with_images(containerd_node: Node) -> Node:
    return load(containerd_node)


@pytest.fixture
def newest_with_images(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node with the newest containerd, for what differs in no version."""
    with booted([row for row in engines_today if row.name == "containerd"][-1]) as node:
        yield load(node)
