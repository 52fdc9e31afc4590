"""What is installed: whose it is, who may touch it, and which holes the program has that it is made from.

tests/test_integrity.py holds what lies in our directory; here is what lies elsewhere, and what stays.
"""

import re
import stat
import time
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.host.files import Host
from installer.model.facts import ConfigRow, EngineRow, Owner, Record, SpecialVersion, ToolkitRow
from installer.model.files import Layout
from installer.payload.access import (
    ask_version,
    drop_foreign,
    is_foreign_toolkit,
    list_exposed,
    restore_access,
)
from installer.payload.files import advise
from tests.support.site import Site

LAYOUT = Layout()
SAVED = LAYOUT.backups / "0123"
PIDS, SPECIFICATION = PurePosixPath("/run/ours"), PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
READABLE, WRITABLE = "readable by others than root", "writable by others than root"


def exposed(root: Path, path: PurePosixPath, mode: int) -> Host:
    """Return a host with a file or directory of that mode, and nothing else of ours."""
    place = root / str(path)[1:]
    place.parent.mkdir(0o700, parents=True)
    place.mkdir() if mode & 0o100 else place.touch()
    place.chmod(mode)
    return Host.under(PurePosixPath(root))


def holding(*directories: PurePosixPath) -> Record:
    row = ConfigRow(Owner.CDI, SPECIFICATION, None, None, (), ())
    return Record(configs=(row,), directories=directories, pid_file=PIDS / "toolkit.pid")


def flaws(host: Host, held: Record) -> dict[PurePosixPath, str]:
    return {path: flaw for path, _, flaw in list_exposed(host, LAYOUT, held)}


@pytest.mark.parametrize(
    ("path", "mode", "made", "left"),
    [
        (SAVED, 0o644, (), 0o600),
        (SPECIFICATION, 0o666, (), 0o644),
        (PIDS, 0o777, (PIDS,), 0o755),
        (SPECIFICATION.parent, 0o777, (SPECIFICATION.parent,), 0o755),
        (SPECIFICATION.parent, 0o777, (), 0o777),  # of others: it is told alone
    ],
)
def test_access_to_our_own_paths_is_restricted_again(
    tmp_path: Path, path: PurePosixPath, mode: int, made: tuple[PurePosixPath, ...], left: int
) -> None:
    host, held = exposed(tmp_path, path, mode), holding(*made)

    assert flaws(host, held) == {path: READABLE if path == SAVED else WRITABLE}
    restore_access(host, LAYOUT, held)

    assert stat.S_IMODE((tmp_path / str(path)[1:]).stat().st_mode) == left
    assert bool(flaws(host, held)) is (left == mode)


def test_a_sticky_directory_and_a_link_keep_others_away_by_themselves(tmp_path: Path) -> None:
    host = exposed(tmp_path, PIDS, 0o1777)
    (tmp_path / "var/run/cdi").mkdir(parents=True)
    (tmp_path / str(SPECIFICATION)[1:]).symlink_to("elsewhere")

    assert flaws(host, holding()) == {}


# Rows that are not ours any more, because the toolkit of another installer stands in the place of ours.

HOME = "usr/local/nvidia"
KIND = PurePosixPath("/run/cdi/management.nvidia.com-gpu.yaml")
RUNTIME = LAYOUT.toolkit / "nvidia-container-runtime"
ROW = ConfigRow(Owner.CDI, KIND, None, None, ("digest",), ())
ENGINE = EngineRow("docker", PurePosixPath("/s"), "docker.service", {"nvidia": RUNTIME})
HELD = Record(toolkit=ToolkitRow("1", None, ""), engines=(ENGINE,), configs=(ROW,), finished=True)
WITHOUT_TOOLKIT = replace(HELD, toolkit=None, engines=())
WITH_NOTHING = replace(WITHOUT_TOOLKIT, configs=())
TAKEN_OVER = replace(HELD, toolkit=ToolkitRow(SpecialVersion.ADOPTED, None, ""))
OURS = ".toolkit-installer/versions/1"
TICK_S = 0.02  # the kernel's clock of files


@pytest.mark.parametrize(
    ("place", "link", "held", "left"),
    [
        ("toolkit", None, HELD, WITHOUT_TOOLKIT),
        ("elsewhere", "elsewhere", HELD, WITHOUT_TOOLKIT),
        ("toolkit", None, HELD, WITH_NOTHING),
        (OURS, OURS, HELD, HELD),
        (OURS, f"/{HOME}/{OURS}", HELD, HELD),
        ("toolkit", None, TAKEN_OVER, TAKEN_OVER),
    ],
    ids=["CDI from before it", "a link to theirs", "CDI since then", "ours", "by its whole path", "adopted"],
)
def test_rows_written_after_another_installers_toolkit_are_dropped(
    tmp_path: Path, place: str, link: str | None, held: Record, left: Record
) -> None:
    specification, program = tmp_path / str(KIND)[1:], tmp_path / HOME / place / RUNTIME.name
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


# A payload with known holes is named with them, by what its own program says.

IN_1_17_7 = ["CVE-2025-23266", "CVE-2025-23267"]
IN_1_17_3 = [*IN_1_17_7, "CVE-2025-23359"]
IN_1_16_1 = [*IN_1_17_3, *(f"CVE-2024-013{number}" for number in (5, 6, 7, 4, 2, 3))]


@pytest.mark.parametrize(
    ("version", "holes"),
    [((1, 17, 8), []), ((1, 17, 7), IN_1_17_7), ((1, 17, 3), IN_1_17_3), ((1, 16, 1), IN_1_16_1), (None, [])],
)
def test_each_hole_is_named_below_the_version_that_closed_it(
    version: tuple[int, ...] | None, holes: list[str]
) -> None:
    assert re.findall(r"CVE-[0-9-]+", " ".join(advise(version))) == holes


@pytest.mark.parametrize(
    ("says", "found"),
    [
        # As nvidia-ctk 1.17.4 says it.
        ("#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version 1.17.4'\necho 'commit: 9b69'\n", (1, 17, 4)),
        ("#!/bin/sh\nsleep 60\n", (1, 99, 0)),
        ("\x7fELF", (1, 99, 0)),
        ("#!/bin/sh\necho CLI version 1.9999999999.1\n", (1, 99, 0)),
    ],
    ids=["a release", "no answer: its library's name", "nothing that runs here", "nonsense"],
)
def test_the_version_is_asked_of_the_program(site: Site, says: str, found: tuple[int, ...]) -> None:
    (site.source / "usr/local/sbin/nvidia-ctk").write_text(says)

    assert ask_version(PurePosixPath(site.source), {}) == found


def test_plan_and_install_name_the_holes_and_install_all_the_same(site: Site) -> None:
    for library in site.source.rglob("libnvidia-container.so.1.99.0"):
        library.rename(library.with_name("libnvidia-container.so.1.17.4"))
        link = library.with_name("libnvidia-container.so.1")
        link.unlink()
        link.symlink_to("libnvidia-container.so.1.17.4")

    planned, done = site.call("plan"), site.install()

    assert planned.returncode == 10
    assert "the toolkit 1.17.4 has known holes (CVE-2025-23266, CVE-2025-23267)" in planned.stdout
    assert "CVE-2025-23266" in done.stderr
