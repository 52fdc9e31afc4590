"""A run with other wishes is killed, then somebody edits a config: our keys of both runs go, the edit stays."""

from collections.abc import Callable

import pytest

from tests.crash.conftest import Covered
from tests.crash.faults import KILLED, STRIDE, Fault, call, effects
from tests.crash.nodes import DAEMON_JSON, SCENES, Ward
from tests.support.tree import described, tree

CONTAINERD = "etc/containerd/config.toml"
EDITS: dict[str, tuple[str, Callable[[str], str]]] = {
    "docker": (DAEMON_JSON, lambda text: text.replace("{", '{"theirs": 1, ', 1)),
    "containerd": (CONTAINERD, lambda text: f"{text}# theirs\n"),
}


@pytest.mark.parametrize("engines", EDITS, indirect=True)
def test_an_edit_between_two_runs_of_which_one_was_killed_hides_none_of_our_keys(
    engines: str, nodes: Ward, covered: Covered
) -> None:
    path, edit = EDITS[engines]
    wishes = [*nodes.words("install"), "--runtime-name", "gpu", "--no-set-as-default"]
    nodes.start(SCENES["undo"])
    assert call(wishes) == 0
    total = effects()
    points = range(0, total, max(1, STRIDE // 2))
    for point in points:
        nodes.start(SCENES["undo"])
        assert call(wishes, Fault(point)) == KILLED
        config = nodes.root / path
        config.write_text(edit(config.read_text()))

        assert call(nodes.words("uninstall")) == 0

        original = nodes.directory / "untouched" / path
        assert config.read_text() == edit(original.read_text()), point
        left = tree(nodes.root) | {path: described(original)}
        assert left == nodes.untouched(), point
    covered("killed, then edited by somebody", engines, len(points), total)
