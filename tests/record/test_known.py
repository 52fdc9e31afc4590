"""What was hashed once is not read again until it is changed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.host.digests import LARGE_BYTES, Known, settled_mark
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.site import Site

TOOLKIT = "usr/local/nvidia/toolkit"
KEPT = f"{TOOLKIT}/.config/digests"
PROGRAM = "nvidia-ctk"
TICK_S = 0.05


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a node with a toolkit whose programs are long enough to be worth it."""
    site = Site(tmp_path)
    for path in site.source.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(path.read_bytes() + bytes(LARGE_BYTES))
    time.sleep(TICK_S)
    assert site.call("install").returncode == 0
    return site


def tampered(path: Path) -> None:
    """Change a byte, and let size and times be as they were."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def source_of(site: Site) -> Path:
    return next(path for path in site.source.rglob(PROGRAM) if path.is_file())


def test_the_second_install_knows_all_and_writes_nothing(site: Site) -> None:
    kept = (site.root / KEPT).read_text().splitlines()
    before = site.tree(times=True)

    done = site.call("install")

    assert "nothing changed" in done.stderr
    assert site.tree(times=True) == before
    sources = [path for path in site.source.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(kept) == 2 * len(sources)
    assert {line.split()[0] for line in kept} >= {settled_mark(str(path)) for path in sources}


def with_a_shell(site: Site) -> None:
    (site.root / "bin").mkdir(exist_ok=True)
    (site.root / "bin/sh").write_text("")


def test_the_second_install_does_not_ask_a_program_for_its_version_again(site: Site) -> None:
    with_a_shell(site)
    program, asked = source_of(site), site.root / "asked"
    says = f"#!/bin/sh\necho >>{asked}\necho NVIDIA Container Toolkit CLI version 1.14.0\nexit\n"
    program.write_bytes(says.encode() + bytes(LARGE_BYTES))
    time.sleep(TICK_S)
    notes = [site.call("install").stderr.count("1.14.0 has known holes") for _ in range(2)]

    assert notes == [1, 1]
    assert asked.read_text() == "\n"


def test_a_program_that_was_changed_is_asked_for_its_version_again(site: Site) -> None:
    with_a_shell(site)
    program = source_of(site)
    for version in ("1.14.0", "1.16.0"):
        says = f"#!/bin/sh\necho NVIDIA Container Toolkit CLI version {version}\nexit\n"
        program.write_bytes(says.encode() + bytes(LARGE_BYTES))
        time.sleep(TICK_S)

        assert f"{version} has known holes" in site.call("install").stderr


def test_a_program_that_was_changed_behind_its_times_is_installed_anew(site: Site) -> None:
    program = site.root / TOOLKIT / f"{PROGRAM}.real"
    before = program.read_bytes()
    tampered(program)

    assert site.call("install").returncode == 0

    assert program.read_bytes() == before
    assert site.status("--deep").returncode == 0


def test_a_source_that_was_changed_behind_its_times_is_another_toolkit(site: Site) -> None:
    source = source_of(site)
    before = (site.root / TOOLKIT).readlink()
    tampered(source)

    assert site.call("install").returncode == 0

    assert (site.root / TOOLKIT).readlink() != before
    assert (site.root / TOOLKIT / f"{PROGRAM}.real").read_bytes() == source.read_bytes()


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILT: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "no lines": lambda path: path.write_bytes(b"\xff\0\n" * 9),
    "words too many": lambda path: path.write_text("a b c\n"),
    "for all to write": lambda path: path.chmod(0o666),
    "a directory": replaced_by_a_directory,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_without_digests_that_can_be_believed_all_is_read(
    site: Site, spoil: Callable[[Path], object]
) -> None:
    spoil(site.root / KEPT)

    assert site.call("install").returncode == 0
    assert site.status("--deep").returncode == 0


@only_as_root
def test_digests_of_somebody_else_are_not_believed(site: Site) -> None:
    kept = site.root / KEPT
    program = site.root / TOOLKIT / f"{PROGRAM}.real"
    tampered(program)
    time.sleep(TICK_S)
    honest = next(
        line.split()[1]
        for line in kept.read_text().splitlines()
        if line.split()[0] == settled_mark(str(source_of(site)))
    )
    kept.write_text(kept.read_text() + f"{settled_mark(str(program))} {honest}\n")
    os.chown(kept, NOBODY, NOBODY)

    assert site.call("install").returncode == 0

    assert program.read_bytes() == source_of(site).read_bytes()


def test_nothing_of_them_is_left_after_an_uninstall(site: Site) -> None:
    assert site.call("uninstall").returncode == 0

    assert not (site.root / "usr/local/nvidia").exists()


def test_a_mark_stands_for_its_digest_and_nothing_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(LARGE_BYTES))
    time.sleep(TICK_S)
    known = Known({settled_mark(str(file)): "as said"})

    assert known.digest_of(str(file), known.sources) == "as said"
    tampered(file)
    time.sleep(TICK_S)
    assert known.digest_of(str(file), known.sources) != "as said"


def test_what_is_small_or_just_written_has_no_mark(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(bytes(LARGE_BYTES - 1))
    young = []
    for _ in range(50):  # a busy machine may take longer than a tick for one
        (tmp_path / "large").write_bytes(bytes(LARGE_BYTES))
        young.append(settled_mark(str(tmp_path / "large")))
    time.sleep(TICK_S)

    assert settled_mark(str(tmp_path / "small")) == ""
    assert "" in young
    assert settled_mark(str(tmp_path / "large")) != ""
    assert settled_mark(str(tmp_path / "none")) == ""


def test_a_time_that_an_image_was_made_with_gives_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(LARGE_BYTES))
    found = list(os.lstat(file))
    # As ext4 images of two payloads had it whose times were those of SOURCE_DATE_EPOCH: nothing else differed.
    of_image = os.stat_result((*found[:9], 1700000000), {"st_ctime_ns": 1700000000 * 10**9})
    monkeypatch.setattr(os, "lstat", lambda _: of_image)

    assert settled_mark(str(file)) == ""
