"""The verbs as people call them: the real program as a child process, a host below tmp_path."""

import signal
import tomllib
from collections.abc import Callable

import pytest

from tests.support.site import CONFIG_TOML, CONTAINERD, DAEMON_JSON, HOME, TOOLKIT, Site, ended, sentence


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=["TERM", "INT", "QUIT"]
)
def test_a_stop_restores_every_byte_and_leaves_nothing(clean: Site, number: signal.Signals) -> None:
    with clean.running() as child:
        during = clean.read(DAEMON_JSON)
        ended(child, number)

    assert "nvidia-cdi" in during


@pytest.mark.parametrize("by", ["uninstall", "run"])
def test_what_a_killed_run_left_is_undone_by_an_uninstall_and_by_the_next_run(clean: Site, by: str) -> None:
    with clean.running():
        pass  # it is killed

    if by == "uninstall":
        clean.uninstall()
    else:
        with clean.running() as child:
            ended(child)


def test_plan_prints_diffs_exits_10_and_touches_nothing_until_nothing_is_left_to_do(site: Site) -> None:
    before = site.tree(times=True)
    done = site.call("plan")
    assert site.tree(times=True) == before
    site.install()
    installed = site.tree(times=True)

    again, nothing = site.install(), site.call("plan")

    assert f"--- a/{DAEMON_JSON}\n+++ b/{DAEMON_JSON}\n@@" in done.stdout
    assert "nothing changed" in again.stderr
    assert (done.returncode, nothing.returncode) == (10, 0)
    assert "nothing to do" not in done.stdout
    assert nothing.stdout.splitlines() == [
        "nothing to do",
        "! not verified to serve the runtimes: docker, containerd, crio",
    ]
    assert site.tree(times=True) == installed


def _a_directory(site: Site) -> None:
    (site.root / DAEMON_JSON).unlink()
    (site.root / DAEMON_JSON).mkdir()


def _a_hard_link(site: Site) -> None:
    (site.root / "etc/docker/other").hardlink_to(site.root / DAEMON_JSON)


def _text(path: str, text: str) -> Callable[[Site], object]:
    return lambda site: site.write(path, text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(_text(DAEMON_JSON, "{garbage"), "read /etc/docker/daemon.json as JSON", id="JSON"),
        pytest.param(_text(DAEMON_JSON, "[]"), "read /etc/docker/daemon.json as JSON", id="a JSON list"),
        pytest.param(_text(DAEMON_JSON, '{"runtimes": 1}'), "runtimes is a number", id="a wrong type"),
        pytest.param(_text(CONTAINERD, "a = ["), "config.toml as TOML", id="TOML"),
        pytest.param(_text("etc/crio/crio.conf", "x = "), "crio.conf as TOML", id="CRI-O"),
        pytest.param(_a_directory, "read /etc/docker/daemon.json (it is a directory)", id="a directory"),
        pytest.param(_a_hard_link, "2 hard links", id="a hard link"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_nothing_left(
    site: Site, spoil: Callable[[Site], object], words: str
) -> None:
    spoil(site)

    assert words in site.refuses("install")


@pytest.mark.parametrize(
    "target", ["/srv/daemon.json", "../../srv/daemon.json"], ids=["absolute", "relative"]
)
def test_a_symlinked_config_is_edited_at_its_target_below_the_root(site: Site, target: str) -> None:
    (site.root / "srv").mkdir()
    (site.root / DAEMON_JSON).rename(site.root / "srv/daemon.json")
    (site.root / DAEMON_JSON).symlink_to(target)
    before = site.tree()

    site.install()

    assert (site.root / DAEMON_JSON).is_symlink()
    assert "nvidia" in site.read("srv/daemon.json")
    site.uninstall()
    assert site.tree() == before


@pytest.mark.parametrize("flaw", ["missing", "other machine", "no program", "no interpreter"])
def test_a_payload_that_cannot_run_here_is_refused_before_anything_changes(site: Site, flaw: str) -> None:
    program = site.source / "usr/local/sbin/nvidia-container-runtime"
    content = program.read_bytes()
    if flaw == "missing":
        program.unlink()
    elif flaw == "no program":
        program.write_text("exit 0\n")
    elif flaw == "no interpreter":
        program.write_text("#!/bin/sh\n")
    else:
        program.write_bytes(content[:18] + (8).to_bytes(2, "little") + content[20:])

    said = site.refuses("install")

    assert "nvidia-container-runtime" in said
    assert "--toolkit-source" in said


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (
            "artifactz",
            "cannot find an NVIDIA container toolkit under {}/artifactz (it does not exist); name its root",
        ),
        (
            "file",
            "cannot find an NVIDIA container toolkit under {}/file (it is not a directory); name its root",
        ),
        ("artifacts/usr", "cannot find an NVIDIA container toolkit under {}/artifacts/usr; use {right}"),
        (
            "artifacts/usr/local",
            "cannot find libnvidia-container-go.so.1 and {} under {}/artifacts/usr/local; {}",
        ),
        (".", "cannot find an NVIDIA container toolkit under {}; use {right}"),
        ("empty", "cannot find an NVIDIA container toolkit under {}/empty; name its root"),
        ("loop", "cannot follow {}/loop (its links go round in a circle); correct the links"),
    ],
)
def test_a_toolkit_source_with_a_mistake_names_the_mistake(site: Site, named: str, sentence: str) -> None:
    top = site.source.parent / "sources"
    top.mkdir()
    site.source.rename(top / "artifacts")
    (top / "empty" / "inside").mkdir(parents=True)
    (top / "file").write_text("")
    (top / "loop").symlink_to("loop")

    said = site.refuses("install", "--toolkit-source", str(top / named))

    right = f"--toolkit-source {top}/artifacts"
    if named.endswith("local"):
        expected = sentence.format("libnvidia-container.so.1", top, f"use {right}")
    else:
        expected = sentence.format(top, right=right)
    assert said.startswith(expected)


def test_an_administrators_edit_of_the_toolkit_config_survives_an_upgrade(installed: Site) -> None:
    edited = installed.read(CONFIG_TOML).replace('log-level = "info"', 'log-level = "debug"  # ticket 7')
    installed.write(CONFIG_TOML, edited)
    program = installed.source / "usr/local/sbin/nvidia-ctk"
    program.write_bytes(program.read_bytes() + b"newer")

    done, told = installed.install(), installed.status()

    assert installed.read(CONFIG_TOML) == edited
    assert (installed.root / TOOLKIT / "nvidia-ctk.real").read_bytes().endswith(b"newer")
    assert "nvidia-container-runtime.log-level" in done.stderr
    assert "nvidia-container-runtime.log-level edited by an administrator" in told.stdout


LIBRARY = "usr/lib64/libnvidia-ml.so.1"


@pytest.mark.parametrize(
    ("there", "root"),
    [
        pytest.param([LIBRARY], "/", id="on the host"),
        pytest.param([LIBRARY, "run/nvidia/driver/etc/x"], "/run/nvidia/driver", id="both"),
        pytest.param([], "/run/nvidia/driver", id="not there yet"),
    ],
)
def test_the_toolkit_looks_for_the_driver_where_it_is(site: Site, there: list[str], root: str) -> None:
    for name in there:
        site.write(name, "")

    site.install()

    assert tomllib.loads(site.read(CONFIG_TOML))["nvidia-container-cli"]["root"] == root


def test_what_somebody_put_into_our_directory_is_not_removed(installed: Site) -> None:
    theirs = installed.write(f"{HOME}/theirs", "kept")

    refused = installed.uninstall(code=4)
    theirs.unlink()
    installed.uninstall()

    assert "it still holds theirs" in sentence(refused)
    assert not (installed.root / "usr").exists()


def test_backups_and_ledger_are_for_root_alone(installed: Site) -> None:
    home = installed.root / HOME
    modes = {path.name: path.stat().st_mode & 0o777 for path in (home, home / "ledger", home / "backups")}
    assert modes == {".toolkit-installer": 0o755, "ledger": 0o600, "backups": 0o700}
    assert {path.stat().st_mode & 0o777 for path in (home / "backups").iterdir()} == {0o600}


def test_an_install_dir_that_moved_is_refused_with_the_command_that_frees_the_old_one(
    installed: Site,
) -> None:
    assert installed.refuses("install", "--install-dir", "/opt/nvidia") == (
        "cannot install into /opt/nvidia (an engine's config still names the toolkit in /usr/local/nvidia); "
        "uninstall that first: toolkit-installer uninstall --install-dir /usr/local/nvidia"
    )
    installed.uninstall("--install-dir", "/usr/local/nvidia")
    installed.install("--install-dir", "/opt/nvidia")
    installed.uninstall("--install-dir", "/opt/nvidia")
