"""Big nodes: what a config of a megabyte and of five, and ten thousand containers, take of time and memory.

Each is a child process: time is its processor time without that of a child which only starts up, memory the
most it ever had (VmHWM). The files are those of tests/test_big_nodes.py.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rows import Row
from installer.cli.demo import make_toolkit
from tests.support.big import config, shims

PROJECT = Path(__file__).parent.parent
RUNS = 3
MIB = 1024
SHIMS = 10_000
# The megabytes of a config, and the MiB that an install may take. Five are five times one, over the 27 MiB
# of the program itself. In the pod's limit of 128 MiB a config of five is refused, with what it takes.
LIMITS = {1: 64, 5: 27 + 5 * (64 - 27)}
# An install reads, edits, writes and reads again: processor time over one reading of the text by tomllib.
OVER_TOMLLIB = 8.0
OVER_WALK = 2.0
CONFIG = "etc/containerd/config.toml"

TOLD = """
import resource, sys
from pathlib import Path
{code}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""
VERB = "from installer.cli.app import main; main(sys.argv[1:])"
LOOK = """
from pathlib import PurePosixPath
from installer.engines.container_records import (list_shim_containers)
from installer.host.files import Host
host = Host.under(PurePosixPath(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF)
binary = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
states = {PurePosixPath("/run/containerd"): "containerd"}
assert len(list(list_shim_containers(host, states, frozenset({binary})))) == 1
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""
READ = """
import sys, time, tomllib
text = open(sys.argv[1]).read()
began = time.process_time()
tomllib.loads(text)
print(time.process_time() - began)
"""
WALK = """
import sys, time
from pathlib import Path
began = time.process_time()
for path in Path(sys.argv[1], "run/containerd").rglob("options.json"):
    path.read_bytes()
    path.with_name("config.json").read_bytes()
print(time.process_time() - began)
"""


def measure() -> list[Row]:
    """Return processor time over that of the standard library for the same files, and MiB."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        make_toolkit(scratch / "artifacts")
        bare, _ = min(_install(scratch, f"bare{run}", 0) for run in range(RUNS))
        for size, mebibytes in LIMITS.items():
            costs: list[tuple[float, float]] = []
            read: list[float] = []
            for run in range(RUNS):
                costs.append(_install(scratch, f"{size}-{run}", size))
                read.append(float(_told(READ, str(scratch / f"{size}-{run}" / CONFIG))[0]))
            cpu = min(cpu for cpu, _ in costs) - bare
            memory = min(kb for _, kb in costs) / MIB
            of_tomllib = min(read)
            name_of_time = f"install into a config of {size} MB, CPU, over tomllib ({of_tomllib:.2f} s)"
            rows += [
                Row(name_of_time, cpu / of_tomllib, OVER_TOMLLIB, "x", "-"),
                Row(f"install into a config of {size} MB, memory", memory, mebibytes, "MiB", "-"),
            ]
        shims(scratch / "node", SHIMS)
        looks: list[float] = []
        walks: list[float] = []
        for _ in range(RUNS):
            looks.append(float(_told(LOOK, str(scratch / "node"))[0]))
            walks.append(float(_told(WALK, str(scratch / "node"))[0]))
    walk = min(walks)
    name_of_look = f"one look at {SHIMS} shims, CPU, over a walk that reads their files ({walk:.2f} s)"
    return [*rows, Row(name_of_look, min(looks) / walk, OVER_WALK, "x", "-")]


def _install(scratch: Path, node: str, megabytes: int) -> tuple[float, float]:
    """Return CPU seconds and kB of an install into a config of that size."""
    root = scratch / node
    (root / "etc/containerd").mkdir(parents=True)
    (root / CONFIG).write_text(config(megabytes * 1_000_000))
    where = [
        "--host-root",
        str(root),
        "--toolkit-source",
        str(scratch / "artifacts"),
        "--runtime",
        "containerd",
    ]
    cpu, memory = _told(VERB, "install", *where, "--runtime", "containerd", "--restart-mode", "none")[-2:]
    return float(cpu), float(memory)


def _told(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", TOLD.format(code=code), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT).stdout.split()
