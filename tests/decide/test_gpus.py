"""GPUs by CDI alone among the steps of a plan: the specification follows the driver, and no engine is changed."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.cdi.plan import CHANGED, GIVES_WAY, GPUS, NEW, REMOVED, STALE, WITHDRAWN
from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.lifecycle.drift import Drifted, select_specification
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import (
    OWNER,
    CdiFacts,
    CdiRow,
    ConfigRow,
    Facts,
    GpuSpecification,
    PayloadFacts,
    Record,
)
from installer.model.files import File
from installer.model.options import Mode, Options
from installer.model.steps import FindRuntimes, InstallVersion, MakeDirectory, Reload, WriteConfig
from tests.decide.golden import Case, artifacts, cases

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
OPTIONS: Options = replace(CASE.options, mode=Mode.CDI, set_as_default=False, runtime_name="nvidia")
PATH = PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
THEIRS = PurePosixPath("/var/run/cdi/nvidia.yaml")
NEW_FILE, OLD_FILE = File(b"new\n"), File(b"old\n")
IN_EFFECT = EffectiveConfig({}, "runc", cdi=True, cdi_dirs=(PurePosixPath("/var/run/cdi"),))
MADE = GpuSpecification(PATH, "new\n")
LACKING = GpuSpecification(PATH, lacking="no driver")


def row(file: File = OLD_FILE) -> ConfigRow:
    return ConfigRow(OWNER, PATH, None, None, (file.digest,), ())


def facts(spec: GpuSpecification | None, there: File | None, *rows: ConfigRow) -> Facts:
    found = CASE.facts(CASE.before, Record(configs=rows, cdi=CdiRow(("containerd",))), {})
    engines = tuple(replace(engine, serving=IN_EFFECT) for engine in found.engines)
    originals = {each.path: None for each in rows}
    contents = {**found.contents, PATH: there}
    return replace(found, engines=engines, contents=contents, originals=originals, cdi=CdiFacts(gpus=spec))


def done(plan: Plan) -> list[tuple[bytes | None, str]]:
    part = next(part for part in plan.parts if part.id == GPUS)
    assert all(isinstance(step, WriteConfig) and step.path == PATH for step in part.steps)
    return [
        (step.after.content if step.after else None, reason)
        for step, reason in part.planned
        if isinstance(step, WriteConfig)
    ]


def held(plan: Plan) -> tuple[tuple[ConfigRow, ...], CdiRow | None]:
    assert plan.final is not None
    return plan.final.configs, plan.final.cdi


THEY_HAVE = f"{THEIRS} has devices of nvidia.com/gpu"
GONE = replace(LACKING, stale=("/lib/a",))
BESIDE = replace(MADE, others=(THEIRS,))
IN_PLACE = replace(MADE, others=(PATH,))
WRITTEN = (row(NEW_FILE),)


@pytest.mark.parametrize(
    ("spec", "there", "rows", "does", "after"),
    [
        pytest.param(MADE, None, (), [(b"new\n", NEW)], (WRITTEN, ""), id="written"),
        pytest.param(MADE, NEW_FILE, WRITTEN, [], (WRITTEN, ""), id="as it should be"),
        pytest.param(MADE, OLD_FILE, (row(),), [(b"new\n", CHANGED)], (WRITTEN, ""), id="another driver"),
        pytest.param(MADE, None, (row(),), [(b"new\n", REMOVED)], (WRITTEN, ""), id="removed by somebody"),
        pytest.param(
            *(replace(MADE, ours=True), OLD_FILE, (), [(b"new\n", CHANGED)], (WRITTEN, "")),
            id="its ledger lost",
        ),
        pytest.param(LACKING, None, (), [], ((), "no driver"), id="no driver"),
        pytest.param(GONE, OLD_FILE, (row(),), [(None, STALE)], ((), "no driver"), id="driver gone"),
        pytest.param(LACKING, OLD_FILE, (row(),), [], ((row(),), ""), id="no answer, and all files there"),
        pytest.param(LACKING, None, (row(),), [], ((), "no driver"), id="gone with its driver"),
        pytest.param(
            BESIDE, OLD_FILE, (row(),), [(None, GIVES_WAY)], ((), THEY_HAVE), id="another's beside it"
        ),
        pytest.param(BESIDE, None, (), [], ((), THEY_HAVE), id="another's ahead of it"),
        pytest.param(
            *(replace(BESIDE, missing=("0", "all")), None, (), []),
            ((), f"{THEY_HAVE}, without 0, all"),
            id="another's that has less",
        ),
        pytest.param(
            *(replace(BESIDE, missing=("0", "1", "2", "3", "4", "5")), None, (), []),
            ((), f"{THEY_HAVE}, without 0, 1, 2, 3 and 2 more"),
            id="another's that has much less",
        ),
        pytest.param(
            *(replace(MADE, stale=("/lib/a",)), OLD_FILE, (row(),)),
            *([(None, STALE), (b"new\n", CHANGED)], (WRITTEN, "")),
            id="another driver, and files of the old one gone",
        ),
        pytest.param(
            *(IN_PLACE, NEW_FILE, (row(),), [], ((), f"{PATH} has devices of nvidia.com/gpu")),
            id="another's in its place",
        ),
    ],
)
def test_the_specification_follows_what_there_is_and_gives_way(
    spec: GpuSpecification,
    there: File | None,
    rows: tuple[ConfigRow, ...],
    does: list[tuple[bytes | None, str]],
    after: tuple[tuple[ConfigRow, ...], str],
) -> None:
    plan = plan_install(facts(spec, there, *rows), OPTIONS)

    left, lacking = after
    assert done(plan) == does
    assert held(plan) == (left, CdiRow(("containerd",), lacking))
    assert plan.obstacles == ()
    assert (f"no CDI specification of the GPUs: {lacking}" in plan.notes) is bool(lacking)


def test_no_engine_is_written_to_or_reloaded_and_two_programs_are_enough() -> None:
    plan = plan_install(facts(MADE, None), OPTIONS)

    assert not [step for step in plan.steps if isinstance(step, Reload | FindRuntimes)]
    assert [step.path for step in plan.steps if isinstance(step, WriteConfig)] == [PATH]
    installed = next(step for step in plan.steps if isinstance(step, InstallVersion))
    assert sorted(str(file.path) for file in installed.files) == [
        "nvidia-cdi-hook",
        "nvidia-ctk",
        "nvidia-ctk.real",
    ]
    assert plan.unproven == ()
    assert plan.steps.index(installed) < len(plan.steps) - 1, "the hook is there before what names it"


def test_a_source_that_has_but_the_two_programs_is_enough() -> None:
    found = facts(MADE, None)
    few = tuple(each for each in artifacts() if each.name in {"nvidia-cdi-hook", "nvidia-ctk"})

    assert plan_install(replace(found, payload=PayloadFacts(few)), OPTIONS).obstacles == ()
    assert plan_install(replace(found, payload=PayloadFacts(few[:1])), OPTIONS).obstacles


def test_one_that_is_kept_without_an_answer_is_told() -> None:
    plan = plan_install(facts(LACKING, OLD_FILE, row()), OPTIONS)

    assert "kept the CDI specification of the GPUs: no driver" in plan.notes


@pytest.mark.parametrize(
    ("spec", "there", "drifts"),
    [
        pytest.param(MADE, OLD_FILE, False, id="another driver"),
        pytest.param(replace(LACKING, stale=("/lib/a",)), OLD_FILE, False, id="driver gone"),
        pytest.param(replace(MADE, others=(THEIRS,)), OLD_FILE, False, id="somebody else's beside it"),
        pytest.param(MADE, None, True, id="removed by somebody"),
    ],
)
def test_only_what_somebody_does_to_it_is_drift(
    *, spec: GpuSpecification, there: File | None, drifts: bool
) -> None:
    plan = plan_install(facts(spec, there, row()), OPTIONS)

    assert done(plan)
    assert (str(PATH) in Drifted.of(plan, Record()).things) is drifts


def test_it_goes_where_runtimes_are_asked_for_and_at_an_undo() -> None:
    found = facts(None, OLD_FILE, row())

    runtimes = plan_install(found, CASE.options)
    undo = plan_undo(found, OPTIONS)

    for plan in (runtimes, undo):
        assert [step.after for step in plan.steps if isinstance(step, WriteConfig) and step.path == PATH] == [
            None
        ]
    assert runtimes.final is not None
    assert runtimes.final.cdi is None
    assert undo.final is None


def test_an_engine_without_cdi_stops_the_plan() -> None:
    found = facts(MADE, None)
    off = tuple(replace(engine, serving=replace(IN_EFFECT, cdi=False)) for engine in found.engines)

    plan = plan_install(replace(found, engines=off), OPTIONS)

    assert [error.code for error in plan.obstacles] == ["mode-unusable"]


@pytest.mark.parametrize("tried", [1, 2], ids=["removed", "and the next one half written"])
def test_a_roll_back_brings_no_stale_one_back_and_tells_that_there_is_none(tried: int) -> None:
    found = facts(replace(MADE, stale=("/lib/a",)), OLD_FILE, row())
    plan = plan_install(found, OPTIONS)
    of_it = tuple(step for step in plan.steps if isinstance(step, WriteConfig) and step.path == PATH)[:tried]

    back = plan_rollback(plan, of_it, found.held)

    assert [step.after for step in back.steps if isinstance(step, WriteConfig)] == [None] * (tried - 1)
    assert back.final is not None
    assert back.final.configs == ()
    assert back.final.cdi == CdiRow(("containerd",), WITHDRAWN)


def test_a_roll_back_brings_one_back_that_still_holds() -> None:
    found = facts(MADE, OLD_FILE, row())
    plan = plan_install(found, OPTIONS)
    of_it = tuple(step for step in plan.steps if isinstance(step, WriteConfig) and step.path == PATH)

    back = plan_rollback(plan, of_it, found.held)

    assert [step.after for step in back.steps if isinstance(step, WriteConfig)] == [OLD_FILE]
    assert back.final == found.held


def test_a_specification_that_follows_the_driver_is_replaced_alone_where_the_rest_has_drifted() -> None:
    known = row()
    spec = replace(MADE, stale=("/lib/a",))
    found = facts(spec, OLD_FILE, known)
    before = replace(found.held, finished=True)
    plan = plan_install(replace(found, held=before), OPTIONS)
    drifted = Drifted.of(plan, Record())

    alone = select_specification(plan, before)

    assert drifted.things, "the toolkit is not there"
    assert alone is not None
    assert done(alone) == [(None, STALE), (b"new\n", CHANGED)]
    assert {type(step) for step in alone.steps} <= {WriteConfig, MakeDirectory}
    assert alone.final == replace(
        before, configs=WRITTEN, directories=alone.final.directories if alone.final else ()
    )
    assert alone.in_progress.configs[0].ours == (NEW_FILE.digest, OLD_FILE.digest)
    assert not alone.in_progress.finished
    assert select_specification(replace(plan, parts=alone.parts[:1]), before) is None


def test_a_specification_that_somebody_has_removed_is_drift_and_waits_with_the_rest() -> None:
    found = facts(MADE, None, row())

    assert select_specification(plan_install(found, OPTIONS), found.held) is None
