"""How a restart over the bus ends with a real systemd, asked from another pid namespace as our pod asks."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError, StoppedBeforeError, StoppedError
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from tests.engines.conftest import Boot
from tests.engines.nodes import Node
from tests.engines.versions import EngineSet

UNIT = "toolkit-test.service"
FILE, SLOW = f"/run/systemd/system/{UNIT}", "/run/systemd/system/toolkit-slow.service"
WELL = "ExecStart=sleep 1000000"
SLOW_START = f"{WELL}\nExecStartPre=sh -c 'test -e /run/first || exec touch /run/first; sleep 1'"
SLOW_STOP = f"{WELL}\nExecStop=sh -c 'test -e /run/first && exec rm /run/first; sleep 1'"
TIMEOUT_S = 30


@pytest.fixture(scope="module", params=["bookworm", "trixie", "sid"])
def machine(request: pytest.FixtureRequest, booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node of each systemd: 252, 257 and the newest."""
    with booted(next(each for each in engines_today if each.suite == request.param), start=False) as node:
        yield node


@pytest.fixture
def on(machine: Node) -> Iterator[Node]:
    yield machine
    machine.run(["rm", "-rf", FILE, SLOW, "/run/first"])
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "stop", UNIT, Path(SLOW).name], check=False)
    machine.run(["systemctl", "reset-failed"])


def host(on: Node) -> Host:
    return Host.under(PurePosixPath(on.root))


def start(on: Node, service: str, *, unit: str = "") -> str:
    """Start a unit that is such a service; return its invocation."""
    on.write(FILE, f"[Unit]\n{unit}\n[Service]\n{service}\n")
    on.run(["systemctl", "daemon-reload"])
    on.run(["systemctl", "start", UNIT])
    return on.show(UNIT, "InvocationID")


def restart(on: Node) -> None:
    unit_jobs.restart(host(on), UNIT, Patience(TIMEOUT_S, lambda: None))


@contextmanager
def meanwhile(on: Node, *words: str) -> Iterator[None]:
    """Run a command of the node's a third of a second into the block."""
    with ThreadPoolExecutor() as pool:
        acted = pool.submit(on.run, ["sh", "-c", f"sleep 0.3; exec {' '.join(words)}"])
        yield
    acted.result()


@pytest.mark.sampled(16)
def test_restarts_that_are_done_have_another_invocation_and_hit_no_start_limit(on: Node) -> None:
    before = start(on, WELL, unit="StartLimitIntervalSec=1h\nStartLimitBurst=2")

    for _ in range(10):
        restart(on)

    after = systemd.read_unit(host(on), UNIT)
    assert (after.active, after.job, after.result) == ("active", 0, "success")
    assert after.invocation == on.show(UNIT, "InvocationID") != before


FAILS = {
    "at its first command": ("Type=exec\nExecStart=/not/there", "unit failed/failed, exit-code"),
    "without a word that it is ready": (f"Type=notify\nTimeoutStartSec=1\n{WELL}", "unit failed/failed, timeout"),
    "and is started again": (f"ExecStartPre=false\nRestart=always\n{WELL}", "unit activating/auto-restart, exit-code"),
    "for a condition": (f"{WELL}\n[Unit]\nConditionPathExists=/not/there", "unit inactive/dead, success"),
}  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("service", "words"), FAILS.values(), ids=FAILS)
def test_a_start_that_fails_is_told_with_its_result(on: Node, service: str, words: str) -> None:
    start(on, WELL)
    on.write(FILE, f"[Service]\n{service}\n")
    on.run(["systemctl", "daemon-reload"])

    with pytest.raises(InstallerError) as failed:
        restart(on)

    assert failed.value.problem.startswith(f"restart {UNIT} ({words})")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("service", [SLOW_START, SLOW_STOP], ids=["while it starts", "while it stops"])
@pytest.mark.parametrize("verb", ["daemon-reexec", "daemon-reload", f"restart {UNIT}"])
def test_a_restart_outlives_what_systemd_does_meanwhile(on: Node, service: str, verb: str) -> None:
    before = start(on, service)

    with meanwhile(on, "systemctl", *verb.split()):
        restart(on)

    of_two = {"deactivating", "activating"} if UNIT in verb else set()
    assert on.show(UNIT, "ActiveState") in {"active", *of_two}
    assert on.show(UNIT, "InvocationID") != before


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("setting", "restarts"),
    [
        ("Requires", True),
        ("BindsTo", True),
        ("PartOf", True),
        ("Requisite", True),
        (systemd.ONLY_STOPS, False),
    ],
)
def test_systemd_restarts_the_units_along_that_we_wait_for(on: Node, setting: str, *, restarts: bool) -> None:
    start(on, WELL)
    other = Path(SLOW).name
    on.write(SLOW, f"[Unit]\n{setting}={UNIT}\nAfter={UNIT}\n[Service]\n{WELL}\nExecStartPre=sleep 1\n")
    on.run(["systemctl", "daemon-reload"])
    on.run(["systemctl", "start", other])
    before = systemd.read_unit(host(on), other)
    began_s = time.time()

    restart(on)

    if restarts:
        assert systemd.read_unit(host(on), other).job, "it is not active yet"
    deadline = time.monotonic() + TIMEOUT_S
    failure = unit_jobs.await_active_again(
        host(on), other, before, began_s=began_s, deadline=deadline, check=lambda: None
    )
    assert failure == ""
    now = systemd.read_unit(host(on), other)
    assert now.active == "active"
    assert (now.invocation != before.invocation) is restarts


def waiting(on: Node) -> str:
    """Start a unit whose stop has to wait for that of another, which takes a second and a half."""
    before = start(on, WELL)
    on.write(SLOW, f"[Unit]\nAfter={UNIT}\n[Service]\n{WELL}\nExecStop=sleep 1.5\n")
    on.run(["systemctl", "daemon-reload"])
    on.run(["systemctl", "start", Path(SLOW).name])
    on.run(["systemctl", "stop", "--no-block", Path(SLOW).name])
    return before


@pytest.mark.sampled(16)
def test_a_restart_that_waits_is_taken_back_when_we_are_stopped(on: Node) -> None:
    before, stop_at = waiting(on), time.monotonic() + 0.5

    def check() -> None:
        if time.monotonic() > stop_at:
            raise StoppedError

    with pytest.raises(StoppedBeforeError):
        unit_jobs.restart(host(on), UNIT, Patience(TIMEOUT_S, check))

    time.sleep(2)
    assert on.show(UNIT, "InvocationID") == before
    assert UNIT not in on.run(["systemctl", "list-jobs"]).stdout


@pytest.mark.sampled(16)
def test_a_reload_that_fails_is_told_though_the_unit_runs_on(on: Node) -> None:
    start(on, f"{WELL}\nExecReload=test -e /run/first")

    with pytest.raises(InstallerError, match=rf"reload {UNIT} \(unit active/running, exit-code\)"):
        unit_jobs.reload(host(on), UNIT, timeout_s=TIMEOUT_S)
    on.write("/run/first", "")
    unit_jobs.reload(host(on), UNIT, timeout_s=TIMEOUT_S)
