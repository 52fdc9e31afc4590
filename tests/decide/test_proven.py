"""What nobody changed is no drift, whatever an engine reports of itself."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import Record
from installer.model.files import File
from installer.model.steps import WriteConfig
from tests.decide.golden import Disk, cases, written

CRIO = next(case for case in cases("crio") if case.path.name == "source-build-absent")
DROP_IN = PurePosixPath("/etc/crio/crio.conf.d/99-nvidia.toml")
# As GET /config of CRI-O 1.37 tells: what it fills in itself is gone after a reload.
STARTED = {
    "runtime_path": "/usr/bin/crun",
    "monitor_path": "/usr/bin/conmon",
    "monitor_cgroup": "system.slice",
}
RELOADED = {"runtime_path": "/usr/bin/crun", "monitor_path": "/usr/bin/conmon"}


def planned(disk: Disk, held: Record, reports: Mapping[str, str]) -> Plan:
    facts = CRIO.facts(disk, held, {row.path: None for row in held.configs})
    serving = EffectiveConfig({"crun": Runtime("/usr/bin/crun", reports)}, "crun")
    engines = tuple(replace(each, serving=serving) for each in facts.engines)
    return plan_install(replace(facts, engines=engines), CRIO.options)


def writes(plan: Plan) -> list[WriteConfig]:
    return [step for step in plan.steps if isinstance(step, WriteConfig)]


@pytest.mark.parametrize(
    ("first", "then"), [(STARTED, RELOADED), (RELOADED, STARTED)], ids=["a reload", "a restart"]
)
def test_what_crio_reports_otherwise_after_its_owner_reloads_it_is_no_drift(
    first: Mapping[str, str], then: Mapping[str, str]
) -> None:
    plan = planned({}, Record(), first)
    assert plan.final is not None
    disk = written({}, plan)
    file = disk[DROP_IN]
    assert file is not None
    assert (b"monitor_cgroup" in file.content) == ("monitor_cgroup" in first)

    again = planned(disk, plan.final, then)

    assert writes(again) == []
    assert again.final == plan.final


def test_what_an_administrator_has_changed_since_is_no_drift_of_ours() -> None:
    plan = planned({}, Record(), STARTED)
    assert plan.final is not None
    said = b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nmonitor_cgroup = "pod"\n'
    disk = {**written({}, plan), DROP_IN.with_name("10-site.conf"): File(said)}

    assert writes(planned(disk, plan.final, RELOADED)) == []


def test_ours_inherit_what_stands_there_when_they_are_written_again() -> None:
    plan = planned({}, Record(), STARTED)
    assert plan.final is not None
    said = b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nmonitor_cgroup = "pod"\n'
    disk = {DROP_IN.with_name("10-site.conf"): File(said)}  # and ours was removed

    (write,) = writes(planned({**disk, DROP_IN: None}, plan.final, RELOADED))

    assert write.after is not None
    assert b'monitor_cgroup = "pod"' in write.after.content
