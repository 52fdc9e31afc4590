"""How ``run`` waits: small, with its locks, and able to come back as itself."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from installer.host import waiter, waiting
from tests.support.site import DAEMON_JSON, LEDGER, PIDFILE, PROJECT, STATE, Site, waits
from tests.support.waiting import command_line, until_it_sleeps

ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _open_files(pid: int) -> list[Path]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found.append(path.readlink())
    return found


def test_the_same_process_waits_in_a_bare_interpreter_and_holds_both_locks(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)

        words = command_line(child.pid)
        below = [path for path in _open_files(child.pid) if path.is_relative_to(site.root)]
        held = sorted(str(path.relative_to(site.root)) for path in below if path.is_file())
        watched = {str(path.relative_to(site.root)) for path in below if path.is_dir()}
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        other = site.call("install")
        elsewhere = site.call("run", "--install-dir", "/opt/other")
        child.terminate()

        assert child.wait(30) == 0
    assert words[1:3] == ["-I", "-S"]
    assert "lib-dynload" not in maps, "what is loaded to wait is in the interpreter itself"
    assert held == [PIDFILE, "usr/local/nvidia/.toolkit-installer/lock"]
    assert watched >= {"etc/docker", "etc/containerd", "etc/crio", "usr/local/nvidia"}
    assert (other.returncode, elsewhere.returncode) == (3, 3)


def test_the_waiter_runs_as_python_has_compiled_it(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)

        assert command_line(child.pid)[3].endswith(".pyc")
        child.kill()


def test_what_was_compiled_of_another_text_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "waiter.py"
    later.write_bytes(Path(waiter.__file__).read_bytes())
    assert waiting.script(waiter) != Path(waiter.__file__)

    monkeypatch.setattr(waiter, "__file__", str(later))

    assert waiting.script(waiter) == later


def test_every_hangup_finds_the_full_program_again(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        for _ in range(3):
            until_it_sleeps(child.pid)
            (site.root / DAEMON_JSON).write_text("{}\n")
            child.send_signal(signal.SIGHUP)
            waits(child)
            assert "nvidia" in (site.root / DAEMON_JSON).read_text()
        assert (site.root / PIDFILE).read_text() == f"{child.pid}\n"
        (site.root / DAEMON_JSON).write_bytes(bytes.fromhex(before[DAEMON_JSON].split()[1]))
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


def test_a_broken_pipe_is_no_reason_to_end(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        until_it_sleeps(child.pid)
        child.send_signal(signal.SIGPIPE)
        time.sleep(0.2)
        assert child.poll() is None
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


def test_a_stop_before_the_waiter_is_there_is_not_lost(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        child.terminate()  # its line is out, its new image perhaps not yet

        assert child.wait(30) == 0
    assert site.tree() == before


def test_a_program_that_is_gone_when_it_is_needed_is_said_and_uninstall_finishes(site: Site) -> None:
    before = site.tree()
    python = site.root.parent / "python3"
    python.symlink_to(Path(sys.executable).resolve())
    packages = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)])}
    command = [str(python), *site.command("run")[1:]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=packages) as child:
        waits(child)
        until_it_sleeps(child.pid)
        python.unlink()
        child.terminate()
        assert child.stderr is not None
        said = child.stderr.read()

        assert child.wait(30) == 4
    assert said.endswith("put it back and run uninstall\n")
    assert (site.root / LEDGER).exists()
    assert site.call("uninstall").returncode == 0
    assert site.tree() == before


def test_a_stop_that_keeps_leaves_everything_but_pidfile_and_readiness(site: Site) -> None:
    with site.running("--on-exit", "keep") as child:
        during = site.tree()
        child.terminate()

        assert child.wait(30) == 0
    assert set(during) - set(site.tree()) == {PIDFILE, STATE}
    assert site.call("uninstall").returncode == 0


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_streams_that_were_closed_before_the_start_are_survived(site: Site, closed: str) -> None:
    before = site.tree()
    streams = " ".join(f"{fd}>&-" for fd in closed)
    for verb in ("install", "uninstall"):
        command = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *site.command(verb)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, env=ENVIRONMENT)

        assert done.returncode == 0, done.stderr
    assert site.tree() == before
