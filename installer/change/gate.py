"""The gate of an install: which texts bring ours into force and leave all else in force as before."""

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
from installer.model.engine_spec import (
    Decision,
    EffectiveConfig,
    ReloadMethod,
    Runtime,
    RuntimeEntry,
    find_disturbances,
)
from installer.model.facts import EngineRow, EngineState, Facts
from installer.model.options import Options, RestartMode
from installer.model.steps import Neighbour, Reload, Step, WriteConfig


class TakesUp(Enum):
    """When an engine takes up the texts that are chosen for it."""

    NOW = auto()
    SERVES = auto()  # it serves that already
    LATER = auto()  # it is creating containers, and is to be restarted when it is idle
    LEFT = auto()  # its owner restarts it, or it reads hooks by itself


class Way(Struct, frozen=True):
    """One way to have it served: the decision, and what becomes of each config."""

    decision: Decision
    changes: tuple[ConfigChange, ...]

    @property
    def writes(self) -> tuple[WriteConfig, ...]:
        """What is written."""
        return tuple(change.step for change in self.changes if change.step is not None)

    @property
    def texts(self) -> Texts:
        """The texts that are written."""
        return {step.path: step.after for step in self.writes}


class Choice(Struct, frozen=True):
    """The way that was chosen for one engine, and the ``steps`` by which it takes that up."""

    engine: EngineState
    way: Way
    reload: Reload
    steps: tuple[Step, ...]
    takes_up: TakesUp
    after: EffectiveConfig | None = None  # in force then; None where nothing is written, or that is not known
    heals: bool = False  # the engine cannot serve with what we wrote earlier, which it reads otherwise now

    @property
    def pending(self) -> NotYetError | None:
        """Why the engine takes it up later, if it does."""
        return reloading.postpone(self.engine) if self.takes_up is TakesUp.LATER else None


class _Wish(Struct, frozen=True):
    """What one engine is to serve, and all that the choice of its texts depends on."""

    engine: EngineState
    entries: tuple[RuntimeEntry, ...]
    facts: Facts
    options: Options
    ask: Ask
    names: frozenset[str]  # of the entries
    row: EngineRow | None  # what is held of the engine


def choose(
    engine: EngineState, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> Choice:
    """Return the first texts by which an engine serves ours and has all else as before; raise for none."""
    spec, names_of_ours = engine.spec, frozenset(entry.name for entry in entries)
    wish = _Wish(engine, entries, facts, options, ask, names_of_ours, facts.held.engine(engine.name))
    texts = files_without_us(engine, facts)
    files, now = config_files(engine, texts), {path: facts.contents.get(path) for path in texts}
    if wish.row is not None and engine.serving is None:  # what ours have inherited then stands in its files
        stood = texts_alone(engine, now).handlers
        kept = {name: stood[name] for name in wish.names & stood.keys()}
        files = replace(files, serving=EffectiveConfig(kept, ""))
    first = next(iter(spec.draft(files, entries, options.extras)))
    changes = _find_changes(wish, first)
    plain = _find_way(wish, first, changes)
    choice = _make_choice(wish, plain)
    if spec.finds or (not choice.steps and _is_in_force(wish, plain)):
        return choice  # nothing is written
    before = _ask_before_us(wish, texts)
    edits = [edit for row in facts.held.configs if row.engine == engine.name for edit in row.edits]
    former = {runtime_of(edit.key) for edit in edits} | {*(wish.row.runtimes if wish.row else ())}
    ours = wish.names | former
    # What others have put into a file of ours is in force as well, and has to stay so.
    lived = ask_in_force(engine, facts, now, ask) if now != texts else before
    names = wish.names | (lived.handlers.keys() - before.handlers.keys())
    found, refusals = ask(engine, now), []
    for decision in spec.draft(replace(files, before=before), entries, options.extras):
        same = decision.files == first.files  # a text of megabytes is edited once
        way = _find_way(wish, decision, changes if same else _find_changes(wish, decision))
        adds = all(change.adds for change in way.changes if change.step is not None)
        if adds and found.rest_digest and not found.fatal:
            wrong = [*_find_unserved(wish, decision, found), *find_disturbances(before, found, names)]
            way = way if wrong or (decision.cdi and not found.cdi) else _as_it_stands(way, facts)
        after = ask(engine, {**now, **way.texts})
        wrong = [*_find_unserved(wish, way.decision, after), *find_disturbances(before, after, names)]
        if not (wrong or lived.broken or lived.undefined):
            wrong += find_disturbances(lived, after, ours)
        # The engine's program knows better than the texts do.
        if not wrong and (after.rest_digest or decision.doubt is None):
            heals = bool(found.fatal) and (now != texts or found.undefined in wish.names)
            return replace(_make_choice(wish, way, after), heals=heals)
        refusals.append(decision.doubt or _refuse(wish, decision, now, wrong))
    # What it has without us is a guess where the ledger is lost: it stays as it is if it serves ours.
    goes = choice.reload.absent or any(change.taken_back for change in plain.changes)
    stays = _is_lost(wish) and not goes
    is_default = found.default in wish.names and not any(entry.default for entry in entries)
    lacks = is_default or found.broken or (first.cdi and not found.cdi)
    if stays and not (lacks or any(_find_unserved(wish, plain.decision, found))):
        return _make_choice(wish, _as_it_stands(plain, facts), found)
    raise refusals[0]  # each engine has one way at least


def _refuse(wish: _Wish, decision: Decision, now: Texts, wrong: list[str]) -> InstallerError:
    """Return why a decision is not taken, with the files of others that say something of runtimes of ours."""
    ours = [files.path for files in decision.files]
    words = [f"runtimes.{name}".encode() for name in wish.names]
    beside = [
        str(path)
        for path, file in now.items()
        if file and path not in ours and any(word in file.content for word in words)
    ]
    return InstallerError(
        f"configure {wish.engine.name} in {', '.join(map(str, ours))} and leave all else as it is "
        f"({'; '.join(wrong)})",
        remedy=f"correct {' and '.join(beside) or 'the config that it has now'}, then run again",
        code="config-disturbs-others",
    )


def _ask_before_us(wish: _Wish, texts: Texts) -> EffectiveConfig:
    """Return what an engine has in force without us; raise where it refuses that itself."""
    engine, before = wish.engine, wish.ask(wish.engine, texts)
    if before.broken and before.undefined in wish.names:  # as a toolkit leaves that was removed: we heal it
        before = replace(before, broken="")
    if before.broken:
        raise InstallerError(
            f"configure {engine.title} in {engine.config} (it refuses the config it has: {before.broken})",
            remedy=f"{before.remedy or 'correct that config'}, then run again",
            code="config-refused",
        )
    other = reloading.explain_other_major(engine, before)
    if other is not None and wish.options.restart_mode is not RestartMode.NONE:
        raise other  # what that program makes of our text is not the reason
    return before


def _is_in_force(wish: _Wish, way: Way) -> bool:
    """Tell whether texts that hold what is wanted still come to it, whatever others have written since."""
    now = read_present(wish.engine, wish.facts)
    if wish.row is None or wish.row.proven in {"", digest_of(now)}:
        return True
    found = wish.ask(wish.engine, now)
    # That it would not start is another check's; it serves until then.
    return bool(found.fatal) or not any(_find_unserved(wish, way.decision, found))


def _is_held(wish: _Wish, way: Way) -> bool:
    """Tell whether the same was installed in the same place, and was not edited since."""
    row, contents = wish.row, wish.facts.contents
    default = next((entry.name for entry in wish.entries if entry.default), "")
    runtimes = {entry.name: entry.binary for entry in wish.entries}
    ours = {row.path: row.ours for row in configs_of(wish.engine, wish.facts) if row.written}
    as_written = all((file := contents.get(path)) and file.digest in ours[path] for path in ours)
    same = row is not None and (row.runtimes, row.default) == (runtimes, default)
    return same and as_written and ours.keys() == {files.path for files in way.decision.files}


def _as_it_stands(way: Way, facts: Facts) -> Way:
    """Return a way without its writes: the engine has what is wanted in force."""
    rows = ((change, change.step and facts.held.config(change.step.path)) for change in way.changes)
    kept = (ConfigChange(None, row, None) if row else each for each, row in rows)
    return replace(way, changes=tuple(kept))


def _find_changes(wish: _Wish, decision: Decision) -> tuple[ConfigChange, ...]:
    engine, facts = wish.engine, wish.facts
    changes = [change_config(engine.name, wanted, facts) for wanted in decision.files]
    wanted = {files.path for files in decision.files}
    # A file that an earlier run wrote and that has no part in this one holds nothing of ours any more.
    former = [row for row in configs_of(engine, facts) if row.path not in wanted and row.written]
    changes += [withdraw(row, facts) for row in former]
    known = {*wanted, *(row.path for row in former)}
    toolkits = {entry.binary.parent for entry in wish.entries}
    for path in engine.files:
        if path not in known and (found := record_foreign(engine.name, path, facts, toolkits)) is not None:
            changes.append(found)
    return tuple(changes)


def _is_lost(wish: _Wish) -> bool:
    return any(row.edits and not row.ours for row in configs_of(wish.engine, wish.facts))


def _find_way(wish: _Wish, decision: Decision, changes: tuple[ConfigChange, ...]) -> Way:
    engine, facts = wish.engine, wish.facts
    if _is_lost(wish):
        decision = replace(decision, shown={})  # of a lost ledger: what ours inherited is not known any more
    way = Way(decision, changes)
    if not engine.spec.reload_misreports or decision.shown or not _is_held(wish, way):
        return way
    # What ours inherit was decided when they were written: a reload reports otherwise, and owners edit.
    stands = _as_it_stands(replace(way, decision=replace(decision, shown={})), facts)
    return stands if _is_in_force(wish, stands) else way


def _find_unserved(wish: _Wish, decision: Decision, after: EffectiveConfig) -> Iterator[str]:
    for entry in wish.entries if wish.engine.hook is None else ():
        found = after.handlers.get(entry.name)
        if found is None:
            yield f"the runtime {entry.name} would not be there"
        elif not found.shows(Runtime(str(entry.binary), decision.shown.get(entry.name) or {})):
            yield f"the runtime {entry.name} would not be as asked for"
        if entry.default and after.default != entry.name:
            yield f"its default runtime would be {after.default}"


def _make_choice(wish: _Wish, way: Way, after: EffectiveConfig | None = None) -> Choice:
    engine, decision = wish.engine, way.decision
    asked = tuple(replace(entry, table=decision.shown.get(entry.name)) for entry in wish.entries)
    if finds := engine.spec.finds:
        asked = tuple(entry for entry in wish.entries if entry.name == finds)
    names = {entry.name for entry in asked}
    # Another installer's entry of that name, which we had taken over, may be back.
    back = after.binaries if after is not None else {}
    absent = tuple(
        RuntimeEntry(name, binary)
        for name, binary in (wish.row.runtimes.items() if wish.row else ())
        if name not in names and back.get(name) != str(binary)
    )
    writes = way.writes
    if not writes and engine.spec.reload is ReloadMethod.HUP:  # it may need a text in between
        now = wish.facts.contents[engine.config]
        writes = (WriteConfig(engine.name, engine.config, now, now),)
    ours = {*names, *(entry.name for entry in absent)}
    reload = Reload(
        engine.spec,
        asked,
        absent,
        _list_unwanted_defaults(wish, way, after, ours),
        expect_others(engine, after, ours),
        expect_defaults(engine, after, ours),
        cdi=decision.cdi,
        when_idle=wish.options.restart_mode is RestartMode.WHEN_IDLE,
    )
    takes_up = TakesUp.NOW
    if wish.options.restart_mode is RestartMode.NONE or engine.hook is not None:
        takes_up = TakesUp.LEFT
    elif (
        reload.is_served_by(engine)
        and not any(change.taken_back for change in way.changes)
        # What it has read names a program that is none.
        and not (way.writes and engine.gone and wish.ask(engine, read_present(engine, wish.facts)).broken)
    ):
        takes_up = TakesUp.SERVES
    elif engine.creating:
        takes_up = TakesUp.LATER
    steps: Sequence[Step] = way.writes
    if takes_up is TakesUp.NOW:
        steps = reloading.take_up(writes, reload, engine.serving, engine)
    return Choice(engine, way, reload, tuple(steps), takes_up, after)


def _list_unwanted_defaults(
    wish: _Wish, way: Way, after: EffectiveConfig | None, ours: Collection[str]
) -> frozenset[str]:
    """Return our runtimes that an engine may not have as its default any more."""
    engine, facts = wish.engine, wish.facts
    # dockerd keeps a default that its file does not name any more. Of one that is restarted only what an
    # install of ours has left for later: its owner may have prepared a start of his own.
    edits = [edit for row in configs_of(engine, facts) for edit in row.edits]
    owed = wish.row is not None and (
        wish.row.pending
        or not facts.held.finished
        or DEFAULT in {group_of(edit.key, engine.name) for edit in edits}
    )
    if not (owed or engine.spec.reload is ReloadMethod.HUP) or engine.spec.finds:
        return frozenset()
    in_force = after or texts_alone(engine, {**read_present(engine, facts), **way.texts})
    return frozenset({*ours} - {in_force.default})


def expect_defaults(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> frozenset[str]:
    """Return what an engine's default may be after a reload; nothing where that is not known."""
    if engine.serving is None or (after is not None and after.broken):
        return frozenset()
    now = engine.serving.default
    if after is None:
        return frozenset({now})
    return frozenset({after.default} if now in {*ours} else {now, after.default} - {""})


def expect_others(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> tuple[Neighbour, ...]:
    """Return what else an engine serves, and has to serve after a reload: as now, or as its files say."""
    if engine.serving is None:
        return ()
    served = engine.serving.handlers
    names = sorted(served.keys() - {*ours})
    if after is None:
        return tuple(Neighbour(name, (served[name],)) for name in names)
    # An administrator may have edited them without a reload; what was removed is not missed.
    return tuple(
        Neighbour(name, (served[name], after.handlers[name])) for name in names if name in after.handlers
    )
