"""A mistake of ours while the real program runs: one line that asks for a report, and an exit code that is true."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support import preloaded
from tests.support.site import LEDGER, PIDFILE, PROJECT, Site, ended, waits
from tests.support.waiting import until_it_sleeps

SECRET = "hunter2"  # noqa: S105 - nobody's
MISTAKE = f'\n\ndef {{}}(*_, **__):\n    raise KeyError("{SECRET}")\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a node, and the program as a copy that a test may break."""
    shutil.copytree(PROJECT / "installer", tmp_path / "program/installer")
    monkeypatch.chdir(tmp_path / "program")
    return Site(tmp_path)


def _environment(site: Site) -> dict[str, str]:
    return {"PYTHONPATH": str(site.root.parent / "program"), "PYTHONDONTWRITEBYTECODE": "1"}


def _break(site: Site, file: str, function: str) -> None:
    """Let a function of the program raise what nobody expects."""
    with (site.root.parent / "program/installer" / file).open("a") as text:
        text.write(MISTAKE.format(function))


def _call(site: Site, verb: str) -> preloaded.Done:
    return site.call(verb, env=_environment(site))


@contextmanager
def _running(site: Site) -> Iterator[Popen[str]]:
    with site.running(env=_environment(site)) as child:
        until_it_sleeps(child.pid)
        yield child


def _asks_for_a_report(said: str, at: str) -> None:
    last = json.loads(said.splitlines()[-1])
    assert f"internal error: KeyError in {at}" in last["problem"]
    assert last["remedy"] == "report it with this log, as docs/troubleshooting.md says"
    assert said.count('"internal error"') == 1, "where it was made is logged once"
    assert "Traceback" not in said
    assert SECRET not in said


@pytest.mark.parametrize(
    ("verb", "file", "function", "code"),
    [
        pytest.param("install", "change/observe.py", "find_moved", 1, id="looking at the host"),
        pytest.param("plan", "change/plan.py", "_digest", 1, id="a plan that is only shown"),
        pytest.param("uninstall", "change/ledger.py", "read_record", 4, id="reading the ledger for an undo"),
        pytest.param("uninstall", "change/transaction.py", "_switch", 4, id="a step of an undo"),
    ],
)
def test_a_verb_ends_in_one_line_and_the_next_one_finishes(
    site: Site, verb: str, file: str, function: str, code: int
) -> None:
    before = site.tree()
    if verb == "uninstall":
        site.install()
    _break(site, file, function)

    done = _call(site, verb)

    assert done.returncode == code, done.stderr
    _asks_for_a_report(done.stderr, "/".join(file.split("/")[-2:]))
    if code == 1:
        assert site.tree() == before
    site.uninstall()
    assert site.tree() == before


def test_an_install_whose_roll_back_goes_wrong_too_is_no_host_as_before(site: Site) -> None:
    before = site.tree()
    _break(site, "change/transaction.py", "_do")

    done = _call(site, "install")

    assert done.returncode == 4, done.stderr
    assert "roll back after a failure" in done.stderr
    assert (site.root / LEDGER).exists()
    site.uninstall()
    assert site.tree() == before


def test_an_undo_after_the_wait_that_goes_wrong_is_no_host_as_before(site: Site) -> None:
    before = site.tree()
    with _running(site) as child:
        _break(site, "change/engine_plan.py", "_way_back")
        said = ended(child, code=4)

    _asks_for_a_report(said, "change/engine_plan.py")
    site.uninstall()
    assert site.tree() == before


def test_a_ledger_that_is_damaged_during_the_wait_is_no_host_as_before(site: Site) -> None:
    with _running(site) as child:
        site.write(LEDGER, "{}")
        said = ended(child, code=4)

    assert json.loads(said.splitlines()[-1])["undo"] == "incomplete"


@pytest.mark.parametrize("gone", ["lifecycle/install.py", "."], ids=["a part of it", "all of it"])
def test_a_program_that_is_not_whole_after_the_wait_says_so_and_keeps_all(site: Site, gone: str) -> None:
    before = site.tree()
    program = site.root.parent / "program/installer"
    with _running(site) as child:
        if gone == ".":
            shutil.rmtree(program)
        else:
            (program / gone).write_text(f"raise RuntimeError('{SECRET}')\n")
        said = ended(child, code=4)

    assert said.splitlines()[-1].startswith("toolkit-installer: cannot start ")
    assert "uninstall" in said
    assert "Traceback" not in said
    assert (site.root / LEDGER).exists()
    site.uninstall()
    assert site.tree() == before


def test_a_hangup_that_meets_a_mistake_changes_nothing_and_the_wait_goes_on(site: Site) -> None:
    before = site.tree()
    with _running(site) as child:
        plan = site.root.parent / "program/installer/change/plan.py"
        good = plan.read_text()
        _break(site, "change/plan.py", "_digest")
        child.send_signal(signal.SIGHUP)
        waits(child)
        until_it_sleeps(child.pid)
        plan.write_text(good)
        ended(child)
    assert site.tree() == before


def test_a_run_that_goes_wrong_behind_its_install_says_that_all_is_in_place(site: Site) -> None:
    before = site.tree()
    _break(site, "lifecycle/readiness.py", "publish_check")

    done = _call(site, "run")

    assert done.returncode == 4, done.stderr
    _asks_for_a_report(done.stderr, "lifecycle/readiness.py")
    assert (site.root / LEDGER).exists()
    assert not (site.root / PIDFILE).exists()
    site.uninstall()
    assert site.tree() == before
