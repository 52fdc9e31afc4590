"""What is no reason to write or to reload: a key of an owner's, a lost ledger, what CRI-O reports otherwise."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_undo
from installer.change.unrecorded import find_leftovers
from installer.config_text import Syntax, Want
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_edits import tree_of
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import Facts, Record
from installer.model.files import File, Kind
from installer.model.options import RestartMode
from installer.model.steps import Reload, WriteConfig
from tests.change.golden import Case, Disk, cases, installed, undo_facts, with_engines, written

DAEMON_JSON = PurePosixPath("/etc/docker/daemon.json")
CRIO = next(case for case in cases("crio") if case.path.name == "source-build-absent")
DROP_IN = PurePosixPath("/etc/crio/crio.conf.d/99-nvidia.toml")
SITE = DROP_IN.with_name("10-site.conf")


def _changes(plan: Plan) -> list[WriteConfig | Reload]:
    return [step for step in plan.steps if isinstance(step, Reload | WriteConfig)]


def _linked(facts: Facts) -> Facts:
    return replace(facts, toolkit=replace(facts.toolkit, kind=Kind.LINK))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("docker-com-package-absent", ("debug",), id="a file that we have made"),
        pytest.param("docker-com-package-absent", ("runtimes", "x", "path"), id="a table that we have made"),
    ],
)
def test_a_key_that_the_owner_adds_to_what_we_have_made_is_no_reason_to_reload(
    name: str, key: tuple[str, ...]
) -> None:
    def with_theirs(text: str) -> File:
        return File(apply(text, [Want(key, "/theirs")], Syntax.JSON, name="daemon.json")[0].encode())

    case = next(case for case in cases("docker") if case.path.name == name)
    _, disk, held = installed(case)
    (now,) = disk.values()
    assert now is not None
    edited: Disk = {DAEMON_JSON: with_theirs(now.content.decode())}
    (row,) = held.engines
    programs = {"runc": "runc", **{each: str(path) for each, path in row.runtimes.items()}}
    handlers = {each: Runtime(program, {"path": program}) for each, program in programs.items()}
    serving = EffectiveConfig(handlers, row.default or "runc")
    facts = _linked(case.facts(edited, held, {DAEMON_JSON: case.before.get(DAEMON_JSON)}))
    facts = with_engines(facts, serving=serving, version=(28, 5))

    again = plan_install(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    assert _changes(again) == []
    assert again.final is not None
    undone = written(edited, plan_undo(undo_facts(case, edited, again.final), case.options))
    assert tree_of(undone[DAEMON_JSON], DAEMON_JSON) == tree_of(with_theirs(""), DAEMON_JSON)


def _is_all_told(case: Case) -> bool:
    """Tell whether all in the texts that names us is ours; what the default was, and a hook, nobody can tell."""
    named = any(b"nvidia" in file.content for file in case.before.values() if file)
    untold = named or any(case.said.get(word) for word in ("set_as_default", "hook", "refused"))
    return not (untold or ENGINES[case.engine].finds)


@pytest.mark.parametrize("engine", [name for name, spec in ENGINES.items() if not spec.finds])
def test_an_engine_whose_configs_say_all_of_it_is_left_alone_where_the_ledger_is_lost(engine: str) -> None:
    for case in filter(_is_all_told, cases(engine)):
        _, disk, _ = installed(case)
        held = find_leftovers(_linked(case.facts(disk, Record(), {})), case.options, ours=True).rows
        assert held.configs

        originals: Disk = dict.fromkeys(row.path for row in held.configs)
        again = plan_install(_linked(case.facts(disk, held, originals)), case.options)

        assert [part.obstacles for part in again.parts if part.refused] == []
        assert _changes(again) == []


# As GET /config of CRI-O 1.37 tells: what it fills in itself is gone after a reload.
RELOADED = {"runtime_path": "/usr/bin/crun", "monitor_path": "/usr/bin/conmon"}
STARTED = {**RELOADED, "monitor_cgroup": "system.slice"}
POD = File(b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nmonitor_cgroup = "pod"\n')


def _planned(disk: Disk, held: Record, reports: Mapping[str, str]) -> Plan:
    facts = CRIO.facts(disk, held, {row.path: None for row in held.configs})
    serving = EffectiveConfig({"crun": Runtime("/usr/bin/crun", reports)}, "crun")
    return plan_install(with_engines(facts, serving=serving), CRIO.options)


@pytest.mark.parametrize(
    ("first", "then", "added"),
    [
        pytest.param(STARTED, RELOADED, {}, id="a reload"),
        pytest.param(RELOADED, STARTED, {}, id="a restart"),
        pytest.param(STARTED, RELOADED, {SITE: POD}, id="an administrator has changed it since"),
    ],
)
def test_what_crio_reports_otherwise_is_no_drift(
    first: Mapping[str, str], then: Mapping[str, str], added: Disk
) -> None:
    plan = _planned({}, Record(), first)
    assert plan.final is not None
    disk = written({}, plan)
    file = disk[DROP_IN]
    assert file is not None
    assert (b"monitor_cgroup" in file.content) == ("monitor_cgroup" in first)

    again = _planned({**disk, **added}, plan.final, then)

    assert _changes(again) == []
    assert added or again.final == plan.final


def test_ours_inherit_what_stands_there_when_they_are_written_again() -> None:
    plan = _planned({}, Record(), STARTED)
    assert plan.final is not None

    again = _planned({SITE: POD, DROP_IN: None}, plan.final, RELOADED)  # ours was removed

    (write,) = _changes(again)
    assert isinstance(write, WriteConfig)
    assert write.after is not None
    assert b'monitor_cgroup = "pod"' in write.after.content
