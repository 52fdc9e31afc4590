"""Who waits for a slow disk is told how far the copy is; who does not wait is told nothing."""

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from installer.host import trees
from installer.host.events import log
from installer.host.trees import Progress
from installer.model.files import Copy, PayloadFile, Text
from tests.support.site import PROJECT, Site

MB = 1 << 20
FILES: tuple[PayloadFile, ...] = (
    Copy(PurePosixPath("a"), PurePosixPath("/a"), 30 * MB, "", 0o755),
    Text(PurePosixPath("b"), "b", 0o755),
    Copy(PurePosixPath("c"), PurePosixPath("/c"), 70 * MB, "", 0o755),
)


@pytest.mark.parametrize(
    ("after_s", "told"), [(0.0, [(30, 100), (30, 100)]), (3600.0, [])], ids=["slow", "as usual"]
)
def test_a_copy_that_takes_long_tells_how_far_it_is(
    after_s: float, told: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(trees, "TELL_S", after_s)
    monkeypatch.setattr(
        log, "write", lambda _level, _event, fields: said.append((fields["mb"], fields["of_mb"]))
    )
    put: list[PayloadFile] = []

    copy = Progress(FILES).of(put.append)
    for file in FILES:
        copy(file)

    assert tuple(put) == FILES
    assert said == told


def test_an_install_tells_how_far_the_copy_of_its_toolkit_is(tmp_path: Path) -> None:
    program = (
        "from installer.host import trees; trees.TELL_S = 0.0; from installer.cli.program import main; main()"
    )
    command = [sys.executable, "-c", program, *Site(tmp_path).command("install")[3:]]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=PROJECT)

    assert done.returncode == 0, done.stderr
    assert '"event": "toolkit partly copied"' in done.stderr
