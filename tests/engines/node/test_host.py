"""docs/host.md's container on a host with Docker: its commands are read from it."""

from collections.abc import Callable

import pytest

from tests.documents import Command, starting
from tests.engines.node.story import Story
from tests.engines.nodes import OURS, Node
from tests.engines.told import served, snapshot
from tests.support.version import VERSION

NAME = f"node-toolkit-installer:{VERSION}"


@pytest.mark.any_version
@pytest.mark.night
def test_a_container_of_dockers_installs_and_uninstalls(
    docker_node: Node, tell: Callable[..., Story]
) -> None:
    story = tell(docker_node, NAME)
    files, before = snapshot(docker_node), served(docker_node)
    install, uninstall = starting("docker run --rm --network")

    docker_node.run(_here(install))
    story.tell("a container of the host's own Docker has installed")
    assert served(docker_node) == (before[0] | OURS, before[1])
    docker_node.run(_here(uninstall))
    story.tell("another one has given everything back")
    assert served(docker_node) == before
    assert snapshot(docker_node) == files


def _here(command: Command) -> list[str]:
    return command.text.replace(f" {NAME} ", f" localhost/{NAME} ").split()
