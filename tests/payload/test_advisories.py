"""A payload with known holes is named with them, by what its own program says."""

import re
from pathlib import Path, PurePosixPath

import pytest

from installer.payload.files import advise
from installer.payload.installed import ask_version
from tests.support.site import Site

IN_1_17_7 = ["CVE-2025-23266", "CVE-2025-23267"]
IN_1_17_3 = [*IN_1_17_7, "CVE-2025-23359"]
IN_1_16_1 = [
    *IN_1_17_3,
    *(f"CVE-2024-{number}" for number in ("0135", "0136", "0137", "0134", "0132", "0133")),
]


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
def test_the_version_is_asked_of_the_program(tmp_path: Path, says: str, found: tuple[int, ...]) -> None:
    site = Site(tmp_path)
    (site.source / "usr/local/sbin/nvidia-ctk").write_text(says)

    assert ask_version(PurePosixPath(site.source), {}) == found


def test_plan_and_install_name_the_holes_and_install_all_the_same(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for library in site.source.rglob("libnvidia-container.so.1.99.0"):
        library.rename(library.with_name("libnvidia-container.so.1.17.4"))
        link = library.with_name("libnvidia-container.so.1")
        link.unlink()
        link.symlink_to("libnvidia-container.so.1.17.4")

    planned, done = site.call("plan"), site.call("install")

    assert (planned.returncode, done.returncode) == (10, 0)
    assert "the toolkit 1.17.4 has known holes (CVE-2025-23266, CVE-2025-23267)" in planned.stdout
    assert "CVE-2025-23266" in done.stderr
