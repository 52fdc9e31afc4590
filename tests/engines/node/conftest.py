"""The image on a node: what ``make image`` built is loaded as a registry's would be pulled."""

from collections.abc import Callable, Iterator

import pytest

from tests.documents import starting
from tests.engines.conftest import Boot
from tests.engines.node.story import STORY, Story
from tests.engines.nodes import Node
from tests.engines.versions import EngineSet
from tests.image.__main__ import IMAGES, path_of


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stories = {
        report.nodeid.rpartition("::")[2]: lines
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        and (lines := [line for name, line in report.user_properties if name == STORY])
    }
    for name, lines in sorted(stories.items()):
        terminalreporter.section(name)
        for line in lines:
            terminalreporter.write_line(line)


def _loading(node: Node, archive: str) -> list[str]:
    """Return what the document for clusters tells people to load the image with, where there is no registry."""
    (command,) = starting("docker load" if node.engine == "docker" else "ctr ")
    *words, file = command.text.split()
    assert file == "toolkit.tar"
    return [*words, archive]


@pytest.fixture
def newest_node(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node with the newest containerd, for what differs in no version."""
    with booted([row for row in engines_today if row.name == "containerd"][-1]) as node:
        yield node


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[..., Story]:
    """Return how to begin the story of a node that has both images, or those of ``tags``."""

    def begin(node: Node, *tags: str) -> Story:
        story = Story(node, record_property)
        for tag in tags or IMAGES:
            assert path_of(tag).exists(), "there is no image: say `make image` first"
            node.run(_loading(node, str(path_of(tag))), timeout_s=120)
        story.tell(f"{node.engines}: the images are there")
        return story

    return begin
