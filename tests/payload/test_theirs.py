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


def toolkit(root: Path, name: str = "toolkit") -> None:
    directory = root / "usr/local/nvidia" / name
    directory.mkdir(parents=True)
    (directory / RUNTIME.name).write_text("#! /bin/sh\n")


def specification(root: Path) -> None:
    time.sleep(TICK_S)
    (root / str(SPECIFICATION)[1:]).write_text("the same, whoever writes it\n")
    time.sleep(TICK_S)


def a_link(root: Path) -> None:
    toolkit(root, "elsewhere")
    (root / "usr/local/nvidia/toolkit").symlink_to("elsewhere")


def ours(root: Path) -> None:
    toolkit(root, ".toolkit-installer/versions/1")
    (root / "usr/local/nvidia/toolkit").symlink_to(".toolkit-installer/versions/1")


def ours_by_its_whole_path(root: Path) -> None:
    toolkit(root, ".toolkit-installer/versions/1")
    (root / "usr/local/nvidia/toolkit").symlink_to("/usr/local/nvidia/.toolkit-installer/versions/1")


def empty(root: Path) -> None:
    (root / "usr/local/nvidia/toolkit").mkdir()


WITHOUT_TOOLKIT = replace(HELD, toolkit=None, engines=())
WITH_NOTHING = replace(WITHOUT_TOOLKIT, configs=())
TAKEN_OVER = replace(HELD, toolkit=ToolkitRow(ADOPTED, None, ""))


@pytest.mark.parametrize(
    ("acts", "held", "left"),
    [
        pytest.param((specification, toolkit), HELD, WITHOUT_TOOLKIT, id="a specification from before it"),
        pytest.param((specification, a_link), HELD, WITHOUT_TOOLKIT, id="a link to theirs"),
        pytest.param((toolkit, specification), HELD, WITH_NOTHING, id="a specification since then"),
        pytest.param((ours,), HELD, HELD, id="ours"),
        pytest.param((ours_by_its_whole_path,), HELD, HELD, id="ours by its whole path"),
        pytest.param((empty,), HELD, HELD, id="an empty directory"),
        pytest.param((toolkit,), TAKEN_OVER, TAKEN_OVER, id="one that was adopted"),
    ],
)
def test_what_stands_since_their_toolkit_is_theirs_and_all_else_stays_ours(
    tmp_path: Path, acts: tuple[Callable[[Path], None], ...], held: Record, left: Record
) -> None:
    for directory in ("run/cdi", "usr/local/nvidia"):
        (tmp_path / directory).mkdir(parents=True)
    for act in acts:
        act(tmp_path)
    host = Host.under(PurePosixPath(tmp_path))

    assert drop_foreign(host, LAYOUT, held) == left
    assert held is TAKEN_OVER or is_foreign_toolkit(host, LAYOUT) is (left != held)
