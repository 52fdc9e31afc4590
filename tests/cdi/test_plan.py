"""CDI among the steps of a plan: which mode it is, what becomes of each specification, and no engine is changed."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.cdi import plan as cdi
from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.engines import ENGINES
from installer.lifecycle.drift import Drifted
from installer.model.effective import EffectiveConfig
from installer.model.engine import EngineState
from installer.model.facts import (
    CdiFacts,
    CdiRow,
    ConfigRow,
    Container,
    ContainerFacts,
    DeviceNode,
    EngineRow,
    Facts,
    GpuSpecification,
    Owner,
    PayloadFacts,
    Record,
    Saved,
)
from installer.model.files import File
from installer.model.options import Cdi, Mode, Options
from installer.model.steps import (
    FindRuntimes,
    InstallVersion,
    MakeDeviceNodes,
    PartId,
    Reload,
    RemoveDeviceNodes,
    StepDescription,
    WriteConfig,
    describe,
)
from tests.change.golden import Case, artifacts, cases, final_of, with_engines

CASE: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
PATH = PurePosixPath("/var/run/cdi/nvidia.com-gpu.json")
NEW_FILE, OLD_FILE, THEIR_FILE = File(b"new\n"), File(b"old\n"), File(b"theirs\n")
DIRS = (PurePosixPath("/etc/cdi"), PurePosixPath("/var/run/cdi"))
IN_EFFECT = EffectiveConfig({}, "runc", cdi=True, cdi_dirs=DIRS)
LEFT = "no CDI specification is asked for there any more"
ABSENT, OTHER = "it is not there", "it is not what nvidia-ctk generates for this node"
SWITCHED_OFF = "it says that CDI is switched off"
ELSEWHERE_ALONE = "it reads specifications in /etc/cdi alone"
NOT_PASSED_ON = "does not pass on the devices of a kubelet"
Writes = list[tuple[PurePosixPath, bytes | None]]


def row(now: File = OLD_FILE, original: File | None = None, path: PurePosixPath = PATH) -> ConfigRow:
    return ConfigRow(Owner.CDI, path, None, Saved.of(original), (now.digest,), ())


def writes(plan: Plan) -> Writes:
    steps = (step for step in plan.steps if isinstance(step, WriteConfig) and step.engine == Owner.CDI)
    return [(step.path, step.after.content if step.after else None) for step in steps]


# Management's

CDI = Cdi(PurePosixPath("/run/cdi"), "management.nvidia.com/gpu", "/d", "/d", "/d", "/d", nodes=True)
MANAGEMENT = PurePosixPath("/run/cdi/management.nvidia.com-gpu.yaml")
ELSEWHERE = PurePosixPath("/etc/cdi/x.yaml")
NODE = DeviceNode(PurePosixPath("/d/dev/nvidiactl"), "boot 7")
MANAGED: Options = replace(CASE.options, cdi=CDI)
OURS = row(NEW_FILE, path=MANAGEMENT)
OLD_ROW = row(path=MANAGEMENT)
MOVED = [(ELSEWHERE, None, LEFT), (MANAGEMENT, b"new\n", ABSENT)]
SAVING = row(NEW_FILE, THEIR_FILE, MANAGEMENT)


def managed(there: File | None, *rows: ConfigRow) -> Facts:
    """Return a node with a file in the place of management's specification."""
    facts = CASE.facts(CASE.before, Record(configs=rows, nodes=(NODE,)), {})
    contents = {**facts.contents, **{each.path: there for each in rows}}
    contents[MANAGEMENT] = None if ELSEWHERE in contents else there
    originals = {each.path: THEIR_FILE if each.original else None for each in rows}
    return replace(facts, contents=contents, originals=originals, cdi=CdiFacts("new\n"))


@pytest.mark.parametrize(
    ("there", "rows", "wanted", "does", "held"),
    [
        pytest.param(None, (), CDI, [(MANAGEMENT, b"new\n", ABSENT)], (OURS,), id="written"),
        pytest.param(
            THEIR_FILE, (), CDI, [(MANAGEMENT, b"new\n", OTHER)], (SAVING,), id="another's is saved"
        ),
        pytest.param(NEW_FILE, (OURS,), CDI, [], (OURS,), id="as it is to be"),
        pytest.param(OLD_FILE, (OLD_ROW,), None, [(MANAGEMENT, None, LEFT)], (), id="not wanted any more"),
        pytest.param(OLD_FILE, (row(path=ELSEWHERE),), CDI, MOVED, (OURS,), id="in another directory"),
    ],
)
def test_managements_specification_comes_to_its_place_and_is_held(
    there: File | None,
    rows: tuple[ConfigRow, ...],
    wanted: Cdi | None,
    does: list[tuple[PurePosixPath, bytes | None, str]],
    held: tuple[ConfigRow],
) -> None:
    plan = plan_install(managed(there, *rows), replace(MANAGED, cdi=wanted))

    whys = [why for step, why in plan.planned if isinstance(step, WriteConfig) and step.engine == Owner.CDI]
    assert [(*write, why) for write, why in zip(writes(plan), whys, strict=True)] == does
    assert plan.final is not None
    assert tuple(each for each in plan.final.configs if each.engine == Owner.CDI) == held
    assert {each.path for each in plan.in_progress.configs} >= {path for path, _, _ in does}
    assert (THEIR_FILE in plan.backups) is (SAVING in held)


def test_nodes_that_are_absent_are_made_and_go_again() -> None:
    absent = DeviceNode(PurePosixPath("/d/dev/nvidia-uvm"), "boot 7")
    found = replace(managed(None), cdi=CdiFacts(absent_nodes=(absent,), held_nodes=(NODE,)))

    plan = plan_install(found, MANAGED)

    made, gone = MakeDeviceNodes((absent,), CDI, MANAGED.toolkit_source), RemoveDeviceNodes((absent,))
    assert made in plan.steps
    assert final_of(plan).nodes == (NODE, absent)
    fields = {"paths": "/d/dev/nvidia-uvm"}
    assert describe(made) == StepDescription(
        "make the device nodes /d/dev/nvidia-uvm", "device nodes made", fields, gone
    )
    assert describe(gone) == StepDescription(
        "remove the device nodes /d/dev/nvidia-uvm", "device nodes removed", fields
    )


@pytest.mark.parametrize(
    ("there", "held", "does"),
    [
        pytest.param(NEW_FILE, OURS, [(MANAGEMENT, None)], id="ours goes"),
        pytest.param(NEW_FILE, SAVING, [(MANAGEMENT, b"theirs\n")], id="another's comes back"),
        pytest.param(THEIR_FILE, OURS, [], id="rewritten by somebody since"),
    ],
)
def test_an_undo_removes_specification_and_nodes_with_the_toolkit(
    there: File, held: ConfigRow, does: Writes
) -> None:
    plan = plan_undo(managed(there, held), MANAGED)

    assert writes(plan) == does
    assert RemoveDeviceNodes((NODE,)) in plan.steps
    assert plan.final is None


# The GPUs'

OPTIONS: Options = replace(CASE.options, mode=Mode.CDI, set_as_default=False, runtime_name="nvidia")
THEIRS = PurePosixPath("/var/run/cdi/nvidia.yaml")
CONTAINERD = ("containerd",)
MADE, LACKING = GpuSpecification(PATH, "new\n"), GpuSpecification(PATH, lacking="no driver")
STALE_ONE, GONE = replace(MADE, stale=("/lib/a",)), replace(LACKING, stale=("/lib/a",))
BESIDE, IN_PLACE = replace(MADE, others=(THEIRS,)), replace(MADE, others=(PATH,))
WITHOUT_SOME = replace(BESIDE, missing=("0", "all"))
WRITTEN, OLD = (row(NEW_FILE),), (row(),)
THEY_HAVE = f"{THEIRS} has devices of nvidia.com/gpu"
AFRESH = [(b"new\n", cdi.CHANGED)]


def facts(spec: GpuSpecification | None, there: File | None, *rows: ConfigRow) -> Facts:
    found = CASE.facts(CASE.before, Record(configs=rows, cdi=CdiRow(CONTAINERD)), {})
    originals = {each.path: None for each in rows}
    contents = {**found.contents, PATH: there}
    found = replace(found, contents=contents, originals=originals, cdi=CdiFacts(gpus=spec))
    return with_engines(found, serving=IN_EFFECT)


def done(plan: Plan) -> list[tuple[bytes | None, str]]:
    part = next(part for part in plan.parts if part.id == PartId.GPUS)
    found = [(step, reason) for step, reason in part.planned if isinstance(step, WriteConfig)]
    assert [step.path for step, _ in found] == [PATH] * len(part.steps)
    return [(step.after.content if step.after else None, reason) for step, reason in found]


@pytest.mark.parametrize(
    ("spec", "there", "rows", "does", "left", "lacks"),
    [
        pytest.param(MADE, None, (), [(b"new\n", cdi.NEW)], WRITTEN, "", id="written"),
        pytest.param(MADE, NEW_FILE, WRITTEN, [], WRITTEN, "", id="as it should be"),
        pytest.param(MADE, OLD_FILE, OLD, AFRESH, WRITTEN, "", id="another driver"),
        pytest.param(MADE, None, OLD, [(b"new\n", cdi.REMOVED)], WRITTEN, "", id="removed by somebody"),
        pytest.param(replace(MADE, ours=True), OLD_FILE, (), AFRESH, WRITTEN, "", id="its ledger lost"),
        pytest.param(GONE, OLD_FILE, OLD, [(None, cdi.STALE)], (), "no driver", id="driver gone"),
        pytest.param(LACKING, OLD_FILE, OLD, [], OLD, "", id="no answer, and all files there"),
        pytest.param(LACKING, None, OLD, [], (), "no driver", id="gone with its driver"),
        pytest.param(BESIDE, OLD_FILE, OLD, [(None, cdi.GIVES_WAY)], (), THEY_HAVE, id="another's beside it"),
        pytest.param(WITHOUT_SOME, None, (), [], (), f"{THEY_HAVE}, without 0, all", id="that has less"),
        pytest.param(STALE_ONE, OLD_FILE, OLD, [(None, cdi.STALE), *AFRESH], WRITTEN, "", id="files gone"),
        pytest.param(IN_PLACE, NEW_FILE, OLD, [], (), f"{PATH} has devices of nvidia.com/gpu", id="replaced"),
    ],
)
def test_the_specification_follows_what_there_is_and_gives_way(  # noqa: PLR0913, PLR0917 - the columns
    spec: GpuSpecification,
    there: File | None,
    rows: tuple[ConfigRow, ...],
    does: list[tuple[bytes | None, str]],
    left: tuple[ConfigRow, ...],
    lacks: str,
) -> None:
    plan = plan_install(facts(spec, there, *rows), OPTIONS)

    assert done(plan) == does
    assert plan.final is not None
    assert (plan.final.configs, plan.final.cdi) == (left, CdiRow(CONTAINERD, lacks))
    assert plan.obstacles == ()
    assert (f"no CDI specification of the GPUs: {lacks}" in plan.notes) is bool(lacks)
    kept = "kept the CDI specification of the GPUs: no driver"
    assert (kept in plan.notes) is (spec is LACKING and left == OLD)
    # What somebody does to it is drift, and nothing else that it follows.
    assert (str(PATH) in Drifted.of(plan, Record()).things) is (cdi.REMOVED in [reason for _, reason in does])


def test_no_engine_is_written_to_or_reloaded_and_two_programs_are_enough() -> None:
    found = facts(MADE, None)
    few = tuple(each for each in artifacts() if each.name in {"nvidia-cdi-hook", "nvidia-ctk"})

    plan = plan_install(replace(found, payload=PayloadFacts(few)), OPTIONS)

    assert (plan.obstacles, plan.unverified_engines) == ((), ())
    assert not [step for step in plan.steps if isinstance(step, Reload | FindRuntimes)]
    assert [step.path for step in plan.steps if isinstance(step, WriteConfig)] == [PATH]
    installed = next(step for step in plan.steps if isinstance(step, InstallVersion))
    programs = ["nvidia-cdi-hook", "nvidia-ctk", "nvidia-ctk.real"]
    assert sorted(str(file.path) for file in installed.files) == programs
    assert plan.steps.index(installed) < len(plan.steps) - 1, "the hook is there before what names it"
    assert plan_install(replace(found, payload=PayloadFacts(few[:1])), OPTIONS).obstacles


def test_it_goes_where_runtimes_are_asked_for_and_at_an_undo() -> None:
    found = facts(None, OLD_FILE, row())

    runtimes, undo = plan_install(found, CASE.options), plan_undo(found, OPTIONS)

    assert writes(runtimes) == writes(undo) == [(PATH, None)]
    assert runtimes.final is not None
    assert (runtimes.final.cdi, undo.final) == (None, None)


@pytest.mark.parametrize(
    ("spec", "tried", "does", "left", "lacks"),
    [
        pytest.param(STALE_ONE, 1, [], (), cdi.WITHDRAWN, id="a stale one removed"),
        pytest.param(STALE_ONE, 2, [(PATH, None)], (), cdi.WITHDRAWN, id="and the next one half written"),
        pytest.param(MADE, 1, [(PATH, b"old\n")], OLD, "", id="one that still holds"),
    ],
)
def test_a_roll_back_brings_no_stale_one_back_and_tells_that_there_is_none(
    spec: GpuSpecification, tried: int, does: Writes, left: tuple[ConfigRow, ...], lacks: str
) -> None:
    found = facts(spec, OLD_FILE, row())
    plan = plan_install(found, OPTIONS)
    of_it = tuple(step for step in plan.steps if isinstance(step, WriteConfig) and step.path == PATH)[:tried]

    back = plan_rollback(plan, of_it, found.record)

    assert writes(back) == does
    assert back.final == replace(found.record, configs=left, cdi=CdiRow(CONTAINERD, lacks))


# The mode

AUTO = Options(mode=Mode.AUTO)
HELD = Record(engines=(EngineRow("containerd", PurePosixPath("/s"), "containerd.service", {}),))
OFF = replace(IN_EFFECT, cdi=False)


def engine(
    serving: EffectiveConfig | None = IN_EFFECT, name: str = "containerd", *version: int
) -> EngineState:
    usual = EngineState.usual(ENGINES[name])
    silence = "" if serving else "it is busy"
    return replace(usual, version=version or (2, 1, 9), serving=serving, silence_reason=silence)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(engine(), "", id="in effect"),
        pytest.param(engine(replace(IN_EFFECT, cdi_dirs=(PurePosixPath("/run/cdi"),))), "", id="/run"),
        pytest.param(engine(None), "it is busy", id="no answer"),
        pytest.param(engine(replace(IN_EFFECT, cdi=None)), "it has no CDI", id="containerd 1.6"),
        pytest.param(engine(OFF), SWITCHED_OFF, id="1.7"),
        pytest.param(engine(replace(IN_EFFECT, cdi_dirs=DIRS[:1])), ELSEWHERE_ALONE, id="elsewhere"),
        pytest.param(engine(IN_EFFECT, "crio", 1, 28), "", id="CRI-O that hands them over"),
        pytest.param(engine(IN_EFFECT, "crio", 1, 27, 8), f"1.27.8 {NOT_PASSED_ON}", id="older"),
    ],
)
def test_an_engine_takes_devices_by_cdi_where_it_says_so(found: EngineState, why: str) -> None:
    assert cdi.lacking(found) == why


def test_a_specification_is_of_a_version_that_all_engines_read() -> None:
    newest, old, crio = (
        engine(IN_EFFECT, *row) for row in (("containerd", 2, 0, 8), ("docker", 25), ("crio", 1, 29))
    )
    unknown = engine(IN_EFFECT, "docker", 28, 5)

    found = [cdi.highest_read(engines) for engines in ((newest,), (old,), (crio, newest), (unknown,), ())]
    assert found == [(0, 8, 0), (0, 6, 0), (0, 6, 0), None, None]


@pytest.mark.parametrize(
    ("engines", "held", "options", "mode", "why"),
    [
        ((engine(),), Record(), AUTO, Mode.CDI, "every engine has CDI in effect"),
        ((engine(),), HELD, AUTO, Mode.RUNTIME, "containerd has runtimes of ours already"),
        ((engine(), engine(OFF, "docker")), Record(), AUTO, Mode.RUNTIME, "Docker takes no devices by CDI ("),
        ((), Record(), AUTO, Mode.RUNTIME, "no engine is to be asked"),
        ((engine(),), Record(), Options(), Mode.RUNTIME, ""),
    ],
)
def test_auto_takes_what_costs_the_node_least(
    engines: tuple[EngineState, ...], held: Record, options: Options, mode: Mode, why: str
) -> None:
    found, said = cdi.mode_of(engines, held, options)

    assert found is mode
    assert said.startswith(why)
    assert bool(said) is bool(why)


def test_all_that_stands_against_cdi_is_told_with_the_release_that_has_it() -> None:
    first, *others = (str(error) for error in cdi.against_cdi([engine(OFF, name) for name in ENGINES], HELD))

    assert first.startswith("cannot use CDI alone for containerd (an earlier install gave it our runtimes)")
    assert len(others) == len(ENGINES)
    assert all(f"({SWITCHED_OFF}); use --mode runtime; " in said for said in others)
    since = {said.partition("--mode runtime; ")[2].split()[0] for said in others}
    assert since == {"containerd", "Docker", "CRI-O"}
    plan = plan_install(with_engines(facts(MADE, None), serving=OFF), OPTIONS)
    assert [error.code for error in plan.obstacles] == ["mode-unusable"]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (Options(mode=Mode.CDI), "run toolkit-installer uninstall, then try again; or keep --mode runtime"),
        (Options(runtime_name="gpu"), "stop them first, or keep --runtime-name as it was"),
    ],
    ids=["the mode", "the name"],
)
def test_a_runtime_in_use_cannot_go_and_the_remedy_names_what_takes_it_away(
    options: Options, remedy: str
) -> None:
    ours = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    found = replace(
        CASE.facts({}, Record(engines=(replace(HELD.engines[0], runtimes={"nvidia": ours}),)), {}),
        containers=ContainerFacts((Container("containerd", "3f6c0d5e8a9b", "default/trainer", ours),)),
    )

    first = plan_install(found, replace(options, engines=CONTAINERD)).obstacles[0]

    assert first.problem == "remove the runtime nvidia from containerd (it runs default/trainer (containerd))"
    assert (first.code, str(first.remedy).endswith(remedy)) == ("in-use", True)
