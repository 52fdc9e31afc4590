"""One config: what it would be without us, what it should be with us, and the row by which it is undone."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import (
    ABSENT,
    Edit,
    Key,
    Syntax,
    Tree,
    Value,
    Want,
    apply,
    holds,
    parse,
    undo,
    unheld,
)
from installer.engines import ENGINES
from installer.engines.containerd.tables import OLD_TABLE
from installer.errors import InstallerError
from installer.model.engine_spec import FileWants, is_ours, leaves
from installer.model.facts import Facts
from installer.model.files import File, Meta
from installer.model.record import ConfigRow, Saved
from installer.model.steps import WriteConfig

EMPTY: Final = "{}"  # what an edit has made that made a table, or an object
DEFAULT: Final = "the default"  # the key that names the default runtime, whatever the engine calls it
RUNTIMES: Final = "runtimes"  # the table of the runtimes, in all engines
VERSION: Final = ("version",)  # the schema of a TOML text
BUILT_IN: Final = "runc"
# What makes a runtime start something, spelled without case and underscores.
STARTS: Final = frozenset({"binaryname", "runtimepath", "runtimetype", "path"})


class Undone(Struct, frozen=True):
    """A text without our keys.

    ``overruled`` are the edits of ours that somebody else has overruled, and ``emptied`` the settings of
    others in a runtime of ours, which went with it. ``taken`` are the runtimes that somebody has made to
    start something else, with what that is: they stay as they are. ``relied_on`` are the edits of ours
    without which an engine would read otherwise what others have added.
    """

    text: str = ""
    overruled: tuple[Edit, ...] = ()
    emptied: tuple[Key, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    relied_on: tuple[Edit, ...] = ()


class ConfigChange(Struct, frozen=True):
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


def syntax_of(path: PurePosixPath, text: str, name: str = "") -> Syntax:
    """Return the syntax of a config, which may have any name: no TOML begins with a brace."""
    usual = ENGINES[name].config if name in ENGINES else path
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


def without_us(path: PurePosixPath, facts: Facts) -> File | None:
    """Return the file at ``path`` without us: the saved one, or the present one less our keys.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    return take_back(path, facts)[0]


def take_back(path: PurePosixPath, facts: Facts, *, demoted: bool = False) -> tuple[File | None, Undone]:
    """Return the file at ``path`` without us, and what became of its text where that was edited.

    If it is to be ``demoted``, only what makes a runtime of ours the default goes. Keys of a runtime that
    somebody has made to start something else stay. Mode, owner and labels are those of the present file: we
    never change them, so a change is somebody's. Where the saved copy is lost our keys go from the present
    text, as from one that somebody has edited.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    now, row = facts.contents[path], facts.held.config(path)
    if row is None or now is None:
        return now, Undone()
    ours = now.digest in row.ours or _names_our_hook(row, now)
    if ours and not demoted and path not in facts.lost:
        original = facts.originals[path]
        return original and replace(original, meta=now.meta), Undone()
    if row.syntax is None or (is_hook(row) and not ours):
        return now, Undone()  # a file that was ours as a whole is now somebody else's
    going = relocated(row, now)
    if demoted:
        going = tuple(edit for edit in going if group_of(edit.key, row.engine) == DEFAULT)
    was = text_of(facts.originals.get(path), path)
    found = undone(text_of(now, path), going, row.syntax, name=str(path), original=was)
    empty = row.original is None and not found.text.strip()
    return None if empty else File(found.text.encode(), now.meta), found


def is_hook(row: ConfigRow) -> bool:
    """Tell whether a row is that of an OCI hook."""
    return row.path.suffix == ".json" and row.engine in ENGINES and bool(ENGINES[row.engine].hook_dir)


def _names_our_hook(row: ConfigRow, now: File) -> bool:
    """Tell whether an OCI hook starts our program still: it goes whole, for CRI-O dies of a part of one."""
    program, text = [edit for edit in row.edits if edit.key == ("hook", "path")], text_of(now, row.path)
    return bool(row.syntax) and is_hook(row) and not unheld(text, program, Syntax.JSON, name=str(row.path))


def notes_of(path: PurePosixPath, was: Undone) -> Iterator[str]:
    """Yield what the owner of a file should know of the text without us."""
    for edit in was.overruled:
        yield f"left {'.'.join(edit.key)} in {path}: somebody has changed it since"
    for edit in was.relied_on:
        if edit.after != EMPTY:
            yield f"left {'.'.join(edit.key)} in {path}: what others have added there needs it"
    for key in was.emptied:
        yield f"removed {'.'.join(key)} from {path}: it was a setting of our runtime"
    for name, program in was.taken.items():
        yield f"left the runtime {name} in {path} as it is: somebody has made it start {program}"


def relocated(row: ConfigRow, now: File | None) -> tuple[Edit, ...]:
    """Return the edits of a row with their keys where the engine's own tools have moved them since."""
    if row.syntax is None:  # written whole: perhaps of no engine
        return row.edits
    return ENGINES[row.engine].relocate(row.edits, tree_of(now, row.path))


def group_of(key: Key, name: str) -> str:
    """Return what an edit is about: a runtime by its name, ``DEFAULT``, or the last part of another key."""
    default = name in ENGINES and {ENGINES[name].default_key, OLD_TABLE} & {*key[-2:]}
    return runtime_of(key) or (DEFAULT if default else key[-1] if key else "")


def holds_ours(row: ConfigRow, now: File) -> bool:
    """Tell whether a file is a text of a row's, or has by its edits a runtime of ours, or our default."""
    if now.digest in row.ours or row.syntax is None:
        return now.digest in row.ours
    try:
        edits = [edit for edit in relocated(row, now) if _is_about_us(edit, row.engine)]
        return len(unheld(text_of(now, row.path), edits, row.syntax, name=str(row.path))) < len(edits)
    except InstallerError:  # it is told where that file is read
        return False


def _is_about_us(edit: Edit, name: str) -> bool:
    """Tell whether an edit names our program, or makes a runtime of ours the default."""
    named = bool(runtime_of(edit.key)) and is_ours((edit.after or "").strip("\"'"))
    return named or (edit.after is not None and group_of(edit.key, name) == DEFAULT)


def config_change(name: str, wanted: FileWants, facts: Facts) -> ConfigChange:
    """Return what brings one config to what is wanted, touching nothing else in it.

    Raises:
        InstallerError: the text is not valid, or holds another type on the way to a wanted key.
    """
    path, syntax = wanted.path, wanted.syntax
    now, row = facts.contents[path], facts.held.config(path)
    original, without = take_back(path, facts)
    clean, total = apply(text_of(original, path), wanted.wants, syntax, name=str(path))
    stale = tuple(edit for edit in _find_stale(row, now, total, wanted) if edit not in without.relied_on)
    # A table of ours that others have put something into is needed without us: nothing in it is ours to take.
    taken_back = any(edit.after != EMPTY for edit in stale)
    text = text_of(now, path)
    if not taken_back and now is not None and holds(text, wanted.wants, syntax, name=str(path)):
        if row is None and wanted.wants and not _is_copy(name, facts):
            # It says so without us, and is to say so when we are gone.
            return ConfigChange(None, _row_as_found(name, path, now, facts), original)
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
        WriteConfig(name, path, now, after),
        ConfigRow(name, path, syntax, saved, (after.digest,), total, facts.targets.get(path)),
        original,
        taken_back=taken_back,
        adds=row is not None and _wishes(relocated(row, now)) <= _wishes(total),
    )


def _wishes(edits: Iterable[Edit]) -> set[tuple[Key, str | None]]:
    return {(edit.key, edit.after) for edit in edits if edit.after != EMPTY and not is_head(edit.key)}


def untouched(
    name: str, path: PurePosixPath, facts: Facts, toolkits: Collection[PurePosixPath]
) -> ConfigChange | None:
    """Return the row of a file that names our programs without us: another installer's, read beside ours."""
    now, row = facts.contents.get(path), facts.held.config(path)
    values = [value for _, value in leaves(tree_of(now, path))]
    if now is None or not any(isinstance(v, str) and PurePosixPath(v).parent in toolkits for v in values):
        return None
    if row is not None and path not in facts.lost:
        # What it named before our first install is what it may name after us, whatever was added since.
        return ConfigChange(None, row, now, saved=False)
    if row is None and _is_copy(name, facts):
        return None
    return ConfigChange(None, _row_as_found(name, path, now, facts), now)


def _is_copy(name: str, facts: Facts) -> bool:
    """Tell whether a file that names our programs, and has no row, does so because of us: after our install.

    What stands there is no original to come back to: it keeps the toolkit.
    """
    return any(row.name == name for row in facts.held.engines)


def _row_as_found(name: str, path: PurePosixPath, now: File, facts: Facts) -> ConfigRow:
    syntax = syntax_of(path, text_of(now, path), name)
    return ConfigRow(name, path, syntax, Saved.of(now), (now.digest,), (), facts.targets.get(path))


def withdrawn(row: ConfigRow, facts: Facts) -> ConfigChange:
    """Return what takes our keys out of a file that has no part any more in what is wanted.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    now, was = facts.contents[row.path], without_us(row.path, facts)
    step = (
        WriteConfig(row.engine, row.path, now, was, facts.relinked.get(row.path, "")) if now != was else None
    )
    return ConfigChange(step, None, was, taken_back=step is not None)


def _find_stale(
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
    # But for another spelling of what is asked: an engine that ignores case would take either.
    asked = {tuple(map(str.lower, edit.key)) for edit in total}
    return tuple(
        edit
        for edit in found
        if runtime_of(edit.key) not in names or tuple(map(str.lower, edit.key)) in asked
    )


def _asked(edit: Edit) -> tuple[Key, str | None]:
    """Return what an edit is about: a key, or one member of the array at a key."""
    return edit.key, edit.after if edit.member else None


def undone(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str = "") -> Undone:
    """Return ``text`` with ``edits`` undone; ``original`` is the text of before the first of them.

    Raises:
        InstallerError: a text is not valid.
    """
    found = _without(text, edits, syntax, name)
    if relied_on := _find_relied_on(found.text, edits, syntax, name=name, original=original):
        less = [edit for edit in edits if edit not in relied_on]
        return replace(undone(text, less, syntax, name=name, original=original), relied_on=relied_on)
    taken = dict(_find_taken_over(found, edits, syntax, name=name, original=original))
    if not taken:
        return found
    less = [edit for edit in edits if runtime_of(edit.key) not in taken]
    return replace(_without(text, less, syntax, name), taken=taken)


def runtime_of(key: Key) -> str:
    """Return the name of the runtime that a key is about, "" for any other key."""
    place = key.index(RUNTIMES) + 1 if RUNTIMES in key else len(key)
    return key[place] if place < len(key) else ""


def value_at(value: Value, key: Key) -> Value:
    """Return what a tree holds at a key, None where there is nothing."""
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _without(text: str, going: Sequence[Edit], syntax: Syntax, name: str) -> Undone:
    text, overruled = undo(text, going, syntax, name=name)
    changed = {edit.key for edit in overruled}
    text, orphans = _without_orphans(text, going, syntax, name)
    return Undone(
        text,
        tuple(edit for edit in overruled if edit.key not in orphans),
        tuple(key for key, value in orphans.items() if value or key in changed),
    )


def _find_relied_on(
    left: str, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str
) -> tuple[Edit, ...]:
    """Return the edits of ours that others rely on who have added to a text since: ``left`` is without ours.

    The schema says how an engine reads all of it. A table of runtimes has no built-in one in containerd 1.x.
    """
    heads = [edit for edit in edits if syntax is Syntax.TOML and edit.before is None and is_head(edit.key)]
    now, was = (parse(each, syntax, name=name) if heads else {} for each in (left, original))
    return tuple(
        edit
        for edit in heads
        if (there := value_at(now, _above(edit))) and there != value_at(was, _above(edit))
    )


def is_head(key: Key) -> bool:
    """Tell whether a key is no wish of anybody's: it says how the rest of a text is read."""
    return key == VERSION or runtime_of(key) == BUILT_IN


def _above(edit: Edit) -> Key:
    """Return the key of the table whose meaning an edit changes as a whole."""
    return edit.key[: edit.key.index(RUNTIMES) + 1] if RUNTIMES in edit.key else ()


def _find_taken_over(
    found: Undone, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str
) -> Iterator[tuple[str, str]]:
    """Yield the runtimes of ours that somebody has made to start something else, and what that is."""
    now, was = (parse(each, syntax, name=name) for each in (found.text, original))
    created, overruled = _list_created(edits), {edit.key for edit in found.overruled}
    tables = (edit.key[: edit.key.index(RUNTIMES) + 2] for edit in edits if runtime_of(edit.key))
    for key in dict.fromkeys(tables):
        entry = value_at(now, key)
        for below, value in leaves(entry) if isinstance(entry, Mapping) else ():
            place = (*key, *below)
            added = key in created and value != value_at(was, place)
            if _starts(below) and value and (added or place in overruled):
                yield key[-1], str(value)


def _list_created(edits: Sequence[Edit]) -> list[Key]:
    """Return the keys of the runtimes of ours that were not there before us."""
    tables = dict.fromkeys(edit.key for edit in edits if (edit.before, edit.after) == (None, "{}"))
    return [key for key in tables if key[-2:-1] == (RUNTIMES,) and key[-1] != BUILT_IN]


def _starts(key: Key) -> bool:
    return key[-1].lower().replace("_", "") in STARTS


def _without_orphans(
    text: str, going: Sequence[Edit], syntax: Syntax, name: str
) -> tuple[str, dict[Key, Value]]:
    """Return a text less what others have put into runtimes that we created: they start nothing any more."""
    orphans: dict[Key, Value] = {}
    within: set[Key] = set()
    tree = parse(text, syntax, name=name)
    for key in _list_created(going):
        orphan = value_at(tree, key)
        if not isinstance(orphan, Mapping) or any(
            _starts(below) and value for below, value in leaves(orphan)
        ):
            continue
        orphans |= {(*key, *below): value for below, value in leaves(orphan) if value != {}}
        within |= {key, *_containers(orphan, key)}
    if not within:
        return text, {}
    text, _ = apply(text, [Want(each, ABSENT) for each in orphans], syntax, name=name)
    # What held nothing but these is empty by now, the tables above them included.
    closing = [Edit(each, None, "{}") for each in sorted(within, key=len)]
    above = [edit for edit in going if edit.after == "{}" and edit.key not in within]
    text, _ = undo(text, [*above, *closing], syntax, name=name)
    return text, orphans


def _containers(tree: Tree, above: Key) -> Iterator[Key]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield (*above, name)
            yield from _containers(value, (*above, name))
