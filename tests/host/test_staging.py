"""Where the next text of a config is written: beside it, under a name that no engine reads."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from installer.host.inodes import staged_name

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
