"""What is staged: texts of configs under names that no engine reads, and whole directories."""

import os
import shutil
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest

from installer.host.files import Host
from installer.host.inodes import staged_name
from installer.host.trees import create_tree, remove_staged, remove_tree
from installer.model.files import Text

READ = ("*.toml", "*.conf", "*.json", "*")  # what imports, CRI-O's walk and shells take for a config


@pytest.mark.parametrize("name", ["config.toml", "daemon.json", "crio.conf"])
def test_a_staged_name_is_hidden_and_ends_like_no_config(tmp_path: Path, name: str) -> None:
    staged = staged_name(tmp_path / name)

    assert staged.parent == tmp_path
    assert staged.name.startswith(".")
    assert not any(fnmatchcase(staged.name, pattern) for pattern in READ[:-1])


@pytest.mark.parametrize("where", ["crio.conf.d", "conf.d", "crio.conf.d/deeper.d"])
def test_nothing_is_staged_in_a_directory_of_drop_ins(tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(parents=True)

    staged = staged_name(tmp_path / where / "99-nvidia.toml")

    assert staged.parent == tmp_path


def test_two_drop_ins_of_one_name_are_staged_apart(tmp_path: Path) -> None:
    places = [tmp_path / "conf.d", tmp_path / "other.d", tmp_path / "other.d/deeper.d"]
    for place in places:
        place.mkdir()

    assert len({staged_name(place / "99-nvidia.toml") for place in (tmp_path, *places)}) == 4


def test_who_stages_after_another_one_has_finished_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        real(tmp_path / "new")
        (tmp_path / "new/ledger").write_text("the other one's")
        real(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", late)
    text = Text(PurePosixPath("ledger"), "ours", 0o600)

    create_tree(Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), [text])

    assert (tmp_path / "new/ledger").read_text() == "the other one's"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_who_is_swept_by_another_one_that_was_quicker_leaves_it_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, path, real = Host.under(PurePosixPath(tmp_path)), PurePosixPath("/new"), os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        real(name, mode, dir_fd=dir_fd)
        real(tmp_path / "new")
        remove_staged(host, path)

    monkeypatch.setattr(os, "mkdir", late)
    create_tree(host, path, [Text(PurePosixPath("ledger"), "ours", 0o600)])

    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert list((tmp_path / "new").iterdir()) == []


def test_what_is_swept_is_what_was_staged_for_that_name_alone(tmp_path: Path) -> None:
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
