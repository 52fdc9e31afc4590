"""What a kubelet runs: a yes of its own, and ``status`` for everything else."""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from installer.probe import AT_WORK
from tests.support.program import as_in_the_image
from tests.support.site import PIDFILE, READY, STATE, Site
from tests.support.waiting import stop, until, until_it_sleeps

NOBODYS_PID = (1 << 22) + 1  # above the kernel's highest


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return as_in_the_image(tmp_path / "program")


def probed(image: Path, site: Site, word: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": f"{image}:{os.defpath}", "TOOLKIT_INSTALLER_HOST_ROOT": str(site.root)}
    command = [str(image / "toolkit-probe"), word]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_run_that_waits_is_alive_and_is_ready_once_it_has_said_so(image: Path, site: Site) -> None:
    with site.running("--on-exit", "keep") as run:
        alive, unproven = probed(image, site, "--alive"), probed(image, site, "--ready")
        site.publish_ready(run.pid)
        proven = probed(image, site, "--ready")

    assert (alive.returncode, proven.returncode, proven.stdout) == (0, 0, "")
    assert unproven.returncode == 1
    assert "it is not known what docker" in unproven.stdout


def test_a_run_is_started_once_it_has_checked_the_node(image: Path, site: Site) -> None:
    with site.running("--on-exit", "keep") as run:
        until_it_sleeps(run.pid)
        started, ready = probed(image, site, "--started"), probed(image, site, "--ready")
        os.utime(site.root / STATE, ns=(0, 0))
        of_another = probed(image, site, "--started")
        stop(run.pid)  # else it looks, and writes that file
        (site.root / STATE).unlink()
        not_yet = probed(image, site, "--started")

    assert (started.returncode, ready.returncode) == (0, 1)
    assert (of_another.returncode, not_yet.returncode) == (1, 1)
    assert of_another.stdout == not_yet.stdout == f"{AT_WORK}\n"


def test_a_node_that_is_not_ready_for_the_problem_of_the_last_check_says_that_problem(
    image: Path, site: Site
) -> None:
    problem = {"code": "waiting-for-turn", "text": "restart containerd (1 at a time)", "remedy": "wait"}
    with site.running("--on-exit", "keep") as run:
        until_it_sleeps(run.pid)
        stop(run.pid)  # else it looks, and writes that file
        site.rewrite(STATE, lambda said: said.update(problem=problem))
        told = probed(image, site, "--ready")
        by_status = site.status("--ready")
        site.rewrite(STATE, lambda said: said.update(pid=NOBODYS_PID))
        of_another = probed(image, site, "--ready")
        site.write(STATE, "{")
        spoilt = probed(image, site, "--ready")
        run.send_signal(signal.SIGCONT)

    assert told.returncode == 1
    assert told.stdout.endswith(": cannot restart containerd (1 at a time); wait\n")
    assert by_status.stdout == told.stdout
    assert (of_another.returncode, spoilt.returncode) == (1, 1)
    assert "1 at a time" not in of_another.stdout


def test_a_node_whose_engines_were_not_asked_says_so_without_a_look_at_the_node(
    image: Path, site: Site
) -> None:
    with site.running("--on-exit", "keep") as run:
        until_it_sleeps(run.pid)
        by_status = site.status("--ready")
        (image / "toolkit-installer").unlink()  # what the probe would become
        told = probed(image, site, "--ready")

    reason = "it is not known what docker or containerd or crio serves "
    assert told.returncode == by_status.returncode == 1
    assert by_status.stdout.startswith(reason)
    assert told.stdout.endswith(f": {by_status.stdout}"), told


def test_readiness_counts_only_of_the_run_that_holds_the_pidfile_in_this_boot(
    image: Path, site: Site
) -> None:
    with site.running("--on-exit", "keep") as run:
        until_it_sleeps(run.pid)
        stop(run.pid)  # else it writes its pidfile again while we ask
        spoilt = (
            (site.root / READY).unlink,
            lambda: site.publish_ready(run.pid, "0" * 36),  # of another boot
            lambda: site.publish_ready(NOBODYS_PID),
            lambda: site.write(READY, "{"),
            lambda: site.write(PIDFILE, "1\n"),
            (site.root / PIDFILE).unlink,
        )
        for spoil in spoilt:
            site.publish_ready(run.pid)
            spoil()
            probe = probed(image, site, "--ready")
            if site.read(PIDFILE):
                site.write(PIDFILE, f"{run.pid}\n")
            assert (probe.returncode, probe.stdout.count("\n")) == (1, 1)
        run.send_signal(signal.SIGCONT)
        until(lambda: site.read(PIDFILE) == f"{run.pid}\n")
        site.publish_ready(run.pid)
    ready, alive = probed(image, site, "--ready"), probed(image, site, "--alive")

    assert (ready.returncode, alive.returncode) == (1, 1)
    assert "start run, or see the log of the last run" in ready.stdout


def test_the_next_run_removes_what_a_killed_one_has_said_before_it_has_its_pid(site: Site) -> None:
    with site.running("--on-exit", "keep") as run:
        pass  # it is killed
    site.publish_ready(
        run.pid
    )  # in a container each is pid 1: what it has said would be that of the next one
    with site.running("--on-exit", "keep"):
        kept = (site.root / READY).exists()

    assert not kept


def test_who_looks_keeps_nobody_out(image: Path, site: Site) -> None:
    site.install()
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
