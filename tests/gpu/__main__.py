"""``make test-gpu``: on a machine with an NVIDIA GPU, whether containers reach it by CDI and by our runtime."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from installer.decide.errors import InstallerError
from tests.engines.cache import PROJECT
from tests.gpu.machine import Machine, installed, lacks

SOURCE: Final = "TOOLKIT_SOURCE"
# The driver's own API: neither CUDA's toolkit nor anything else of it is needed in the container.
CUDA: Final = """
import ctypes, json
cuda, count, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
codes = [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDriverGetVersion(ctypes.byref(version))]
print(json.dumps({"codes": codes, "devices": count.value, "version": version.value}))
"""
WITHOUT: Final = """
import ctypes
try:
    ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(error)
"""


def reached(said: str) -> str:
    """Return what a container says of its GPUs.

    Raises:
        RuntimeError: it does not reach one.
    """
    told = json.loads(said)
    if any(told["codes"]) or told["devices"] < 1:
        raise RuntimeError(f"CUDA says {said.strip()}")
    return f"{told['devices']} devices, CUDA {told['version'] // 1000}.{told['version'] % 1000 // 10}"


def same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return what two specifications have in common.

    Raises:
        RuntimeError: they differ in what a container gets; the hook's path and the version may.
    """
    differ = sorted({*_edits(ours)} ^ {*_edits(theirs)})
    if differ:
        raise RuntimeError(f"ours and nvidia-ctk's differ: {'; '.join(differ)}")
    return f"{len(ours['devices'])} devices, {len({*_edits(ours)})} edits"


def _edits(specification: Mapping[str, Any]) -> Iterator[str]:
    """Yield each edit of a specification as a text; the path of a hook is left out."""
    named = [("", specification.get("containerEdits", {}))]
    named += [(each["name"], each["containerEdits"]) for each in specification["devices"]]
    for name, edits in named:
        for kind, values in edits.items():
            for value in values:
                said = {**value, "path": ""} if kind == "hooks" else value
                yield f"{name or 'all devices'}, {kind}: {json.dumps(said, sort_keys=True)}"


def checks(machine: Machine) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what is tried, and the function that tells how it went, or raises."""
    yield "the CDI specification is nvidia-ctk's", lambda: same(machine.ours(), machine.theirs())
    yield "no CUDA without a wish", lambda: unreached(machine.by_nothing(WITHOUT))
    for each in machine.ours()["devices"]:
        yield f"by CDI, {each['name']}", partial(_by_cdi, machine, each["name"])
    yield "by our runtime", lambda: reached(machine.by_runtime(CUDA))


def _by_cdi(machine: Machine, name: str) -> str:
    return reached(machine.by_cdi(name, CUDA))


def unreached(said: str) -> str:
    """Return why a container does not find CUDA.

    Raises:
        RuntimeError: it does, so its root is no proof of anything.
    """
    if not said.strip():
        raise RuntimeError("libcuda is there without a wish")
    return said.strip()


def main() -> int:
    """Try all; return 1 where something is not as it should be, or this machine lacks what is needed."""
    source = Path(os.environ.get(SOURCE, "/"))
    if lack := lacks(source):
        sys.stderr.write(f"test-gpu cannot run on this machine, which lacks {lack}\n")
        return 1
    build, good = PROJECT / "build", True
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as directory, installed(source, Path(directory)) as machine:
        for what, tell in checks(machine):
            good = tried(what, tell) and good
    return 0 if good else 1


def tried(what: str, tell: Callable[[], str]) -> bool:
    """Print how one check went; return whether well."""
    try:
        sys.stdout.write(f"ok  {what}: {tell()}\n")
    except (KeyError, RuntimeError, ValueError, subprocess.CalledProcessError, InstallerError) as error:
        sys.stdout.write(f"BAD {what}: {error!r}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
