"""The plan that removes everything, each thing before what it needs; and the plan of a roll-back."""

from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry
from installer.decide.facts import Container, EngineFacts, Facts, names_of
from installer.decide.former import after_undo
from installer.decide.options import Options
from installer.decide.part import Part, attempted, id_of, rows_of
from installer.decide.parts import adopted, cdi, device_nodes, directories, engine, gpus, node, nri, toolkit
from installer.decide.plan import Plan
from installer.decide.references import references
from installer.decide.reloading import knowing_texts_of, take_up
from installer.decide.rows import Record
from installer.decide.steps import Reload, Step, WriteConfig, inverse
from installer.decide.texts import Ask, texts_alone


def plan_undo(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps after which nothing of ours is left, whatever was done and by whom.

    While containers run on our runtimes the payload they were started by stays, or links to a low-level
    runtime in its place, and an engine keeps the handlers it needs for them; ``in_use`` names them.
    """
    engines = [
        attempted(id_of(row.name), partial(engine.undo, row, facts, options, ask))
        for row in facts.held.engines
    ]
    named = attempted("references", lambda: _named(facts, engines, options))
    first = (*engines, named, node.undo(facts, options))
    needed = [error for part in first for error in part.needed]
    stays = bool(facts.running or needed)
    made = directories.install(facts, engines)  # dockerd gives up what it has by way of another text
    parts = (
        made,
        *first,
        nri.undo(facts),
        cdi.undo(facts, stays=stays),
        device_nodes.undo(facts, stays=stays),
        toolkit.undo(facts, options, needed, engines),
        adopted.left_theirs(facts, options),
        directories.undo(facts, options, made.rows.directories, stays=stays),
    )
    return _undone(parts, facts, stays=stays)


def _named(facts: Facts, engines: Sequence[Part], options: Options) -> Part:
    """Return what else names the toolkit; where it does the engines are asked again, for what runs counts."""
    needed = tuple(references(facts, engines, options))
    kept = {row.name for part in engines for row in part.rows.engines}
    rows = (replace(row, config=None) for row in facts.held.engines if needed and row.name not in kept)
    return Part("references", rows=Record(engines=tuple(rows)), needed=needed)


def _undone(parts: tuple[Part, ...], facts: Facts, *, stays: bool) -> Plan:
    """Return the sum of the parts of an undo; None is held any more unless something ``stays``."""
    held = facts.held
    steps = [step for part in parts for step in part.steps]
    rows = {row.path: row for part in parts for row in part.in_progress}
    needed = [error.problem for part in parts for error in part.needed]
    left = f"our runtime runs {names_of(facts.running)}" if facts.running else next(iter(needed), "")
    known = tuple(knowing_texts_of(rows.values(), steps))
    return Plan(
        parts,
        replace(held, configs=known, directories=rows_of(parts).directories, finished=False)
        if steps
        else held,
        after_undo(
            held,
            replace(
                rows_of(parts), pid_file=held.pid_file, published=held.published, finished=True, left=left
            ),
        )
        if stays
        else None,
        {each.name: each for each in facts.engines},
        in_use=facts.running,
        seen=facts.digests,
    )


def plan_rollback(
    plan: Plan, done: tuple[Step, ...], held: Record, running: tuple[Container, ...] = ()
) -> Plan:
    """Return the steps that take ``done``, the last of which may be half done, back to ``held``.

    An engine whose reload was tried is reloaded again, and proven to serve what it served before, if it did.
    Where nothing was held before, ``running`` containers keep their engine and the payload as they are.
    """
    used = {container.engine for container in running} if held.toolkit is None else set()
    tried = {step.engine: step for step in done if isinstance(step, Reload)}
    done = (*(step for step in plan.earlier if step.engine in tried), *done)
    # A file that belongs to no engine goes back as any other step does.
    of_engines = [
        step for step in done if isinstance(step, WriteConfig | Reload) and step.engine in plan.engines
    ]
    steps: list[Step] = []
    for name in dict.fromkeys(step.engine for step in reversed(of_engines) if step.engine not in used):
        writes = [
            replace(step, before=step.after, after=step.before)
            for step in reversed(of_engines)
            if isinstance(step, WriteConfig) and step.engine == name
        ]
        served = plan.engines[name].serving is not None and not ENGINES[name].finds
        again = _again(plan.engines[name], tried[name]) if name in tried and served else None
        # What dockerd has by now depends on when it failed.
        steps += take_up(writes, again, None, plan.engines[name]) if again else [*writes]
    steps += [
        back
        for step in reversed(done)
        if not used and step not in of_engines and (back := inverse(step)) is not None
    ]
    rows = tuple(knowing_texts_of(plan.in_progress.configs, (*done, *steps)))
    in_progress = replace(plan.in_progress, configs=rows, finished=False)
    final = in_progress if used else gpus.withdrawn(held, done)
    part = Part("roll-back", tuple(steps), ("the install failed",) * len(steps))
    return Plan((part,), in_progress, final, plan.engines, in_use=running if used else (), seen=plan.seen)


def _again(engine: EngineFacts, tried: Reload) -> Reload:
    """Return the reload after which the engine serves, of the runtimes that were tried, those of before."""
    before = engine.serving.binaries if engine.serving else {}
    default = engine.serving.default if engine.serving else ""
    entries = (*tried.present, *tried.absent)
    present = [
        RuntimeEntry(entry.name, PurePosixPath(before[entry.name]), default=entry.name == default)
        for entry in entries
        if before.get(entry.name)
    ]
    kept = {(entry.name, entry.binary) for entry in present}
    absent = [
        RuntimeEntry(entry.name, entry.binary) for entry in entries if (entry.name, entry.binary) not in kept
    ]
    return Reload(tried.engine, tuple(present), tuple(absent))
