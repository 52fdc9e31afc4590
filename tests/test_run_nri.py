"""``run`` with the NRI plugin beside it: a process of its own that is kept running, and ends with it."""

import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from installer import supervisor
from installer.supervisor import Sidecar, Supervisor
from tests.support import preloaded
from tests.support.nri import ALLOW, WISH, Engine
from tests.support.site import Site, ended, waits
from tests.support.waiting import runs, stop, until, until_it_sleeps, until_told

BESIDE = ("--nri", *ALLOW)
SOON_S = 30


class Nri(Site):
    """A node with a directory for NRI's socket."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = self.root / "var/run/nri"
        self.directory.mkdir(parents=True)
        self.socket = self.directory / "nri.sock"
        self.state = self.directory / "toolkit-installer.json"
        self.staged_state = self.directory / "toolkit-installer.json.new"
        self.lock = self.directory / "toolkit-installer.pid"

    def served(self, *more: str) -> AbstractContextManager[Any]:
        return self.running(*BESIDE, *more)

    def plugin(self) -> int:
        """Return the pid of the plugin that holds the lock."""
        return int(self.lock.read_text())


@pytest.fixture
def site(tmp_path: Path) -> Nri:
    return Nri(tmp_path)


def _field(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}:")).split()[1]


def test_the_plugin_is_a_process_of_its_own_without_capabilities_that_ends_with_an_undo(site: Nri) -> None:
    with Engine(site.socket) as engine:
        before = site.tree()
        with site.served() as child:
            plugin = engine.plugged()
            given = plugin.create(WISH)
            until_told(site.state, '"registered": true')
            pid, status = site.plugin(), site.status()
            parent = int(_field(pid, "PPid"))
            capable, inherits = _field(pid, "CapEff"), _field(pid, "CapInh")
            files = [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()]
            until_it_sleeps(child.pid)
            child.send_signal(signal.SIGHUP)
            waits(child)
            until_it_sleeps(child.pid)
            still, after_a_check = plugin.create(WISH), site.plugin()
            ended(child)
        assert not runs(pid)
    assert (given["payload"], after_a_check) == (still["payload"], pid)
    assert given["payload"]
    assert parent == child.pid
    assert {capable, inherits} == {"0000000000000000"}
    assert not [path for path in files if "toolkit.pid" in str(path) or path.name == "lock"]
    assert "NRI plugin" in status.stdout
    assert site.tree() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_plugin_that_has_ended_is_started_again_by_the_same_run(site: Nri, number: signal.Signals) -> None:
    with Engine(site.socket) as engine, site.served() as child:
        engine.plugged()
        first = site.plugin()
        os.kill(first, number)
        engine.plugged()

        assert site.plugin() != first
        assert not runs(first)
        assert int(_field(site.plugin(), "PPid")) == child.pid
        assert child.stderr is not None
        if number is signal.SIGKILL:
            assert '"child": "nri"' in next(line for line in child.stderr if "child killed" in line)
        said = next(line for line in child.stderr if "plugin started again" in line)
    assert json.loads(said)["ended"] == ("signal 9" if number is signal.SIGKILL else "exit code 0")


def test_a_plugin_ends_with_a_run_that_is_killed_and_the_next_run_has_its_own(site: Nri) -> None:
    with Engine(site.socket) as engine:
        with site.served() as child:
            engine.plugged()
            first = site.plugin()
            until_it_sleeps(child.pid)
            child.kill()
            child.wait(SOON_S)
        until(lambda: not runs(first))
        with site.served():
            assert engine.plugged().create(WISH)["payload"]
            assert site.plugin() != first


def test_the_files_of_a_plugin_that_had_to_be_killed_are_removed_below_a_root_with_a_blank(
    tmp_path: Path,
) -> None:
    site = Nri(tmp_path / "a disk")
    with Engine(site.socket) as engine:
        before = site.tree()
        with site.served() as child:
            engine.plugged()
            stop(site.plugin())
            site.staged_state.write_text("{")  # it had begun to write the next state
            ended(child)
        assert site.tree() == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "--mode", "nri"), 2, "none is allowed to ask for anything"),
        (("run", *BESIDE, "--nri-socket", "{}/nowhere/nri.sock"), 1, "there is no directory"),
        (("run", "--mode", "nri", "--no-nri", *ALLOW), 2, "over NRI with --no-nri ("),
        (("install", "--mode", "nri", *ALLOW), 2, "it runs as long as run does"),
    ],
    ids=["nobody allowed", "no NRI", "no plugin", "an install has none"],
)
def test_what_cannot_serve_is_refused_before_anything(
    site: Nri, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in site.refuses(*(word.format(site.root) for word in words), code=code)


class Beside(Supervisor):
    """What keeps a child, as the supervisor does: ``code`` for a plugin."""

    def __init__(self, code: str) -> None:
        self._code, self.pids, self.ended = code, list[int](), list[str]()
        self.sidecar = Sidecar("nri", self, probed=True)

    def start(self, verb: str, *more: str, answer: int = -1) -> int:  # noqa: ARG002 - as one that acts
        self.ended += more
        self.pids.append(os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", self._code], {}))
        return self.pids[-1]

    def turn(self) -> None:
        """Do what the supervisor does whenever it wakes."""
        self.sidecar.keep(time.monotonic())
        if not self.sidecar.pid:
            return
        # This child alone: the process of the tests may have others.
        pid, status = os.waitpid(self.sidecar.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            self.sidecar.note(status, time.monotonic())


def test_a_plugin_that_should_be_there_and_is_not_is_told_until_somebody_uninstalls(site: Nri) -> None:
    why = "has ended, last seen"
    with Engine(site.socket) as engine:
        before = site.tree()
        with site.served() as child:
            engine.plugged()
            state = until_told(site.state, '"registered": true')
            until_it_sleeps(child.pid)
            plugin = site.plugin()
            stop(plugin)
            child.kill()  # and the kernel kills its plugin with it
            child.wait(SOON_S)
            until(lambda: not runs(plugin))
        said, ready = site.status(), site.status("--ready")
        found = _nri_check(site)
        site.state.unlink()  # as by a reboot
        without, again = site.status(), _nri_check(site)
        site.state.write_text(state)
        undone, after = site.call("uninstall"), site.status()

    assert "BAD NRI plugin" in said.stdout
    assert why in said.stdout
    assert "start run again, or uninstall" in said.stdout
    assert (said.returncode, ready.returncode) == (1, 1)
    assert (found["level"], why in found["found"]) == ("bad", True)
    assert "does not run: containers that ask for devices" in without.stdout
    assert (without.returncode, again["level"]) == (1, "bad")
    assert undone.returncode == 0
    assert after.stdout == "nothing is installed\n"
    assert site.tree() == before


def test_a_stop_leaves_nothing_of_a_plugin_that_hangs(site: Nri) -> None:
    with Engine(site.socket) as engine:
        before = site.tree()
        with site.served() as child:
            engine.plugged()
            until_it_sleeps(child.pid)
            stop(site.plugin())
            ended(child)
        assert site.tree() == before


def _nri_check(site: Nri) -> dict[str, Any]:
    said = preloaded.run([*site.command("status")[:3], "doctor", "--json", "--host-root", str(site.root)])
    checks = json.loads(said.stdout)["checks"]
    return next(check for check in checks if check["name"] == "nri-plugin")


def test_a_plugin_that_hangs_is_ended_and_another_takes_its_place(site: Nri) -> None:
    figures = site.root / "metrics/toolkit.prom"
    figures.parent.mkdir()
    with Engine(site.socket) as engine, site.served("--metrics-textfile", "/metrics/toolkit.prom") as child:
        engine.plugged()
        until_told(figures, "toolkit_installer_nri_plugin_registered 1.0\n")
        until_it_sleeps(child.pid)
        stop(site.plugin())
        plugin = engine.plugged()
        given = plugin.create(WISH)
        assert child.stderr is not None
        again = next(line for line in child.stderr if "plugin started again" in line)
        until_told(figures, "toolkit_installer_nri_plugin_ends_total 1.0\n")
        counted = until_told(figures, "toolkit_installer_nri_plugin_registered 1.0\n")

    assert "toolkit_installer_nri_missed_containers 0.0\n" in counted
    assert given["payload"]
    assert json.loads(again)["ended"] == "killed because it hung"


STOPPED = "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(100)"
LOOPS = "while True: pass"
LIVES = "import time\nwhile True: time.sleep(0.1)"


@pytest.mark.parametrize(
    ("code", "hangs"),
    [
        pytest.param(STOPPED, True, id="stopped"),
        pytest.param(LOOPS, True, id="in a loop"),
        pytest.param(LIVES, False, id="it lives"),
    ],
)
def test_one_that_gives_no_sign_of_life_is_ended(
    monkeypatch: pytest.MonkeyPatch, code: str, *, hangs: bool
) -> None:
    monkeypatch.setattr(supervisor, "ASK_S", 0.5)
    monkeypatch.setattr(supervisor, "ANSWER_S", 0.5)
    beside, until_s = Beside(code), time.monotonic() + 4

    while time.monotonic() < until_s and len(beside.pids) < 2:
        beside.turn()
        time.sleep(0.01)
    beside.sidecar.end()

    assert beside.ended == (["-", supervisor.HUNG] if hangs else ["-"])
