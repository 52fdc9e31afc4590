"""Rows that are not ours any more, because the toolkit of another installer stands in the place of ours."""

import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.host.files import Host
from installer.model.facts import ADOPTED, OWNER, ConfigRow, EngineRow, Record, ToolkitRow
from installer.model.files import Layout
from installer.payload.installed import drop_foreign, is_foreign_toolkit

LAYOUT = Layout()
SPECIFICATION = PurePosixPath("/run/cdi/management.nvidia.com-gpu.yaml")
RUNTIME = LAYOUT.toolkit / "nvidia-container-runtime"
ROW = ConfigRow(OWNER, SPECIFICATION, None, None, ("digest",), ())
ENGINE = EngineRow("docker", PurePosixPath("/s"), "docker.service", {"nvidia": RUNTIME})
HELD = Record(toolkit=ToolkitRow("1", None, ""), engines=(ENGINE,), configs=(ROW,), finished=True)
TICK_S = 0.02  # the kernel's clock of files


def _host(root: Path) -> Host:
    (root / "run/cdi").mkdir(parents=True)
    (root / "usr/local/nvidia").mkdir(parents=True)
    return Host.under(PurePosixPath(root))


def _theirs(root: Path, name: str = "toolkit") -> None:
    toolkit = root / "usr/local/nvidia" / name
    toolkit.mkdir(parents=True)
    (toolkit / RUNTIME.name).write_text("#! /bin/sh\n")


def _specification(root: Path) -> None:
    time.sleep(TICK_S)
    (root / str(SPECIFICATION)[1:]).write_text("the same, whoever writes it\n")
    time.sleep(TICK_S)


def test_a_specification_from_before_their_toolkit_is_ours_and_the_engines_are_not(tmp_path: Path) -> None:
    host = _host(tmp_path)
    _specification(tmp_path)
    _theirs(tmp_path)

    assert drop_foreign(host, LAYOUT, HELD) == replace(HELD, toolkit=None, engines=())


def test_one_that_was_written_since_is_theirs_whatever_it_says(tmp_path: Path) -> None:
    host = _host(tmp_path)
    _theirs(tmp_path)
    _specification(tmp_path)

    assert drop_foreign(host, LAYOUT, HELD) == replace(HELD, toolkit=None, engines=(), configs=())


def test_a_link_of_somebody_else_counts_as_a_directory_does(tmp_path: Path) -> None:
    host = _host(tmp_path)
    _theirs(tmp_path, "elsewhere")
    (tmp_path / "usr/local/nvidia/toolkit").symlink_to("elsewhere")

    assert is_foreign_toolkit(host, LAYOUT)


def _ours(root: Path) -> None:
    _theirs(root, ".toolkit-installer/versions/1")
    (root / "usr/local/nvidia/toolkit").symlink_to(".toolkit-installer/versions/1")


def _ours_by_its_whole_path(root: Path) -> None:
    _theirs(root, ".toolkit-installer/versions/1")
    (root / "usr/local/nvidia/toolkit").symlink_to("/usr/local/nvidia/.toolkit-installer/versions/1")


def _empty(root: Path) -> None:
    (root / "usr/local/nvidia/toolkit").mkdir()


@pytest.mark.parametrize("act", [_ours, _ours_by_its_whole_path, _empty])
def test_without_programs_of_somebody_else_all_stays_ours(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    host = _host(tmp_path)
    act(tmp_path)

    assert drop_foreign(host, LAYOUT, HELD) == HELD


def test_a_toolkit_that_was_adopted_is_ours_to_remove(tmp_path: Path) -> None:
    host = _host(tmp_path)
    _theirs(tmp_path)
    adopted = replace(HELD, toolkit=ToolkitRow(ADOPTED, None, ""))

    assert drop_foreign(host, LAYOUT, adopted) == adopted
