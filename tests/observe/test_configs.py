"""Which configs an engine reads, and which names among its imports it cannot read."""

import os
import socket
from pathlib import Path, PurePosixPath

import pytest

from installer.engines import ENGINES
from installer.engines.config_edits import texts_alone, tree_of
from installer.engines.config_files import contents_of, with_configs
from installer.host.files import Host
from installer.model.facts import EngineState

ROW = ENGINES["containerd"]
NAME = PurePosixPath("/etc/containerd/conf.d/a.toml")


def read(root: Path) -> tuple[EngineState, str]:
    """Return what containerd reads on the node ``root``, and why it would not start with it."""
    host = Host.under(PurePosixPath(root))
    bare = EngineState("containerd", ROW.config, None, None, (), ROW.socket, ROW.unit)
    facts = with_configs(host, bare)
    texts = contents_of(host, facts.files)
    return facts, texts_alone(facts, texts).broken


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "etc/containerd/conf.d"
    directory.mkdir(parents=True)
    (directory / "site.toml").write_text("oom_score = -900\n")
    config = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    (directory.parent / "config.toml").write_text(config)
    (tmp_path / "dev").mkdir()
    return tmp_path


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


# What a glob takes, and containerd 1.6.20, 1.7.24 and 2.1.9 do not start with.
FATAL = {
    "a link to nowhere": lambda path: path.symlink_to("/srv/gone.toml"),
    "a directory": lambda path: path.mkdir(),
    "a link to a directory": lambda path: path.symlink_to("/etc/containerd"),
    "a socket": _socket,
}


@pytest.mark.parametrize("kind", FATAL)
def test_an_import_that_is_no_file_keeps_containerd_from_starting(
    root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "etc/containerd/conf.d")  # the name of a socket is short
    FATAL[kind](Path("a.toml"))

    facts, broken = read(root)

    assert NAME not in facts.files
    assert broken == f"{ROW.config} imports {NAME}, which is a link to nowhere, or no file"


def test_an_import_that_is_a_link_to_a_file_is_fatal_without_that_file_only(root: Path) -> None:
    (root / "etc/containerd/real").write_text("oom_score = -901\n")
    (root / "etc/containerd/conf.d/a.toml").symlink_to("/etc/containerd/real")

    facts, broken = read(root)

    assert (NAME in facts.files, broken) == (True, "")
    texts = contents_of(Host.under(PurePosixPath(root)), facts.files)
    assert tree_of(texts[NAME], NAME) == {"oom_score": -901}
    assert str(NAME) in texts_alone(facts, {**texts, NAME: None}).broken


def test_a_device_that_is_imported_reads_as_empty(root: Path) -> None:
    """As the three have it: a link to /dev/null masks a file."""
    os.mkfifo(root / "dev/null")  # a device takes root to make
    (root / "etc/containerd/conf.d/a.toml").symlink_to("/dev/null")

    assert read(root)[1] == ""


def test_what_no_import_takes_may_be_anything(root: Path) -> None:
    (root / "etc/containerd/conf.d/a.off").symlink_to("/srv/gone.toml")

    assert read(root)[1] == ""


DROP_INS = PurePosixPath("/etc/crio/crio.conf.d")


def read_by_crio(root: Path) -> tuple[EngineState, str]:
    """Return what CRI-O reads on the node ``root``, and why it would not start with it."""
    host, row = Host.under(PurePosixPath(root)), ENGINES["crio"]
    bare = EngineState("crio", row.config, row.drop_ins.usual, None, (), row.socket, row.unit)
    facts = with_configs(host, bare)
    return facts, texts_alone(facts, contents_of(host, facts.files)).broken


@pytest.mark.parametrize("kind", sorted(FATAL.keys() - {"a directory"}))
def test_a_drop_in_that_is_no_file_keeps_crio_from_starting(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CRI-O walks it, and reads each name (engine-facts.md#crio-drop-ins)."""
    (tmp_path / "etc/containerd").mkdir(parents=True)
    (tmp_path / "etc/crio/crio.conf.d/below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "etc/crio/crio.conf.d/below")  # the name of a socket is short
    FATAL[kind](Path("a.toml"))

    facts, broken = read_by_crio(tmp_path)

    name = DROP_INS / "below/a.toml"
    assert name not in facts.files
    assert broken == f"it reads {name}, which is a link to nowhere, or no file"


def test_crio_reads_what_its_drop_ins_link_to_and_the_files_of_directories_below(tmp_path: Path) -> None:
    below = tmp_path / "etc/crio/crio.conf.d/below"
    below.mkdir(parents=True)
    (below / "a").write_text("[crio]\n")
    (below.parent / "b").symlink_to("/etc/crio/crio.conf.d/below/a")

    facts, broken = read_by_crio(tmp_path)

    assert {DROP_INS / "below/a", DROP_INS / "b"} <= {*facts.files}
    assert broken == ""


def test_crio_does_not_start_with_a_link_in_the_place_of_its_drop_ins(tmp_path: Path) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    (tmp_path / "srv").mkdir()
    (tmp_path / "etc/crio/crio.conf.d").symlink_to("/srv")

    assert str(DROP_INS) in read_by_crio(tmp_path)[1]
