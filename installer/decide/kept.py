"""Which keys of ours an engine keeps at an undo: those that the rest of its config cannot do without."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePosixPath

from installer.decide.configs import DEFAULT, group_of, notes_of, tree_of, without_us
from installer.decide.data import dataclass, replace
from installer.decide.effect import Effect, disturbed
from installer.decide.engines import ENGINES
from installer.decide.engines.model import is_ours, leaves
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File
from installer.decide.needed import default_of_others, needed_next
from installer.decide.options import Options
from installer.decide.part import TRY_AGAIN
from installer.decide.rows import ConfigRow, EngineRow, Saved
from installer.decide.steps import WriteConfig
from installer.decide.texts import Ask, Texts, of_others, present
from installer.decide.undone import runtime_of


@dataclass(frozen=True, slots=True)
class Attempt:
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

    @property
    def paths(self) -> str:
        """The files that would be written, for a sentence."""
        return ", ".join(str(write.path) for write in self.writes)


@dataclass(frozen=True, slots=True)
class Least:
    """The attempt that takes most of ours away; ``now`` and ``after`` are what the files come to.

    ``ours`` are the runtimes that are ours by now, ``needed`` is why the rest of a config cannot do without
    one of them, or without the default.
    """

    attempt: Attempt
    now: Effect | None
    after: Effect | None
    ours: frozenset[str]
    needed: Mapping[str, InstallerError]


def least(row: EngineRow, found: EngineFacts | None, facts: Facts, options: Options, ask: Ask) -> Least:
    """Return the configs of one engine with as little of ours as the rest of them can do with.

    Where containers need our runtimes they stay, and are not the default any more. Where the rest of the
    config needs one (somebody has made it the default, or has taken away what was the default before us),
    that one stays; the engine would not serve anything without.

    Raises:
        InstallerError: no text that is less ours leaves the rest as it is.
    """
    names = frozenset(name for name, _ in row.runtimes)
    used = any(container.engine == row.name for container in facts.running)
    version = found.version if found else None
    stays = used and (not options.in_use.forces or ENGINES[row.name].needs_handler(version))
    groups = _groups(row, facts)
    attempt = _attempt(row, found, facts, (groups | names) - {DEFAULT} if stays else frozenset())
    asked = _less(found, attempt.taken) if found else None
    now = _effect_of(asked, present(asked, facts), ask) if asked else None
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
    after = _effect_of(asked, attempt.texts, ask) if asked else None
    return Least(attempt, now, after, ours, needed)


def with_former(row: EngineRow, facts: Facts) -> EngineRow:
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


def _attempt(row: EngineRow, found: EngineFacts | None, facts: Facts, kept: frozenset[str]) -> Attempt:
    """Return the configs of one engine without any of our keys but those of ``kept``."""
    rows, backups, edited = [], [], False
    notes: list[str] = []
    taken: set[str] = set()
    writes: list[WriteConfig] = []
    for config in (one for one in facts.held.configs if one.engine == row.name):
        path, now = config.path, facts.contents[config.path]
        plain = without_us(path, facts)
        was = without_us(path, facts, kept) if kept else plain
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
    return Attempt(
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


def _effect_of(engine: EngineFacts, texts: Texts, ask: Ask) -> Effect | None:
    """Return what the engine would have; None where its files are not ours to judge."""
    if engine.hook is not None or ENGINES[engine.name].finds:
        return None
    return ask(engine, texts)


def _needs(  # noqa: PLR0913 - what is known of one engine
    engine: EngineFacts,
    attempt: Attempt,
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
    before, after = now, _effect_of(engine, attempt.texts, ask)
    if before is None or after is None or before.broken or before.undefined:
        return frozenset()  # it is somebody else's trouble, and would not be more with our keys
    open_ = groups - attempt.kept - attempt.taken
    if (name := after.undefined) and name in open_:
        if name not in names and not attempt.edited:
            return frozenset()  # as it was before us
        if name in names:
            needed[name] = default_of_others(engine, name, _naming(engine, attempt, name))
        return frozenset({name})
    if name and DEFAULT in open_:
        needed[DEFAULT] = _default_is_gone(engine, name, attempt.paths)
        return frozenset({DEFAULT, before.default} & {*open_, DEFAULT})
    # The default that we made of a runtime which is not ours any more is still ours to undo.
    freed = attempt.taken if DEFAULT in open_ else frozenset()
    named = DEFAULT not in groups and attempt.edited
    lost = partial(_lost, after=after, names=names, freed=freed, named=named)
    lived = ask(engine, theirs) if (wrong := [*lost(before)]) else after
    if not (lived.broken or lived.undefined or [*lost(lived)]):
        return frozenset()
    if rest := sorted(open_ - names - {DEFAULT}):
        return frozenset(rest[:1])
    raise _disturbing(engine, attempt.paths, wrong)


def _naming(engine: EngineFacts, attempt: Attempt, default: str) -> str:
    """Return the files that name the default runtime; a value that is put together stands in none."""
    key, found = ENGINES[engine.name].default_key, []
    for path, file in attempt.texts.items():
        said = leaves(tree_of(file, path)) if file is not None else ()
        if any(each[-1] == key and value == default for each, value in said):
            found.append(str(path))
    return ", ".join(found) or attempt.paths


def _disturbing(engine: EngineFacts, paths: str, wrong: Iterable[str]) -> InstallerError:
    return InstallerError(
        f"undo our edits of {paths} and leave all else of {engine.title} as it is ({'; '.join(wrong)})",
        remedy=f"correct that config, then {TRY_AGAIN}",
        code="config-disturbs-others",
    )


def _default_is_gone(engine: EngineFacts, name: str, paths: str) -> InstallerError:
    """Return why the default runtime that we gave an engine stays."""
    return InstallerError(
        f"make {name} the default runtime of {engine.title} again (nobody defines it any more)",
        remedy=f"define it in {paths}, or name another default there, then {TRY_AGAIN}",
        code="runtime-needed",
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


def refuse_fatal(engine: EngineFacts, now: Effect | None, after: Effect | None) -> None:
    """Raise where an engine that runs would not come up again, for what others have written since its start.

    One whose CRI is switched off, and down by now, may be restarted like that.
    """
    if now is None or after is None or (engine.serving is None and after.rest_digest):
        return
    reason = after.broken
    if not reason and after.undefined and now.undefined:
        reason = f"its default runtime {after.undefined} is not defined"
    if reason:
        raise InstallerError(
            f"undo our edits for {engine.title} (it would not come up again with the config it has: "
            f"{reason})",
            remedy=f"correct that config, then {TRY_AGAIN}",
            code="config-refused",
        )
