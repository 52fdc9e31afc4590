"""An undo while containers run on our runtimes: what they need stays, and goes when they are gone."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import entries_for, plan_install, plan_rollback, plan_undo
from installer.config_text import leaves
from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.errors import InstallerError
from installer.model.facts import Container, ContainerFacts, Facts, Record, names_of
from installer.model.files import Kind, Symlink
from installer.model.options import InUse, RestartMode
from installer.model.steps import (
    InstallVersion,
    ProveUnused,
    Reload,
    RemoveVersion,
    SwitchToolkit,
    WriteConfig,
)
from tests.decide.golden import Case, Disk, accepted, cases, installed, undo_facts, written
from tests.decide.serving import served

ACCEPTED = [
    case
    for engine in ENGINES
    for case in cases(engine)
    if not case.said.get("refused") and not case.said.get("hook")
]
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def _live(engine: str) -> tuple[Container, ...]:
    return (Container(engine, "3f6c0d5e8a9b", "train/bert-0", OURS),)


def _defaults(engine: str, disk: Disk) -> Iterator[object]:
    for path, file in sorted(disk.items()):
        for key, value in leaves(tree_of(file, path)):
            if key[-1] == ENGINES[engine].default_key:
                yield path, value


@pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))
def test_our_runtime_is_the_default_no_more_and_later_every_byte_comes_back(engine: str) -> None:
    for case in ACCEPTED:
        if case.engine == engine:
            check_undo_in_two(case)


def check_undo_in_two(case: Case) -> None:
    options = replace(case.options, set_as_default=True, in_use=InUse.KEEP)
    try:
        plan = accepted(plan_install(case.facts(case.before, Record(), {}), options))
    except InstallerError:  # one of the cases in which we cannot be the default
        plan, _ = installed(case, case.before, Record())
    disk = written(case.before, plan)
    assert plan.final is not None

    kept = plan_undo(
        replace(undo_facts(case, disk, plan.final), containers=ContainerFacts(_live(case.engine))), options
    )

    after = written(disk, kept)
    assert list(_defaults(case.engine, after)) == list(_defaults(case.engine, case.before))
    assert kept.in_use
    assert kept.final is not None
    assert kept.final.toolkit == plan.final.toolkit
    handlers = [path for path, file in after.items() if str(OURS).encode() in (file.content if file else b"")]
    assert handlers
    again = plan_undo(
        replace(undo_facts(case, after, kept.final), containers=ContainerFacts(_live(case.engine))), options
    )
    assert again.steps == ()
    full = plan_undo(undo_facts(case, after, kept.final), options)
    assert written(after, full) == case.before
    assert full.final is None


CONTAINERD = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
CRIO = next(case for case in ACCEPTED if case.engine == "crio")
DOCKER = next(case for case in ACCEPTED if case.engine == "docker")


def _in_use(case: Case, version: tuple[int, ...], low_level: str | None = "/usr/sbin/runc") -> Facts:
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    assert plan.final.toolkit is not None
    facts = undo_facts(case, disk, plan.final)
    names = {entry.name: str(entry.binary) for entry in entries_for(case.options)}
    engines = tuple(replace(engine, version=version, serving=served(names, "")) for engine in facts.engines)
    link = f".toolkit-installer/versions/{plan.final.toolkit.version}"
    return replace(
        facts,
        engines=engines,
        containers=ContainerFacts(
            _live(case.engine), low_level=PurePosixPath(low_level) if low_level else None
        ),
        toolkit=replace(facts.toolkit, kind=Kind.LINK, link=link, versions={plan.final.toolkit.version: {}}),
    )


@pytest.mark.parametrize(
    ("case", "version", "stays"),
    [
        pytest.param(DOCKER, (28, 5), False, id="Docker"),
        pytest.param(CONTAINERD, (1, 7), False, id="containerd 1.x"),
        pytest.param(CONTAINERD, (2, 1), True, id="containerd 2.x, for exec"),
        pytest.param(CRIO, (1, 31), True, id="CRI-O, for stop and remove"),
    ],
)
def test_force_leaves_links_to_the_low_level_runtime_and_handlers_where_they_are_needed(
    case: Case, version: tuple[int, ...], *, stays: bool
) -> None:
    facts = _in_use(case, version)

    plan = plan_undo(facts, replace(case.options, in_use=InUse.FORCE, restart_mode=RestartMode.AUTO))

    stand_in = next(step for step in plan.steps if isinstance(step, InstallVersion))
    programs = (f"nvidia-container-runtime{mode}" for mode in ("", ".cdi", ".legacy"))
    assert stand_in.files == tuple(Symlink(PurePosixPath(name), "/usr/sbin/runc") for name in programs)
    order = [
        type(step) for step in plan.steps if isinstance(step, InstallVersion | SwitchToolkit | RemoveVersion)
    ]
    assert order == [InstallVersion, SwitchToolkit, RemoveVersion]
    assert plan.final is not None
    assert [row.name for row in plan.final.engines] == [case.engine]  # to undo what is put back
    left = {step.path: step.after for step in plan.steps if isinstance(step, WriteConfig)}
    assert any(str(OURS).encode() in file.content for file in left.values() if file) == stays


@pytest.mark.parametrize(
    ("default", "reloads"),
    [
        pytest.param("nvidia", True, id="the engine was not told before the crash"),
        pytest.param("runc", False, id="it was told"),
    ],
)
def test_what_a_crash_interrupted_is_finished_although_the_file_is_right_already(
    default: str, *, reloads: bool
) -> None:
    options = replace(
        CONTAINERD.options,
        set_as_default=True,
        runtime_name="nvidia",
        in_use=InUse.KEEP,
        restart_mode=RestartMode.AUTO,
    )
    plan = plan_install(CONTAINERD.facts(CONTAINERD.before, Record(), {}), options)
    assert plan.final is not None
    disk = written(CONTAINERD.before, plan)
    first = plan_undo(
        replace(undo_facts(CONTAINERD, disk, plan.final), containers=ContainerFacts(_live("containerd"))),
        options,
    )
    after = written(disk, first)
    facts = replace(
        undo_facts(CONTAINERD, after, first.in_progress), containers=ContainerFacts(_live("containerd"))
    )
    serving = served({entry.name: str(entry.binary) for entry in entries_for(options)}, default)
    facts = replace(facts, engines=tuple(replace(engine, serving=serving) for engine in facts.engines))

    again = plan_undo(facts, options)

    assert any(isinstance(step, Reload) for step in again.steps) is reloads


def test_force_without_any_low_level_runtime_is_refused() -> None:
    facts = _in_use(CONTAINERD, (1, 7), low_level=None)

    plan = plan_undo(facts, replace(CONTAINERD.options, in_use=InUse.FORCE))

    assert "neither runc nor crun was found" in plan.obstacles[0].problem


def test_the_payload_goes_only_after_another_look_at_what_runs() -> None:
    facts = replace(_in_use(CONTAINERD, (1, 7)), containers=ContainerFacts())

    plan = plan_undo(facts, replace(CONTAINERD.options, restart_mode=RestartMode.AUTO))

    kinds = [type(step) for step in plan.steps]
    assert kinds.index(Reload) < kinds.index(ProveUnused) < kinds.index(SwitchToolkit)


def test_a_roll_back_leaves_containers_that_have_just_been_started_what_they_need() -> None:
    plan, _ = installed(CONTAINERD, CONTAINERD.before, Record())

    back = plan_rollback(plan, plan.steps, Record(), _live("containerd"))

    assert back.steps == ()
    assert back.final == back.in_progress
    assert back.in_use
    assert plan_rollback(plan, plan.steps, Record()).steps


def test_many_containers_are_not_all_named() -> None:
    containers = [Container("docker", str(number), f"c{number:02}", OURS) for number in range(20)]

    assert names_of(containers[:2]) == "c00 (docker), c01 (docker)"
    assert names_of(containers).endswith("c07 (docker) and 12 more")
