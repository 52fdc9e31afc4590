"""Which texts an engine is given at an install: with our entries, and all else in force as before."""

from collections.abc import Iterable, Iterator

from installer.decide import reloading, restarts
from installer.decide.configs import (
    ConfigChange,
    config_change,
    untouched,
    withdrawn,
)
from installer.decide.data import dataclass, replace
from installer.decide.effect import Effect, Handler, disturbed
from installer.decide.engines import ENGINES
from installer.decide.engines.model import Decision, RuntimeEntry
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts
from installer.decide.options import Options, RestartMode
from installer.decide.steps import Neighbour, Reload, Step
from installer.decide.texts import (
    Ask,
    Texts,
    config_files,
    configs_of,
    digest_of,
    files_without_us,
    in_force,
    present,
)
from installer.decide.undone import runtime_of


@dataclass(frozen=True, slots=True)
class Choice:
    """The texts chosen for one engine, and the ``steps`` by which it takes them up.

    ``after`` is what it has in force then; None where nothing is written, or nobody can tell. It ``heals`` an
    engine if that cannot serve with what we wrote earlier, which it reads otherwise by now; it ``waits`` if
    the engine is creating containers, and has to be restarted later.
    """

    engine: EngineFacts
    decision: Decision
    changes: tuple[ConfigChange, ...]
    reload: Reload
    steps: tuple[Step, ...]
    after: Effect | None = None
    heals: bool = False
    waits: bool = False

    @property
    def writes(self) -> bool:
        """Whether a config changes."""
        return any(change.step is not None for change in self.changes)

    @property
    def texts(self) -> Texts:
        """What is written."""
        return _written(self.changes)

    @property
    def reloads(self) -> bool:
        """Whether the engine has to read it now."""
        return any(isinstance(step, Reload) for step in self.steps)

    @property
    def names(self) -> frozenset[str]:
        """The names of our runtimes, those of earlier runs too."""
        return _names((*self.reload.present, *self.reload.absent))


def choose(
    engine: EngineFacts, entries: tuple[RuntimeEntry, ...], facts: Facts, options: Options, ask: Ask
) -> Choice:
    """Return the texts that make one engine serve our runtimes, and leave all else in force as it is.

    Of the ways that its configs allow the first is taken whose texts come to just that.

    Raises:
        InstallerError: there is none.
    """
    texts = files_without_us(engine, facts)
    files = config_files(engine, texts)
    plainest = next(iter(ENGINES[engine.name].edits(files, entries, options.extras)))
    plain = _way(engine, plainest, entries, facts, ask)
    choice = _choice(plain, entries, facts, options)
    if ENGINES[engine.name].finds or (not choice.steps and _in_force(plain, entries, facts, ask)):
        return choice  # nothing is written
    before = _before_us(engine, texts, ask, _names(entries))
    ours = _names(entries) | _former(engine, facts)
    now = {path: facts.contents.get(path) for path in texts}
    # What others have put into a file of ours is in force as well, and has to stay so.
    lived = in_force(engine, facts, now, ask) if now != texts else before
    found, refusals = ask(engine, now), []
    for decision in ENGINES[engine.name].edits(replace(files, before=before), entries, options.extras):
        way = _way(engine, decision, entries, facts, ask)
        if way.adds and found.rest_digest and not found.fatal:
            wrong = [*_unserved(engine, decision, found, entries), *disturbed(before, found, _names(entries))]
            way = way if wrong or (decision.cdi and not found.cdi) else _as_it_stands(way, facts)
        after = ask(engine, {**now, **way.texts})
        wrong = [*_unserved(engine, way.decision, after, entries), *disturbed(before, after, _names(entries))]
        if not (wrong or lived.broken or lived.undefined):
            wrong += disturbed(lived, after, ours)
        told = bool(after.rest_digest)  # by the engine's program, which knows better than a look at the texts
        if not wrong and (told or decision.doubt is None):
            heals = bool(found.fatal) and (now != texts or found.undefined in _names(entries))
            return replace(_choice(way, entries, facts, options, after), heals=heals)
        refusals.append(decision.doubt or _refusal(way, wrong))
    raise refusals[0]  # each engine has one way at least


def _before_us(engine: EngineFacts, texts: Texts, ask: Ask, names: frozenset[str]) -> Effect:
    """Return what an engine has in force without us; raise where it refuses that itself.

    What it refuses for want of a definition that is ours, as a toolkit leaves that was removed, we heal.
    """
    before = ask(engine, texts)
    if before.broken and before.undefined in names:
        before = replace(before, broken="")
    if before.broken:
        raise InstallerError(
            f"configure {engine.title} in {engine.config} (it refuses the config it has: {before.broken})",
            remedy="correct that config, then run again",
            code="config-refused",
        )
    return before


def _former(engine: EngineFacts, facts: Facts) -> frozenset[str]:
    """Return the names of our runtimes of earlier runs."""
    rows = [row for row in facts.held.configs if row.engine == engine.name]
    held = {name for row in facts.held.engines if row.name == engine.name for name, _ in row.runtimes}
    return frozenset(held | {runtime_of(edit.key) for row in rows for edit in row.edits})


def _refusal(way: "_Way", wrong: Iterable[str]) -> InstallerError:
    name, paths = way.engine.name, ", ".join(map(str, way.texts))
    return InstallerError(
        f"configure {name} in {paths} and leave all else as it is ({'; '.join(wrong)})",
        remedy="correct the config that it has now, then run again",
        code="config-disturbs-others",
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """One way: its changes, and the rows whose files are not ours any more in it."""

    engine: EngineFacts
    decision: Decision
    changes: tuple[ConfigChange, ...]

    @property
    def texts(self) -> Texts:
        return _written(self.changes)

    @property
    def adds(self) -> bool:
        return all(change.adds for change in self.changes if change.step is not None)


def _written(changes: Iterable[ConfigChange]) -> Texts:
    return {change.step.path: change.step.after for change in changes if change.step is not None}


def _in_force(way: "_Way", entries: Iterable[RuntimeEntry], facts: Facts, ask: Ask) -> bool:
    """Tell whether texts that hold what is wanted still come to it, whatever others have written since."""
    now = present(way.engine, facts)
    held = next((row for row in facts.held.engines if row.name == way.engine.name), None)
    if held is None or held.proven in {"", digest_of(now)} or (found := ask(way.engine, now)).fatal:
        return True  # what would not start is told for itself: it serves until then
    return not any(_unserved(way.engine, way.decision, found, entries))


def _is_held(way: "_Way", entries: Iterable[RuntimeEntry], facts: Facts) -> bool:
    """Tell whether the same was installed in the same place, and nobody has written there since."""
    default = next((entry.name for entry in entries if entry.default), "")
    asked = (way.engine.name, tuple((entry.name, entry.binary) for entry in entries), default)
    ours = {row.path: row.ours for row in configs_of(way.engine, facts) if row.written}
    as_written = all((file := facts.contents.get(path)) and file.digest in ours[path] for path in ours)
    same = any((row.name, row.runtimes, row.default) == asked for row in facts.held.engines)
    return same and as_written and ours.keys() == {files.path for files in way.decision.files}


def _as_it_stands(way: "_Way", facts: Facts) -> "_Way":
    """Return a way without its writes: the engine has what is wanted in force."""
    rows = ((change, change.step and facts.held.config(change.step.path)) for change in way.changes)
    changes = (replace(change, step=None, row=row, saved=False) if row else change for change, row in rows)
    return replace(way, changes=tuple(changes))


def _way(
    engine: EngineFacts, decision: Decision, entries: tuple[RuntimeEntry, ...], facts: Facts, ask: Ask
) -> _Way:
    changes = [config_change(engine.name, wanted, facts) for wanted in decision.files]
    wanted = {files.path for files in decision.files}
    if any(row.edits and not row.ours for row in configs_of(engine, facts)):
        decision = replace(decision, shown={})  # of a lost ledger: what ours inherited is not known any more
    held = [row for row in configs_of(engine, facts) if row.path not in wanted]
    # A file that an earlier run wrote and that has no part in this one holds nothing of ours any more.
    changes += [withdrawn(row, facts) for row in held if row.written]
    known = {*wanted, *(row.path for row in held if row.written)}
    toolkits = {entry.binary.parent for entry in entries}
    for path in engine.files:
        if path not in known and (found := untouched(engine.name, path, facts, toolkits)) is not None:
            changes.append(found)
    way = _Way(engine, decision, tuple(changes))
    if not ENGINES[engine.name].reload_misreports or not _is_held(way, entries, facts):
        return way
    # What ours inherit was decided when they were written: a reload reports otherwise, and owners edit.
    stands = _as_it_stands(replace(way, decision=replace(decision, shown={})), facts)
    return stands if _in_force(stands, entries, facts, ask) else way


def _names(entries: Iterable[RuntimeEntry]) -> frozenset[str]:
    return frozenset(entry.name for entry in entries)


def _unserved(
    engine: EngineFacts, decision: Decision, after: Effect, entries: Iterable[RuntimeEntry]
) -> Iterator[str]:
    """Yield what our runtimes would lack."""
    for entry in entries if engine.hook is None else ():
        found = after.handlers.get(entry.name)
        if found is None:
            yield f"the runtime {entry.name} would not be there"
        elif not found.shows(Handler(str(entry.binary), decision.shown.get(entry.name) or {})):
            yield f"the runtime {entry.name} would not be as asked for"
        if entry.default and after.default != entry.name:
            yield f"its default runtime would be {after.default}"


def _choice(
    way: _Way,
    entries: tuple[RuntimeEntry, ...],
    facts: Facts,
    options: Options,
    after: Effect | None = None,
) -> Choice:
    engine, decision = way.engine, way.decision
    asked = _of_engine(engine, entries, decision)
    held = next((row for row in facts.held.engines if row.name == engine.name), None)
    names = _names(asked)
    gone = tuple(
        RuntimeEntry(*runtime) for runtime in (held.runtimes if held else ()) if runtime[0] not in names
    )
    # Another installer's entry of that name, which we had taken over, may be back.
    still = after.binaries if after is not None else {}
    gone = tuple(entry for entry in gone if still.get(entry.name) != str(entry.binary))
    writes = reloading.writes_for(engine, way.changes, facts.contents)
    ours = {*names, *_names(gone)}
    reload = Reload(
        engine.name,
        asked,
        gone,
        reloading.unwanted_defaults(engine, (*asked, *gone), writes),
        others(engine, after, ours),
        defaults(engine, after, ours),
        cdi=decision.cdi,
    )
    unasked = options.restart_mode is RestartMode.NONE or engine.hook is not None
    quiet = unasked or (engine.serves(reload) and not any(change.taken_back for change in way.changes))
    changed = (change.step for change in way.changes if change.step is not None)
    waits = not quiet and restarts.waits(engine, options)
    steps = changed if quiet or waits else reloading.take_up(writes, reload, engine.serving, engine)
    return Choice(engine, decision, way.changes, reload, tuple(steps), after, waits=waits)


def _of_engine(
    engine: EngineFacts, entries: tuple[RuntimeEntry, ...], decision: Decision
) -> tuple[RuntimeEntry, ...]:
    """Return the entries that an engine has to serve, with what it has to show of them."""
    if finds := ENGINES[engine.name].finds:
        return tuple(entry for entry in entries if entry.name == finds)
    return tuple(replace(entry, table=decision.shown.get(entry.name)) for entry in entries)


def defaults(engine: EngineFacts, after: Effect | None, ours: Iterable[str]) -> frozenset[str]:
    """Return what an engine's default may be after a reload; nothing where that is not known."""
    if engine.serving is None or (after is not None and after.broken):
        return frozenset()
    told = engine.serving.default
    if after is None:
        return frozenset({told})
    return frozenset({after.default} if told in {*ours} else {told, after.default} - {""})


def others(engine: EngineFacts, after: Effect | None, ours: Iterable[str]) -> tuple[Neighbour, ...]:
    """Return what else an engine serves, and has to serve after a reload: as now, or as its files say.

    Somebody may have edited these without a reload of his own; what he took away is not missed.
    """
    if engine.serving is None:
        return ()
    served = engine.serving.handlers
    names = sorted(served.keys() - {*ours})
    if after is None:
        return tuple(Neighbour(name, (served[name],)) for name in names)
    return tuple(
        Neighbour(name, (served[name], after.handlers[name])) for name in names if name in after.handlers
    )
