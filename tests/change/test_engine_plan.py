"""Engines that look for the toolkit by themselves (k3s, RKE2), and restarts that are left for when one is idle."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.engines import ENGINES
from installer.engines.reload import with_creating
from installer.errors import InstallerError
from installer.host.files import Host
from installer.lifecycle.drift import Drifted, find_refusal
from installer.model.effective import EffectiveConfig, Flags, RuntimeEntry
from installer.model.engine import EngineState
from installer.model.facts import Container, ContainerFacts, Facts, Failure, Pending, Record, ToolkitFacts
from installer.model.files import ROOT, Kind
from installer.model.options import Drift, InUse, Options, RestartMode
from installer.model.steps import (
    FindRuntimes,
    MakeDirectory,
    Neighbour,
    PartId,
    Reload,
    SwitchToolkit,
    WriteConfig,
)
from tests.change import golden

# Nothing of these is edited, and they are restarted once.
OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
BEFORE = golden.served({"runc": ""}, "runc")
AFTER = golden.served({"runc": "", "nvidia": str(OURS)}, "runc")
CONTAINERD, CRIO = golden.case_of("containerd", "kubeadm-tabs"), golden.case_of("crio")
NAMES = pytest.mark.parametrize("name", ["k3s", "rke2"])


def found_by(name: str, serving: EffectiveConfig | None, held: Record = golden.NOTHING) -> Facts:
    """Return a node of k3s or RKE2, with nothing installed or what ``held`` says."""
    engine = replace(EngineState.usual(ENGINES[name]), version=(2, 0, 5), serving=serving)
    there = ToolkitFacts()
    if held.toolkit is not None:
        version = held.toolkit.version
        there = ToolkitFacts(Kind.LINK, f".toolkit-installer/versions/{version}", {version: {}})
    return replace(CONTAINERD.facts({}), engines=(engine,), contents={}, record=held, toolkit=there)


def put(name: str) -> tuple[Plan, Record]:
    plan = plan_install(found_by(name, BEFORE), Options(engines=(name,)))
    return plan, golden.final_of(plan)


@NAMES
def test_the_toolkit_is_put_where_it_is_looked_for_then_the_engine_is_restarted(name: str) -> None:
    plan, _ = put(name)

    assert plan.obstacles == ()
    assert not any(isinstance(step, WriteConfig | MakeDirectory) for step in plan.steps)
    assert [type(step) for step in plan.steps][-2:] == [SwitchToolkit, Reload]
    others = (Neighbour("runc", (BEFORE.handlers["runc"],)),)
    asked = (RuntimeEntry("nvidia", OURS),)
    assert golden.reloads_of(plan) == [
        Reload(ENGINES[name], asked, others=others, defaults=frozenset({"runc"}))
    ]
    default = replace(AFTER, default="nvidia")  # by its flag
    found = plan_install(found_by(name, default, plan.in_progress), Options(engines=(name,)))
    assert golden.reloads_of(found) == [], "it has found it"
    (silent, *_) = plan_install(found_by(name, None), Options(engines=(name,))).obstacles
    assert silent.problem.startswith(f"verify that {ENGINES[name].title} serves our runtimes")


@pytest.mark.parametrize(
    "options",
    [{"install_dir": PurePosixPath("/opt/nvidia")}, {"runtime_name": "gpu"}, {"set_as_default": True}],
)
def test_what_it_would_not_find_is_refused(options: dict[str, Any]) -> None:
    plan = plan_install(found_by("k3s", BEFORE), replace(Options(engines=("k3s",)), **options))

    (obstacle,) = plan.obstacles
    assert obstacle.problem == "configure k3s (it looks for nvidia below /usr/local/nvidia by itself)"


@NAMES
def test_an_undo_or_a_roll_back_takes_the_toolkit_away_and_restarts_nothing(name: str) -> None:
    first, held = put(name)
    facts = found_by(name, AFTER, held)

    plan = plan_undo(facts, Options(engines=(name,)))
    back = plan_rollback(first, first.steps, Record())

    assert (plan.obstacles, plan.final) == ((), None)
    assert SwitchToolkit(before=facts.toolkit.link, after="") in plan.steps
    assert any(isinstance(step, SwitchToolkit) for step in back.steps)
    assert golden.reloads_of(plan) == golden.reloads_of(back) == []


def test_one_that_starts_every_pod_with_it_keeps_it_and_what_containers_run_on_stays() -> None:
    _, held = put("k3s")
    live = (Container("k3s", "3f6c0d5e8a9b", "train/bert-0", OURS),)
    node = replace(found_by("k3s", AFTER, held), containers=ContainerFacts(live))
    options = Options(engines=("k3s",), in_use=InUse.KEEP)

    default = plan_undo(found_by("k3s", replace(AFTER, default="nvidia"), held), options)
    used = plan_undo(node, options)

    (obstacle,) = default.obstacles
    assert obstacle.problem == "remove the toolkit of k3s (its default runtime is nvidia)"
    assert used.in_use == live
    assert [row.name for row in golden.final_of(used).engines] == ["k3s"]
    assert not any(isinstance(step, SwitchToolkit) for step in used.steps)


# --restart-mode when-idle: configs are written, and the restart is left for when no container is created.
BUSY = ("224748f27151aaaa", "0f1e2d3c4b5aaaaa")


def _options(case: golden.Case) -> Options:
    return replace(case.options, restart_mode=RestartMode.WHEN_IDLE)


def _facts(case: golden.Case, disk: golden.Disk | None, held: Record, creating: tuple[str, ...]) -> Facts:
    return golden.with_engines(case.facts(disk, held), serving=BEFORE, creating=creating)


def _pending(case: golden.Case) -> tuple[Plan, golden.Disk, Record]:
    plan = plan_install(_facts(case, None, golden.NOTHING, BUSY), _options(case))
    return plan, golden.written(case.before, plan), golden.final_of(plan)


def _later(disk: golden.Disk, held: Record, creating: tuple[str, ...]) -> Plan:
    plan = plan_install(_facts(CONTAINERD, disk, held, creating), _options(CONTAINERD))
    return replace(plan, parts=tuple(part for part in plan.parts if part.id != PartId.TOOLKIT))


def test_configs_are_written_and_the_restart_is_pending_while_containers_are_created() -> None:
    plan, _, held = _pending(CONTAINERD)

    assert not golden.reloads_of(plan)
    assert golden.writes_of(plan)
    assert [step for step in plan.steps if isinstance(step, FindRuntimes)], "before a config names them"
    assert (plan.unverified_engines, held.finished, held.engines[0].restart_due) == (
        ("containerd",),
        True,
        True,
    )
    assert str(plan.pending["containerd"]).startswith(
        "cannot restart containerd yet (it has created containers that are not started: 0f1e2d3c4b5a, "
        "224748f27151); "
    )
    assert [note for note in plan.notes if note.startswith("containerd, pending: cannot restart")]


def test_docker_which_is_only_signalled_waits_for_nothing() -> None:
    engines = (EngineState.usual(ENGINES["docker"]),)
    assert with_creating(Host.under(ROOT), engines) == engines, "it is not asked what it creates"


def test_what_failed_or_stands_against_a_restart_stands_against_one_that_comes_later() -> None:
    plan, _, _ = _pending(CONTAINERD)
    failed = _facts(CONTAINERD, None, Record(failed=Failure(plan.digest, "prove it")), BUSY)
    error = InstallerError("restart it (its unit is masked)", remedy="unmask it", code="unit-failed")
    masked = golden.with_engines(_facts(CONTAINERD, None, golden.NOTHING, BUSY), not_restarted=error)

    for facts, code in ((failed, "failed-before"), (masked, "unit-failed")):
        assert [each.code for each in plan_install(facts, _options(CONTAINERD)).obstacles] == [code]


def test_a_restart_that_was_due_takes_what_was_written_before_back_where_it_fails() -> None:
    _, disk, held = _pending(CONTAINERD)
    plan = _later(disk, held, ())
    assert [type(step) for step in plan.steps] == [Reload]

    back = plan_rollback(plan, plan.steps, held)

    assert golden.written(disk, back) == CONTAINERD.before
    assert isinstance(back.steps[-1], Reload)
    assert plan_rollback(plan, (), held).steps == (), "it has not begun"
    assert [row.restart_due for row in plan.in_progress.engines] == [True], "until it is proven"
    assert [row.restart_due for row in golden.final_of(plan).engines] == [False]


@pytest.mark.parametrize(
    "case", [CONTAINERD, CRIO], ids=["containerd", "CRI-O, whose config is newer than it"]
)
def test_an_undo_restarts_no_engine_that_has_never_read_our_config(case: golden.Case) -> None:
    _, disk, held = _pending(case)
    facts = golden.undo_facts(case, disk, held)
    serving = golden.served({"runc": "", **golden.binaries_of(case.options)}, "runc")

    never = plan_undo(golden.with_engines(facts, serving=BEFORE, outdated=case is CRIO), _options(case))
    restarted_since = plan_undo(golden.with_engines(facts, serving=serving), _options(case))

    assert golden.reloads_of(never) == []
    assert golden.written(disk, never) == case.before
    assert golden.reloads_of(restarted_since), "by its owner"


@pytest.mark.parametrize(
    ("serves_ours", "pending"), [(False, Pending.RESTART_WHEN_IDLE), (True, Pending.RESTART_AFTER_UNDO)]
)
def test_an_undo_that_keeps_our_texts_leaves_the_restart_due_unless_the_owner_has_restarted_the_engine(
    pending: Pending, *, serves_ours: bool
) -> None:
    _, disk, held = _pending(CONTAINERD)
    serving = golden.served({"runc": "", **golden.binaries_of(CONTAINERD.options)}, "gpu")
    facts = golden.undo_facts(CONTAINERD, disk, held)
    facts = golden.with_engines(
        facts, serving=serving if serves_ours else BEFORE, next_flags=Flags(default="gpu")
    )

    plan = plan_undo(facts, replace(CONTAINERD.options, restart_mode=RestartMode.NONE))

    assert [error.code for error in plan.needed][:1] == ["runtime-needed"]
    assert [row.pending for row in golden.final_of(plan).engines] == [pending]


def test_a_restart_that_was_due_is_no_drift_and_one_for_drift_is_left_to_its_policy() -> None:
    _, disk, held = _pending(CONTAINERD)
    proven = replace(held, engines=tuple(replace(row, pending=None) for row in held.engines))
    for creating in ((), BUSY):
        due, found = (Drifted.of(_later(disk, rows, creating), Record()) for rows in (held, proven))
        asked = [find_refusal(each, found, {}, 100.0, str) for each in (Drift.AUTO, Drift.REPAIR)]
        assert [bool(each) for each in (due.things, found.things, *asked)] == [False, True, True, False]
