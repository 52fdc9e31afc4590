"""What an install makes of configs as people have them, reviewed by eye, and back to the byte; and what it tells."""

import re
from itertools import product
from pathlib import PurePosixPath
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from installer.change.plan import plan_install, plan_undo
from installer.config_text.change import undo
from installer.engines import ENGINES
from installer.engines.config_texts import predict_from_texts, read_present, text_of
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig
from installer.model.facts import Container, ContainerFacts, Facts, Record
from installer.model.options import Options, RestartMode
from tests.change.golden import (
    NOTHING,
    Case,
    Disk,
    accepted,
    binaries_of,
    cases,
    expected,
    final_of,
    installed,
    reloads_of,
    sentence,
    served,
    undo_facts,
    with_engines,
    writes_of,
    written,
)

ALL = [case for engine in ENGINES for case in cases(engine)]
ACCEPTED = [case for case in ALL if not case.said.get("refused")]
REFUSED = [case for case in ALL if case.said.get("refused")]
EACH_ENGINE = pytest.mark.parametrize("engine", sorted({case.engine for case in ACCEPTED}))


def _name(case: Case) -> str:
    return f"{case.engine}-{case.path.name}"


@pytest.mark.parametrize("case", ACCEPTED, ids=_name)
def test_an_install_writes_exactly_the_reviewed_text(case: Case) -> None:
    _, after, _ = installed(case)

    changed = {path: file for path, file in after.items() if case.before.get(path) != file}
    reviewed = expected(case, "after", changed)
    assert {path: file.content for path, file in changed.items() if file} == {
        path: file.content for path, file in reviewed.items() if file
    }


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_a_config_that_cannot_be_edited_is_refused_in_one_sentence(case: Case) -> None:
    with pytest.raises(InstallerError) as refusal:
        installed(case)

    assert str(refusal.value) == sentence(case, str(refusal.value))


def accepted_of(engine: str) -> list[Case]:
    return [case for case in ACCEPTED if case.engine == engine]


@EACH_ENGINE
def test_a_second_install_changes_nothing_and_an_undo_restores_every_byte(engine: str) -> None:
    for case in accepted_of(engine):
        _, after, held = installed(case)

        again, _, now = installed(case, after, held)

        assert writes_of(again) == []
        assert now.configs == held.configs
        assert written(after, plan_undo(undo_facts(case, after, held), case.options)) == case.before
        for row in held.configs:  # without a saved copy
            assert row.syntax is not None
            text, left = undo(text_of(after[row.path], row.path), row.edits, row.syntax, name=str(row.path))

            assert (text, left) == (text_of(case.before.get(row.path), row.path), ())


@pytest.mark.parametrize("case", accepted_of("docker"), ids=_name)
def test_docker_undo_writes_a_reviewed_intermediate_text_and_ends_as_before(case: Case) -> None:
    _, after, held = installed(case)
    serving = served(binaries_of(case.options), "runc")
    facts = with_engines(undo_facts(case, after, held), serving=serving)

    back = plan_undo(facts, replace(case.options, restart_mode=RestartMode.AUTO))

    middle = {step.path: step.after for step in writes_of(back)[:1] if step.after}
    assert {path: file.content for path, file in middle.items()} == {
        path: file.content for path, file in expected(case, "undoing", dict(middle)).items() if file
    }
    assert written(after, back) == case.before


# What an owner is told of an install, of another one and of an undo, for each config that people have.

RUNTIME = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
WRAPS = re.compile(r"\bruntimes = \[.*?\]")
VERSION = re.compile(r"\b[0-9a-f]{16}\b")  # of a toolkit: it differs with each of its files


def _serving(facts: Facts, options: Options, *, ours: bool) -> Facts:
    """Return the facts of an engine that runs, and serves runc, and what is ours where it has read that."""
    binaries = {"runc": "runc"} | (binaries_of(options) if ours else {})
    default = options.runtime_name if ours and options.set_as_default else "runc"
    return with_engines(facts, serving=served(binaries, default), stopped=False)


# What an engine has in force after three acts, some of which leave its restart for later.
Act: TypeAlias = tuple[str, bool, RestartMode]
Node: TypeAlias = tuple[Disk, Record, EffectiveConfig]
LAST: list[Act] = [("install", default, RestartMode.AUTO) for default in (False, True)]
FIRST: list[Act] = [*LAST, *(("install", default, RestartMode.NONE) for default in (False, True))]
LEFT: list[Act] = [("install", False, RestartMode.WHEN_IDLE), ("undo", False, RestartMode.NONE)]
LEFT += [("renamed", False, RestartMode.NONE)]
CUT_SHORT = ("undo", "killed before its restart", "killed after it")
SECOND: list[Act] = [*FIRST, *LEFT, *((verb, False, RestartMode.AUTO) for verb in CUT_SHORT)]


def _says(facts: Facts) -> EffectiveConfig:
    return predict_from_texts(facts.engines[0], read_present(facts.engines[0], facts))


def _act(case: Case, node: Node, act: Act) -> tuple[Node, bool]:
    """Return a node after an act, and whether that restarts the engine; a container holds up an undo."""
    (disk, held, in_force), (verb, default, mode) = node, act
    name, busy = "gpu" if verb == "renamed" else "nvidia", ("0f1e",) * (mode is RestartMode.WHEN_IDLE)
    options = replace(case.options, runtime_name=name, set_as_default=default, restart_mode=mode)
    facts = with_engines(case.facts(disk, held), serving=in_force, creating=busy, hook=None)
    runs = ContainerFacts((Container(case.engine, "3f6c0d5e8a9b", "train/bert-0", RUNTIME),))
    plan = plan_undo if verb == "undo" else plan_install
    done = accepted(plan(replace(facts, containers=runs) if verb == "undo" else facts, options))
    disk, held = written(disk, done), done.in_progress if verb.startswith("killed") else final_of(done)
    reads = reloads_of(done) and verb != "killed before its restart"
    return (disk, held, _says(case.facts(disk, held)) if reads else in_force), bool(reloads_of(done))


@EACH_ENGINE
def test_an_install_restarts_an_engine_for_what_it_has_not_in_force_and_for_nothing_else(engine: str) -> None:
    by_version = {case.said.get("engine_version", "2")[0]: case for case in reversed(accepted_of(engine))}
    for case, first, second in product(by_version.values(), FIRST, SECOND):
        node, _ = _act(case, (case.before, NOTHING, _says(case.facts())), first)
        if first == LAST[0]:  # its owner may have prepared another default for a start of his own
            owners = replace(node[2], default=case.options.runtime_name)
            assert _act(case, (*node[:2], owners), first)[1] == (engine == "docker"), case.path.name
        left, _ = _act(case, node, second)
        for last in LAST:
            (disk, held, _), restarts = _act(case, left, last)
            has, says = left[2], _says(case.facts(disk, held))
            differs = (has.default, has.binaries) != (says.default, says.binaries)
            assert restarts == differs, (case.path.name, first, second, last)
