"""A node's outage while an engine is restarted, by hand and by us; drift repaired; a stop beside another."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.process import payload
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
ROUNDS_OF_OUTAGES = 9  # a ratio of two of them is to be told from 1.2
THEIRS = "5100 ms by SIGHUP, 85 ms by systemd"
STARTS = 11
EVERY_S = 0.005
GATE_OVER = 1.5  # the program reads configs and compares answers beside what the two dumps take
LONGER = 1.2
HANDLERS_OVER = 2.0  # containerd 2.x starts its shim once for each of three handlers
SERVED_OVER = 1.5
BESIDE_OVER = 15.0
BY_NRI = ("--mode", "nri", "--nri-allow", f"default={KIND}")
HOUR_S = 3600.0
A_CHECK_OVER = 30.0  # with the two minutes of waiting before the check
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
# What a host's owner would do by hand for the same: copy the toolkit with its sums onto the disk, and ask
# containerd for its config before and after.
BY_HAND = (
    "rm -rf /by-hand && mkdir /by-hand && cp -R {source}/. /by-hand/ && "
    "find /by-hand -type f -exec sha256sum {{}} + >/dev/null && find /by-hand -type f -exec sync {{}} + && "
    "containerd config dump >/dev/null && containerd config dump >/dev/null"
)
DUMPS = """
import subprocess, time
dump = ["/usr/bin/containerd", "--config", "/etc/containerd/config.toml", "config", "dump"]
began = time.perf_counter()
for _ in range(2):
    subprocess.run(dump, check=True, stdout=subprocess.DEVNULL)
print((time.perf_counter() - began) * 1000)
"""
BIG = "/toolkit-as-released"
# What an install asks of containerd's own program, as a file that types are checked in.
GATE = Path(__file__).with_name("dry_runs_of_containerd.py")


def measure() -> tuple[list[Row], str]:
    """Return outages in ms, or why a node cannot be booted here."""
    if lack := missing():
        return [], lack
    engines, *newer = (row for row in engine_sets(on_the_day()) if not row.docker)
    with boot(prepared(on_the_day()), engines) as node:
        rows = _gate(node)
        _install(node)
        starts, bare_s = _starts(node)
        node.installer("uninstall", check=True)
        rows += _outages(node)
        rows += _served(node)
        looked = [_install(node, touched=True) for _ in range(ROUNDS)]
        node.installer("uninstall", check=True)
        repairs = _repairs_ms(node)
        waits = _waits_s(node)
    rows.append(
        Row(
            "drift repair, from write to proven (limit: 3 s until it is quiet, 2 installs that look at all)",
            median(repairs),
            (COMPARE_S + QUIET_S) * 1000 + 2 * median(looked),
            "ms",
            "never",
        )
    )
    name = f"run that waits, CPU for each of its checks over a bare Python ({waits:.1f} s an hour)"
    rows.append(Row(name, waits * CHECK_S / HOUR_S / bare_s, A_CHECK_OVER, "x", "-"))
    for each in newer:
        with boot(prepared(on_the_day()), each) as node:
            rows += _outages(node)
            if each is newer[-1]:  # 1.7 has NRI switched off
                rows += _beside(node)
    return rows + starts, f"node: {engines} under systemd"


def _gate(node: Node) -> list[Row]:
    """Return what an install's two questions to containerd take over the same two dumps by hand."""
    ours: list[float] = []
    by_hand: list[float] = []
    for _ in range(ROUNDS):
        ours.append(float(node.run([PYTHON, "-c", GATE.read_text()]).stdout))
        by_hand.append(float(node.run([PYTHON, "-c", DUMPS]).stdout))
    name = f"the gate: containerd asked before and after, over two config dumps ({median(by_hand):.0f} ms)"
    return [Row(name, median(ours) / median(by_hand), GATE_OVER, "x", "none")]


def _served(node: Node) -> list[Row]:
    """Return what a first install of a toolkit of the real size takes over the same acts by hand.

    Both end when CRI answers again; ours also proves that the handlers are served.
    """
    payload(node.root / BIG.lstrip("/"))
    by_hand: list[float] = []
    ours: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        node.run(["sh", "-c", BY_HAND.format(source=BIG)])
        node.restart_engine()
        by_hand.append((time.perf_counter() - began) * 1000)
        ours.append(_install(node, source=BIG))
        node.installer("uninstall", check=True)
    name = f"start to handler served and proven, 94 MB, over the same by hand ({median(by_hand):.0f} ms)"
    return [
        Row(name, median(ours) / median(by_hand), SERVED_OVER, "x", "451 ms by systemd, no hash, no sync")
    ]


def _outages(node: Node) -> list[Row]:
    """Return how much longer CRI is away while we restart an engine than while its owner does.

    The owner's restart has our handlers after an install, for containerd 2.x starts its shim once for each
    handler of a config. What the handlers alone cost is a row of its own.
    """
    without: list[float] = []
    bare: list[float] = []
    first: list[float] = []
    second: list[float] = []
    undo: list[float] = []
    _install(node)  # the first one reads programs from the disk
    node.installer("uninstall", check=True)
    for _ in range(ROUNDS_OF_OUTAGES):
        without.append(outage_ms(node, lambda: node.restart("containerd")))
        first.append(outage_ms(node, lambda: _install(node)))
        second.append(outage_ms(node, lambda: _install(node)))
        bare.append(outage_ms(node, lambda: node.restart("containerd")))
        undo.append(outage_ms(node, lambda: node.installer("uninstall", check=True)))
    with_ms = median(bare)
    without_ms = median(without)
    away = "CRI unreachable"
    return [
        Row(
            f"{away}, first install, over a restart with our handlers ({with_ms:.0f} ms), {node.engines}",
            median(first) / with_ms,
            LONGER,
            "x",
            THEIRS,
        ),
        Row(f"{away}, second install, {node.engines}", median(second), 0, "ms", THEIRS),
        Row(
            f"{away}, undo, over a restart without them ({without_ms:.0f} ms), {node.engines}",
            median(undo) / without_ms,
            LONGER,
            "x",
            THEIRS,
        ),
        Row(
            f"{away}, a restart with our handlers over one without, {node.engines}",
            with_ms / without_ms,
            HANDLERS_OVER,
            "x",
            "-",
        ),
    ]


def _beside(node: Node) -> list[Row]:
    """Return what a stop and an uninstall take beside a containerd that we have not configured.

    Both are wall time over a bare Python on the same node.
    """
    bare: list[float] = []
    stop: list[float] = []
    uninstall: list[float] = []
    for _ in range(ROUNDS):
        stop.append(_stopped_s(node))
        _stopped_s(node, "--on-exit", "keep")
        began = time.perf_counter()
        node.installer("uninstall", check=True)
        uninstall.append(time.perf_counter() - began)
        began = time.perf_counter()
        node.run([PYTHON, "-I", "-S", "-c", "pass"])
        bare.append(time.perf_counter() - began)
    bare_s = median(bare)
    over_python = f"over a bare Python ({bare_s * 1000:.0f} ms)"
    return [
        Row(
            f"{name} beside {node.engines} that is not ours, {over_python}",
            took_s / bare_s,
            BESIDE_OVER,
            "x",
            "-",
        )
        for name, took_s in (("stop", median(stop)), ("uninstall", median(uninstall)))
    ]


def _stopped_s(node: Node, *more: str) -> float:
    """Return how long a ``run`` took to stop that serves by NRI, whose install changes no engine."""
    process = node.start_installer("run", *BY_NRI, *more, "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    began = time.perf_counter()
    process.terminate()
    process.wait()
    return time.perf_counter() - began


def _starts(node: Node) -> tuple[list[Row], float]:
    """Return what an install over an installed node takes, its engine asked, over a bare Python.

    The second value is the processor time of that Python, in seconds.
    """
    said = node.run([PYTHON, "-c", PAIRED, ARTIFACTS, str(STARTS)]).stdout
    bare_cpu, bare_wall, cpu, wall = map(float, said.split())
    name = "install that changes nothing, engine asked, over python -I -S"
    rows = over(name, Cost(cpu, wall), Cost(bare_cpu, bare_wall), START, "53 ms")
    return rows, bare_cpu / 1000


def _install(node: Node, *, touched: bool = False, source: str = ARTIFACTS) -> float:
    """Return how long an install took, in ms; it returns when the handler is served and proven.

    One whose config was ``touched`` before looks at all again, as a look of ``run`` does.
    """
    if touched:
        node.run(["touch", CONTAINERD])
    started = time.perf_counter()
    node.installer("install", "--toolkit-source", source, check=True)
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
    return used / took * HOUR_S


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
