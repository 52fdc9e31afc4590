"""An effect fails: the disk is full, read-only, broken, or our program. A node is as it was then, or it is told."""

import errno
import os
from dataclasses import replace

import pytest

from tests.crash.conftest import Covered
from tests.crash.faults import BUG, Fault
from tests.crash.nodes import SCENES, Ward, assert_goes_back, assert_works
from tests.support.tree import tree

STRIDE = 8 * int(os.environ.get("CRASH_STRIDE", "15")) - 7

FAULTS = [
    pytest.param(Fault(0, errno.ENOSPC, stays=True), id="the disk is full from then on"),
    pytest.param(Fault(0, errno.EDQUOT, stays=True), id="the quota is used up from then on"),
    pytest.param(Fault(0, errno.EROFS, stays=True), id="the disk is read-only from then on"),
    pytest.param(Fault(0, errno.ENOSPC), id="the disk is full once"),
    pytest.param(Fault(0, errno.EIO), id="the disk fails once"),
    pytest.param(Fault(0, errno.EPERM), id="something is immutable"),
    pytest.param(Fault(0, BUG), id="a mistake of ours raises what nobody expects"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_disk_that_fails_at_any_effect_costs_nobody_anything(
    scene: str, fault: Fault, engines: str, nodes: Ward, covered: Covered
) -> None:
    total = nodes.effects(SCENES[scene])
    codes: list[int] = []
    for point in range((abs(fault.number) + len(engines)) % min(STRIDE, total), total, STRIDE):
        nodes.start(SCENES[scene])
        before = tree(nodes.root)

        codes.append(nodes.play(SCENES[scene], replace(fault, at=point)))

        assert_works(nodes)
        assert codes[-1] in {0, 1, 4}, point
        # What was told of the node is taken back by the ledger, which stays on a disk that stays full.
        if codes[-1] == 1 and not nodes.tells:
            left = tree(nodes.root)
            # A disk that becomes read-only keeps what was made on it before.
            stuck = left.keys() - before.keys() if fault.stays and fault.number == errno.EROFS else set()
            assert {path: what for path, what in left.items() if path not in stuck} == before, point
        assert_goes_back(nodes)

    covered(
        f"disk: {errno.errorcode.get(fault.number, 'a bug')}{' from then on' if fault.stays else ''}",
        engines,
        len(codes),
        total,
    )
    if scene == "install" and not fault.stays:
        assert 4 not in codes, "a disk that works again takes everything back at once"
