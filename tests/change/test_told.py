"""What an owner is told of an install, of another one and of an undo, for each config that people have."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.plan import Plan, plan_install, plan_undo
from installer.engines import ENGINES
from installer.model.facts import Container, ContainerFacts, Facts, Record
from installer.model.options import InUse, Options, RestartMode
from installer.model.steps import describe
from tests.change.golden import GOLDEN, Case, binaries_of, cases, served, undo_facts, with_engines, written
from tests.support.golden import golden

VERSION = re.compile(r"\b[0-9a-f]{16}\b")  # of a toolkit: it differs with each of its files


def _serving(facts: Facts, options: Options, *, ours: bool) -> Facts:
    """Return the facts of an engine that runs, and serves runc, and what is ours where it has read that."""
    binaries = {"runc": "runc"} | (binaries_of(options) if ours else {})
    default = options.runtime_name if ours and options.set_as_default else "runc"
    return with_engines(facts, serving=served(binaries, default), stopped=False)


def _lines(title: str, plan: Plan) -> Iterator[str]:
    yield title
    for step, why in plan.planned:
        yield f"    {describe(step).text}: {why}"
    yield from (f"    note: {note}" for note in plan.notes)
    yield from (f"    obstacle: {error}" for error in plan.obstacles)
    yield from (f"    stays: {error}" for error in plan.needed)
    yield from [f"    saved: {len(plan.backups)}"] if plan.backups else []
    for row in plan.final.configs if plan.final else ():
        held = {"as it was": row.original, "our keys": row.edits, "what it named": row.named}
        yield f"    held: {row.path}: {', '.join(word for word, there in held.items() if there)}"


def _told(case: Case) -> str:
    options = replace(case.options, restart_mode=RestartMode.AUTO)
    first = plan_install(_serving(case.facts(case.before, Record(), {}), options, ours=False), options)
    disk = written(case.before, first)
    assert first.final is not None
    saved = {row.path: case.before.get(row.path) for row in first.final.configs}
    again = case.facts(disk, first.final, saved)
    back = _serving(undo_facts(case, disk, first.final), options, ours=True)
    runs = Container(
        case.engine,
        "3f6c0d5e8a9b",
        "train/bert-0",
        PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime"),
    )
    keeps = replace(options, in_use=InUse.KEEP)
    lines = [
        *_lines("install", first),
        *_lines("install again", plan_install(_serving(again, options, ours=True), options)),
        *_lines("undo", plan_undo(back, options)),
        *_lines(
            "undo while a container needs us",
            plan_undo(replace(back, containers=ContainerFacts((runs,))), keeps),
        ),
    ]
    return "\n".join(VERSION.sub("VERSION", line) for line in lines)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_owner_is_told_what_was_reviewed(engine: str) -> None:
    by_text: dict[str, list[str]] = {}
    for case in cases(engine):
        if not case.said.get("refused"):
            by_text.setdefault(_told(case), []).append(case.path.name)
    text = "\n\n".join(f"{chr(10).join(sorted(names))}\n{told}" for told, names in by_text.items())

    if by_text:
        assert f"{text}\n" == golden(GOLDEN / f"told-{engine}.txt", f"{text}\n")
