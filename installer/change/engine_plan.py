"""One engine: it serves our runtimes after an install, and nothing of ours after an undo."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from installer.change.choice import Choice, choose, defaults, others
from installer.change.references import with_named
from installer.engines import ENGINES, reloading
from installer.engines.config_edits import (
    DEFAULT,
    group_of,
    notes_of,
    runtime_of,
    tree_of,
    undo_config,
    without_us,
)
from installer.engines.texts import Ask, Texts, digest_of, in_force, present
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import EffectiveConfig, find_disturbances
from installer.model.engine_spec import ReloadMethod, RuntimeEntry, is_ours, leaves
from installer.model.facts import EngineState, Facts
from installer.model.files import File
from installer.model.options import Options, RestartMode
from installer.model.paths import DEFAULT_INSTALL_DIR
from installer.model.record import ConfigRow, EngineRow, Record, Saved
from installer.model.steps import TRY_AGAIN, FindRuntimes, Part, Reload, Step, WriteConfig, id_of


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
    held = facts.held.engine(engine.name)
    row = EngineRow(
        engine.name,
        engine.socket,
        engine.unit,
        tuple((one.name, one.binary) for one in asked),
        (engine.serving and engine.serving.state) or (held.state if held else None),
        _explain_pending(choice, options),
        engine.config if decision.files and engine.hook is None else None,
        next((one.name for one in asked if one.default), ""),
        engine.version,
        restart_due=choice.waits,
        proven=digest_of({**present(engine, facts), **choice.texts}),
    )
    rows = tuple(reloading.rows_for(choice.changes, choice.steps))
    restarting = (*choice.steps, choice.reload) if choice.waits else choice.steps
    refused = reloading.refused(engine, restarting, choice.after, facts)
    told = choice.after is not None and choice.after.rest_digest and choice.reloads
    return Part(
        id_of(engine.name),
        choice.steps,
        tuple(reloading.reasons_of_install(choice.steps, choice.changes, choice.engine, facts.held)),
        Record((), None, (row,), tuple(with_named((each for each, _ in rows), facts, options.layout))),
        backups=tuple(original for _, original in rows if original is not None),
        notes=(
            *decision.notes,
            *(reloading.stale_runtimes(engine, choice.after, choice.names) if told else ()),
            *reloading.stale(engine, facts, entries),
            *_note_pending(choice, row),
        ),
        obstacles=(
            *_refuse_silent(choice, options),
            *_refuse_options(engine, options),
            # What stands against any install already is not told again.
            *(error for error in refused if error not in facts.obstacles),
        ),
    )


def _explain_pending(choice: Choice, options: Options) -> str:
    """Return what the engine does not have in force yet, and when it will; "" for nothing."""
    engine = choice.engine
    if choice.waits or reloading.is_left(engine, choice.reload, options):
        return reloading.DUE if choice.waits else reloading.LEFT
    return reloading.pending(engine, options.extras, told=choice.decision.cdi)


def _note_pending(choice: Choice, row: EngineRow) -> Iterator[str]:
    if choice.waits:
        yield f"{row.name}, pending: {reloading.not_idle(choice.engine, choice.engine.creating)}"
    elif row.pending:
        yield f"{row.name}, pending: {row.pending}"


def _refuse_silent(choice: Choice, options: Options) -> Iterator[InstallerError]:
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


def _refuse_options(engine: EngineState, options: Options) -> Iterator[InstallerError]:
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


class _Known(Struct, frozen=True):
    """What is known of an engine that is to give our runtimes up, and whom to ask what texts come to."""

    row: EngineRow
    engine: EngineState
    facts: Facts
    options: Options
    ask: Ask


class WayBack(Struct, frozen=True):
    """The texts of one engine without us, or without our default alone, if it is to be ``demoted``.

    ``rows`` are those of its configs while they are written, ``held`` what is held on after that if our
    runtimes stay. ``now`` and ``after`` are what the texts come to, None where nobody is asked; ``reload`` is
    None where the engine has nothing to read.
    """

    rows: tuple[ConfigRow, ...]
    held: tuple[ConfigRow, ...]
    writes: tuple[WriteConfig, ...] = ()
    backups: tuple[File, ...] = ()
    notes: tuple[str, ...] = ()
    demoted: bool = False
    now: EffectiveConfig | None = None
    after: EffectiveConfig | None = None
    reload: Reload | None = None

    @property
    def changes(self) -> bool:
        """Whether a text changes."""
        return any(write.before != write.after for write in self.writes)


def undo(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> Part:
    """Return what takes our runtimes away from an engine that then has all else as it has it now.

    If its program refuses that text, or containers need our runtimes, all of ours stay, and are not the
    default any more; if it refuses that, too, nothing is written.

    Raises:
        InstallerError: somebody else wrote since, and a text is not valid any more.
    """
    row, spec = _add_earlier(row, facts), ENGINES[row.name]
    engine = next(each for each in facts.engines if each.name == row.name)
    known = _Known(row, engine, facts, options, _ask_of_files(row, ask))
    used = any(each.engine == row.name for each in facts.running)
    stays = used and (not options.in_use.forces or spec.needs_handler(engine.version))
    way, needed = _choose_way_back(known, stays=stays)
    steps: tuple[Step, ...] = tuple(each for each in way.writes if each.before != each.after)
    if way.reload is not None:  # whatever dockerd has by now: somebody may have told it more since we asked
        steps = tuple(reloading.take_up(way.writes, way.reload, None, engine))
    held = Record(configs=tuple(_keep_named(way, steps)))
    if used or needed:
        held = Record(
            engines=(replace(row, default="" if way.demoted else row.default),),
            # Copies of a root file are looked for each time.
            configs=tuple(each for each in way.held if not spec.is_copy(each.path)),
        )
    return Part(
        id_of(row.name),
        steps,
        tuple(reloading.reasons_of_undo(steps, engine)),
        held,
        in_progress=way.rows,
        backups=way.backups,
        notes=(*way.notes, *_find_notes(known, way)),
        obstacles=tuple(reloading.refused(engine, steps, way.after, facts)),
        needed=tuple(needed[:1]),
    )


def _choose_way_back(known: _Known, *, stays: bool) -> tuple[WayBack, list[InstallerError]]:
    """Return the texts without us, or where ours ``stays`` without our default; and why not those before."""
    needed: list[InstallerError] = []
    for demoted in (True,) if stays else (False, True):
        way = _way_back(known, demoted=demoted)
        refusal = _find_refusal(known, way)
        if refusal is None:
            return way, needed
        needed.append(refusal)
    rows = tuple(each for each in known.facts.held.configs if each.engine == known.row.name)
    return WayBack(rows, rows), needed


def _add_earlier(row: EngineRow, facts: Facts) -> EngineRow:
    """Return the row with the runtimes of an earlier run that a later one had not yet taken away."""
    toolkits = {str(binary.parent) for _, binary in row.runtimes}
    earlier: dict[str, PurePosixPath] = {}
    for edit in (edit for config in facts.held.configs if config.engine == row.name for edit in config.edits):
        binary = PurePosixPath((edit.after or "").strip("\"'"))
        if str(binary.parent) in toolkits and (name := runtime_of(edit.key)):
            earlier[name] = binary
    return replace(row, runtimes=tuple((earlier | dict(row.runtimes)).items()))


def _ask_of_files(row: EngineRow, ask: Ask) -> Ask:
    """Return how an engine is asked that tells nothing of runtimes of our names: its files do.

    CRI-O's function fills in from what is served where the files say nothing.
    """

    def asked(engine: EngineState, texts: Texts) -> EffectiveConfig:
        if engine.serving is None:
            return ask(engine, texts)
        names = dict(row.runtimes)
        told = {name: one for name, one in engine.serving.handlers.items() if name not in names}
        return ask(replace(engine, serving=replace(engine.serving, handlers=told)), texts)

    return asked


def _way_back(known: _Known, *, demoted: bool) -> WayBack:
    """Return the configs of one engine without any of our keys, or without those of the default alone."""
    row, engine, facts = known.row, known.engine, known.facts
    rows: list[ConfigRow] = []
    held: list[ConfigRow] = []
    writes: list[WriteConfig] = []
    backups: list[File] = []
    notes: list[str] = []
    for config in (one for one in facts.held.configs if one.engine == row.name):
        path, now = config.path, facts.contents[config.path]
        original, (after, undone) = without_us(path, facts), undo_config(path, facts, demoted=demoted)
        progress = replace(config, original=Saved.of(original))
        rows.append(progress)
        ours = (after.digest,) if after else config.ours
        held.append(replace(progress, ours=ours) if after != now else config)
        writes.append(WriteConfig(row.name, path, now, after, facts.relinked.get(path, "")))
        backups += [original] if original is not None else []
        notes += notes_of(path, undone)
    way = WayBack(tuple(rows), tuple(held), tuple(writes), tuple(backups), tuple(notes), demoted)
    if engine.hook is None and not ENGINES[row.name].finds:
        texts = present(engine, facts)
        written = {write.path: write.after for write in writes}
        way = replace(way, now=known.ask(engine, texts), after=known.ask(engine, {**texts, **written}))
    reload = _plan_reload(known, way)
    return replace(way, reload=reload) if _is_due(known, way, reload) else way


def _explain_death(known: _Known, way: WayBack) -> str:
    """Return why an engine does not come up with any text; "" where it does, or where that is not known."""
    return way.after.broken if known.engine.crashing and way.after is not None else ""


def _list_ours(row: EngineRow, way: WayBack) -> frozenset[str]:
    """Return the names of our runtimes but for those that somebody has made to start something else."""
    started = way.now.binaries if way.now else {}
    # One whose program somebody has taken out of the text starts nobody's.
    return frozenset(name for name, _ in row.runtimes if not started.get(name) or is_ours(started[name]))


def _find_refusal(known: _Known, way: WayBack) -> InstallerError | None:
    """Return why an engine cannot do with the texts of an undo; None where it can."""
    row, engine, facts = known.row, known.engine, known.facts
    now, after, ours = way.now, way.after, _list_ours(row, way)
    if needed := _refuse_default(engine, way, facts, ours):
        return needed
    if now is None or after is None:
        return None
    if now.fatal:  # it is somebody else's trouble, and would not be more with our keys
        # One whose CRI is switched off, and down by now, may be restarted like that.
        dies = (
            after.fatal and (engine.serving is not None or not after.rest_digest) and way.reload is not None
        )
        reason = f"it would not come up again with the config it has: {after.fatal}"
        return _refuse_texts(row, way, reason) if dies else None
    edits = [edit for each in way.rows for edit in each.edits]
    texts = {digest for each in way.rows for digest in each.ours}
    edited = any(write.before is not None and write.before.digest not in texts for write in way.writes)
    # Nobody defined it before us either: what stood there comes back to the byte.
    healed = (
        bool(after.undefined) and not edited and after.undefined in {runtime_of(each.key) for each in edits}
    )
    if healed or not way.changes:
        return None
    given = any(group_of(edit.key, row.name) == DEFAULT for edit in edits)
    for before in (now, in_force(engine, facts, present(engine, facts), known.ask)):
        # What our own file had taken from the others comes back, and the default that we gave goes.
        was = replace(before, default=after.default) if given else before
        wrong = [*find_disturbances(was, after, ours)]
        if not wrong:
            return None
    return _refuse_texts(row, way, "; ".join(wrong))


def _refuse_default(
    engine: EngineState, way: WayBack, facts: Facts, ours: Collection[str]
) -> InstallerError | None:
    """Return why a runtime of ours stays that is to be the default of an engine; None where none is."""
    flag = engine.next_flags.default
    if not way.demoted and flag in ours and flag != engine.flags.default:
        how = f"its unit starts it with --default-runtime {flag}"
        return _refuse_removal(engine, flag, how, "take that out of the unit")
    name = way.after.undefined if way.after is not None and way.now is not None and not way.now.fatal else ""
    if name not in ours:
        return None
    if name == engine.flags.default:
        how = f"it was started with --default-runtime {name}"
        return _refuse_removal(engine, name, how, f"start {engine.title} without that")
    how = f"it was made the default in {_list_files_naming(engine, way, facts, name)}"
    return _refuse_removal(engine, name, how, "name another default runtime there")


def _refuse_texts(row: EngineRow, way: WayBack, reason: str) -> InstallerError:
    paths = ", ".join(str(write.path) for write in way.writes)
    return InstallerError(
        f"undo our edits of {paths} and leave all else of {row.title} as it is ({reason})",
        remedy=f"correct that config, then {TRY_AGAIN}",
        code="config-disturbs-others",
    )


def _refuse_removal(engine: EngineState, name: str, how: str, remedy: str) -> InstallerError:
    return InstallerError(
        f"take the runtime {name} away from {engine.title} ({how})",
        remedy=f"{remedy}, then {TRY_AGAIN}",
        code="runtime-needed",
    )


def _list_files_naming(engine: EngineState, way: WayBack, facts: Facts, default: str) -> str:
    """Return the files that name the default runtime; a value that is put together stands in none."""
    texts = {**present(engine, facts), **{write.path: write.after for write in way.writes}}
    found = {path: leaves(tree_of(file, path)) for path, file in texts.items()}
    said = (ENGINES[engine.name].default_key, default)
    return ", ".join(
        str(path) for path, each in found.items() if said in ((key[-1], value) for key, value in each)
    )


def _find_notes(known: _Known, way: WayBack) -> Iterator[str]:
    if dead := _explain_death(known, way):
        yield f"{known.row.title} does not start without our edits either: {dead}"
    yield from reloading.stale_runtimes(known.engine, way.after, _list_ours(known.row, way))


def _keep_named(way: WayBack, steps: Iterable[Step]) -> Iterator[ConfigRow]:
    """Yield the rows of files with nothing of ours that named the toolkit before us, and may go on."""
    texts = {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    for row in way.rows:
        last = texts.get(row.path)
        if row.named:
            yield replace(row, ours=(last.digest,) if last is not None else row.ours, edits=())


def _is_due(known: _Known, way: WayBack, reload: Reload) -> bool:
    """Tell whether one engine has to read its files; one that is stopped will read them anyway."""
    engine, finished = known.engine, known.facts.held.finished
    # One that looks for the toolkit by itself will not find it at its next start; one whose files said
    # what we wanted before we came has nothing to read.
    if not way.writes or known.options.restart_mode is RestartMode.NONE:
        return False
    # One that comes up neither way has nothing to reload, and its owner has to be told why.
    if engine.stopped or _explain_death(known, way):
        return False
    never_read = known.row.restart_due  # and it tells of no config of ours
    if engine.serving is None or (engine.outdated and not never_read):
        return True
    if reload.present and not reload.demoted:
        # What others say of the same handlers looks alike before and after.
        verified = finished and not way.changes
    else:
        # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
        verified = finished or ENGINES[reload.engine].reload is not ReloadMethod.HUP
    unwritten = finished and not way.changes
    as_wanted = never_read or unwritten or _as_without_us(engine.serving, way)
    return not (verified and as_wanted and reload.satisfied_by(engine.serving))


def _as_without_us(serving: EffectiveConfig, way: WayBack) -> bool:
    """Tell whether an engine has what its files come to without us, though they come to something else now.

    Where none of our runtimes is served any more it may still have the default that we gave it. Of all else
    it does not tell, so nothing else may change.
    """
    now, after = way.now, way.after
    if now is None or after is None or after.broken:
        return True
    return serving.default == after.default and (now.cdi, now.rest_digest) == (after.cdi, after.rest_digest)


def _plan_reload(known: _Known, way: WayBack) -> Reload:
    """Return the reload after which what the files say of ours is served, the rest not, all else as before.

    Files without us may name some, too: runtimes that were taken over from another installer.
    """
    row, engine = known.row, known.engine
    after = way.after if way.after is not None and not way.after.broken else None
    binaries = after.binaries if after is not None else {}
    entries = [RuntimeEntry(*runtime) for runtime in row.runtimes]
    present = tuple(each for each in entries if binaries.get(each.name) == str(each.binary))
    absent = tuple(each for each in entries if each not in present)
    neighbours = others(engine, way.after, _list_ours(row, way))
    if way.demoted:
        unwanted = {each.name for each in entries} - {after.default} if after is not None else set()
        return Reload(row.name, present, absent, demoted=frozenset(unwanted), others=neighbours)
    wanted = defaults(engine, after, dict(row.runtimes)) if after is not None else frozenset()
    return Reload(row.name, present, absent, others=neighbours, defaults=wanted)
