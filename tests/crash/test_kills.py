"""The process is killed before each effect in turn and in the middle of each write, or the effect fails.

What then stands must work, and go back or go on.
"""

import errno
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from tests.crash.faults import BUG, KILLED, STRIDE, Fault, call, effects
from tests.crash.nodes import (
    DAEMON_JSON,
    SCENES,
    Scene,
    Ward,
    assert_goes_back,
    assert_goes_on,
    assert_works,
    ward,
)
from tests.support.site import CONTAINERD, HOME, TOOLKIT, Site
from tests.support.tree import described, tree

# The ledger and all beside it go in one rename, a few effects before an undo ends.
LAST = 6
FAULTS_STRIDE = 8 * int(os.environ.get("CRASH_STRIDE", "15")) - 7
FAULTS = [
    pytest.param(Fault(0, errno.ENOSPC, stays=True), id="the disk is full from then on"),
    pytest.param(Fault(0, errno.EDQUOT, stays=True), id="the quota is used up from then on"),
    pytest.param(Fault(0, errno.EROFS, stays=True), id="the disk is read-only from then on"),
    pytest.param(Fault(0, errno.ENOSPC), id="the disk is full once"),
    pytest.param(Fault(0, errno.EIO), id="the disk fails once"),
    pytest.param(Fault(0, errno.EPERM), id="something is immutable"),
    pytest.param(Fault(0, BUG), id="a mistake of ours raises what nobody expects"),
]


@pytest.mark.sampled(16)
def test_a_kill_at_any_effect_leaves_a_node_that_works_and_can_go_both_ways(
    engines: str, nodes: Ward, scene: Scene
) -> None:
    total = nodes.effects(scene)
    last = range(total - LAST, total) if scene.verb == "uninstall" else ()
    points = sorted({*range(len(engines) % STRIDE, total, STRIDE), *last})
    for point in points:
        assert nodes.play(scene, Fault(point)) == KILLED, point
        assert_works(nodes)
        assert_goes_back(nodes)
        nodes.play(scene, Fault(point))
        assert_goes_on(nodes, scene)
        assert_goes_back(nodes)
    assert points


def test_what_is_replaced_is_saved_before_a_row_names_it(tmp_path: Path) -> None:
    with ward(tmp_path / "ward", "docker") as nodes:

        def named(point: int) -> bool:
            assert nodes.play(SCENES["install"], Fault(point)) == KILLED
            return nodes.saved() != {}

        points = range(nodes.effects(SCENES["install"]))
        assert named(bisect_left(points, 1, key=named))

        assert [*nodes.saved().values()] == [True]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_disk_that_fails_at_any_effect_costs_nobody_anything(
    engines: str, nodes: Ward, scene: Scene, fault: Fault
) -> None:
    total = nodes.effects(scene)
    codes: list[int] = []
    for point in range((abs(fault.number) + len(engines)) % min(FAULTS_STRIDE, total), total, FAULTS_STRIDE):
        nodes.start(scene)
        before = tree(nodes.root)

        codes.append(nodes.play(scene, replace(fault, at=point)))

        assert_works(nodes)
        assert codes[-1] in {0, 1, 4}, point
        # What was told of the node is taken back by the ledger, which stays on a disk that stays full.
        if codes[-1] == 1 and not nodes.tells:
            left = tree(nodes.root)
            # A disk that becomes read-only keeps what was made on it before.
            stuck = left.keys() - before.keys() if fault.stays and fault.number == errno.EROFS else set()
            assert {path: what for path, what in left.items() if path not in stuck} == before, point
        assert_goes_back(nodes)
    if scene is SCENES["install"] and not fault.stays:
        assert 4 not in codes, "a disk that works again takes everything back at once"


EDITS: dict[str, tuple[str, Callable[[str], str]]] = {
    "docker": (DAEMON_JSON, lambda text: text.replace("{", '{"theirs": 1, ', 1)),
    "containerd": (CONTAINERD, lambda text: f"{text}# theirs\n"),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("engines", EDITS, indirect=True)
def test_an_edit_between_two_runs_of_which_one_was_killed_hides_none_of_our_keys(
    engines: str, nodes: Ward
) -> None:
    """A run with other wishes is killed, then somebody edits a config: our keys of both runs go, the edit stays."""
    path, edit = EDITS[engines]
    wishes = [*nodes.words("install"), "--runtime-name", "gpu", "--no-set-as-default"]
    nodes.start(SCENES["undo"])
    assert call(wishes) == 0
    for point in range(0, effects(), max(1, STRIDE // 2)):
        nodes.start(SCENES["undo"])
        assert call(wishes, Fault(point)) == KILLED
        config = nodes.root / path
        config.write_text(edit(config.read_text()))

        assert call(nodes.words("uninstall")) == 0

        original = nodes.directory / "untouched" / path
        assert config.read_text() == edit(original.read_text()), point
        assert tree(nodes.root) | {path: described(original)} == nodes.untouched(), point


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("verb", "fault", "left"),
    [
        ("install", Fault(3, name=".replaced.toolkit-installer"), ".replaced.toolkit-installer"),
        ("uninstall", Fault(0, name="nvidia-container-runtime"), "replaced.toolkit-installer"),
    ],
    ids=["before the link in its place is named", "while what was set aside is removed"],
)
def test_an_uninstall_ends_after_a_kill_on_a_real_directory_of_nvidias(
    site: Site, verb: str, fault: Fault, left: str
) -> None:
    theirs = site.write(f"{TOOLKIT}/nvidia-container-runtime", "#! /bin/sh\n").parent
    before = site.tree()
    if verb == "uninstall":
        site.install()
        (site.root / TOOLKIT).unlink()  # NVIDIA's installer makes its own anew
        copytree(site.root / HOME / "replaced", theirs)

    code = call(site.command(verb)[3:], fault)

    assert code == KILLED
    assert left in {path.name for path in (site.root / HOME).iterdir()}
    site.uninstall()
    assert not (site.root / HOME).exists()
    assert verb == "uninstall" or site.tree() == before
