"""Whole directories, and the names under which texts and directories are staged: no engine reads them."""

import os
import shutil
import stat
import sys
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.inodes import staged_name
from installer.host.trees import create_tree, digest_of, install_tree, remove_staged, remove_tree
from installer.model.files import Copy, Text


def files_of(source: Path) -> list[Copy]:
    size_bytes, digest = source.stat().st_size, digest_of(str(source))
    return [
        Copy(PurePosixPath(name), PurePosixPath(source), size_bytes, digest, 0o755) for name in ("one", "two")
    ]


def test_a_payload_gets_its_name_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, path, there = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/payload"), tmp_path / "payload"
    install_tree(host, path, [Text(PurePosixPath("earlier"), "whole\n", 0o644)])
    (tmp_path / "source").write_text("a program\n")
    seen: list[list[str]] = []
    sendfile = os.sendfile

    def watched(*arguments: int) -> int:
        seen.append([each.name for each in there.iterdir()])
        return sendfile(*arguments)

    monkeypatch.setattr(os, "sendfile", watched)
    install_tree(host, path, files_of(tmp_path / "source"))

    assert seen == [["earlier"]] * 2
    assert sorted(each.name for each in there.iterdir()) == ["one", "two"]


def test_a_payload_that_cannot_be_completed_leaves_what_was_there(tmp_path: Path) -> None:
    host, path = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/payload")
    install_tree(host, path, [Text(PurePosixPath("earlier"), "whole\n", 0o644)])
    (tmp_path / "source").write_text("a program\n")
    files = files_of(tmp_path / "source")
    (tmp_path / "source").write_text("something else\n")

    with pytest.raises(InstallerError, match="changed while it was copied"):
        install_tree(host, path, files)

    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == [
        *("payload", "payload/earlier", "source")
    ]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_program_is_for_root_alone_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    source = Path(sys.executable).resolve()
    seen: list[int] = []
    sendfile = os.sendfile

    def watched(out: int, *arguments: int) -> int:
        seen.append(stat.S_IMODE(os.fstat(out).st_mode))
        return sendfile(out, *arguments)

    monkeypatch.setattr(os, "sendfile", watched)
    path, size_bytes = PurePosixPath("bin/program"), source.stat().st_size
    before = os.umask(umask)
    copy = Copy(path, PurePosixPath(source), size_bytes, digest_of(str(source)), 0o755)
    install_tree(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), [copy])
    os.umask(before)

    assert set(seen) == {0o600}
    assert stat.S_IMODE((tmp_path / "new/bin/program").stat().st_mode) == 0o755
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new", tmp_path / "new/bin")} == {0o755}


def test_a_staged_name_is_hidden_ends_like_no_config_and_is_in_no_directory_of_drop_ins(
    tmp_path: Path,
) -> None:
    (tmp_path / "crio.conf.d/deeper.d").mkdir(parents=True)
    (tmp_path / "conf.d").mkdir()
    drop_ins = (f"{each}/99-nvidia.toml" for each in (".", "conf.d", "crio.conf.d", "crio.conf.d/deeper.d"))

    staged = [staged_name(tmp_path / path) for path in ("config.toml", "daemon.json", "crio.conf", *drop_ins)]

    assert {each.parent for each in staged} == {tmp_path}
    assert len({*staged}) == 7, "two drop-ins of one name are staged apart"
    assert [
        each for each in staged if each.suffix in {".toml", ".conf", ".json"} or each.name[0] != "."
    ] == []


@pytest.mark.parametrize("swept", [False, True])
def test_a_slower_process_does_not_replace_the_tree_of_a_quicker_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, swept: bool
) -> None:
    host, path, real = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        if swept:
            real(name, mode, dir_fd=dir_fd)
        real(tmp_path / "new")
        (tmp_path / "new/ledger").write_text("the other one's")
        if swept:
            remove_staged(host, path)
        else:
            real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", late)
    create_tree(host, path, [Text(PurePosixPath("ledger"), "ours", 0o600)])

    assert (tmp_path / "new/ledger").read_text() == "the other one's"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_removal_of_staged_trees_touches_only_their_own_names(tmp_path: Path) -> None:
    ours = ["new.toolkit-installer", "new.0a1b2c3d.toolkit-installer"]
    others = ["new", "new.d.toolkit-installer", "new-er.toolkit-installer", "anew.toolkit-installer"]
    for name in (*ours, *others):
        (tmp_path / name / "below").mkdir(parents=True)

    remove_staged(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_who_makes_a_directory_that_is_being_removed_has_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, path, real = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), shutil.rmtree
    (tmp_path / "new/below").mkdir(parents=True)

    def slow(name: str, *, dir_fd: int) -> None:
        monkeypatch.undo()
        create_tree(host, path, [Text(PurePosixPath("ledger"), "the next one's", 0o600)])
        remove_staged(host, path)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(shutil, "rmtree", slow)
    remove_tree(host, path)

    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new/ledger").read_text() == "the next one's"
