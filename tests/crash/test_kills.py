"""The process is killed before each effect in turn, and in the middle of each write.

What then stands must work, and go back or go on.
"""

import json
from bisect import bisect_left
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.faults import KILLED, STRIDE, Fault
from tests.crash.nodes import (
    LEDGER,
    SCENES,
    Ward,
    assert_goes_back,
    assert_goes_on,
    assert_works,
    ward,
)

# The ledger and all beside it go in one rename, a few effects before an undo ends.
LAST = 6


@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_any_effect_leaves_a_node_that_works_and_can_go_both_ways(
    scene: str, engines: str, nodes: Ward, covered: Covered
) -> None:
    total = nodes.effects(SCENES[scene])
    last = range(total - LAST, total) if SCENES[scene].verb == "uninstall" else ()
    points = sorted({*range(len(engines) % STRIDE, total, STRIDE), *last})
    for point in points:
        assert nodes.play(SCENES[scene], Fault(point)) == KILLED, point
        assert_works(nodes)
        assert_goes_back(nodes)
        nodes.play(SCENES[scene], Fault(point))
        assert_goes_on(nodes, SCENES[scene])
        assert_goes_back(nodes)

    covered("killed in process", engines, len(points), total)
    assert points


def _lost(nodes: Ward, point: int) -> dict[str, bool]:
    """Return the configs that the ledger of a killed install names, and of each whether its saved copy is missing."""
    assert nodes.play(SCENES["install"], Fault(point)) == KILLED
    ledger = nodes.root / LEDGER
    if not ledger.exists():
        return {}
    rows = [row for row in json.loads(ledger.read_text())["configs"] if row["original"]]
    return {
        row["path"]: not ledger.with_name("backups").joinpath(row["original"]["digest"]).is_file()
        for row in rows
    }


def test_what_is_replaced_is_saved_before_a_row_names_it(tmp_path: Path) -> None:
    with ward(tmp_path / "ward", "docker") as nodes:
        points = range(nodes.effects(SCENES["install"]))

        named = _lost(nodes, bisect_left(points, 1, key=lambda point: len(_lost(nodes, point))))

    assert [*named.values()] == [False]
