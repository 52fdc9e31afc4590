"""An engine that would not come up again is not restarted, and what keeps a runtime of ours is named."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import entries_for, plan_undo
from installer.engines import ENGINES
from installer.engines.reloading import not_idle
from installer.model.facts import Record
from installer.model.files import File
from installer.model.options import RestartMode
from tests.decide.golden import cases, installed, undo_facts
from tests.decide.serving import served

SHIPPED = next(case for case in cases("microk8s") if case.path.name == "as-the-snap-ships-it")
TEMPLATE = ENGINES["microk8s"].config


def test_an_undo_leaves_a_microk8s_alone_whose_template_is_gone() -> None:
    plan, disk = installed(SHIPPED, SHIPPED.before, Record())
    assert plan.final is not None
    facts = undo_facts(SHIPPED, disk, plan.final)
    names = {entry.name: str(entry.binary) for entry in entries_for(SHIPPED.options)}
    engines = tuple(replace(each, version=(2, 2), serving=served(names, "runc")) for each in facts.engines)
    gone = {**facts.contents, TEMPLATE: None}
    options = replace(SHIPPED.options, restart_mode=RestartMode.AUTO)

    undone = plan_undo(replace(facts, engines=engines, contents=gone), options)

    assert [each.problem for each in undone.obstacles] == [
        f"restart MicroK8s ({engines[0].unit} would not start it again: {TEMPLATE} is not there)"
    ]
    assert not plan_undo(replace(facts, engines=engines), options).obstacles


def test_the_file_that_made_our_runtime_the_default_is_named() -> None:
    case = next(each for each in cases("k0s") if each.path.name == "136-nothing-but-its-own")
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    text = '[plugins."io.containerd.cri.v1.runtime".containerd]\ndefault_runtime_name = "nvidia"\n'
    theirs = PurePosixPath("/etc/k0s/containerd.d/zz-site.toml")
    facts = undo_facts(case, {**disk, theirs: File(text.encode())}, plan.final)

    undone = plan_undo(facts, case.options)

    assert [error.problem for error in undone.needed] == [
        f"remove the runtime nvidia from k0s (it was made the default in {theirs})"
    ]


@pytest.mark.parametrize(("count", "last"), [(8, "c7)"), (9, "c7 and 1 more)")], ids=["all", "the first few"])
def test_the_containers_that_a_restart_waits_for_are_named_up_to_a_few(count: int, last: str) -> None:
    plan, disk = installed(SHIPPED, SHIPPED.before, Record())
    assert plan.final is not None
    (engine,) = undo_facts(SHIPPED, disk, plan.final).engines

    said = not_idle(engine, [f"c{each}" for each in range(count)]).problem

    assert said.startswith("restart MicroK8s yet (it has created containers that are not started: c0, c1,")
    assert said.endswith(last)
