"""A ``run`` that is struck at an effect of one of its children: which, where and how."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

from tests.support.site import DAEMON_JSON, PROJECT, Site, waits
from tests.support.waiting import until

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


def node(directory: Path) -> Site:
    """Return a node on which the hook lies, in the same directory."""
    (directory / "sitecustomize.py").write_text(HOOK)
    return Site(directory)


def lived(site: Site, act: str, at: int, who: str) -> tuple[int, int]:
    """Return the exit code of a run that is struck at an effect of a child, and how many that has had.

    While it waits somebody takes our keys out of a config and asks for a check, where that is the ``act``.
    """
    hook = site.root.parent
    log, config = hook / "log", site.root / DAEMON_JSON
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([str(hook), str(PROJECT)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # which would be effects of the first one
        "CRASH": f"{act},{at},{who},{log}",
    }
    before = config.read_bytes()
    log.write_bytes(b"")
    with subprocess.Popen(site.command("run"), stderr=subprocess.PIPE, text=True, env=environment) as run:
        try:
            assert run.stderr is not None
            if any("waiting for a signal" in line for line in run.stderr):
                if act == "asked":
                    config.write_bytes(before)
                    run.send_signal(signal.SIGHUP)
                    # One that was killed has left something to the next check, at which nobody strikes.
                    mended = partial(_is_mended, log, at, config if who == "child" else None, before)
                    until(mended) if at else waits(run)
                run.send_signal(signal.SIGTERM if at or act == "stop" else signal.SIGKILL)
            said = run.stderr.read()  # until its children have ended, too
            code = run.wait(60)
        finally:
            run.kill()
    assert "Traceback" not in said
    return code, log.stat().st_size


def _is_mended(log: Path, at: int, config: Path | None, drifted: bytes) -> bool:
    return log.stat().st_size >= at and (config is None or config.read_bytes() != drifted)


def points(effects: int) -> list[int]:
    """Return at which of its effects a child is struck: the first, the last, and some between them."""
    return sorted({1 + at * (effects - 1) // (POINTS - 1) for at in range(POINTS)})


def undone(site: Site) -> int:
    """Uninstall, once what a killed run has left has come to its end."""
    codes = list[int]()

    def ended() -> bool:
        codes.append(site.call("uninstall").returncode)
        return codes[-1] != 3

    until(ended)
    return codes[-1]
