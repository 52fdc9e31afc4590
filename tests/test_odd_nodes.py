"""Odd nodes: what is found there may be anything, and the answer is one sentence and the right exit code."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines import ENGINES
from installer.engines.ask import parse_version
from installer.engines.dependencies import without_cri
from installer.engines.startup import explain_overruling, path_of
from installer.errors import InstallerError
from installer.host.files import Host
from installer.model.files import File, Meta
from installer.model.options import Options
from tests.support.program import patched
from tests.support.site import CONTAINERD, DAEMON_JSON, LEDGER, Site, sentence


def test_a_deep_config_is_refused_in_a_sentence(site: Site) -> None:
    site.write(DAEMON_JSON, '{"a":' * 150 + "[]" + "}" * 150)

    assert "nested too deeply" in site.refuses("install")


def test_a_number_of_a_hundred_thousand_digits_is_no_bug(site: Site) -> None:
    site.write(CONTAINERD, f"version = 2\nx = {'1' * 100_000}\n")
    assert "a number has more than 4300 digits" in site.refuses("install", "--runtime", "containerd")

    site.write(CONTAINERD, f"version = 2\nx = 0x{'f' * 100_000}\n")
    site.install("--runtime", "containerd")

    site.write(CONTAINERD, f"version = 0x{'f' * 100_000}\n")
    again = site.install("--runtime", "containerd")
    assert f"the version of /{CONTAINERD} is not known here" in again.stderr


STARVED = """
from installer.engines import config_files
def none_left(*_, **__): raise MemoryError
config_files.contents_of = none_left
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("verb", "code"), [("install", 1), ("uninstall", 4)])
def test_memory_that_is_over_half_way_is_a_sentence_and_leaves_no_trace(
    site: Site, verb: str, code: int
) -> None:
    if verb == "uninstall":
        site.install()
    before = site.tree()

    done = patched(STARVED, *site.command(verb)[3:])

    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert "no memory is left for this process" in sentence(done)
    assert json.loads(done.stderr)["code"] == "no-memory"
    assert site.tree() == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(lambda rows: rows["configs"][0].update(engine="podman"), "engine podman", id="a config's"),
        pytest.param(lambda rows: rows.update(directories="/etc"), "`$.directories`", id="a text for a list"),
        pytest.param(lambda rows: rows["toolkit"].update(version=7), "`$.toolkit.version`", id="a number for a text"),
        pytest.param(lambda rows: rows["toolkit"].update(version="../../etc"), "version", id="a way out"),
        pytest.param(lambda rows: rows["configs"][0].update(path="etc/x"), "etc/x", id="a relative path"),
    ],
)  # fmt: skip
def test_a_ledger_that_is_not_understood_is_one_sentence(
    installed: Site, change: Callable[[Any], object], words: str
) -> None:
    installed.rewrite(LEDGER, change)

    said = [installed.refuses(verb) for verb in ("install", "uninstall")]
    told = installed.status()

    assert [words in each for each in said] == [True, True], said
    assert told.returncode == 1
    assert words in told.stderr
    assert "; uninstall with the version that wrote it, or move it away and run uninstall" in told.stderr


def test_a_relative_config_of_an_engine_is_said_and_not_guessed() -> None:
    cmdline = ("dockerd", "--config-file", "daemon.json")

    (obstacle,) = explain_overruling(ENGINES["docker"], cmdline, Options(engines=("docker",)))

    assert path_of(cmdline, ("--config-file",)) is None
    assert "started with --config-file daemon.json, a relative path" in str(obstacle)


def test_what_is_absent_on_a_read_only_file_system_needs_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, **_: object) -> None:
        """Refuse before it looks, as Linux does (mnt_want_write)."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    host = Host.under(PurePosixPath(tmp_path))
    (tmp_path / "there").mkdir()
    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(os, name, refuse)

    assert host.remove_directory(PurePosixPath("/absent"))
    host.remove(PurePosixPath("/absent"))
    for remove in (host.remove_directory, host.remove):
        with pytest.raises(InstallerError, match="read-only"):
            remove(PurePosixPath("/there"))


def test_a_label_that_is_refused_is_noted_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", refused)
    host = Host.under(PurePosixPath(tmp_path))

    host.replace(PurePosixPath("/x"), File(b"text", Meta(xattrs=(("security.selinux", b"label"),))))

    assert (tmp_path / "x").read_bytes() == b"text"
    assert "security.selinux" in capfd.readouterr().err


def test_a_version_is_its_numbers() -> None:
    said = ("v1.6.20~ds1", "28.5.2+dfsg4", "v2.4.0-beta.0", "v2.4.0-beta+unknown", "unknown")

    assert [*map(parse_version, said)] == [(1, 6, 20), (28, 5, 2), (2, 4, 0), (2, 4, 0), ()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["Talos", "Bottlerocket"])
def test_a_system_that_brings_the_toolkit_in_its_own_way_is_told_so_before_anything_is_written(
    site: Site, name: str
) -> None:
    site.write("etc/os-release", f"ID={name.lower()}\n")

    said = site.refuses("install")
    assert said.startswith("cannot install on this node (")
    assert name in said
    assert name in without_cri(Host.under(PurePosixPath(site.root)), ())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", [None, "\n", '\ufeff{"debug": true}'], ids=["usual", "blank", "marked"])
def test_dockers_config_may_have_any_name(site: Site, text: str | None) -> None:
    config = site.root / "etc/docker/dockerd.cfg"
    (site.root / DAEMON_JSON).rename(config)
    if text is not None:
        config.write_text(text)
    before = site.tree()
    words = ("--runtime", "docker", "--config", f"docker={config}")

    site.install(*words)
    site.install(*words, "--set-as-default")
    planned = site.call("plan", *words)
    said = json.loads(config.read_text(encoding="utf-8-sig"))
    site.uninstall()

    assert planned.returncode == 10
    assert said["default-runtime"] == "nvidia"
    assert site.tree() == before


def test_the_secrets_of_a_config_of_another_name_are_masked(site: Site) -> None:
    config = site.write("etc/docker/dockerd.cfg", '{\n  "log-opts": {"splunk-token": "hush"}\n}\n')

    planned = site.call("plan", "--runtime", "docker", "--config", f"docker={config}")

    assert planned.returncode == 10
    assert "splunk-token" in planned.stdout
    assert "hush" not in planned.stdout


@pytest.mark.parametrize(("schema", "known"), [(2, True), (3, True), (4, True), (9, False)])
def test_an_unknown_schema_of_containerd_is_named_where_its_program_is_not_there(
    site: Site, schema: int, *, known: bool
) -> None:
    site.write(CONTAINERD, f"version = {schema}\n")

    planned, installed = site.call("plan"), site.install()

    note = f"version = {schema} of /{CONTAINERD} is not known here: the keys of version 3 are used"
    assert (note in planned.stdout, note in installed.stderr) == (not known, not known)
    site.uninstall()
    assert site.read(CONTAINERD) == f"version = {schema}\n"
