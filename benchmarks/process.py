"""The program as a whole process: a fresh install of a 100 MB payload, and the memory it waits in."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.rows import Row
from installer.decide.artifacts import search_paths
from installer.decide.toolkit import EXECUTABLES, LIBRARIES
from installer.host.digests import SUMS, digest_of

RUNS = 7
PROJECT = Path(__file__).parent.parent
ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT)}
# As NVIDIA's release has them: six programs of 46 MB together, one padded to 14, two libraries to 20 each.
PROGRAM_BYTES = 46_400_000 // 6
CLI_BYTES = 14_000_000
LIBRARY_BYTES = 20_000_000


def measure() -> list[Row]:
    """Return install time in ms and waiting memory in kB."""
    with tempfile.TemporaryDirectory() as name:
        source = payload(Path(name, "artifacts"))
        installs = [_install_ms(Path(name), source, run) for run in range(RUNS + 1)][1:]
        ours, bare = _waiting_kb(Path(name), source)
    return [
        Row("fresh install, 100 MB, no restart, start-up included", median(installs), 350, "ms", "39"),
        Row("waiting daemon, Pss (limit: bare python -I -S + 1 MB)", ours, bare + 1024, "kB", "10684"),
    ]


def payload(root: Path) -> Path:
    """Make a toolkit of 94 MB below ``root``, with its sums as an image's payload has them."""
    head = Path(sys.executable).resolve().read_bytes()[:64]
    for name in (*(executable.name for executable in EXECUTABLES), *LIBRARIES):
        path = root / search_paths(name)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        size = CLI_BYTES if name == "nvidia-container-cli" else PROGRAM_BYTES
        path.write_bytes(head + os.urandom(LIBRARY_BYTES if name in LIBRARIES else size))
        path.chmod(0o755)
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    sums = (f"{digest_of(str(path))}  ./{path.relative_to(root)}\n" for path in files)
    (root / SUMS).write_text("".join(sums))
    return root


def arguments(root: Path, source: Path) -> list[str]:
    """Return the flags of a verb for a node below ``root`` with no engine to ask."""
    where = ["--host-root", str(root), "--toolkit-source", str(source)]
    return [*where, "--runtime", "containerd", "--restart-mode", "none"]


def _install_ms(scratch: Path, source: Path, run: int) -> float:
    root = scratch / f"node{run}"
    (root / "etc/containerd").mkdir(parents=True)
    (root / "etc/containerd/config.toml").write_text("version = 2\n")
    command = [sys.executable, "-m", "installer", "install", *arguments(root, source)]
    started = time.perf_counter()
    subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    return (time.perf_counter() - started) * 1000


def _waiting_kb(scratch: Path, source: Path) -> tuple[float, float]:
    root = scratch / "waiting"
    (root / "etc/containerd").mkdir(parents=True)
    command = [sys.executable, "-m", "installer", "run", *arguments(root, source)]
    sleeper = [sys.executable, "-I", "-S", "-c", "import time; print(flush=True); time.sleep(600)"]
    with (
        subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as waiting,
        subprocess.Popen(sleeper, stdout=subprocess.PIPE, text=True) as bare,
    ):
        assert waiting.stderr is not None
        assert bare.stdout is not None
        bare.stdout.readline()
        for line in waiting.stderr:
            if "waiting for a signal" in line:
                break
        time.sleep(1)
        found = _pss_kb(waiting.pid), _pss_kb(bare.pid)
        waiting.send_signal(signal.SIGTERM)
        waiting.stderr.read()
        bare.kill()
    return found


def _pss_kb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Pss:")).split()[1])
