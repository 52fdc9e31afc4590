"""A text with edits of ours that others have edited since, and the removal of our edits."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import ABSENT, EMPTY, Edit, Key, Syntax, Tree, Value, WantedKey, leaves, value_at
from installer.config_text.change import apply, has_any, parse, undo
from installer.engines.config_keys import BUILT_IN, RUNTIMES, STARTS, is_head, runtime_of
from installer.engines.config_texts import text_of
from installer.model.facts import Facts
from installer.model.files import File


class TextWithoutUs(Struct, frozen=True):
    """A text without our keys, and the edits without a simple undo."""

    text: str = ""
    edited: tuple[Edit, ...] = ()  # the keys of these edits were changed by others since, and stay
    orphans: tuple[Key, ...] = ()  # settings of others in a runtime of ours, removed with the runtime
    # Runtimes edited to start another program, with that program: these runtimes stay as they are.
    taken_over: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[Edit, ...] = ()  # edits that stay: an engine needs them to read additions of others


class EditedText(Struct, frozen=True):
    """A text with edits of ours, and the text before the first edit."""

    text: str
    original: str
    syntax: Syntax
    name: str

    @classmethod
    def of(cls, now: File, path: PurePosixPath, syntax: Syntax, facts: Facts) -> Self:
        """Return the present text of a file with its original text."""
        return cls(text_of(now, path), text_of(facts.originals.get(path), path), syntax, str(path))

    def remove(self, edits: Sequence[Edit]) -> TextWithoutUs:
        """Remove our edits from the text, except edits that have to stay.

        Edits that make an engine read additions of others stay, and so do all edits of a runtime that others
        have edited to start another program. Only the text without our edits shows which edits these are, so
        this is a loop: if an edit has to stay, all others are removed from the text anew.

        Raises:
            InstallerError: the text is not valid.
        """
        # A later round rarely finds more of the same kind: a runtime that stays now may need one edit more.
        # That edit stays, too, but of each kind only the edits of the first such round are reported.
        needed: tuple[Edit, ...] = ()
        taken_over: Mapping[str, str] = {}
        while self._has_any(edits):
            removal = self._remove_all(edits)
            found_needed = self._find_needed(removal.text, edits)
            if found_needed:
                needed = needed or found_needed
                edits = [edit for edit in edits if edit not in found_needed]
                continue
            found_taken_over = self._find_taken_over(removal, edits)
            if found_taken_over:
                taken_over = taken_over or found_taken_over
                edits = [edit for edit in edits if runtime_of(edit.key) not in found_taken_over]
                continue
            return replace(removal, needed=needed, taken_over=taken_over)
        return TextWithoutUs(self.text, needed=needed, taken_over=taken_over)

    def _has_any(self, edits: Sequence[Edit]) -> bool:
        """Tell whether the text has a setting of ours, or the table of a runtime of ours.

        Without both the owner has restored the file, and nothing is removed: its empty tables may be his.
        """
        settings = [edit for edit in edits if edit.after != EMPTY]
        if not settings or has_any(self.text, settings, self.syntax, name=self.name):
            return True
        tree = self._parse(self.text)
        tables = [table for table in _list_runtime_tables(edits) if table[-1] != BUILT_IN]
        return any(value_at(tree, table) is not None for table in tables)

    def _remove_all(self, edits: Sequence[Edit]) -> TextWithoutUs:
        """Remove all of our edits from the text; a key stays that others have given another value.

        A runtime that we created, and that starts nothing any more, goes with the settings of others in it.
        """
        text, edited = undo(self.text, edits, self.syntax, name=self.name)
        text, settings = self._remove_orphans(text, edits)
        edited_keys = {edit.key for edit in edited}
        orphans = [key for key, value in settings.items() if value or key in edited_keys]
        edited = tuple(edit for edit in edited if edit.key not in settings)
        return TextWithoutUs(text, edited, tuple(orphans))

    def _parse(self, text: str) -> Tree:
        return parse(text, self.syntax, name=self.name)

    def _find_needed(self, text: str, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """List the edits needed by additions of others; ``text`` is the text without our edits."""
        heads = [edit for edit in edits if edit.before is None and is_head(edit.key)]
        if self.syntax is not Syntax.TOML or not heads:
            return ()

        tree = self._parse(text)
        original = self._parse(self.original)
        needed: dict[Edit, None] = {}
        for edit in heads:
            # The schema's version changes the meaning of the whole text. The runtime runc changes the meaning
            # of the table of runtimes: beside other runtimes containerd 1.x has no runc that is built in.
            table: Key = ()
            if RUNTIMES in edit.key:
                table = edit.key[: edit.key.index(RUNTIMES) + 1]
            value = value_at(tree, table)
            if value and value != value_at(original, table):
                needed[edit] = None
        return tuple(needed)

    def _find_taken_over(self, removal: TextWithoutUs, edits: Sequence[Edit]) -> dict[str, str]:
        """Map each runtime of ours to the other program that its table was edited to start."""
        tree = self._parse(removal.text)
        original = self._parse(self.original)
        created = _list_created(edits)
        edited_keys = {edit.key for edit in removal.edited}
        taken_over = {}
        for table in _list_runtime_tables(edits):
            for below, value in _list_starts(value_at(tree, table)):
                key = (*table, *below)
                is_new = table in created and value != value_at(original, key)
                if is_new or key in edited_keys:
                    taken_over[table[-1]] = str(value)
        return taken_over

    def _remove_orphans(self, text: str, edits: Sequence[Edit]) -> tuple[str, dict[Key, Value]]:
        """Remove the runtimes created by us that start nothing without our keys.

        Returns:
            The text, and the removed settings of others: only these have kept the runtimes in the text.
        """
        tree = self._parse(text)
        settings: dict[Key, Value] = {}
        tables: set[Key] = set()
        for key in _list_created(edits):
            runtime = value_at(tree, key)
            if not isinstance(runtime, Mapping) or any(_list_starts(runtime)):
                continue
            for below, value in leaves(runtime):
                if value != {}:
                    settings[*key, *below] = value
            tables.add(key)
            tables.update(_list_containers(runtime, key))
        if not tables:
            return text, {}

        removals = [WantedKey(key, ABSENT) for key in settings]
        text, _ = apply(text, removals, self.syntax, name=self.name)
        return self._remove_empty_tables(text, tables, edits), settings

    def _remove_empty_tables(self, text: str, tables: Collection[Key], edits: Sequence[Edit]) -> str:
        """Remove the tables of runtimes, then the empty tables above that we have made."""
        made = [Edit(key, None, EMPTY) for key in sorted(tables, key=len)]
        above = [edit for edit in edits if edit.after == EMPTY and edit.key not in tables]
        text, _ = undo(text, [*above, *made], self.syntax, name=self.name)
        return text


def _list_runtime_tables(edits: Iterable[Edit]) -> list[Key]:
    """List the keys of the runtimes' tables that edits have changed."""
    tables: dict[Key, None] = {}
    for edit in edits:
        if runtime_of(edit.key):
            tables[edit.key[: edit.key.index(RUNTIMES) + 2]] = None
    return list(tables)


def _list_created(edits: Sequence[Edit]) -> list[Key]:
    """List the keys of the runtimes created by us."""
    tables: dict[Key, None] = {}
    for edit in edits:
        is_new_table = edit.before is None and edit.after == EMPTY
        is_runtime = edit.key[-2:-1] == (RUNTIMES,) and edit.key[-1] != BUILT_IN
        if is_new_table and is_runtime:
            tables[edit.key] = None
    return list(tables)


def _list_starts(runtime: Value) -> Iterator[tuple[Key, Value]]:
    """Yield the settings with which a runtime starts a program."""
    if not isinstance(runtime, Mapping):
        return
    for key, value in leaves(runtime):
        if value and key[-1].lower().replace("_", "") in STARTS:
            yield key, value


def _list_containers(tree: Tree, above: Key) -> Iterator[Key]:
    """Yield the keys of the tables in a tree below the key ``above``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield (*above, name)
            yield from _list_containers(value, (*above, name))
