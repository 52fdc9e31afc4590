"""What one engine takes at an undo: everything of ours goes, but for what the rest of its config needs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from installer.decide.configs import DEFAULT, group_of, notes_of, pristine, tree_of
from installer.decide.effect import Effect, disturbed
from installer.decide.engine_part import defaults, others
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry, is_ours, leaves
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File
from installer.decide.needed import default_of_others, needed_next
from installer.decide.options import Options
from installer.decide.reloading import stale_runtimes
from installer.decide.revert import revert
from installer.decide.rows import ConfigRow, EngineRow, Saved
from installer.decide.steps import Reload, Step, WriteConfig
from installer.decide.texts import Ask, Texts, of_others, present
from installer.decide.toolkit_plan import TRY_AGAIN
from installer.decide.undone import runtime_of


@dataclass(frozen=True, slots=True)
class UndoPart:
    """What one engine takes.

    ``kept`` is its row where runtimes of ours stay, ``rows`` are those of its configs; ``needed`` is why the
    rest of a config cannot do without one of them.
    """

    steps: list[Step]
    kept: EngineRow | None
    rows: list[ConfigRow]
    backups: list[File]
    notes: list[str]
    needed: tuple[InstallerError, ...]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The configs of one engine without any of our keys but those of ``kept``.

    ``texts`` is all that it reads then; ``edited`` tells whether others wrote to these files since we did.
    ``taken`` are the runtimes of ours that somebody has taken over: from now on they are the engine's own.
    """

    kept: frozenset[str]
    rows: tuple[ConfigRow, ...]
    writes: tuple[WriteConfig, ...]
    backups: tuple[File, ...]
    notes: tuple[str, ...]
    texts: Texts
    edited: bool
    taken: frozenset[str]


def undo_engine(row: EngineRow, facts: Facts, options: Options, ask: Ask) -> UndoPart:
    """Return what takes our runtimes away from an engine that then has all else as it has it now.

    Where containers need our runtimes they stay, and are not the default any more. Where the rest of the
    config needs one (somebody has made it the default, or has taken away what was the default before us),
    that one stays; the engine would not serve anything without.

    Raises:
        InstallerError: no text that is less ours leaves the rest as it is.
    """
    found = next((each for each in facts.engines if each.name == row.name), None)
    row = _with_former(row, facts)
    names = frozenset(name for name, _ in row.runtimes)
    used = any(container.engine == row.name for container in facts.live)
    version = found.version if found else None
    stays = used and (not options.in_use.forces or ENGINES[row.name].needs_handler(version))
    groups = _groups(row, facts)
    attempt = _attempt(row, found, facts, (groups | names) - {DEFAULT} if stays else frozenset())
    asked = _less(found, attempt.taken) if found else None
    now = _effect(asked, present(asked, facts), ask) if asked else None
    # One that was given another shim alone starts our program no more, which changes it.
    started = now.binaries if now else {}
    ours = names - {name for name in attempt.taken if not is_ours(started.get(name))}
    needed = needed_next(found, ours - attempt.kept)
    if needed:
        attempt = _attempt(row, found, facts, attempt.kept | needed.keys())
    theirs = of_others(asked, facts) if asked else {}
    while asked is not None and (
        more := _needs(asked, attempt, groups, ours, ask, now=now, theirs=theirs, needed=needed)
    ):
        attempt = _attempt(row, found, facts, attempt.kept | more)
    kept = tuple(runtime for runtime in row.runtimes if runtime[0] in attempt.kept)
    left = sorted(attempt.kept) if not kept else []
    after = _effect(asked, attempt.texts, ask) if asked else None
    reload = _reload(row, kept, attempt, found, after)
    # One that comes up neither way has nothing to reload, and its owner has to be told why.
    dead = after.broken if found is not None and found.crashing and after is not None else ""
    steps = revert(
        attempt.writes, reload, None if dead else found, facts, options.restart_mode, effects=(now, after)
    )
    if found is not None and any(isinstance(step, Reload) for step in steps):
        _refuse_fatal(found, now, after)
    return UndoPart(
        steps,
        replace(row, runtimes=kept, default="") if kept else None,
        list(attempt.rows),
        list(attempt.backups),
        [
            *attempt.notes,
            *(
                f"did not {needed[group].problem}"
                if group in needed
                else f"left {group} in the config of {row.name}: the rest of it needs that"
                for group in left
            ),
            *([f"{row.name} does not start without our edits either: {dead}"] if dead else []),
            *(stale_runtimes(found, after, ours) if found is not None else ()),
        ],
        tuple(needed.values()) if kept else (),
    )


def _with_former(row: EngineRow, facts: Facts) -> EngineRow:
    """Return the row with the runtimes of an earlier run that a later one had not yet taken away."""
    toolkits = {str(binary.parent) for _, binary in row.runtimes}
    former: dict[str, PurePosixPath] = {}
    for edit in (edit for config in facts.held.configs if config.engine == row.name for edit in config.edits):
        binary = PurePosixPath((edit.after or "").strip("\"'"))
        if str(binary.parent) in toolkits and (name := runtime_of(edit.key)):
            former[name] = binary
    return replace(row, runtimes=tuple((former | dict(row.runtimes)).items()))


def _groups(row: EngineRow, facts: Facts) -> frozenset[str]:
    """Return what our edits are about: runtimes by name, the default, and other keys by their last part."""
    return frozenset(
        group_of(edit.key, row.name)
        for config in facts.held.configs
        if config.engine == row.name
        for edit in config.edits
        if edit.key and edit.after != "{}"
    )


def _attempt(row: EngineRow, found: EngineFacts | None, facts: Facts, kept: frozenset[str]) -> _Attempt:
    rows, backups, edited = [], [], False
    notes: list[str] = []
    taken: set[str] = set()
    writes: list[WriteConfig] = []
    for config in (one for one in facts.held.configs if one.engine == row.name):
        path, now = config.path, facts.contents[config.path]
        plain = pristine(path, facts)
        was = pristine(path, facts, kept) if kept else plain
        notes += notes_of(path, was)
        taken |= plain.taken.keys()
        if plain.file is not None:
            backups.append(plain.file)
        after = was.file if now is not None else None
        edited |= now is not None and bool(config.ours) and now.digest not in config.ours
        left = replace(config, original=Saved.of(plain.file))
        if kept and after != now:
            left = replace(left, ours=(after.digest,) if after else config.ours, edits=was.left)
        rows.append(left)
        writes.append(WriteConfig(row.name, path, now, after, facts.relinked.get(path, "")))
    texts = {**(present(found, facts) if found else {}), **{write.path: write.after for write in writes}}
    return _Attempt(
        kept, tuple(rows), tuple(writes), tuple(backups), tuple(notes), texts, edited, frozenset(taken)
    )


def _less(engine: EngineFacts, taken: frozenset[str]) -> EngineFacts:
    """Return an engine that tells nothing of the runtimes that were taken over: its files do.

    CRI-O's function fills in from what is served where the files say nothing.
    """
    if engine.serving is None or not taken:
        return engine
    told = {name: one for name, one in engine.serving.handlers.items() if name not in taken}
    return replace(engine, serving=replace(engine.serving, handlers=told))


def _effect(engine: EngineFacts, texts: Texts, ask: Ask) -> Effect | None:
    """Return what the engine would have; None where its files are not ours to judge."""
    if engine.hook is not None or ENGINES[engine.name].finds:
        return None
    return ask(engine, texts)


def _needs(  # noqa: PLR0913 - what is known of one engine
    engine: EngineFacts,
    attempt: _Attempt,
    groups: frozenset[str],
    names: frozenset[str],
    ask: Ask,
    *,
    now: Effect | None,
    theirs: Texts,
    needed: dict[str, InstallerError],
) -> frozenset[str]:
    """Return which keys of ours the engine needs besides those that stay already; none where it is well.

    What comes back that our own file had taken from it, which is not among ``theirs``, disturbs nobody.
    """
    if all(write.before == write.after for write in attempt.writes):
        return frozenset()
    before, after = now, _effect(engine, attempt.texts, ask)
    if before is None or after is None or before.broken or before.undefined:
        return frozenset()  # it is somebody else's trouble, and would not be more with our keys
    open_ = groups - attempt.kept - attempt.taken
    paths = ", ".join(str(write.path) for write in attempt.writes)
    if (name := after.undefined) and name in open_:
        if name not in names and not attempt.edited:
            return frozenset()  # as it was before us
        if name in names:
            needed[name] = default_of_others(engine, name, paths)
        return frozenset({name})
    if after.undefined and DEFAULT in open_:
        needed[DEFAULT] = InstallerError(
            f"make {after.undefined} the default runtime of {engine.name} again (nobody defines it any more)",
            remedy=f"define it in {paths}, or name another default there, then {TRY_AGAIN}",
        )
        return frozenset({DEFAULT, before.default} & {*open_, DEFAULT})
    theirs_alone = DEFAULT not in groups and attempt.edited
    # The default that we made of a runtime which is not ours any more is still ours to undo.
    freed = attempt.taken if DEFAULT in open_ else frozenset()
    wrong = [*_lost(before, after, names, freed, named=theirs_alone)]
    lived = ask(engine, theirs) if wrong else after
    if not (lived.broken or lived.undefined or [*_lost(lived, after, names, freed, named=theirs_alone)]):
        return frozenset()
    rest = sorted(open_ - names - {DEFAULT})
    if rest:
        return frozenset(rest[:1])
    raise InstallerError(
        f"undo our edits of {paths} and leave all else of {engine.name} as it is ({'; '.join(wrong)})",
        remedy=f"correct that config, then {TRY_AGAIN}",
    )


def _lost(
    before: Effect, after: Effect, names: frozenset[str], freed: frozenset[str], *, named: bool
) -> Iterator[str]:
    """Yield what an engine would not have as before; ``named`` tells that its default is not by us.

    None of the ``freed`` is missed as its default.
    """
    if before.default in freed:
        before = replace(before, default=after.default)
    yield from disturbed(before, after, names)
    if named and before.default in names and after.default != before.default:
        yield f"its default runtime would be {after.default}, which somebody has set to {before.default}"


def _refuse_fatal(engine: EngineFacts, now: Effect | None, after: Effect | None) -> None:
    """Raise where an engine that runs would not come up again, for what others have written since its start.

    One whose CRI is switched off, and down by now, may be restarted like that.
    """
    if now is None or after is None or (engine.serving is None and after.rest):
        return
    reason = after.broken
    if not reason and after.undefined and now.undefined:
        reason = f"its default runtime {after.undefined} is not defined"
    if reason:
        raise InstallerError(
            f"undo our edits for {engine.name} (it would not come up again with the config it has: {reason})",
            remedy=f"correct that config, then {TRY_AGAIN}",
        )


def _reload(
    row: EngineRow,
    kept: tuple[tuple[str, PurePosixPath], ...],
    attempt: _Attempt,
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
