"""The change of a config at an install, its removal at an undo, and the rows of the ledger for both."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import EMPTY, Edit, Key, leaves, value_at
from installer.config_text.change import apply, has_any, list_missing, make_literal
from installer.engines import ENGINES
from installer.engines.config_keys import DEFAULT, group_of, is_head, program_of, runtime_of
from installer.engines.config_texts import DryRun, Texts, read_present, syntax_of, text_of, tree_of
from installer.engines.edited_text import EditedText, TextWithoutUs
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, is_of_toolkit, is_ours
from installer.model.engine import EngineState, ProposedFile
from installer.model.facts import ConfigRow, Facts, Saved
from installer.model.files import File, Meta
from installer.model.steps import WriteConfig


def files_without_us(engine: EngineState, facts: Facts) -> dict[PurePosixPath, File | None]:
    """Compute each config of an engine without us; raise for an invalid text among the edited configs."""
    recorded = [row.path for row in configs_of(engine, facts)]
    return {path: without_us(path, facts) for path in dict.fromkeys((*engine.files, *recorded))}


def configs_of(engine: EngineState, facts: Facts) -> Iterator[ConfigRow]:
    """Yield the rows of an engine except copies of its root file: a revert may need their present texts."""
    for row in facts.record.configs:
        if row.engine == engine.name and not engine.kind.is_copy(row.path):
            yield row


def predict_without_our_files(
    engine: EngineState, facts: Facts, now: Texts, dry_run: DryRun
) -> EffectiveConfig:
    """Predict the settings in force by the present texts, less the files that only we have written."""
    present = read_present(engine, facts)
    texts = {**now, **present}
    for row in facts.record.configs:
        file = present.get(row.path)
        # Our drop-in may also change what the other files say. In containerd 2.x it adds to their CRI
        # settings, but in 1.x it replaces them: without our drop-in they are in force again.
        if row.engine == engine.name and row.original is None and file and file.digest in row.ours:
            texts[row.path] = None

    effect = dry_run(engine, texts)
    if effect.broken or effect.undefined:
        return dry_run(engine, now)
    return effect


class ConfigChange(Struct, frozen=True):
    """The change of a config, and its new row in the ledger."""

    step: WriteConfig | None  # None if the file is as wanted
    row: ConfigRow | None  # None if nothing in the file is ours
    original: File | None  # the file without us; None if it is saved already
    taken_back: bool = False  # keys of an earlier run are removed whose effect the engine does not report
    adds: bool = False  # all keys of an earlier run stay, perhaps with others


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

    is_file_ours = now.digest in row.ours or _is_hook_with_our_program(row, now)
    if is_file_ours and not demoted and path not in facts.lost:
        original = facts.originals[path]
        return original and replace(original, meta=now.meta), TextWithoutUs()
    if row.syntax is None or (is_hook(row) and not is_file_ours):
        return now, TextWithoutUs()  # we wrote the whole file, and an administrator has edited it since

    edits = []
    for edit in relocate_edits(row, now):
        if not demoted or group_of(edit.key, row.engine) == DEFAULT:
            edits.append(edit)
    removal = EditedText.of(now, path, row.syntax, facts).remove(edits)
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
    """Return the edits of a row as the present text has them.

    The engine's own tools may have moved the keys. A runtime that was edited to start another file of the
    toolkit is no other installer's: it goes with the toolkit, so the edit is as if we had written that path.
    """
    if row.syntax is None:  # a file written whole, perhaps of no engine
        return row.edits
    tree = tree_of(now, row.path)
    edits = []
    for edit in ENGINES[row.engine].relocate_edits(row.edits, tree):
        present = value_at(tree, edit.key)
        written = program_of(edit)
        if is_ours(written) and is_of_toolkit(present, PurePosixPath(written)):
            edits.append(replace(edit, after=make_literal(present, row.syntax)))
        else:
            edits.append(edit)
    return tuple(edits)


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
        return has_any(text_of(now, row.path), edits, row.syntax, name=str(row.path))
    except InstallerError:  # reported by the reader of this file
        return False


def _names_ours(edit: Edit, engine: str) -> bool:
    """Tell whether an edit gives a runtime our program, or sets the default runtime."""
    if names_program(edit):
        return True
    return edit.after is not None and group_of(edit.key, engine) == DEFAULT


def names_program(edit: Edit) -> bool:
    """Tell whether an edit gives a runtime our program."""
    return bool(runtime_of(edit.key)) and is_ours(program_of(edit))


def change_config(name: str, wanted: ProposedFile, facts: Facts) -> ConfigChange:
    """Plan the change of a config to the wanted keys, and make the config's new row in the ledger.

    The new text is the text without us with the wanted keys. If others have edited our last text, the new
    text is their text with the wanted keys, and without the keys that only an earlier install wanted. Nothing
    is written if the present text has all wanted keys already, and no key that only an earlier one wanted.

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
    original, removal = undo_config(path, facts)
    text, edits = _add_keys(text_of(original, path), wanted)
    missing = _list_missing_edits(now, original, edits, wanted)

    stale = _drop(_find_stale(row, now, edits, wanted), removal.needed)
    if row is not None:
        removed_defaults = _list_removed_defaults(name, stale, now, wanted)
        row = replace(row, edits=_drop(row.edits, removed_defaults))
        stale = _drop(stale, removed_defaults)
    # A table that we made stays if others have filled it: a stale table alone is no reason for a write.
    unwanted = [edit for edit in stale if edit.after != EMPTY]

    if now is not None and not missing and not unwanted:
        return _keep_file(name, wanted, facts, row=row, now=now, original=original)

    if row is not None and now is not None and now.digest not in row.ours:
        text = _change_edited_text(now, stale, wanted, facts)
    model = now or original
    after = File(text.encode(), model.meta if model else Meta())
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
        taken_back=_takes_back([edit for edit in unwanted if not _sets_default(name, edit)], wanted),
        adds=row is not None and _list_settings(relocate_edits(row, now)) <= _list_settings(edits),
    )


def _drop(edits: Iterable[Edit], dropped: Collection[Edit]) -> tuple[Edit, ...]:
    """Return the edits that are not among the dropped edits."""
    return tuple(edit for edit in edits if edit not in dropped)


def _list_removed_defaults(
    name: str, stale: Iterable[Edit], now: File | None, wanted: ProposedFile
) -> tuple[Edit, ...]:
    """List the stale edits that made our runtime the default, and are not in the present text.

    An undo that left our runtimes has removed these defaults, or a killed install has.
    """
    defaults = [edit for edit in stale if _sets_default(name, edit)]
    return list_missing(text_of(now, wanted.path), defaults, wanted.syntax, name=str(wanted.path))


def _change_edited_text(now: File, stale: Sequence[Edit], wanted: ProposedFile, facts: Facts) -> str:
    """Return a text that others have edited, with the wanted keys, and without our stale edits."""
    edited_text = EditedText.of(now, wanted.path, wanted.syntax, facts)
    text, _ = _add_keys(edited_text.remove(stale).text, wanted)
    return text


def _sets_default(name: str, edit: Edit) -> bool:
    """Tell whether an edit names the default runtime of the engine ``name``."""
    return edit.key[-1:] == (ENGINES[name].default_key,)


def _list_missing_edits(
    now: File | None, original: File | None, edits: tuple[Edit, ...], wanted: ProposedFile
) -> tuple[Edit, ...]:
    """List the edits by which the present text would have all wanted keys.

    Args:
        now: the present file.
        original: the file without us.
        edits: our edits of the file without us.
        wanted: the path of the config, and the wanted keys.
    """
    present_text = text_of(now, wanted.path)
    if present_text == text_of(original, wanted.path):
        return edits  # else a text of megabytes would be edited twice
    _, missing = _add_keys(present_text, wanted)
    return missing


def _keep_file(  # noqa: PLR0913 - what is known of a file
    name: str, wanted: ProposedFile, facts: Facts, *, row: ConfigRow | None, now: File, original: File | None
) -> ConfigChange:
    """Plan no write of a file with all wanted settings and without an unwanted setting of ours.

    Args:
        name: the engine's name.
        wanted: the path of the config, and the wanted keys.
        facts: the facts about the node.
        row: the row of the file; None for a file without a row.
        now: the file.
        original: the file without us.
    """
    if row is None and wanted.keys and facts.record.engine(name) is None:
        # The file has all wanted settings without us, and keeps them after our undo.
        return ConfigChange(None, _row_as_found(name, wanted.path, now, facts), original)
    if row is not None and wanted.path in facts.lost:
        # The saved copy is lost. A new copy is made from the present text.
        return ConfigChange(None, replace(row, original=Saved.of(original), ours=(now.digest,)), original)
    return ConfigChange(None, row, None)


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
