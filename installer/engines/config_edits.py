"""The texts of configs: without us, as wanted with us, and the rows of the ledger that undo them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import ABSENT, Edit, Key, Syntax, Tree, Value, WantedKey, leaves, value_at
from installer.config_text.change import apply, list_missing, parse, undo
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, is_ours
from installer.model.engine import Configs, EngineState, ProposedFile
from installer.model.facts import ConfigRow, Facts, Saved
from installer.model.files import File, Meta
from installer.model.steps import WriteConfig

EMPTY: Final = "{}"  # the value of an edit that made a table or an object
DEFAULT: Final = "the default runtime"  # the key that names the default runtime, whatever the engine calls it
RUNTIMES: Final = "runtimes"  # the table of the runtimes, in all engines
BUILT_IN: Final = "runc"
# The settings that make a runtime start a program, spelled without case and underscores.
STARTS: Final = frozenset({"binaryname", "runtimepath", "runtimetype", "path"})
Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# A dry run: returns the settings that an engine would have in force with these texts alone.
DryRun: TypeAlias = Callable[[EngineState, Texts], EffectiveConfig]


def predict_from_texts(engine: EngineState, texts: Texts) -> EffectiveConfig:
    """Predict the settings of texts from the texts alone: a ``DryRun`` without a program."""
    return engine.kind.predict(engine, read_configs(engine, texts))


def read_configs(engine: EngineState, files: Texts) -> Configs:
    """Decode and parse the texts of files; raise for an invalid text."""
    texts = decode_configs(engine, files)
    trees = {}
    for path, text in texts.items():
        trees[path] = parse(text, syntax_of(path, text, engine.name), name=str(path))
    return Configs(texts, trees)


def decode_configs(engine: EngineState, files: Texts) -> dict[PurePosixPath, str]:
    """Decode the texts of files, in the order of the engine's reading; raise for a text not in UTF-8."""
    texts = {}
    for path in dict.fromkeys((*engine.files, *sorted(files))):
        file = files.get(path)
        if file is not None:
            texts[path] = text_of(file, path)
    return texts


def files_without_us(engine: EngineState, facts: Facts) -> dict[PurePosixPath, File | None]:
    """Compute each config of an engine without us; raise for an invalid text among the edited configs."""
    recorded = [row.path for row in configs_of(engine, facts)]
    return {path: without_us(path, facts) for path in dict.fromkeys((*engine.files, *recorded))}


def configs_of(engine: EngineState, facts: Facts) -> Iterator[ConfigRow]:
    """Yield the rows of an engine except copies of its root file: a revert may need their present texts."""
    for row in facts.record.configs:
        if row.engine == engine.name and not engine.kind.is_copy(row.path):
            yield row


def read_present(engine: EngineState, facts: Facts) -> Texts:
    """Return the present configs of an engine."""
    return {path: facts.contents.get(path) for path in engine.files}


def digest_of(texts: Texts) -> str:
    """Compute the digest of texts and their paths; a write to a text changes the digest."""
    digests = []
    for path, file in texts.items():
        if file is not None:
            digests.append((str(path), file.digest))
    return sha256(repr(sorted(digests)).encode()).hexdigest()


def predict_without_our_files(
    engine: EngineState, facts: Facts, now: Texts, dry_run: DryRun
) -> EffectiveConfig:
    """Predict the settings in force by the present texts, without files written by us alone."""
    present = read_present(engine, facts)
    texts = {**now, **present}
    for row in facts.record.configs:
        file = present.get(row.path)
        # An unedited file of ours does not count, nor does its effect on the other files: a drop-in that adds
        # to their CRI settings in containerd 2.x replaces these settings in 1.x.
        if row.engine == engine.name and row.original is None and file and file.digest in row.ours:
            texts[row.path] = None

    effect = dry_run(engine, texts)
    if effect.broken or effect.undefined:
        return dry_run(engine, now)
    return effect


class TextWithoutUs(Struct, frozen=True):
    """A text without our keys, and the edits without a simple undo."""

    text: str = ""
    edited: tuple[Edit, ...] = ()  # the keys of these edits were changed by others since, and stay
    orphans: tuple[Key, ...] = ()  # settings of others in a runtime of ours, removed with the runtime
    # Runtimes edited to start another program, with that program: these runtimes stay as they are.
    taken_over: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[Edit, ...] = ()  # edits that stay: an engine needs them to read additions of others


class ConfigChange(Struct, frozen=True):
    """The change of a config, and its new row in the ledger."""

    step: WriteConfig | None  # None if the file is as wanted
    row: ConfigRow | None  # None if nothing in the file is ours
    original: File | None  # the file without us; None if it is saved already
    taken_back: bool = False  # keys of an earlier run are removed, besides keys reported by an engine
    adds: bool = False  # all keys of an earlier run stay, perhaps with others


def syntax_of(path: PurePosixPath, text: str, name: str = "") -> Syntax:
    """Return the syntax of a config by its text, its path, or the usual path of the engine ``name``."""
    usual = ENGINES[name].config if name in ENGINES else path
    # A config may have any name, but no TOML begins with a brace.
    has_brace = text.lstrip("\ufeff \t\r\n").startswith("{")
    if has_brace or ".json" in (path.suffix, usual.suffix):
        return Syntax.JSON
    return Syntax.TOML


def text_of(file: File | None, path: PurePosixPath) -> str:
    """Return the text of a config, "" without a file; raise if the bytes are not UTF-8."""
    try:
        return file.content.decode() if file else ""
    except UnicodeDecodeError as error:
        problem = f"read {path} (byte {error.start} is not UTF-8)"
        remedy = "save the file as UTF-8, then run again"
        raise InstallerError(problem, remedy=remedy, code="config-unusable") from error


def tree_of(file: File | None, path: PurePosixPath) -> Tree:
    """Return the tree of a config, empty without a file; raise if the text is not valid."""
    text = text_of(file, path)
    return parse(text, syntax_of(path, text), name=str(path))


def toolkit_runtimes(config_toml: str) -> tuple[str, ...]:
    """List the low-level runtimes in the toolkit's config.toml, preferred first; raise for invalid text."""
    tree = parse(config_toml, Syntax.TOML, name="config.toml")
    section = tree.get("nvidia-container-runtime")
    if not isinstance(section, Mapping):
        return ()
    runtimes = section.get("runtimes")
    if not isinstance(runtimes, list):
        return ()
    return tuple(map(str, runtimes))


def without_us(path: PurePosixPath, facts: Facts) -> File | None:
    """Compute the file at ``path`` without us: the saved file, or the present file less our keys."""
    return undo_config(path, facts)[0]


def undo_config(
    path: PurePosixPath, facts: Facts, *, demoted: bool = False
) -> tuple[File | None, TextWithoutUs]:
    """Compute the file at ``path`` without us, and how our keys were removed from an edited text.

    An unedited text of ours is replaced by the saved copy. From a text that others have edited since, and if
    the saved copy is lost, our keys are removed. Mode, owner and labels stay as in the present file: we never
    change them.

    Args:
        path: the path of the config.
        facts: the facts about the node.
        demoted: remove only the settings that make a runtime of ours the default.

    Returns:
        The file, None for no file; and the removal, empty if no key was removed from a text.

    Raises:
        InstallerError: an edited text is not valid.
    """
    now = facts.contents[path]
    row = facts.record.config(path)
    if row is None or now is None:
        return now, TextWithoutUs()

    is_ours = now.digest in row.ours or _is_hook_with_our_program(row, now)
    if is_ours and not demoted and path not in facts.lost:
        original = facts.originals[path]
        return original and replace(original, meta=now.meta), TextWithoutUs()
    if row.syntax is None or (is_hook(row) and not is_ours):
        return now, TextWithoutUs()  # we wrote the whole file, and an administrator has edited it since

    edits = []
    for edit in relocate_edits(row, now):
        if not demoted or group_of(edit.key, row.engine) == DEFAULT:
            edits.append(edit)
    removal = _EditedText.of(now, path, row.syntax, facts).remove(edits)
    if row.original is None and not removal.text.strip():
        return None, removal
    return File(removal.text.encode(), now.meta), removal


def _is_hook_with_our_program(row: ConfigRow, now: File) -> bool:
    """Tell whether a file is our OCI hook and still starts our program, whatever else was edited.

    The undo removes the whole hook: CRI-O dies of a part of a hook.
    """
    if not is_hook(row) or row.syntax is None:
        return False
    program = [edit for edit in row.edits if edit.key == ("hook", "path")]
    return not list_missing(text_of(now, row.path), program, row.syntax, name=str(row.path))


def is_hook(row: ConfigRow) -> bool:
    """Tell whether a row belongs to an OCI hook."""
    return row.path.suffix == ".json" and row.engine in ENGINES and bool(ENGINES[row.engine].hook_dir)


def notes_of(path: PurePosixPath, removal: TextWithoutUs) -> Iterator[str]:
    """Yield notes for the owner of a file about the removal of our keys."""
    for edit in removal.edited:
        yield f"left {'.'.join(edit.key)} in {path}: it was edited after the install"
    for edit in removal.needed:
        if edit.after != EMPTY:
            yield f"left {'.'.join(edit.key)} in {path}: what others have added there needs it"
    for key in removal.orphans:
        yield f"removed {'.'.join(key)} from {path}: it was a setting of our runtime"
    for name, program in removal.taken_over.items():
        yield f"left the runtime {name} in {path} as it is: it was edited to start {program}"


def relocate_edits(row: ConfigRow, now: File | None) -> tuple[Edit, ...]:
    """Return the edits of a row with their present keys: the engine's own tools may have moved them."""
    if row.syntax is None:  # a file written whole, perhaps of no engine
        return row.edits
    return ENGINES[row.engine].relocate_edits(row.edits, tree_of(now, row.path))


def group_of(key: Key, name: str) -> str:
    """Return the runtime's name in a key, ``DEFAULT`` for the default's key, or the last part of another."""
    runtime = runtime_of(key)
    if runtime:
        return runtime
    if name in ENGINES and ENGINES[name].is_default_key(key):
        return DEFAULT
    return key[-1] if key else ""


def holds_ours(row: ConfigRow, now: File) -> bool:
    """Tell whether a file is a text of ours, or has a runtime of ours or our default."""
    if now.digest in row.ours:
        return True
    if row.syntax is None:
        return False
    try:
        edits = []
        for edit in relocate_edits(row, now):
            if _names_ours(edit, row.engine):
                edits.append(edit)
        missing = list_missing(text_of(now, row.path), edits, row.syntax, name=str(row.path))
    except InstallerError:  # reported by the reader of this file
        return False
    return len(missing) < len(edits)


def _names_ours(edit: Edit, engine: str) -> bool:
    """Tell whether an edit gives a runtime our program, or sets the default runtime."""
    if runtime_of(edit.key) and is_ours((edit.after or "").strip("\"'")):
        return True
    return edit.after is not None and group_of(edit.key, engine) == DEFAULT


def change_config(name: str, wanted: ProposedFile, facts: Facts) -> ConfigChange:
    """Plan the change of a config to the wanted keys, and make the config's new row in the ledger.

    The new text is the text without us with the wanted keys. If others have edited our last text, the new
    text is their text with the wanted keys, and without the keys that only an earlier install wanted.

    Args:
        name: the engine's name.
        wanted: the path of the config, and the wanted keys.
        facts: the facts about the node.

    Raises:
        InstallerError: a text, or the type of a value, is not valid.
    """
    path = wanted.path
    now = facts.contents[path]
    row = facts.record.config(path)
    present_text = text_of(now, path)

    # Our edits of the text without us, and the wanted keys missing in the present text.
    original, removal = undo_config(path, facts)
    original_text = text_of(original, path)
    target, edits = _add_keys(original_text, wanted)
    missing = edits
    if present_text != original_text:
        _, missing = _add_keys(present_text, wanted)

    # Edits of an earlier install that are not wanted any more.
    stale = [edit for edit in _find_stale(row, now, edits, wanted) if edit not in removal.needed]
    defaults = [edit for edit in stale if edit.key[-1:] == (ENGINES[name].default_key,)]
    if row is not None:
        # An undo that left our runtimes has removed the default, or a killed install has.
        removed_defaults = list_missing(present_text, defaults, wanted.syntax, name=str(path))
        row = replace(row, edits=tuple(edit for edit in row.edits if edit not in removed_defaults))
        stale = [edit for edit in stale if edit not in removed_defaults]
    # A table that we made and others have filled is needed without us: the table stays.
    unwanted = [edit for edit in stale if edit.after != EMPTY]

    if now is not None and not missing and not unwanted:
        # Nothing is written: the file has all wanted settings, and no unwanted setting of ours.
        if row is None and wanted.keys and facts.record.engine(name) is None:
            # The file has all wanted settings without us, and keeps them after our undo.
            return ConfigChange(None, _row_as_found(name, path, now, facts), original)
        if row is not None and path in facts.lost:
            # The saved copy is lost. A new copy is made from the present text.
            return ConfigChange(None, replace(row, original=Saved.of(original), ours=(now.digest,)), original)
        return ConfigChange(None, row, None)

    if row is not None and now is not None and now.digest not in row.ours:
        base = _EditedText.of(now, path, wanted.syntax, facts).remove(stale).text
        target, _ = _add_keys(base, wanted)
    model = now or original
    after = File(target.encode(), model.meta if model else Meta())
    new_row = ConfigRow(
        engine=name,
        path=path,
        syntax=wanted.syntax,
        original=Saved.of(original),
        ours=(after.digest,),
        edits=edits,
        target=facts.targets.get(path),
    )
    return ConfigChange(
        WriteConfig(name, path, now, after),
        new_row,
        original,
        taken_back=_takes_back([edit for edit in unwanted if edit not in defaults], wanted),
        adds=row is not None and _list_settings(relocate_edits(row, now)) <= _list_settings(edits),
    )


def _add_keys(text: str, wanted: ProposedFile) -> tuple[str, tuple[Edit, ...]]:
    """Return a text with the wanted keys, and the edits; raise for an invalid text."""
    return apply(text, wanted.keys, wanted.syntax, name=str(wanted.path))


def _takes_back(removed: Iterable[Edit], wanted: ProposedFile) -> bool:
    """Tell whether a removed key belongs to a wanted runtime or to no runtime.

    The removal of another runtime is not asked here: the engine's answer lists its runtimes.
    """
    runtimes = {runtime_of(key.key) for key in wanted.keys}
    runtimes.add("")
    return any(runtime_of(edit.key) in runtimes for edit in removed)


def _list_settings(edits: Iterable[Edit]) -> set[tuple[Key, str | None]]:
    """Collect the keys and values of edits, without tables and without keys for the reading of a text."""
    settings = set()
    for edit in edits:
        if edit.after != EMPTY and not is_head(edit.key):
            settings.add((edit.key, edit.after))
    return settings


def record_foreign(
    name: str, path: PurePosixPath, facts: Facts, toolkits: Collection[PurePosixPath]
) -> ConfigChange | None:
    """Record another installer's file if the file names our programs; None for a file without need of a row.

    ``toolkits`` are the directories of our programs.
    """
    now = facts.contents.get(path)
    row = facts.record.config(path)
    names_ours = False
    for _, value in leaves(tree_of(now, path)):
        if isinstance(value, str) and PurePosixPath(value).parent in toolkits:
            names_ours = True
    if now is None or not names_ours:
        return None
    if row is not None and path not in facts.lost:
        # After our undo the file may name the programs of its first row, whatever was added since.
        return ConfigChange(None, row, None)
    if row is None and facts.record.engine(name) is not None:
        return None  # we were installed before this unknown file: its programs are no original
    return ConfigChange(None, _row_as_found(name, path, now, facts), now)


def _row_as_found(name: str, path: PurePosixPath, now: File, facts: Facts) -> ConfigRow:
    """Make the row of a file saved as found, without an edit of ours."""
    syntax = syntax_of(path, text_of(now, path), name)
    return ConfigRow(name, path, syntax, Saved.of(now), (now.digest,), (), facts.targets.get(path))


def withdraw(row: ConfigRow, facts: Facts) -> ConfigChange:
    """Plan the removal of our keys from a file not used by this install.

    Raises as ``undo_config``.
    """
    now = facts.contents[row.path]
    clean = without_us(row.path, facts)
    if now == clean:
        return ConfigChange(None, None, clean)
    step = WriteConfig(row.engine, row.path, now, clean, facts.relinked.get(row.path, ""))
    return ConfigChange(step, None, clean, taken_back=True)


def _find_stale(
    row: ConfigRow | None, now: File | None, total: Sequence[Edit], wanted: ProposedFile
) -> tuple[Edit, ...]:
    """List the edits of an earlier run missing from ``total``, the edits of this run."""
    if row is None:
        return ()
    kept = {_identify(edit) for edit in total}
    stale = []
    for edit in relocate_edits(row, now):
        if _identify(edit) not in kept:
            stale.append(edit)
    if row.ours:
        return tuple(stale)

    # The ledger was lost: the edits of an earlier run in a still wanted runtime are not known.
    wanted_runtimes = {runtime_of(want.key) for want in wanted.keys}
    wanted_runtimes.discard("")
    # Another spelling of a wanted key is stale all the same: an engine that ignores case would read either.
    wanted_keys = {_lower(edit) for edit in total}
    known = []
    for edit in stale:
        if runtime_of(edit.key) not in wanted_runtimes or _lower(edit) in wanted_keys:
            known.append(edit)
    return tuple(known)


def _lower(edit: Edit) -> Key:
    """Return the key of an edit in lower case."""
    return tuple(map(str.lower, edit.key))


def _identify(edit: Edit) -> tuple[Key, str | None]:
    """Return the key set by an edit, with the member of an array if the edit adds a member."""
    member = edit.after if edit.member else None
    return edit.key, member


def runtime_of(key: Key) -> str:
    """Return the runtime's name in a key, "" for any other key."""
    if RUNTIMES not in key:
        return ""
    index = key.index(RUNTIMES) + 1
    return key[index] if index < len(key) else ""


def is_head(key: Key) -> bool:
    """Tell whether a key only sets how the rest of a text is read."""
    return key == ("version",) or runtime_of(key) == BUILT_IN


class _EditedText(Struct, frozen=True):
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
        have edited to start another program. Which edits these are shows only in the text without our edits:
        the removal then begins anew, with the other edits.

        Raises:
            InstallerError: the text is not valid.
        """
        removal = self._remove_all(edits)
        needed = self._find_needed(removal.text, edits)
        if needed:
            others = [edit for edit in edits if edit not in needed]
            return replace(self.remove(others), needed=needed)
        taken_over = self._find_taken_over(removal, edits)
        if taken_over:
            others = [edit for edit in edits if runtime_of(edit.key) not in taken_over]
            return replace(self.remove(others), taken_over=taken_over)
        return removal

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
            # The table whose meaning the edit changes as a whole: the table of runtimes, which has no
            # built-in runtime in 1.x, or the whole text: the schema tells an engine how to read the text.
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
