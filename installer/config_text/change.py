"""Make edits, undo them, and return no text that differs in anything else: that is proved for each."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Self

from msgspec import Struct

from installer.config_text import json, toml
from installer.config_text.grammar import Grammar
from installer.config_text.model import ABSENT, Edit, Key, Syntax, Tree, Want
from installer.config_text.toml_scan import array_at, comma_after
from installer.config_text.tree import (
    Branch,
    TextError,
    branch_at,
    dotted,
    doubled,
    kind_of,
    opened,
    plain,
    pruned,
    same,
)
from installer.errors import InstallerError

_GRAMMARS: Final[Mapping[Syntax, Grammar]] = {Syntax.JSON: json.GRAMMAR, Syntax.TOML: toml.GRAMMAR}
BOM: Final = "\ufeff"
MAX_DEPTH: Final = 100
_BLANK: Final = " \t"
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")


class Draft(Struct):
    """A text on its way to what is wanted, and the tree it must parse to in the end."""

    original: str
    text: str
    tree: Branch
    grammar: Grammar
    name: str

    @classmethod
    def of(cls, text: str, grammar: Grammar, name: str) -> Self:
        """Return the draft of ``text``, which ``name`` stands for in messages."""
        bare = text.removeprefix(BOM)
        return cls(text, bare, loaded(bare, grammar, name), grammar, name)

    def finished(self, edits: Sequence[Edit]) -> str:
        """Return the text, once it is proved to hold the tree."""
        bom = BOM if self.original.startswith(BOM) else ""
        if bom + self.text == self.original:
            return self.original
        with understood(self.name):
            tree = _tree(self.text, self.grammar)
            keys = [edit.key for edit in edits] if self.grammar.vanishing else []
            if not same(pruned(tree, keys), pruned(self.tree, keys)):
                raise TextError("the result differs elsewhere")
        return bom + self.text

    def insert(self, key: Key, literal: str) -> None:
        """Create ``key`` and whatever containers it needs."""
        if self.grammar.start and not self.text.strip():
            self.text = self.grammar.start
        self.text = self.grammar.insert(self.text, key, literal)
        self._parent(key)[key[-1]] = self.grammar.value(literal)

    def replace(self, key: Key, literal: str) -> None:
        """Give ``key``, which is there, another value."""
        self.text = self.grammar.replace(self.text, key, literal)
        self._parent(key)[key[-1]] = self.grammar.value(literal)

    def remove(self, key: Key) -> None:
        """Delete ``key``, which is there."""
        self.text = self.grammar.remove(self.text, key)
        del self._parent(key)[key[-1]]

    def close(self, key: Key) -> None:
        """Take the container away if it is empty, or its header if it lives on through others."""
        self.text = self.grammar.close(self.text, key)
        if not branch_at(self.tree, key):
            del self._parent(key)[key[-1]]

    def _parent(self, key: Key) -> Branch:
        self.tree, parent = opened(self.tree, key[:-1])
        return parent


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


def with_element(array: str, element: str) -> str:
    """Return the literal ``array`` with ``element`` at its end."""
    items = array_at(array, 0).items or ()
    if not items:
        head, newline, tail = array[:-1].rpartition("\n")
        if not newline:
            return f"[{element}{array[1:]}"
        eol = "\r\n" if head.endswith("\r") else "\n"
        head = head.removesuffix("\r")
        return f"{head}{eol}{tail}  {element},{eol}{tail}]"
    last = items[-1]
    newline, indent = _line_start(array, items[-2].end if len(items) > 1 else 1, last.start)
    comma = comma_after(array, last.end)
    added = f"{newline}{indent}{element}" if newline else f" {element}"
    if comma is None:
        at = _content_end(array, last.end) if newline else last.end
        return f"{array[: last.end]},{array[last.end : at]}{added}{array[at:]}"
    at = _content_end(array, comma + 1) if newline else comma + 1
    return f"{array[:at]}{added},{array[at:]}"


def without_element(array: str, index: int) -> str:
    """Return the literal ``array`` without its element ``index``, its comma and its line."""
    items = array_at(array, 0).items or ()
    start, end = items[index].start, items[index].end
    comma = comma_after(array, end)
    if comma is not None:
        array = array[:end] + array[end:comma].strip(_BLANK) + array[comma + 1 :]
    elif index:
        comma = comma_after(array, items[index - 1].end)
        if comma is not None:
            array = array[:comma] + array[comma + 1 :]
            start, end = start - 1, end - 1
    head, tail = array[:start].rstrip(_BLANK), array[end:].lstrip(_BLANK)
    if head.endswith("\n") and tail.startswith(("\n", "\r\n")):
        return head.removesuffix("\n").removesuffix("\r") + tail
    if comma is not None and index == len(items) - 1:
        return head + array[end:]
    return array[:start] + tail


def _line_start(array: str, after: int, start: int) -> tuple[str, str]:
    """Return the line end and the indentation before ``start``, empty if it shares a line."""
    head, newline, indent = array[after:start].rpartition("\n")
    if not newline:
        return "", ""
    return ("\r\n" if head.endswith("\r") else "\n"), re.sub(r"[^ \t].*", "", indent)


def _content_end(array: str, pos: int) -> int:
    """Return where the line of ``pos`` ends, or ``pos`` if more than a comment follows on it."""
    match = _REST_OF_LINE.match(array, pos)
    return match.end() if match else pos


def loaded(text: str, grammar: Grammar, name: str) -> Branch:
    """Return the tree of ``text``, which others use too: it must not be changed.

    Raises:
        InstallerError: the text is not valid.
    """
    try:
        text.encode()
        return _tree(text, grammar)
    except UnicodeEncodeError as error:
        reason: object = f"character {error.start + 1}: half a surrogate pair"
        raise _unreadable(name, grammar, reason) from error
    except RecursionError as error:
        raise _unreadable(name, grammar, "nested too deeply") from error
    except TextError as error:
        raise _unreadable(name, grammar, error) from error


@lru_cache(maxsize=4)
def _tree(text: str, grammar: Grammar) -> Branch:
    """Return the tree of a text; it is asked for again and again, and may be megabytes.

    Raises:
        RecursionError: it is nested deeper than anybody writes.
    """
    tree = grammar.load(text)
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        below = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        level = [child for child in below if isinstance(child, dict | list)]
        if not level:
            return tree
    raise RecursionError


def _unreadable(name: str, grammar: Grammar, reason: object) -> InstallerError:
    return InstallerError(
        f"read {name} as {grammar.title} ({reason})",
        remedy="correct the file, then run again",
    )


@contextmanager
def understood(name: str) -> Iterator[None]:
    """Turn text that is not understood into an error for the operator."""
    try:
        yield
    except (TextError, RecursionError) as error:
        raise InstallerError(
            f"edit {name} without touching anything else ({error})",
            remedy="report this as a bug, with the file less its secrets",
        ) from error
