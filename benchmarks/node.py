"""A node's outage while an engine is restarted, by hand and by us; drift repaired; a stop beside another."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from benchmarks.start import START, Cost, over
from installer.lifecycle.last_check import LastCheck
from installer.model.files import dumps, loads
from installer.supervisor import CHECK_S, COMPARE_S, QUIET_S
from tests.engines.configs import CONTAINERD
from tests.engines.conftest import missing, on_the_day
from tests.engines.cri import Cri, CriError
from tests.engines.nodes import PYTHON, Node, boot
from tests.engines.nri import KIND
from tests.engines.payload import ARTIFACTS
from tests.engines.roots import prepared
from tests.engines.versions import engine_sets

ROUNDS = 5
NEWER_ROUNDS = 9  # a ratio of two of them is to be told from 1.2
STARTS = 11
EVERY_S = 0.005
GATE_MS = 150
LONGER = 1.2
BESIDE_S = 0.5
BY_NRI = ("--mode", "nri", "--nri-allow", f"default={KIND}")
AN_HOUR_S = 8.0
CHECKS = 2  # that a run does while its CPU time is taken
TICKS = os.sysconf("SC_CLK_TCK")
# A start that changes nothing, as the image starts it, in turns with a bare Python; CPU and wall time in ms.
PAIRED = """
import os, statistics, sys, time
start = f"import sys; sys.path += {sys.path!r}; from installer.__main__ import main; main()"
words = ["install", "--toolkit-source", sys.argv[1]]
commands, taken = [["-c", "pass"], ["-c", start, *words]], [[], []]
quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (1, 2)]
for turn in range(2 * int(sys.argv[2])):
    began = time.perf_counter()
    python = [sys.executable, "-I", "-S", *commands[turn % 2]]
    _, status, used = os.wait4(os.posix_spawn(python[0], python, os.environ, file_actions=quiet), 0)
    assert status == 0
    taken[turn % 2].append((used.ru_utime + used.ru_stime, time.perf_counter() - began))
print(*(statistics.median(each) * 1000 for costs in taken for each in zip(*costs)))
"""
# What an install asks of containerd's own program, as a file that types are checked in.
GATE = Path(__file__).with_name("dry_runs_of_containerd.py")


def measure() -> tuple[list[Row], str]:
    """Return outages in ms, or why a node cannot be booted here."""
    if lack := missing():
        return [], lack
    engines, *newer = (row for row in engine_sets(on_the_day()) if not row.docker)
    with boot(prepared(on_the_day()), engines) as node:
        bare, first, second, undo = [], [], [], []
        served: list[float] = []
        gate = [float(node.run([PYTHON, "-c", GATE.read_text()]).stdout) for _ in range(ROUNDS)]
        served.append(_install(node))
        starts = _starts(node)
        node.installer("uninstall", check=True)
        for _ in range(ROUNDS):
            bare.append(outage_ms(node, lambda: node.restart("containerd")))
            first.append(outage_ms(node, lambda: served.append(_install(node))))
            second.append(outage_ms(node, lambda: _install(node)))
            undo.append(outage_ms(node, lambda: node.installer("uninstall", check=True)))
        looked = [_install(node, touched=True) for _ in range(ROUNDS)]
        node.installer("uninstall", check=True)
        repairs = _repairs_ms(node)
        waits = _waits_s(node)
    limit = LONGER * median(bare)
    theirs = "5100 by SIGHUP, 85 by systemd"
    rows = [
        Row(
            f"CRI unreachable, first install (bare restart: {median(bare):.0f} ms)",
            median(first),
            limit,
            "ms",
            theirs,
        ),
        Row("CRI unreachable, second install", median(second), 0, "ms", theirs),
        Row("CRI unreachable, undo", median(undo), limit, "ms", theirs),
        Row(
            "start to handler served and proven", median(served), 400, "ms", "5300 by SIGHUP, 359 by systemd"
        ),
    ]
    rows.append(Row("the gate: containerd asked before and after", median(gate), GATE_MS, "ms", "none"))
    rows.append(
        Row(
            "drift repair, from write to proven (limit: 3 s until it is quiet, 2 installs that look at all)",
            median(repairs),
            (COMPARE_S + QUIET_S) * 1000 + 2 * median(looked),
            "ms",
            "never",
        )
    )
    rows.append(Row("run that waits, CPU in an hour with nothing changed", waits, AN_HOUR_S, "s", "-"))
    for each in newer:
        with boot(prepared(on_the_day()), each) as node:
            rows += _outages(node)
            if each is newer[-1]:  # 1.7 has NRI switched off
                rows += _beside(node)
    return rows + starts, f"node: {engines} under systemd"


def _outages(node: Node) -> list[Row]:
    """Return how much longer CRI is away while we restart an engine than while its owner does."""
    bare, first, undo = [], [], []
    _install(node)  # the first one reads programs from the disk
    node.installer("uninstall", check=True)
    for _ in range(NEWER_ROUNDS):
        bare.append(outage_ms(node, lambda: node.restart("containerd")))
        first.append(outage_ms(node, lambda: _install(node)))
        undo.append(outage_ms(node, lambda: node.installer("uninstall", check=True)))
    over = f"over a bare restart ({median(bare):.0f} ms), {node.engines}"
    return [
        Row(f"CRI unreachable, {name}, {over}", median(each) / median(bare), LONGER, "x", "-")
        for name, each in (("first install", first), ("undo", undo))
    ]


def _beside(node: Node) -> list[Row]:
    """Return what a stop and an uninstall take beside a containerd that we have not configured."""
    stop, uninstall = [], []
    for _ in range(ROUNDS):
        stop.append(_stopped_s(node))
        _stopped_s(node, "--on-exit", "keep")
        began = time.perf_counter()
        node.installer("uninstall", check=True)
        uninstall.append(time.perf_counter() - began)
    return [
        Row(f"{name} beside {node.engines} that is not ours", median(each), BESIDE_S, "s", "-")
        for name, each in (("stop", stop), ("uninstall", uninstall))
    ]


def _stopped_s(node: Node, *more: str) -> float:
    """Return how long a ``run`` took to stop that serves by NRI, whose install changes no engine."""
    process = node.start_installer("run", *BY_NRI, *more, "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    began = time.perf_counter()
    process.terminate()
    process.wait()
    return time.perf_counter() - began


def _starts(node: Node) -> list[Row]:
    """Return what an install over an installed node takes, its engine asked, over a bare Python."""
    said = node.run([PYTHON, "-c", PAIRED, ARTIFACTS, str(STARTS)]).stdout
    bare_cpu, bare_wall, cpu, wall = map(float, said.split())
    name = "install that changes nothing, engine asked, over python -I -S"
    return over(name, Cost(cpu, wall), Cost(bare_cpu, bare_wall), START, "53 ms")


def _install(node: Node, *, touched: bool = False) -> float:
    """Return how long an install took, in ms; it returns when the handler is served and proven.

    One whose config was ``touched`` before looks at all again, as a look of ``run`` does.
    """
    if touched:
        node.run(["touch", CONTAINERD])
    started = time.perf_counter()
    node.installer("install", "--toolkit-source", ARTIFACTS, check=True)
    return (time.perf_counter() - started) * 1000


def _repairs_ms(node: Node) -> list[float]:
    """Return how long each repair took while ``run`` waits, from the write of somebody else to the proof."""
    before, took = node.read(CONTAINERD), []
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    state = node.root / "run/nvidia/toolkit/toolkit.pid.state"
    for _ in range(ROUNDS):
        last = loads(state.read_bytes(), LastCheck)
        # The pause between two repairs of one thing is not what is measured.
        state.write_bytes(dumps(last.with_pace(repairs={})))
        started = time.perf_counter()
        node.write(CONTAINERD, before)
        check = last
        while check.number == last.number or not check.repair.done:
            time.sleep(EVERY_S)
            check = loads(state.read_bytes(), LastCheck)
        took.append((time.perf_counter() - started) * 1000)
        time.sleep(QUIET_S)
    process.terminate()
    process.wait()
    return took


def _waits_s(node: Node) -> float:
    """Return what an hour of waiting takes of a processor, with its checks: children that have ended."""
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    time.sleep(COMPARE_S)
    before, began = _cpu_s(process.outer_pid), time.monotonic()
    time.sleep(CHECKS * CHECK_S)
    used, took = _cpu_s(process.outer_pid) - before, time.monotonic() - began
    process.terminate()
    process.wait()
    return used / took * 3600


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended (proc_pid_stat(5))."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / TICKS


def outage_ms(node: Node, act: Callable[[], object]) -> float:
    """Return for how long CRI did not answer while ``act`` went on; 0 if each call was answered."""
    refused: list[float] = []
    answered: list[float] = []
    over = threading.Event()

    def ask() -> None:
        cri = Cri(node.root / "run/containerd/containerd.sock")
        while not over.is_set():
            try:
                cri.version()
                answered.append(time.perf_counter())
            except CriError:
                refused.append(time.perf_counter())
            time.sleep(EVERY_S)

    client = threading.Thread(target=ask)
    client.start()
    act()
    time.sleep(0.2)
    over.set()
    client.join()
    if not refused:
        return 0.0
    before = max((moment for moment in answered if moment < refused[0]), default=refused[0])
    after = min((moment for moment in answered if moment > refused[-1]), default=refused[-1])
    return (after - before) * 1000
