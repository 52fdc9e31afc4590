"""One engine: it serves our runtimes after an install, and nothing of ours after an undo."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from installer.change.gate import Choice, TakesUp, expect_defaults, expect_others
from installer.change.references import is_removed, remember_named
from installer.config_text import leaves
from installer.engines import reloading
from installer.engines.config_edits import (
    DEFAULT,
    Ask,
    ask_in_force,
    digest_of,
    group_of,
    is_hook,
    notes_of,
    read_present,
    runtime_of,
    tree_of,
    undo_config,
    without_us,
)
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine_spec import (
    EffectiveConfig,
    ReloadMethod,
    RuntimeEntry,
    find_disturbances,
    is_ours,
)
from installer.model.facts import ConfigRow, EngineRow, EngineState, Facts, Record, Saved
from installer.model.files import DEFAULT_INSTALL_DIR
from installer.model.options import InUse, Options, RestartMode
from installer.model.steps import TRY_AGAIN, FindRuntimes, Part, Reload, Step, WriteConfig, name_part


def find_runtimes(choice: Choice) -> Part:
    """Return the check that the engine finds our programs, ahead of the first config of any engine."""
    engine = choice.engine
    if not choice.way.writes or choice.takes_up not in {TakesUp.NOW, TakesUp.LATER}:
        return Part(name_part(engine.name))
    step = FindRuntimes(engine.spec, tuple(entry.binary for entry in choice.reload.present))
    return Part(name_part(engine.name), ((step, "its config will name them"),))


def install(
    choice: Choice, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> Part:
    """Return what makes one engine serve our runtimes, and changes nothing else of what it has in force."""
    engine, asked, decision = choice.engine, choice.reload.present, choice.way.decision
    held, texts = facts.held.engine(engine.name), read_present(engine, facts)
    # Of the texts that are proven: those that are found, only if the engine takes them.
    proven, known = digest_of({**texts, **choice.way.texts}), held.proven if held else ""
    if proven != known and not choice.way.writes and ask(engine, texts).fatal:
        proven = known
    row = EngineRow(
        engine.name,
        engine.socket,
        engine.unit,
        {one.name: one.binary for one in asked},
        engine.served.state or (held.state if held else None),
        _explain_pending(choice, options),
        engine.config if decision.files and engine.hook is None else None,
        next((one.name for one in asked if one.default), ""),
        engine.version,
        restart_due=choice.pending is not None,
        proven=proven,
    )
    rows = tuple(reloading.list_rows(choice.way.changes, choice.steps))
    restarting = (*choice.steps, choice.reload) if choice.pending else choice.steps
    ours = {entry.name for entry in (*asked, *choice.reload.absent)}
    refused = reloading.explain_refusals(engine, restarting, choice.after, facts, ours)
    reloads = any(isinstance(step, Reload) for step in restarting)
    is_known = choice.after is not None and choice.after.rest_digest and choice.takes_up is TakesUp.NOW
    pending = choice.pending or row.pending
    return Part(
        name_part(engine.name),
        reloading.explain_install(choice.steps, choice.way.changes, choice.engine, facts.held),
        Record((), None, (row,), tuple(remember_named((each for each, _ in rows), facts, options.layout))),
        backups=tuple(original for _, original in rows if original is not None),
        notes=(
            *decision.notes,
            *(reloading.explain_stale_runtimes(engine, choice.after, ours) if is_known else ()),
            *reloading.explain_stale_state(engine, facts, entries),
            *reloading.explain_edited_inputs(engine, restarting),
            *(reloading.explain_changes(engine, choice.after, facts, ours) if reloads else ()),
            *([f"{row.name}, pending: {pending}"] if pending else []),
        ),
        obstacles=(
            *_refuse_silent(choice),
            *_refuse_options(engine, options),
            # What stands against any install stands in the plan once.
            *(error for error in refused if error not in facts.obstacles),
        ),
    )


def _explain_pending(choice: Choice, options: Options) -> str:
    """Return what the engine does not have in force yet, and when it will; "" for nothing."""
    engine = choice.engine
    if choice.pending:
        return reloading.DUE
    left = options.restart_mode is RestartMode.NONE and engine.hook is None  # its owner restarts it
    if left and engine.serving is not None and not choice.reload.is_served_by(engine):
        return reloading.LEFT
    return reloading.explain_pending(engine, options.extras, asks_cdi=choice.way.decision.cdi)


def _refuse_silent(choice: Choice) -> Iterator[InstallerError]:
    """Yield why the engine could not be asked whether it serves our runtimes."""
    engine = choice.engine
    if choice.takes_up is TakesUp.LEFT or choice.heals or engine.serving is not None:
        return
    wrong = f"correct what the log of {engine.name} says"
    elsewhere = (", name what runs here with ", Option("runtime"), " or its socket with ", Option("socket"))
    problem = f"verify that {engine.title} serves our runtimes ({engine.silence})"
    remedy = Remedy(
        engine.remedy or (f"start {engine.title}" if engine.stopped else wrong),
        *(elsewhere if engine.stopped else ()),
        ", or configure it unverified with ",
        Option("restart-mode", "none"),
    )
    yield InstallerError(problem, remedy=remedy, code="engine-not-proven")


def _refuse_options(engine: EngineState, options: Options) -> Iterator[InstallerError]:
    """Yield why an engine that looks for the toolkit by itself would not find what was asked for."""
    finds, asked = engine.spec.finds, (options.install_dir, options.runtime_name, options.set_as_default)
    if finds and asked != (DEFAULT_INSTALL_DIR, finds, False):
        problem = f"configure {engine.title} (it looks for {finds} below {DEFAULT_INSTALL_DIR} by itself)"
        given = (Option("install-dir"), ", ", Option("runtime-name"), " and ", Option("set-as-default"))
        remedy = Remedy("leave ", *given, f" as they are; a default is given by --default-runtime {finds}")
        yield InstallerError(problem, remedy=remedy, code="engine-generates-config")


class _Undo(Struct, frozen=True):
    """An engine that is to give our runtimes up."""

    row: EngineRow
    engine: EngineState
    facts: Facts
    options: Options
    ask: Ask
    configs: tuple[ConfigRow, ...]
    asked: EngineState  # without what it serves by our names: CRI-O's texts are filled in from what it serves


class WayBack(Struct, frozen=True):
    """The texts of one engine without us, or without our default alone, if it is to be ``demoted``."""

    rows: tuple[ConfigRow, ...]  # of its configs while they are written
    held: tuple[ConfigRow, ...]  # after that, if our runtimes stay
    writes: tuple[WriteConfig, ...] = ()
    notes: tuple[str, ...] = ()
    demoted: bool = False
    now: EffectiveConfig | None = None  # what the texts come to; None where the engine is not asked
    after: EffectiveConfig | None = None
    dead: str = ""  # why the engine does not come up with any text, as far as that is known
    reload: Reload | None = None  # None where the engine has nothing to read

    @property
    def changes(self) -> tuple[WriteConfig, ...]:
        """The texts that change."""
        return tuple(write for write in self.writes if write.before != write.after)


def undo(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> Part:
    """Return what takes our runtimes away from an engine that then has all else as it has it now.

    If its program refuses that text, or containers need our runtimes, all of ours stay, and are not the
    default any more; if it refuses that, too, nothing is written. Raise where a text is not valid any more.
    """
    row = _add_earlier(row, facts)
    engine = next(each for each in facts.engines if each.name == row.name)
    configs, asked = tuple(each for each in facts.held.configs if each.engine == row.name), engine
    if engine.serving is not None:
        others = {name: one for name, one in engine.serving.handlers.items() if name not in row.runtimes}
        asked = replace(engine, serving=replace(engine.serving, handlers=others))
    undoing = _Undo(row, engine, facts, options, ask, configs, asked)
    used = any(each.engine == row.name for each in facts.containers.running)
    stays = used and (options.in_use is not InUse.FORCE or engine.spec.needs_handler(engine.version))
    way, needed = _choose_way_back(undoing, stays=stays)
    left = _refuse_reload(undoing, way)
    if left is not None:
        way = _without_reload(undoing, way)
    else:
        left = _find_still_served(undoing, way)
    steps: Sequence[Step] = way.changes
    if way.reload is not None:  # whatever dockerd has: it may have read more since we asked
        steps = reloading.take_up(way.writes, way.reload, None, engine)
    return Part(
        name_part(row.name),
        reloading.explain_undo(steps, engine),
        _make_rows(undoing, way, steps, stays=used or bool(needed), left=left),
        in_progress=way.rows,
        backups=tuple(file for each in way.writes if (file := without_us(each.path, facts)) is not None),
        notes=(
            *way.notes,
            *([f"{engine.title} does not start without our edits either: {way.dead}"] if way.dead else []),
            *reloading.explain_stale_runtimes(engine, way.after, _list_ours(row, way)),
            *(
                reloading.explain_changes(engine, way.after, facts, _list_ours(row, way))
                if way.reload is not None
                else ()
            ),
        ),
        needed=(*needed[:1], *([left] if left is not None else [])),
    )


def _make_rows(
    undoing: _Undo, way: WayBack, steps: Sequence[Step], *, stays: bool, left: InstallerError | None
) -> Record:
    """Return what is held of an engine after its undo; ``left`` is why it may still start our programs."""
    row, engine = undoing.row, undoing.engine
    pending = reloading.UNREAD if left is not None else ""
    if stays:
        kept = replace(row, default="" if way.demoted else row.default, pending=pending)
        # Copies of a root file are looked for each time.
        configs = (each for each in way.held if not engine.spec.is_copy(each.path))
        return Record(engines=(kept,), configs=tuple(configs))
    if left is not None:  # the next undo finds nothing more to write, and goes on from there
        configs = (each for each in undoing.configs if not engine.spec.is_copy(each.path))
        return Record(engines=(replace(row, pending=pending),), configs=tuple(configs))
    # The rows of files with nothing of ours that named the toolkit before us, and may go on.
    texts = {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    named = []
    for config in (each for each in way.rows if each.named):
        last = texts.get(config.path)
        named.append(replace(config, ours=(last.digest,) if last is not None else config.ours, edits=()))
    return Record(configs=tuple(named))


def _refuse_reload(undoing: _Undo, way: WayBack) -> InstallerError | None:
    """Return why an engine may not be asked to read the texts of an undo; None where it may, or need not."""
    engine = undoing.engine
    if way.reload is None:
        return None
    ours = _list_ours(undoing.row, way)
    refused = next(reloading.explain_refusals(engine, [way.reload], way.after, undoing.facts, ours), None)
    if refused is None and engine.serving is None and engine.spec.reload is ReloadMethod.HUP:
        # Whether a signal was obeyed it would not tell.
        problem = f"verify that {engine.title} no longer serves our runtimes ({engine.silence})"
        remedy = f"make it answer, then {TRY_AGAIN}"
        refused = InstallerError(problem, remedy=remedy, code="engine-not-proven")
    if refused is None:
        return None
    if engine.spec.reload is ReloadMethod.ITSELF:
        return refused
    written = ", ".join(str(write.path) for write in way.writes)
    state = "names our default no more" if way.demoted else "is without us"
    remedy = f"{refused.remedy}; {written} {state}, and the toolkit stays until {engine.title} has read that"
    return InstallerError(refused.problem, remedy=remedy, code=refused.code)


def _without_reload(undoing: _Undo, way: WayBack) -> WayBack:
    """Return the texts of an undo for an engine that may not be asked to read them."""
    if undoing.engine.spec.reload is ReloadMethod.ITSELF:  # a write alone makes it restart
        return WayBack(undoing.configs, undoing.configs, demoted=way.demoted)
    return replace(way, reload=None)


def _find_still_served(undoing: _Undo, way: WayBack) -> InstallerError | None:
    """Return what an engine that does not read the texts of an undo now goes on to start of ours."""
    row, engine, facts = undoing.row, undoing.engine, undoing.facts
    if way.reload is not None or engine.spec.finds:
        return None
    if engine.stopped or engine.crashing or engine.failed or engine.disabled:
        return None
    # Where the engine takes no text nothing changes, and CRI-O watches its hooks.
    if undoing.configs and (not way.writes or all(is_hook(each) for each in undoing.configs)):
        return None
    removed = _plan_reload(undoing, way).absent
    removed = tuple(each for each in removed if is_removed(facts, str(each.binary), undoing.options.layout))
    if engine.serving is None:
        names = [each.name for each in removed]
        reason = f"it is not known whether {engine.title} still serves {', '.join(names)}: {engine.silence}"
    else:
        binaries = engine.serving.binaries
        names = [each.name for each in removed if binaries.get(each.name) == str(each.binary)]
        reason = f"{engine.title} still serves {', '.join(names)}"
    default = engine.served.default
    if way.demoted and default in row.runtimes and default != (way.after.default if way.after else ""):
        names = [default]
        reason = f"{engine.title} still has {default} as its default"
    if not names:
        return None
    # A dockerd that is signalled keeps what its file does not name any more.
    restart = f"run systemctl restart {engine.unit}" if engine.unit else f"restart {engine.title}"
    problem = f"undo everything ({reason}, for it was not restarted)"
    return InstallerError(problem, remedy=f"{restart}, then {TRY_AGAIN}", code="restart-pending")


def _choose_way_back(undoing: _Undo, *, stays: bool) -> tuple[WayBack, list[InstallerError]]:
    """Return the texts without us, or where ours ``stays`` without our default; and why not those before."""
    needed: list[InstallerError] = []
    for demoted in (True,) if stays else (False, True):
        way = _way_back(undoing, demoted=demoted)
        refusal = _find_unwritable(undoing.facts, way) or _find_refusal(undoing, way)
        if refusal is None:
            return way, needed
        needed.append(refusal)
    return WayBack(undoing.configs, undoing.configs), needed


def _find_unwritable(facts: Facts, way: WayBack) -> InstallerError | None:
    """Return why a text that changes cannot be written here; None where all can."""
    changed = (write.path for write in way.changes)
    return next((facts.unwritable[path] for path in changed if path in facts.unwritable), None)


def _add_earlier(row: EngineRow, facts: Facts) -> EngineRow:
    """Return the row with the runtimes of an earlier run that a later one had not yet taken away."""
    toolkits = {str(binary.parent) for binary in row.runtimes.values()}
    earlier: dict[str, PurePosixPath] = {}
    for edit in (edit for config in facts.held.configs if config.engine == row.name for edit in config.edits):
        binary = PurePosixPath((edit.after or "").strip("\"'"))
        if str(binary.parent) in toolkits and (name := runtime_of(edit.key)):
            earlier[name] = binary
    return replace(row, runtimes=earlier | {**row.runtimes})


def _way_back(undoing: _Undo, *, demoted: bool) -> WayBack:
    """Return the configs of one engine without any of our keys, or without those of the default alone."""
    engine, facts = undoing.engine, undoing.facts
    rows: list[ConfigRow] = []
    held: list[ConfigRow] = []
    writes: list[WriteConfig] = []
    notes: list[str] = []
    for config in undoing.configs:
        path, now = config.path, facts.contents[config.path]
        after, undone = undo_config(path, facts, demoted=demoted)
        row = replace(config, original=Saved.of(without_us(path, facts)))
        rows.append(row)
        held.append(replace(row, ours=(after.digest,) if after else row.ours) if after != now else config)
        writes.append(WriteConfig(engine.name, path, now, after, facts.relinked.get(path, "")))
        notes += notes_of(path, undone)
    way = WayBack(tuple(rows), tuple(held), tuple(writes), tuple(notes), demoted)
    if engine.hook is None and not engine.spec.finds:
        texts, ask = read_present(engine, facts), partial(undoing.ask, undoing.asked)
        alone = ask({**texts, **{write.path: write.after for write in writes}})
        way = replace(way, now=ask(texts), after=alone, dead=alone.broken if engine.crashing else "")
    reload = _plan_reload(undoing, way)
    return replace(way, reload=reload) if _is_due(undoing, way, reload) else way


def _list_ours(row: EngineRow, way: WayBack) -> frozenset[str]:
    """Return the names of our runtimes but for those that an administrator made to start something else."""
    started = way.now.binaries if way.now else {}
    # One whose program was taken out of the text starts no other.
    return frozenset(name for name in row.runtimes if not started.get(name) or is_ours(started[name]))


def _find_refusal(undoing: _Undo, way: WayBack) -> InstallerError | None:
    """Return why an engine cannot do with the texts of an undo; None where it can."""
    row, engine, facts = undoing.row, undoing.engine, undoing.facts
    now, after, ours = way.now, way.after, _list_ours(row, way)
    if needed := _refuse_default(engine, way, facts, ours):
        return needed
    if now is None or after is None:
        return None
    if now.fatal:  # it is not ours, and would not be more with our keys
        # One whose CRI is switched off, and that is down, may be restarted like that.
        asked = engine.serving is not None or not after.rest_digest
        if not (after.fatal and asked and way.reload is not None):
            return None
        reason = f"it would not come up again with the config it has: {after.fatal}"
        return _refuse_texts(engine, way, reason, after.remedy or "correct that config")
    edits = [edit for each in way.rows for edit in each.edits]
    texts = {digest for each in way.rows for digest in each.ours}
    edited = any(
        write.before is not None
        and write.before.digest not in texts
        and tree_of(write.after, write.path) != tree_of(facts.originals.get(write.path), write.path)
        for write in way.writes
    )
    # A default that had no definition before us either: what stood there comes back.
    as_before = bool(after.undefined) and after.undefined in {runtime_of(each.key) for each in edits}
    if (as_before and not edited) or not way.changes:
        return None
    given = any(group_of(edit.key, row.name) == DEFAULT for edit in edits)
    wrong: list[str] = []
    for before in (now, ask_in_force(undoing.asked, facts, read_present(engine, facts), undoing.ask)):
        # What our own file had taken from the others comes back, and the default that we gave goes.
        wrong = [*find_disturbances(replace(before, default=after.default) if given else before, after, ours)]
        if not wrong:
            return None
    pairs = zip(undoing.configs, way.writes, strict=True)
    # Of a file that we made the rest stays, and is not read without our import.
    added = [str(write.path) for row, write in pairs if not row.original and write.after is not None]
    names = ", ".join(path for path in added if path != str(engine.config))
    remedy = f"move what was added to {names} to a file of its own" if names else "correct that config"
    return _refuse_texts(engine, way, "; ".join(wrong), remedy)


def _refuse_default(
    engine: EngineState, way: WayBack, facts: Facts, ours: Collection[str]
) -> InstallerError | None:
    """Return why a runtime of ours stays that is to be the default of an engine; None where none is."""
    now, later = engine.flags.default, engine.next_flags.default
    undefined = (
        way.after.undefined if way.after is not None and way.now is not None and not way.now.fatal else ""
    )
    if not way.demoted and later in ours and later != now:
        name, how = later, f"its unit starts it with --default-runtime {later}"
        remedy = "take that out of the unit"
    elif undefined not in ours:
        return None
    elif undefined == now:
        name, how = now, f"it was started with --default-runtime {now}"
        remedy = f"start {engine.title} without that"
    else:
        name, how = (
            undefined,
            f"it was made the default in {_list_files_naming(engine, way, facts, undefined)}",
        )
        remedy = "name another default runtime there"
    problem = f"remove the runtime {name} from {engine.title} ({how})"
    return InstallerError(problem, remedy=f"{remedy}, then {TRY_AGAIN}", code="runtime-needed")


def _refuse_texts(
    engine: EngineState, way: WayBack, reason: str, remedy: str = "correct that config"
) -> InstallerError:
    paths = ", ".join(str(write.path) for write in way.writes)
    problem = f"undo our edits of {paths} and leave all else of {engine.title} as it is ({reason})"
    return InstallerError(problem, remedy=f"{remedy}, then {TRY_AGAIN}", code="config-disturbs-others")


def _list_files_naming(engine: EngineState, way: WayBack, facts: Facts, default: str) -> str:
    """Return the files that name the default runtime; a value that is put together stands in none."""
    texts = {**read_present(engine, facts), **{write.path: write.after for write in way.writes}}
    wanted = (engine.spec.default_key, default)
    naming = (
        path
        for path, file in texts.items()
        if any((key[-1], value) == wanted for key, value in leaves(tree_of(file, path)))
    )
    return ", ".join(map(str, naming))


def _is_due(undoing: _Undo, way: WayBack, reload: Reload) -> bool:
    """Tell whether one engine has to read its files; one that is stopped will read them anyway."""
    engine, finished = undoing.engine, undoing.facts.held.finished
    never_read = undoing.row.restart_due  # and so it tells of no config of ours
    # One that looks for the toolkit by itself will not find it at its next start; one whose files said
    # what we wanted before we came has nothing to read.
    if not way.writes or undoing.options.restart_mode is RestartMode.NONE:
        return False
    # One without CRI serves nothing of ours; one that comes up neither way has nothing to reload, and a note
    # says why.
    if engine.stopped or engine.disabled or way.dead:
        return False
    if engine.serving is None or (engine.outdated and not never_read):
        return True
    if not reload.satisfied_by(engine.serving):
        return True
    if finished and not way.changes:
        return False
    # What others say of the same handlers looks alike before and after.
    if reload.present and not way.demoted:
        return True
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    if not finished and engine.spec.reload is ReloadMethod.HUP:
        return True
    return not never_read and not _serves_rest(engine.serving, way)


def _serves_rest(serving: EffectiveConfig, way: WayBack) -> bool:
    """Tell whether an engine that serves none of ours has what its files come to without us."""
    now, after = way.now, way.after
    if now is None or after is None or after.broken:
        return True
    # It may have the default that we gave it. Of all else it does not tell, so nothing else may change.
    return serving.default == after.default and (now.cdi, now.rest_digest) == (after.cdi, after.rest_digest)


def _plan_reload(undoing: _Undo, way: WayBack) -> Reload:
    """Return the reload after which what files say of ours is served, the rest not, all else as before."""
    row, engine = undoing.row, undoing.engine
    after = way.after if way.after is not None and not way.after.broken else None
    binaries = after.binaries if after is not None else {}
    entries = [RuntimeEntry(*runtime) for runtime in row.runtimes.items()]
    # Files without us may name some, too: runtimes that were taken over from another installer.
    present = tuple(each for each in entries if binaries.get(each.name) == str(each.binary))
    absent = tuple(each for each in entries if each not in present)
    unwanted = {each.name for each in entries} - {after.default} if after and way.demoted else set()
    wanted = expect_defaults(engine, after, row.runtimes) if after and not way.demoted else frozenset()
    neighbours = expect_others(engine, way.after, _list_ours(row, way))
    return Reload(engine.spec, present, absent, frozenset(unwanted), neighbours, wanted)
