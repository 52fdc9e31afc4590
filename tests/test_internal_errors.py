"""A mistake of ours while the real program runs: one line that asks for a report, and an exit code that is true."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

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
    module = site.root.parent / "program/installer" / file
    text = module.read_text()
    assert f"def {function}(" in text, f"{file} has no function {function} any more"
    module.write_text(text + MISTAKE.format(function))


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

    done = site.call(verb, env=_environment(site))

    assert done.returncode == code, done.stderr
    _asks_for_a_report(done.stderr, "/".join(file.split("/")[-2:]))
    if code == 1:
        assert site.tree() == before
    site.uninstall()
    assert site.tree() == before


def test_an_install_whose_roll_back_goes_wrong_too_is_no_host_as_before(clean: Site) -> None:
    _break(clean, "change/transaction.py", "_do")

    done = clean.call("install", env=_environment(clean))

    assert done.returncode == 4, done.stderr
    assert "roll back after a failure" in done.stderr
    assert (clean.root / LEDGER).exists()
    clean.uninstall()


def test_an_undo_after_the_wait_that_goes_wrong_is_no_host_as_before(clean: Site) -> None:
    with _running(clean) as child:
        _break(clean, "change/engine_plan.py", "undo_engine")
        said = ended(child, code=4)

    _asks_for_a_report(said, "change/engine_plan.py")
    clean.uninstall()


def test_a_ledger_that_is_damaged_during_the_wait_is_no_host_as_before(site: Site) -> None:
    with _running(site) as child:
        site.write(LEDGER, "{}")
        said = ended(child, code=4)

    assert json.loads(said.splitlines()[-1])["undo"] == "incomplete"


def test_a_program_that_is_gone_after_the_wait_says_so_and_keeps_all(clean: Site) -> None:
    with _running(clean) as child:
        shutil.rmtree(clean.root.parent / "program/installer")
        said = ended(child, code=4)

    assert said.splitlines()[-1].startswith("toolkit-installer: cannot finish the undo ")
    assert "uninstall" in said
    assert "Traceback" not in said
    assert (clean.root / LEDGER).exists()
    clean.uninstall()


def test_a_hangup_that_meets_a_mistake_changes_nothing_and_the_wait_goes_on(clean: Site) -> None:
    with _running(clean) as child:
        plan = clean.root.parent / "program/installer/change/plan.py"
        good = plan.read_text()
        _break(clean, "change/plan.py", "_digest")
        child.send_signal(signal.SIGHUP)
        waits(child)
        until_it_sleeps(child.pid)
        plan.write_text(good)
        ended(child)


def test_a_run_that_goes_wrong_behind_its_install_says_that_all_is_in_place(clean: Site) -> None:
    _break(clean, "lifecycle/last_check.py", "publish_check")

    done = clean.call("run", env=_environment(clean))

    assert done.returncode == 4, done.stderr
    _asks_for_a_report(done.stderr, "lifecycle/last_check.py")
    assert (clean.root / LEDGER).exists()
    assert not (clean.root / PIDFILE).exists()
    clean.uninstall()
