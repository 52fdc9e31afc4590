"""``run`` as a supervisor: small, with its locks, and the parent of all that acts."""

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.site import (
    CONTAINERD,
    DAEMON_JSON,
    HOME,
    LEDGER,
    PIDFILE,
    PROJECT,
    STATE,
    Site,
    ended,
    waits,
)
from tests.support.stand_in import CONFIGS
from tests.support.waiting import acts, command_line, until, until_it_sleeps


def test_run_waits_in_a_bare_interpreter_and_holds_both_locks_for_its_life(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)

        words, below = command_line(child.pid), set[str]()
        for path in Path(f"/proc/{child.pid}/fd").iterdir():
            with suppress(FileNotFoundError, ValueError):  # closed since it was listed, or not of the node
                below.add(str(path.readlink().relative_to(site.root)))
        options = site.root / f"{PIDFILE}.options"
        mode, told = stat.S_IMODE(options.stat().st_mode), json.loads(options.read_text())["options"]
        other = site.call("install")
        elsewhere = site.call("run", "--install-dir", "/opt/other")
        (site.root / PIDFILE).unlink()
        until(lambda: site.read(PIDFILE) == f"{child.pid}\n")  # it is there again
        alive = site.status("--alive").returncode
        ended(child)
    assert words[1:3] == ["-I", "-S"]
    assert below == {PIDFILE, f"{PIDFILE}.options", f"{HOME}/lock"}
    assert (mode, told["host_root"]) == (0o600, str(site.root))
    assert (other.returncode, elsewhere.returncode, alive) == (3, 3, 0)


def test_what_was_asked_for_is_read_once_and_a_hangup_during_a_check_is_kept(site: Site) -> None:
    before = site.tree()
    with site.running(env={"TOOLKIT_INSTALLER_RUNTIME_NAME": "other"}) as child:
        until_it_sleeps(child.pid)
        (site.root / f"{PIDFILE}.options").unlink()  # it has it open
        site.write(DAEMON_JSON, "{}\n")
        child.send_signal(signal.SIGHUP)
        until(lambda: "asked" in acts(child.pid))
        child.send_signal(signal.SIGHUP)
        waits(child)
        waits(child)
        repaired = json.loads(site.read(DAEMON_JSON))["runtimes"]
        site.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
        ended(child)
    assert "other" in repaired
    assert site.tree() == before


def test_an_undo_that_is_killed_is_said_and_the_next_one_finishes(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        until_it_sleeps(child.pid)
        child.terminate()
        until(lambda: "stop" in acts(child.pid))
        for each in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
            if "stop" in command_line(int(each)):
                os.kill(int(each), signal.SIGKILL)
        said = ended(child, code=4)

    assert "cannot start the undo (it has ended with -9), so everything is kept" in said
    site.uninstall()
    assert site.tree() == before


# Python loads it before the program: a check that was asked for hangs within its first step until it is told to end.
HANGS = """
import signal, sys, time

def hang(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("daemon.json"):
        for _ in range(3000):
            time.sleep(0 if signal.SIGTERM in signal.sigpending() else 0.01)

if "asked" in sys.orig_argv[2:4]:
    sys.addaudithook(hang)
"""


def test_a_check_that_hangs_is_ended_after_its_step_and_the_next_one_does_the_rest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.tree()
    copy, configs = site.root.parent / "copy", [DAEMON_JSON, CONTAINERD]
    shutil.copytree(PROJECT / "installer", copy / "installer")
    text = (copy / "installer/supervisor.py").read_text()
    assert " HUNG_S = 2.0, 1.0, 10.0, 120.0, 300.0\n" in text
    (copy / "installer/supervisor.py").write_text(text.replace(" 300.0\n", " 3.0\n"))
    (copy / "sitecustomize.py").write_text(HANGS)
    monkeypatch.chdir(copy)
    with site.running(env={"PYTHONPATH": str(copy)}) as child:
        for name in configs:
            site.write(name, CONFIGS[name])
        child.send_signal(signal.SIGHUP)
        assert child.stderr is not None
        said = list[tuple[str, str]]()
        while ("drift repaired", "") not in said:
            line = json.loads(child.stderr.readline())
            said.append((line["event"], line.get("path", "")))
        ended(child)
    assert said == [
        ("drift found", ""),
        ("config written", f"/{configs[0]}"),
        ("drift found", ""),
        ("config written", f"/{configs[1]}"),
        ("drift repaired", ""),
    ]
    assert site.tree() == before


def test_a_terminal_interrupts_once_and_everything_is_undone(site: Site) -> None:
    before = site.tree()
    ours, theirs = os.openpty()
    with subprocess.Popen(
        site.command("run", "--log-format", "json"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=preloaded.ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread runs
    ) as child:
        os.close(theirs)
        said = b""
        while b"waiting for a signal" not in said:
            said += os.read(ours, 1 << 16)
        for _ in range(3):
            os.write(ours, b"\x03")
            time.sleep(0.05)
        with suppress(OSError):  # its end
            while part := os.read(ours, 1 << 16):
                said += part
        code = child.wait(30)
    os.close(ours)

    assert code == 0, said
    assert said.count(b"undo complete") == 1
    assert site.tree() == before


def test_as_pid_1_it_reaps_whatever_is_left_to_it_and_undoes(site: Site) -> None:
    before = site.tree()
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *site.command("run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT) as outer:
        waits(outer)
        (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        until_it_sleeps(int(inner))
        orphan = "(sleep 0.1; true) & true"
        subprocess.run(["nsenter", "--target", inner, "--pid", "sh", "-c", orphan], check=True)
        time.sleep(0.5)
        left = Path(f"/proc/{inner}/task/{inner}/children").read_text().split()
        os.kill(int(inner), signal.SIGTERM)

        assert outer.wait(30) == 0
    assert left == []
    assert site.tree() == before


def test_a_program_that_is_gone_when_it_is_needed_is_said_and_uninstall_finishes(site: Site) -> None:
    before = site.tree()
    python = site.root.parent / "python3"
    python.symlink_to(Path(sys.executable).resolve())
    packages = preloaded.ENVIRONMENT | {
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)])
    }
    command = [str(python), *site.command("run")[1:]]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=packages) as child:
        waits(child)
        until_it_sleeps(child.pid)
        python.unlink()
        said = ended(child, code=4)
    assert said.endswith("put it back and run uninstall\n")
    assert (site.root / LEDGER).exists()
    site.uninstall()
    assert site.tree() == before


def test_a_stop_that_keeps_leaves_everything_but_pidfile_and_readiness(site: Site) -> None:
    with site.running("--on-exit", "keep") as child:
        during = site.tree()
        ended(child)
    assert set(during) - set(site.tree()) == {PIDFILE, STATE, f"{PIDFILE}.options"}
    site.uninstall()


def test_who_carries_an_undo_on_has_a_copy_of_the_options_and_the_environment_of_the_run(site: Site) -> None:
    before = site.tree()
    copy = site.root.parent / "copy"
    with site.running("--on-exit", "keep") as child:
        shutil.copy(site.root / f"{PIDFILE}.options", copy)
        # As the unit of systemd's does it, while run awaits that it has the ledger.
        start = str(PROJECT / "installer/start.py")
        again = [sys.executable, start, "undo", str(copy), "", "0"]
        command = [sys.executable, "-I", "-S", start, "successor", str(child.pid), *again]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as unit:
            ended(child)
            assert unit.stderr is not None
            said = unit.stderr.read()

    assert unit.returncode == 0, said
    assert "undo complete" in said
    assert not copy.exists()
    assert site.tree() == before


def test_a_check_that_cannot_even_begin_answers_at_once(site: Site) -> None:
    command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root)]
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / "usr/local/nvidia").chmod(0o777)
        done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False)
        (site.root / "usr/local/nvidia").chmod(0o755)
        child.kill()
        child.wait()

    assert done.returncode == 1
    assert "follow the link /usr/local/nvidia/toolkit (a user other than root could have" in done.stderr
