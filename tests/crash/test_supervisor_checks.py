"""``run`` is killed, or told to stop, at the effects of its children: the parent, the child, or both at once."""

import signal
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.struck import lived, node, points, undone

KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("act", "who", "wanted"),
    [
        *((act, who, KILLED) for act in ("install", "stop", "asked") for who in ("parent", "both")),
        ("install", "child", 4),
        ("stop", "child", 4),
        ("asked", "child", 0),  # the next check repairs what a killed one has left
        ("install", "stop", 0),
        ("asked", "stop", 0),
    ],
)
def test_whatever_is_struck_at_an_effect_it_or_the_next_uninstall_undoes_everything(
    tmp_path: Path, act: str, who: str, wanted: int, covered: Covered
) -> None:
    site = node(tmp_path)
    before = site.tree()
    _, effects = lived(site, act, 0, who)
    assert undone(site) == 0

    least = effects
    for at in points(effects):
        code, happened = lived(site, act, at, who)

        assert code == wanted, at
        least = min(least, happened)
        if code:
            assert undone(site) == 0, at
        assert site.tree() == before, at
    if (act, who) == ("install", "parent"):
        assert least < effects, "an orphan leaves its work between two steps"
    covered(f"{act}: {who} of a run struck", "all", len(points(effects)), effects)
