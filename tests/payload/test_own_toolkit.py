"""A program is hashed at its copy, and read again once it has changed; its source is believed by its SHA256SUMS."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from installer.host.trees import LARGE_BYTES, mark_of
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
    site.install()
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


def with_sums(site: Site) -> None:
    """Write the source's SHA256SUMS as the build of an image does."""
    command = "find . -type f ! -name SHA256SUMS -exec sha256sum {} + >SHA256SUMS"
    subprocess.run(["sh", "-c", command], cwd=site.source, check=True)


def test_each_large_program_is_noted_at_its_copy_and_a_second_install_writes_nothing(site: Site) -> None:
    before = site.tree(times=True)

    assert "nothing changed" in site.install().stderr
    assert site.tree(times=True) == before
    found = [path for path in (site.root / TOOLKIT).iterdir() if not path.is_symlink()]
    large = {mark_of(str(path)) for path in found if path.stat().st_size >= LARGE_BYTES}
    assert large
    assert {line.split()[0] for line in (site.root / KEPT).read_text().splitlines()} == large


@pytest.mark.parametrize("sums", ["none", "of other files", "of all files"])
def test_a_source_that_was_changed_behind_its_times_is_read_unless_its_sums_name_it(
    site: Site, sums: str
) -> None:
    source, before = source_of(site), (site.root / TOOLKIT).readlink()
    with_sums(site)
    kept = site.source / "SHA256SUMS"
    if sums == "none":
        kept.unlink()
    elif sums == "of other files":
        lines = kept.read_text().splitlines(keepends=True)
        kept.write_text("".join(line for line in lines if not line.endswith(f"/{PROGRAM}\n")))
    tampered(source)

    done = site.install()

    believed = sums == "of all files"
    assert ("nothing changed" in done.stderr) is believed
    assert ((site.root / TOOLKIT).readlink() == before) is believed
    assert ((site.root / TOOLKIT / f"{PROGRAM}.real").read_bytes() == source.read_bytes()) is not believed


def test_a_source_that_is_not_what_its_sums_say_is_refused(site: Site, tmp_path: Path) -> None:
    fresh = Site(tmp_path / "fresh")
    for each in (site, fresh):
        with_sums(each)
    os.truncate(source_of(site), source_of(site).stat().st_size - 1)  # another size than its copy
    tampered(source_of(fresh))

    assert "since its SHA256SUMS was written" in site.refuses("install")
    assert "changed while it was copied, or since its SHA256SUMS was written" in fresh.refuses("install")


def test_a_program_that_was_changed_behind_its_times_is_installed_anew(site: Site) -> None:
    program = site.root / TOOLKIT / f"{PROGRAM}.real"
    before = program.read_bytes()
    tampered(program)

    site.install()

    assert program.read_bytes() == before
    assert site.status("--deep").returncode == 0


@only_as_root
@pytest.mark.parametrize(
    "spoil",
    [lambda kept: os.chown(kept, NOBODY, NOBODY), lambda kept: kept.chmod(0o666)],
    ids=["his file", "for all to write"],
)
def test_digests_of_somebody_else_are_not_believed(site: Site, spoil: Callable[[Path], object]) -> None:
    kept = site.root / KEPT
    program = site.root / TOOLKIT / f"{PROGRAM}.real"
    tampered(program)
    time.sleep(TICK_S)
    noted = subprocess.run(["sha256sum", source_of(site)], capture_output=True, text=True, check=True)
    kept.write_text(kept.read_text() + f"{mark_of(str(program))} {noted.stdout.split()[0]}\n")
    spoil(kept)

    site.install()

    assert program.read_bytes() == source_of(site).read_bytes()
