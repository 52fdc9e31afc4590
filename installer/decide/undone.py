"""A text without our keys: settings of others in a runtime of ours go with it, a runtime taken over stays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from installer.decide.data import dataclass, field, replace
from installer.decide.edits import ABSENT, Edit, Key, Syntax, Tree, Value, Want, apply, parse, undo
from installer.decide.engines.model import is_ours, leaves

RUNTIMES: Final = "runtimes"  # the table of the runtimes, in all engines
VERSION: Final = ("version",)  # the schema of a TOML text
BUILT_IN: Final = "runc"
# What makes a runtime start something, spelled without case and underscores.
STARTS: Final = frozenset({"binaryname", "runtimepath", "runtimetype", "path"})


@dataclass(frozen=True, slots=True)
class Undone:
    """A text without our keys.

    ``overruled`` are the edits of ours that somebody else has overruled, and ``emptied`` the settings of
    others in a runtime of ours, which went with it. ``taken`` are the runtimes that somebody has taken over,
    with what they start: what we wrote there stays, for they do not start without it. ``unnamed`` are those
    of them that named our program besides, and do so no more. ``relied_on`` are the edits of ours without
    which an engine would read otherwise what others have added.
    """

    text: str
    overruled: tuple[Edit, ...] = ()
    emptied: tuple[Key, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    unnamed: frozenset[str] = frozenset()
    relied_on: tuple[Edit, ...] = ()


def undone(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str = "") -> Undone:
    """Return ``text`` with ``edits`` undone; ``original`` is the text of before the first of them.

    Raises:
        InstallerError: a text is not valid.
    """
    found = _without(text, edits, syntax, name)
    if relied_on := _relied_on(found.text, edits, syntax, name=name, original=original):
        less = [edit for edit in edits if edit not in relied_on]
        return replace(undone(text, less, syntax, name=name, original=original), relied_on=relied_on)
    taken = dict(_taken_over(found, edits, syntax, name=name, original=original))
    if not taken:
        return found
    going = [edit for edit in edits if runtime_of(edit.key) not in taken or _names_us(edit)]
    found = _without(text, going, syntax, name)
    overruled = tuple(edit for edit in found.overruled if runtime_of(edit.key) not in taken)
    tree = parse(text, syntax, name=name)
    removed = (edit.key for edit in going if _names_us(edit) and is_ours(value_at(tree, edit.key)))
    unnamed = frozenset(map(runtime_of, removed)) & taken.keys()
    return replace(found, overruled=overruled, taken=taken, unnamed=unnamed)


def runtime_of(key: Key) -> str:
    """Return the name of the runtime that a key is about, "" for any other key."""
    place = key.index(RUNTIMES) + 1 if RUNTIMES in key else len(key)
    return key[place] if place < len(key) else ""


def value_at(tree: Value, key: Key) -> Value:
    """Return what a tree holds at a key, None where there is nothing."""
    for part in key:
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _without(text: str, going: Sequence[Edit], syntax: Syntax, name: str) -> Undone:
    text, overruled = undo(text, going, syntax, name=name)
    changed = {edit.key for edit in overruled}
    text, orphans = _without_orphans(text, going, syntax, name)
    return Undone(
        text,
        tuple(edit for edit in overruled if edit.key not in orphans),
        tuple(key for key, value in orphans.items() if value or key in changed),
    )


def _relied_on(
    left: str, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str
) -> tuple[Edit, ...]:
    """Return the edits of ours that others rely on who have added to a text since: ``left`` is without ours.

    The schema says how an engine reads all of it. A table of runtimes has no built-in one in containerd 1.x.
    """
    heads = [edit for edit in edits if syntax is Syntax.TOML and edit.before is None and _is_head(edit.key)]
    now, was = (parse(each, syntax, name=name) if heads else {} for each in (left, original))
    return tuple(
        edit
        for edit in heads
        if (there := value_at(now, _above(edit))) and there != value_at(was, _above(edit))
    )


def _is_head(key: Key) -> bool:
    return key == VERSION or runtime_of(key) == BUILT_IN


def _above(edit: Edit) -> Key:
    """Return the key of the table whose meaning an edit changes as a whole."""
    return edit.key[: edit.key.index(RUNTIMES) + 1] if RUNTIMES in edit.key else ()


def _taken_over(
    found: Undone, edits: Sequence[Edit], syntax: Syntax, *, name: str, original: str
) -> Iterator[tuple[str, str]]:
    """Yield the runtimes of ours that somebody has made to start something else, and what that is."""
    tree = parse(found.text, syntax, name=name)
    for edit in found.overruled:
        value = value_at(tree, edit.key)
        if runtime_of(edit.key) and _starts(edit.key) and value:
            yield runtime_of(edit.key), str(value)
    created = _created(edits)
    before = parse(original, syntax, name=name) if created else {}
    for key in created:
        entry = value_at(tree, key)
        for below, value in leaves(entry) if isinstance(entry, Mapping) else ():
            if _starts(below) and value and value != value_at(before, (*key, *below)):
                yield key[-1], str(value)


def _created(edits: Sequence[Edit]) -> list[Key]:
    """Return the keys of the runtimes that were not there before us."""
    tables = dict.fromkeys(edit.key for edit in edits if (edit.before, edit.after) == (None, "{}"))
    return [key for key in tables if key[-2:-1] == (RUNTIMES,)]


def _starts(key: Key) -> bool:
    return key[-1].lower().replace("_", "") in STARTS


def _names_us(edit: Edit) -> bool:
    return is_ours((edit.after or "").strip("\"'"))


def _without_orphans(
    text: str, going: Sequence[Edit], syntax: Syntax, name: str
) -> tuple[str, dict[Key, Value]]:
    """Return a text less what others have put into runtimes that we created: they start nothing any more."""
    orphans: dict[Key, Value] = {}
    within: set[Key] = set()
    tree = parse(text, syntax, name=name)
    for key in _created(going):
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
