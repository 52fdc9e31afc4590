"""The part of one engine in a plan: an install makes it serve our runtimes, an undo takes ours away from it.

gate.py decides whether an install restarts the engine (``_decide_reload``). This module decides whether an
undo does (``_needs_reload``), and what forbids a restart that an undo needs (``_refuse_reload``).
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from installer.change.gate import Accepted, ReloadDecision, expect_defaults, expect_others
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
from installer.model.engine import EffectiveConfig, EngineState, RuntimeEntry, find_disturbances, is_ours
from installer.model.facts import ConfigRow, EngineRow, Facts, Record, Saved
from installer.model.files import DEFAULT_INSTALL_DIR, File
from installer.model.options import InUse, Options, RestartMode
from installer.model.steps import TRY_AGAIN, FindRuntimes, Part, Reload, Step, WriteConfig, name_part


def find_runtimes(accepted: Accepted) -> Part:
    """Return the check that the engine finds our programs, ahead of the first config of any engine."""
    engine = accepted.engine
    reloads = accepted.reload_decision in {ReloadDecision.NOW, ReloadDecision.WHEN_IDLE}
    if not accepted.candidate.writes or not reloads:
        return Part(name_part(engine.name))
    step = FindRuntimes(engine.spec, tuple(entry.binary for entry in accepted.reload.present))
    return Part(name_part(engine.name), ((step, "its config will name them"),))


def install_engine(
    accepted: Accepted, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> Part:
    """Return the part that makes one engine serve our runtimes and changes nothing else in force."""
    engine = accepted.engine
    candidate = accepted.candidate
    row = _make_row(accepted, facts, options, ask)
    config_rows: list[ConfigRow] = []
    backups: list[File] = []
    for config_row, original in reloading.list_rows(candidate.changes, accepted.steps):
        config_rows.append(config_row)
        if original is not None:
            backups.append(original)

    # A restart that waits until the engine is idle is refused for the same reasons as one that does not.
    reload_steps: Sequence[Step] = accepted.steps
    if accepted.pending:
        reload_steps = (*accepted.steps, accepted.reload)
    reloads = any(isinstance(step, Reload) for step in reload_steps)
    ours = {entry.name for entry in (*accepted.reload.present, *accepted.reload.absent)}
    refusals = reloading.explain_refusals(engine, reload_steps, accepted.after, facts, ours)

    notes = [*candidate.decision.notes]
    is_validated = accepted.after is not None and accepted.after.rest_digest
    if is_validated and accepted.reload_decision is ReloadDecision.NOW:
        notes += reloading.explain_stale_runtimes(engine, accepted.after, ours)
    notes += reloading.explain_stale_state(engine, facts, entries)
    notes += reloading.explain_edited_inputs(engine, reload_steps)
    if reloads:
        notes += reloading.explain_changes(engine, accepted.after, facts, ours)
    pending = accepted.pending or row.pending
    if pending:
        notes.append(f"{row.name}, pending: {pending}")

    obstacles = [*_refuse_silent(accepted), *_refuse_options(engine, options)]
    # An error that stands against any install is in the plan already.
    obstacles += [error for error in refusals if error not in facts.obstacles]
    return Part(
        name_part(engine.name),
        reloading.explain_install(accepted.steps, candidate.changes, engine, facts.held),
        Record(engines=(row,), configs=tuple(remember_named(config_rows, facts, options.layout))),
        backups=tuple(backups),
        notes=tuple(notes),
        obstacles=tuple(obstacles),
    )


def _make_row(accepted: Accepted, facts: Facts, options: Options, ask: Ask) -> EngineRow:
    """Return the ledger's row of an engine after its install."""
    engine = accepted.engine
    candidate = accepted.candidate
    former = facts.held.engine(engine.name)
    present = accepted.reload.present

    state = engine.served.state
    if not state and former is not None:
        state = former.state
    config = None
    if candidate.decision.files and engine.hook is None:
        config = engine.config

    # The digest of the texts that are proven. Present texts count only if the engine accepts them.
    texts = read_present(engine, facts)
    proven = digest_of({**texts, **candidate.texts})
    formerly_proven = former.proven if former is not None else ""
    if proven != formerly_proven and not candidate.writes and ask(engine, texts).fatal:
        proven = formerly_proven

    return EngineRow(
        name=engine.name,
        socket=engine.socket,
        unit=engine.unit,
        runtimes={entry.name: entry.binary for entry in present},
        state=state,
        pending=_explain_pending(accepted, options),
        config=config,
        default=next((entry.name for entry in present if entry.default), ""),
        version=engine.version,
        restart_due=accepted.pending is not None,
        proven=proven,
    )


def _explain_pending(accepted: Accepted, options: Options) -> str:
    """Return the settings that the engine does not have in force yet, and when it will; "" for none."""
    engine = accepted.engine
    if accepted.pending:
        return reloading.DUE
    is_owners = options.restart_mode is RestartMode.NONE and engine.hook is None  # the owner restarts it
    if is_owners and engine.serving is not None and not accepted.reload.is_served_by(engine):
        return reloading.LEFT
    return reloading.explain_pending(engine, options.extras, asks_cdi=accepted.candidate.decision.cdi)


def _refuse_silent(accepted: Accepted) -> Iterator[InstallerError]:
    """Yield an error if the engine does not answer, and so cannot be verified."""
    engine = accepted.engine
    if accepted.reload_decision is ReloadDecision.LEFT_TO_OWNER or accepted.heals:
        return
    if engine.serving is not None:
        return
    problem = f"verify that {engine.title} serves our runtimes ({engine.silence})"
    words: list[str | Option] = []
    if engine.stopped:
        words.append(engine.remedy or f"start {engine.title}")
        words += [", name what runs here with ", Option("runtime")]
        words += [" or its socket with ", Option("socket")]
    else:
        words.append(engine.remedy or f"correct what the log of {engine.name} says")
    words += [", or configure it unverified with ", Option("restart-mode", "none")]
    yield InstallerError(problem, remedy=Remedy(*words), code="engine-not-proven")


def _refuse_options(engine: EngineState, options: Options) -> Iterator[InstallerError]:
    """Yield an error if an engine that looks for the toolkit by itself would not find it."""
    finds = engine.spec.built_in_runtime
    if not finds:
        return
    asked = (options.install_dir, options.runtime_name, options.set_as_default)
    if asked == (DEFAULT_INSTALL_DIR, finds, False):
        return
    problem = f"configure {engine.title} (it looks for {finds} below {DEFAULT_INSTALL_DIR} by itself)"
    flags = (Option("install-dir"), ", ", Option("runtime-name"), " and ", Option("set-as-default"))
    remedy = Remedy("leave ", *flags, f" as they are; a default is given by --default-runtime {finds}")
    yield InstallerError(problem, remedy=remedy, code="engine-generates-config")


class _Undo(Struct, frozen=True):
    """The undo of one engine, and everything on which its plan depends."""

    row: EngineRow
    engine: EngineState
    facts: Facts
    options: Options
    ask: Ask
    configs: tuple[ConfigRow, ...]
    # The engine without the runtimes that it serves by our names. CRI-O's program is asked about this state:
    # texts of CRI-O are completed by what it serves.
    engine_without_us: EngineState


class UndoCandidate(Struct, frozen=True):
    """The texts of one engine without us, or, if ``demoted``, only without our default runtime."""

    rows: tuple[ConfigRow, ...]  # of the configs while they are written
    kept_rows: tuple[ConfigRow, ...]  # of the configs after that, if our runtimes stay
    writes: tuple[WriteConfig, ...] = ()
    notes: tuple[str, ...] = ()
    demoted: bool = False
    now: EffectiveConfig | None = None  # by the present texts; None if the engine's program is not asked
    after: EffectiveConfig | None = None  # by the texts of the candidate; None as above
    start_failure: str = ""  # the reason why a crashing engine does not start with these texts either
    reload: Reload | None = None  # None if the engine has nothing to read

    @property
    def changes(self) -> tuple[WriteConfig, ...]:
        """The writes that change a text."""
        return tuple(write for write in self.writes if write.before != write.after)

    @property
    def texts(self) -> dict[PurePosixPath, File | None]:
        """The texts after the writes, by path."""
        return {write.path: write.after for write in self.writes}


def undo_engine(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> Part:
    """Return the part that takes our runtimes away from an engine and leaves everything else in force.

    The first possible of three outcomes:

    1. The texts are without us, and the engine is reloaded if ``_needs_reload``.
    2. Containers need our runtimes, or the engine refuses the texts without us: our runtimes stay, and none
       of them is the default any more.
    3. The engine refuses that, too: nothing is written.

    If the engine may not be reloaded (``_refuse_reload``), the texts are written, and the toolkit stays until
    its owner restarts it.

    Raises:
        InstallerError: a text is not valid any more.
    """
    undo = _prepare(_add_earlier_runtimes(row, facts), facts, options, ask)
    row = undo.row
    engine = undo.engine
    is_used = any(container.engine == row.name for container in facts.containers.running)
    is_forced = options.in_use is InUse.FORCE and not engine.spec.needs_handler(engine.version)

    candidate, refusals = _choose_candidate(undo, keeps_runtimes=is_used and not is_forced)
    still_served = _refuse_reload(undo, candidate)
    if still_served is not None:
        candidate = _without_reload(undo, candidate)
    else:
        still_served = _find_still_served(undo, candidate)

    steps: Sequence[Step] = candidate.changes
    if candidate.reload is not None:
        # What dockerd has in force counts as unknown: it may have read other texts since it was asked.
        steps = reloading.take_up(candidate.writes, candidate.reload, None, engine)

    backups = []
    for write in candidate.writes:
        original = without_us(write.path, facts)
        if original is not None:
            backups.append(original)

    ours = _list_ours(row, candidate)
    notes = [*candidate.notes]
    if candidate.start_failure:
        notes.append(f"{engine.title} does not start without our edits either: {candidate.start_failure}")
    notes += reloading.explain_stale_runtimes(engine, candidate.after, ours)
    if candidate.reload is not None:
        notes += reloading.explain_changes(engine, candidate.after, facts, ours)

    needed = refusals[:1]
    if still_served is not None:
        needed.append(still_served)
    return Part(
        name_part(row.name),
        reloading.explain_undo(steps, engine),
        _make_rows_after_undo(
            undo, candidate, steps, stays=is_used or bool(refusals), still_served=still_served
        ),
        in_progress=candidate.rows,
        backups=tuple(backups),
        notes=tuple(notes),
        needed=tuple(needed),
    )


def _prepare(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> _Undo:
    """Return the undo of the engine of a row."""
    engine = next(each for each in facts.engines if each.name == row.name)
    engine_without_us = engine
    if engine.serving is not None:
        handlers = {
            name: runtime for name, runtime in engine.serving.handlers.items() if name not in row.runtimes
        }
        engine_without_us = replace(engine, serving=replace(engine.serving, handlers=handlers))
    return _Undo(
        row=row,
        engine=engine,
        facts=facts,
        options=options,
        ask=ask,
        configs=tuple(config for config in facts.held.configs if config.engine == row.name),
        engine_without_us=engine_without_us,
    )


def _make_rows_after_undo(
    undo: _Undo,
    candidate: UndoCandidate,
    steps: Sequence[Step],
    *,
    stays: bool,
    still_served: InstallerError | None,
) -> Record:
    """Return the ledger's rows of an engine after its undo.

    ``stays``: our runtimes are not removed. ``still_served``: the reason why the engine may still start our
    programs although its texts are without them.
    """
    row = undo.row
    spec = undo.engine.spec
    pending = reloading.UNREAD if still_served is not None else ""
    if stays:
        default = "" if candidate.demoted else row.default
        # Copies of a root file are looked for each time.
        kept_configs = tuple(each for each in candidate.kept_rows if not spec.is_copy(each.path))
        return Record(engines=(replace(row, default=default, pending=pending),), configs=kept_configs)
    if still_served is not None:
        # The next undo finds nothing more to write, and goes on from here.
        configs = tuple(each for each in undo.configs if not spec.is_copy(each.path))
        return Record(engines=(replace(row, pending=pending),), configs=configs)
    # The rows that stay are of files that named the toolkit before us: they may still name it.
    texts = {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    named = []
    for config in candidate.rows:
        if not config.named:
            continue
        last = texts.get(config.path)
        digests = (last.digest,) if last is not None else config.ours
        named.append(replace(config, ours=digests, edits=()))
    return Record(configs=tuple(named))


def _refuse_reload(undo: _Undo, candidate: UndoCandidate) -> InstallerError | None:
    """Return why an undo may not reload or restart an engine; None if it may, or need not."""
    engine = undo.engine
    if candidate.reload is None:
        return None
    ours = _list_ours(undo.row, candidate)
    refusals = reloading.explain_refusals(engine, [candidate.reload], candidate.after, undo.facts, ours)
    refusal = next(refusals, None)
    if refusal is None and engine.serving is None and engine.spec.reads_config_on_signal:
        # A silent dockerd does not tell whether it has obeyed a signal.
        problem = f"verify that {engine.title} no longer serves our runtimes ({engine.silence})"
        remedy = f"make it answer, then {TRY_AGAIN}"
        refusal = InstallerError(problem, remedy=remedy, code="engine-not-proven")
    if refusal is None:
        return None
    if engine.spec.restarts_itself:
        return refusal
    written = ", ".join(str(write.path) for write in candidate.writes)
    state = "names our default no more" if candidate.demoted else "is without us"
    remedy = f"{refusal.remedy}; {written} {state}, and the toolkit stays until {engine.title} has read that"
    return InstallerError(refusal.problem, remedy=remedy, code=refusal.code)


def _without_reload(undo: _Undo, candidate: UndoCandidate) -> UndoCandidate:
    """Return the candidate for an engine that may not be reloaded."""
    if undo.engine.spec.restarts_itself:  # k0s restarts its engine for any write
        return UndoCandidate(rows=undo.configs, kept_rows=undo.configs, demoted=candidate.demoted)
    return replace(candidate, reload=None)


def _find_still_served(undo: _Undo, candidate: UndoCandidate) -> InstallerError | None:
    """Return an error if an engine without a reload may still start programs of ours."""
    row = undo.row
    engine = undo.engine
    if candidate.reload is not None or engine.spec.built_in_runtime:
        return None
    if engine.stopped or engine.crashing or engine.failed or engine.disabled:
        return None
    # If the engine accepts no text, nothing changes. CRI-O watches its hooks.
    only_hooks = all(is_hook(each) for each in undo.configs)
    if undo.configs and (not candidate.writes or only_hooks):
        return None

    removed = [
        entry
        for entry in _plan_reload(undo, candidate).absent
        if is_removed(undo.facts, str(entry.binary), undo.options.layout)
    ]
    if engine.serving is None:
        names = [entry.name for entry in removed]
        reason = f"it is not known whether {engine.title} still serves {', '.join(names)}: {engine.silence}"
    else:
        binaries = engine.serving.binaries
        names = [entry.name for entry in removed if binaries.get(entry.name) == str(entry.binary)]
        reason = f"{engine.title} still serves {', '.join(names)}"
    default = engine.served.default
    default_after = candidate.after.default if candidate.after is not None else ""
    if candidate.demoted and default in row.runtimes and default != default_after:
        names = [default]
        reason = f"{engine.title} still has {default} as its default"
    if not names:
        return None
    # A dockerd that is signalled keeps a runtime that its file does not name any more: only a restart helps.
    restart = f"run systemctl restart {engine.unit}" if engine.unit else f"restart {engine.title}"
    problem = f"undo everything ({reason}, for it was not restarted)"
    return InstallerError(problem, remedy=f"{restart}, then {TRY_AGAIN}", code="restart-pending")


def _choose_candidate(undo: _Undo, *, keeps_runtimes: bool) -> tuple[UndoCandidate, list[InstallerError]]:
    """Return the first writable candidate that the engine accepts, and the refusals of those before.

    The candidates: without us (unless ``keeps_runtimes``), without our default, unchanged.
    """
    refusals: list[InstallerError] = []
    for demoted in (False, True):
        if keeps_runtimes and not demoted:
            continue
        candidate = _draft_candidate(undo, demoted=demoted)
        refusal = _find_unwritable(undo.facts, candidate) or _find_refusal(undo, candidate)
        if refusal is None:
            return candidate, refusals
        refusals.append(refusal)
    return UndoCandidate(rows=undo.configs, kept_rows=undo.configs), refusals


def _find_unwritable(facts: Facts, candidate: UndoCandidate) -> InstallerError | None:
    """Return why a text that changes cannot be written; None if all can."""
    for write in candidate.changes:
        if write.path in facts.unwritable:
            return facts.unwritable[write.path]
    return None


def _add_earlier_runtimes(row: EngineRow, facts: Facts) -> EngineRow:
    """Return the row, with the runtimes of earlier installs that later installs have not yet removed."""
    toolkits = {str(binary.parent) for binary in row.runtimes.values()}
    earlier: dict[str, PurePosixPath] = {}
    for config in facts.held.configs:
        if config.engine != row.name:
            continue
        for edit in config.edits:
            binary = PurePosixPath((edit.after or "").strip("\"'"))
            if str(binary.parent) not in toolkits:
                continue
            name = runtime_of(edit.key)
            if name:
                earlier[name] = binary
    return replace(row, runtimes=earlier | {**row.runtimes})


def _draft_candidate(undo: _Undo, *, demoted: bool) -> UndoCandidate:
    """Return the configs of one engine without our keys, or, if ``demoted``, without our default alone."""
    engine = undo.engine
    facts = undo.facts
    rows: list[ConfigRow] = []
    kept_rows: list[ConfigRow] = []
    writes: list[WriteConfig] = []
    notes: list[str] = []
    for config in undo.configs:
        path = config.path
        present = facts.contents[path]
        after, undone = undo_config(path, facts, demoted=demoted)
        row = replace(config, original=Saved.of(without_us(path, facts)))
        rows.append(row)
        if after == present:
            kept_rows.append(config)
        elif after:
            kept_rows.append(replace(row, ours=(after.digest,)))
        else:
            kept_rows.append(row)
        writes.append(WriteConfig(engine.name, path, present, after, facts.relinked.get(path, "")))
        notes += notes_of(path, undone)

    candidate = UndoCandidate(
        rows=tuple(rows),
        kept_rows=tuple(kept_rows),
        writes=tuple(writes),
        notes=tuple(notes),
        demoted=demoted,
    )
    if engine.hook is None and not engine.spec.built_in_runtime:
        texts = read_present(engine, facts)
        ask = partial(undo.ask, undo.engine_without_us)
        predicted = ask({**texts, **candidate.texts})
        start_failure = predicted.broken if engine.crashing else ""
        candidate = replace(candidate, now=ask(texts), after=predicted, start_failure=start_failure)
    reload = _plan_reload(undo, candidate)
    if _needs_reload(undo, candidate, reload):
        return replace(candidate, reload=reload)
    return candidate


def _list_ours(row: EngineRow, candidate: UndoCandidate) -> frozenset[str]:
    """Return the names of our runtimes without those that an administrator has given another program."""
    binaries = candidate.now.binaries if candidate.now is not None else {}
    # A runtime whose program was taken out of the text has no other program: it still is ours.
    return frozenset(name for name in row.runtimes if not binaries.get(name) or is_ours(binaries[name]))


def _find_refusal(undo: _Undo, candidate: UndoCandidate) -> InstallerError | None:
    """Return why an engine would not do with the texts of a candidate; None if it would.

    The prediction is compared with two others: for the present texts, and for the present texts without the
    unedited files of ours. If either comparison finds no problem, the candidate is accepted.
    """
    row = undo.row
    engine = undo.engine
    facts = undo.facts
    now = candidate.now
    after = candidate.after
    ours = _list_ours(row, candidate)
    refusal = _refuse_default(engine, candidate, facts, ours)
    if refusal is not None:
        return refusal
    if now is None or after is None:
        return None

    if now.fatal:
        return _refuse_fatal(engine, candidate, after)

    edits = [edit for config in candidate.rows for edit in config.edits]
    # A default that had no definition before us either comes back as it was.
    edited_runtimes = {runtime_of(edit.key) for edit in edits}
    is_as_before = bool(after.undefined) and after.undefined in edited_runtimes
    is_edited = _is_edited_by_others(facts, candidate)
    if is_as_before and not is_edited:
        return None
    if not candidate.changes:
        return None

    gave_default = any(group_of(edit.key, row.name) == DEFAULT for edit in edits)
    lived = ask_in_force(undo.engine_without_us, facts, read_present(engine, facts), undo.ask)
    problems: list[str] = []
    for before in (now, lived):
        expected = before
        if gave_default:
            # The default that we gave goes, and what our own file had taken from the others comes back.
            expected = replace(before, default=after.default)
        problems = [*find_disturbances(expected, after, ours)]
        if not problems:
            return None

    # In a file that we made, additions of others stay; they are not read without our import.
    kept = []
    for config, write in zip(undo.configs, candidate.writes, strict=True):
        if not config.original and write.after is not None and write.path != engine.config:
            kept.append(str(write.path))
    remedy = "correct that config"
    if kept:
        remedy = f"move what was added to {', '.join(kept)} to a file of its own"
    return _refuse_texts(engine, candidate, "; ".join(problems), remedy)


def _refuse_fatal(
    engine: EngineState, candidate: UndoCandidate, after: EffectiveConfig
) -> InstallerError | None:
    """Return why an engine whose present config is fatal is not reloaded; None if it is, or need not be.

    The present config is not fatal for our undo: our keys would not repair it.
    """
    # An engine that is down and whose CRI is switched off may be restarted as it is.
    may_restart = engine.serving is None and after.rest_digest
    if not after.fatal or may_restart or candidate.reload is None:
        return None
    reason = f"it would not come up again with the config it has: {after.fatal}"
    return _refuse_texts(engine, candidate, reason, after.remedy or "correct that config")


def _is_edited_by_others(facts: Facts, candidate: UndoCandidate) -> bool:
    """Tell whether others have edited a config of ours so that its undo is not the text before us."""
    digests = {digest for config in candidate.rows for digest in config.ours}
    for write in candidate.writes:
        if write.before is None or write.before.digest in digests:
            continue
        if tree_of(write.after, write.path) != tree_of(facts.originals.get(write.path), write.path):
            return True
    return False


def _refuse_default(
    engine: EngineState, candidate: UndoCandidate, facts: Facts, ours: Collection[str]
) -> InstallerError | None:
    """Return why a runtime of ours has to stay as the default of an engine; None if none has to."""
    flag_now = engine.flags.default
    flag_later = engine.next_flags.default
    undefined = ""
    if candidate.after is not None and candidate.now is not None and not candidate.now.fatal:
        undefined = candidate.after.undefined

    if not candidate.demoted and flag_later in ours and flag_later != flag_now:
        name = flag_later
        reason = f"its unit starts it with --default-runtime {flag_later}"
        remedy = "take that out of the unit"
    elif undefined not in ours:
        return None
    elif undefined == flag_now:
        name = flag_now
        reason = f"it was started with --default-runtime {flag_now}"
        remedy = f"start {engine.title} without that"
    else:
        name = undefined
        naming = _list_files_naming(engine, candidate, facts, undefined)
        reason = f"it was made the default in {naming}"
        remedy = "name another default runtime there"
    problem = f"remove the runtime {name} from {engine.title} ({reason})"
    return InstallerError(problem, remedy=f"{remedy}, then {TRY_AGAIN}", code="runtime-needed")


def _refuse_texts(engine: EngineState, candidate: UndoCandidate, reason: str, remedy: str) -> InstallerError:
    paths = ", ".join(str(write.path) for write in candidate.writes)
    problem = f"undo our edits of {paths} and leave all else of {engine.title} as it is ({reason})"
    return InstallerError(problem, remedy=f"{remedy}, then {TRY_AGAIN}", code="config-disturbs-others")


def _list_files_naming(engine: EngineState, candidate: UndoCandidate, facts: Facts, default: str) -> str:
    """Return the files that name the default runtime; none if its value is put together from several."""
    texts = {**read_present(engine, facts), **candidate.texts}
    wanted = (engine.spec.default_key, default)
    naming = []
    for path, file in texts.items():
        if any((key[-1], value) == wanted for key, value in leaves(tree_of(file, path))):
            naming.append(str(path))
    return ", ".join(naming)


def _needs_reload(undo: _Undo, candidate: UndoCandidate, reload: Reload) -> bool:
    """Decide whether an undo makes an engine reload or restart; the first rule that applies decides."""
    engine = undo.engine
    finished = undo.facts.held.finished
    never_read = undo.row.restart_due  # the engine has never read a config of ours

    # No restart: we have no config to write, as for an engine that looks for the toolkit by itself (it will
    # not find it at its next start) and for one whose files said what we wanted before us; or by an option.
    if not candidate.writes or undo.options.restart_mode is RestartMode.NONE:
        return False
    # No restart: a stopped engine reads its files at its start, one without CRI serves nothing of ours, and
    # one that does not start either way has nothing to reload (a note says why).
    if engine.stopped or engine.disabled or candidate.start_failure:
        return False
    # A silent engine is restarted, and one whose files were edited after its start.
    if engine.serving is None or (engine.outdated and not never_read):
        return True
    # An engine that serves anything of ours is restarted.
    if not reload.satisfied_by(engine.serving):
        return True
    # A finished install whose texts do not change leaves nothing to read.
    if finished and not candidate.changes:
        return False
    # Runtimes that others define by the same names look alike before and after: only a reload makes sure.
    if reload.present and not candidate.demoted:
        return True
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    if not finished and engine.spec.reads_config_on_signal:
        return True
    # An engine that serves nothing of ours is restarted only if it has read our config and the rest differs.
    return not never_read and not _serves_rest(engine.serving, candidate)


def _serves_rest(serving: EffectiveConfig, candidate: UndoCandidate) -> bool:
    """Tell whether an engine that serves none of ours has everything else of its files without us."""
    now = candidate.now
    after = candidate.after
    if now is None or after is None or after.broken:
        return True
    # The engine may have the default that we gave it. It does not tell about the rest of its config, so the
    # rest may not change.
    if serving.default != after.default:
        return False
    return now.cdi == after.cdi and now.rest_digest == after.rest_digest


def _plan_reload(undo: _Undo, candidate: UndoCandidate) -> Reload:
    """Return the reload of an undo, with what the engine has to serve after it.

    The engine has to serve our runtimes only if its files without us define them, and the rest as before.
    """
    row = undo.row
    engine = undo.engine
    after = candidate.after
    if after is not None and after.broken:
        after = None
    binaries = after.binaries if after is not None else {}
    entries = [RuntimeEntry(name, binary) for name, binary in row.runtimes.items()]
    # Files without us define runtimes that we had taken over from another installer.
    present = tuple(entry for entry in entries if binaries.get(entry.name) == str(entry.binary))
    absent = tuple(entry for entry in entries if entry not in present)
    unwanted_defaults: set[str] = set()
    defaults: frozenset[str] = frozenset()
    if after is not None and candidate.demoted:
        unwanted_defaults = {entry.name for entry in entries} - {after.default}
    elif after is not None:
        defaults = expect_defaults(engine, after, row.runtimes)
    return Reload(
        engine.spec,
        present,
        absent,
        demoted=frozenset(unwanted_defaults),
        others=expect_others(engine, candidate.after, _list_ours(row, candidate)),
        defaults=defaults,
    )
