"""A plan is a sum of parts: each step has its reason, and all obstacles are told, not the first."""

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, entries_for, plan_install, plan_undo
from installer.engines import ENGINES
from installer.model.engine_spec import EffectiveConfig
from installer.model.facts import EngineState, Facts, PayloadFacts, Record
from installer.model.files import File
from installer.model.options import RestartMode
from installer.model.steps import Reload, WriteConfig
from tests.decide.golden import Case, cases, installed, undo_facts
from tests.decide.serving import served

ACCEPTED = [case for name in ENGINES for case in cases(name) if not case.said.get("refused")]
CONTAINERD = next(case for case in cases("containerd") if case.path.name == "kubeadm-tabs")
OURS = {entry.name: str(entry.binary) for entry in entries_for(CONTAINERD.options)}
IDS = {f"engine-{name}" for name in ENGINES} | {
    "adopted",
    "cdi",
    "device-nodes",
    "directories",
    "failed-before",
    "gpus",
    "node",
    "nri",
    "references",
    "roll-back",
    "toolkit",
}


def _refused(engine: str) -> Case:
    return next(case for case in cases(engine) if case.said.get("refused"))


def _both(one: Facts, other: Facts) -> Facts:
    return replace(one, engines=(*one.engines, *other.engines), contents={**one.contents, **other.contents})


def test_all_obstacles_are_told_not_the_first() -> None:
    docker, containerd = (
        case.facts(case.before, Record(), {}) for case in (_refused("docker"), _refused("containerd"))
    )

    plan = plan_install(replace(_both(docker, containerd), payload=PayloadFacts(())), CONTAINERD.options)

    assert [part.id for part in plan.parts if part.obstacles] == [
        "engine-docker",
        "engine-containerd",
        "toolkit",
    ]
    assert [part.id for part in plan.parts if part.refused] == ["engine-docker", "engine-containerd"]


def test_an_undo_tells_of_each_engine_that_it_cannot_undo() -> None:
    cut = b'{"runtimes": '
    parts = []
    for case in (CONTAINERD, next(case for case in ACCEPTED if case.engine == "docker")):
        plan, disk = installed(case, case.before, Record())
        assert plan.final is not None
        found = undo_facts(case, disk, plan.final)
        spoilt = {path: replace(file, content=cut) if file else None for path, file in found.contents.items()}
        parts.append(replace(found, contents=spoilt))
    one, other = parts
    held = replace(
        one.held,
        engines=(*one.held.engines, *other.held.engines),
        configs=(*one.held.configs, *other.held.configs),
    )
    facts = replace(_both(one, other), held=held, originals={**one.originals, **other.originals})

    plan = plan_undo(facts, CONTAINERD.options)

    assert [part.id for part in plan.parts if part.refused][:2] == ["engine-containerd", "engine-docker"]


@pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))
def test_each_step_of_an_install_and_its_undo_has_a_reason(engine: str) -> None:
    for case in ACCEPTED:
        if case.engine == engine:
            check_reasons(case)


def check_reasons(case: Case) -> None:
    facts, options = (
        case.facts(case.before, Record(), {}),
        replace(case.options, restart_mode=RestartMode.AUTO),
    )
    running = replace(facts, engines=tuple(replace(one, serving=served({}, "runc")) for one in facts.engines))
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    back = undo_facts(case, disk, plan.final)
    names = tuple(replace(one, serving=served(OURS, "runc")) for one in back.engines)

    for each in (plan_install(running, options), plan_undo(replace(back, engines=names), options)):
        assert each.steps
        assert all(reason for _, reason in each.planned)
        assert {part.id for part in each.parts} <= IDS


def _why(plan: Plan, kind: type[Reload | WriteConfig]) -> list[str]:
    return [reason for step, reason in plan.planned if isinstance(step, kind)]


def _serving(serving: EffectiveConfig | None, **more: object) -> Facts:
    facts = CONTAINERD.facts(CONTAINERD.before, Record(), {})
    engines: tuple[EngineState, ...] = tuple(replace(one, serving=serving) for one in facts.engines)
    return replace(facts, engines=tuple(replace(one, **more) for one in engines))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        pytest.param(
            _serving(served({name: OURS[name] for name in OURS if name != "nvidia-cdi"}, "runc")),
            "it does not serve nvidia-cdi",
            id="one is not served",
        ),
        pytest.param(
            _serving(served(OURS, "runc")),
            "it serves gpu, nvidia-cdi, nvidia-legacy otherwise than asked for",
            id="other settings",
        ),
        pytest.param(
            _serving(served(OURS, "runc"), outdated=True),
            "its config was changed after its start",
            id="started before",
        ),
        pytest.param(
            _serving(None, silence="it hangs"), "it is not known what it serves (it hangs)", id="silent"
        ),
    ],
)
def test_a_restart_is_told_with_what_the_engine_does_not_serve(facts: Facts, why: str) -> None:
    plan = plan_install(facts, replace(CONTAINERD.options, restart_mode=RestartMode.AUTO))

    assert [each.partition(" and ")[0] for each in _why(plan, Reload)] == [why]


def test_a_write_is_told_with_what_the_file_does_not_hold() -> None:
    first, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    assert first.final is not None
    renamed = Case("containerd", CONTAINERD.path, CONTAINERD.said | {"runtime_name": "mine"})

    second, _ = installed(renamed, disk, first.final)
    undone = plan_undo(undo_facts(CONTAINERD, disk, first.final), CONTAINERD.options)

    assert _why(first, WriteConfig) == [
        "missing there, or with another value: gpu, nvidia-cdi, nvidia-legacy, the default runtime"
    ]
    assert _why(second, WriteConfig) == ["missing there, or with another value: mine, the default runtime"]
    assert _why(undone, WriteConfig) == ["reverts what install changed"]


def test_a_write_that_repairs_an_edited_key_says_that_it_was_changed() -> None:
    first, disk = installed(CONTAINERD, CONTAINERD.before, Record())
    assert first.final is not None
    ((path, file),) = disk.items()
    assert file is not None
    edited = File(file.content.replace(OURS["nvidia-cdi"].encode() + b'"', b'/foreign"'))
    without = Case("containerd", CONTAINERD.path, CONTAINERD.said | {"set_as_default": False})

    repair, _ = installed(CONTAINERD, {path: edited}, first.final)
    fewer, _ = installed(without, disk, first.final)

    assert _why(repair, WriteConfig) == ["our keys there differ from what is asked for"]
    assert _why(fewer, WriteConfig) == [
        "it still has the default runtime, which this install does not ask for"
    ]
