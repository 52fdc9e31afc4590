"""Make edits, undo them, and return no text that differs in anything else: that is proved for each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from installer.config_text import (
    ABSENT,
    MOVED,
    Branch,
    Edit,
    Key,
    Syntax,
    TextError,
    Tree,
    Value,
    Want,
    branch_at,
    dotted,
    drop_doubles,
    json,
    kind_of,
    open_way,
    prune,
    same,
    toml,
)
from installer.errors import InstallerError

BOM: Final = "\ufeff"
MAX_DEPTH: Final = 100
_CONTAINERS: Final = {Syntax.JSON: "an object", Syntax.TOML: "a table"}


class _Grammar(Protocol):
    """How a syntax is read, and how one key of a text is changed: a module."""

    def load(self, text: str) -> Branch: ...
    def value(self, text: str) -> Any: ...
    def literal(self, value: Value) -> str: ...
    def span(self, text: str, key: Key) -> slice | None: ...
    def insert(self, text: str, key: Key, literal: str) -> str: ...
    def remove(self, text: str, key: Key) -> str: ...
    def close(self, text: str, key: Key) -> str: ...


_GRAMMARS: Final[Mapping[Syntax, _Grammar]] = {Syntax.JSON: json, Syntax.TOML: toml}


class Draft(Struct):
    """A text on its way to what is wanted, and the tree it must parse to in the end."""

    text: str
    tree: Branch
    syntax: Syntax
    grammar: _Grammar
    name: str

    @property
    def is_blank(self) -> bool:
        """Whether it needs a text to begin with."""
        return self.syntax is Syntax.JSON and not self.text.strip()

    def literal(self, key: Key) -> str | None:
        """Return the literal that a key holds; None where that is no value."""
        span = self.grammar.span(self.text, key)
        return self.text[span] if span else None

    def find(self, key: Key) -> str:
        """Return the literal of a key that holds a value."""
        if (literal := self.literal(key)) is None:
            problem = f"edit {self.name} ({dotted(key)} is a table, but a value belongs there)"
            raise InstallerError(problem, remedy=f"remove the table {dotted(key)}, then run again")
        return literal

    def insert(self, key: Key, literal: str) -> None:
        """Create ``key`` and whatever containers it needs."""
        self.text = self.grammar.insert(json.START if self.is_blank else self.text, key, literal)
        self._parent(key)[key[-1]] = self.grammar.value(literal)

    def replace(self, key: Key, literal: str | None) -> None:
        """Give ``key``, which is there, another value; take it out for None."""
        if literal is None:
            self.text = self.grammar.remove(self.text, key)
            del self._parent(key)[key[-1]]
        elif span := self.grammar.span(self.text, key):
            self.text = self.text[: span.start] + literal + self.text[span.stop :]
            self._parent(key)[key[-1]] = self.grammar.value(literal)
        else:
            raise TextError(MOVED)

    def close(self, key: Key) -> None:
        """Take the container away if it is empty, or its header if it lives on through others."""
        self.text = self.grammar.close(self.text, key)
        if not branch_at(self.tree, key):
            del self._parent(key)[key[-1]]

    def _parent(self, key: Key) -> Branch:
        self.tree, parent = open_way(self.tree, key[:-1])
        return parent


def parse(text: str, syntax: Syntax, *, name: str) -> Tree:
    """Return the tree of ``text``, called ``name``, of a doubled key the last; raise where it is invalid."""
    tree: Tree = _read(text.removeprefix(BOM), syntax, name)
    return tree if syntax is Syntax.TOML else drop_doubles(tree)


def apply(text: str, wants: Sequence[Want], syntax: Syntax, *, name: str) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with every want fulfilled, and what that took; a want that holds takes nothing.

    The edits are in the order in which they were made. Of a key that was deleted they know the literal but
    not the place. InstallerError where the text is not valid, something else than a container is on the way
    to a key, or a key on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        # In their order; a header for a table that was only named by others may be an edit already.
        edits = tuple(dict.fromkeys(edit for want in wants for edit in _fulfil(draft, want)))
        return finish(draft, text, edits), edits


def undo(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with ``edits`` undone, and those whose key holds something else now.

    A key that is gone or back at what it was is as it should be. A container that others have put something
    into stays. A deleted key comes back at the end of its container, so after a deletion the text is the same
    in meaning only. InstallerError where the text is not valid, or a key on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        # What is in a container goes before the container, in whatever order a ledger kept them.
        left = list(reversed(edits))
        left.sort(key=lambda edit: -len(edit.key))
        # Of two edits of one key the one that is in force is undone; then the key is right.
        for _ in range(2):
            left = [edit for edit in left if not _take_back(draft, edit)]
        return finish(draft, text, edits), tuple(left)


def list_missing(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[Edit, ...]:
    """Return the edits whose key does not hold what they have put there; of two of one key one is enough.

    InstallerError where the text is not valid, or a key on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        values = [edit for edit in edits if edit.key and edit.after != "{}"]
        held = {(edit.key, edit.member) for edit in values if _holds(draft, edit)}
        return tuple(edit for edit in values if (edit.key, edit.member) not in held)


@contextmanager
def open_draft(text: str, syntax: Syntax, name: str) -> Iterator[Draft]:
    """Open a draft of ``text``, ``name`` in messages; InstallerError: it is not valid, or not understood."""
    bare = text.removeprefix(BOM)
    tree = _read(bare, syntax, name)
    try:
        yield Draft(bare, tree, syntax, _GRAMMARS[syntax], name)
    except (TextError, RecursionError) as error:
        raise InstallerError(
            f"edit {name} without touching anything else ({error})",
            remedy="report this as a bug, with the file less its secrets",
        ) from error


def finish(draft: Draft, original: str, edits: Sequence[Edit]) -> str:
    """Return the text; TextError unless it holds the tree. A table of TOML may go with its last key."""
    text = BOM * original.startswith(BOM) + draft.text
    if text != original:
        keys = [edit.key for edit in edits if draft.syntax is Syntax.TOML]
        if not same(prune(_load(draft.text, draft.syntax), keys), prune(draft.tree, keys)):
            raise TextError("the result differs elsewhere")
    return text


def _walk(draft: Draft, key: Key) -> tuple[Any, int]:
    """Return what a key holds, and its length; or what is in the way of it, and how far that is.

    InstallerError where one on the way is there twice.
    """
    now: Any = draft.tree
    for depth, part in enumerate(key):
        if not isinstance(now, dict):
            return now, depth
        if (part, 2) in now:
            twice = dotted(key[: depth + 1])
            raise InstallerError(f"edit {draft.name} ({twice} is there twice)", remedy="keep one of them")
        if (now := now.get(part, ABSENT)) is ABSENT:
            break
    return now, len(key)


def _holds(draft: Draft, edit: Edit) -> bool:
    now, depth = _walk(draft, edit.key)
    gone = depth < len(edit.key) or now is ABSENT
    if gone or edit.after is None:
        return gone and edit.after is None
    value = draft.grammar.value(edit.after)
    return _position(now, value) is not None if edit.member and isinstance(now, list) else same(now, value)


def _fulfil(draft: Draft, want: Want) -> Iterator[Edit]:
    key = want.key
    now, depth = _walk(draft, key)
    if depth < len(key):
        if now is not None and want.value is not ABSENT:  # a null on the way may become a container
            raise _misplaced(draft, key[:depth], now, _CONTAINERS[draft.syntax])
        now = ABSENT
    literal = None if want.value is ABSENT else draft.grammar.literal(want.value)
    if now is ABSENT:
        if literal is not None:
            yield from _create_containers(draft, key)
            yield Edit(key, None, literal, want.member)
            draft.insert(key, f"[{literal}]" if want.member else literal)
    elif want.member and literal is not None:
        if not isinstance(now, list):
            raise _misplaced(draft, key, now, "an array")
        if _position(now, draft.grammar.value(literal)) is None:
            before = draft.find(key)
            yield Edit(key, before, literal, member=True)
            draft.replace(key, toml.add_element(before, literal))
    elif literal is None or not same(now, want.value):
        yield Edit(key, draft.find(key), literal)
        draft.replace(key, literal)


def _create_containers(draft: Draft, key: Key) -> Iterator[Edit]:
    """Yield the containers that ``key`` needs; inserting it will write them."""
    if draft.is_blank:
        yield Edit((), draft.text or None, "{}")
    for depth in range(1, len(key)):
        parent = key[:depth]
        above = branch_at(draft.tree, parent[:-1])
        now = ABSENT if above is None else above.get(parent[-1], ABSENT)
        last = depth == len(key) - 1 and draft.syntax is Syntax.TOML
        if now is None:
            yield Edit(parent, "null", "{}")
            draft.replace(parent, "{}")
        elif now is ABSENT or (last and toml.unopened(draft.text, parent)):
            yield Edit(parent, None, "{}")


def _take_back(draft: Draft, edit: Edit) -> bool:
    """Undo one edit; return whether its key is now as it was, or as others want it."""
    if not edit.key:
        if not draft.tree:
            draft.text = edit.before or ""
        return True
    now, depth = _walk(draft, edit.key)
    if depth < len(edit.key):
        return edit.after is not None
    if now is ABSENT:
        if edit.after is None and edit.before is not None:
            draft.insert(edit.key, edit.before)
        return True
    if edit.member:
        return _take_back_member(draft, edit, now)
    if edit.after == "{}" and isinstance(now, dict) and (now or edit.before is None):
        if edit.before is None:
            draft.close(edit.key)
        return True
    value = draft.grammar.value
    if edit.before is not None and same(now, value(edit.before)):
        return True
    written = edit.after is not None and same(now, value(edit.after))
    if not written or draft.literal(edit.key) is None:
        return False
    draft.replace(edit.key, edit.before)
    return True


def _take_back_member(draft: Draft, edit: Edit, now: Any) -> bool:
    literal = draft.literal(edit.key)
    if not isinstance(now, list) or literal is None or edit.after is None:
        return False
    index = _position(now, draft.grammar.value(edit.after))
    if edit.before is None and (not now or (index is not None and len(now) == 1)):
        draft.replace(edit.key, None)
    elif index is not None:
        as_written = edit.before is not None and toml.add_element(edit.before, edit.after) == literal
        draft.replace(edit.key, edit.before if as_written else toml.remove_element(literal, index))
    return True


def _position(items: list[Any], element: Any) -> int | None:
    """Return where ``element`` is last."""
    return max((i for i, item in enumerate(items) if same(item, element)), default=None)


def _misplaced(draft: Draft, key: Key, now: Any, expected: str) -> InstallerError:
    problem = f"edit {draft.name} ({dotted(key)} is {kind_of(now)}, but {expected} belongs there)"
    return InstallerError(problem, remedy=f"correct {dotted(key)}, then run again")


def _read(text: str, syntax: Syntax, name: str) -> Branch:
    """Return the tree of ``text``, which must not be changed; InstallerError: the text is not valid."""
    try:
        text.encode()
        return _load(text, syntax)
    except (UnicodeEncodeError, RecursionError, TextError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, UnicodeEncodeError):
            reason = f"character {error.start + 1}: half a surrogate pair"
        raise InstallerError(
            f"read {name} as {syntax.name} ({reason})", remedy="correct the file, then run again"
        ) from error


@lru_cache(maxsize=4)
def _load(text: str, syntax: Syntax) -> Branch:
    """Return the tree of a text, which may be megabytes; RecursionError: it is nested too deeply."""
    tree = _GRAMMARS[syntax].load(text)
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        below = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        level = [child for child in below if isinstance(child, dict | list)]
        if not level:
            return tree
    raise RecursionError
