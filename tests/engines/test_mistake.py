"""A mistake of ours behind the restart of an engine: it is rolled back as any failure is."""

from tests.engines.cache import PROJECT
from tests.engines.faked import INSTALL, LEFT
from tests.engines.nodes import Node
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, starts

# A mistake of ours where the engine has been reloaded, once: the roll-back comes there too.
MISTAKE = """

_right, _met = _prove, []


def _prove(*words, **more):
    if not _met:
        raise KeyError(_met.append("hunter2"))
    return _right(*words, **more)
"""


def test_a_mistake_of_ours_behind_a_reload_is_rolled_back_and_remembered(faked: Node) -> None:
    faked.run(["cp", "-r", f"{PROJECT}/installer", "/run/fake/"])
    with (faked.root / "run/fake/installer/engines/restart.py").open("a") as program:
        program.write(MISTAKE)
    files, count = snapshot(faked), starts(faked)

    first = faked.installer(*INSTALL, env={"PYTHONPATH": "/run/fake"})

    assert first.returncode == 1, first.stderr
    assert "internal error: KeyError in engines/restart.py" in sentence(first.stderr)
    assert {path: text for path, text in snapshot(faked).items() if path not in LEFT} == files
    assert starts(faked) - count == 2
    again = faked.installer(*INSTALL)
    assert again.returncode == 1
    assert sentence(again.stderr).startswith("cannot configure again what failed before (finish (internal")
    assert starts(faked) - count == 2
