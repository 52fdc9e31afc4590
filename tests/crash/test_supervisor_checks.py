"""``run`` is killed, or told to stop, at the effects of its children: the parent, the child, or both at once."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.preloaded import ENVIRONMENT
from tests.support.site import DAEMON_JSON, PROJECT, Site, waits
from tests.support.waiting import until

KILLED = -signal.SIGKILL
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


def lived(site: Site, act: str, at: int, who: str) -> tuple[int, int]:
    """Return the exit code of a run that is struck at an effect of a child, and how many that has had.

    While it waits somebody takes our keys out of a config and asks for a check, where that is the ``act``.
    """
    hook = site.root.parent
    log, config = hook / "log", site.root / DAEMON_JSON
    environment = ENVIRONMENT | {
        "PYTHONPATH": os.pathsep.join([str(hook), str(PROJECT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # which would be effects of the first one
        "CRASH": f"{act},{at},{who},{log}",
    }
    before = config.read_bytes()
    log.write_bytes(b"")

    def mended() -> bool:
        """Tell so of what a killed child has left to the next check, at which nobody strikes."""
        return log.stat().st_size >= at and (who != "child" or config.read_bytes() != before)

    with subprocess.Popen(site.command("run"), stderr=subprocess.PIPE, text=True, env=environment) as run:
        try:
            assert run.stderr is not None
            if any("waiting for a signal" in line for line in run.stderr):
                if act == "asked":
                    config.write_bytes(before)
                    run.send_signal(signal.SIGHUP)
                    until(mended) if at else waits(run)
                run.send_signal(signal.SIGTERM if at or act == "stop" else signal.SIGKILL)
            said = run.stderr.read()  # until its children have ended, too
            code = run.wait(60)
        finally:
            run.kill()
    assert "Traceback" not in said
    return code, log.stat().st_size


def undone(site: Site) -> int:
    """Uninstall, once what a killed run has left has come to its end."""
    codes = list[int]()

    def ended() -> bool:
        codes.append(site.call("uninstall").returncode)
        return codes[-1] != 3

    until(ended)
    return codes[-1]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("act", "who", "wanted"),
    [
        *((act, who, KILLED) for act in ("install", "stop", "asked") for who in ("parent", "both")),
        ("install", "child", 4),
        ("stop", "child", 4),
        ("asked", "child", 0),  # the next check repairs what a killed one has left
        ("install", "stop", 0),
        ("asked", "stop", 0),
    ],
)
def test_after_a_kill_at_any_effect_run_or_the_next_uninstall_undoes_everything(
    tmp_path: Path, act: str, who: str, wanted: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    site = Site(tmp_path)
    before = site.tree()
    _, effects = lived(site, act, 0, who)
    assert undone(site) == 0

    least = effects
    # The first effect, the last, and some between them.
    for at in sorted({1 + at * (effects - 1) // (POINTS - 1) for at in range(POINTS)}):
        code, happened = lived(site, act, at, who)

        assert code == wanted, at
        least = min(least, happened)
        if code:
            assert undone(site) == 0, at
        assert site.tree() == before, at
    if (act, who) == ("install", "parent"):
        assert least < effects, "an orphan leaves its work between two steps"
