"""``make test-gpu``: on a machine with an NVIDIA GPU, whether containers reach it by CDI and by our runtime."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from installer.errors import InstallerError
from tests.gpu.machine import PLACES, Machine, installed, lacks, place

SOURCE: Final = "TOOLKIT_SOURCE"
BAD: Final = (KeyError, OSError, RuntimeError, ValueError, subprocess.SubprocessError, InstallerError)
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
    """Return what a container says of its GPUs; raise RuntimeError where it reaches none."""
    if not said.startswith("{"):
        raise RuntimeError(said.strip())
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
                said = value
                if kind == "hooks":
                    said = {**value, "path": ""}
                elif kind == "deviceNodes":  # on the host where it is in a container, said or not
                    said = {"hostPath": value["path"], **value}
                yield f"{name or 'all devices'}, {kind}: {json.dumps(said, sort_keys=True)}"


def checks(machine: Machine) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what is tried, and the function that tells how it went, or raises."""
    yield "the CDI specification is nvidia-ctk's", lambda: same(machine.ours(), machine.theirs())
    yield "no CUDA without a wish", lambda: _unreached(machine.by_nothing(WITHOUT))
    with suppress(RuntimeError):  # there is no specification, which the first check tells
        for name in [each["name"] for each in machine.ours()["devices"]]:
            yield f"by CDI, {name}", partial(_by_cdi, machine, name)
    yield "by our runtime", lambda: reached(machine.by_runtime(CUDA))


def _by_cdi(machine: Machine, name: str) -> str:
    return reached(machine.by_cdi(name, CUDA))


def _unreached(said: str) -> str:
    """Return why a container does not find CUDA; raise RuntimeError where it does: its root proves nothing."""
    if not said.strip():
        raise RuntimeError("libcuda is there without a wish")
    return said.strip()


def main() -> int:
    """Try all; return 1 where something is not as it should be, or this machine lacks what is needed."""
    source = Path(os.environ.get(SOURCE, "/"))
    if lack := lacks(source):
        return _lacking(lack)
    if (directory := place()) is None:
        return _lacking(f"a directory that root alone can change and programs start from, of {PLACES}")
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        try:
            with installed(source, Path(scratch)) as machine:
                went = [_tried(what, tell) for what, tell in checks(machine)]  # one that fails stops no other
        except InstallerError as error:
            sys.stderr.write(f"test-gpu could not install the toolkit, or take it back: {error}\n")
            return 1
    return 0 if all(went) else 1


def _lacking(what: str) -> int:
    sys.stderr.write(f"test-gpu cannot run on this machine, which lacks {what}\n")
    return 1


def _tried(what: str, tell: Callable[[], str]) -> bool:
    """Print how one check went; return whether well."""
    try:
        sys.stdout.write(f"ok  {what}: {tell()}\n")
    except BAD as error:
        sys.stdout.write(f"BAD {what}: {error!r}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
