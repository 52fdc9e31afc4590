"""What ``make test-gpu`` does on a machine with a GPU, with stand-ins for the GPU's driver and the toolkit."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.cache import PROJECT
from tests.engines.roots import Roots
from tests.engines.versions import EngineSet
from tests.gpu import supply
from tests.gpu.engines import drive
from tests.gpu.pack import PIECE, STARTER, STEPS, pack, wanted
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.night

LIMIT = 60 << 20
THEIRS = "NVIDIA's own installer"
NRI = "CUDA by NRI, by annotation"
UNTRIED = {"containerd-1.7": [NRI, THEIRS], "containerd-2": [THEIRS], "dockerd": [NRI, THEIRS]}


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="test-gpu-") as directory:
        yield Path(directory)


def _named(engines: list[EngineSet], name: str) -> EngineSet:
    return next(row for row in wanted(engines) if str(row).startswith(name))


@pytest.mark.parametrize("name", UNTRIED)
def test_every_step_but_the_gpus_own_answer_goes_well(
    roots: Roots, engines_today: list[EngineSet], scratch: Path, name: str
) -> None:
    supply.compile_programs(roots.base, scratch)

    rows = list(drive(roots, _named(engines_today, name), scratch, None))

    assert [str(row) for row in rows if row.result == "BAD"] == []
    assert [row.step for row in rows if row.result == "--"] == UNTRIED[name]
    assert len(rows) > 20


def test_a_step_that_fails_is_told_and_stops_no_other(
    roots: Roots, engines_today: list[EngineSet], scratch: Path
) -> None:
    supply.compile_programs(roots.base, scratch)
    (scratch / "nvidia-smi").write_text("no program\n")

    rows = list(drive(roots, _named(engines_today, "containerd-2"), scratch, None))

    bad = ["nvidia-smi by the runtime nvidia", "nvidia-smi by CDI"]
    assert [row.step for row in rows if row.result == "BAD"] == bad
    assert rows[-1].step == THEIRS


def test_the_bundle_travels_in_parts_and_needs_nothing_but_a_shell_and_tools_of_util_linux(
    roots: Roots, engines_today: list[EngineSet], scratch: Path
) -> None:
    engines = _named(engines_today, "containerd-2")

    parts = pack(roots, [engines], None, scratch / "bundle")

    sizes = [(part / PIECE).stat().st_size for part in parts]
    steps = (scratch / "bundle" / STEPS).read_text()
    assert max(sizes) < LIMIT
    assert [part for part in parts if f"carry {part} (" not in steps] == []
    assert f"drive --engine {engines}" in steps

    environment = {"PATH": os.environ["PATH"], "GPU_BUNDLE": str(scratch / "machine")}
    verbs = [*(("add", str(part)) for part in parts), ("unpack",), ("drive", "--stand-in")]
    for verb in verbs:
        done = subprocess.run(
            [str(PROJECT / STARTER), *verb],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    assert "24 ok, 0 BAD, 1 not tried" in done.stdout
