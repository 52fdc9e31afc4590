"""The real program is killed as it enters each system call that would change something."""

import os
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.nodes import SCENES, Ward, assert_goes_back, assert_goes_on, assert_works, command
from tests.crash.strace import kill_at, kill_points, log_calls

# Each point is the start of a program; a run that has hours may take every one of them.
STRIDE = 2 * int(os.environ.get("CRASH_STRIDE", "15")) - 1


@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_any_system_call_leaves_a_node_that_works_and_can_go_both_ways(
    scene: str, engines: str, nodes: Ward, covered: Covered, tmp_path: Path
) -> None:
    played = SCENES[scene]
    nodes.start(played)
    points = kill_points(log_calls(command(nodes, played), tmp_path / "log"))
    taken = points[len(engines) % STRIDE :: STRIDE]
    for turn, (name, number) in enumerate(taken):
        nodes.start(played)
        code = kill_at(command(nodes, played), name, number)

        assert code == -9, (name, number)
        assert_works(nodes)
        if turn % 2:
            assert_goes_on(nodes, played)
        assert_goes_back(nodes)

    covered("killed at a system call", engines, len(taken), len(points))
    assert taken
