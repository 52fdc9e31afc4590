"""What an install makes of configs as people have them, reviewed by eye, and back to the byte."""

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_undo
from installer.config_text.change import undo
from installer.engines import ENGINES
from installer.engines.config_edits import text_of
from installer.errors import InstallerError
from installer.model.options import RestartMode
from installer.model.steps import WriteConfig
from tests.change.golden import (
    Case,
    cases,
    expected,
    installed,
    sentence,
    served,
    shape,
    undo_facts,
    with_engines,
    written,
)

ALL = [case for engine in ENGINES for case in cases(engine)]
ACCEPTED = [case for case in ALL if not case.said.get("refused")]
REFUSED = [case for case in ALL if case.said.get("refused")]
EACH_ENGINE = pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))


def _name(case: Case) -> str:
    return f"{case.engine}-{case.path.name}"


@pytest.mark.parametrize("case", ACCEPTED, ids=_name)
def test_an_install_writes_exactly_the_reviewed_text(case: Case) -> None:
    _, after, _ = installed(case)

    changed = {path: file for path, file in after.items() if case.before.get(path) != file}
    golden = expected(case, "after", changed)
    assert {path: file.content for path, file in changed.items() if file} == {
        path: file.content for path, file in golden.items() if file
    }


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_a_config_that_cannot_be_edited_is_refused_in_one_sentence(case: Case) -> None:
    with pytest.raises(InstallerError) as refusal:
        installed(case)

    assert str(refusal.value) == sentence(case, str(refusal.value))


def accepted_of(engine: str) -> list[Case]:
    return [case for case in ACCEPTED if case.engine == engine]


@EACH_ENGINE
def test_a_second_install_changes_nothing(engine: str) -> None:
    for case in accepted_of(engine):
        _, after, held = installed(case)

        again, _, now = installed(case, after, held)

        assert [step for step in again.steps if isinstance(step, WriteConfig)] == []
        assert now.configs == held.configs


@EACH_ENGINE
def test_an_undo_restores_every_byte(engine: str) -> None:
    for case in accepted_of(engine):
        _, after, held = installed(case)

        assert written(after, plan_undo(undo_facts(case, after, held), case.options)) == case.before


@EACH_ENGINE
def test_the_edits_alone_lead_back_without_a_saved_copy(engine: str) -> None:
    for case in accepted_of(engine):
        _, after, held = installed(case)

        for row in held.configs:
            assert row.syntax is not None
            text, left = undo(text_of(after[row.path], row.path), row.edits, row.syntax, name=str(row.path))

            assert (text, left) == (text_of(case.before.get(row.path), row.path), ())


@pytest.mark.parametrize("case", accepted_of("docker"), ids=_name)
def test_docker_undo_writes_a_reviewed_intermediate_text_and_ends_as_before(case: Case) -> None:
    _, after, held = installed(case)
    names = {name: str(path) for name, path in held.engines[0].runtimes.items()}
    facts = with_engines(undo_facts(case, after, held), serving=served(names, "runc"))

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
