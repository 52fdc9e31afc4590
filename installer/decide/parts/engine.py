"""One engine: it serves our runtimes after an install, and nothing of ours after an undo."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from installer.decide import reasons, reloading, restarts
from installer.decide.choice import Choice, choose, defaults, others
from installer.decide.configs import tree_of
from installer.decide.data import replace
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry, leaves
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts, Facts
from installer.decide.kept import Attempt, Least, least, refuse_fatal, with_former
from installer.decide.layout import DEFAULT_INSTALL_DIR
from installer.decide.options import Options, RestartMode
from installer.decide.part import Part, id_of
from installer.decide.references import with_named
from installer.decide.reloading import take_up
from installer.decide.rows import ConfigRow, EngineRow, Record
from installer.decide.steps import FindRuntimes, Reload, Step, WriteConfig
from installer.decide.texts import Ask, digest_of, present


def choices(
    entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> tuple[tuple[Choice, ...], tuple[Part, ...]]:
    """Return the texts chosen for each engine, and a part that says why for each that there are none for."""
    chosen, refused = [], []
    for engine in facts.engines:
        try:
            chosen.append(choose(engine, entries, facts, options, ask))
        except InstallerError as error:
            refused.append(Part(id_of(engine.name), obstacles=(error,), refused=True))
    return tuple(chosen), tuple(refused)


def find_runtimes(choice: Choice) -> Part:
    """Return the look whether the engine finds our programs, ahead of the first config of any engine."""
    part = id_of(choice.engine.name)
    if not (choice.writes and (choice.reloads or choice.waits)):
        return Part(part)
    binaries = tuple(entry.binary for entry in choice.reload.present)
    return Part(part, (FindRuntimes(choice.engine.name, binaries),), ("its config is going to name them",))


def install(choice: Choice, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options) -> Part:
    """Return what makes one engine serve our runtimes, and changes nothing else of what it has in force."""
    engine, asked, decision = choice.engine, choice.reload.present, choice.decision
    held = next((row for row in facts.held.engines if row.name == engine.name), None)
    row = EngineRow(
        engine.name,
        engine.socket,
        engine.unit,
        tuple((one.name, one.binary) for one in asked),
        _state(engine, held),
        _not_in_force(choice, options),
        engine.config if decision.files and engine.hook is None else None,
        next((one.name for one in asked if one.default), ""),
        engine.version,
        restart_due=choice.waits,
        proven=digest_of({**present(engine, facts), **choice.texts}),
    )
    rows = tuple(reloading.rows_for(choice.changes, choice.steps))
    told = choice.after is not None and choice.after.rest_digest and choice.reloads
    return Part(
        id_of(engine.name),
        choice.steps,
        tuple(reasons.of_install(choice, facts.held)),
        Record((), None, (row,), tuple(with_named((each for each, _ in rows), facts, options.layout))),
        backups=tuple(original for _, original in rows if original is not None),
        notes=(
            *decision.notes,
            *(reloading.stale_runtimes(engine, choice.after, choice.names) if told else ()),
            *reloading.stale(engine, facts, entries),
            *_pending(choice, row),
        ),
        obstacles=(
            *_silent(choice, options),
            *_not_found_there(engine, options),
            *_not_restarted(choice, facts),
        ),
    )


def _not_in_force(choice: Choice, options: Options) -> str:
    """Return what the engine does not have in force yet, and when it will; "" for nothing."""
    engine = choice.engine
    if choice.waits or restarts.is_left(engine, choice.reload, options):
        return restarts.DUE if choice.waits else restarts.LEFT
    return reloading.pending(engine, options.extras, told=choice.decision.cdi)


def _pending(choice: Choice, row: EngineRow) -> Iterator[str]:
    """Yield what the engine will not have in force yet."""
    if choice.waits:
        yield f"{row.name}, pending: {restarts.not_idle(choice.engine, choice.engine.creating)}"
    elif row.pending:
        yield f"{row.name}, pending: {row.pending}"


def _not_restarted(choice: Choice, facts: Facts) -> Iterator[InstallerError]:
    """Yield why the engine may not be restarted, but for what stands against any install already."""
    steps = (*choice.steps, choice.reload) if choice.waits else choice.steps
    found = restarts.refused(choice.engine, steps, choice.after, facts)
    yield from (error for error in found if error not in facts.obstacles)


def _state(engine: EngineFacts, held: EngineRow | None) -> PurePosixPath | None:
    """Return where an engine says that its containers are, or said when it ran."""
    told = engine.serving.state if engine.serving else None
    return told or (held.state if held else None)


def _silent(choice: Choice, options: Options) -> Iterator[InstallerError]:
    """Yield why nobody could prove that the engine serves our runtimes."""
    engine = choice.engine
    unasked = options.restart_mode is RestartMode.NONE or engine.hook is not None
    if unasked or choice.heals or engine.serving is not None:
        return
    wrong = f"correct what the log of {engine.name} says"
    yield InstallerError(
        f"prove that {engine.title} serves our runtimes ({engine.silence})",
        remedy=Remedy(
            engine.remedy or (f"start {engine.title}" if engine.stopped else wrong),
            ", or configure it unproven with ",
            Option("restart-mode", "none"),
        ),
        code="engine-not-proven",
    )


def _not_found_there(engine: EngineFacts, options: Options) -> Iterator[InstallerError]:
    """Yield why an engine that looks for the toolkit by itself would not find what was asked for."""
    finds = ENGINES[engine.name].finds
    if finds and options.install_dir != DEFAULT_INSTALL_DIR:
        yield InstallerError(
            f"install into {options.install_dir} ({engine.title} looks below {DEFAULT_INSTALL_DIR} only)",
            remedy=Remedy("leave ", Option("install-dir"), " as it is"),
            code="engine-generates-config",
        )
    if finds and options.runtime_name != finds:
        yield InstallerError(
            f"name the runtime {options.runtime_name} ({engine.title} names it {finds} by itself)",
            remedy=Remedy("leave ", Option("runtime-name"), " as it is"),
            code="engine-generates-config",
        )
    if finds and options.set_as_default:
        yield InstallerError(
            f"make the runtime the default of {engine.title} (it writes its config itself)",
            remedy=f"start {engine.title} with --default-runtime {finds}",
            code="engine-generates-config",
        )


def low_level(words: Iterable[str], facts: Facts, options: Options) -> tuple[str, ...]:
    """Return which of ``words`` ours may wrap, paths before words; not ours, whatever its name."""
    words = [word for word in dict.fromkeys(words) if not facts.leads_into(word, options.layout)]
    return tuple(sorted(words, key=lambda word: not word.startswith("/"))) or ("runc", "crun")


def undo(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> Part:
    """Return what takes our runtimes away from an engine that then has all else as it has it now.

    Raises:
        InstallerError: no text that is less ours leaves the rest as it is.
    """
    row = with_former(row, facts)
    found = next((each for each in facts.engines if each.name == row.name), None)
    left = least(row, found, facts, options, ask)
    attempt = left.attempt
    kept = tuple(runtime for runtime in row.runtimes if runtime[0] in attempt.kept)
    reload = _reload(row, kept, attempt, found, left.after)
    # One that comes up neither way has nothing to reload, and its owner has to be told why.
    dead = left.after.broken if found is not None and found.crashing and left.after is not None else ""
    steps = _steps(reload, left, None if dead else found, facts, options.restart_mode)
    if found is not None and any(isinstance(step, Reload) for step in steps):
        refuse_fatal(found, left.now, left.after)
    edits = {config.path: config.edits for config in facts.held.configs}
    return Part(
        id_of(row.name),
        tuple(steps),
        tuple(reasons.of_undo(steps, found)),
        Record(
            engines=(replace(row, runtimes=kept, default=""),) if kept else (),
            configs=tuple(_held(attempt, row.name) if kept else _as_found(attempt, steps)),
        ),
        in_progress=tuple(replace(config, edits=edits[config.path]) for config in attempt.rows),
        backups=attempt.backups,
        notes=(*attempt.notes, *(() if kept else _spare(row, left)), *_told(row, found, left, dead)),
        obstacles=tuple(restarts.refused(found, steps, left.after, facts)),
        needed=tuple(left.needed.values()) if kept else (),
    )


def _spare(row: EngineRow, left: Least) -> Iterator[str]:
    """Yield why keys of ours stay, though no runtime does."""
    for group in sorted(left.attempt.kept):
        if group in left.needed:
            yield f"did not {left.needed[group].problem}"
        else:
            yield f"left {group} in the config of {row.title}: the rest of it needs that"


def _told(row: EngineRow, found: EngineFacts | None, left: Least, dead: str) -> Iterator[str]:
    """Yield what the owner of the engine has to know of it."""
    if dead:
        yield f"{row.title} does not start without our edits either: {dead}"
    if found is not None:
        yield from reloading.stale_runtimes(found, left.after, left.ours)


def _held(attempt: Attempt, engine: str) -> Iterator[ConfigRow]:
    """Yield the rows that are held on: copies of a root file are looked for each time."""
    yield from (row for row in attempt.rows if not ENGINES[engine].is_copy(row.path))


def _as_found(attempt: Attempt, steps: Iterable[Step]) -> Iterator[ConfigRow]:
    """Yield the rows of files with nothing of ours that named the toolkit before us, and may go on."""
    texts = {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    for row in attempt.rows:
        last = texts.get(row.path)
        if row.named:
            yield replace(row, ours=(last.digest,) if last is not None else row.ours, edits=())


def _steps(
    reload: Reload, least: Least, found: EngineFacts | None, facts: Facts, restart_mode: RestartMode
) -> list[Step]:
    """Return the steps for one engine; one that is stopped will read its file anyway.

    One whose restart was still due, and that serves nothing of ours, has never read them.
    """
    writes = least.attempt.writes
    # One that looks for the toolkit by itself will not find it at its next start; one whose files said
    # what we wanted before we came has nothing to read.
    unread = not writes or restart_mode is RestartMode.NONE
    needs_no_reload = unread or found is None or found.stopped
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    verified = ENGINES[reload.engine].reload is not ReloadMethod.HUP or facts.held.finished
    never_read = any(row.restart_due for row in facts.held.engines if row.name == reload.engine)
    told = found.serving if found is not None and (never_read or not found.outdated) else None
    if reload.present and not reload.demoted:
        # What others say of the same handlers looks alike before and after.
        verified = facts.held.finished and all(step.before == step.after for step in writes)
    wrote = any(step.before != step.after for step in writes) or not facts.held.finished
    already_unloaded = (
        verified
        and told is not None
        and (never_read or not wrote or _as_without_us(told, least.now, least.after))
        and reload.satisfied_by(told)
    )
    if needs_no_reload or already_unloaded:
        return [step for step in writes if step.before != step.after]
    # Whatever dockerd has by now: somebody may have told it more since we asked.
    return take_up(writes, reload, None, found)


def _as_without_us(told: Effect, now: Effect | None, after: Effect | None) -> bool:
    """Tell whether an engine has what its files come to without us, though they come to something else now.

    Where none of our runtimes is served any more it may still have the default that we gave it. Of all else
    it does not tell, so nothing else may change.
    """
    if now is None or after is None or after.broken:
        return True
    return told.default == after.default and (now.cdi, now.rest_digest) == (after.cdi, after.rest_digest)


def _reload(
    row: EngineRow,
    kept: tuple[tuple[str, PurePosixPath], ...],
    attempt: Attempt,
    found: EngineFacts | None,
    after: Effect | None,
) -> Reload:
    """Return the reload after which what the files say of ours is served, the rest not, all else as before.

    Files without us may name some, too: runtimes that were taken over from another installer.
    """
    names = frozenset(name for name, _ in row.runtimes)
    said = [leaf for write in attempt.writes for leaf in leaves(tree_of(write.after, write.path))]
    entries = [RuntimeEntry(*runtime) for runtime in row.runtimes]
    if after is not None and not after.broken:
        # A file may lie there that nobody reads, and files of others may name the same: NVIDIA's installer
        # leaves a drop-in of CRI-O's at its end.
        there = [e for e in entries if after.binaries.get(e.name) == str(e.binary)]
    else:
        there = [e for e in entries if any(e.name in key and value == str(e.binary) for key, value in said)]
    absent = tuple(e for e in entries if e not in there)
    neighbours = () if found is None else others(found, after, names - attempt.taken)
    if not kept:
        wanted = defaults(found, after, names) if found is not None and after is not None else frozenset()
        return Reload(row.name, tuple(there), absent, others=neighbours, defaults=wanted)
    default = {value for key, value in said if key[-1] == ENGINES[row.name].default_key}
    default |= {after.default} if after is not None and not after.broken else set()
    return Reload(row.name, tuple(there), absent, demoted=names - default, others=neighbours)
