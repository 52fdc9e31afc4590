"""The part of one engine in a plan: of an install, of an undo, and of a roll-back.

Each goes the same way:

1. The texts that would do are drafted, the plainest first (install_texts.py, undo_texts.py). A roll-back has
   one candidate: the texts of before.
2. The gate asks the engine's own program what they bring into force, and takes the first that disturb nothing
   (gate.py).
3. restart.py decides whether the engine is restarted for them, and expected.py says what the engine has to
   serve then.
4. This module makes the steps, and the ledger's rows; pending.py says what an engine without a restart has
   not read.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from installer.change import rows, step_reasons
from installer.change.expected import expect_after_rollback
from installer.change.gate import AcceptedInstall, choose_undo_texts
from installer.change.install_texts import InstallRequest
from installer.change.our_runtimes import forget_our_runtimes
from installer.change.pending import describe_pending, explain_still_served, find_pending
from installer.change.references import remember_named
from installer.change.restart import When, decide_for_rollback
from installer.change.undo_texts import UndoCandidate, UndoRequest, list_ours
from installer.engines import next_start, reload_notes
from installer.engines.config_edits import without_us
from installer.engines.config_texts import DryRun, digest_of, read_present
from installer.engines.reload_plan import plan_reload, postpone
from installer.errors import InstallerError, NotYetError, Option, Remedy
from installer.model.effective import EffectiveConfig, name_default
from installer.model.engine import EngineState, SeenStart
from installer.model.facts import ConfigRow, EngineRow, Facts, Pending, Record
from installer.model.files import DEFAULT_INSTALL_DIR, File
from installer.model.options import InUse, Options
from installer.model.steps import FindRuntimes, Part, Reload, Step, WriteConfig, name_part


class EngineInstall(Struct, frozen=True):
    """The install of one engine: the accepted texts, and the steps to bring the texts into force."""

    request: InstallRequest
    accepted: AcceptedInstall
    steps: tuple[Step, ...]

    @property
    def engine(self) -> EngineState:
        """The observed engine."""
        return self.request.engine

    @property
    def postponed(self) -> NotYetError | None:
        """The reason why the engine is restarted later; None for no later restart."""
        if self.accepted.restart.when is When.WHEN_IDLE:
            return postpone(self.engine)
        return None

    @property
    def is_unproven(self) -> bool:
        """Whether the engine will not have our runtimes in force at the end of the install."""
        if self.postponed:
            return True
        is_owners = self.accepted.restart.when is When.LEFT_TO_OWNER
        return is_owners and not self.accepted.expected.is_served_by(self.engine)


def make_install(request: InstallRequest, accepted: AcceptedInstall) -> EngineInstall:
    """Plan the steps to bring an engine's accepted texts into force."""
    engine = request.engine
    writes = accepted.candidate.writes
    steps: Sequence[Step] = writes
    if accepted.restart.when is When.NOW:
        if not writes and engine.kind.reads_config_on_signal:
            # dockerd may need an intermediate text although its config does not change.
            config = request.facts.contents[engine.config]
            writes = (WriteConfig(engine.name, engine.config, config, config),)
        steps = plan_reload(writes, accepted.expected, engine.serving, engine)
    return EngineInstall(request, accepted, tuple(steps))


def plan_visibility_check(install: EngineInstall) -> Part:
    """Plan to check that an engine finds our programs, ahead of the first config of any engine."""
    engine = install.engine
    accepted = install.accepted
    if not accepted.candidate.writes or not accepted.restart.is_wanted:
        return Part(name_part(engine.name))
    step = FindRuntimes(engine.kind, tuple(entry.binary for entry in accepted.expected.present))
    return Part(name_part(engine.name), ((step, "its config will name them"),))


def install_engine(install: EngineInstall) -> Part:
    """Plan to make an engine serve our runtimes, with nothing else in force changed."""
    request = install.request
    accepted = install.accepted
    engine = request.engine
    facts = request.facts
    candidate = accepted.candidate
    row = _make_row(install)
    config_rows: list[ConfigRow] = []
    backups: list[File] = []
    for config_row, original in rows.list_rows(candidate.changes, install.steps):
        config_rows.append(config_row)
        if original is not None:
            backups.append(original)

    ours = accepted.expected.names
    notes = [*candidate.proposal.notes]
    is_validated = accepted.after is not None and accepted.after.is_complete
    if is_validated and accepted.restart.when is When.NOW:
        notes += reload_notes.explain_stale_runtimes(engine, accepted.after, ours)
    notes += reload_notes.explain_taken_over(engine, facts, request.entries)
    notes += reload_notes.explain_stale_state(engine, facts, request.entries)
    if accepted.restart.is_wanted:
        if request.options.accept_pending:
            notes += next_start.explain_accepted(engine, accepted.after, ours)
        if accepted.restart.when is When.NOW:
            notes += reload_notes.explain_fresh_edits(engine, facts)
        notes += reload_notes.explain_restarted_units(engine)
        notes += reload_notes.explain_changes(engine, accepted.after, facts, ours)
    pending = install.postponed or describe_pending(row)
    if pending:
        notes.append(f"{row.name}, pending: {pending}")

    obstacles = [*_refuse_silent(accepted), *_refuse_options(engine, request.options)]
    # An error that stands against any install is in the plan already.
    obstacles += [error for error in accepted.restart.refusals if error not in facts.obstacles]
    named_rows = remember_named(config_rows, facts, request.options.layout)
    return Part(
        name_part(engine.name),
        step_reasons.explain_install(install.steps, candidate.changes, engine, facts.record),
        Record(engines=(row,), configs=tuple(forget_our_runtimes(named_rows, facts, request.options))),
        backups=tuple(backups),
        notes=tuple(notes),
        obstacles=tuple(obstacles),
    )


def _make_row(install: EngineInstall) -> EngineRow:
    """Return the ledger's row of an engine after the install."""
    request = install.request
    accepted = install.accepted
    engine = request.engine
    candidate = accepted.candidate
    former = request.row
    present = accepted.expected.present

    state = engine.state
    if not state and former is not None:
        state = former.state
    config = None
    if candidate.proposal.files and engine.hook is None:
        config = engine.config

    # The digest of the texts that are proven. Present texts count only if the engine accepts them.
    texts = read_present(engine, request.facts)
    proven = digest_of({**texts, **candidate.texts})
    formerly_proven = former.proven if former is not None else ""
    if proven != formerly_proven and not candidate.writes and request.dry_run(engine, texts).fatal:
        proven = formerly_proven

    return EngineRow(
        name=engine.name,
        socket=engine.socket,
        unit=engine.unit,
        runtimes={entry.name: entry.binary for entry in present},
        state=state,
        pending=find_pending(request, candidate, accepted.restart, accepted.expected),
        config=config,
        default=name_default(present),
        version=engine.version,
        seen_start=_expect_start(install),
        proven=proven,
    )


def _refuse_silent(accepted: AcceptedInstall) -> Iterator[InstallerError]:
    """Refuse a silent engine, for a silent engine cannot be verified."""
    engine = accepted.engine
    if accepted.restart.when is When.LEFT_TO_OWNER or accepted.repairs_our_texts:
        return
    if engine.serving is not None:
        return
    problem = f"verify that {engine.title} serves our runtimes ({engine.silence_reason})"
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
    """Refuse the options if an engine with a built-in search would not find the toolkit."""
    built_in = engine.kind.built_in_runtime
    if not built_in:
        return
    asked = (options.install_dir, options.runtime_name, options.set_as_default)
    if asked == (DEFAULT_INSTALL_DIR, built_in, False):
        return
    problem = f"configure {engine.title} (it looks for {built_in} below {DEFAULT_INSTALL_DIR} by itself)"
    flags = (Option("install-dir"), ", ", Option("runtime-name"), " and ", Option("set-as-default"))
    remedy = Remedy("leave ", *flags, f" as they are; a default is given by --default-runtime {built_in}")
    yield InstallerError(problem, remedy=remedy, code="engine-generates-config")


def _expect_start(install: EngineInstall) -> SeenStart | None:
    """Return the start to record: a new start after our restart, and at a first install."""
    request = install.request
    former = request.row
    if former is not None and install.accepted.restart.when is not When.NOW:
        return former.seen_start
    texts = {**read_present(request.engine, request.facts), **install.accepted.candidate.texts}
    digests = {str(path): file.digest for path, file in texts.items() if file is not None}
    after = install.accepted.after
    return SeenStart(
        "",
        digests,
        inputs=request.engine.inputs,
        storage_driver=after.storage_driver if after is not None else "",
        nri=after.nri if after is not None else None,
    )


class EngineUndo(Struct, frozen=True):
    """The undo of one engine: the accepted texts, and what stays.

    Attributes:
        request: The engine, and the rows of the engine.
        candidate: The texts to write.
        expected: What the engine has to serve in the end.
        refusals: The reasons against the plainer candidates.
        is_restarted: The steps restart or reload the engine.
        keeps_runtimes: Our runtimes stay in the texts: containers need them, or the engine refuses the texts
            without them.
        still_served: The reason why the engine, without a restart, may still start our programs; None if the
            engine is restarted, or starts none.
    """

    request: UndoRequest
    candidate: UndoCandidate
    expected: Reload
    refusals: tuple[InstallerError, ...]
    is_restarted: bool
    keeps_runtimes: bool
    still_served: InstallerError | None

    @property
    def engine(self) -> EngineState:
        """The observed engine."""
        return self.request.engine


def undo_engine(row: EngineRow, facts: Facts, options: Options, dry_run: DryRun) -> Part:
    """Plan to take our runtimes away from an engine, with everything else kept in force.

    The first possible of three outcomes:

    1. The texts are without us, and the engine is restarted if necessary.
    2. Containers need our runtimes, or the engine refuses the texts without us: our runtimes stay, and none
       of them is the default any more.
    3. The engine refuses the second outcome, too: nothing is written.

    If the engine may not be restarted, the texts are written, and the toolkit stays until the owner restarts
    the engine.

    Raises:
        InstallerError: a text is not valid any more.
    """
    undo = _make_undo(UndoRequest.of(row, facts, options, dry_run))
    steps = _list_undo_steps(undo)
    backups = []
    for write in undo.candidate.writes:
        original = without_us(write.path, facts)
        if original is not None:
            backups.append(original)
    needed = [*undo.refusals[:1]]
    if undo.still_served is not None:
        needed.append(undo.still_served)
    return Part(
        name_part(row.name),
        step_reasons.explain_undo(steps, undo.engine),
        _make_rows_after_undo(undo, steps),
        in_progress=undo.candidate.rows,
        backups=tuple(backups),
        notes=tuple(_list_undo_notes(undo)),
        needed=tuple(needed),
    )


def _make_undo(request: UndoRequest) -> EngineUndo:
    """Choose the texts of an undo, and decide what stays.

    Raises:
        InstallerError: a text is not valid any more.
    """
    engine = request.engine
    is_used = any(container.engine == engine.name for container in request.facts.containers.running)
    is_forced = request.options.in_use is InUse.FORCE and not engine.kind.needs_handler(engine.version)
    accepted = choose_undo_texts(request, keeps_runtimes=is_used and not is_forced)

    candidate = accepted.candidate
    restart = accepted.restart
    is_restarted = restart.when is When.NOW and not restart.refusals
    still_served: InstallerError | None = None
    if restart.refusals:
        still_served = restart.refusals[0]
        if engine.kind.restarts_itself:  # a write would restart the engine: nothing is written
            candidate = UndoCandidate(
                rows=request.configs, kept_rows=request.configs, demoted=candidate.demoted
            )
    elif not is_restarted:
        still_served = explain_still_served(request, candidate)
    return EngineUndo(
        request=request,
        candidate=candidate,
        expected=accepted.expected,
        refusals=accepted.refusals,
        is_restarted=is_restarted,
        keeps_runtimes=is_used or bool(accepted.refusals),
        still_served=still_served,
    )


def _list_undo_steps(undo: EngineUndo) -> Sequence[Step]:
    """Return the writes of an undo, around the restart or reload if there is one."""
    if not undo.is_restarted:
        return undo.candidate.changes
    # What dockerd has in force counts as unknown: it may have read other texts since it was asked.
    return plan_reload(undo.candidate.writes, undo.expected, None, undo.engine)


def _list_undo_notes(undo: EngineUndo) -> Iterator[str]:
    """Yield what the owner of an engine is told about the undo."""
    engine = undo.engine
    request = undo.request
    candidate = undo.candidate
    ours = list_ours(request.row, candidate)
    yield from candidate.notes
    if candidate.start_failure:
        yield f"{engine.title} does not start without our edits either: {candidate.start_failure}"
    yield from reload_notes.explain_stale_runtimes(engine, candidate.after, ours)
    if not undo.is_restarted:
        return
    yield from reload_notes.explain_restarted_units(engine)
    if request.options.accept_pending:
        yield from next_start.explain_accepted(engine, candidate.after, ours)
    yield from reload_notes.explain_changes(engine, candidate.after, request.facts, ours)


def _make_rows_after_undo(undo: EngineUndo, steps: Sequence[Step]) -> Record:
    """Return the ledger's rows of an engine after the ``steps`` of an undo."""
    row = undo.request.row
    candidate = undo.candidate
    if undo.keeps_runtimes:
        if candidate.demoted:
            row = replace(row, default="")
        return _keep_rows(undo, row, candidate.kept_rows)
    if undo.still_served is not None:
        # The next undo finds nothing more to write, and goes on from here.
        return _keep_rows(undo, row, undo.request.configs)
    return Record(configs=tuple(_keep_named_rows(candidate.rows, steps)))


def _keep_rows(undo: EngineUndo, row: EngineRow, configs: Sequence[ConfigRow]) -> Record:
    """Return the kept rows of an engine that has our runtimes, or may still start our programs."""
    kept_row = replace(row, pending=_find_pending_after_undo(undo))
    is_copy = undo.engine.kind.is_copy  # copies of a root file are looked for each time
    return Record(engines=(kept_row,), configs=tuple(each for each in configs if not is_copy(each.path)))


def _keep_named_rows(configs: Iterable[ConfigRow], steps: Sequence[Step]) -> Iterator[ConfigRow]:
    """Yield the rows, without edits, of files that named the toolkit before us and may still do."""
    texts = {step.path: step.after for step in steps if isinstance(step, WriteConfig)}
    for config in configs:
        if not config.named:
            continue
        last = texts.get(config.path)
        digests = (last.digest,) if last is not None else config.ours
        yield replace(config, ours=digests, edits=())


def _find_pending_after_undo(undo: EngineUndo) -> Pending | None:
    """Return what an engine will not have read at the end of an undo; None for nothing."""
    if undo.still_served is not None:
        return Pending.RESTART_AFTER_UNDO
    # The engine has still never read our config, if the restart of the install was due.
    return undo.request.row.pending if undo.request.row.restart_due else None


def roll_back_engine(
    engine: EngineState,
    written: Sequence[WriteConfig],
    tried: Reload | None,
    in_force: EffectiveConfig | None = None,
) -> Sequence[Step]:
    """Plan to restore an engine's former texts, and the runtimes that the engine served before.

    Args:
        engine: the engine as observed before the failed plan.
        written: the writes of the failed plan, the newest first.
        tried: the restart of the failed plan; None if the plan failed before the restart.
        in_force: the config of an engine asked after its failed reload; None if unknown.
    """
    writes = [replace(step, before=step.after, after=step.before) for step in written]
    restart = decide_for_rollback(engine, tried, in_force)
    if tried is None or restart.when is not When.NOW:
        return writes
    # What dockerd has in force depends on when it failed, so it counts as unknown.
    return plan_reload(writes, expect_after_rollback(engine, tried), None, engine)
