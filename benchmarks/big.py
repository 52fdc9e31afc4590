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
# Megabytes: seconds, MiB. Five are five times one, over the 27 MiB of the program itself. In the pod's limit
# of 128 MiB a config of five is refused in a sentence, with what it takes.
LIMITS = {1: (1.0, 64), 5: (6.0, 27 + 5 * (64 - 27))}

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
from installer.engines.containers import list_shim_containers
from installer.host.files import Host
host = Host.under(PurePosixPath(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF)
binary = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
states = {PurePosixPath("/run/containerd"): "containerd"}
assert len(list(list_shim_containers(host, states, frozenset({binary})))) == 1
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


def measure() -> list[Row]:
    """Return seconds of processor time, and MiB."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        make_toolkit(scratch / "artifacts")
        bare, _ = min(_install(scratch, f"bare{run}", 0) for run in range(RUNS))
        for size, (seconds, mebibytes) in LIMITS.items():
            took = [_install(scratch, f"{size}-{run}", size) for run in range(RUNS)]
            cpu, memory = min(cpu for cpu, _ in took) - bare, min(kb for _, kb in took) / MIB
            rows += [
                Row(f"install into a config of {size} MB, CPU", cpu, seconds, "s", "-"),
                Row(f"install into a config of {size} MB, memory", memory, mebibytes, "MiB", "-"),
            ]
        shims(scratch / "node", SHIMS)
        look = min(float(_told(LOOK, str(scratch / "node"))[0]) for _ in range(RUNS))
    return [*rows, Row(f"one look at {SHIMS} shims, CPU", look, 0.5, "s", "-")]


def _install(scratch: Path, node: str, megabytes: int) -> tuple[float, float]:
    """Return CPU seconds and kB of an install into a config of that size."""
    root = scratch / node
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text(config(megabytes * 1_000_000))
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
