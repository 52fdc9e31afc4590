"""k3s and RKE2 look for the toolkit by themselves: nothing of theirs is edited, and they are restarted once."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_rollback, plan_undo
from installer.engines import ENGINES
from installer.model.engine_spec import EffectiveConfig, RuntimeEntry
from installer.model.facts import Container, ContainerFacts, EngineState, Facts, Record, ToolkitFacts
from installer.model.files import Kind
from installer.model.options import InUse, Options
from installer.model.steps import MakeDirectory, Neighbour, Reload, SwitchToolkit, WriteConfig
from tests.change.golden import cases, served

OURS = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
BEFORE = served({"runc": ""}, "runc")
AFTER = served({"runc": "", "nvidia": str(OURS)}, "runc")
PAYLOAD = next(iter(cases("containerd"))).facts({}, Record(), {})
NAMES = pytest.mark.parametrize("name", ["k3s", "rke2"])


def facts(name: str, serving: EffectiveConfig | None, held: Record | None = None) -> Facts:
    """Return a node of k3s or RKE2, with nothing installed or what ``held`` says."""
    engine = replace(EngineState.usual(ENGINES[name]), version=(2, 0, 5), serving=serving)
    there = ToolkitFacts()
    if held is not None and held.toolkit is not None:
        version = held.toolkit.version
        there = ToolkitFacts(Kind.LINK, f".toolkit-installer/versions/{version}", {version: {}})
    return replace(PAYLOAD, engines=(engine,), contents={}, held=held or Record(), toolkit=there)


def installed(name: str) -> tuple[Plan, Record]:
    plan = plan_install(facts(name, BEFORE), Options(engines=(name,)))
    assert plan.final is not None
    return plan, plan.final


def reloads(plan: Plan) -> list[Reload]:
    return [step for step in plan.steps if isinstance(step, Reload)]


@NAMES
def test_the_toolkit_is_put_where_it_is_looked_for_then_the_engine_is_restarted(name: str) -> None:
    plan, _ = installed(name)

    assert plan.obstacles == ()
    assert not any(isinstance(step, WriteConfig | MakeDirectory) for step in plan.steps)
    assert [type(step) for step in plan.steps][-2:] == [SwitchToolkit, Reload]
    others = (Neighbour("runc", (BEFORE.handlers["runc"],)),)
    asked = (RuntimeEntry("nvidia", OURS),)
    assert reloads(plan) == [Reload(name, asked, others=others, defaults=frozenset({"runc"}))]
    found = plan_install(facts(name, AFTER), Options(engines=(name,)))
    assert reloads(found) == [], "it has found it"
    (silent, *_) = plan_install(facts(name, None), Options(engines=(name,))).obstacles
    assert silent.problem.startswith(f"verify that {ENGINES[name].title} serves our runtimes")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"install_dir": PurePosixPath("/opt/nvidia")},
            "install into /opt/nvidia (k3s looks below /usr/local/nvidia only)",
        ),
        ({"runtime_name": "gpu"}, "name the runtime gpu (k3s names it nvidia by itself)"),
        ({"set_as_default": True}, "make the runtime the default of k3s (it writes its config itself)"),
    ],
)
def test_what_it_would_not_find_is_refused(options: dict[str, Any], problem: str) -> None:
    plan = plan_install(facts("k3s", BEFORE), replace(Options(engines=("k3s",)), **options))

    assert [each.problem for each in plan.obstacles] == [problem]


@NAMES
def test_an_undo_or_a_roll_back_takes_the_toolkit_away_and_restarts_nothing(name: str) -> None:
    first, held = installed(name)
    assert held.toolkit is not None
    link = f".toolkit-installer/versions/{held.toolkit.version}"

    plan = plan_undo(facts(name, AFTER, held), Options(engines=(name,)))
    back = plan_rollback(first, first.steps, Record())

    assert (plan.obstacles, plan.final) == ((), None)
    assert SwitchToolkit(before=link, after="") in plan.steps
    assert any(isinstance(step, SwitchToolkit) for step in back.steps)
    assert reloads(plan) == reloads(back) == []


def test_one_that_starts_every_pod_with_it_keeps_it() -> None:
    _, held = installed("k3s")

    plan = plan_undo(facts("k3s", replace(AFTER, default="nvidia"), held), Options(engines=("k3s",)))

    assert [each.problem for each in plan.obstacles] == [
        "remove the toolkit of k3s (its default runtime is nvidia)"
    ]


def test_what_containers_run_on_stays() -> None:
    _, held = installed("k3s")
    live = (Container("k3s", "3f6c0d5e8a9b", "train/bert-0", OURS),)
    node = replace(facts("k3s", AFTER, held), containers=ContainerFacts(live))

    plan = plan_undo(node, Options(engines=("k3s",), in_use=InUse.KEEP))

    assert plan.in_use == live
    assert plan.final is not None
    assert [row.name for row in plan.final.engines] == ["k3s"]
    assert not any(isinstance(step, SwitchToolkit) for step in plan.steps)
