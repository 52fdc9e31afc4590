"""The verbs as people call them: the real program as a child process, a host below tmp_path."""

import json
import re
import signal
import time
import tomllib
from pathlib import Path

import pytest

from tests.support.site import DAEMON_JSON, LEDGER, Site, sentence, waits
from tests.support.stand_in import CONFIGS


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=["TERM", "INT", "QUIT"]
)
def test_a_stop_restores_every_byte_and_leaves_nothing(site: Site, number: signal.Signals) -> None:
    before = site.tree()

    with site.running() as child:
        during = site.tree()
        child.send_signal(number)

        assert child.wait(30) == 0
    assert "nvidia-cdi" in (
        json.dumps(sorted(during)) + bytes.fromhex(during[DAEMON_JSON].split()[1]).decode()
    )
    assert site.tree() == before


def test_uninstall_undoes_what_a_killed_run_left(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        child.kill()
        child.wait()

    done = site.call("uninstall")

    assert done.returncode == 0
    assert site.tree() == before


def test_a_run_after_a_killed_one_takes_over_and_undoes_both(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        child.kill()
        child.wait()

    with site.running() as child:
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


def test_a_run_undoes_what_an_earlier_install_did(site: Site) -> None:
    before = site.tree()
    assert site.call("install").returncode == 0

    with site.running() as child:
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


@pytest.mark.parametrize("others", [False, True], ids=["empty", "with a file of others"])
def test_an_undo_says_of_a_directory_what_has_become_of_it(site: Site, *, others: bool) -> None:
    assert site.call("install", "--runtime", "crio").returncode == 0
    directory = site.root / "etc/crio/crio.conf.d"
    if others:
        (directory / "10-admin.conf").write_text("[crio]\n")

    done = site.call("uninstall")

    assert done.returncode == 0, done.stderr
    said = {
        line["path"]: line["event"] for line in map(json.loads, done.stderr.splitlines()) if "path" in line
    }
    assert said["/etc/crio/crio.conf.d"] == ("directory kept" if others else "directory removed")
    assert directory.exists() is others


def test_a_second_install_writes_nothing_and_says_so(site: Site) -> None:
    site.call("install")
    before = site.tree(times=True)

    done = site.call("install")

    assert done.returncode == 0
    assert "nothing changed" in done.stderr
    assert site.tree(times=True) == before


def test_plan_prints_diffs_exits_10_and_touches_nothing(site: Site) -> None:
    before = site.tree(times=True)

    done = site.call("plan")

    assert done.returncode == 10
    assert f"--- a/{DAEMON_JSON}\n+++ b/{DAEMON_JSON}\n@@" in done.stdout
    assert site.tree(times=True) == before
    site.call("install")
    assert site.call("plan").returncode == 0


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        pytest.param(DAEMON_JSON, "{garbage", "read /etc/docker/daemon.json as JSON", id="JSON garbage"),
        pytest.param(DAEMON_JSON, "[]", "read /etc/docker/daemon.json as JSON", id="a JSON list"),
        pytest.param(DAEMON_JSON, '{"runtimes": 1}', "runtimes is a number", id="a wrong type"),
        pytest.param(DAEMON_JSON, "\ufffd", "read /etc/docker/daemon.json", id="no JSON at all"),
        pytest.param("etc/containerd/config.toml", "a = [", "config.toml as TOML", id="TOML garbage"),
        pytest.param("etc/crio/crio.conf", "x = ", "crio.conf as TOML", id="CRI-O garbage"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_nothing_left(
    site: Site, path: str, text: str, words: str
) -> None:
    (site.root / path).write_text(text)
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert words in sentence(done)
    assert len(done.stderr.splitlines()) == 1
    assert site.tree() == before


def test_a_directory_in_place_of_a_config_is_refused(site: Site) -> None:
    (site.root / DAEMON_JSON).unlink()
    (site.root / DAEMON_JSON).mkdir()
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert "cannot read /etc/docker/daemon.json (it is a directory)" in sentence(done)
    assert site.tree() == before


def test_a_hard_linked_config_is_refused(site: Site) -> None:
    (site.root / "etc/docker/other").hardlink_to(site.root / DAEMON_JSON)
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert "2 hard links" in sentence(done)
    assert site.tree() == before


@pytest.mark.parametrize(
    "target", ["/srv/daemon.json", "../../srv/daemon.json"], ids=["absolute", "relative"]
)
def test_a_symlinked_config_is_edited_at_its_target_below_the_root(site: Site, target: str) -> None:
    (site.root / "srv").mkdir()
    (site.root / DAEMON_JSON).rename(site.root / "srv/daemon.json")
    (site.root / DAEMON_JSON).symlink_to(target)
    before = site.tree()

    site.call("install")

    assert (site.root / DAEMON_JSON).is_symlink()
    assert "nvidia" in (site.root / "srv/daemon.json").read_text()
    site.call("uninstall")
    assert site.tree() == before


ACCEPT = "accept-nvidia-visible-devices"


@pytest.mark.parametrize("form", ["flags", "variables"])
def test_who_may_choose_gpus_is_told_by_flags_and_variables(site: Site, form: str) -> None:
    flags = [f"--no-{ACCEPT}-envvar-when-unprivileged", f"--{ACCEPT}-as-volume-mounts"]
    name = f"TOOLKIT_INSTALLER_{ACCEPT.upper().replace('-', '_')}"
    variables = {f"{name}_ENVVAR_WHEN_UNPRIVILEGED": "false", f"{name}_AS_VOLUME_MOUNTS": "true"}
    config = site.root / "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"

    assert site.call("install").returncode == 0
    by_default = tomllib.loads(config.read_text())
    done = site.call(
        "install", *(flags if form == "flags" else ()), env=variables if form == "variables" else {}
    )

    assert done.returncode == 0, done.stderr
    said = tomllib.loads(config.read_text())
    keys = (f"{ACCEPT}-envvar-when-unprivileged", f"{ACCEPT}-as-volume-mounts")
    assert [by_default[key] for key in keys] == [True, False], "as NVIDIA's"
    assert [said[key] for key in keys] == [False, True]


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
    before = site.tree()

    done = site.call("install")

    assert done.returncode == 1
    assert "nvidia-container-runtime" in sentence(done)
    assert "--toolkit-source" in sentence(done)
    assert site.tree() == before


def test_others_edits_stay_and_only_our_keys_go(site: Site) -> None:
    site.call("install", "--set-as-default")
    toml = site.root / "etc/containerd/config.toml"
    toml.write_text(f"{toml.read_text()}# added by somebody\n")
    daemon = site.root / DAEMON_JSON
    theirs = daemon.read_text().replace('"log-driver": "json-file"', '"log-driver": "local"')
    daemon.write_text(re.sub(r'"path": "[^"]*-runtime"', '"path": "/theirs"', theirs))

    done = site.call("uninstall")

    assert done.returncode == 0
    assert toml.read_text() == CONFIGS["etc/containerd/config.toml"] + "# added by somebody\n"
    left = json.loads(daemon.read_text())
    assert left["log-driver"] == "local"
    assert left["runtimes"] == {"nvidia": {"path": "/theirs", "args": []}}
    assert "default-runtime" not in left
    assert "left the runtime nvidia in /etc/docker/daemon.json as it is" in done.stderr


def test_an_administrators_edit_of_the_toolkit_config_survives_an_upgrade(site: Site) -> None:
    site.call("install")
    config = site.root / "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    config.write_text(config.read_text().replace('log-level = "info"', 'log-level = "debug"  # ticket 7'))
    program = site.source / "usr/local/sbin/nvidia-ctk"
    program.write_bytes(program.read_bytes() + b"newer")

    done = site.call("install")

    assert 'log-level = "debug"  # ticket 7' in config.read_text()
    assert (site.root / "usr/local/nvidia/toolkit/nvidia-ctk.real").read_bytes().endswith(b"newer")
    assert "nvidia-container-runtime.log-level" in done.stderr
    told = site.status().stdout
    assert "nvidia-container-runtime.log-level edited by an administrator" in told


def test_another_installers_toolkit_directory_comes_back_whole(site: Site) -> None:
    theirs = site.root / "usr/local/nvidia/toolkit"
    theirs.mkdir(parents=True)
    (theirs / "nvidia-ctk").write_text("theirs")
    before = site.tree()

    installed = site.call("install")

    assert installed.returncode == 0
    assert theirs.is_symlink()
    site.call("uninstall")
    assert site.tree() == before


def test_a_hangup_puts_back_what_somebody_overwrote(site: Site) -> None:
    with site.running() as child:
        (site.root / DAEMON_JSON).write_text('{"log-driver": "local"}\n')
        child.send_signal(signal.SIGHUP)
        waits(child)

        now = json.loads((site.root / DAEMON_JSON).read_text())
        child.terminate()
        assert child.wait(30) == 0

    assert now["log-driver"] == "local"
    assert "nvidia" in now["runtimes"]
    assert (site.root / DAEMON_JSON).read_text() == '{"log-driver": "local"}\n'


def test_a_reader_of_the_log_that_goes_away_is_survived(site: Site) -> None:
    before = site.tree()
    with site.running() as child:
        assert child.stderr is not None
        child.stderr.close()
        child.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert child.poll() is None
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


def test_status_tells_good_from_drifted_from_nothing(site: Site) -> None:
    nothing = site.status()
    site.call("install")
    good = site.status("--json")
    (site.root / DAEMON_JSON).write_text("{}\n")
    drifted = site.status()

    assert [nothing.returncode, good.returncode, drifted.returncode] == [3, 0, 1]
    assert json.loads(good.stdout)["installed"] is True
    assert "BAD /etc/docker/daemon.json" in drifted.stdout


def test_a_driver_on_the_host_itself_is_told(site: Site) -> None:
    library = site.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.1"
    library.parent.mkdir(parents=True)
    library.touch()

    done = site.call("plan")

    chosen = site.call("plan", "--driver-root", "/run/nvidia/driver")
    assert "/usr/lib/x86_64-linux-gnu holds the driver: the toolkit looks for it in /" in done.stdout
    assert "consider --driver-root /" in chosen.stdout


@pytest.mark.parametrize(
    ("there", "root"),
    [
        pytest.param(("usr/lib64/libnvidia-ml.so.1",), "/", id="on the host"),
        pytest.param(
            ("usr/lib64/libnvidia-ml.so.1", "run/nvidia/driver/etc/x"), "/run/nvidia/driver", id="both"
        ),
        pytest.param((), "/run/nvidia/driver", id="not there yet"),
    ],
)
def test_the_toolkit_looks_for_the_driver_where_it_is(site: Site, there: tuple[str, ...], root: str) -> None:
    for name in there:
        (site.root / name).parent.mkdir(parents=True)
        (site.root / name).touch()

    assert site.call("install").returncode == 0

    config = site.root / "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    assert tomllib.loads(config.read_text())["nvidia-container-cli"]["root"] == root


def test_nothing_to_undo_is_success_and_makes_nothing(site: Site) -> None:
    before = site.tree()

    done = site.call("uninstall")

    assert done.returncode == 0
    assert site.tree() == before


def test_a_corrupt_ledger_is_said_plainly_and_nothing_is_guessed(site: Site) -> None:
    site.call("install")
    (site.root / LEDGER).write_text('{"version": 1, "fini')
    before = site.tree()

    done = site.call("uninstall")

    assert done.returncode == 1
    assert "cannot understand the ledger /usr/local/nvidia/.toolkit-installer/ledger" in sentence(done)
    assert "backups" in sentence(done)
    assert site.tree() == before


def test_what_somebody_put_into_our_directory_is_not_removed(site: Site) -> None:
    site.call("install")
    theirs = site.root / "usr/local/nvidia/.toolkit-installer/theirs"
    theirs.write_text("kept")

    refused = site.call("uninstall")
    theirs.unlink()
    done = site.call("uninstall")

    assert [refused.returncode, done.returncode] == [4, 0]
    assert "it still holds theirs" in sentence(refused)
    assert not (site.root / "usr").exists()


def test_backups_and_ledger_are_for_root_alone(site: Site) -> None:
    site.call("install")

    home = site.root / "usr/local/nvidia/.toolkit-installer"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (home, home / "ledger", home / "backups")}
    assert modes == {".toolkit-installer": 0o755, "ledger": 0o600, "backups": 0o700}
    assert {path.stat().st_mode & 0o777 for path in (home / "backups").iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("more", "env", "code"),
    [
        pytest.param(["--timeout", "0"], {}, 2, id="no time"),
        pytest.param(["--runtime-name", "runc"], {}, 2, id="the low-level runtime's name"),
        pytest.param(["--config", "docker=/etc/docker/daemon.json"], {}, 2, id="a config outside the root"),
        pytest.param([], {"TOOLKIT_INSTALLER_TIMEOUT": "-1"}, 2, id="from the environment"),
        pytest.param(["--no-such-flag"], {}, 2, id="an unknown flag"),
    ],
)
def test_a_usage_error_exits_2(site: Site, more: list[str], env: dict[str, str], code: int) -> None:
    done = site.call("plan", *more, env=env)

    assert done.returncode == code


def test_readiness_is_not_claimed_where_nothing_was_proven(site: Site) -> None:
    with site.running() as child:
        ready = (site.root / "run/nvidia/toolkit/ready").exists()
        told = site.status("--ready")
        child.terminate()
        child.wait(30)

    assert not ready
    assert told.returncode == 1


def test_run_is_alive_until_it_ends_and_an_installation_without_it_is_not(site: Site) -> None:
    with site.running("--on-exit", "keep") as child:
        while_it_waits = site.status("--alive").returncode
        child.terminate()
        child.wait(30)

    assert (while_it_waits, site.status("--alive").returncode, site.status().returncode) == (0, 1, 0)


def test_an_install_dir_that_moved_is_refused_with_the_command_that_frees_the_old_one(site: Site) -> None:
    assert site.call("install").returncode == 0
    before = site.tree(times=True)

    done = site.call("install", "--install-dir", "/opt/nvidia")

    assert done.returncode == 1
    assert sentence(done) == (
        "cannot install into /opt/nvidia (an engine's config still names the toolkit in /usr/local/nvidia); "
        "uninstall that first: toolkit-installer uninstall --install-dir /usr/local/nvidia"
    )
    assert {path: what for path, what in site.tree(times=True).items() if before.get(path) != what} == {}
    assert site.call("uninstall", "--install-dir", "/usr/local/nvidia").returncode == 0
    assert site.call("install", "--install-dir", "/opt/nvidia").returncode == 0
    assert site.call("uninstall", "--install-dir", "/opt/nvidia").returncode == 0
