"""The CDI specification among the steps of a plan, and on its way back."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_undo
from installer.model.facts import OWNER, CdiFacts, ConfigRow, DeviceNode, Facts, Record, Saved
from installer.model.files import File
from installer.model.options import Cdi, Options
from installer.model.steps import RemoveDeviceNodes, Step, WriteConfig
from tests.decide.golden import Case, cases

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
CDI = Cdi(PurePosixPath("/run/cdi"), "management.nvidia.com/gpu", "/d", "/d", "/d", "/d", nodes=True)
PATH = PurePosixPath("/run/cdi/management.nvidia.com-gpu.yaml")
NODE = DeviceNode(PurePosixPath("/d/dev/nvidiactl"), "boot 7")
OPTIONS: Options = replace(CASE.options, cdi=CDI)
NEW, OLD, THEIRS = File(b"new\n"), File(b"old\n"), File(b"theirs\n")


def _row(now: File, original: File | None = None, path: PurePosixPath = PATH) -> ConfigRow:
    saved = Saved.of(original)
    return ConfigRow(OWNER, path, None, saved, (now.digest,), ())


def _facts(there: File | None, *rows: ConfigRow, original: File | None = None) -> Facts:
    facts = CASE.facts(CASE.before, Record(configs=rows, nodes=(NODE,)), {})
    contents = {**facts.contents, **{row.path: there for row in rows}, PATH: there}
    originals = {row.path: original for row in rows}
    return replace(facts, contents=contents, originals=originals, cdi=CdiFacts("new\n"))


def _writes(steps: tuple[Step, ...]) -> list[tuple[PurePosixPath, bytes | None]]:
    found = (step for step in steps if isinstance(step, WriteConfig) and step.engine == OWNER)
    return [(step.path, step.after.content if step.after else None) for step in found]


def _held(plan: Plan) -> dict[PurePosixPath, ConfigRow]:
    assert plan.final is not None
    return {row.path: row for row in plan.final.configs if row.engine == OWNER}


def test_a_specification_is_written_and_held() -> None:
    plan = plan_install(_facts(None), OPTIONS)

    assert _writes(plan.steps) == [(PATH, b"new\n")]
    assert _held(plan) == {PATH: _row(NEW)}


def test_one_that_is_as_it_should_be_takes_no_step() -> None:
    plan = plan_install(_facts(NEW, _row(NEW)), OPTIONS)

    assert _writes(plan.steps) == []
    assert _held(plan) == {PATH: _row(NEW)}


def test_one_of_somebody_else_is_saved_and_comes_back() -> None:
    plan = plan_install(_facts(THEIRS), OPTIONS)

    assert THEIRS in plan.backups
    assert _held(plan) == {PATH: _row(NEW, THEIRS)}
    undo = plan_undo(_facts(NEW, _row(NEW, THEIRS), original=THEIRS), OPTIONS)
    assert _writes(undo.steps) == [(PATH, b"theirs\n")]


def test_one_that_is_not_wanted_any_more_goes_and_is_known_until_it_is_gone() -> None:
    plan = plan_install(_facts(OLD, _row(OLD)), replace(OPTIONS, cdi=None))

    assert _writes(plan.steps) == [(PATH, None)]
    assert _held(plan) == {}
    assert PATH in {row.path for row in plan.in_progress.configs}


def test_one_in_another_directory_takes_its_place() -> None:
    elsewhere = PurePosixPath("/etc/cdi/x.yaml")
    facts = _facts(OLD, _row(OLD, path=elsewhere))

    plan = plan_install(replace(facts, contents={**facts.contents, PATH: None}), OPTIONS)

    assert _writes(plan.steps) == [(elsewhere, None), (PATH, b"new\n")]
    assert _held(plan).keys() == {PATH}


def test_one_that_somebody_has_rewritten_since_stays_theirs() -> None:
    plan = plan_undo(_facts(THEIRS, _row(NEW)), OPTIONS)

    assert _writes(plan.steps) == []


def test_an_undo_removes_specification_and_nodes_ahead_of_the_payload() -> None:
    plan = plan_undo(_facts(NEW, _row(NEW)), OPTIONS)

    assert _writes(plan.steps) == [(PATH, None)]
    assert RemoveDeviceNodes((NODE,)) in plan.steps
    assert plan.final is None


@pytest.mark.parametrize("kind", ["management.nvidia.com/gpu", "example.com/class"])
def test_the_file_is_named_after_its_kind(kind: str) -> None:
    assert replace(CDI, kind=kind).path == PurePosixPath("/run/cdi", kind.replace("/", "-") + ".yaml")
