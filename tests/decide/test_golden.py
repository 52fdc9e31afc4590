"""What an install makes of configs as people have them, reviewed by eye, and back to the byte."""

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_undo
from installer.config_text.change import undo
from installer.engines import ENGINES
from installer.engines.config_edits import text_of
from installer.errors import InstallerError
from installer.model.facts import Record
from installer.model.options import RestartMode
from installer.model.steps import WriteConfig
from tests.decide.golden import Case, cases, expected, installed, sentence, shape, undo_facts, written
from tests.decide.serving import served

ALL = [case for engine in ENGINES for case in cases(engine)]
ACCEPTED = [case for case in ALL if not case.said.get("refused")]
REFUSED = [case for case in ALL if case.said.get("refused")]


def _name(case: Case) -> str:
    return f"{case.engine}-{case.path.name}"


@pytest.mark.parametrize("case", ACCEPTED, ids=_name)
def test_an_install_writes_exactly_the_reviewed_text(case: Case) -> None:
    before = case.before

    _, after = installed(case, before, Record())

    changed = {path: file for path, file in after.items() if before.get(path) != file}
    golden = expected(case, "after", changed)
    assert {path: file.content for path, file in changed.items() if file} == {
        path: file.content for path, file in golden.items() if file
    }


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_a_config_that_cannot_be_edited_is_refused_in_one_sentence(case: Case) -> None:
    with pytest.raises(InstallerError) as refusal:
        installed(case, case.before, Record())

    assert str(refusal.value) == sentence(case, str(refusal.value))


@pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))
def test_a_second_install_changes_nothing(engine: str) -> None:
    for case in ACCEPTED:
        if case.engine == engine:
            check_second_install(case)


def check_second_install(case: Case) -> None:
    plan, after = installed(case, case.before, Record())
    assert plan.final is not None

    again, _ = installed(case, after, plan.final)

    assert [step for step in again.steps if isinstance(step, WriteConfig)] == []
    assert again.final is not None
    assert again.final.configs == plan.final.configs


@pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))
def test_an_undo_restores_every_byte(engine: str) -> None:
    for case in ACCEPTED:
        if case.engine == engine:
            check_undo(case)


def check_undo(case: Case) -> None:
    plan, after = installed(case, case.before, Record())
    assert plan.final is not None

    back = plan_undo(undo_facts(case, after, plan.final), case.options)

    assert written(after, back) == case.before


@pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))
def test_the_edits_alone_lead_back_without_a_saved_copy(engine: str) -> None:
    for case in ACCEPTED:
        if case.engine == engine:
            check_edits(case)


def check_edits(case: Case) -> None:
    plan, after = installed(case, case.before, Record())
    assert plan.final is not None

    for row in plan.final.configs:
        assert row.syntax is not None
        text, left = undo(text_of(after[row.path], row.path), row.edits, row.syntax, name=str(row.path))

        assert text == text_of(case.before.get(row.path), row.path)
        assert left == ()


@pytest.mark.parametrize("case", [case for case in ACCEPTED if case.engine == "docker"], ids=_name)
def test_docker_undo_writes_a_reviewed_intermediate_text_and_ends_as_before(case: Case) -> None:
    plan, after = installed(case, case.before, Record())
    assert plan.final is not None
    facts = undo_facts(case, after, plan.final)
    serving = served({name: str(path) for name, path in plan.final.engines[0].runtimes.items()}, "runc")
    facts = replace(facts, engines=tuple(replace(engine, serving=serving) for engine in facts.engines))

    back = plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    writes = [step for step in back.steps if isinstance(step, WriteConfig)]
    middle = {step.path: step.after for step in writes[:1] if step.after}
    assert {path: file.content for path, file in middle.items()} == {
        path: file.content for path, file in expected(case, "undoing", dict(middle)).items() if file
    }
    assert written(after, back) == case.before


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_each_engine_has_many_cases_and_no_two_are_alike(engine: str) -> None:
    found = [shape(case) for case in cases(engine)]

    assert len(found) >= 25
    assert len(set(found)) == len(found)
