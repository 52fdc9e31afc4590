"""What happens on a node while ``run`` waits: drift is repaired or told, and ``reconcile`` asks for it."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jsonschema
import pytest

from tests.support.looks import asked, found_problem, look
from tests.support.site import CONTAINERD, CRIO, DAEMON_JSON, LEDGER, PROJECT, STATE, TOOLKIT, Site, ended
from tests.support.stand_in import CONFIGS
from tests.support.waiting import acts, stop, until, until_asked, until_it_sleeps

SCHEMA = json.loads((PROJECT / "docs/status.schema.json").read_text())
THEIRS = '{"log-driver": "local"}\n'
Act = Callable[[Site], object]


def seeded(site: Site, **changes: Any) -> None:
    """Change what is remembered of the looks, while nobody looks."""
    site.write(STATE, json.dumps(look(site) | changes))


def _rewritten(site: Site) -> None:
    site.write(DAEMON_JSON, THEIRS)


def _renamed_over(site: Site) -> None:
    site.write(f"{DAEMON_JSON}.new", THEIRS).rename(site.root / DAEMON_JSON)


def _as_before_us(site: Site) -> None:
    site.write(CONTAINERD, CONFIGS[CONTAINERD])


def _a_runtime_gone_and_one_left(site: Site) -> None:
    site.rewrite(DAEMON_JSON, lambda said: said["runtimes"].pop("nvidia"))


def _removed(path: str) -> Act:
    return lambda site: (site.root / path).unlink()


def _program_changed(site: Site) -> None:
    program = site.root / TOOLKIT / "nvidia-ctk.real"
    program.write_bytes(program.read_bytes()[:-1] + b"!")


def _saved_copies_removed(site: Site) -> None:
    for copy in (site.root / LEDGER).with_name("backups").iterdir():
        copy.unlink()


# One after the other in one run: each is of another thing, so none has to wait for a pause.
ACTS: tuple[tuple[Act, ...], ...] = (
    (_rewritten, _as_before_us, _removed(CRIO), _removed(TOOLKIT), _saved_copies_removed),
    (_renamed_over, _removed(f"{TOOLKIT}/nvidia-ctk.real"), _removed(LEDGER)),
    (_a_runtime_gone_and_one_left, _program_changed),
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("those", ACTS, ids=["rewritten", "renamed over", "a runtime less"])
def test_what_somebody_has_changed_is_repaired_while_run_waits(site: Site, those: tuple[Act, ...]) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        assert site.status("--deep").returncode == 0
        for act in those:
            number = look(site)["number"]
            act(site)
            assert site.status("--deep").returncode == 1, "it is drift"
            until(lambda number=number: look(site)["number"] > number)  # type: ignore[misc]
            until_it_sleeps(child.pid)
            until(lambda: site.status("--deep").returncode == 0, lambda: site.status("--deep").stdout)
        ended(child)
    assert not (site.root / TOOLKIT).is_symlink()
    assert "nvidia" not in site.read(DAEMON_JSON) + site.read(CONTAINERD)
    assert those[0] is _a_runtime_gone_and_one_left or site.read(DAEMON_JSON) == THEIRS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", [CONTAINERD, DAEMON_JSON])
def test_a_config_of_more_than_ours_that_somebody_has_removed_is_told_and_not_written_anew(
    site: Site, path: str
) -> None:
    theirs = site.read(path)
    with site.running() as child:
        until_it_sleeps(child.pid)
        with_ours, number = site.read(path), look(site)["number"]
        (site.root / path).unlink()
        until(lambda: look(site)["number"] > number)
        until_it_sleeps(child.pid)
        told, made = site.status(), site.read(path)
        site.write(path, theirs)
        until(lambda: site.read(path) == with_ours)
        until_it_sleeps(child.pid)
        until(lambda: site.status("--deep").returncode == 0, lambda: site.status("--deep").stdout)
        ended(child)
    assert made == "", "the engine's next start would be without all that its owner had in it"
    assert told.returncode == 1
    assert f"/{path} was removed, with more in it than our runtimes" in told.stdout
    assert "put it back" in told.stdout
    assert site.read(path) == theirs


def test_neither_a_change_that_matters_to_nobody_nor_one_of_ours_is_a_reason_to_act(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        before = site.tree(times=True)
        site.write("etc/docker/key.json", "{}")
        until(lambda: look(site)["number"] == 2)
        until_it_sleeps(child.pid)
        (site.root / "etc/docker/key.json").unlink()
        after = site.tree(times=True)
        until(lambda: look(site)["number"] == 3)
        _rewritten(site)
        until(lambda: look(site)["number"] == 4)
        time.sleep(3)
        assert look(site)["number"] == 4, "it has not looked at what it wrote itself"
        child.kill()
        assert child.stderr is not None
        events = [json.loads(line)["event"] for line in child.stderr]
    assert events == ["drift found", "config written", "drift repaired"]
    changed = {path for path in before if after.get(path) != before[path]}
    assert changed <= {STATE, "run/nvidia/toolkit/toolkit.pid", "run/nvidia/toolkit", "etc/docker"}


def test_drift_that_is_only_reported_is_told_by_status_probe_and_log_and_left(site: Site) -> None:
    with site.running("--drift", "report") as child:
        until_it_sleeps(child.pid)
        _rewritten(site)
        until(lambda: look(site)["problem"])
        assert site.read(DAEMON_JSON) == THEIRS
        told = site.status("--json")
        document = json.loads(told.stdout)
        assert (told.returncode, document["look"]["code"], document["ready"]) == (1, "drifted", False)
        assert "--drift report repairs nothing" in document["look"]["problem"]
        done = asked(site)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "repaired")
        assert "nvidia-cdi" in site.read(DAEMON_JSON)
        until_it_sleeps(child.pid)
        said = map(json.loads, ended(child).splitlines())
    (event,) = (line for line in said if line["event"] == "drift not repaired")
    assert event["code"] == "drifted"
    reason = "missing or different: nvidia, nvidia-cdi, nvidia-legacy"
    assert f"/etc/docker/daemon.json: {reason}" in event["problem"]
    assert "toolkit-installer reconcile" in event["remedy"]


def test_drift_that_is_ignored_is_left_without_a_word_and_told_to_who_asks(site: Site) -> None:
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        _rewritten(site)
        until(lambda: look(site)["number"] > 1)
        until_it_sleeps(child.pid)
        site.publish_ready(child.pid)
        told, probe = site.status(), site.status("--ready")
        assert site.read(DAEMON_JSON) == THEIRS
        assert (look(site)["problem"], look(site)["pace"]["repairs"]) == (None, {})
        assert (told.returncode, probe.returncode, probe.stdout) == (1, 0, "")
        assert "BAD docker" in told.stdout
        assert told.stdout.endswith("ready: yes\n")
        done = asked(site)
        assert "nvidia-cdi" in site.read(DAEMON_JSON)
        (site.root / TOOLKIT / "nvidia-ctk.real").unlink()
        assert site.status("--ready").returncode == 1, "that is no config: containers fail"
        site.write(DAEMON_JSON, "{garbage")
        refused = asked(site, "--json")
        site.write(DAEMON_JSON, "{}")
        events = {json.loads(line)["event"] for line in ended(child).splitlines()}
    assert "drift not repaired" not in events
    assert (done.returncode, done.stdout) == (0, "done: edit /etc/docker/daemon.json\nrepaired\n")
    assert refused.returncode == 1
    jsonschema.validate(json.loads(refused.stdout), SCHEMA["properties"]["look"])
    assert json.loads(refused.stdout)["problem"].startswith("cannot read /etc/docker/daemon.json as JSON")


def test_whoever_changes_it_again_and_again_is_told_loudly_and_wins(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        ago = [time.monotonic() - 60 * minutes for minutes in (9, 8, 7, 6, 5)]
        seeded(site, pace={"repairs": {"/etc/docker/daemon.json": ago}})
        _rewritten(site)
        until(lambda: found_problem(site, "drift-repeats"), lambda: look(site))
        until_it_sleeps(child.pid)

        assert site.status("--ready").returncode == 1
        assert site.read(DAEMON_JSON) == THEIRS
        assert asked(site).returncode == 0, "who asks has done something about it"
        assert look(site)["pace"]["repairs"] == {}
        until_it_sleeps(child.pid)
        said = map(json.loads, ended(child).splitlines())
    (event,) = (line for line in said if line["event"] == "drift not repaired")
    assert event["level"] == "error"
    assert "it is changed again and again: 5 repairs within an hour" in event["problem"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("moment", ["check", "repair"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_run_that_ends_during_a_repair_leaves_nothing(clean: Site, moment: str, *, killed: bool) -> None:
    with clean.running() as child:
        until_it_sleeps(child.pid)
        clean.write(DAEMON_JSON, CONFIGS[DAEMON_JSON])
        # Repairs are written down ahead of their first step.
        until(lambda: (moment == "check" and acts(child.pid)) or look(clean)["pace"]["repairs"])
        if not killed:
            ended(child)
    if killed:
        until(lambda: clean.call("uninstall").returncode == 0)  # a check that is under way ends first


def test_reconcile_where_nobody_waits_says_so_and_ends_with_3(site: Site) -> None:
    (site.root / "run").mkdir()
    pid_file = str(site.root / "run/mine.pid")
    never = asked(site)
    with site.running("--pid-file", pid_file):
        done, other = asked(site, "--pid-file", pid_file), asked(site)
    killed = asked(site, "--pid-file", pid_file)

    assert [each.returncode for each in (never, done, other, killed)] == [3, 0, 3, 3]
    assert done.stdout == "nothing to do\n"
    assert killed.stdout.startswith("no toolkit-installer run waits (/run/mine.pid is not locked)")


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
        ended(child)
    assert site.tree() == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("who", "problem"),
    [
        pytest.param("run", "the run that waited has ended", id="the run ends"),
        pytest.param("reconcile", "stopped by a signal", id="it is told to end"),
    ],
)
def test_a_reconcile_that_waits_for_its_answer_ends(site: Site, who: str, problem: str) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        stop(child.pid)
        command = [sys.executable, "-m", "installer", "reconcile", "--host-root", str(site.root)]
        command += ["--log-format", "json"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=PROJECT) as asking:
            until_asked(child.pid)
            if who == "run":
                child.kill()
                child.wait()
            else:
                asking.terminate()
            assert asking.wait(30) == 1
            assert asking.stderr is not None
            said = asking.stderr.read()
    assert problem in said
    assert '"code": "no-answer"' in said or who != "run"


def test_a_low_level_runtime_that_goes_makes_the_node_not_ready_until_it_is_back(site: Site) -> None:
    with site.running() as unknown:
        until_it_sleeps(unknown.pid)
        assert look(site)["problem"] is None, "where none was found an engine may have its own"
        ended(unknown)
    runc = site.write("usr/sbin/runc", "#! /bin/sh\n")
    runc.chmod(0o755)
    with site.running() as child:
        until_it_sleeps(child.pid)
        assert look(site)["problem"] is None
        for spoil in (runc.unlink, partial(runc.chmod, 0o644)):
            spoil()
            until(lambda: look(site)["problem"], lambda: look(site))
            told = site.status()
            assert told.returncode == 1
            assert "(/usr/sbin/runc, which they start, is missing or not executable)" in told.stdout
            site.write("usr/sbin/runc", "#! /bin/sh\n").chmod(0o755)
            until(lambda: not look(site)["problem"], lambda: look(site))


NOT_SERVED = {
    "name": "containerd",
    "serves": False,
    "since": "2026-11-22T08:00:00Z",
    "process": "",
    "difference": "it does not serve nvidia",
}
REFUSED = NOT_SERVED | {
    "serves": True,
    "difference": "",
    "start_failure": "its default runtime nope is not defined",
}


def test_an_engine_that_does_not_serve_or_would_not_start_again_is_never_ok(site: Site) -> None:
    with site.running("--drift", "ignore") as child:
        until_it_sleeps(child.pid)
        site.publish_ready(child.pid)
        good = site.status("--ready")
        assert (good.returncode, good.stdout) == (0, "")
        for engine, words, ready in (
            (
                NOT_SERVED,
                "containerd: did not serve our runtimes at the last check (it does not serve",
                False,
            ),
            (REFUSED, "cannot start containerd again with the configs that it has now (its default", True),
        ):
            seeded(site, engines=[engine])
            told, probe, as_json = site.status(), site.status("--ready"), site.status("--json")
            document = json.loads(as_json.stdout)
            jsonschema.validate(document, SCHEMA)
            assert (told.returncode, probe.returncode) == (1, 0 if ready else 1)
            assert told.stdout.endswith("ready: yes\n" if ready else "ready: no\n")
            assert "BAD containerd" in told.stdout
            assert words in (told if ready else probe).stdout
            assert (document["ready"], document["why"]) == (ready, probe.stdout.strip())


def test_a_probe_says_in_one_line_what_is_wrong_and_what_to_do(site: Site) -> None:
    with site.running() as child:
        until_it_sleeps(child.pid)
        site.publish_ready(child.pid)
        stop(child.pid)  # else it is repaired while we ask
        for path, words in (
            (TOOLKIT, "/usr/local/nvidia/toolkit: missing"),
            (f"{TOOLKIT}/nvidia-ctk.real", "nvidia-ctk.real: missing"),
            (CRIO, "crio: drifted: the runtime nvidia is not defined"),
        ):
            (site.root / path).rename(site.root.parent / "aside")
            probe, told = site.status("--ready"), site.status()
            (site.root.parent / "aside").rename(site.root / path)
            assert words in probe.stdout
            assert probe.stdout.count("\n") == 1
            assert (probe.returncode, told.returncode, "ready: yes" in told.stdout) == (1, 1, False)
        _a_runtime_gone_and_one_left(site)
        assert "configs: toolkit-installer reconcile puts it right" in site.status("--ready").stdout

        problem = {"code": "config-disturbs-others", "text": "configure it", "remedy": "correct /z.toml"}
        seeded(site, problem=problem)
        told = site.status()
    assert "the runtime nvidia is not defined in its configs: correct /z.toml\n" in told.stdout
    assert "reconcile" not in told.stdout, "it is not promised beside its refusal"
