"""``make gpu-bundle``: all that a bare machine with a GPU lacks for the test, cut into parts that travel one by one.

Such a machine has no network: nodes' roots, engines, the programs' packages, the test image and NVIDIA's toolkit
come along. Its Python, its C compiler and its packages are not used.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

from tests.engines.cache import PROJECT, cache, locked
from tests.engines.roots import Roots, prepared
from tests.engines.versions import EngineSet, engine_sets, today
from tests.gpu import supply
from tests.support.waiting import HANGS_S

SOURCE: Final = "TOOLKIT_SOURCE"
SUITES: Final = ("trixie", "sid")  # containerd 1.7 and 2.x
PLACE: Final = PROJECT / "build/gpu"
PART: Final = 50 << 20  # bytes: with a copy of this repository it stays below 60 MiB
PIECE: Final = "piece"  # a part is a directory: what travels is named by its folder
TOLD: Final = "bundle.json"
STEPS: Final = "steps.txt"
STARTER: Final = "tests/gpu/on-machine"
# Nothing is compiled where the bundle goes, and no container of a driven step needs these shims.
UNUSED: Final = (
    *("usr/include", "usr/lib/*/*.a", "usr/share/doc", "usr/share/man"),
    *("usr/bin/containerd-shim", "usr/bin/containerd-shim-runc-v1"),
    *("usr/lib/containerd/*-fp*", "usr/lib/cni/*-fp"),
)
OF_DOCKER: Final = ("usr/sbin/dockerd", "usr/sbin/docker-proxy", "usr/bin/docker")


def wanted(found: list[EngineSet]) -> list[EngineSet]:
    """Return the engines that are driven: each containerd of the suites, and the newest dockerd."""
    rows = [row for row in found if row.suite in SUITES]
    nodes = [row for row in rows if not row.docker]
    dockers = [row for row in rows if row.docker]
    return nodes + dockers[-1:]


def pack(roots: Roots, engines: list[EngineSet], source: Path | None, target: Path) -> list[Path]:
    """Write the bundle below ``target``; return its parts, none larger than PART.

    Raises:
        RuntimeError: tar failed.
    """
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob(f"part-*/{PIECE}"):
        old.unlink()
        old.parent.rmdir()
    with tempfile.TemporaryDirectory(prefix="gpu-bundle-") as directory:
        scratch = Path(directory)
        supply.compile_programs(roots.base, scratch / "programs")
        if source is not None:
            supply.copy_toolkit(source, scratch / "toolkit")
        told = {
            "base": roots.base.name,
            "suites": {suite: roots.suites[suite].name for suite in SUITES},
            "site": roots.site.name,
            "python": roots.python,
            "engines": [asdict(row) for row in engines],
        }
        (scratch / TOLD).write_text(json.dumps(told, indent=1))
        # The starter is told where Python is by a name that never changes.
        (scratch / "base").symlink_to(roots.base.name)
        (scratch / "site").symlink_to(roots.site.name)
        # In one archive: what the roots share are hard links, and travels once.
        command = ["tar", "-cz", "--warning=no-file-changed", *(f"--exclude=*/{path}" for path in UNUSED)]
        with_docker = {row.suite for row in engines if row.docker}
        for suite in SUITES:
            if suite not in with_docker:
                command += [f"--exclude={roots.suites[suite].name}/{path}" for path in OF_DOCKER]
        command += ["-C", str(cache()), roots.base.name, roots.site.name]
        command += [roots.suites[suite].name for suite in SUITES]
        command += ["-C", str(scratch), *sorted(path.name for path in scratch.iterdir())]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
            assert archive.stdout is not None
            parts = list(_cut(archive.stdout, target))
            archive.wait(HANGS_S)
        # 1: a file changed meanwhile. A root's files never do; a new root beside it is linked to them.
        if archive.returncode not in {0, 1}:
            raise RuntimeError(f"tar gave {archive.returncode}")
    (target / STEPS).write_text("".join(f"{line}\n" for line in steps(parts, engines)))
    return parts


def _cut(archive: IO[bytes], target: Path) -> Iterator[Path]:
    number = 0
    while content := archive.read(PART):
        number += 1
        part = target / f"part-{number}"
        part.mkdir()
        (part / PIECE).write_bytes(content)
        yield part


def steps(parts: list[Path], engines: list[EngineSet]) -> Iterator[str]:
    """Yield the steps on the machine, each with what has to travel for it and its size."""
    yield "On the machine, as root, in a copy of this repository. The machine keeps build/ from step to step."
    number = 0
    for part in parts:
        number += 1
        size = sum(path.stat().st_size for path in part.iterdir()) / (1 << 20)
        name = part.relative_to(PROJECT) if part.is_relative_to(PROJECT) else part
        yield f"{number}. carry {name} ({size:.1f} MiB): {STARTER} add {name}"
    number += 1
    yield f"{number}. carry nothing: {STARTER} unpack"
    for row in engines:
        number += 1
        yield f"{number}. carry nothing: {STARTER} drive --engine {row}"


def unpacked(tree: Path) -> tuple[Roots, list[EngineSet]]:
    """Return what an unpacked bundle has; the project is where it is on this machine."""
    told = json.loads((tree / TOLD).read_text())
    site = tree / told["site"]
    (site / "project.pth").write_text(f"{PROJECT}\n")
    suites = {suite: tree / name for suite, name in told["suites"].items()}
    roots = Roots(tree / told["base"], suites, site, told["python"])
    return roots, [EngineSet(**row) for row in told["engines"]]


def main() -> int:
    """Pack; print the steps."""
    named = os.environ.get(SOURCE)
    with locked():
        found = today()
        roots = prepared(found)
    pack(roots, wanted(engine_sets(found)), Path(named) if named else None, PLACE)
    sys.stdout.write((PLACE / STEPS).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
