"""Odd nodes: what is found there may be anything, and the answer is one sentence and the right exit code."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.engines import ENGINES
from installer.engines.dependencies import without_cri
from installer.engines.restart import parse_version
from installer.engines.startup import explain_overruling, path_of
from installer.errors import InstallerError
from installer.host import inodes
from installer.host.files import Host
from installer.model.files import File, Meta
from installer.model.options import Options
from tests.support import preloaded
from tests.support.neighbours import NOBODY, only_as_root
from tests.support.site import CONTAINERD, DAEMON_JSON, HOME, LEDGER, PROJECT, Site, sentence


def plain(done: "subprocess.CompletedProcess[str]") -> bool:
    return "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(DAEMON_JSON, '{"a":' * 150 + "[]" + "}" * 150, id="objects in JSON"),
        pytest.param(CONTAINERD, f"version = 2\na = {'[' * 100_000}{']' * 100_000}\n", id="lists in TOML"),
    ],
)
def test_a_deep_config_is_refused_in_a_sentence(site: Site, path: str, text: str) -> None:
    site.write(path, text)

    assert "nested too deeply" in site.refuses("install")


def test_a_number_of_a_hundred_thousand_digits_is_no_bug(site: Site) -> None:
    site.write(CONTAINERD, f"version = 2\nx = {'1' * 100_000}\n")
    assert "a number has more than 4300 digits" in site.refuses("install", "--runtime", "containerd")

    site.write(CONTAINERD, f"version = 2\nx = 0x{'f' * 100_000}\n")
    site.install("--runtime", "containerd")


def test_few_open_files_are_made_more(site: Site) -> None:
    before = site.tree()

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 1024))

    done = [_limited(site.command(verb), few) for verb in ("install", "uninstall")]

    assert [each.returncode for each in done] == [0, 0], done
    assert site.tree() == before


@pytest.mark.parametrize(("verb", "code"), [("install", 1), ("uninstall", 4)])
def test_memory_that_is_over_half_way_is_a_sentence_and_leaves_no_trace(
    site: Site, verb: str, code: int
) -> None:
    if verb == "uninstall":
        site.install()
    before = site.tree()
    starved = (
        "import sys; from installer.engines import config_files as probe; from installer.cli.app import main\n"
        "def none_left(*_, **__): raise MemoryError\n"
        "probe.contents_of = none_left\n"
        "sys.exit(main(sys.argv[1:]))"
    )

    done = _limited([sys.executable, "-c", starved, *site.command(verb)[3:]], lambda: None)

    assert done.returncode == code
    assert plain(done), done.stderr
    assert "no memory is left for this process" in sentence(done)
    assert json.loads(done.stderr)["code"] == "no-memory"
    assert site.tree() == before


def _limited(command: list[str], limit: Callable[[], None]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=PROJECT, preexec_fn=limit, timeout=60
    )


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
    assert "; if a newer version wrote it, use that one; else move it away" in told.stderr


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("install", "no action is needed now; after the next uninstall compare"),
        ("uninstall", '"after this uninstall compare'),
    ],
)
def test_after_the_loss_of_a_ledger_it_says_when_configs_are_to_be_compared(
    installed: Site, verb: str, words: str
) -> None:
    (installed.root / LEDGER).unlink()

    assert words in installed.call(verb).stderr


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_beside_another_instance_a_verb_says_what_leads_to_its_end(installed: Site, verb: str) -> None:
    with (installed.root / HOME / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = installed.refuses(verb, code=3)

    words = "if it is a run, reconcile has it check now, and its stop uninstalls"
    assert f"; wait until it ends; {words}" in told


@only_as_root
def test_of_a_ledger_that_was_given_away_each_verb_says_the_one_thing_that_suffices(installed: Site) -> None:
    home = installed.root / HOME
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, -1, follow_symlinks=False)

    said = [installed.status().stderr, *map(sentence, map(installed.call, ("install", "uninstall")))]
    told = [each.strip().partition("; ")[2] for each in said]
    os.chown(installed.root / LEDGER, 0, -1)
    installed.uninstall()

    assert len({*told}) == 1
    assert f"chown root /{LEDGER}; chmod 600 /{LEDGER}; otherwise move it away" in told[0]
    assert not home.exists()


@pytest.mark.parametrize("flag", ["--install-dir", "--runtime", "--pid-file", "--timeout"])
def test_words_that_are_no_utf_8_are_no_bug(site: Site, flag: str) -> None:
    done = site.call("plan", flag, "/\udcff", "--log-format", "text")
    told = site.status("--\udcff") if flag == "--timeout" else site.status("--install-dir", "/opt/\udcff")

    assert "Traceback" not in done.stderr + told.stderr
    assert (done.returncode in {0, 1, 2, 10}, told.returncode in {1, 2, 3}) == (True, True)


def test_a_host_root_that_is_not_there_is_said() -> None:
    for verb in ("install", "uninstall", "plan", "status"):
        command = [sys.executable, "-m", "installer", verb, "--host-root", "/nonexistent"]
        done = preloaded.run(command)

        assert done.returncode == 1
        assert "find the host's root /nonexistent" in done.stderr


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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EOPNOTSUPP])
def test_a_label_that_is_refused_is_noted_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "setxattr", refused)
    host = Host.under(PurePosixPath(tmp_path))

    host.replace(PurePosixPath("/x"), File(b"text", Meta(xattrs=(("security.selinux", b"label"),))))

    assert (tmp_path / "x").read_bytes() == b"text"
    said = capfd.readouterr()
    assert "security.selinux" in said.out + said.err
    assert os.strerror(number) in said.out + said.err


def test_a_mounted_toolkit_directory_is_told_what_to_mount_instead() -> None:
    with (
        pytest.raises(InstallerError, match="mount the directory above it"),
        inodes.translated("exchange", PurePosixPath("/usr/local/nvidia/toolkit")),
    ):
        raise OSError(errno.EBUSY, "busy")


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        pytest.param("v1.6.20~ds1", (1, 6, 20), id="Debian's"),
        pytest.param("28.5.2+dfsg4", (28, 5, 2), id="Debian's dockerd"),
        pytest.param("v2.4.0-beta.0", (2, 4, 0), id="ahead of a release"),
        pytest.param("v2.4.0-beta+unknown", (2, 4, 0), id="of a branch"),
        pytest.param("unknown", (), id="none"),
    ],
)
def test_a_version_is_its_numbers(said: str, understood: tuple[int, ...]) -> None:
    assert parse_version(said) == understood


TALOS = "on Talos the toolkit is a system extension, and runtimes come from the machine config"
BOTTLEROCKET = "Bottlerocket's image for NVIDIA has the toolkit and its runtime, nothing is installed"


@pytest.mark.parametrize(
    ("name", "why", "remedy"),
    [
        pytest.param("talos", TALOS, "add both there", id="Talos"),
        pytest.param("bottlerocket", BOTTLEROCKET, "start this node from that image", id="Bottlerocket"),
    ],
)
def test_a_system_that_brings_the_toolkit_in_its_own_way_is_told_so_before_anything_is_written(
    site: Site, name: str, why: str, remedy: str
) -> None:
    site.write("etc/os-release", f"ID={name}\n")

    assert site.refuses("install") == f"cannot install on this node ({why}); {remedy}"
    assert without_cri(Host.under(PurePosixPath(site.root)), ()) == f"its CRI is switched off: {why}"


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
