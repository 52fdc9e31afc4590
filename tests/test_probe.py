"""What a kubelet runs: a yes of its own, and ``status`` for everything else."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.program import as_in_the_image
from tests.support.site import PIDFILE, Site

READY = "run/nvidia/toolkit/ready"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
Child = "subprocess.Popen[str]"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return as_in_the_image(tmp_path / "program")


def probed(image: Path, site: Site, word: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": f"{image}:{os.defpath}", "TOOLKIT_INSTALLER_HOST_ROOT": str(site.root)}
    command = [str(image / "toolkit-probe"), word]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def publish(site: Site, pid: int, boot_id: str = "") -> None:
    """Publish readiness as a run of this pid does that has proven an engine."""
    said = {
        "boot_id": boot_id or BOOT_ID.read_text().strip(),
        "pid": pid,
        "plan": "",
        "engines": [],
        "time": "",
    }
    (site.root / READY).write_text(json.dumps(said) + "\n")


def test_a_run_that_waits_is_alive_and_is_ready_once_it_has_said_so(image: Path, site: Site) -> None:
    with site.running("--on-exit", "keep") as run:
        alive, unproven = probed(image, site, "--alive"), probed(image, site, "--ready")
        publish(site, run.pid)
        proven = probed(image, site, "--ready")

    assert (alive.returncode, proven.returncode, proven.stdout) == (0, 0, "")
    assert unproven.returncode == 1
    assert "it is not known what docker" in unproven.stdout


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda site, _: (site.root / READY).unlink(), id="withdrawn"),
        pytest.param(lambda site, run: publish(site, run.pid, "0" * 36), id="of another boot"),
        pytest.param(lambda site, run: publish(site, run.pid + 1), id="of another process"),
        pytest.param(lambda site, _: (site.root / READY).write_text("{"), id="cut short"),
        pytest.param(lambda site, _: (site.root / PIDFILE).write_text("1\n"), id="a pidfile of another"),
        pytest.param(lambda site, _: (site.root / PIDFILE).unlink(), id="no pidfile"),
    ],
)
def test_readiness_counts_only_of_the_run_that_holds_the_pidfile_in_this_boot(
    image: Path, site: Site, spoil: Callable[[Site, "subprocess.Popen[str]"], object]
) -> None:
    with site.running("--on-exit", "keep") as run:
        publish(site, run.pid)
        run.send_signal(signal.SIGSTOP)  # else it puts right what it sees within two seconds
        spoil(site, run)
        probe = probed(image, site, "--ready")
        run.send_signal(signal.SIGCONT)

    assert probe.returncode == 1
    assert probe.stdout.count("\n") == 1


def test_after_a_kill_nothing_is_ready_or_alive(image: Path, site: Site) -> None:
    with site.running("--on-exit", "keep") as run:
        publish(site, run.pid)
        run.kill()
        run.wait()
        ready, alive = probed(image, site, "--ready"), probed(image, site, "--alive")

    assert (ready.returncode, alive.returncode) == (1, 1)
    assert "start run, or see the log of the last one" in ready.stdout


def test_the_next_run_removes_what_a_killed_one_has_said_before_it_has_its_pid(
    site: Site,
) -> None:
    with site.running("--on-exit", "keep") as killed:
        killed.kill()
        killed.wait()
    with site.running("--on-exit", "keep") as run:
        # In a container each is pid 1: what the one before has said would be that of this one.
        said = (site.root / READY).exists()
        run.kill()
        run.wait()
    publish(site, run.pid)
    with site.running("--on-exit", "keep") as again:
        kept = (site.root / READY).exists()
        again.send_signal(signal.SIGTERM)
        again.wait()

    assert (said, kept) == (False, False)


def test_who_looks_keeps_nobody_out(image: Path, site: Site) -> None:
    assert site.call("install").returncode == 0
    (site.root / PIDFILE).parent.mkdir(parents=True)
    (site.root / PIDFILE).write_text("1\n")
    with (site.root / PIDFILE).open() as pidfile:
        for _ in range(8):
            with subprocess.Popen(
                [image / "toolkit-probe", "--alive"],
                env={"PATH": str(image), "TOOLKIT_INSTALLER_HOST_ROOT": str(site.root)},
            ) as probe:
                while probe.poll() is None:
                    fcntl.flock(pidfile, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody holds it
                    fcntl.flock(pidfile, fcntl.LOCK_UN)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
