"""``run`` is killed, or told to stop, at the effects of its children: the parent, the child, or both at once."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.site import PROJECT, Site

Covered = Callable[[str, str, int, int], None]
POINTS = int(os.environ.get("SUPERVISOR_POINTS", "4"))
# Python loads it before the program: a child of run counts its effects, and strikes at one of them.
HOOK = """
import itertools, os, signal, sys
act, at, who, log = os.environ["CRASH"].split(",")
NAMES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown"}
WRITES = os.O_WRONLY | os.O_RDWR
numbers = itertools.count(1)  # effects of threads are in no order, and each has its own number

def strike(event, arguments):
    if event not in NAMES and not (event == "open" and (arguments[2] or 0) & WRITES):
        return
    os.write(fd, b".")
    if next(numbers) == int(at):
        for pid, number in {
            "child": [(os.getpid(), signal.SIGKILL)],
            "parent": [(os.getppid(), signal.SIGKILL)],
            "both": [(os.getppid(), signal.SIGKILL), (os.getpid(), signal.SIGKILL)],
            "stop": [(os.getppid(), signal.SIGTERM)],
        }[who]:
            os.kill(pid, number)

if act in sys.orig_argv[2:4]:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    sys.addaudithook(strike)
"""


def lived(site: Site, hook: Path, act: str, at: int, who: str) -> tuple[int, int]:
    """Return the exit code of a run that is struck at an effect of a child, and how many that has had."""
    log = hook / "log"
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([str(hook), str(PROJECT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # which would be effects of the first one
        "CRASH": f"{act},{at},{who},{log}",
    }
    with subprocess.Popen(site.command("run"), stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        if any("waiting for a signal" in line for line in run.stderr):
            run.send_signal(signal.SIGTERM if at or act == "stop" else signal.SIGKILL)
        said = run.stderr.read()  # until its children have ended, too
        code = run.wait(60)
    assert "Traceback" not in said
    return code, log.stat().st_size


def undone(site: Site) -> int:
    """Uninstall, once what a killed run has left has come to its end."""
    deadline = time.monotonic() + 30
    while (code := site.call("uninstall").returncode) == 3:
        assert time.monotonic() < deadline
    return code


@pytest.mark.parametrize("who", ["child", "parent", "both"])
@pytest.mark.parametrize("act", ["install", "stop"])
def test_whatever_is_killed_at_an_effect_the_next_uninstall_finishes(
    tmp_path: Path, act: str, who: str, covered: Covered
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    site = Site(tmp_path)
    before = site.tree()
    _, effects = lived(site, tmp_path, act, 0, who)
    assert undone(site) == 0
    points = [1 + at * (effects - 1) // (POINTS - 1) for at in range(POINTS)]

    for at in points:
        code, _ = lived(site, tmp_path, act, at, who)

        assert code == (4 if who == "child" else -signal.SIGKILL), at
        assert undone(site) == 0, at
        assert site.tree() == before, at
    covered(f"{act}: {who} of a run killed", "all", len(points), effects)


def test_a_stop_at_an_effect_of_the_install_undoes_everything(tmp_path: Path, covered: Covered) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    site = Site(tmp_path)
    before = site.tree()
    _, effects = lived(site, tmp_path, "install", 0, "stop")
    assert undone(site) == 0
    points = [1 + at * (effects - 1) // (POINTS - 1) for at in range(POINTS)]

    for at in points:
        code, _ = lived(site, tmp_path, "install", at, "stop")

        assert code == 0, at
        assert site.tree() == before, at
    covered("install: a stop", "all", len(points), effects)
