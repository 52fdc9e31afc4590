"""What is no reason to write to a config or to reload an engine: a key of its owner's, or a ledger that is lost."""

from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_install, plan_undo
from installer.change.unrecorded import find_leftovers
from installer.config_text import Want
from installer.config_text.change import apply
from installer.engines import ENGINES
from installer.engines.config_edits import syntax_of, tree_of
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import Facts, Record
from installer.model.files import File, Kind
from installer.model.options import RestartMode
from installer.model.steps import Reload, WriteConfig
from tests.decide.golden import Case, Disk, cases, installed, undo_facts, written

ACCEPTED = [case for engine in ENGINES for case in cases(engine) if not case.said.get("refused")]


def _is_all_told(case: Case) -> bool:
    """Tell whether all in the texts that names us is ours; what the default was, and a hook, nobody can tell."""
    named = any(b"nvidia" in file.content for file in case.before.values() if file)
    untold = named or case.said.get("set_as_default") or case.said.get("hook")
    return not (untold or ENGINES[case.engine].finds)


def _facts(case: Case, disk: Disk, held: Record, originals: Disk) -> Facts:
    """Return the facts of an engine that serves what was installed."""
    facts = case.facts(disk, held, originals)
    (row,), (engine,) = held.engines, facts.engines
    programs = {"runc": "runc", **{name: str(path) for name, path in row.runtimes.items()}}
    handlers = {name: Runtime(program, {"path": program}) for name, program in programs.items()}
    serving = EffectiveConfig(handlers, row.default or "runc")
    return replace(
        facts,
        engines=(replace(engine, serving=serving, version=engine.version or (28, 5)),),
        toolkit=replace(facts.toolkit, kind=Kind.LINK),
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("docker-com-package-absent", ("debug",), id="a file that we have made"),
        pytest.param("ansible-role-empty-object", ("debug",), id="an object that was empty"),
        pytest.param(
            "docker-com-package-absent", ("runtimes", "theirs", "path"), id="a table that we have made"
        ),
    ],
)
def test_a_key_that_the_owner_adds_to_what_we_have_made_is_no_reason_to_reload(
    name: str, key: tuple[str, ...]
) -> None:
    case = next(case for case in cases("docker") if case.path.name == name)
    plan, disk = installed(case, case.before, Record())
    assert plan.final is not None
    path = PurePosixPath("/etc/docker/daemon.json")
    (now,) = disk.values()
    assert now is not None
    syntax = syntax_of(path, now.content.decode())
    theirs, _ = apply(now.content.decode(), [Want(key, "/theirs")], syntax, name=str(path))
    edited: Disk = {path: File(theirs.encode(), now.meta)}

    facts = _facts(case, edited, plan.final, {path: case.before.get(path)})
    again = plan_install(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    assert [step for step in again.steps if isinstance(step, Reload | WriteConfig)] == []
    assert again.final is not None
    undone = written(edited, plan_undo(undo_facts(case, edited, again.final), case.options))
    left, _ = apply("", [Want(key, "/theirs")], syntax, name=str(path))
    assert tree_of(undone[path], path) == tree_of(File(left.encode()), path)


def test_an_engine_whose_configs_say_all_of_it_is_left_alone_where_the_ledger_is_lost() -> None:
    for case in ACCEPTED:
        if _is_all_told(case):
            check_left_alone(case)


def check_left_alone(case: Case) -> None:
    _, disk = installed(case, case.before, Record())
    facts = case.facts(disk, Record(), {})
    facts = replace(facts, toolkit=replace(facts.toolkit, kind=Kind.LINK))
    held = find_leftovers(facts, case.options, ours=True).rows
    assert held.configs

    facts = case.facts(disk, held, {row.path: None for row in held.configs})
    again = plan_install(replace(facts, toolkit=replace(facts.toolkit, kind=Kind.LINK)), case.options)

    assert [part.obstacles for part in again.parts if part.refused] == []
    assert [step for step in again.steps if isinstance(step, Reload | WriteConfig)] == []
