"""Runs on a node: print what verbs take beside a bare Python, in turns: medians of CPU and wall time in ms.

Arguments: what to measure, the number of turns, and the words of an install. For a plan after a wait the
second one is the seconds of the wait. For a command it stands in place of the words. The program stands where
the image has it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

PROGRAM = "/opt/toolkit-installer/bin/toolkit-installer"
BARE = ("/opt/toolkit-installer/bin/python3", "-I", "-S", "-c", "pass")
SETTLED_S = 0.5  # the children of a run are started
Cost = tuple[float, float]


def main() -> None:
    """Measure in turns."""
    what, turns, *install = sys.argv[1:]
    costs: dict[str, list[Cost]] = {}
    if what == "plan after a wait":
        time.sleep(float(turns))
        print(json.dumps({"plan": _cost((PROGRAM, "plan", *install))}))
        return
    if what == "command":
        measured = [_cost(install) for _ in range(int(turns))]
        cpu, wall = zip(*measured, strict=True)
        print(json.dumps({"command": (median(cpu), median(wall))}))
        return
    for _ in range(int(turns)):
        costs.setdefault("bare", []).append(_cost(BARE))
        if what == "unchanged":
            costs.setdefault("install", []).append(_cost((PROGRAM, "install", *install)))
        elif what == "beside":
            costs.setdefault("stop", []).append(_stop(install))
            _stop((*install, "--on-exit", "keep"))
            costs.setdefault("uninstall", []).append(_cost((PROGRAM, "uninstall")))
    medians = {}
    for name, measured in costs.items():
        cpu, wall = zip(*measured, strict=True)
        medians[name] = (median(cpu), median(wall))
    print(json.dumps(medians))


def _cost(command: Sequence[str]) -> Cost:
    """Return what a command and its children take."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], [*command], os.environ, file_actions=quiet)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - began
    assert status == 0, command
    return (used.ru_utime + used.ru_stime) * 1000, wall_s * 1000


def _stop(words: Sequence[str]) -> Cost:
    """Return the wall time from the TERM for a waiting ``run`` to its end."""
    with subprocess.Popen([PROGRAM, "run", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "waiting for a signal" in line:
                break
        time.sleep(SETTLED_S)
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.wait()
        wall_s = time.perf_counter() - began
    assert process.returncode == 0, words
    return 0.0, wall_s * 1000


if __name__ == "__main__":
    main()
