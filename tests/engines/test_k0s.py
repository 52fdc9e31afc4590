"""k0s by a stand-in that watches its drop-ins and restarts its containerd as it does, a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import Boot
from tests.engines.distribution import OURS, Distribution, begin, newest
from tests.engines.nodes import PYTHON, SOURCE
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, snapshot
from tests.engines.versions import EngineSet
from tests.support.entry import NVIDIAS

STAND_IN = Path(__file__).parent / "fake_k0s.py"
SOCKET, WORKER = "/run/k0s/containerd.sock", "k0sworker.service"
DROP_IN = "/etc/k0s/containerd.d/nvidia.toml"
MOVED_IN, REMOVED = "0x80 nvidia.toml", "0x200 nvidia.toml"
# k0s waits 3 s for more changes and 5 s with the start: the first wait is its own in one case, the rest shorter.
K0S_135, K0S_136 = ("1", 0.5, 0.5, "merging"), ("2", 3, 1, "")


@pytest.fixture
def k0s(
    request: pytest.FixtureRequest, booted: Boot, engines_today: list[EngineSet]
) -> Iterator[Distribution]:
    """Boot a node with one: its containerd, how long it waits for more changes and with a start."""
    major, quiet_s, respawn_s, merging = request.param
    with booted(newest(engines_today, major), start=False) as node:
        node.write("/usr/local/bin/k0s", STAND_IN.read_text())
        waits = f"Environment=QUIET_S={quiet_s} RESPAWN_S={respawn_s}\n"
        service = f"{waits}ExecStart={PYTHON} /usr/local/bin/k0s worker {merging}\n"
        yield begin(node, WORKER, service, SOCKET)


def _events(k0s: Distribution) -> list[str]:
    """Return what has happened in the directory that it watches."""
    path = k0s.node.root / "run/k0s/events"
    return path.read_text().splitlines() if path.exists() else []


def _containerd(k0s: Distribution) -> int:
    """Return the pid of its containerd."""
    return int(k0s.node.run(["pgrep", "-x", "containerd"], check=False).stdout or 0)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("k0s", [K0S_135, K0S_136], ids=["1.35", "1.36"], indirect=True)
def test_it_takes_the_drop_in_up_by_itself_and_nothing_else_happens_in_its_directory(
    k0s: Distribution,
) -> None:
    node, files = k0s.node, snapshot(k0s.node)
    unit, before = node.pid_of(WORKER), _containerd(k0s)

    done = node.installer("install", *SOURCE, check=True)

    assert "is not validated" not in done.stderr
    assert _events(k0s) == [MOVED_IN]
    assert k0s.handlers() == {"runc": "", **OURS}
    after = _containerd(k0s)
    assert (node.pid_of(WORKER), after != before) == (unit, True)
    pod = k0s.cri.run_pod("nvidia", "trainer")
    again = node.installer("install", *SOURCE, check=True)
    assert "nothing changed" in again.stderr
    kept = node.installer("uninstall", "--in-use", "keep")
    assert kept.returncode == 4
    assert "default/trainer (k0s)" in sentence(kept.stderr)
    assert _containerd(k0s) == after
    k0s.cri.remove_pod(pod)

    node.installer("uninstall", check=True)

    assert snapshot(node) == files
    assert _events(k0s) == [MOVED_IN, REMOVED]
    assert k0s.handlers() == {"runc": ""}
    assert node.pid_of(WORKER) == unit


@pytest.mark.parametrize("k0s", [("2", 1, 0.2, "")], ids=["1.36"], indirect=True)
def test_an_install_that_is_stopped_while_it_waits_takes_the_drop_in_back_and_sees_the_restart(
    k0s: Distribution,
) -> None:
    node, files, before = k0s.node, snapshot(k0s.node), _containerd(k0s)
    first = node.start_installer("install", *SOURCE)
    node.wait_for("nvidia.toml", ["ls", "/etc/k0s/containerd.d"])

    first.terminate()

    assert first.wait() == 1, first.log
    # Both changes are one for k0s: what ran all the time serves what it should, and is restarted yet.
    assert _events(k0s) == [MOVED_IN, REMOVED]
    assert _containerd(k0s) not in {0, before}
    assert k0s.handlers() == {"runc": ""}
    assert snapshot(node) == files


@pytest.mark.sampled(16)
@pytest.mark.parametrize("k0s", [("2", 2, 0.2, "")], ids=["1.36"], indirect=True)
@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_one_that_its_owner_stops_meanwhile_is_left_stopped_and_nothing_of_ours_stays(
    k0s: Distribution, verb: str
) -> None:
    node, files = k0s.node, snapshot(k0s.node)
    if verb == "uninstall":
        node.installer("install", *SOURCE, check=True)
    first = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
    first.wait_for("waiting for the engine to restart itself")

    node.run(["systemctl", "stop", WORKER])

    assert first.wait() == (1 if verb == "install" else 0), first.log
    assert "engine left stopped" in first.log
    assert "by itself" not in first.log.partition("engine left stopped")[2]
    assert snapshot(node) == files
    assert node.show(WORKER, "ActiveState") == "inactive"


@pytest.mark.parametrize("k0s", [("2", 0.2, 0.2, "")], ids=["1.36"], indirect=True)
def test_nvidias_variables_for_it_are_understood_and_it_is_undone_while_it_does_not_run(
    k0s: Distribution,
) -> None:
    node, files = k0s.node, snapshot(k0s.node)
    # As k0s's own documentation tells the GPU Operator's users.
    told = {"CONTAINERD_CONFIG": DROP_IN, "CONTAINERD_SOCKET": SOCKET, "HOST_ROOT_MOUNT": "/"}
    told |= {"RUNTIME": "containerd", "NO_DAEMON": "true", "TOOLKIT_SOURCE_ROOT": ARTIFACTS}

    node.run([PYTHON, *NVIDIAS], env=told)

    assert k0s.handlers() == {"runc": "", **OURS}
    assert k0s.cri.status().config["containerd"]["defaultRuntimeName"] == "nvidia"
    # A newer k0s does not start with a drop-in that an older one needs: it goes also without one.
    node.run(["systemctl", "stop", WORKER])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
