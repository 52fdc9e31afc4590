"""Which configs an engine reads, and which names among its imports it cannot read."""

import os
import socket
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines import ENGINES
from installer.engines.config_edits import texts_alone, tree_of
from installer.engines.config_files import contents_of, with_configs
from installer.host.files import Host
from installer.model.facts import EngineState, Started

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


def read_by_crio(root: Path, **more: Any) -> tuple[EngineState, str]:
    """Return what CRI-O reads on the node ``root``, and why it would not start with it."""
    host, row = Host.under(PurePosixPath(root)), ENGINES["crio"]
    bare = EngineState("crio", row.config, row.drop_ins.usual, None, (), row.socket, row.unit, **more)
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


def table(name: str, **keys: str) -> str:
    return f"[crio.runtime.runtimes.{name}]\n" + "".join(f'{key} = "{said}"\n' for key, said in keys.items())


CRUN = table("crun", runtime_path="/usr/bin/crun", monitor_path="/opt/conmon")
SITE = '[crio.runtime]\ndefault_runtime = "site"\n'
KATA = table("kata", runtime_path="/usr/bin/crun", runtime_type="vm")
# What a real 1.37.0 made of each (engine-facts.md#crio-conmon), without these programs: "" where it started.
STARTS = {
    "nothing": ("", "", ""),
    "the default's path": (
        SITE + table("site", runtime_path="/gone"),
        "",
        "the runtime_path of site, /gone, is no program",
    ),
    "the default's word": (SITE + table("site"), "", "the runtime_path of site, site, is not in its PATH"),
    "the built-in default": ("", "crun", "the runtime_path of crun, crun, is not in its PATH"),
    "another's path": (table("site", runtime_path="/gone"), "", ""),
    "another's path and monitor": (table("site", runtime_path="/gone", monitor_path="/gone"), "", ""),
    "another's word and monitor": (table("site", monitor_path="/gone"), "", ""),
    "another's monitor": (
        table("site", runtime_path="/usr/bin/crun", monitor_path="/gone"),
        "",
        "the monitor_path of site, /gone, is no program",
    ),
    "conmon": ("", "conmon", "the monitor_path of crun, conmon, is not in its PATH"),
    "conmon, named by all": (CRUN, "conmon", ""),
    "conmon, named by all but one": (
        CRUN + table("site", runtime_path="/usr/bin/crun"),
        "conmon",
        "the monitor_path of site, conmon, is not in its PATH",
    ),
    "conmon, named by all but the built-in": (
        SITE + table("site", runtime_path="/usr/bin/crun", monitor_path="/opt/conmon"),
        "conmon",
        "the monitor_path of crun, conmon, is not in its PATH",
    ),
    "conmon, named for all": ('[crio.runtime]\nconmon = "/opt/conmon"\n' + table("site"), "conmon", ""),
    "the conmon named for all": (
        '[crio.runtime]\nconmon = "/gone"\n',
        "",
        "the monitor_path of crun, /gone, is no program",
    ),
    "conmon beside a VM": (KATA + CRUN, "conmon", ""),
    "conmon-rs of another": (table("site", runtime_path="/usr/bin/crun", runtime_type="pod"), "", ""),
    "conmon-rs of the default": (
        SITE + table("site", runtime_path="/usr/bin/crun", runtime_type="pod"),
        "",
        "the monitor_path of site, conmonrs, is not in its PATH",
    ),
    "the pinns that is named": (
        '[crio.runtime]\npinns_path = "/gone"\n',
        "",
        "its pinns_path, /gone, is no program",
    ),
    "pinns": ("", "pinns", "its pinns_path, pinns, is not in its PATH"),
    # At a path CRI-O asks whether something is there, and starts the monitor alone.
    "the default's path, which nobody may start": (SITE + table("site", runtime_path="/opt/text"), "", ""),
    "the pinns that is named, which nobody may start": (
        '[crio.runtime]\npinns_path = "/opt/text"\n',
        "",
        "",
    ),
    "the monitor that is named, which nobody may start": (
        table("site", runtime_path="/usr/bin/crun", monitor_path="/opt/text"),
        "",
        "the monitor_path of site, /opt/text, is no program",
    ),
    "the monitor of another, which nobody may start": (
        table("site", runtime_path="/opt/text", monitor_path="/gone"),
        "",
        "the monitor_path of site, /gone, is no program",
    ),
    "ours, which is put there": (table("nvidia", runtime_path="/x/nvidia-container-runtime"), "", ""),
}


@pytest.mark.parametrize(("text", "absent", "why"), STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("path", ["/usr/bin", None], ids=["its own PATH", "that of systemd"])
def test_crio_does_not_start_without_what_a_real_one_missed(
    tmp_path: Path, text: str, absent: str, why: str, path: str | None
) -> None:
    for name in {"usr/bin/crun", "usr/bin/conmon", "usr/bin/pinns", "opt/conmon"} - {f"usr/bin/{absent}"}:
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "opt/text").touch(0o644)
    (tmp_path / "etc/crio").mkdir(parents=True)
    (tmp_path / "etc/crio/crio.conf").write_text(text)
    start = Started((), {"PATH": path} if path else {}, "/usr/bin/crio")

    assert read_by_crio(tmp_path, next_start=start)[1] == why


def test_crio_is_believed_to_find_what_flags_name_and_what_an_unknown_start_finds(tmp_path: Path) -> None:
    (tmp_path / "etc/crio").mkdir(parents=True)
    flags = Started(
        ("--conmon", "/opt/c", "--default-runtime", "crun"), {"CONTAINER_PINNS_PATH": "/p"}, "crio"
    )

    assert read_by_crio(tmp_path)[1] == ""
    assert read_by_crio(tmp_path, next_start=flags)[1] == ""
