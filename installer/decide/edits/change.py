"""Make edits, undo them, and return no text that differs in anything else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from installer.decide.edits import json, toml
from installer.decide.edits.draft import BOM, Draft, loaded, understood
from installer.decide.edits.grammar import Grammar
from installer.decide.edits.model import ABSENT, Edit, Key, Syntax, Tree, Want
from installer.decide.edits.toml_array import with_element, without_element
from installer.decide.edits.tree import Branch, branch_at, dotted, doubled, kind_of, plain, same
from installer.decide.errors import InstallerError

_GRAMMARS: Final[Mapping[Syntax, Grammar]] = {Syntax.JSON: json.GRAMMAR, Syntax.TOML: toml.GRAMMAR}


def parse(text: str, syntax: Syntax, *, name: str) -> Tree:
    """Return the tree of ``text``; an empty text is an empty tree, of a doubled name the last counts.

    ``name`` is the host's path, for the message.

    Raises:
        InstallerError: the text is not valid.
    """
    tree: Tree = loaded(text.removeprefix(BOM), _GRAMMARS[syntax], name)
    return tree if syntax is Syntax.TOML else plain(tree)


def apply(text: str, wants: Sequence[Want], syntax: Syntax, *, name: str) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with every want fulfilled, and what that took; a want that holds takes nothing.

    The edits are in the order in which they were made. Of a key that was deleted
    they know the literal but not the place.

    Raises:
        InstallerError: the text is not valid, something else than a container is on
            the way to a key, or a key on the way is there twice.
    """
    draft = Draft.of(text, _GRAMMARS[syntax], name)
    # In their order; a header for a table that was only named by others may be an edit already.
    edits: dict[Edit, None] = {}
    with understood(name):
        for want in wants:
            edits |= dict.fromkeys(_fulfil(draft, want))
    return draft.finished(tuple(edits)), tuple(edits)


def holds(text: str, wants: Sequence[Want], syntax: Syntax, *, name: str) -> bool:
    """Return whether every want is fulfilled in ``text``.

    Raises:
        InstallerError: as ``apply``.
    """
    draft = Draft.of(text, _GRAMMARS[syntax], name)
    with understood(name):
        return not any(True for want in wants for _ in _fulfil(draft, want))


def undo(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with ``edits`` undone, and those whose key holds something else by now.

    A key that is gone or back at what it was is as it should be. A container that
    others have put something into stays. A deleted key comes back at the end of
    its container, so after a deletion the text is the same in meaning only.

    Raises:
        InstallerError: the text is not valid.
    """
    draft = Draft.of(text, _GRAMMARS[syntax], name)
    with understood(name):
        # What is in a container goes before the container, in whatever order a ledger kept them.
        backwards = list(reversed(edits))
        backwards.sort(key=lambda edit: -len(edit.key))
        left = tuple(edit for edit in backwards if not _take_back(draft, edit))
        # Of two edits of one key the one that is in force is undone; then the key is right.
        left = tuple(edit for edit in left if not _take_back(draft, edit))
    return draft.finished(edits), left


def unheld(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[Edit, ...]:
    """Return the edits whose key does not hold what they have put there; of two of one key one is enough.

    Raises:
        InstallerError: the text is not valid.
    """
    draft = Draft.of(text, _GRAMMARS[syntax], name)
    values = [edit for edit in edits if edit.key and edit.after != "{}"]
    held = {(edit.key, edit.member) for edit in values if _holds(draft, edit)}
    return tuple(edit for edit in values if (edit.key, edit.member) not in held)


def _holds(draft: Draft, edit: Edit) -> bool:
    now: Any = draft.tree
    for part in edit.key:
        if not isinstance(now, dict) or doubled(now, part) or (now := now.get(part, ABSENT)) is ABSENT:
            return edit.after is None
    if edit.after is None:
        return False
    value = draft.grammar.value(edit.after)
    return _position(now, value) is not None if edit.member and isinstance(now, list) else same(now, value)


def _fulfil(draft: Draft, want: Want) -> Iterator[Edit]:
    if want.member and draft.grammar is not _GRAMMARS[Syntax.TOML]:
        raise ValueError(f"{dotted(want.key)}: only TOML arrays take members")
    now = _on_the_way(draft, want)
    if want.value is ABSENT:
        if now is not ABSENT:
            yield Edit(want.key, _literal(draft, want.key), None)
            draft.remove(want.key)
        return
    literal = draft.grammar.literal(want.value)
    if want.member:
        yield from _fulfil_member(draft, want.key, now, literal)
    elif now is ABSENT:
        yield from _containers(draft, want.key)
        yield Edit(want.key, None, literal)
        draft.insert(want.key, literal)
    elif not same(now, want.value):
        yield Edit(want.key, _literal(draft, want.key), literal)
        draft.replace(want.key, literal)


def _fulfil_member(draft: Draft, key: Key, now: Any, literal: str) -> Iterator[Edit]:
    if now is ABSENT:
        yield from _containers(draft, key)
        yield Edit(key, None, literal, member=True)
        draft.insert(key, f"[{literal}]")
        return
    if not isinstance(now, list):
        raise _misplaced(draft, key, now, "an array")
    if _position(now, draft.grammar.value(literal)) is None:
        before = _literal(draft, key)
        yield Edit(key, before, literal, member=True)
        draft.replace(key, with_element(before, literal))


def _containers(draft: Draft, key: Key) -> Iterator[Edit]:
    """Yield the containers that ``key`` needs; inserting it will write them."""
    if draft.grammar.start and not draft.text.strip():
        yield Edit((), draft.text or None, "{}")
    for depth in range(1, len(key)):
        parent = key[:depth]
        above = branch_at(draft.tree, parent[:-1])
        now = ABSENT if above is None else above.get(parent[-1], ABSENT)
        if now is None:
            yield Edit(parent, "null", "{}")
            draft.replace(parent, "{}")
        elif now is ABSENT or (depth == len(key) - 1 and draft.grammar.unopened(draft.text, parent)):
            yield Edit(parent, None, "{}")


def _on_the_way(draft: Draft, want: Want) -> Any:
    """Return what the wanted key holds, after a look at every name that leads there."""
    now: Any = draft.tree
    for depth, part in enumerate(want.key):
        if now is None:
            return ABSENT
        if not isinstance(now, dict):
            if want.value is ABSENT:
                return ABSENT
            raise _misplaced(draft, want.key[:depth], now, draft.grammar.container)
        if doubled(now, part):
            key = dotted(want.key[: depth + 1])
            raise InstallerError(f"edit {draft.name} ({key} is there twice)", remedy="keep one of them")
        now = now.get(part, ABSENT)
        if now is ABSENT:
            return ABSENT
    return now


def _take_back(draft: Draft, edit: Edit) -> bool:
    """Undo one edit; return whether its key is now as it was, or as others want it."""
    if not edit.key:
        if not draft.tree:
            draft.text = edit.before or ""
        return True
    now: Any = draft.tree
    for part in edit.key:
        if not isinstance(now, dict) or doubled(now, part):
            return edit.after is not None and not isinstance(now, dict)
        now = now.get(part, ABSENT)
        if now is ABSENT:
            break
    if now is ABSENT:
        if edit.after is None and edit.before is not None:
            draft.insert(edit.key, edit.before)
        return True
    if edit.member:
        return _take_back_member(draft, edit, now)
    if edit.after == "{}" and isinstance(now, dict):
        return _take_back_container(draft, edit, now)
    return _take_back_value(draft, edit, now)


def _take_back_value(draft: Draft, edit: Edit, now: Any) -> bool:
    value = draft.grammar.value
    if edit.before is not None and same(now, value(edit.before)):
        return True
    ours = edit.after is not None and same(now, value(edit.after))
    if not ours or draft.grammar.find(draft.text, edit.key) is None:
        return False
    if edit.before is None:
        draft.remove(edit.key)
    else:
        draft.replace(edit.key, edit.before)
    return True


def _take_back_container(draft: Draft, edit: Edit, now: Branch) -> bool:
    if edit.before is None:
        draft.close(edit.key)
        return True
    if now:
        return True
    if draft.grammar.find(draft.text, edit.key) is None:
        return False
    draft.replace(edit.key, edit.before)
    return True


def _take_back_member(draft: Draft, edit: Edit, now: Any) -> bool:
    literal = draft.grammar.find(draft.text, edit.key)
    if not isinstance(now, list) or literal is None or edit.after is None:
        return False
    index = _position(now, draft.grammar.value(edit.after))
    if edit.before is None and (not now or (index is not None and len(now) == 1)):
        draft.remove(edit.key)
    elif index is None:
        return True
    elif edit.before is not None and with_element(edit.before, edit.after) == literal:
        draft.replace(edit.key, edit.before)
    else:
        draft.replace(edit.key, without_element(literal, index))
    return True


def _position(items: list[Any], element: Any) -> int | None:
    """Return where ``element`` is last."""
    return max((i for i, item in enumerate(items) if same(item, element)), default=None)


def _literal(draft: Draft, key: Key) -> str:
    literal = draft.grammar.find(draft.text, key)
    if literal is None:
        raise InstallerError(
            f"edit {draft.name} ({dotted(key)} is a table, but a value belongs there)",
            remedy=f"remove the table {dotted(key)}, then run again",
        )
    return literal


def _misplaced(draft: Draft, key: Key, now: Any, expected: str) -> InstallerError:
    return InstallerError(
        f"edit {draft.name} ({dotted(key)} is {kind_of(now)}, but {expected} belongs there)",
        remedy=f"correct {dotted(key)}, then run again",
    )
