"""The steps by which an engine takes up its new configs, from what it has in force now."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from installer.decide.configs import ConfigChange, syntax_of, text_of, without_us
from installer.decide.data import replace
from installer.decide.effect import NAMELESS, Effect, Flags
from installer.decide.engines import ENGINES, docker
from installer.decide.engines.containerd_effect import CDI
from installer.decide.engines.docker_reload import effect, explicit, forgotten, route, told_otherwise
from installer.decide.engines.model import Extras, RuntimeEntry
from installer.decide.engines.row import ReloadMethod
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File
from installer.decide.rows import ConfigRow, Record, Saved
from installer.decide.steps import Reload, Step, WriteConfig


def take_up(
    writes: Sequence[WriteConfig], reload: Reload, in_force: Effect | None, engine: EngineFacts | None
) -> list[Step]:
    """Return the writes and the reload of one engine; ``in_force`` is None where nobody knows what it has.

    One that is restarted has what its files say. One that is signalled keeps what its files do not say any
    more, and may die of a file that a start would take: it is led there by way of another text.
    """
    if ENGINES[reload.engine].reload is not ReloadMethod.HUP:
        return [*(step for step in writes if step.before != step.after), reload]
    last = {step.path: step for step in writes}
    steps: list[Step] = []
    for step in writes:
        if step is not last[step.path]:
            steps.append(step)
            continue
        version, flags = (engine.version, engine.flags) if engine else (None, Flags())
        first, *rest = route(in_force, step.after, step.path, version, flags)
        passing = explicit(step.after, step.path, flags)[1] if rest else ()
        texts = [step.before, first, *rest]
        pairs = [
            replace(step, before=before, after=after, passing=passing) for before, after in pairwise(texts)
        ]
        steps += [*(pair for pair in pairs[:1] if pair.before != pair.after), reload, *pairs[1:]]
    return steps


def writes_for(
    engine: EngineFacts, changes: Iterable[ConfigChange], contents: Mapping[PurePosixPath, File | None]
) -> tuple[WriteConfig, ...]:
    """Return what an engine's configs take; one that is signalled may need a text in between."""
    found = tuple(change.step for change in changes if change.step is not None)
    if found or ENGINES[engine.name].reload is not ReloadMethod.HUP:
        return found
    now = contents[engine.config]
    return (WriteConfig(engine.name, engine.config, now, now),)


def rows_for(
    changes: Iterable[ConfigChange], steps: Iterable[Step]
) -> Iterator[tuple[ConfigRow, File | None]]:
    """Yield the row of each config that is ours or written to, with the file as it would be without us."""
    rows = {change.row.path: change for change in changes if change.row is not None}
    for change in rows.values():
        if change.row is not None:
            yield change.row, change.original if change.saved else None
    for step in steps:
        if isinstance(step, WriteConfig) and step.path not in rows and step.before is not None:
            # Nothing of ours stands there, but for the time of a reload.
            syntax = syntax_of(step.path, text_of(step.before, step.path), step.engine)
            row = ConfigRow(step.engine, step.path, syntax, Saved.of(step.before), (step.before.digest,), ())
            rows[step.path] = ConfigChange(None, row, step.before)
            yield row, step.before


def unwanted_defaults(
    engine: EngineFacts, entries: Iterable[RuntimeEntry], writes: Iterable[WriteConfig]
) -> frozenset[str]:
    """Return the names of our runtimes that an engine may not have as its default any more.

    dockerd keeps a default that its file does not name any more, and tells so; an engine that is restarted
    has what its files say.
    """
    if ENGINES[engine.name].reload is not ReloadMethod.HUP:
        return frozenset()
    named = {effect(step.after, step.path, engine.version, engine.flags).default for step in writes}
    return frozenset(entry.name for entry in entries if entry.name not in named)


def stale(engine: EngineFacts, facts: Facts, entries: Iterable[RuntimeEntry]) -> Iterator[str]:
    """Yield what an engine has in force, not by us, that its config does not say any more.

    dockerd keeps what its file does not name any more, until a reload with other words, or its next start.
    """
    if ENGINES[engine.name].reload is not ReloadMethod.HUP or engine.serving is None:
        return
    held = (row for row in facts.held.engines if row.name == engine.name)
    ours = {entry.name for entry in entries} | {name for row in held for name, _ in row.runtimes}
    default = engine.serving.default
    text = without_us(engine.config, facts).file
    wanted = effect(text, engine.config, engine.version, engine.flags)
    if not wanted.broken and default != wanted.default and not {default, wanted.default} & ours:
        yield (
            f"{engine.title} has the default runtime {default} in force and {engine.config} says "
            f"{wanted.default}: a reload brings into force what the file says"
        )
    if names_gone := forgotten(engine.serving, engine.version):
        yield (
            f"{engine.title} serves {' and '.join(names_gone)}, which this release forgets in each reload "
            "until its next start"
        )
    yield from stale_runtimes(engine, wanted, ours)


def stale_runtimes(engine: EngineFacts, wanted: Effect | None, ours: Collection[str]) -> Iterator[str]:
    """Yield which runtimes of others an engine serves otherwise than its files would have it: ``wanted``.

    Its next start, or a reload of ours, brings into force what the files say. Nothing is said where only the
    texts tell what that is: an engine serves more than its texts.
    """
    by_signal = ENGINES[engine.name].reload is ReloadMethod.HUP
    if engine.serving is None or wanted is None or wanted.broken or not (by_signal or wanted.rest_digest):
        return
    found = told_otherwise(engine.serving, wanted) if by_signal else _not_shown(engine.serving, wanted)
    files, when = (engine.config, "reload or start") if by_signal else ("its configs", "start")
    for name, lacks in found:
        if name in ours or name == NAMELESS:
            continue
        how = "" if lacks else " as it is"
        yield (
            f"{engine.title} serves the runtime {name}, which is not defined{how} in {files}: its next "
            f"{when} {'ends' if lacks else 'changes'} that"
        )


def _not_shown(serving: Effect, wanted: Effect) -> Iterator[tuple[str, bool]]:
    for name, served in sorted(serving.handlers.items()):
        defined = wanted.handlers.get(name)
        # Where files say nothing the engine fills in: 1.7 tells of a sandboxMode that its dump leaves empty.
        said = (
            {key: value for key, value in defined.table.items() if value or value is False} if defined else {}
        )
        if defined is None or not served.shows(replace(defined, table=said)):
            yield name, defined is None


def pending(engine: EngineFacts, extras: Extras, *, told: bool) -> str:
    """Return what an engine will not have in force after its reload, and when it will; "" for nothing.

    ``told`` is that its config asks for CDI, which a restart brings into force.
    """
    if told and engine.serving is not None and engine.serving.cdi is None:
        return f"{CDI} in {engine.config} has no effect, for this {engine.title} has no CDI"
    if ENGINES[engine.name].reload is not ReloadMethod.HUP:
        return ""
    return docker.pending(engine.config, extras, engine.serving)


def in_progress(held: Record, final: Record, steps: Sequence[Step]) -> Record:
    """Return the rows for the time of the steps: a file may hold our new text, or still the one before it.

    So both are known, and the edits that undo either, for somebody may write to it before we end.
    """
    if final == held and not any(isinstance(step, WriteConfig) for step in steps):
        return held
    configs = []
    for row in final.configs:
        before = held.config(row.path)
        texts = dict.fromkeys((*row.ours, *(before.ours if before else ())))
        edits = dict.fromkeys((*(before.edits if before else ()), *row.edits))
        configs.append(replace(row, ours=tuple(texts), edits=tuple(edits)))
    going = [row for row in held.configs if final.config(row.path) is None]
    known = knowing_texts_of((*configs, *going), steps)
    due = {row.name for row in held.engines if row.restart_due}
    engines = tuple(replace(row, restart_due=row.restart_due or row.name in due) for row in final.engines)
    return replace(final, engines=engines, configs=tuple(known), finished=False, failed=held.failed)


def knowing_texts_of(rows: Iterable[ConfigRow], steps: Collection[Step]) -> Iterator[ConfigRow]:
    """Yield the rows, each knowing every text of ours that a step may leave there, and how to undo it."""
    for row in rows:
        texts = [step for step in steps if isinstance(step, WriteConfig) and step.path == row.path]
        files = [file for step in texts for file in (step.before, step.after) if file is not None]
        original = row.original.digest if row.original else ""
        ours = dict.fromkeys((*row.ours, *(file.digest for file in files if file.digest != original)))
        edits = dict.fromkeys((*row.edits, *(edit for step in texts for edit in step.passing)))
        yield replace(row, ours=tuple(ours), edits=tuple(edits))
