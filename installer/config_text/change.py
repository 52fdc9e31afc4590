"""Make edits and undo them. Each result is parsed again: an edited text differs in nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Protocol

from msgspec import Struct

from installer.config_text import (
    ABSENT,
    EMPTY,
    MOVED,
    Branch,
    Edit,
    Key,
    Syntax,
    TextError,
    Tree,
    Value,
    WantedKey,
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
    """A module for a syntax: reads a text, and changes a key of a text."""

    def load(self, text: str) -> Branch: ...
    def value(self, text: str) -> Any: ...
    def literal(self, value: Value) -> str: ...
    def span(self, text: str, key: Key) -> slice | None: ...
    def insert(self, text: str, key: Key, literal: str) -> str: ...
    def remove(self, text: str, key: Key) -> str: ...
    def close(self, text: str, key: Key) -> str: ...


_GRAMMARS: Final[Mapping[Syntax, _Grammar]] = {Syntax.JSON: json, Syntax.TOML: toml}


class Draft(Struct):
    """A text while edits are made, and the tree to which the finished text must parse."""

    text: str
    tree: Branch
    syntax: Syntax
    grammar: _Grammar
    name: str

    @property
    def is_blank(self) -> bool:
        """Whether the text is an empty JSON file, which needs ``json.START`` to begin with."""
        return self.syntax is Syntax.JSON and not self.text.strip()

    def literal(self, key: Key) -> str | None:
        """Return the literal of a key; None if the key is missing, or is a table below a header."""
        span = self.grammar.span(self.text, key)
        return self.text[span] if span else None

    def find(self, key: Key) -> str:
        """Return the literal of a key.

        Raises:
            InstallerError: the key is a table below a header.
        """
        literal = self.literal(key)
        if literal is None:
            problem = f"edit {self.name} ({dotted(key)} is a table, but a value belongs there)"
            raise InstallerError(problem, remedy=f"remove the table {dotted(key)}, then run again")
        return literal

    def insert(self, key: Key, literal: str) -> None:
        """Create ``key`` and the missing containers on the way."""
        text = json.START if self.is_blank else self.text
        self.text = self.grammar.insert(text, key, literal)
        self._parent(key)[key[-1]] = self.grammar.value(literal)

    def replace(self, key: Key, literal: str | None) -> None:
        """Give an existing ``key`` another value; None removes the key."""
        if literal is None:
            self.text = self.grammar.remove(self.text, key)
            del self._parent(key)[key[-1]]
            return

        span = self.grammar.span(self.text, key)
        if not span:
            raise TextError(MOVED)
        self.text = self.text[: span.start] + literal + self.text[span.stop :]
        self._parent(key)[key[-1]] = self.grammar.value(literal)

    def close(self, key: Key) -> None:
        """Remove the container ``key`` if it is empty; of a table with other headers only the own header."""
        self.text = self.grammar.close(self.text, key)
        if not branch_at(self.tree, key):
            del self._parent(key)[key[-1]]

    def _parent(self, key: Key) -> Branch:
        """Return the container of ``key`` in the draft's tree, as a copy for changes."""
        self.tree, parent = open_way(self.tree, key[:-1])
        return parent


def parse(text: str, syntax: Syntax, *, name: str) -> Tree:
    """Return the tree of ``text``; of pairs with the same name the last counts.

    Args:
        text: the config.
        syntax: the syntax of the config.
        name: the config's name for errors.

    Raises:
        InstallerError: the text is not valid.
    """
    tree: Tree = _read(text.removeprefix(BOM), syntax, name)
    return tree if syntax is Syntax.TOML else drop_doubles(tree)


def apply(
    text: str, wanted_keys: Sequence[WantedKey], syntax: Syntax, *, name: str
) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with the wanted keys, and the edits; a key with its wanted value needs no edit.

    The edits are in the order of making. The edit of a deleted key has the literal but not the
    place.

    Raises:
        InstallerError: the text is not valid, a value that is no container is on the way to a key, or a key
            on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        # A dict keeps the order. The header of a table that only other headers named may be an edit already.
        made: dict[Edit, None] = {}
        for wanted in wanted_keys:
            made.update(dict.fromkeys(_fulfil(draft, wanted)))
        edits = tuple(made)
        return finish(draft, text, edits), edits


def undo(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[str, tuple[Edit, ...]]:
    """Return ``text`` with ``edits`` undone, and the edits that others have changed since.

    A key that is gone, or has its former value, needs no undo. A container with content of others stays. A
    deleted key comes back at the end of its container, so after a deletion the text is the same in meaning
    only.

    Raises:
        InstallerError: the text is not valid, or a key on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        # The keys in a container go before the container, in whatever order a ledger kept the edits.
        remaining = list(reversed(edits))
        remaining.sort(key=_count_names, reverse=True)
        # Of two edits of one key the first pass undoes the edit in force, the second pass accepts the other.
        for _ in range(2):
            remaining = [edit for edit in remaining if not _undo_edit(draft, edit)]
        return finish(draft, text, edits), tuple(remaining)


def _count_names(edit: Edit) -> int:
    """Return the number of names in the key of an edit."""
    return len(edit.key)


def list_missing(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> tuple[Edit, ...]:
    """Return the edits without their value in ``text``; with two edits of a key, either value counts.

    Raises:
        InstallerError: the text is not valid, or a key on the way is there twice.
    """
    with open_draft(text, syntax, name) as draft:
        values = [edit for edit in edits if edit.key and edit.after != EMPTY]
        in_force = {(edit.key, edit.member) for edit in values if _is_in_force(draft, edit)}
        return tuple(edit for edit in values if (edit.key, edit.member) not in in_force)


def has_any(text: str, edits: Sequence[Edit], syntax: Syntax, *, name: str) -> bool:
    """Tell whether ``text`` has the value of an edit; a container is no value. Raises as ``list_missing``."""
    values = [edit for edit in edits if edit.key and edit.after != EMPTY]
    return len(list_missing(text, values, syntax, name=name)) < len(values)


def make_literal(value: Value, syntax: Syntax) -> str:
    """Return a value as a text of ``syntax`` has it."""
    return _GRAMMARS[syntax].literal(value)


@contextmanager
def open_draft(text: str, syntax: Syntax, name: str) -> Iterator[Draft]:
    """Open a draft of ``text``, called ``name`` in errors.

    Raises:
        InstallerError: the text is not valid, or an edit within the context is not possible.
    """
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
    """Return the text of a draft, with the byte order mark of ``original``.

    Raises:
        TextError: the text does not parse to the draft's tree. A table of TOML may go with its last key.
    """
    text = draft.text
    if original.startswith(BOM):
        text = BOM + text
    if text != original:
        keys = [edit.key for edit in edits] if draft.syntax is Syntax.TOML else []
        if not same(prune(_load(draft.text, draft.syntax), keys), prune(draft.tree, keys)):
            raise TextError("the result differs elsewhere")
    return text


def _walk(draft: Draft, key: Key) -> tuple[Any, int]:
    """Return the value at ``key`` and the length of ``key``; or the value in the way, and the depth there.

    Raises:
        InstallerError: a name on the way is there twice.
    """
    value: Any = draft.tree
    for depth, name in enumerate(key):
        if not isinstance(value, dict):
            return value, depth
        if (name, 2) in value:
            twice = dotted(key[: depth + 1])
            raise InstallerError(f"edit {draft.name} ({twice} is there twice)", remedy="keep one of them")
        value = value.get(name, ABSENT)
        if value is ABSENT:
            break
    return value, len(key)


def _is_in_force(draft: Draft, edit: Edit) -> bool:
    """Tell whether the key of an edit has the edit's value; for a deletion: whether the key is missing."""
    present, depth = _walk(draft, edit.key)
    is_missing = depth < len(edit.key) or present is ABSENT
    if is_missing or edit.after is None:
        return is_missing and edit.after is None
    value = draft.grammar.value(edit.after)
    if edit.member and isinstance(present, list):
        return _position(present, value) is not None
    return same(present, value)


def _fulfil(draft: Draft, wanted: WantedKey) -> Iterator[Edit]:
    """Make the draft hold a wanted key; yield each edit before the edit is made."""
    key = wanted.key
    present, depth = _walk(draft, key)
    if depth < len(key):
        if present is not None and wanted.value is not ABSENT:  # a null on the way may become a container
            raise _misplaced(draft, key[:depth], present, _CONTAINERS[draft.syntax])
        present = ABSENT

    literal = None if wanted.value is ABSENT else draft.grammar.literal(wanted.value)
    if present is ABSENT:
        if literal is not None:
            yield from _create_containers(draft, key)
            yield Edit(key, None, literal, wanted.member)
            draft.insert(key, f"[{literal}]" if wanted.member else literal)
    elif wanted.member and literal is not None:
        if not isinstance(present, list):
            raise _misplaced(draft, key, present, "an array")
        if _position(present, draft.grammar.value(literal)) is None:
            before = draft.find(key)
            yield Edit(key, before, literal, member=True)
            draft.replace(key, toml.add_element(before, literal))
    elif literal is None or not same(present, wanted.value):
        yield Edit(key, draft.find(key), literal)
        draft.replace(key, literal)


def _create_containers(draft: Draft, key: Key) -> Iterator[Edit]:
    """Yield the edits of the missing containers of ``key``; the insertion of ``key`` writes them."""
    if draft.is_blank:
        yield Edit((), draft.text or None, EMPTY)
    for depth in range(1, len(key)):
        container = key[:depth]
        parent = branch_at(draft.tree, container[:-1])
        present = ABSENT if parent is None else parent.get(container[-1], ABSENT)
        gets_header = depth == len(key) - 1 and draft.syntax is Syntax.TOML
        if present is None:
            yield Edit(container, "null", EMPTY)
            draft.replace(container, EMPTY)
        elif present is ABSENT or (gets_header and toml.unopened(draft.text, container)):
            yield Edit(container, None, EMPTY)


def _undo_edit(draft: Draft, edit: Edit) -> bool:
    """Undo an edit; return False if others have given the key another value."""
    if not edit.key:  # the edit has begun an empty file
        if not draft.tree:
            draft.text = edit.before or ""
        return True

    present, depth = _walk(draft, edit.key)
    if depth < len(edit.key):  # a value that is no container is on the way: the key is gone
        return edit.after is not None
    if present is ABSENT:
        if edit.after is None and edit.before is not None:
            draft.insert(edit.key, edit.before)
        return True
    if edit.member:
        return _undo_member(draft, edit, present)

    is_container = edit.after == EMPTY and isinstance(present, dict)
    if is_container and edit.before is None:
        draft.close(edit.key)
        return True
    if is_container and present:  # in the place of a null, and filled by others since
        return True
    return _undo_value(draft, edit, present)


def _undo_value(draft: Draft, edit: Edit, present: Any) -> bool:
    """Undo the edit of a value, or of an empty container; return False if others have changed the value."""
    value = draft.grammar.value
    if edit.before is not None and same(present, value(edit.before)):
        return True
    written = edit.after is not None and same(present, value(edit.after))
    if not written or draft.literal(edit.key) is None:
        return False
    draft.replace(edit.key, edit.before)
    return True


def _undo_member(draft: Draft, edit: Edit, present: Any) -> bool:
    """Undo the edit of an array; return False if others have put another value in its place."""
    literal = draft.literal(edit.key)
    if not isinstance(present, list) or literal is None or edit.after is None:
        return False

    index = _position(present, draft.grammar.value(edit.after))
    if edit.before is None and (not present or (index is not None and len(present) == 1)):
        draft.replace(edit.key, None)
    elif index is not None:
        if edit.before is not None and toml.add_element(edit.before, edit.after) == literal:
            draft.replace(edit.key, edit.before)
        else:
            draft.replace(edit.key, toml.remove_element(literal, index))
    return True


def _position(items: list[Any], element: Any) -> int | None:
    """Return the last index of ``element``."""
    return max((i for i, item in enumerate(items) if same(item, element)), default=None)


def _misplaced(draft: Draft, key: Key, present: Any, expected: str) -> InstallerError:
    """Return the error for a value of another kind at ``key``."""
    problem = f"edit {draft.name} ({dotted(key)} is {kind_of(present)}, but {expected} belongs there)"
    return InstallerError(problem, remedy=f"correct {dotted(key)}, then run again")


def _read(text: str, syntax: Syntax, name: str) -> Branch:
    """Return the tree of ``text`` from a cache; callers must not change the tree.

    Raises:
        InstallerError: the text is not valid.
    """
    try:
        text.encode()
        return _load(text, syntax)
    except (UnicodeEncodeError, RecursionError, TextError) as error:
        if isinstance(error, UnicodeEncodeError):
            reason = f"character {error.start + 1}: half a surrogate pair"
        elif isinstance(error, RecursionError):
            reason = "nested too deeply"
        else:
            reason = str(error)
        raise InstallerError(
            f"read {name} as {syntax.name} ({reason})", remedy="correct the file, then run again"
        ) from error


@lru_cache(maxsize=4)
def _load(text: str, syntax: Syntax) -> Branch:
    """Return the tree of a text of up to megabytes.

    Raises:
        RecursionError: the text is nested too deeply.
    """
    tree = _GRAMMARS[syntax].load(text)
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        next_level: list[Any] = []
        for container in level:
            children = container.values() if isinstance(container, dict) else container
            next_level += [child for child in children if isinstance(child, dict | list)]
        if not next_level:
            return tree
        level = next_level
    raise RecursionError
