"""A program in a directory of which an engine executes everything: never executable under another name."""

import os
import sys
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.inode import File, Meta
from installer.decide.steps import WriteConfig, inverse
from installer.host.files import Host
from installer.record.write import write_config
from tests.support.tree import tree

PROGRAM = PurePosixPath("/opt/nri/plugins/10-toolkit-installer")
AFTER = File(b"#!/bin/sh\n")


def _executables(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.stat().st_mode & 0o111}


@pytest.mark.parametrize("before", [None, File(b"old\n", Meta(0o644)), File(b"#!/bin/sh\n", Meta(0o644))])
def test_at_no_moment_is_a_file_with_another_name_executable(tmp_path: Path, before: File | None) -> None:
    directory = tmp_path / "opt/nri/plugins"
    directory.mkdir(parents=True)
    if before is not None:
        (directory / PROGRAM.name).write_bytes(before.content)
        (directory / PROGRAM.name).chmod(0o755)
    seen = list[set[str]]()
    looks = True

    def look(event: str, _: object) -> None:
        if looks and event in {"os.rename", "os.chmod", "os.remove", "open"}:
            seen.append(_executables_quietly(directory))

    sys.addaudithook(look)
    write_config(
        Host.under(PurePosixPath(tmp_path)), WriteConfig("nri", PROGRAM, before, AFTER, executable=True)
    )
    looks = False

    assert set().union(*seen) <= {PROGRAM.name}
    assert _executables(directory) == {PROGRAM.name}
    assert (directory / PROGRAM.name).read_bytes() == AFTER.content


def _executables_quietly(directory: Path) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.stat().st_mode & 0o111}


def test_a_link_to_a_file_that_an_undo_needs_again_comes_back_with_it(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))
    path, link = PurePosixPath("/etc/crio/mine.conf"), "/srv/x.conf"
    (tmp_path / "srv").mkdir()
    (tmp_path / "etc/crio").mkdir(parents=True, exist_ok=True)
    (tmp_path / "srv/x.conf").write_text("[crio]\n")
    (tmp_path / "etc/crio/mine.conf").symlink_to(link)
    before = tree(tmp_path)
    step = WriteConfig("crio", path, host.read(path), None, link)

    write_config(host, step)

    assert not (tmp_path / "srv/x.conf").exists()
    assert not (tmp_path / "etc/crio/mine.conf").is_symlink()
    back = inverse(step)
    assert isinstance(back, WriteConfig)
    write_config(host, back)
    assert tree(tmp_path) == before
