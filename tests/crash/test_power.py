"""The machine dies: what was not synced is lost, all of it or any part, at any moment."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.nodes import SCENES, Ward, assert_goes_back, assert_goes_on, assert_works, command
from tests.crash.power import Disk, Inodes
from tests.crash.strace import log_calls
from tests.support.tree import tree

STRIDE = int(os.environ.get("CRASH_STRIDE", "15"))
MOST = 1000 if STRIDE == 1 else 64  # what may stand there after one moment
SEED = int(os.environ.get("SEED", "20261121"))


@pytest.mark.parametrize("scene", SCENES)
def test_a_power_failure_at_any_moment_leaves_a_node_that_works_and_can_go_both_ways(
    scene: str, engines: str, nodes: Ward, covered: Covered, tmp_path: Path
) -> None:
    played = SCENES[scene]
    nodes.start(played)
    disk = Disk(nodes.root)
    disk.learn(log_calls(command(nodes, played), tmp_path / "log"))
    after = tree(nodes.root)
    shutil.rmtree(nodes.root)
    disk.put(disk.after(len(disk.ops), frozenset()), nodes.root)
    assert tree(nodes.root) == after, "the model does not follow what really happens"

    chance = random.Random(f"{SEED} {scene} {engines}")  # noqa: S311 - failures, not secrets
    found: dict[object, Inodes] = {}
    outcomes = 0
    for end in range(len(disk.ops) + 1):
        for left in disk.failures(end, MOST, chance):
            found.setdefault(disk.seen(left), left)
            outcomes += 1

    for turn, left in enumerate(found.values()):
        shutil.rmtree(nodes.root)
        disk.put(left, nodes.root)
        assert_works(nodes)
        if turn % 2:
            assert_goes_on(nodes, played)
        assert_goes_back(nodes)

    covered("power lost: what is not synced, combined", engines, outcomes, outcomes)
    covered("power lost: different disks that left", engines, len(found), len(found))
