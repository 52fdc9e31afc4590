"""What a start costs beside a bare Python in the same run: a probe, one that changes nothing, a first one."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.process import ENVIRONMENT, arguments, payload
from benchmarks.rows import Row
from tests.support.program import as_in_the_image
from tests.support.site import PIDFILE, STATE, Site

RUNS = 11
# A probe imports os, which a bare Python without site does not: that alone is 1.15 of a bare one.
PROBE, START, FRESH = 1.5, 20.0, 1.3
FAILING = 2.0
PROBLEM = {"code": "waiting-for-turn", "text": "restart containerd (1 at a time)", "remedy": "wait"}
READY_EVERY_S, ALIVE_EVERY_S = 10, 30  # as in deploy/kustomize/base/daemonset.yaml
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BARE = ("-I", "-S", "-c", "pass")
# Copied, read once more and on the disk: what an install has to do with the bytes in any case.
COPY = (
    "mkdir TO && cp -R FROM/. TO/ && find TO -type f -exec sha256sum {} + && find TO -type f -exec sync {} +"
)


class Cost(NamedTuple):
    """What a process and its children take, in ms."""

    cpu: float
    wall: float


def paired(commands: Sequence[Sequence[str]], more: Mapping[str, str] | None = None) -> list[Cost]:
    """Return the medians of commands that take turns; in their words TURN is the number of the turn."""
    taken = [
        [_cost([word.replace("TURN", str(turn)) for word in command], more or {}) for command in commands]
        for turn in range(RUNS + 1)
    ][1:]
    return [
        Cost(median(each.cpu for each in costs), median(each.wall for each in costs))
        for costs in zip(*taken, strict=True)
    ]


def _cost(command: Sequence[str], more: Mapping[str, str]) -> Cost:
    environment = ENVIRONMENT | dict(more)
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, command
    return Cost((used.ru_utime + used.ru_stime) * 1000, (time.perf_counter() - began) * 1000)


def measure() -> list[Row]:
    """Return ratios to a bare Python, and the thousandths of a core that all probes of a node take."""
    with tempfile.TemporaryDirectory() as name:
        return [*_probes(Path(name)), *_fresh(Path(name))]


def over(  # noqa: PLR0913 - the cells of two rows
    name: str, ours: Cost, theirs: Cost, limit: float, nvidia: str, *, waits: float = 0.0
) -> list[Row]:
    """Return the rows of what one command takes over another, which ``name`` ends with.

    ``waits`` is what the wall time may have beyond the limit of the CPU time.
    """
    return [
        Row(f"{name} ({theirs.cpu:.1f} ms), CPU", ours.cpu / theirs.cpu, limit, "x", nvidia),
        Row(f"{name} ({theirs.wall:.1f} ms), wall", ours.wall / theirs.wall, limit + waits, "x", nvidia),
    ]


def _probes(scratch: Path) -> list[Row]:
    """Return what the image's program takes on a node that is good."""
    program = as_in_the_image(scratch / "program")
    (scratch / "probed").mkdir()
    site = Site(scratch / "probed")
    with site.running("--on-exit", "keep") as run:
        said = {"boot_id": BOOT_ID.read_text().strip(), "pid": run.pid}
        (site.root / PIDFILE).with_name("ready").write_text(json.dumps(said | {"engines": []}) + "\n")
        probe = str(program / "toolkit-probe")
        commands = ([str(program / "python3"), *BARE], [probe, "--ready"], [probe, "--alive"])
        path = f"{program}:{ENVIRONMENT['PATH']}"  # a probe without a reason becomes the program
        root = {"TOOLKIT_INSTALLER_HOST_ROOT": str(site.root), "PATH": path}
        bare, as_ready, as_alive = paired(commands, root)
        (site.root / PIDFILE).with_name("ready").unlink()
        site.rewrite(STATE, lambda said: said.update(problem=PROBLEM))
        # A command here has to end with 0.
        failing = ["sh", "-c", f"{probe} --ready; [ $? = 1 ]"]
        good = ["sh", "-c", f"{probe} --alive; [ $? = 0 ]"]
        as_failing, as_good = paired((failing, good), root)
    millicores = as_ready.cpu / READY_EVERY_S + as_alive.cpu / ALIVE_EVERY_S
    of_bare_python = bare.cpu / READY_EVERY_S + bare.cpu / ALIVE_EVERY_S
    return [
        *over("readiness probe over python -I -S", as_ready, bare, PROBE, "none"),
        *over("liveness probe over python -I -S", as_alive, bare, PROBE, "none"),
        *over("readiness probe that fails over a good one", as_failing, as_good, FAILING, "none"),
        Row("all probes of a pod that is ready", millicores, PROBE * of_bare_python, "mcore", "none"),
    ]


def _fresh(scratch: Path) -> list[Row]:
    """Return what 94 MB take beyond a start that changes nothing, over a copy that is read and synced."""
    source = payload(scratch / "artifacts")
    for turn in range(RUNS + 1):
        (scratch / f"node{turn}/etc/containerd").mkdir(parents=True)
        (scratch / f"node{turn}/etc/containerd/config.toml").write_text("version = 2\n")
    program = str(as_in_the_image(scratch / "fresh") / "toolkit-installer")
    install = [program, "install", *arguments(scratch / "nodeTURN", source)]
    copy = COPY.replace("FROM", str(source)).replace("TO", str(scratch / "copyTURN"))
    bare = [str(Path(program).with_name("python3")), *BARE]
    copied, first, again, python = paired((["sh", "-c", copy], install, install, bare))
    beyond = Cost(first.cpu - again.cpu, first.wall - again.wall)
    name = "fresh install of 94 MB, less one that changes nothing, over cp + sha256sum + sync"
    unchanged = "install of 94 MB that changes nothing, no engine, over python -I -S"
    return [
        *over(name, beyond, copied, FRESH, "no hash, no sync"),
        *over(unchanged, again, python, START, "53 ms"),
    ]


if __name__ == "__main__":
    for row in measure():
        print(f"{row.name}: {row.ours:.2f} {row.unit} (limit {row.limit})")
