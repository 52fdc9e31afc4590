"""What the NRI plugin costs a node: time of CreateContainer, memory, and what it misses after restarts."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.node import booted
from benchmarks.rows import Row
from tests.engines.conftest import missing, on_the_day
from tests.engines.cri import TIMEOUT_S, Container, CriError, Pod
from tests.engines.nodes import Node, Running
from tests.engines.nri import KIND, add_devices
from tests.engines.versions import engine_sets

TURNS = 25
EACH = 50
RESTARTS = 5
INJECTS = (2, 1)
# A message to the plugin and back, beside all that containerd does for a container: 5 to 8 ms, where a pod
# takes a second to start. The p99 is the disk's, some 45 ms, and stays the disk's.
MEDIAN_OVER = 1.2
P99_OVER = 1.5
PSS_MB = 12.0
MISSED = 2.0  # NVIDIA's misses all that are made in 2 s
STEADY_S = 1.2  # as long as a session must last, for the plugin to be back without a pause
ALL = {"nvidia.cdi.k8s.io/pod": f"{KIND}=0"}
CREATE = "/runtime.v1.RuntimeService/CreateContainer"
EVERY_TENTH = 10


def measure() -> tuple[list[Row], str]:
    """Return the rows, or why there are none."""
    if lack := missing():
        return [], lack
    rows = [row for row in engine_sets(on_the_day()) if not row.docker]
    engines = next(row for row in rows if tuple(map(int, row.containerd.split("."))) >= INJECTS)
    without: list[float] = []
    beside: list[float] = []
    pss: list[float] = []
    with booted(engines) as node:
        add_devices(node)
        wishes = {f"nvidia.cdi.k8s.io/container.c{at}": f"{KIND}=0" for at in range(0, EACH, EVERY_TENTH)}
        for _ in range(TURNS):
            without += _created_ms(node, {})
            process = node.start_installer("nri", "--nri-allow", f"default={KIND}")
            process.wait_for('"event": "NRI plugin registered"')
            beside += _created_ms(node, wishes)
            pss.append(_pss_mb(process))
            process.terminate()
            process.wait()
        missed, made = _missed(node)
    said = f"CreateContainer: {_told(without)} without the NRI plugin, {_told(beside)} with it ({engines})"
    told = f"; {missed} of {made} containers made in {RESTARTS} restarts of the engine got nothing"
    return [
        Row("NRI: missed per restart of the engine", missed / RESTARTS, MISSED, "", "all within 2 s"),
        Row(
            "NRI: CreateContainer with the plugin over one without, median",
            median(beside) / median(without),
            MEDIAN_OVER,
            "x",
            "-",
        ),
        Row(
            "NRI: CreateContainer with the plugin over one without, p99",
            _p99(beside) / _p99(without),
            P99_OVER,
            "x",
            "-",
        ),
        Row("NRI: the plugin while it serves, Pss", max(pss), PSS_MB, "MB", "13.1 MB"),
    ], said + told


def _missed(node: Node) -> tuple[int, int]:
    """Return how many containers got nothing, of how many made in the first moments after restarts."""
    made = missed = 0
    process = node.start_installer("nri", "--nri-allow", f"default={KIND}")
    process.wait_for('"event": "NRI plugin registered"')
    pod = node.cri.run_pod(annotations=dict(ALL))
    with ThreadPoolExecutor() as pool:
        for turn in range(2, 2 + RESTARTS):
            time.sleep(STEADY_S)
            restart = pool.submit(node.restart, "containerd")
            while not restart.done() or process.log.count('"event": "NRI plugin registered"') < turn:
                with suppress(CriError):
                    node.cri.create(pod, Container(command=("/bin/sleep", "1")))
                    made += 1
            restart.result()
            lines = [line for line in process.log.splitlines() if '"event": "NRI plugin registered"' in line]
            missed = int(json.loads(lines[-1])["missed"])
    process.terminate()
    process.wait()
    node.cri.remove_pod(pod)
    return missed, made


def _created_ms(node: Node, wishes: dict[str, str]) -> list[float]:
    """Return how long each of some containers took, one in ten with a wish, over one connection."""
    import grpc

    pod, took = node.cri.run_pod(annotations=wishes), []
    address = f"unix://{node.root}/run/containerd/containerd.sock"
    with grpc.insecure_channel(address, options=[("grpc.default_authority", "localhost")]) as channel:
        call = channel.unary_unary(CREATE)
        for at in range(EACH):
            request = _request(node, pod, f"c{at}")
            began = time.perf_counter()
            call(request, timeout=TIMEOUT_S)
            took.append((time.perf_counter() - began) * 1000)
    node.cri.remove_pod(pod)
    return took[1:]  # the first one opens the connection


def _request(node: Node, pod: Pod, name: str) -> Any:
    return node.cri.creation(pod, Container(command=("/bin/sleep", "1"), name=name))


def _pss_mb(process: Running) -> float:
    lines = Path(f"/proc/{process.outer_pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def _p99(took: list[float]) -> float:
    return quantiles(took, n=100)[-1]


def _told(took: list[float]) -> str:
    return f"median {median(took):.2f} ms, p99 {_p99(took):.2f} ms"
