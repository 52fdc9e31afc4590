"""A text on its way to what is wanted, and the proof that nothing else became different."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Self

from installer.decide.data import dataclass
from installer.decide.edits.grammar import Grammar
from installer.decide.edits.model import Edit, Key
from installer.decide.edits.tree import Branch, TextError, branch_at, opened, pruned, same
from installer.decide.errors import InstallerError

BOM: Final = "\ufeff"
MAX_DEPTH: Final = 100


@dataclass(slots=True)
class Draft:
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
