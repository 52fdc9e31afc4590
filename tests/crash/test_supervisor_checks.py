"""``run`` is killed, or told to stop, at the effects of a check that mends a config: parent, child, or both."""

import signal
from pathlib import Path

import pytest

from tests.crash.conftest import Covered
from tests.crash.struck import lived, node, points, undone


@pytest.mark.parametrize(
    ("who", "wanted"),
    [
        pytest.param("child", 0, id="the next check mends what a killed one has left"),
        pytest.param("stop", 0, id="a stop undoes what a check has begun"),
        pytest.param("parent", -signal.SIGKILL, id="an uninstall finishes what an orphan has left"),
        pytest.param("both", -signal.SIGKILL, id="an uninstall finishes what both have left"),
    ],
)
def test_at_an_effect_of_a_check(tmp_path: Path, who: str, wanted: int, covered: Covered) -> None:
    site = node(tmp_path)
    before = site.tree()
    _, effects = lived(site, "asked", 0, who)
    assert undone(site) == 0

    for at in points(effects):
        code, _ = lived(site, "asked", at, who)

        assert code == wanted, at
        if code:
            assert undone(site) == 0, at
        assert site.tree() == before, at
    covered(f"check: {who} of a run struck", "all", len(points(effects)), effects)
