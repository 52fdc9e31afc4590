"""A node's outage while an engine is restarted, by hand and by us; drift repaired; a stop beside another."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

from benchmarks.process import payload
from benchmarks.rows import Row
from benchmarks.start import START, Cost, over
from installer.lifecycle.last_check import LastCheck
from installer.model.files import dumps, loads
from installer.watch import CHECK_S, COMPARE_S, QUIET_S
from tests.engines.cache import locked
from tests.engines.configs import CONTAINERD
from tests.engines.conftest import missing, on_the_day
from tests.engines.cri import Cri, CriError
from tests.engines.nodes import PYTHON, Node, boot
from tests.engines.nri import KIND
from tests.engines.payload import ARTIFACTS
from tests.engines.roots import prepared
from tests.engines.versions import EngineSet, engine_sets
from tests.support.program import make_program

ROUNDS = 5
# The ratio within a round scatters more than the ratio of two medians of rounds that take turns (95th
# percentile on a quiet machine: 1.18 and 1.08), which can be told from 1.2.
ROUNDS_OF_OUTAGES = 25
THEIRS = "5100 ms by SIGHUP, 85 ms by systemd"
STARTS = 21
STOPS = 9
EVERY_S = 0.005
GATE_OVER = 1.5  # the program reads configs and compares answers beside what the two dumps take
LONGER = 1.2
HANDLERS_OVER = 2.0  # containerd 2.x starts its shim once for each of three handlers
SERVED_OVER = 1.5
# A start (START), and what asks the engine and systemd: h2 and jeepney load in the time of two Pythons.
ASKED_OVER = START + 2.0
# An undo is a start (START) and two searches of the node for what names the toolkit: 20 ms of CPU each, where
# there are 224 units. It happens once for each install.
UNDO_OVER = 25.0
# A stop is an undo by a child: the supervisor starts the child, and ends the plugin. A pod has 30 s for it.
STOP_OVER = 2.0
# CPU time is what a verb costs. Wall time also has what systemd and an engine take to answer, and is limited
# to find waits: a tenth of a second is 13 starts of a bare Python.
WAITS = 10.0
BY_NRI = ("--mode", "nri", "--nri-allow", f"default={KIND}")
HOUR_S = 3600.0
# A check asks what a plan asks, of the same engine in another process. It also has the engine's own program
# read the configs, which a plan without a change does not, and it has two minutes of looks behind it: 50 ms.
# The plan begins with cold caches, too: it waits in the node, so that nothing has warmed them up before it.
A_CHECK_OVER = 1.4
CHECKS = 3  # that a run does while its CPU time is taken
TICKS = os.sysconf("SC_CLK_TCK")
# What a host's owner would do by hand for the same: copy the toolkit with its sums onto the disk, and ask
# containerd for its config before and after.
BY_HAND = (
    "rm -rf /by-hand && mkdir /by-hand && cp -R {source}/. /by-hand/ && "
    "find /by-hand -type f -exec sha256sum {{}} + >/dev/null && find /by-hand -type f -exec sync {{}} + && "
    "containerd config dump >/dev/null && containerd config dump >/dev/null"
)
READS_CONFIG = {
    "containerd": ("/usr/bin/containerd", "--config", CONTAINERD, "config", "dump"),
    "docker": ("/usr/sbin/dockerd", "--validate", "--config-file", "/etc/docker/daemon.json"),
}
DUMPS = """
import subprocess, time
dump = ["/usr/bin/containerd", "--config", "/etc/containerd/config.toml", "config", "dump"]
began = time.perf_counter()
for _ in range(2):
    subprocess.run(dump, check=True, stdout=subprocess.DEVNULL)
print((time.perf_counter() - began) * 1000)
"""
BIG = "/toolkit-as-released"
PROGRAM = Path("/opt/toolkit-installer")
# What runs on the node, as files that types are checked in.
GATE = Path(__file__).with_name("dry_runs_of_containerd.py")
VERBS = Path(__file__).with_name("verbs_on_a_node.py")


def measure() -> tuple[list[Row], str]:
    """Return outages in ms, or why a node cannot be booted here."""
    if lack := missing():
        return [], lack
    sets = engine_sets(on_the_day())
    engines, *newer = (row for row in sets if not row.docker)
    docker = next(row for row in reversed(sets) if row.docker)
    with booted(engines) as node:
        rows = _gate(node)
        _install(node)
        starts = _starts(node)
        node.installer("uninstall", check=True)
        rows += _outages(node)
        rows += _served(node)
        looked = [_install(node, touched=True) for _ in range(ROUNDS)]
        node.installer("uninstall", check=True)
        repairs = _repairs_ms(node)
        waits = _waits(node)
    rows.append(
        Row(
            "drift repair, from write to proven (limit: 3 s until it is quiet, 2 installs that look at all)",
            median(repairs),
            (COMPARE_S + QUIET_S) * 1000 + 2 * median(looked),
            "ms",
            "never",
        )
    )
    rows.append(waits)
    for each in newer:
        with booted(each) as node:
            rows += _outages(node)
            if each is newer[-1]:  # 1.7 has NRI switched off
                rows += _beside(node)
    with booted(docker) as node:
        rows.append(_waits(node))
    return rows + starts, f"node: {engines} under systemd"


@contextmanager
def booted(engines: EngineSet) -> Iterator[Node]:
    """Boot a node on which the program is installed and started as in the image."""
    today = on_the_day()
    with locked():
        roots = prepared(today)
    with boot(roots, engines) as node:
        packages = node.path(f"/usr/local/lib/{roots.python}/dist-packages")
        make_program(node.path(str(PROGRAM)), PROGRAM, Path(PYTHON), packages)
        node.run(
            [PYTHON, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", str(PROGRAM)]
        )
        node.program = (str(PROGRAM / "bin/toolkit-installer"),)
        yield node


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
    first: list[float] = []
    second: list[float] = []
    bare: list[float] = []
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
    """Return what a stop and an uninstall take beside a containerd that we have not configured."""
    costs = _verbs(node, "beside", STOPS, *BY_NRI)
    undo = costs["uninstall"]
    beside = f"beside {node.engines} that is not ours"
    return [
        *over(f"uninstall {beside}, over python -I -S", undo, costs["bare"], UNDO_OVER, "-", waits=WAITS),
        Row(
            f"stop {beside}, TERM to end, over that uninstall ({undo.wall:.0f} ms)",
            costs["stop"].wall / undo.wall,
            STOP_OVER,
            "x",
            "-",
        ),
    ]


def _starts(node: Node) -> list[Row]:
    """Return what an install over an installed node takes, its engine asked, over a bare Python."""
    costs = _verbs(node, "unchanged", STARTS)
    name = "install that changes nothing, engine asked, over python -I -S"
    return over(name, costs["install"], costs["bare"], ASKED_OVER, "53 ms", waits=WAITS)


def _verbs(node: Node, what: str, turns: int, *words: str) -> dict[str, Cost]:
    """Return what some verbs take that take turns on the node, by the name of the verb."""
    return _costs(node, what, str(turns), *words, "--toolkit-source", ARTIFACTS)


def _costs(node: Node, *words: str) -> dict[str, Cost]:
    """Return what the script on the node has measured, by name."""
    costs = json.loads(node.run([PYTHON, "-c", VERBS.read_text(), *words]).stdout)
    return {name: Cost(*cost) for name, cost in costs.items()}


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


def _waits(node: Node) -> Row:
    """Return the CPU of a waiting run, for each check, over a plan and a run of the engine's program."""
    process = node.start_installer("run", "--toolkit-source", ARTIFACTS)
    process.wait_for("waiting for a signal")
    time.sleep(COMPARE_S)
    before_s = _cpu_s(process.outer_pid)
    began = time.monotonic()
    plans_ms: list[float] = []
    for check in range(CHECKS):
        halfway_s = began + (check + 0.5) * CHECK_S - time.monotonic()
        plans_ms.append(_verbs(node, "plan after a wait", round(halfway_s))["plan"].cpu)
        time.sleep(began + (check + 1) * CHECK_S - time.monotonic())
    check_s = (_cpu_s(process.outer_pid) - before_s) * CHECK_S / (time.monotonic() - began)
    process.terminate()
    process.wait()
    program = READS_CONFIG["docker" if node.engines.docker else "containerd"]
    reads_ms = _costs(node, "command", str(ROUNDS), *program)["command"].cpu
    hour_s = check_s * HOUR_S / CHECK_S
    by_hand_ms = mean(plans_ms) + reads_ms
    name = f"run that waits beside {node.engines}: a check over a plan and the engine's program"
    spent = (
        f"CPU, {check_s * 1000:.0f} over {mean(plans_ms):.0f} and {reads_ms:.0f} ms, {hour_s:.1f} s an hour"
    )
    return Row(f"{name} ({spent})", check_s * 1000 / by_hand_ms, A_CHECK_OVER, "x", "-")


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
