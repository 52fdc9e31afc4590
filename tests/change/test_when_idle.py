"""--restart-mode when-idle: configs are written, and the restart is left for when no container is created."""

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.engines import ENGINES
from installer.engines.restart import with_creating
from installer.errors import InstallerError
from installer.host.files import Host
from installer.lifecycle.drift import Drifted, find_refusal
from installer.model.facts import EngineState, Facts, Failure, Record
from installer.model.files import ROOT
from installer.model.options import Drift, Options, RestartMode
from installer.model.steps import FindRuntimes, Reload, WriteConfig
from installer.payload import plan as toolkit
from tests.change.golden import Case, Disk, binaries_of, cases, served, undo_facts, with_engines, written

CONTAINERD: Case = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
CRIO: Case = next(case for case in cases("crio") if not case.said.get("hook"))
IDLE = served({"runc": ""}, "runc")
BUSY = ("224748f27151aaaa", "0f1e2d3c4b5aaaaa")


def _options(case: Case) -> Options:
    return replace(case.options, restart_mode=RestartMode.WHEN_IDLE)


def _facts(case: Case, disk: Disk, held: Record, creating: tuple[str, ...]) -> Facts:
    facts = case.facts(disk, held, {row.path: case.before.get(row.path) for row in held.configs})
    return with_engines(facts, serving=IDLE, creating=creating)


def _pending(case: Case) -> tuple[Plan, Disk, Record]:
    plan = plan_install(_facts(case, case.before, Record(), BUSY), _options(case))
    assert plan.final is not None
    return plan, written(case.before, plan), plan.final


def _later(disk: Disk, held: Record, creating: tuple[str, ...]) -> Plan:
    """Return the plan of a look, whose toolkit is in place."""
    plan = plan_install(_facts(CONTAINERD, disk, held, creating), _options(CONTAINERD))
    return replace(plan, parts=tuple(part for part in plan.parts if part.id != toolkit.ID))


def test_configs_are_written_and_the_restart_is_pending_while_containers_are_created() -> None:
    plan, _, held = _pending(CONTAINERD)

    assert not [step for step in plan.steps if isinstance(step, Reload)]
    assert [step for step in plan.steps if isinstance(step, WriteConfig)]
    assert [step for step in plan.steps if isinstance(step, FindRuntimes)], "before a config names them"
    assert (plan.unproven, held.finished) == (("containerd",), True)
    assert [row.restart_due for row in held.engines] == [True]
    assert str(plan.pending["containerd"]).startswith(
        "cannot restart containerd yet (it has created containers that are not started: 0f1e2d3c4b5a, "
        "224748f27151); "
    )
    assert [note for note in plan.notes if note.startswith("containerd, pending: cannot restart")]


def test_docker_which_is_only_signalled_waits_for_nothing() -> None:
    engines = (EngineState.usual(ENGINES["docker"]),)
    assert with_creating(Host.under(ROOT), engines) == engines, "it is not asked what it creates"


def test_a_plan_that_failed_is_not_written_again_to_be_restarted_later() -> None:
    plan, _, _ = _pending(CONTAINERD)
    held = Record(failed=Failure(plan.digest, "prove it"))

    again = plan_install(_facts(CONTAINERD, CONTAINERD.before, held, BUSY), _options(CONTAINERD))

    assert [each.code for each in again.obstacles] == ["failed-before"]


def test_what_stands_against_a_restart_stands_against_one_that_comes_later() -> None:
    facts = _facts(CONTAINERD, CONTAINERD.before, Record(), BUSY)
    masked = InstallerError("restart it (its unit is masked)", remedy="unmask it", code="unit-failed")

    plan = plan_install(with_engines(facts, not_restarted=masked), _options(CONTAINERD))

    assert [each.code for each in plan.obstacles] == ["unit-failed"]


def test_a_restart_that_was_due_takes_what_was_written_before_back_where_it_fails() -> None:
    _, disk, held = _pending(CONTAINERD)
    plan = _later(disk, held, ())
    assert [type(step) for step in plan.steps] == [Reload]

    back = plan_rollback(plan, plan.steps, held)
    not_begun = plan_rollback(plan, (), held)

    assert written(disk, back) == CONTAINERD.before
    assert isinstance(back.steps[-1], Reload)
    assert not_begun.steps == ()
    assert [row.restart_due for row in plan.in_progress.engines] == [True], "until it is proven"
    assert plan.final is not None
    assert [row.restart_due for row in plan.final.engines] == [False]


@pytest.mark.parametrize(
    "case", [CONTAINERD, CRIO], ids=["containerd", "CRI-O, whose config is newer than it"]
)
def test_an_undo_restarts_no_engine_that_has_never_read_our_config(case: Case) -> None:
    _, disk, held = _pending(case)
    facts = with_engines(undo_facts(case, disk, held), serving=IDLE, outdated=case is CRIO)

    undone = plan_undo(facts, _options(case))

    assert not [step for step in undone.steps if isinstance(step, Reload)]
    assert written(disk, undone) == case.before


def test_an_undo_restarts_an_engine_whose_owner_has_restarted_it_meanwhile() -> None:
    _, disk, held = _pending(CONTAINERD)
    serving = served({"runc": "", **binaries_of(CONTAINERD.options)}, "runc")
    facts = with_engines(undo_facts(CONTAINERD, disk, held), serving=serving)

    undone = plan_undo(facts, _options(CONTAINERD))

    assert [step for step in undone.steps if isinstance(step, Reload)]


def test_a_restart_that_was_due_is_no_drift_and_one_for_drift_is_left_to_its_policy() -> None:
    _, disk, held = _pending(CONTAINERD)
    proven = replace(held, engines=tuple(replace(row, restart_due=False) for row in held.engines))
    due = [_later(disk, held, each) for each in ((), BUSY)]
    drift = [_later(disk, proven, each) for each in ((), BUSY)]

    def repairs(plan: Plan, policy: Drift) -> bool:
        return find_refusal(policy, Drifted.of(plan, Record()), {}, 100.0, str) is None

    assert not any(Drifted.of(plan, Record()).things for plan in due)
    assert all(Drifted.of(plan, Record()).things for plan in drift)
    assert [repairs(plan, Drift.AUTO) for plan in drift] == [False, False]
    assert [repairs(plan, Drift.REPAIR) for plan in drift] == [True, True]
