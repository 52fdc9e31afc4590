"""The real program is killed as it enters a system call, or the machine dies: what was not synced is lost or not."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.crash.faults import STRIDE
from tests.crash.nodes import Scene, Ward, assert_goes_back, assert_goes_on, assert_works
from tests.crash.power import Disk, Inodes
from tests.crash.strace import kill_at, kill_points, log_calls
from tests.support.tree import tree

KILLS_STRIDE = 2 * STRIDE - 1  # each point is the start of a program
MOST = 1000 if STRIDE == 1 else 64  # what may stand there after one moment
SEED = int(os.environ.get("SEED", "20261121"))


@pytest.mark.sampled(16)
def test_a_kill_at_any_system_call_leaves_a_node_that_works_and_can_go_both_ways(
    engines: str, nodes: Ward, scene: Scene, tmp_path: Path
) -> None:
    points = kill_points(log_calls(nodes.command(scene), tmp_path / "log"))
    taken = points[len(engines) % KILLS_STRIDE :: KILLS_STRIDE]
    for turn, (name, number) in enumerate(taken):
        assert kill_at(nodes.command(scene), name, number) == -9, (name, number)
        assert_works(nodes)
        if turn % 2:
            assert_goes_on(nodes, scene)
        assert_goes_back(nodes)
    assert taken


@pytest.mark.sampled(16)
def test_a_power_failure_at_any_moment_leaves_a_node_that_works_and_can_go_both_ways(
    engines: str, nodes: Ward, scene: Scene, tmp_path: Path
) -> None:
    command = nodes.command(scene)
    disk = Disk(nodes.root)
    disk.learn(log_calls(command, tmp_path / "log"))
    after = tree(nodes.root)
    shutil.rmtree(nodes.root)
    disk.put(disk.after(len(disk.ops), frozenset()), nodes.root)
    assert tree(nodes.root) == after, "the model does not follow what really happens"

    chance = random.Random(f"{SEED} {scene} {engines}")  # noqa: S311 - failures, not secrets
    found: dict[object, Inodes] = {}
    for end in range(len(disk.ops) + 1):
        found |= {disk.seen(left): left for left in disk.failures(end, MOST, chance)}
    for turn, left in enumerate(found.values()):
        shutil.rmtree(nodes.root)
        disk.put(left, nodes.root)
        assert_works(nodes)
        if turn % 2:
            assert_goes_on(nodes, scene)
        assert_goes_back(nodes)
