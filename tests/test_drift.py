"""What happens on a node while ``run`` waits: drift is repaired or told, and ``reconcile`` asks for it."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.looks import asked, look
from tests.support.site import DAEMON_JSON, LEDGER, PROJECT, STATE, Site
from tests.support.stand_in import CONFIGS
from tests.support.waiting import acts, stop, until, until_asked, until_it_sleeps

CONTAINERD = "etc/containerd/config.toml"
CRIO = "etc/crio/crio.conf.d/99-nvidia.toml"
TOOLKIT = "usr/local/nvidia/toolkit"
SCHEMA = json.loads((PROJECT / "docs/status.schema.json").read_text())
THEIRS = '{"log-driver": "local"}\n'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def seeded(site: Site, **changes: Any) -> None:
    """Change what is remembered of the looks, while nobody looks."""
    path = site.root / STATE
    path.write_text(json.dumps(look(site) | changes))


def _rewritten(root: Path) -> None:
    (root / DAEMON_JSON).write_text(THEIRS)


def _renamed_over(root: Path) -> None:
    (root / f"{DAEMON_JSON}.new").write_text(THEIRS)
    (root / f"{DAEMON_JSON}.new").rename(root / DAEMON_JSON)


def _as_it_was_before_us(root: Path) -> None:
    (root / CONTAINERD).write_text(CONFIGS[CONTAINERD])


def _a_runtime_gone_and_one_left(root: Path) -> None:
    said = json.loads((root / DAEMON_JSON).read_text())
    del said["runtimes"]["nvidia"]
    (root / DAEMON_JSON).write_text(json.dumps(said))


def _drop_in_removed(root: Path) -> None:
    (root / CRIO).unlink()


def _link_removed(root: Path) -> None:
    (root / TOOLKIT).unlink()


def _program_removed(root: Path) -> None:
    (root / TOOLKIT / "nvidia-ctk.real").unlink()


def _program_changed(root: Path) -> None:
    program = root / TOOLKIT / "nvidia-ctk.real"
    program.write_bytes(program.read_bytes()[:-1] + b"!")


def _ledger_lost(root: Path) -> None:
    (root / LEDGER).unlink()


# One after the other in one run: each is of another thing, so none has to wait for a pause.
ACTS = (
    (_rewritten, _as_it_was_before_us, _drop_in_removed, _link_removed),
    (_renamed_over, _program_removed, _ledger_lost),
    (_a_runtime_gone_and_one_left, _program_changed),
)


@pytest.mark.parametrize("acts", ACTS, ids=lambda acts: acts[0].__name__.strip("_"))
def test_what_somebody_has_changed_is_repaired_while_run_waits(
    site: Site, acts: tuple[Callable[[Path], None], ...]
) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        assert site.status("--deep").returncode == 0
        for act in acts:
            see_it_repaired(site, child.pid, act)

        child.terminate()
        assert child.wait(30) == 0
    assert not (site.root / TOOLKIT).is_symlink()
    assert not any("nvidia" in (site.root / path).read_text() for path in (DAEMON_JSON, CONTAINERD))


def see_it_repaired(site: Site, pid: int, act: Callable[[Path], None]) -> None:
    number = look(site)["number"]
    act(site.root)
    assert site.status("--deep").returncode == 1, "it is drift"

    until(lambda: look(site)["number"] > number)
    until_it_sleeps(pid)
    until(lambda: site.status("--deep").returncode == 0, lambda: site.status("--deep").stdout)


def test_what_somebody_else_wrote_stays_and_comes_back_byte_for_byte_at_the_end(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        _rewritten(site.root)
        until(lambda: "nvidia-cdi" in (site.root / DAEMON_JSON).read_text())

        assert json.loads((site.root / DAEMON_JSON).read_text())["log-driver"] == "local"
        until_it_sleeps(child.pid)
        child.terminate()
        assert child.wait(30) == 0
    assert (site.root / DAEMON_JSON).read_text() == THEIRS


@pytest.mark.parametrize("path", [CONTAINERD, DAEMON_JSON])
def test_a_config_of_more_than_ours_that_somebody_has_removed_is_told_and_not_written_anew(
    site: Site, path: str
) -> None:
    config = site.root / path
    theirs = config.read_bytes()
    with site.running() as child:
        until_it_sleeps(child.pid)
        with_ours = config.read_bytes()
        number = look(site)["number"]
        config.unlink()
        until(lambda: look(site)["number"] > number)
        until_it_sleeps(child.pid)
        told, made = site.status(), config.exists()
        config.write_bytes(theirs)
        until(lambda: config.read_bytes() == with_ours)
        until_it_sleeps(child.pid)
        until(lambda: site.status("--deep").returncode == 0, lambda: site.status("--deep").stdout)
        child.terminate()
        assert child.wait(30) == 0
    assert not made, "the engine's next start would be without all that its owner had in it"
    assert told.returncode == 1
    assert f"/{path} was removed, with more in it than our runtimes" in told.stdout
    assert "put it back" in told.stdout
    assert config.read_bytes() == theirs


def test_a_change_that_matters_to_nobody_is_looked_at_without_a_word(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        before = site.tree(times=True)
        number = look(site)["number"]
        (site.root / "etc/docker/key.json").write_text("{}")

        until(lambda: look(site)["number"] > number)
        until_it_sleeps(child.pid)

        (site.root / "etc/docker/key.json").unlink()
        after = site.tree(times=True)
        child.kill()
        assert child.stderr is not None
        assert child.stderr.read() == ""
    changed = {path for path in before if after.get(path) != before[path]}
    assert changed <= {STATE, "run/nvidia/toolkit/toolkit.pid", "run/nvidia/toolkit", "etc/docker"}


def test_a_second_look_is_not_made_for_what_the_first_one_wrote(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        _rewritten(site.root)
        until(lambda: look(site)["number"] == 2)
        time.sleep(3)

        assert look(site)["number"] == 2
        child.kill()


def test_drift_that_is_only_reported_is_told_by_status_probe_and_log_and_left(site: Site) -> None:
    with site.running("--drift", "report") as child:
        until_it_sleeps(child.pid)
        _rewritten(site.root)
        until(lambda: look(site)["problem"])

        assert (site.root / DAEMON_JSON).read_text() == THEIRS
        told = site.status("--json")
        document = json.loads(told.stdout)
        assert told.returncode == 1
        assert document["look"]["code"] == "drifted"
        assert "--drift report only tells" in document["look"]["problem"]
        assert document["ready"] is False
        done = asked(site)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "repaired")
        assert "nvidia-cdi" in (site.root / DAEMON_JSON).read_text()
        until_it_sleeps(child.pid)
        child.terminate()
        assert child.stderr is not None
        said = [json.loads(line) for line in child.stderr]
        assert child.wait(30) == 0
    (event,) = (line for line in said if line["event"] == "drift not repaired")
    assert event["code"] == "drifted"
    assert "/etc/docker/daemon.json: our keys there differ from what is asked for" in event["problem"]
    assert "toolkit-installer reconcile" in event["remedy"]


def test_drift_that_is_ignored_is_left_without_a_word_and_told_to_who_asks(site: Site) -> None:
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        _rewritten(site.root)
        until(lambda: look(site)["number"] > 1)
        until_it_sleeps(child.pid)
        _proven(site, child.pid)

        told, probe = site.status(), site.status("--ready")
        assert (site.root / DAEMON_JSON).read_text() == THEIRS
        assert (look(site)["problem"], look(site)["repairs"]) == ("", {})
        assert (told.returncode, probe.returncode, probe.stdout) == (1, 0, "")
        assert "BAD docker" in told.stdout
        assert told.stdout.endswith("ready: yes\n")
        (site.root / TOOLKIT / "nvidia-ctk.real").unlink()
        assert site.status("--ready").returncode == 1, "that is no config: containers fail"
        assert asked(site).returncode == 0
        assert "nvidia-cdi" in (site.root / DAEMON_JSON).read_text()
        child.kill()
        assert child.stderr is not None
        events = {json.loads(line)["event"] for line in child.stderr}
    assert "drift not repaired" not in events


def test_the_next_repair_of_the_same_thing_comes_after_its_pause(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        seeded(site, repairs={"/etc/docker/daemon.json": [time.monotonic() - 5]})
        began = time.monotonic()
        _rewritten(site.root)
        until(lambda: look(site)["problem"])

        assert "it was changed again after 1 repair" in look(site)["problem"]
        until(lambda: "nvidia-cdi" in (site.root / DAEMON_JSON).read_text())
        assert time.monotonic() - began > 4
        until(lambda: not look(site)["problem"])
        assert len(look(site)["repairs"]["/etc/docker/daemon.json"]) == 2
        child.kill()


def test_whoever_changes_it_again_and_again_is_told_loudly_and_wins(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        seeded(
            site,
            repairs={"/etc/docker/daemon.json": [time.monotonic() - 60 * each for each in (9, 8, 7, 6, 5)]},
        )
        _rewritten(site.root)
        until(lambda: look(site)["code"] == "drift-repeats", lambda: look(site))
        until_it_sleeps(child.pid)

        probe = site.status("--ready")
        assert probe.returncode == 1
        assert (site.root / DAEMON_JSON).read_text() == THEIRS
        assert asked(site).returncode == 0, "who asks has done something about it"
        assert look(site)["repairs"] == {}
        until_it_sleeps(child.pid)
        child.terminate()
        assert child.stderr is not None
        said = [json.loads(line) for line in child.stderr]
        assert child.wait(30) == 0
    (event,) = (line for line in said if line["event"] == "drift not repaired")
    assert event["level"] == "error"
    assert "it is changed again and again: 5 repairs within an hour" in event["problem"]


def _until_check(site: Site, pid: int) -> None:
    until(lambda: acts(pid) or look(site)["repairs"])


def _until_repair(site: Site, pid: int) -> None:  # noqa: ARG001 - as the other moment
    until(lambda: look(site)["repairs"])  # which are written down ahead of their first step


@pytest.mark.parametrize(
    "moment", [None, _until_check, _until_repair], ids=["ahead of it", "check", "repair"]
)
def test_a_stop_during_a_repair_undoes_everything(
    site: Site, moment: Callable[[Site, int], None] | None
) -> None:
    before = site.tree()
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / DAEMON_JSON).write_bytes(bytes.fromhex(before[DAEMON_JSON].split()[1]))
        if moment:
            moment(site, child.pid)
        child.terminate()

        assert child.wait(30) == 0
    assert site.tree() == before


@pytest.mark.parametrize("moment", [_until_check, _until_repair], ids=["check", "repair"])
def test_a_run_that_is_killed_in_a_repair_is_finished_by_uninstall(
    site: Site, moment: Callable[[Site, int], None]
) -> None:
    before = site.tree()
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / DAEMON_JSON).write_bytes(bytes.fromhex(before[DAEMON_JSON].split()[1]))
        moment(site, child.pid)
        child.kill()
        child.wait()

    until(lambda: site.call("uninstall").returncode == 0)  # a check that is under way ends first
    assert site.tree() == before


def test_reconcile_tells_that_there_is_nothing_to_do(site: Site) -> None:
    with site.running() as child:
        done = asked(site)

        child.kill()
    assert (done.returncode, done.stdout) == (0, "nothing to do\n")


def test_reconcile_tells_what_was_done(site: Site) -> None:
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        _rewritten(site.root)
        done = asked(site)
        told = asked(site, "--json")

        child.kill()
    assert (done.returncode, done.stdout) == (0, "done: edit /etc/docker/daemon.json\nrepaired\n")
    jsonschema.validate(json.loads(told.stdout), SCHEMA["properties"]["look"])


def test_reconcile_tells_why_it_could_not_and_ends_with_1(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        (site.root / DAEMON_JSON).write_text("{garbage")
        done = asked(site)
        told = asked(site, "--json")

        (site.root / DAEMON_JSON).write_text("{}")
        child.kill()
    said = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1
    assert said["problem"].startswith("cannot read /etc/docker/daemon.json as JSON")
    assert said["remedy"]
    assert told.returncode == 1
    assert json.loads(told.stdout)["problem"] == said["problem"]


def test_reconcile_where_nobody_waits_says_so_and_ends_with_3(site: Site) -> None:
    never = asked(site)
    with site.running() as child:
        child.kill()
        child.wait()
    killed = asked(site)

    assert (never.returncode, killed.returncode) == (3, 3)
    assert killed.stdout.startswith(
        "no toolkit-installer run waits (/run/nvidia/toolkit/toolkit.pid is not locked)"
    )


def test_an_installation_that_is_away_for_a_while_as_below_a_mount_ends_no_run(site: Site) -> None:
    before, installation = site.tree(), site.root / "usr/local/nvidia"
    aside = site.root.parent / "aside"
    with site.running() as child:
        installation.rename(aside)
        asked(site)
        shutil.rmtree(installation)
        aside.rename(installation)
        again = asked(site)

        assert (again.returncode, child.poll()) == (0, None), again.stderr
        child.terminate()
        assert child.wait(20) == 0
    assert site.tree() == before


def test_reconcile_finds_another_pidfile(site: Site) -> None:
    (site.root / "run").mkdir()
    pid_file = str(site.root / "run/mine.pid")
    with site.running("--pid-file", pid_file) as child:
        done = asked(site, "--pid-file", pid_file)
        other = asked(site)

        child.kill()
    assert (done.returncode, other.returncode) == (0, 3)


def test_reconcile_is_told_when_the_run_ends_instead(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        stop(child.pid)
        command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=PROJECT) as asking:
            until_asked(child.pid)
            child.kill()
            child.wait()
            assert asking.stderr is not None
            said = json.loads(asking.stderr.read())

            assert asking.wait(30) == 1
    assert said["code"] == "no-answer"
    assert "the run that waited has ended" in said["problem"]


def _works(runc: Path) -> None:
    runc.write_text("#! /bin/sh\n")
    runc.chmod(0o755)


def _gone(runc: Path) -> None:
    runc.rename(runc.with_name("moved"))


def _not_executable(runc: Path) -> None:
    runc.chmod(0o644)


def _leads_nowhere(runc: Path) -> None:
    runc.unlink()
    runc.symlink_to("nowhere")


def _emptied(runc: Path) -> None:
    runc.write_text("")


@pytest.mark.parametrize("act", [_gone, _not_executable, _leads_nowhere, _emptied])
def test_a_low_level_runtime_that_goes_makes_the_node_not_ready_until_it_is_back(
    site: Site, act: Callable[[Path], None]
) -> None:
    runc = site.root / "usr/sbin/runc"
    with site.running() as unknown:
        until_it_sleeps(unknown.pid)
        assert look(site)["problem"] == "", "where none was found an engine may have its own"
        unknown.terminate()
        assert unknown.wait(30) == 0
    runc.parent.mkdir(parents=True, exist_ok=True)
    _works(runc)
    with site.running() as child:
        until_it_sleeps(child.pid)
        assert look(site)["problem"] == ""
        act(runc)
        until(lambda: look(site)["problem"], lambda: look(site))
        told = site.status()
        runc.unlink(missing_ok=True)
        _works(runc)
        until(lambda: not look(site)["problem"], lambda: look(site))
        child.kill()

    assert told.returncode == 1
    assert (
        "cannot start containers with our runtimes (/usr/sbin/runc, which they start, is missing or not executable)"
        in (told.stdout)
    )


def _proven(site: Site, pid: int) -> None:
    """Publish readiness, as a run does that has asked its engines."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    said = {"boot_id": boot_id, "pid": pid, "plan": "", "engines": [], "time": ""}
    (site.root / "run/nvidia/toolkit/ready").write_text(json.dumps(said))


NOT_SERVED = {
    "name": "containerd",
    "serves": False,
    "since": "2026-11-22T08:00:00Z",
    "differs": "it does not serve nvidia",
    "process": "",
}


def test_an_engine_that_does_not_serve_is_never_ok_although_the_files_are(site: Site) -> None:
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        _proven(site, child.pid)
        good = site.status("--ready")
        seeded(site, engines=[NOT_SERVED])

        told, probe = site.status(), site.status("--ready")
        document = json.loads(site.status("--json").stdout)
        child.kill()
    sentence = (
        "containerd: did not serve our runtimes at the last check (it does not serve nvidia), since "
        "2026-11-22T08:00:00Z: toolkit-installer reconcile"
    )
    assert (good.returncode, good.stdout) == (0, "")
    assert told.returncode == 1
    assert "BAD containerd" in told.stdout
    assert told.stdout.endswith("ready: no\n")
    assert (probe.returncode, probe.stdout) == (1, f"{sentence}\n")
    jsonschema.validate(document, SCHEMA)
    assert (document["ready"], document["why"]) == (False, sentence)


def test_an_engine_that_serves_and_would_not_start_again_is_ready_and_never_ok(site: Site) -> None:
    serving = NOT_SERVED | {
        "serves": True,
        "differs": "",
        "refused": "its default runtime nope is not defined",
    }
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        _proven(site, child.pid)
        seeded(site, engines=[serving])

        told, probe = site.status(), site.status("--ready")
        document = json.loads(site.status("--json").stdout)
        child.kill()
    sentence = (
        "cannot start containerd again with the configs that it has now (its default runtime nope is not "
        "defined); correct them before its next start: it serves until then"
    )
    assert (probe.returncode, probe.stdout) == (0, "")
    assert told.returncode == 1
    assert sentence in told.stdout
    assert told.stdout.endswith("ready: yes\n")
    jsonschema.validate(document, SCHEMA)
    assert (document["ready"], document["why"]) == (True, "")
    assert document["held"][1] == {"what": "containerd", "state": sentence, "good": False}


def test_no_reconcile_is_promised_beside_its_refusal(site: Site) -> None:
    refused = {"code": "config-disturbs-others", "problem": "configure it", "remedy": "correct /z.toml"}
    with site.running() as child:
        until_it_sleeps(child.pid)
        _proven(site, child.pid)
        stop(child.pid)
        _a_runtime_gone_and_one_left(site.root)
        seeded(site, **refused)

        told = site.status().stdout
        child.kill()

    assert "the runtime nvidia is not defined in its configs: correct /z.toml\n" in told
    assert "reconcile" not in told


@pytest.mark.parametrize(
    ("act", "words"),
    [
        pytest.param(
            _a_runtime_gone_and_one_left,
            "docker: drifted: the runtime nvidia is not defined in its configs: toolkit-installer reconcile puts it right",
            id="a runtime of several",
        ),
        pytest.param(_drop_in_removed, "crio: drifted: the runtime nvidia is not defined", id="a drop-in"),
        pytest.param(_program_removed, "nvidia-ctk.real: missing", id="a program"),
        pytest.param(_link_removed, "/usr/local/nvidia/toolkit: missing", id="the toolkit"),
    ],
)
def test_a_probe_says_in_one_line_what_is_wrong_and_what_to_do(
    site: Site, act: Callable[[Path], None], words: str
) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        _proven(site, child.pid)
        stop(child.pid)  # else it is repaired while we ask
        act(site.root)

        probe, told = site.status("--ready"), site.status()
        child.kill()
    assert probe.returncode == 1
    assert words in probe.stdout
    assert probe.stdout.count("\n") == 1
    assert (told.returncode, "ready: yes" in told.stdout) == (1, False)


def test_a_probe_says_why_a_node_is_not_ready_that_has_no_bad_line(site: Site) -> None:
    nothing = site.status("--ready")
    site.call("install")
    installed = site.status("--ready")
    with site.running() as child:
        unasked = site.status("--ready")
        child.kill()

    assert [each.returncode for each in (nothing, installed, unasked)] == [1, 1, 1]
    assert nothing.stdout == "nothing is installed: use install or run\n"
    assert installed.stdout.startswith(
        "no toolkit-installer run waits (/run/nvidia/toolkit/toolkit.pid is not locked)"
    )
    assert unasked.stdout.startswith("it is not known what docker or containerd or crio serves")


def test_what_a_run_saw_that_has_ended_is_told_as_such(site: Site) -> None:
    with site.running() as child:
        seeded(site, engines=[NOT_SERVED])
        child.kill()
        child.wait()

    told = site.status()

    assert "by a run that has ended" in told.stdout
    assert "no run watches this node" in told.stdout
    assert "does not serve" not in told.stdout
    assert json.loads(site.status("--json").stdout)["look"]["current"] is False
