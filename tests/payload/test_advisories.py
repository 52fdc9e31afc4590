"""A payload with known holes is named with them, by what its own program says."""

from pathlib import Path, PurePosixPath

import pytest

from installer.payload.files import advise
from installer.payload.installed import ask_version
from tests.support.site import Site

PROGRAM = "usr/local/sbin/nvidia-ctk"
# As nvidia-ctk 1.17.4 says it.
SAYS = "#!/bin/sh\necho 'NVIDIA Container Toolkit CLI version {}'\necho 'commit: 9b69590c7428470a72f2ae05f826412976af1395'\n"


@pytest.mark.parametrize(
    ("version", "holes"),
    [
        pytest.param((1, 17, 8), [], id="fixed"),
        pytest.param((1, 18, 0), [], id="later"),
        pytest.param((1, 17, 7), ["CVE-2025-23266", "CVE-2025-23267"], id="before 1.17.8"),
        pytest.param((1, 17, 3), ["CVE-2025-23266", "CVE-2025-23267", "CVE-2025-23359"], id="before 1.17.4"),
        pytest.param(
            (1, 16, 1),
            [
                *("CVE-2025-23266", "CVE-2025-23267", "CVE-2025-23359"),
                *("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137", "CVE-2024-0134"),
                *("CVE-2024-0132", "CVE-2024-0133"),
            ],
            id="before 1.16.2",
        ),
        pytest.param(None, [], id="nobody knows"),
    ],
)
def test_each_hole_is_named_below_the_version_that_closed_it(
    version: tuple[int, ...] | None, holes: list[str]
) -> None:
    said = " ".join(advise(version))

    assert [
        word for word in said.replace(",", "").replace(")", "").replace("(", "").split() if "CVE" in word
    ] == [f"{hole}:" if hole == holes[-1] else hole for hole in holes]


@pytest.mark.parametrize(
    ("says", "found"),
    [
        pytest.param(SAYS.format("1.17.4"), (1, 17, 4), id="a release"),
        pytest.param(SAYS.format("1.18.0-rc.1"), (1, 18, 0), id="one to come"),
        pytest.param("#!/bin/sh\nexit 1\n", (1, 99, 0), id="a refusal: its library's name"),
        pytest.param("#!/bin/sh\nsleep 60\n", (1, 99, 0), id="no answer"),
        pytest.param("\x7fELF", (1, 99, 0), id="nothing that runs here"),
        pytest.param("#!/bin/sh\necho CLI version 1.9999999999.1\n", (1, 99, 0), id="nonsense"),
    ],
)
def test_the_version_is_asked_of_the_program(tmp_path: Path, says: str, found: tuple[int, ...]) -> None:
    site = Site(tmp_path)
    (site.source / PROGRAM).write_text(says)

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
