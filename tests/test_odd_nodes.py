"""Odd nodes: what is found there may be anything, and the answer is one sentence and the right exit code."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from installer.engines import ENGINES
from installer.engines.dependencies import without_cri
from installer.engines.restart import parse_version
from installer.engines.startup import explain_overruling, path_of
from installer.errors import InstallerError, UsageError
from installer.host import inodes
from installer.host.files import Host
from installer.model.files import File, Meta
from installer.model.options import Options
from tests.support import preloaded
from tests.support.site import DAEMON_JSON, LEDGER, PROJECT, Site, sentence

CONTAINERD = "etc/containerd/config.toml"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def plain(done: "subprocess.CompletedProcess[str]") -> bool:
    return "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize("depth", [150, 100_000])
@pytest.mark.parametrize(
    ("path", "opens", "closes"),
    [
        pytest.param(DAEMON_JSON, '{"a":', "}", id="objects in JSON"),
        pytest.param(CONTAINERD, "[", "]", id="lists in TOML"),
    ],
)
def test_a_deep_config_is_refused_in_a_sentence(
    site: Site, path: str, opens: str, closes: str, depth: int
) -> None:
    head = "" if path == DAEMON_JSON else "version = 2\na = "
    (site.root / path).write_text(f"{head}{opens * depth}[]{closes * depth}\n")
    before = site.tree()

    done = [site.call("plan"), site.call("install")]

    assert [each.returncode for each in done] == [1, 1]
    assert all(plain(each) and "nested too deeply" in sentence(each) for each in done), done
    assert site.tree() == before


@pytest.mark.parametrize("number", ["1" * 100_000, "0x" + "f" * 100_000], ids=["decimal", "hexadecimal"])
def test_a_number_of_a_hundred_thousand_digits_is_no_bug(site: Site, number: str) -> None:
    (site.root / CONTAINERD).write_text(f"version = 2\nx = {number}\n")

    done = site.call("install", "--runtime", "containerd")

    assert done.returncode == 0 if number.startswith("0x") else done.returncode == 1
    assert "internal error" not in done.stderr
    assert "sys." not in done.stderr
    assert number.startswith("0x") or "a number has more than 4300 digits" in sentence(done)


@pytest.mark.parametrize(("most", "code"), [(8, 1), (40, 1), (1024, 0)])
def test_few_open_files_are_made_more_or_refused_before_anything_is_written(
    site: Site, most: int, code: int
) -> None:
    before = site.tree()

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, most))

    done = [_limited(site.command(verb), few) for verb in ("install", "uninstall")]

    assert [each.returncode for each in done] == [code, code], done
    assert site.tree() == before
    if code:
        assert sentence(done[0]).startswith(f"cannot start (this process may have no more than {most} files")


@pytest.mark.parametrize("kilobytes", [20_000, 30_000, 36_000, 60_000])
def test_little_memory_is_refused_in_a_sentence_before_anything_is_made(site: Site, kilobytes: int) -> None:
    before = site.tree()

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (kilobytes << 10, kilobytes << 10))

    done = [_limited(site.command(verb), little) for verb in ("plan", "install", "run", "uninstall")]

    assert [each.returncode for each in done] == [1, 1, 1, 1], done
    assert all(plain(each) and "64 MiB or more: ulimit -v" in sentence(each) for each in done), done
    assert {json.loads(each.stderr)["code"] for each in done} == {"no-memory"}
    assert site.tree() == before


@pytest.mark.parametrize(("verb", "code"), [("install", 1), ("uninstall", 4)])
def test_memory_that_is_over_half_way_is_a_sentence_and_leaves_no_trace(
    site: Site, verb: str, code: int
) -> None:
    if verb == "uninstall":
        assert site.call("install").returncode == 0
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
        pytest.param(lambda rows: rows["engines"][0].update(name="podman"), "engine podman", id="an engine"),
        pytest.param(lambda rows: rows["configs"][0].update(engine="podman"), "engine podman", id="a config's"),
        pytest.param(lambda rows: rows.update(directories="/etc"), "`$.directories`", id="a text for a list"),
        pytest.param(lambda rows: rows["toolkit"].update(version=7), "`$.toolkit.version`", id="a number for a text"),
        pytest.param(lambda rows: rows["toolkit"].update(version="../../etc"), "version", id="a way out"),
        pytest.param(lambda rows: rows["configs"][0].update(path="etc/x"), "etc/x", id="a relative path"),
    ],
)  # fmt: skip
def test_a_ledger_that_is_not_understood_is_one_sentence(site: Site, change, words: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    assert site.call("install").returncode == 0
    rows = json.loads((site.root / LEDGER).read_text())
    change(rows)
    (site.root / LEDGER).write_text(json.dumps(rows))
    before = site.tree(times=True)

    done = [site.call(verb) for verb in ("install", "uninstall", "plan")]
    told = site.status()

    assert [each.returncode for each in (*done, told)] == [1, 1, 1, 1]
    assert all(plain(each) and words in sentence(each) for each in done), [each.stderr for each in done]
    assert words in told.stderr
    assert "the version of this program that wrote it" in told.stderr
    assert site.tree(times=True) == before


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(["--install-dir", "/opt/\udcff"], id="install-dir"),
        pytest.param(["--runtime-name", "\udcff"], id="runtime-name"),
        pytest.param(["--driver-root", "/\udcff"], id="driver-root"),
        pytest.param(["--toolkit-source", "/\udcff"], id="toolkit-source"),
        pytest.param(["--pid-file", "\udcff"], id="pid-file"),
        pytest.param(["--runtime", "\udcff"], id="runtime"),
        pytest.param(["--\udcff"], id="a flag"),
        pytest.param(["--timeout", "\udcff"], id="a number"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "status"])
def test_words_that_are_no_utf_8_are_no_bug(site: Site, more: list[str], verb: str) -> None:
    done = site.call(verb, *more, "--log-format", "text") if verb != "status" else site.status(*more)

    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2, 3, 10}


def test_a_host_root_that_is_not_there_is_said() -> None:
    for verb in ("install", "uninstall", "plan", "status"):
        command = [sys.executable, "-m", "installer", verb, "--host-root", "/nonexistent"]
        done = preloaded.run(command)

        assert done.returncode == 1
        assert "find the host's root /nonexistent" in done.stderr


@pytest.mark.parametrize("timeout", ["nan", "inf", "0", "-1"])
def test_a_timeout_is_a_number_of_seconds(timeout: str) -> None:
    with pytest.raises(UsageError, match="give --timeout a number"):
        Options(timeout_s=float(timeout))


def test_a_relative_config_of_an_engine_is_said_and_not_guessed() -> None:
    cmdline = ("dockerd", "--config-file", "daemon.json")

    (obstacle,) = explain_overruling(ENGINES["docker"], cmdline, Options(engines=("docker",)))

    assert path_of(cmdline, ("--config-file",)) is None
    assert "started with --config-file daemon.json, a relative path" in str(obstacle)


def test_after_a_clean_roll_back_status_does_not_say_that_it_did_not_finish(site: Site) -> None:
    (site.root / LEDGER).parent.mkdir(parents=True)
    failed = {"digest": "0", "problem": "prove it"}
    rows = {
        "version": 1,
        "finished": False,
        "failed": failed,
        "directories": [],
        "toolkit": None,
        "engines": [],
        "configs": [],
    }
    (site.root / LEDGER).write_text(json.dumps(rows))

    told = site.status()

    assert "failed, and is not tried again" in told.stdout
    assert "unfinished" not in told.stdout


def test_status_names_reconcile_where_a_run_that_waits_keeps_an_install_out(site: Site) -> None:
    ledger = site.root / LEDGER
    with site.running() as child:
        child.send_signal(signal.SIGSTOP)  # else it is repaired while we ask
        ledger.write_text(ledger.read_text().replace('"finished": true', '"finished": false'))

        told = site.status()

    assert "failed or was cut short; toolkit-installer reconcile puts it right" in told.stdout


class ReadOnly:
    """A file system that refuses before it looks, as Linux does (mnt_want_write)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("unlink", "rmdir"):
            monkeypatch.setattr(os, name, self.refuse)

    @staticmethod
    def refuse(path: str, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_what_is_absent_on_a_read_only_file_system_needs_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host.under(PurePosixPath(tmp_path))
    (tmp_path / "there").mkdir()
    ReadOnly(monkeypatch)

    assert host.remove_directory(PurePosixPath("/absent"))
    host.remove(PurePosixPath("/absent"))
    with pytest.raises(InstallerError, match="read-only"):
        host.remove_directory(PurePosixPath("/there"))
    with pytest.raises(InstallerError, match="read-only"):
        host.remove(PurePosixPath("/there"))


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
    (site.root / "etc/os-release").write_text(f"ID={name}\n")
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert sentence(done) == f"cannot install on this node ({why}); {remedy}"
    assert without_cri(Host.under(PurePosixPath(site.root)), ()) == f"its CRI is switched off: {why}"
    assert site.tree() == before


@pytest.mark.parametrize(
    "text", [None, "", "\n", '\ufeff{"debug": true}'], ids=["usual", "empty", "blank", "marked"]
)
def test_dockers_config_may_have_any_name(site: Site, text: str | None) -> None:
    config = site.root / "etc/docker/dockerd.cfg"
    (site.root / DAEMON_JSON).rename(config)
    if text is not None:
        config.write_text(text)
    before = site.tree()
    words = ("install", "--runtime", "docker", "--config", f"docker={config}")

    first, again = site.call(*words), site.call(*words, "--set-as-default")
    planned = site.call("plan", *words[1:])
    said = json.loads(config.read_text(encoding="utf-8-sig"))
    done = site.call("uninstall")

    assert [each.returncode for each in (first, again, planned, done)] == [0, 0, 10, 0], done.stderr
    assert said["default-runtime"] == "nvidia"
    assert site.tree() == before


def test_the_secrets_of_a_config_of_another_name_are_masked(site: Site) -> None:
    config = site.root / "etc/docker/dockerd.cfg"
    config.write_text('{\n  "log-opts": {"splunk-token": "hush"}\n}\n')

    planned = site.call("plan", "--runtime", "docker", "--config", f"docker={config}")

    assert planned.returncode == 10
    assert "splunk-token" in planned.stdout
    assert "hush" not in planned.stdout
