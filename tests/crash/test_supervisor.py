"""``run`` is killed, or told to stop, at the effects of its children: the parent, the child, or both at once."""

import signal
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.struck import lived, node, points, undone


@pytest.mark.parametrize("who", ["child", "parent", "both"])
@pytest.mark.parametrize("act", ["install", "stop"])
def test_whatever_is_killed_at_an_effect_the_next_uninstall_finishes(
    tmp_path: Path, act: str, who: str, covered: Covered
) -> None:
    site = node(tmp_path)
    before = site.tree()
    _, effects = lived(site, act, 0, who)
    assert undone(site) == 0

    for at in points(effects):
        code, _ = lived(site, act, at, who)

        assert code == (4 if who == "child" else -signal.SIGKILL), at
        assert undone(site) == 0, at
        assert site.tree() == before, at
    covered(f"{act}: {who} of a run killed", "all", len(points(effects)), effects)


def test_a_stop_at_an_effect_of_the_install_undoes_everything(tmp_path: Path, covered: Covered) -> None:
    site = node(tmp_path)
    before = site.tree()
    _, effects = lived(site, "install", 0, "stop")
    assert undone(site) == 0

    for at in points(effects):
        code, _ = lived(site, "install", at, "stop")

        assert code == 0, at
        assert site.tree() == before, at
    covered("install: a stop", "all", len(points(effects)), effects)
