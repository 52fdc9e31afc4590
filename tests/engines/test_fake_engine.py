"""What real engines do rarely: a fake containerd under a real systemd hangs, dies or lies."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.configs import CONTAINERD, VERSION_2
from tests.engines.conftest import Boot
from tests.engines.nodes import PYTHON, SOURCE, Node
from tests.engines.told import sentence, snapshot, starts
from tests.engines.versions import EngineSet
from tests.support.waiting import PATIENCE_S

BEHAVIOUR = "/run/fake/behaviour"
INSTALL = ("install", "--runtime", "containerd", *SOURCE, "--timeout", "5")
LEFT = {
    "/usr/local/nvidia",
    "/usr/local/nvidia/.toolkit-installer",
    "/usr/local/nvidia/.toolkit-installer/ledger",
    "/usr/local/nvidia/.toolkit-installer/lock",
}


@pytest.fixture(scope="module")
def fake_node(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot one node, its containerd replaced by the fake."""
    with booted(next(engines for engines in engines_today if not engines.docker), start=False) as node:
        node.write("/run/fake/containerd.py", Path(__file__).with_name("fake_containerd.py").read_text())
        node.write(BEHAVIOUR, "")
        node.write(CONTAINERD, VERSION_2)
        node.run(["mkdir", "-p", "/run/containerd"])
        node.write(
            "/run/systemd/system/containerd.service.d/fake.conf",
            f"[Service]\nExecStartPre=\nExecStart=\nExecStart={PYTHON} /run/fake/containerd.py\nRestartSec=60\n",
        )
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "start", "containerd"])
        yield node


@pytest.fixture
def faked(fake_node: Node) -> Iterator[Node]:
    """Return the node of the fake, well and as it was."""
    files = snapshot(fake_node)
    yield fake_node
    fake_node.write(BEHAVIOUR, "")
    fake_node.installer("uninstall", check=True)
    assert snapshot(fake_node) == files
    assert fake_node.show("containerd", "ActiveState") == "active"


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        pytest.param("hang", "within 5 s", id="it accepts and never answers"),
        pytest.param("die-later", "level=fatal the fake thought better of it", id="it dies right after it"),
        pytest.param("lie", "it serves runc=(built in), default runc)", id="it serves what it served"),
        pytest.param("unready", "reports that it is not ready", id="it is not ready"),
    ],
)
def test_an_engine_that_goes_wrong_is_rolled_back_and_left_alone_from_then_on(
    faked: Node, behaviour: str, words: str
) -> None:
    files, count = snapshot(faked), starts(faked)
    faked.write(BEHAVIOUR, behaviour)
    began = time.monotonic()

    first = faked.installer(*INSTALL)

    took_s = time.monotonic() - began
    assert first.returncode == 1, first.stderr
    assert words in sentence(first.stderr)
    assert {path: text for path, text in snapshot(faked).items() if path not in LEFT} == files
    assert faked.show("containerd", "ActiveState") == "active"
    assert starts(faked) - count == 2
    assert took_s < PATIENCE_S
    after = snapshot(faked, times=True)
    again = [faked.installer(*INSTALL) for _ in range(3)]
    assert [done.returncode for done in again] == [1, 1, 1]
    assert sentence(again[-1].stderr).startswith("cannot configure again what failed before (")
    assert (snapshot(faked, times=True), starts(faked) - count) == (after, 2)
    faked.write(BEHAVIOUR, "")
    assert faked.installer(*INSTALL, "--retry").returncode == 0


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param("hang", id="in the middle of a question"),
        pytest.param("lie", id="between two questions"),
        pytest.param("never-ready", id="while systemd waits for the engine"),
    ],
)
def test_a_stop_during_the_proof_is_obeyed_and_no_failure(faked: Node, behaviour: str) -> None:
    files = snapshot(faked)
    faked.write(BEHAVIOUR, behaviour)
    process = faked.start_installer("run", *INSTALL[1:-1], "60")
    process.wait_for("config written")
    if behaviour == "never-ready":
        faked.wait_for("start", ["systemctl", "list-jobs"])
    began = time.monotonic()
    process.terminate()

    assert process.wait() == 0, process.log
    assert time.monotonic() - began < 45
    assert snapshot(faked) == files
