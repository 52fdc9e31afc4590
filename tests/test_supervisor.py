"""``run`` as a supervisor: small, with its locks, and the parent of all that acts."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.lifecycle.install import HUNG_S, find_hung_s
from installer.model.options import AUTO, Options
from installer.supervisor import WAITING, Supervisor
from tests.support import preloaded
from tests.support.looks import asked
from tests.support.site import (
    CONTAINERD,
    DAEMON_JSON,
    HOME,
    PIDFILE,
    PROJECT,
    STATE,
    TOOLKIT,
    Site,
    ended,
    waits,
)
from tests.support.stand_in import CONFIGS
from tests.support.waiting import acts, children, command_line, runs, stop, until, until_it_sleeps


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


def test_what_was_asked_for_is_read_once_and_a_hangup_during_a_check_is_kept(clean: Site) -> None:
    with clean.running(env={"TOOLKIT_INSTALLER_RUNTIME_NAME": "other"}) as child:
        until_it_sleeps(child.pid)
        (clean.root / f"{PIDFILE}.options").unlink()  # it has it open
        clean.write(DAEMON_JSON, "{}\n")
        child.send_signal(signal.SIGHUP)
        until(lambda: "asked" in acts(child.pid))
        child.send_signal(signal.SIGHUP)
        waits(child)
        waits(child)
        repaired = json.loads(clean.read(DAEMON_JSON))["runtimes"]
        clean.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
        ended(child)
    assert "other" in repaired


def test_a_run_that_may_open_few_files_installs_and_undoes(clean: Site) -> None:
    command = ["prlimit", "--nofile=64:64", *clean.command("run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT) as child:
        waits(child)
        ended(child)


def kill_child(pid: int, act: str, word: str = "") -> str:
    """Kill the child of a run that does this, with a word, and return what of that is in the log."""

    def killed() -> bool:
        for each in children(pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # another one has ended
                words = command_line(each)
                if act in words and word in words:
                    os.kill(each, signal.SIGKILL)
                    return True
        return False

    until(killed)
    return f'{{"child": "{act}", "reason": "signal 9", "event": "child killed", "level": "warning"'


def test_an_undo_that_is_killed_is_done_once_more_without_what_is_optional(clean: Site) -> None:
    with clean.running() as child:
        until_it_sleeps(child.pid)
        child.terminate()
        event = kill_child(child.pid, "stop")
        said = ended(child, code=4)

    assert event in said
    assert '"undo started again"' in said
    assert json.loads(said.splitlines()[-1])["code"] == "undo-killed"
    assert {name: clean.read(name) for name in CONFIGS} == CONFIGS
    assert (clean.root / TOOLKIT).exists(), "what else starts it was not searched"
    clean.uninstall()


def test_an_undo_that_is_killed_twice_is_said_and_the_next_one_finishes(clean: Site) -> None:
    with clean.running() as child:
        until_it_sleeps(child.pid)
        child.terminate()
        event = kill_child(child.pid, "stop", "first")
        kill_child(child.pid, "stop", "again")
        said = ended(child, code=4)

    assert said.count(event) == 2
    assert "cannot finish the undo (it has ended with signal 9), so what is left is kept" in said
    clean.uninstall()


def test_an_install_that_is_killed_is_said(clean: Site) -> None:
    command = clean.command("run")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT) as child:
        event = kill_child(child.pid, "install")
        said = child.communicate(timeout=60)[1]

    assert (child.returncode, event in said) == (4, True)
    assert (
        "cannot finish the install (it has ended with signal 9), so what is left is kept; run it again"
        in said
    )
    clean.uninstall()


def test_a_check_that_was_asked_for_and_is_killed_is_done_once_more(clean: Site) -> None:
    with clean.running("--drift", "report") as child:
        until_it_sleeps(child.pid)
        clean.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
        child.send_signal(signal.SIGHUP)
        event = kill_child(child.pid, "asked")
        until(lambda: "nvidia" in clean.read(DAEMON_JSON))
        assert event in ended(child)


def test_a_child_that_cannot_be_started_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    fds = [str(os.memfd_create("lock")) for _ in range(2)]
    words = ["/pidfile", fds[0], "/lock", fds[1], "/dev/null", "4", "300", "", "text", "0", "/nowhere"]
    os.waitpid(Supervisor(words).start("check"), 0)

    said = 'warning: child not started child=check reason="No such file or directory"\n'
    assert capfd.readouterr().err == said


# Python loads it before the program: the installing child does not begin before a file is there.
BEGINS_LATE = """
import os, sys, time

while "install" in sys.orig_argv[2:4] and not os.path.exists({go!r}):
    time.sleep(0.01)
"""


@contextmanager
def orphan_that_begins(site: Site) -> Iterator[Callable[[], None]]:
    """Kill a run while its installing child starts; yield what lets that child go on, and see it end."""
    go = site.root.parent / "go"
    (site.root.parent / "sitecustomize.py").write_text(BEGINS_LATE.format(go=str(go)))
    places = os.pathsep.join([str(site.root.parent), str(PROJECT)])
    environment = preloaded.ENVIRONMENT | {"PYTHONPATH": places}
    with subprocess.Popen(site.command("run"), stderr=subprocess.DEVNULL, env=environment) as run:
        until(lambda: "install" in acts(run.pid))
        (orphan,) = children(run.pid)
        run.kill()
    try:
        yield go.touch
    finally:
        go.touch()
        until(lambda: not runs(orphan))


def test_an_installing_child_whose_run_is_killed_while_it_starts_installs_nothing(clean: Site) -> None:
    for _ in range(3):
        with orphan_that_begins(clean):
            pass
        assert {name: clean.read(name) for name in CONFIGS} == CONFIGS
        assert not (clean.root / TOOLKIT).exists()
    clean.uninstall()


def test_an_uninstall_waits_for_the_child_of_a_killed_run(clean: Site) -> None:
    with orphan_that_begins(clean) as go_on:
        command = clean.command("uninstall")
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT
        ) as uninstall:
            assert uninstall.stderr is not None
            begun = uninstall.stderr.readline()
            go_on()
            said = begun + uninstall.stderr.read()

    assert "waiting for another instance" in begun
    assert uninstall.returncode == 0, said


def test_an_uninstall_that_waits_for_the_child_of_a_killed_run_can_be_stopped(clean: Site) -> None:
    with orphan_that_begins(clean):
        command = clean.command("uninstall")
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT
        ) as uninstall:
            assert uninstall.stderr is not None
            assert "waiting for another instance" in uninstall.stderr.readline()
            said = ended(uninstall, signal.SIGINT, code=1)
    assert "finish (stopped by a signal)" in said
    clean.uninstall()


def test_a_run_that_is_stopped_before_it_holds_the_ledger_undoes_an_earlier_install(clean: Site) -> None:
    clean.install()

    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, [signal.SIGTERM]
    )  # the run inherits it: no stop is too early
    try:
        run = subprocess.Popen(
            clean.command("run"), stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with run:
        said = ended(run)

    assert "undo complete" in said


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
    clean: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = clean.root.parent / "copy"
    shutil.copytree(PROJECT / "installer", copy / "installer")
    text = (copy / "installer/lifecycle/install.py").read_text()
    usual = "\nHUNG_S: Final = 300.0 "
    assert usual in text
    (copy / "installer/lifecycle/install.py").write_text(text.replace(usual, "\nHUNG_S: Final = 8.0 "))
    (copy / "sitecustomize.py").write_text(HANGS)
    monkeypatch.chdir(copy)
    with clean.running(env={"PYTHONPATH": str(copy)}) as child:
        for name in (DAEMON_JSON, CONTAINERD):
            clean.write(name, CONFIGS[name])
        child.send_signal(signal.SIGHUP)
        assert child.stderr is not None
        said = list[tuple[str, str]]()
        while ("drift repaired", "") not in said:
            line = json.loads(child.stderr.readline())
            said.append((line["event"], line.get("path", "")))
        ended(child)
    found, written = ("drift found", ""), "config written"
    assert said[:-1] == [found, (written, f"/{DAEMON_JSON}"), found, (written, f"/{CONTAINERD}")]


# Python loads it before the program: a check that was asked for hangs where it reads, or for six seconds where it
# renames, whatever signal comes.
HANGS_FOR_LONG = """
import os, sys, time

def hang(event, arguments):
    if event == {event!r} and str(arguments[{argument}]).endswith("daemon.json"):
        os.close(os.open({mark!r}, os.O_CREAT | os.O_WRONLY))
        time.sleep({seconds})

if "asked" in sys.orig_argv[2:4]:
    sys.addaudithook(hang)
"""
GRACE_S = 20  # of a pod's 30 s


def test_a_check_that_waits_for_engines_as_long_as_asked_for_does_not_count_as_hung() -> None:
    usual = Options(engines=("docker", "containerd"))

    assert find_hung_s(usual) == find_hung_s(replace(usual, timeout_s=1.0)) == HUNG_S
    # Each of both engines may be waited for before, after its restart, and after a roll-back.
    patient = replace(usual, timeout_s=usual.timeout_s + 900.0)
    assert find_hung_s(patient) == HUNG_S + 2 * 5 * 900.0
    assert find_hung_s(replace(patient, engines=(AUTO,))) == HUNG_S + len(ENGINES) * 5 * 900.0


@pytest.mark.parametrize(("hung_s", "is_ended"), [(1.0, True), (60.0, False)])
def test_a_check_is_ended_after_the_time_that_run_was_given(
    tmp_path: Path, hung_s: float, *, is_ended: bool
) -> None:
    node = Supervised(tmp_path, hung_s)
    node.answers(0)
    with node.running() as run:
        node.until("install")
        (tmp_path / "lasts").write_text("6")
        run.send_signal(signal.SIGHUP)
        until(lambda: node.acts[1:], lambda: node.acts)
        time.sleep(9)

        assert (tmp_path / "lasted").exists() is not is_ended


# A child of a supervisor: it notes its words and when, answers as the file ``next`` says, and ends with that code.
CHILD = """
import json, os, sys, time
verb, _, fds, _, _, *more = sys.argv[1:]
code, due_s = json.loads(open("next").read())
place = os.path.abspath("watched")
sys.path.insert(0, {project!r})
from installer.watch import PATH, Watch, fingerprint
places = [(PATH, place)]
answer = Watch(places, baseline=fingerprint(places), due_s=due_s, sidecars="")
os.pwrite(int(fds.split()[0]), b"0" + answer.encode(), 0)
with open("acts", "a") as acts:
    acts.write(" ".join([verb, *more[:1]]) + "\\n")
if verb != "stop" and os.path.exists("lasts"):
    lasts_s = float(open("lasts").read())
    os.unlink("lasts")
    time.sleep(lasts_s)
    open("lasted", "w").close()
sys.exit(0 if verb == "stop" else code)
"""


class Supervised:
    """A supervisor whose children are the one above, in a directory."""

    def __init__(self, place: Path, hung_s: float = 300.0) -> None:
        self.place = place
        self.hung_s = hung_s
        (place / "child.py").write_text(CHILD.format(project=str(PROJECT)))
        (place / "watched").touch()
        self.answers(WAITING)

    def answers(self, code: int, due_s: float = 0) -> None:
        (self.place / "new").write_text(json.dumps([code, due_s]))
        (self.place / "new").rename(self.place / "next")

    def fails_in(self, seconds: float) -> None:
        """Let the next child end with 1 after some seconds."""
        self.answers(1)
        (self.place / "lasts").write_text(str(seconds))

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        held = [os.open(self.place / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("pid", "lock")]
        words = [str(self.place / "pid"), str(held[0]), str(self.place / "lock"), str(held[1]), os.devnull]
        words += ["4", f"{self.hung_s:g}", "", "text", "0", sys.executable, str(self.place / "child.py")]
        program = "import sys; from installer.supervisor import Supervisor; sys.exit(Supervisor(sys.argv[1:]).run())"
        command = [sys.executable, "-c", program, *words]
        environment = {"PYTHONPATH": str(PROJECT)}
        with subprocess.Popen(command, cwd=self.place, pass_fds=held, env=environment) as run:
            try:
                yield run
            finally:
                run.kill()
                for fd in held:
                    os.close(fd)

    @property
    def acts(self) -> list[str]:
        acts = self.place / "acts"
        return acts.read_text().splitlines() if acts.exists() else []

    def until(self, *acts: str) -> None:
        until(lambda: self.acts == [*acts], lambda: self.acts)


def test_an_install_that_waits_is_tried_again_at_a_change_on_a_hangup_and_when_it_has_said(
    tmp_path: Path,
) -> None:
    node = Supervised(tmp_path)
    with node.running() as run:
        node.until("install")
        time.sleep(3)
        assert node.acts == ["install"], "nothing has changed"

        (tmp_path / "watched").write_text("restarted")
        node.until("install", "install check")
        node.answers(WAITING, 1.5)
        run.send_signal(signal.SIGHUP)
        node.until("install", "install check", "install asked")
        node.answers(0)
        node.until("install", "install check", "install asked", "install check")

        run.send_signal(signal.SIGHUP)
        node.until("install", "install check", "install asked", "install check", "asked")
        run.terminate()
        assert run.wait(10) == 0
    assert node.acts[-1].startswith("stop")


def test_a_run_that_is_stopped_while_its_install_waits_ends_at_once(tmp_path: Path) -> None:
    node = Supervised(tmp_path)
    with node.running() as run:
        node.until("install")
        began = time.monotonic()
        run.terminate()
        assert run.wait(10) == 0
    assert time.monotonic() - began < 5
    assert node.acts[1].startswith("stop")


@pytest.mark.parametrize("code", [1, 4])
def test_a_run_whose_install_fails_after_a_wait_ends_as_if_it_had_not_waited(
    tmp_path: Path, code: int
) -> None:
    node = Supervised(tmp_path)
    with node.running() as run:
        node.until("install")
        node.answers(code)
        run.send_signal(signal.SIGHUP)
        assert run.wait(10) == code
    assert node.acts == ["install", "install asked"], "the child has cleaned up after itself"


@pytest.mark.parametrize("waits", [False, True], ids=["first", "after a wait"])
def test_a_run_that_is_stopped_while_its_install_fails_undoes_an_earlier_one(
    tmp_path: Path, *, waits: bool
) -> None:
    node = Supervised(tmp_path)
    tries = ["install"]
    if not waits:
        node.fails_in(2)
    with node.running() as run:
        node.until(*tries)
        if waits:
            node.fails_in(2)
            run.send_signal(signal.SIGHUP)
            tries.append("install asked")
            node.until(*tries)
        run.terminate()
        assert run.wait(10) == 0
    assert node.acts[: len(tries)] == tries
    assert node.acts[len(tries)].startswith("stop")


@contextmanager
def hanging(site: Site, event: str, argument: int, seconds: float) -> Iterator["subprocess.Popen[str]"]:
    """Yield a run whose check hangs at an effect on daemon.json."""
    mark = site.root.parent / "mark"
    text = HANGS_FOR_LONG.format(event=event, argument=argument, mark=str(mark), seconds=seconds)
    (site.root.parent / "sitecustomize.py").write_text(text)
    places = os.pathsep.join([str(site.root.parent), str(PROJECT)])
    with site.running(env={"PYTHONPATH": places}) as run:
        site.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
        run.send_signal(signal.SIGHUP)
        until(mark.exists)
        yield run


def test_a_check_that_does_not_end_is_killed_and_the_stop_undoes_everything_in_time(clean: Site) -> None:
    with hanging(clean, "open", 0, 3600) as run:
        began = time.monotonic()
        said = ended(run)
    assert time.monotonic() - began < GRACE_S
    assert '{"child": "asked", "reason": "signal 9", "event": "child killed"' in said
    assert "undo complete" in said


def test_a_check_that_hangs_within_a_step_is_not_killed_by_a_stop(clean: Site) -> None:
    with hanging(clean, "os.rename", 1, 6) as run:
        said = ended(run)
    assert "child killed" not in said
    assert said.index('"config written"') < said.index("undo complete")


@pytest.mark.parametrize("act", ["asked", "install"])
def test_a_child_that_was_stopped_goes_on_at_a_stop_and_everything_is_undone(clean: Site, act: str) -> None:
    command = clean.command("run")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=preloaded.ENVIRONMENT) as run:
        if act == "asked":
            waits(run)
            clean.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
            run.send_signal(signal.SIGHUP)
        until(lambda: act in acts(run.pid))
        for each in children(run.pid):
            stop(each)
        began = time.monotonic()
        said = ended(run)
    assert time.monotonic() - began < GRACE_S
    assert "undo complete" in said


def test_a_terminal_interrupts_again_and_again_and_everything_is_undone(clean: Site) -> None:
    command, environment = clean.command("run"), preloaded.ENVIRONMENT
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        waits(child)
        for _ in range(3):  # as a terminal does it, to all that run in it
            os.killpg(child.pid, signal.SIGINT)
            time.sleep(0.05)
        said = child.communicate(timeout=60)[1]

    assert child.returncode == 0, said
    assert said.count("undo complete") == 1


def test_a_stop_that_keeps_leaves_everything_but_pidfile_and_readiness(site: Site) -> None:
    with site.running("--on-exit", "keep") as child:
        during = site.tree()
        ended(child)
    assert set(during) - set(site.tree()) == {PIDFILE, STATE, f"{PIDFILE}.options"}
    site.uninstall()


def test_a_check_that_cannot_even_begin_answers_at_once(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / "usr/local/nvidia").chmod(0o777)
        done = asked(site)
        (site.root / "usr/local/nvidia").chmod(0o755)

    assert done.returncode == 1
    assert "follow the link /usr/local/nvidia/toolkit (a user other than root could have" in done.stderr
