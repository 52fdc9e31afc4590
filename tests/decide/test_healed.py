"""A default runtime that nobody defines any more is healed by our definition, which an undo leaves: the engine starts."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from installer.change.plan import plan_install, plan_undo
from installer.engines.config_edits import texts_alone
from installer.errors import InstallerError
from installer.model.facts import EngineState, Record
from installer.model.files import File
from tests.decide.golden import Case, accepted, cases, undo_facts, written

CONFIG = PurePosixPath("/etc/docker/daemon.json")
(CASE,) = (each for each in cases("docker") if each.path.name == "docker-com-package-absent")


def with_default(name: str) -> Case:
    class Removed(Case, frozen=True):
        @property
        def before(self) -> dict[PurePosixPath, File | None]:
            return {CONFIG: File(f'{{\n  "default-runtime": "{name}",\n  "debug": true\n}}\n'.encode())}

    return Removed(CASE.engine, CASE.path, CASE.said)


def test_a_default_that_ours_define_is_healed_and_no_undo_breaks_it_again() -> None:
    case = with_default("nvidia")

    plan = accepted(plan_install(case.facts(case.before, Record(), {}), case.options, texts_alone))

    after = written(case.before, plan)
    assert plan.final is not None
    assert texts_alone(*_read(case, after)).fatal == ""
    back = plan_undo(undo_facts(case, after, plan.final), case.options, texts_alone)
    assert texts_alone(*_read(case, written(after, back))).fatal == ""
    assert back.final is not None
    assert [row.name for row in back.final.engines] == ["docker"]


def test_a_default_that_ours_do_not_define_is_refused() -> None:
    case = with_default("gone")

    with pytest.raises(InstallerError, match="gone"):
        accepted(plan_install(case.facts(case.before, Record(), {}), case.options, texts_alone))


def _read(
    case: Case, disk: Mapping[PurePosixPath, File | None]
) -> tuple[EngineState, Mapping[PurePosixPath, File | None]]:
    (engine,) = case.facts(dict(disk), Record(), {}).engines
    return engine, disk
