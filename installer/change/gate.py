"""The gate of an install: choose texts that serve our runtimes and disturb nothing else.

``choose_texts`` compares what an engine has in force without us, now, and with each candidate.
``_decide_reload`` decides whether the engine is restarted or reloaded for the chosen texts.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import reloading
from installer.engines.config_edits import (
    DEFAULT,
    Ask,
    ConfigChange,
    Texts,
    ask_in_force,
    change_config,
    config_files,
    configs_of,
    digest_of,
    files_without_us,
    group_of,
    read_present,
    record_foreign,
    runtime_of,
    texts_alone,
    withdraw,
)
from installer.errors import InstallerError, NotYetError
from installer.model.engine import (
    Decision,
    EffectiveConfig,
    EngineState,
    Runtime,
    RuntimeEntry,
    find_disturbances,
)
from installer.model.facts import EngineRow, Facts
from installer.model.options import Options, RestartMode
from installer.model.steps import Neighbour, Reload, Step, WriteConfig


class ReloadDecision(Enum):
    """When an engine is restarted or reloaded for the texts that are chosen."""

    NOW = auto()
    NOT_NEEDED = auto()  # the engine serves our runtimes already
    WHEN_IDLE = auto()  # the engine is creating containers; it is restarted after that
    LEFT_TO_OWNER = auto()  # restart-mode is none, or the engine reads hooks by itself


class Candidate(Struct, frozen=True):
    """Texts of one engine that would serve our runtimes: the decision, and the change of each config."""

    decision: Decision
    changes: tuple[ConfigChange, ...]

    @property
    def writes(self) -> tuple[WriteConfig, ...]:
        """The configs to write."""
        return tuple(change.step for change in self.changes if change.step is not None)

    @property
    def texts(self) -> Texts:
        """The texts to write, by path."""
        return {step.path: step.after for step in self.writes}


class Accepted(Struct, frozen=True):
    """The candidate that was chosen for one engine, and the ``steps`` that bring it into force."""

    engine: EngineState
    candidate: Candidate
    reload: Reload
    steps: tuple[Step, ...]
    reload_decision: ReloadDecision
    after: EffectiveConfig | None = None  # in force after the steps; None: nothing is written, or unknown
    heals: bool = False  # the engine reads our earlier text differently now, and cannot serve with it

    @property
    def pending(self) -> NotYetError | None:
        """The reason why the engine is restarted later; None if it is not."""
        if self.reload_decision is ReloadDecision.WHEN_IDLE:
            return reloading.postpone(self.engine)
        return None


class _Request(Struct, frozen=True):
    """The runtimes that one engine is to serve, and everything on which the choice of texts depends."""

    engine: EngineState
    entries: tuple[RuntimeEntry, ...]
    facts: Facts
    options: Options
    ask: Ask
    names: frozenset[str]  # of the entries
    row: EngineRow | None  # the engine's row in the ledger


def choose_texts(
    engine: EngineState, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> Accepted:
    """Return the first candidate by which an engine serves our runtimes and keeps everything else.

    Raises:
        InstallerError: no candidate does; the error is that of the first.
    """
    spec = engine.spec
    request = _Request(
        engine=engine,
        entries=entries,
        facts=facts,
        options=options,
        ask=ask,
        names=frozenset(entry.name for entry in entries),
        row=facts.held.engine(engine.name),
    )
    texts_without_us = files_without_us(engine, facts)
    present_texts = {path: facts.contents.get(path) for path in texts_without_us}
    files = config_files(engine, texts_without_us)
    if request.row is not None and engine.serving is None:
        files = replace(files, serving=_read_inherited(request, present_texts))

    first = next(iter(spec.propose(files, entries, options.extras)))
    first_changes = _find_changes(request, first)
    plainest = _make_candidate(request, first, first_changes)
    unvalidated = _accept(request, plainest)
    if spec.built_in_runtime:
        return unvalidated
    if not unvalidated.steps and _is_in_force(request, plainest):
        return unvalidated

    before = _ask_before_us(request, texts_without_us)
    ours = request.names | _list_former_names(request)

    # What others have put into a file of ours is in force as well, and has to stay in force.
    lived = before
    if present_texts != texts_without_us:
        lived = ask_in_force(engine, facts, present_texts, ask)
    names = request.names | (lived.handlers.keys() - before.handlers.keys())
    now = ask(engine, present_texts)

    refusals: list[InstallerError] = []
    for decision in spec.propose(replace(files, before=before), entries, options.extras):
        changes = first_changes
        if decision.files != first.files:  # else a text of megabytes would be edited twice
            changes = _find_changes(request, decision)
        candidate = _make_candidate(request, decision, changes)
        only_adds = all(change.adds for change in candidate.changes if change.step is not None)
        if only_adds and _is_in_force_unwritten(request, decision, before, now, names):
            candidate = _keep_present_texts(candidate, facts)

        after = ask(engine, {**present_texts, **candidate.texts})
        problems = [*_find_unserved(request, candidate.decision, after)]
        problems += find_disturbances(before, after, names)
        if not (problems or lived.broken or lived.undefined):
            problems += find_disturbances(lived, after, ours)
        # A doubt comes from the texts. The answer of the engine's own program overrules it.
        if not problems and (after.rest_digest or decision.doubt is None):
            is_edited = present_texts != texts_without_us
            heals = bool(now.fatal) and (is_edited or now.undefined in request.names)
            return replace(_accept(request, candidate, after), heals=heals)
        refusals.append(decision.doubt or _refuse(request, decision, present_texts, problems))

    removes_runtimes = bool(unvalidated.reload.absent)
    if not removes_runtimes and _serves_despite_lost_ledger(request, plainest, now):
        return _accept(request, _keep_present_texts(plainest, facts), now)
    raise refusals[0]  # every engine drafts at least one decision


def _list_former_names(request: _Request) -> set[str]:
    """Return the names of the runtimes that earlier installs have given an engine."""
    names: set[str] = set()
    for row in request.facts.held.configs:
        if row.engine == request.engine.name:
            names.update(runtime_of(edit.key) for edit in row.edits)
    if request.row is not None:
        names.update(request.row.runtimes)
    return names


def _read_inherited(request: _Request, present_texts: Texts) -> EffectiveConfig:
    """Return our runtimes as the files of a silent engine define them, with what they have inherited."""
    in_files = texts_alone(request.engine, present_texts).handlers
    return EffectiveConfig({name: in_files[name] for name in request.names & in_files.keys()}, "")


def _serves_despite_lost_ledger(request: _Request, candidate: Candidate, now: EffectiveConfig) -> bool:
    """Tell whether an engine stays unchanged, because it serves everything and the ledger is lost.

    Without a ledger the texts without us are a guess, and no comparison with them counts.
    """
    if not _is_ledger_lost(request):
        return False
    if any(change.taken_back for change in candidate.changes):
        return False
    wants_default = any(entry.default for entry in request.entries)
    has_unwanted_default = now.default in request.names and not wants_default
    lacks_cdi = candidate.decision.cdi and not now.cdi
    if has_unwanted_default or now.broken or lacks_cdi:
        return False
    return not any(_find_unserved(request, candidate.decision, now))


def _is_in_force_unwritten(
    request: _Request,
    decision: Decision,
    before: EffectiveConfig,
    now: EffectiveConfig,
    names: Collection[str],
) -> bool:
    """Tell whether an engine serves our runtimes and all else as before by its present texts."""
    if not now.rest_digest or now.fatal:
        return False
    if any(_find_unserved(request, decision, now)) or any(find_disturbances(before, now, names)):
        return False
    return bool(now.cdi) or not decision.cdi


def _refuse(
    request: _Request, decision: Decision, present_texts: Texts, problems: list[str]
) -> InstallerError:
    """Return why a decision is refused; the remedy names the files of others that name our runtimes."""
    ours = [files.path for files in decision.files]
    words = [f"runtimes.{name}".encode() for name in request.names]
    beside = []
    for path, file in present_texts.items():
        if file and path not in ours and any(word in file.content for word in words):
            beside.append(str(path))
    return InstallerError(
        f"configure {request.engine.name} in {', '.join(map(str, ours))} and leave all else as it is "
        f"({'; '.join(problems)})",
        remedy=f"correct {' and '.join(beside) or 'the config that it has now'}, then run again",
        code="config-disturbs-others",
    )


def _ask_before_us(request: _Request, texts_without_us: Texts) -> EffectiveConfig:
    """Return what an engine would have in force without us.

    Raises:
        InstallerError: the engine refuses the config without us, or its program is of another major version.
    """
    engine = request.engine
    before = request.ask(engine, texts_without_us)
    if before.broken and before.undefined in request.names:
        # A removed toolkit leaves such a config: its default runtime is gone. The install repairs that.
        before = replace(before, broken="")
    if before.broken:
        raise InstallerError(
            f"configure {engine.title} in {engine.config} (it refuses the config it has: {before.broken})",
            remedy=f"{before.remedy or 'correct that config'}, then run again",
            code="config-refused",
        )
    other_major = reloading.explain_other_major(engine, before)
    if other_major is not None and request.options.restart_mode is not RestartMode.NONE:
        raise other_major  # what the other program makes of our text is not the reason
    return before


def _is_in_force(request: _Request, candidate: Candidate) -> bool:
    """Tell whether texts that hold our keys still make the engine serve them, whatever others have added."""
    present_texts = read_present(request.engine, request.facts)
    if request.row is None or request.row.proven in {"", digest_of(present_texts)}:
        return True
    now = request.ask(request.engine, present_texts)
    # Another check reports an engine that would not start; until then it serves.
    return bool(now.fatal) or not any(_find_unserved(request, candidate.decision, now))


def _is_installed_unedited(request: _Request, candidate: Candidate) -> bool:
    """Tell whether the same runtimes were installed in the same files, and these were not edited since."""
    written = {row.path: row.ours for row in configs_of(request.engine, request.facts) if row.written}
    for path, digests in written.items():
        file = request.facts.contents.get(path)
        if file is None or file.digest not in digests:
            return False
    if written.keys() != {files.path for files in candidate.decision.files}:
        return False
    row = request.row
    if row is None:
        return False
    runtimes = {entry.name: entry.binary for entry in request.entries}
    default = next((entry.name for entry in request.entries if entry.default), "")
    return row.runtimes == runtimes and row.default == default


def _keep_present_texts(candidate: Candidate, facts: Facts) -> Candidate:
    """Return a candidate without the writes of files that the ledger knows; their rows stay."""
    changes = []
    for change in candidate.changes:
        row = facts.held.config(change.step.path) if change.step is not None else None
        changes.append(change if row is None else ConfigChange(step=None, row=row, original=None))
    return replace(candidate, changes=tuple(changes))


def _find_changes(request: _Request, decision: Decision) -> tuple[ConfigChange, ...]:
    """Return the change of each config, whether a decision, an earlier install or others wrote to it."""
    engine = request.engine
    facts = request.facts
    changes = [change_config(engine.name, wanted, facts) for wanted in decision.files]
    wanted = {files.path for files in decision.files}
    # Our keys leave a file that an earlier install wrote and that this one does not use.
    former = [row for row in configs_of(engine, facts) if row.path not in wanted and row.written]
    changes += [withdraw(row, facts) for row in former]
    known = {*wanted, *(row.path for row in former)}
    toolkits = {entry.binary.parent for entry in request.entries}
    for path in engine.files:
        if path in known:
            continue
        foreign = record_foreign(engine.name, path, facts, toolkits)
        if foreign is not None:
            changes.append(foreign)
    return tuple(changes)


def _is_ledger_lost(request: _Request) -> bool:
    """Tell whether the rows of an engine were recovered from its configs, because the ledger was lost."""
    return any(row.edits and not row.ours for row in configs_of(request.engine, request.facts))


def _make_candidate(request: _Request, decision: Decision, changes: tuple[ConfigChange, ...]) -> Candidate:
    """Return the candidate of a decision; without writes if the same is installed and in force."""
    if _is_ledger_lost(request):
        # Without a ledger it is not known what our runtimes have inherited.
        decision = replace(decision, shown={})
    candidate = Candidate(decision, changes)
    if not request.engine.spec.reload_misreports or decision.shown:
        return candidate
    if not _is_installed_unedited(request, candidate):
        return candidate
    # What our runtimes inherit was decided when they were written: the engine reports otherwise after a
    # reload, and owners edit.
    unwritten = replace(candidate, decision=replace(decision, shown={}))
    unwritten = _keep_present_texts(unwritten, request.facts)
    return unwritten if _is_in_force(request, unwritten) else candidate


def _find_unserved(request: _Request, decision: Decision, after: EffectiveConfig) -> Iterator[str]:
    """Yield, in words, which of our runtimes an engine would not serve as asked for."""
    if request.engine.hook is not None:
        return
    for entry in request.entries:
        served = after.handlers.get(entry.name)
        if served is None:
            yield f"the runtime {entry.name} would not be there"
        elif not served.shows(Runtime(str(entry.binary), decision.shown.get(entry.name) or {})):
            yield f"the runtime {entry.name} would not be as asked for"
        if entry.default and after.default != entry.name:
            yield f"its default runtime would be {after.default}"


def _accept(request: _Request, candidate: Candidate, after: EffectiveConfig | None = None) -> Accepted:
    """Return a candidate as the accepted one, with its steps; ``after`` is None if no program was asked."""
    engine = request.engine
    reload = _plan_reload(request, candidate, after)
    reload_decision = _decide_reload(request, candidate, reload)
    steps: Sequence[Step] = candidate.writes
    if reload_decision is ReloadDecision.NOW:
        writes = candidate.writes
        if not writes and engine.spec.reads_config_on_signal:
            # dockerd may need an intermediate text although its config does not change.
            config = request.facts.contents[engine.config]
            writes = (WriteConfig(engine.name, engine.config, config, config),)
        steps = reloading.take_up(writes, reload, engine.serving, engine)
    return Accepted(
        engine=engine,
        candidate=candidate,
        reload=reload,
        steps=tuple(steps),
        reload_decision=reload_decision,
        after=after,
    )


def _plan_reload(request: _Request, candidate: Candidate, after: EffectiveConfig | None) -> Reload:
    """Return the reload of an engine, with what the engine has to serve after it."""
    engine = request.engine
    decision = candidate.decision
    present = tuple(replace(entry, table=decision.shown.get(entry.name)) for entry in request.entries)
    if engine.spec.built_in_runtime:
        present = tuple(entry for entry in request.entries if entry.name == engine.spec.built_in_runtime)
    names = {entry.name for entry in present}

    absent = []
    if request.row is not None:
        # Another installer's entry of the same name, which we had taken over, may be back.
        binaries = after.binaries if after is not None else {}
        for name, binary in request.row.runtimes.items():
            if name not in names and binaries.get(name) != str(binary):
                absent.append(RuntimeEntry(name, binary))

    ours = {*names, *(entry.name for entry in absent)}
    return Reload(
        engine.spec,
        present,
        tuple(absent),
        _list_unwanted_defaults(request, candidate, after, ours),
        expect_others(engine, after, ours),
        expect_defaults(engine, after, ours),
        cdi=decision.cdi,
        when_idle=request.options.restart_mode is RestartMode.WHEN_IDLE,
    )


def _decide_reload(request: _Request, candidate: Candidate, reload: Reload) -> ReloadDecision:
    """Decide whether an install restarts or reloads an engine, and when.

    The engine is left alone if it serves everything that the reload would bring about, and if no key of an
    earlier install is removed. ``reloading.explain_refusals`` may still refuse a restart decided here.
    """
    engine = request.engine
    if request.options.restart_mode is RestartMode.NONE or engine.hook is not None:
        return ReloadDecision.LEFT_TO_OWNER
    removes_keys = any(change.taken_back for change in candidate.changes)
    if reload.is_served_by(engine) and not removes_keys and not _repairs_program(request, candidate):
        return ReloadDecision.NOT_NEEDED
    if engine.creating:
        return ReloadDecision.WHEN_IDLE
    return ReloadDecision.NOW


def _repairs_program(request: _Request, candidate: Candidate) -> bool:
    """Tell whether a write repairs a config in force that names a program that is missing."""
    engine = request.engine
    if not (candidate.writes and engine.gone):
        return False
    return bool(request.ask(engine, read_present(engine, request.facts)).broken)


def _list_unwanted_defaults(
    request: _Request, candidate: Candidate, after: EffectiveConfig | None, ours: Collection[str]
) -> frozenset[str]:
    """Return our runtimes that may not be the engine's default after the reload."""
    engine = request.engine
    facts = request.facts
    if engine.spec.built_in_runtime:
        return frozenset()
    # dockerd keeps a default that its file does not name any more. An engine that is restarted keeps none:
    # only an unfinished install of ours counts, since the owner may have prepared a start of his own.
    by_signal = engine.spec.reads_config_on_signal
    if not (by_signal or _has_unfinished_default(request)):
        return frozenset()
    if after is None:
        after = texts_alone(engine, {**read_present(engine, facts), **candidate.texts})
    return frozenset({*ours} - {after.default})


def _has_unfinished_default(request: _Request) -> bool:
    """Tell whether an install of ours has set the default, is pending, or did not finish."""
    if request.row is None:
        return False
    if request.row.pending or not request.facts.held.finished:
        return True
    for row in configs_of(request.engine, request.facts):
        if any(group_of(edit.key, request.engine.name) == DEFAULT for edit in row.edits):
            return True
    return False


def expect_defaults(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> frozenset[str]:
    """Return the runtimes that may be the engine's default after a reload; none if that is not known."""
    if engine.serving is None or (after is not None and after.broken):
        return frozenset()
    now = engine.serving.default
    if after is None:
        return frozenset({now})
    if now in {*ours}:
        return frozenset({after.default})
    return frozenset({now, after.default} - {""})


def expect_others(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> tuple[Neighbour, ...]:
    """Return the runtimes of others that an engine serves and has to serve after a reload.

    Each is served as now, or as the engine's files define it.
    """
    if engine.serving is None:
        return ()
    served = engine.serving.handlers
    names = sorted(served.keys() - {*ours})
    if after is None:
        return tuple(Neighbour(name, (served[name],)) for name in names)
    # An administrator may have edited them without a reload. A runtime that he removed is not missed.
    return tuple(
        Neighbour(name, (served[name], after.handlers[name])) for name in names if name in after.handlers
    )
