"""Configs as people have them: what an install makes of them, and that an undo gives them back.

`GOLDEN=1 pytest` rewrites after/, undoing/ and refused.txt of every case; a person reads the diff.
"""

import os
import shutil
from pathlib import Path, PurePosixPath

import pytest

from installer.decide.configs import text_of
from installer.decide.edits import undo
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry, Serving
from installer.decide.errors import InstallerError
from installer.decide.inode import File
from installer.decide.options import Options, RestartMode
from installer.decide.plan import Plan, entries_for, plan_install
from installer.decide.rows import Holdings
from installer.decide.steps import WriteConfig
from installer.decide.undo import plan_undo
from tests.decide.engines.cases import Case, Files, cases_of, facts_of, read_tree, written

REWRITE = bool(os.environ.get("GOLDEN"))
AT_LEAST = 25
CASES = [case for engine in ENGINES for case in cases_of(engine)]
EDITED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]


def name_of(case: Case) -> str:
    return f"{case.engine}-{case.directory.name}"


def installed(case: Case, files: Files, held: Holdings | None = None) -> Plan:
    return plan_install(facts_of(case, files, held or Holdings()), case.options)


def changed(before: Files, after: Files) -> Files:
    return {path: content for path, content in after.items() if before.get(path) != content}


def assert_golden(directory: Path, files: Files) -> None:
    if REWRITE:
        shutil.rmtree(directory, ignore_errors=True)
        for path, content in files.items():
            golden = directory / path.relative_to("/")
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_bytes(content)
    assert files == read_tree(directory)


def serving(entries: tuple[RuntimeEntry, ...]) -> Serving:
    default = next((entry.name for entry in entries if entry.default), "")
    return Serving({entry.name: str(entry.binary) for entry in entries}, default, {})


def settled(plan: Plan) -> Holdings:
    assert plan.settled is not None
    return plan.settled


@pytest.mark.parametrize("case", EDITED, ids=name_of)
def test_an_install_writes_the_golden_text(case: Case) -> None:
    before = case.before

    after = written(installed(case, before), before)

    assert before.keys() <= after.keys()
    assert_golden(case.directory / "after", changed(before, after))


@pytest.mark.parametrize("case", EDITED, ids=name_of)
def test_a_second_install_writes_nothing(case: Case) -> None:
    first = installed(case, case.before)

    second = installed(case, written(first, case.before), settled(first))

    assert [step for step in second.steps if isinstance(step, WriteConfig)] == []
    assert settled(second).configs == settled(first).configs


@pytest.mark.parametrize("case", EDITED, ids=name_of)
def test_an_undo_gives_every_byte_back(case: Case) -> None:
    plan = installed(case, case.before)
    after = written(plan, case.before)

    back = plan_undo(facts_of(case, after, settled(plan)), case.options)

    assert written(back, after) == case.before


@pytest.mark.parametrize("case", EDITED, ids=name_of)
def test_the_edits_alone_lead_back_to_every_byte(case: Case) -> None:
    plan = installed(case, case.before)
    after = written(plan, case.before)

    for row in settled(plan).configs:
        text, left = undo(text_of(File(after[row.path]), row.path), row.edits, row.syntax, name=str(row.path))

        assert text.encode() == case.before.get(row.path, b"")
        assert left == ()


@pytest.mark.parametrize("case", [case for case in EDITED if case.engine == "docker"], ids=name_of)
def test_a_running_docker_is_undone_by_way_of_the_golden_text(case: Case) -> None:
    plan = installed(case, case.before)
    after = written(plan, case.before)
    options = Options(restart_mode=RestartMode.AUTO)
    running = serving(entries_for(case.options))

    back = plan_undo(facts_of(case, after, settled(plan), serving=running), options)

    assert_golden(case.directory / "undoing", changed(after, written(back, after, last=1)))
    assert written(back, after) == case.before


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_a_config_that_is_no_good_is_refused_in_one_sentence(case: Case) -> None:
    golden = case.directory / "refused.txt"

    with pytest.raises(InstallerError) as refusal:
        installed(case, case.before)

    if REWRITE:
        golden.write_text(f"{refusal.value}\n")
    assert f"{refusal.value}\n" == golden.read_text()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_case_has_nothing_but_what_is_tested(case: Case) -> None:
    names = {path.name for path in case.directory.iterdir()}

    assert names <= {"case.toml", "before", *(["refused.txt"] if case.refused else ["after", "undoing"])}
    assert PurePosixPath("/") not in case.before


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_has_cases_enough(engine: str) -> None:
    assert len(cases_of(engine)) >= AT_LEAST


@pytest.mark.parametrize("engine", ENGINES)
def test_no_two_cases_of_an_engine_are_the_same(engine: str) -> None:
    seen = [(sorted(case.before.items()), sorted(case.asked.items())) for case in cases_of(engine)]

    assert [one for index, one in enumerate(seen) if one in seen[:index]] == []
