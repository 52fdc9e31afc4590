"""A node that tells metrics and labels is killed, and its disk fails: no trace stays, nothing is worse for it."""

import errno
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.crash.conftest import Covered
from tests.crash.faults import BUG, KILLED, STRIDE, Fault
from tests.crash.nodes import (
    LEDGER,
    SCENES,
    TEXTFILE,
    Ward,
    assert_goes_back,
    assert_goes_on,
    assert_works,
    ward,
)
from tests.support.tree import tree

KILLS = STRIDE
FAILS = 3 * STRIDE
ENGINE = "docker"


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Return nodes that tell."""
    with ward(tmp_path_factory.mktemp("telling") / "ward", (ENGINE,), tells=True) as made:
        yield made


def assert_told_by_the_ledger(nodes: Ward) -> None:
    """Whoever stands there stands in the ledger, so that an undo without any flag finds it."""
    if (nodes.root / TEXTFILE.lstrip("/")).exists():
        assert TEXTFILE in json.loads((nodes.root / LEDGER).read_text())["published"]


@pytest.mark.parametrize("scene", ["install", "undo"])
def test_a_kill_at_any_effect_leaves_nothing_that_an_uninstall_without_flags_does_not_find(
    scene: str, telling: Ward, covered: Covered
) -> None:
    total = telling.effects(SCENES[scene])
    points = range(len(scene) % KILLS, total, KILLS)
    for point in points:
        assert telling.play(SCENES[scene], Fault(point)) == KILLED, point
        assert_works(telling)
        assert_told_by_the_ledger(telling)
        assert telling.uninstall() == 0
        assert tree(telling.root) == telling.untouched()
        telling.play(SCENES[scene], Fault(point))
        assert_goes_on(telling, SCENES[scene])
        assert_goes_back(telling)

    covered("killed in process", "with figures", len(points), total)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(0, errno.ENOSPC, stays=True), id="the disk is full from then on"),
        pytest.param(Fault(0, errno.EROFS, stays=True), id="the disk is read-only from then on"),
        pytest.param(Fault(0, errno.EIO), id="the disk fails once"),
        pytest.param(Fault(0, BUG), id="a mistake of ours raises what nobody expects"),
    ],
)
@pytest.mark.parametrize("scene", ["install", "undo"])
def test_a_disk_that_fails_leaves_nothing_that_an_uninstall_does_not_find(
    scene: str, fault: Fault, telling: Ward, covered: Covered
) -> None:
    total = telling.effects(SCENES[scene])
    points = range((abs(fault.number) + len(scene)) % FAILS, total, FAILS)
    for point in points:
        code = telling.play(SCENES[scene], replace(fault, at=point))

        assert code in {0, 1, 4}, point
        assert_works(telling)
        assert_told_by_the_ledger(telling)
        assert_goes_back(telling)

    covered("disk", "with figures", len(points), total)
