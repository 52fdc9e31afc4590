"""What real engines do rarely: a fake containerd under a real systemd hangs, dies, lies or is slow."""

import time

import pytest

from tests.engines.configs import CONTAINERD
from tests.engines.faked import BEHAVIOUR, INSTALL, LEFT, STARTING
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, starts
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

SPECIFICATION = "run/cdi/management.nvidia.com-gpu.yaml"


@pytest.mark.parametrize(
    ("behaviour", "words", "restarts"),
    [
        pytest.param("hang", "within 5 s", 2, id="it accepts and never answers"),
        pytest.param(
            "die",
            "unit activating/auto-restart, exit-code): level=fatal the fake has had",
            1,
            id="it dies at its start",
        ),
        pytest.param(
            "die-later", "level=fatal the fake thought better of it", 2, id="it dies right after it"
        ),
        pytest.param("lie", "it serves runc=(built in), default runc)", 2, id="it serves what it served"),
        pytest.param(
            "other-binary", "nvidia=/usr/bin/nvidia-container-runtime", 2, id="it serves another binary"
        ),
        pytest.param(
            "other-cgroups",
            "other settings than asked for in nvidia, nvidia-cdi, nvidia-legacy",
            2,
            id="another cgroup driver",
        ),
        pytest.param("unready", "calls itself not ready", 2, id="it is not ready"),
        pytest.param("cri-down", "the stars are wrong", 2, id="its CRI did not load"),
    ],
)
def test_an_engine_that_goes_wrong_is_rolled_back_and_left_alone_from_then_on(
    faked: Node, behaviour: str, words: str, restarts: int
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
    assert starts(faked) - count == restarts
    assert took_s < 60
    after = snapshot(faked, times=True)
    again = [faked.installer(*INSTALL) for _ in range(3)]
    assert [done.returncode for done in again] == [1, 1, 1]
    assert sentence(again[-1].stderr).startswith("cannot configure again what failed before (")
    assert (snapshot(faked, times=True), starts(faked) - count) == (after, restarts)
    faked.write(BEHAVIOUR, "")
    assert faked.installer(*INSTALL, "--retry").returncode == 0


def test_an_engine_that_is_found_busy_right_before_its_restart_is_left_and_planned_for_again(
    faked: Node,
) -> None:
    before, count = faked.read(CONTAINERD), starts(faked)
    faked.write(STARTING, "nvidia")
    process = faked.start_installer(*INSTALL, "--restart-mode", "when-idle")
    process.wait_for("step failed")
    during = starts(faked)
    faked.run(["rm", STARTING])

    assert process.wait() == 0, process.log
    assert "cannot restart containerd yet" in process.log
    assert (during, starts(faked)) == (count, count + 1)
    assert faked.read(CONTAINERD) != before
    assert faked.installer("status").returncode == 0


def test_a_restart_that_came_later_and_goes_wrong_is_rolled_back_with_what_was_written_before(
    faked: Node,
) -> None:
    before, count = faked.read(CONTAINERD), starts(faked)
    faked.write(STARTING, "")
    process = faked.start_installer("run", *INSTALL[1:], "--restart-mode", "when-idle")
    process.wait_for("waiting for a signal")
    assert "nvidia" in faked.read(CONTAINERD)
    faked.write(BEHAVIOUR, "die")

    faked.run(["rm", STARTING])
    until(lambda: "what failed before" in faked.installer("status").stdout, lambda: process.log)

    assert "the fake has had enough" in process.log
    assert faked.read(CONTAINERD) == before
    assert faked.show("containerd", "ActiveState") == "active"
    restarts = starts(faked) - count
    process.terminate()
    assert process.wait() == 0, process.log
    assert starts(faked) - count == restarts == 1, "the start that failed is told by no READY"


# NVIDIA's entry point with the operator's default; CDI is what our own has no flag for.
OPERATORS = {
    "NO_DAEMON": "true",
    "RUNTIME": "containerd",
    "HOST_ROOT_MOUNT": "/",
    "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
    "TOOLKIT_INSTALLER_TIMEOUT": "5",
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
}


@pytest.mark.parametrize(
    ("behaviour", "words", "restarts"),
    [
        pytest.param("die", "level=fatal the fake has had", 1, id="it dies at its start"),
        pytest.param("lie", "it serves runc=(built in), default runc)", 2, id="it serves what it served"),
    ],
)
@pytest.mark.parametrize("cdi", ["true", "false"], ids=["CDI", "without CDI"])
def test_by_nvidias_entry_point_all_of_it_goes_back_when_the_engine_refuses(
    faked: Node, behaviour: str, words: str, restarts: int, cdi: str
) -> None:
    (faked.root / "run/nvidia/driver/dev").mkdir(parents=True, exist_ok=True)
    files, count = snapshot(faked), starts(faked)
    faked.write(BEHAVIOUR, behaviour)

    done = faked.run([PYTHON, *NVIDIAS], env=OPERATORS | {"CDI_ENABLED": cdi}, check=False)

    assert done.returncode == 1
    assert words in sentence(done.stderr), done.stderr
    assert {path: text for path, text in snapshot(faked).items() if path not in LEFT} == files
    assert not (faked.root / SPECIFICATION).exists()
    assert faked.show("containerd", "ActiveState") == "active"
    assert starts(faked) - count == restarts
    faked.run(["rm", "-r", "/run/nvidia"])


def test_an_engine_that_is_slow_is_waited_for(faked: Node) -> None:
    faked.write(BEHAVIOUR, "slow")

    done = faked.installer(*INSTALL)

    assert done.returncode == 0, done.stderr


def test_a_container_that_is_being_started_is_waited_for_before_a_restart(faked: Node) -> None:
    faked.write("/run/fake/starting", "")
    count = starts(faked)
    process = faked.start_installer(*INSTALL, "--timeout", "20")
    process.wait_for("config written")
    time.sleep(1)  # in which nothing may happen

    during = starts(faked)
    faked.run(["rm", "/run/fake/starting"])

    assert during == count
    assert process.wait() == 0, process.log
    assert starts(faked) == count + 1


def test_a_container_that_stays_in_state_created_is_named_and_the_wait_has_an_end(faked: Node) -> None:
    faked.write("/run/fake/starting", "")

    done = faked.installer(*INSTALL)

    faked.run(["rm", "/run/fake/starting"])
    assert done.returncode == 0, done.stderr
    assert '"containers": ["feedbeeffeed"]' in done.stderr


@pytest.mark.parametrize(
    ("behaviour", "timeout"),
    [
        pytest.param("hang", "60", id="in the middle of a question"),
        pytest.param("hang", "5", id="in a question that lasts until the deadline"),
        pytest.param("lie", "60", id="between two questions"),
    ],
)
def test_a_stop_during_the_proof_is_obeyed_and_no_failure(faked: Node, behaviour: str, timeout: str) -> None:
    files = snapshot(faked)
    faked.write(BEHAVIOUR, behaviour)
    process = faked.start_installer("run", *INSTALL[1:-1], timeout)
    process.wait_for("config written")
    began = time.monotonic()
    process.terminate()

    assert process.wait() == 0, process.log
    assert time.monotonic() - began < 45
    assert snapshot(faked) == files


def test_a_stop_while_systemd_waits_for_the_engine_is_obeyed_at_once_and_not_a_failure(faked: Node) -> None:
    files = snapshot(faked)
    faked.write(BEHAVIOUR, "never-ready")
    process = faked.start_installer(*INSTALL, "--timeout", "60")
    process.wait_for("config written")
    faked.wait_for("start", ["systemctl", "list-jobs"])
    began = time.monotonic()
    process.terminate()

    assert process.wait() == 1, process.log
    assert time.monotonic() - began < 45
    assert snapshot(faked) == files
