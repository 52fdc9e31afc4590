"""The program as a whole process: the memory that it waits in, with all its children."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row
from installer.host.trees import SUMS, digest_of
from installer.payload.files import EXECUTABLES, LIBRARIES, search_paths
from tests.support.waiting import until_it_sleeps

PROJECT = Path(__file__).parent.parent
# As a run starts its installs: lines of JSON, which need no library for texts.
ENVIRONMENT = {"PATH": os.defpath, "PYTHONPATH": str(PROJECT), "TOOLKIT_INSTALLER_LOG_FORMAT": "json"}
# As NVIDIA's release has them: six programs of 46 MB together, one padded to 14, two libraries to 20 each.
PROGRAM_BYTES = 46_400_000 // 6
CLI_BYTES = 14_000_000
LIBRARY_BYTES = 20_000_000


# What a run waits with: its flags, what it takes more than a bare interpreter, and what NVIDIA's takes.
WAITS = {
    "": ((), 1.5, "10.7 MB"),
    ", with metrics served": (("--metrics-listen", "127.0.0.1:39107"), 22.0, "-"),
    ", with the NRI plugin": (("--nri", "--nri-allow", "default=management.nvidia.com/gpu"), 14.0, "13.1 MB"),
}
MB = 1024
SETTLED_S = 2.0  # its children are started


def measure() -> list[Row]:
    """Return waiting memory in MB."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        source = payload(Path(name, "artifacts"))
        for number, (what, (flags, more, theirs)) in enumerate(WAITS.items()):
            ours, bare = _waiting_kb(Path(name, f"waiting{number}"), source, *flags)
            said = f"run that waits{what}, Pss of all its processes (bare python -I -S + {more} MB)"
            rows.append(Row(said, ours / MB, bare / MB + more, "MB", theirs))
    return rows


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


def _waiting_kb(root: Path, source: Path, *flags: str) -> tuple[float, float]:
    for directory in ("etc/containerd", "var/run/nri"):
        (root / directory).mkdir(parents=True)
    command = [sys.executable, "-m", "installer", "run", *arguments(root, source), *flags]
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
        try:
            time.sleep(SETTLED_S)
            until_it_sleeps(waiting.pid)
            found = sum(map(_pss_kb, _processes(waiting.pid))), _pss_kb(bare.pid)
        finally:
            waiting.send_signal(signal.SIGTERM)
            waiting.stderr.read()
            bare.kill()
    return found


def _processes(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _processes(int(child))


def _pss_kb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("Pss:")).split()[1])
