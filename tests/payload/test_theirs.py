"""Rows that are not ours any more, because the toolkit of another installer stands in the place of ours."""

import time
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.host.files import Host
from installer.model.facts import ADOPTED, OWNER, ConfigRow, EngineRow, Record, ToolkitRow
from installer.model.files import Layout
from installer.payload.installed import drop_foreign, is_foreign_toolkit

LAYOUT = Layout()
HOME = "usr/local/nvidia"
SPECIFICATION = PurePosixPath("/run/cdi/management.nvidia.com-gpu.yaml")
RUNTIME = LAYOUT.toolkit / "nvidia-container-runtime"
ROW = ConfigRow(OWNER, SPECIFICATION, None, None, ("digest",), ())
ENGINE = EngineRow("docker", PurePosixPath("/s"), "docker.service", {"nvidia": RUNTIME})
HELD = Record(toolkit=ToolkitRow("1", None, ""), engines=(ENGINE,), configs=(ROW,), finished=True)
WITHOUT_TOOLKIT = replace(HELD, toolkit=None, engines=())
WITH_NOTHING = replace(WITHOUT_TOOLKIT, configs=())
TAKEN_OVER = replace(HELD, toolkit=ToolkitRow(ADOPTED, None, ""))
OURS = ".toolkit-installer/versions/1"
TICK_S = 0.02  # the kernel's clock of files


@pytest.mark.parametrize(
    ("place", "link", "held", "left"),
    [
        pytest.param("toolkit", None, HELD, WITHOUT_TOOLKIT, id="a specification from before it"),
        pytest.param("elsewhere", "elsewhere", HELD, WITHOUT_TOOLKIT, id="a link to theirs"),
        pytest.param("toolkit", None, HELD, WITH_NOTHING, id="a specification since then"),
        pytest.param(OURS, OURS, HELD, HELD, id="ours"),
        pytest.param(OURS, f"/{HOME}/{OURS}", HELD, HELD, id="ours by its whole path"),
        pytest.param("toolkit", None, TAKEN_OVER, TAKEN_OVER, id="one that was adopted"),
    ],
)
def test_what_stands_since_their_toolkit_is_theirs_and_all_else_stays_ours(
    tmp_path: Path, place: str, link: str | None, held: Record, left: Record
) -> None:
    specification, program = tmp_path / str(SPECIFICATION)[1:], tmp_path / HOME / place / RUNTIME.name
    for written in (program, specification) if left is WITH_NOTHING else (specification, program):
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text("the same, whoever writes it\n")
        time.sleep(TICK_S)
    if link:
        (tmp_path / HOME / "toolkit").symlink_to(link)
    host = Host.under(PurePosixPath(tmp_path))

    assert drop_foreign(host, LAYOUT, held) == left
    assert held is TAKEN_OVER or is_foreign_toolkit(host, LAYOUT) is (left != held)


def test_an_empty_directory_is_nobodys_toolkit(tmp_path: Path) -> None:
    (tmp_path / HOME / "toolkit").mkdir(parents=True)

    assert drop_foreign(Host.under(PurePosixPath(tmp_path)), LAYOUT, HELD) == HELD
