"""One config: what it would be without us, what it should be with us, and the row by which it is undone."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import dataclass, field, replace
from installer.decide.edits import Edit, Key, Syntax, Tree, apply, holds, parse
from installer.decide.engines import ENGINES
from installer.decide.engines.containerd_config import OLD_TABLE
from installer.decide.engines.model import FileWants, leaves
from installer.decide.errors import InstallerError
from installer.decide.facts import Facts
from installer.decide.inode import File, Meta
from installer.decide.rows import ConfigRow, Saved
from installer.decide.steps import WriteConfig
from installer.decide.undone import runtime_of, undone

EMPTY: Final = "{}"  # what an edit has made that made a table, or an object
DEFAULT: Final = "the default"  # the key that names the default runtime, whatever the engine calls it


@dataclass(frozen=True, slots=True)
class WithoutUs:
    """A file as it would be without us.

    ``left`` are the edits of ours that were to stay; the others are as in ``Undone``.
    """

    file: File | None
    overruled: tuple[Edit, ...] = ()
    left: tuple[Edit, ...] = ()
    emptied: tuple[Key, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    unnamed: frozenset[str] = frozenset()
    relied_on: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What becomes of one config.

    ``step`` is None where the file is as wanted, ``row`` where nothing in it is ours;
    ``original`` is the file without us, to be ``saved`` where it is not yet; ``taken_back`` tells that keys
    we wanted in an earlier run are not wanted any more, ``adds`` that all of them are, with others.
    """

    step: WriteConfig | None
    row: ConfigRow | None
    original: File | None
    taken_back: bool = False
    saved: bool = True
    adds: bool = False


def syntax_of(path: PurePosixPath, text: str, engine: str = "") -> Syntax:
    """Return the syntax of a config, which may have any name: no TOML begins with a brace."""
    usual = ENGINES[engine].config if engine in ENGINES else path
    braced = text.lstrip("\ufeff \t\r\n").startswith("{")
    return Syntax.JSON if braced or ".json" in (path.suffix, usual.suffix) else Syntax.TOML


def text_of(file: File | None, path: PurePosixPath) -> str:
    """Return the text of a config; "" where there is no file.

    Raises:
        InstallerError: the bytes are not UTF-8.
    """
    if file is None:
        return ""
    try:
        return _decoded(file.content)
    except UnicodeDecodeError as error:
        raise InstallerError(
            f"read {path} (byte {error.start} is not UTF-8)",
            remedy="save the file as UTF-8, then run again",
            code="config-unusable",
        ) from error


@lru_cache(maxsize=2)
def _decoded(content: bytes) -> str:
    """Return the text of bytes that are asked for again and again, and may be megabytes, once."""
    return content.decode()


def tree_of(file: File | None, path: PurePosixPath) -> Tree:
    """Return what a config says; an empty tree where there is no file.

    Raises:
        InstallerError: the text is not valid.
    """
    text = text_of(file, path)
    return parse(text, syntax_of(path, text), name=str(path))


def without_us(path: PurePosixPath, facts: Facts, kept: Collection[str] = ()) -> WithoutUs:
    """Return the file at ``path`` without us: the saved one, or the present one less our keys.

    The keys of what ``kept`` names stay (see ``group_of``), and those of a runtime that was taken over. Mode,
    owner and labels are those of the present file: we never change them, so a change is somebody's. Where
    the saved copy is lost our keys go from the present text, as from one that somebody has edited.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    now, row = facts.contents[path], facts.held.config(path)
    if row is None or now is None:
        return WithoutUs(now)
    if now.digest in row.ours and not kept and path not in facts.lost:
        original = facts.originals[path]
        return WithoutUs(original and replace(original, meta=now.meta))
    if row.syntax is None:
        return WithoutUs(now)  # a file that was ours as a whole is now somebody else's
    edits = relocated(row, now)
    going = tuple(edit for edit in edits if _goes(edit, row.engine, kept))
    was = text_of(facts.originals.get(path), path)
    found = undone(text_of(now, path), going, row.syntax, name=str(path), original=was)
    stays = {*edits} - {*going} | {*found.relied_on}
    left = tuple(edit for edit in edits if edit in stays or runtime_of(edit.key) in found.taken)
    empty = row.original is None and not found.text.strip()
    file = None if empty else File(found.text.encode(), now.meta)
    return WithoutUs(file, found.overruled, left, found.emptied, found.taken, found.unnamed, found.relied_on)


def notes_of(path: PurePosixPath, was: WithoutUs) -> Iterator[str]:
    """Yield what the owner of a file should know of the one without us."""
    for edit in was.overruled:
        yield f"left {'.'.join(edit.key)} in {path}: somebody has changed it since"
    for edit in was.relied_on:
        if edit.after != EMPTY:
            yield f"left {'.'.join(edit.key)} in {path}: what others have added there needs it"
    for key in was.emptied:
        yield f"removed {'.'.join(key)} from {path}: it was a setting of our runtime"
    for name, program in was.taken.items():
        how = ", less the name of our program" if name in was.unnamed else " as it is"
        yield f"left the runtime {name} in {path}{how}: somebody has made it start {program}"


def relocated(row: ConfigRow, now: File | None) -> tuple[Edit, ...]:
    """Return the edits of a row with their keys where the engine's own tools have moved them since."""
    if row.syntax is None:  # written whole: perhaps of no engine
        return row.edits
    return ENGINES[row.engine].relocated(row.edits, tree_of(now, row.path))


def group_of(key: Key, engine: str) -> str:
    """Return what an edit is about: a runtime by its name, ``DEFAULT``, or the last part of another key."""
    default = engine in ENGINES and {ENGINES[engine].default_key, OLD_TABLE} & {*key[-2:]}
    return runtime_of(key) or (DEFAULT if default else key[-1] if key else "")


def _goes(edit: Edit, engine: str, kept: Collection[str]) -> bool:
    """Tell whether an edit is to be undone while ``kept`` stay: the tables that hold these stay with them."""
    holds = not runtime_of(edit.key) and edit.after == EMPTY
    return group_of(edit.key, engine) not in kept and not (kept and holds)


def config_change(engine: str, wanted: FileWants, facts: Facts) -> ConfigChange:
    """Return what brings one config to what is wanted, touching nothing else in it.

    Raises:
        InstallerError: the text is not valid, or holds another type on the way to a wanted key.
    """
    path, syntax = wanted.path, wanted.syntax
    now, row = facts.contents[path], facts.held.config(path)
    without = without_us(path, facts)
    original = without.file
    clean, total = apply(text_of(original, path), wanted.wants, syntax, name=str(path))
    stale = tuple(edit for edit in _stale(row, now, total, wanted) if edit not in without.relied_on)
    # A table of ours that others have put something into is needed without us: nothing in it is ours to take.
    taken_back = any(edit.after != EMPTY for edit in stale)
    text = text_of(now, path)
    if not taken_back and now is not None and holds(text, wanted.wants, syntax, name=str(path)):
        if row is None and wanted.wants and not _is_copy(engine, facts):
            # It says so without us, and is to say so when we are gone.
            return ConfigChange(None, _as_found(engine, path, now, facts), original)
        if row is not None and path in facts.lost:  # what is saved anew belongs to the text as it is now
            return ConfigChange(None, replace(row, original=Saved.of(original), ours=(now.digest,)), original)
        return ConfigChange(None, row, original, saved=False)
    if row is None or now is None or now.digest in row.ours:
        target = clean
    else:
        was = text_of(facts.originals.get(path), path)
        base = undone(text, stale, syntax, name=str(path), original=was).text
        target, _ = apply(base, wanted.wants, syntax, name=str(path))
    meta = now.meta if now else original.meta if original else Meta()
    after = File(target.encode(), meta)
    saved = Saved.of(original)
    return ConfigChange(
        WriteConfig(engine, path, now, after),
        ConfigRow(engine, path, syntax, saved, (after.digest,), total, facts.targets.get(path)),
        original,
        taken_back=taken_back,
        adds=row is not None and _values(relocated(row, now)) - _values(without.relied_on) <= _values(total),
    )


def _values(edits: Iterable[Edit]) -> set[tuple[Key, str | None]]:
    return {(edit.key, edit.after) for edit in edits if edit.after != EMPTY}


def untouched(
    engine: str, path: PurePosixPath, facts: Facts, toolkits: Collection[PurePosixPath]
) -> ConfigChange | None:
    """Return the row of a file that names our programs without us: another installer's, read beside ours."""
    now, row = facts.contents.get(path), facts.held.config(path)
    values = [value for _, value in leaves(tree_of(now, path))]
    if now is None or not any(isinstance(v, str) and PurePosixPath(v).parent in toolkits for v in values):
        return None
    if row is not None and path not in facts.lost:
        # What it named before our first install is what it may name after us, whatever was added since.
        return ConfigChange(None, row, now, saved=False)
    if row is None and _is_copy(engine, facts):
        return None
    return ConfigChange(None, _as_found(engine, path, now, facts), now)


def _is_copy(engine: str, facts: Facts) -> bool:
    """Tell whether a file that names our programs, and has no row, does so because of us: after our install.

    What stands there is no original to come back to: it keeps the toolkit.
    """
    return any(row.name == engine for row in facts.held.engines)


def _as_found(engine: str, path: PurePosixPath, now: File, facts: Facts) -> ConfigRow:
    syntax = syntax_of(path, text_of(now, path), engine)
    return ConfigRow(engine, path, syntax, Saved.of(now), (now.digest,), (), facts.targets.get(path))


def withdrawn(row: ConfigRow, facts: Facts) -> ConfigChange:
    """Return what takes our keys out of a file that has no part any more in what is wanted.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    now, was = facts.contents[row.path], without_us(row.path, facts).file
    step = (
        WriteConfig(row.engine, row.path, now, was, facts.relinked.get(row.path, "")) if now != was else None
    )
    return ConfigChange(step, None, was, taken_back=step is not None)


def _stale(
    row: ConfigRow | None, now: File | None, total: Sequence[Edit], wanted: FileWants
) -> tuple[Edit, ...]:
    """Return the edits of an earlier run that this one does not make.

    Where the ledger was lost, nobody knows what an earlier run made of a runtime that is wanted still.
    """
    kept = {_asked(edit) for edit in total}
    found = tuple(edit for edit in relocated(row, now) if _asked(edit) not in kept) if row else ()
    if row is None or row.ours:
        return found
    names = {runtime_of(want.key) for want in wanted.wants} - {""}
    return tuple(edit for edit in found if runtime_of(edit.key) not in names)


def _asked(edit: Edit) -> tuple[Key, str | None]:
    """Return what an edit is about: a key, or one member of the array at a key."""
    return edit.key, edit.after if edit.member else None
