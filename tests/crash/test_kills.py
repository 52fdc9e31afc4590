"""The process is killed before each effect in turn, and in the middle of each write.

What then stands must work, and go back or go on.
"""

import pytest

from tests.crash.conftest import Covered
from tests.crash.faults import KILLED, STRIDE, Fault
from tests.crash.nodes import SCENES, Ward, assert_goes_back, assert_goes_on, assert_works


@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_any_effect_leaves_a_node_that_works_and_can_go_both_ways(
    scene: str, engines: str, nodes: Ward, covered: Covered
) -> None:
    total = nodes.effects(SCENES[scene])
    points = range(len(engines) % STRIDE, total, STRIDE)
    for point in points:
        assert nodes.play(SCENES[scene], Fault(point)) == KILLED, point
        assert_works(nodes)
        assert_goes_back(nodes)
        nodes.play(SCENES[scene], Fault(point))
        assert_goes_on(nodes, SCENES[scene])
        assert_goes_back(nodes)

    covered("killed in process", engines, len(points), total)
    assert points
