"""The texts of configs: without us, as they should be with us, and the row by which one is undone."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import ABSENT, Edit, Key, Syntax, Tree, Value, Want, leaves, value_at
from installer.config_text.change import apply, list_missing, parse, undo
from installer.engines import ENGINES
from installer.engines.containerd.effective import OLD_TABLE
from installer.errors import InstallerError
from installer.model.engine_spec import ConfigFiles, EffectiveConfig, FileWants, Flags, ReloadMethod, is_ours
from installer.model.facts import ConfigRow, EngineState, Facts, Saved
from installer.model.files import File, Meta
from installer.model.steps import WriteConfig

EMPTY: Final = "{}"  # what an edit has made that made a table, or an object
DEFAULT: Final = "the default runtime"  # the key that names the default runtime, whatever the engine calls it
RUNTIMES: Final = "runtimes"  # the table of the runtimes, in all engines
BUILT_IN: Final = "runc"
# What makes a runtime start something, spelled without case and underscores.
STARTS: Final = frozenset({"binaryname", "runtimepath", "runtimetype", "path"})
Texts: TypeAlias = Mapping[PurePosixPath, File | None]
# What an engine would have in force with these texts, and without any other.
Ask: TypeAlias = Callable[[EngineState, Texts], EffectiveConfig]


def texts_alone(engine: EngineState, texts: Texts) -> EffectiveConfig:
    """Return what texts have in force as far as they tell by themselves: an ``Ask`` without a question."""
    return engine.spec.estimate(config_files(engine, texts))


def config_files(engine: EngineState, texts: Texts, *, parsed: bool = True) -> ConfigFiles:
    """Return texts as the engine's functions take them; raise where one of them is not valid."""
    order = dict.fromkeys((*engine.files, *sorted(texts)))
    words = {path: text_of(texts[path], path) for path in order if texts.get(path) is not None}
    trees = {
        path: parse(text, syntax_of(path, text, engine.name), name=str(path))
        for path, text in words.items()
        if parsed
    }
    return ConfigFiles(
        engine.config,
        engine.drop_in,
        trees,
        engine.version,
        engine.hook,
        None,
        engine.serving,
        words,
        _choose_flags(engine),
        engine.unreadable,
        engine.dormant,
        engine.rendered.content.decode(errors="replace") if engine.rendered else "",
        engine.title,
        engine.gone,
        engine.drop_in_directory,
    )


def _choose_flags(engine: EngineState) -> Flags:
    """Return the flags of the start by which an engine takes texts up."""
    restarts = engine.spec.reload is ReloadMethod.RESTART
    return engine.next_flags if restarts and engine.next_start else engine.flags


def files_without_us(engine: EngineState, facts: Facts) -> dict[PurePosixPath, File | None]:
    """Return each config of an engine as it would be without us; raise where an edited one is not valid."""
    held = (row.path for row in configs_of(engine, facts))
    return {path: without_us(path, facts) for path in dict.fromkeys((*engine.files, *held))}


def configs_of(engine: EngineState, facts: Facts) -> Iterator[ConfigRow]:
    """Yield the rows of an engine but for copies of its root file: a revert may need what stands there."""
    for row in facts.held.configs:
        if row.engine == engine.name and not engine.spec.is_copy(row.path):
            yield row


def read_present(engine: EngineState, facts: Facts) -> Texts:
    """Return the configs of an engine as they lie there."""
    return {path: facts.contents.get(path) for path in engine.files}


def digest_of(texts: Texts) -> str:
    """Return the digest of texts and of their places: whether they were written since."""
    there = sorted((str(path), file.digest) for path, file in texts.items() if file is not None)
    return sha256(repr(there).encode()).hexdigest()


def ask_in_force(engine: EngineState, facts: Facts, now: Texts, ask: Ask) -> EffectiveConfig:
    """Return what an engine has in force that was not put there by us alone."""
    there = read_present(engine, facts)
    texts = {**now, **there}
    for row in facts.held.configs:
        file = there.get(row.path)
        # An unedited file of ours does not count, nor what it takes from the others: a drop-in that adds to
        # them in containerd 2.x replaces what they say of CRI in 1.x.
        if row.engine == engine.name and row.original is None and file and file.digest in row.ours:
            texts[row.path] = None
    effect = ask(engine, texts)
    return ask(engine, now) if effect.broken or effect.undefined else effect


class Undone(Struct, frozen=True):
    """A text without our keys, and what became of them."""

    text: str = ""
    overruled: tuple[Edit, ...] = ()  # edits of ours whose keys were changed since: they stay
    emptied: tuple[Key, ...] = ()  # settings of others in a runtime of ours, which went with it
    # The runtimes that were made to start something else, with what that is: they stay as they are.
    taken: Mapping[str, str] = field(default_factory=dict)
    relied_on: tuple[Edit, ...] = ()  # without which an engine would read otherwise what others have added


class ConfigChange(Struct, frozen=True):
    """What becomes of one config."""

    step: WriteConfig | None  # None where the file is as wanted
    row: ConfigRow | None  # None where nothing in it is ours
    original: File | None  # the file without us; None where it is saved already
    taken_back: bool = False  # keys of an earlier run go, besides those of which an engine tells
    adds: bool = False  # all of them are, with others


def syntax_of(path: PurePosixPath, text: str, name: str = "") -> Syntax:
    """Return the syntax of a config, which may have any name: no TOML begins with a brace."""
    usual = ENGINES[name].config if name in ENGINES else path
    braced = text.lstrip("\ufeff \t\r\n").startswith("{")
    return Syntax.JSON if braced or ".json" in (path.suffix, usual.suffix) else Syntax.TOML


def text_of(file: File | None, path: PurePosixPath) -> str:
    """Return the text of a config, "" where there is no file; raise where the bytes are not UTF-8."""
    try:
        return file.content.decode() if file else ""
    except UnicodeDecodeError as error:
        problem = f"read {path} (byte {error.start} is not UTF-8)"
        remedy = "save the file as UTF-8, then run again"
        raise InstallerError(problem, remedy=remedy, code="config-unusable") from error


def tree_of(file: File | None, path: PurePosixPath) -> Tree:
    """Return what a config says, an empty tree where there is no file; raise where the text is not valid."""
    text = text_of(file, path)
    return parse(text, syntax_of(path, text), name=str(path))


def toolkit_runtimes(config_toml: str) -> tuple[str, ...]:
    """Return the low-level runtimes that the toolkit's config.toml names, preferred first; raise for none."""
    tree = parse(config_toml, Syntax.TOML, name="config.toml")
    section = tree.get("nvidia-container-runtime")
    runtimes = section.get("runtimes") if isinstance(section, Mapping) else None
    return tuple(map(str, runtimes)) if isinstance(runtimes, list) else ()


def without_us(path: PurePosixPath, facts: Facts) -> File | None:
    """Return the file at ``path`` without us: the saved one, or the present one less our keys."""
    return undo_config(path, facts)[0]


def undo_config(path: PurePosixPath, facts: Facts, *, demoted: bool = False) -> tuple[File | None, Undone]:
    """Return the file at ``path`` without us, and what became of its text where that was edited.

    If it is to be ``demoted``, only what makes a runtime of ours the default goes. Mode, owner and labels are
    those of the present file: we never change them. Where the saved copy is lost our keys go from the present
    text, as from one that was edited. Raises InstallerError for an edited text that is not valid.
    """
    now, row = facts.contents[path], facts.held.config(path)
    if row is None or now is None:
        return now, Undone()
    # A hook that starts our program still goes whole: CRI-O dies of a part of one.
    program = [edit for edit in row.edits if edit.key == ("hook", "path")]
    ours = now.digest in row.ours or (
        is_hook(row)
        and row.syntax is not None
        and not list_missing(text_of(now, path), program, row.syntax, name=str(path))
    )
    if ours and not demoted and path not in facts.lost:
        original = facts.originals[path]
        return original and replace(original, meta=now.meta), Undone()
    if row.syntax is None or (is_hook(row) and not ours):
        return now, Undone()  # a file that was ours as a whole is now an administrator's
    going = relocate_edits(row, now)
    if demoted:
        going = tuple(edit for edit in going if group_of(edit.key, row.engine) == DEFAULT)
    found = _EditedText.of(now, path, row.syntax, facts).remove(going)
    empty = row.original is None and not found.text.strip()
    return None if empty else File(found.text.encode(), now.meta), found


def is_hook(row: ConfigRow) -> bool:
    """Tell whether a row is that of an OCI hook."""
    return row.path.suffix == ".json" and row.engine in ENGINES and bool(ENGINES[row.engine].hook_dir)


def notes_of(path: PurePosixPath, was: Undone) -> Iterator[str]:
    """Yield what the owner of a file should know of the text without us."""
    for edit in was.overruled:
        yield f"left {'.'.join(edit.key)} in {path}: it was edited after the install"
    for edit in was.relied_on:
        if edit.after != EMPTY:
            yield f"left {'.'.join(edit.key)} in {path}: what others have added there needs it"
    for key in was.emptied:
        yield f"removed {'.'.join(key)} from {path}: it was a setting of our runtime"
    for name, program in was.taken.items():
        yield f"left the runtime {name} in {path} as it is: it was edited to start {program}"


def relocate_edits(row: ConfigRow, now: File | None) -> tuple[Edit, ...]:
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
        edits = [
            edit
            for edit in relocate_edits(row, now)
            if (runtime_of(edit.key) and is_ours((edit.after or "").strip("\"'")))
            or (edit.after is not None and group_of(edit.key, row.engine) == DEFAULT)
        ]
        return len(list_missing(text_of(now, row.path), edits, row.syntax, name=str(row.path))) < len(edits)
    except InstallerError:  # reported where that file is read
        return False


def change_config(name: str, wanted: FileWants, facts: Facts) -> ConfigChange:
    """Return what brings one config to what is wanted; raise for a text or type that is not valid."""
    path, syntax = wanted.path, wanted.syntax
    now, row = facts.contents[path], facts.held.config(path)
    original, without = undo_config(path, facts)
    found, present = text_of(original, path), text_of(now, path)
    clean, total = apply(found, wanted.wants, syntax, name=str(path))
    needed = total if present == found else apply(present, wanted.wants, syntax, name=str(path))[1]
    stale = tuple(edit for edit in _find_stale(row, now, total, wanted) if edit not in without.relied_on)
    # An undo that left our runtimes took the default, or a killed install did.
    defaults = [edit for edit in stale if edit.key[-1:] == (ENGINES[name].default_key,)]
    if row is not None and (gone := list_missing(present, defaults, syntax, name=str(path))):
        row = replace(row, edits=tuple(edit for edit in row.edits if edit not in gone))
        stale = tuple(edit for edit in stale if edit not in gone)
    # A table of ours that others have put something into is needed without us: nothing in it is ours to take.
    going = [edit for edit in stale if edit.after != EMPTY]
    names = {"", *(runtime_of(want.key) for want in wanted.wants)}  # an engine tells which others it has
    if not (going or now is None or needed):
        if row is None and wanted.wants and facts.held.engine(name) is None:
            # It says so without us, and is to say so when we are gone.
            return ConfigChange(None, _row_as_found(name, path, now, facts), original)
        if row is not None and path in facts.lost:  # what is saved anew belongs to the text as it is now
            return ConfigChange(None, replace(row, original=Saved.of(original), ours=(now.digest,)), original)
        return ConfigChange(None, row, None)
    if row is None or now is None or now.digest in row.ours:
        target = clean
    else:
        base = _EditedText.of(now, path, syntax, facts).remove(stale).text
        target, _ = apply(base, wanted.wants, syntax, name=str(path))
    meta = now.meta if now else original.meta if original else Meta()
    after = File(target.encode(), meta)
    return ConfigChange(
        WriteConfig(name, path, now, after),
        ConfigRow(name, path, syntax, Saved.of(original), (after.digest,), total, facts.targets.get(path)),
        original,
        taken_back=any(edit not in defaults and runtime_of(edit.key) in names for edit in going),
        adds=row is not None and _wishes(relocate_edits(row, now)) <= _wishes(total),
    )


def _wishes(edits: Iterable[Edit]) -> set[tuple[Key, str | None]]:
    return {(edit.key, edit.after) for edit in edits if edit.after != EMPTY and not is_head(edit.key)}


def record_foreign(
    name: str, path: PurePosixPath, facts: Facts, toolkits: Collection[PurePosixPath]
) -> ConfigChange | None:
    """Return the row of a file that names our programs without us: another installer's, read beside ours."""
    now, row = facts.contents.get(path), facts.held.config(path)
    values = [value for _, value in leaves(tree_of(now, path))]
    if now is None or not any(isinstance(v, str) and PurePosixPath(v).parent in toolkits for v in values):
        return None
    if row is not None and path not in facts.lost:
        # What it named before our first install is what it may name after us, whatever was added since.
        return ConfigChange(None, row, None)
    if row is None and facts.held.engine(name) is not None:
        return None  # we were installed before an unknown file: what it names is no original
    return ConfigChange(None, _row_as_found(name, path, now, facts), now)


def _row_as_found(name: str, path: PurePosixPath, now: File, facts: Facts) -> ConfigRow:
    syntax = syntax_of(path, text_of(now, path), name)
    return ConfigRow(name, path, syntax, Saved.of(now), (now.digest,), (), facts.targets.get(path))


def withdraw(row: ConfigRow, facts: Facts) -> ConfigChange:
    """Return what takes our keys out of a file without a part in what is wanted; raise as ``undo_config``."""
    now, was = facts.contents[row.path], without_us(row.path, facts)
    step = WriteConfig(row.engine, row.path, now, was, facts.relinked.get(row.path, ""))
    return ConfigChange(step if now != was else None, None, was, taken_back=now != was)


def _find_stale(
    row: ConfigRow | None, now: File | None, total: Sequence[Edit], wanted: FileWants
) -> tuple[Edit, ...]:
    """Return the edits of an earlier run that this one does not make."""
    kept = {_asked(edit) for edit in total}
    found = tuple(edit for edit in relocate_edits(row, now) if _asked(edit) not in kept) if row else ()
    if row is None or row.ours:
        return found
    # The ledger was lost: it is not known what an earlier run made of a runtime that is wanted still.
    names = {runtime_of(want.key) for want in wanted.wants} - {""}
    # But for another spelling of what is asked: an engine that ignores case would take either.
    asked = {_folded(edit) for edit in total}
    return tuple(edit for edit in found if runtime_of(edit.key) not in names or _folded(edit) in asked)


def _folded(edit: Edit) -> Key:
    return tuple(map(str.lower, edit.key))


def _asked(edit: Edit) -> tuple[Key, str | None]:
    """Return what an edit is about: a key, or one member of the array at a key."""
    return edit.key, edit.after if edit.member else None


def runtime_of(key: Key) -> str:
    """Return the name of the runtime that a key is about, "" for any other key."""
    place = key.index(RUNTIMES) + 1 if RUNTIMES in key else len(key)
    return key[place] if place < len(key) else ""


def is_head(key: Key) -> bool:
    """Tell whether a key is no wish of anybody's: it says how the rest of a text is read."""
    return key == ("version",) or runtime_of(key) == BUILT_IN


class _EditedText(Struct, frozen=True):
    """A text with edits of ours, and what stood there before the first of them."""

    text: str
    original: str
    syntax: Syntax
    name: str

    @classmethod
    def of(cls, now: File, path: PurePosixPath, syntax: Syntax, facts: Facts) -> Self:
        return cls(text_of(now, path), text_of(facts.originals.get(path), path), syntax, str(path))

    def remove(self, edits: Sequence[Edit]) -> Undone:
        """Return the text without ``edits``, but for those that have to stay; raise for a text not valid."""
        text, overruled = undo(self.text, edits, self.syntax, name=self.name)
        text, orphans = self._remove_orphans(text, edits)
        changed = {edit.key for edit in overruled}
        overruled = tuple(edit for edit in overruled if edit.key not in orphans)
        if relied_on := self._find_relied_on(text, edits):
            rest = [edit for edit in edits if edit not in relied_on]
            return replace(self.remove(rest), relied_on=relied_on)
        if taken := self._find_taken_over(text, edits, {edit.key for edit in overruled}):
            rest = [edit for edit in edits if runtime_of(edit.key) not in taken]
            return replace(self.remove(rest), taken=taken)
        emptied = tuple(key for key, value in orphans.items() if value or key in changed)
        return Undone(text, overruled, emptied)

    def _parse(self, text: str) -> Tree:
        return parse(text, self.syntax, name=self.name)

    def _find_relied_on(self, text: str, edits: Sequence[Edit]) -> tuple[Edit, ...]:
        """Return the edits that others rely on who have added to ``text``, which is without ours."""
        heads = [edit for edit in edits if edit.before is None and is_head(edit.key)]
        if self.syntax is not Syntax.TOML or not heads:
            return ()
        now, was = self._parse(text), self._parse(self.original)
        # The table whose meaning an edit changes as a whole: that of the runtimes, which has no built-in one
        # in 1.x, or all, for the schema says how an engine reads it.
        above = {
            edit: edit.key[: edit.key.index(RUNTIMES) + 1] if RUNTIMES in edit.key else () for edit in heads
        }
        return tuple(
            edit
            for edit, key in above.items()
            if (there := value_at(now, key)) and there != value_at(was, key)
        )

    def _find_taken_over(
        self, text: str, edits: Sequence[Edit], overruled: Collection[Key]
    ) -> dict[str, str]:
        """Return the runtimes of ours that were edited to start something else, and what that is."""
        now, was, created = self._parse(text), self._parse(self.original), _list_created(edits)
        tables = dict.fromkeys(
            edit.key[: edit.key.index(RUNTIMES) + 2] for edit in edits if runtime_of(edit.key)
        )
        found = ((key, below, value) for key in tables for below, value in _list_starts(value_at(now, key)))
        return {
            key[-1]: str(value)
            for key, below, value in found
            if (key in created and value != value_at(was, (*key, *below))) or (*key, *below) in overruled
        }

    def _remove_orphans(self, text: str, edits: Sequence[Edit]) -> tuple[str, dict[Key, Value]]:
        """Return a text less what others have put into runtimes that we created: they start nothing now."""
        orphans: dict[Key, Value] = {}
        within: set[Key] = set()
        tree = self._parse(text)
        for key in _list_created(edits):
            orphan = value_at(tree, key)
            if isinstance(orphan, Mapping) and not any(_list_starts(orphan)):
                orphans |= {(*key, *below): value for below, value in leaves(orphan) if value != {}}
                within |= {key, *_list_containers(orphan, key)}
        if not within:
            return text, {}
        text, _ = apply(text, [Want(each, ABSENT) for each in orphans], self.syntax, name=self.name)
        # What held nothing but these is empty now, the tables above them included.
        closing = [Edit(each, None, EMPTY) for each in sorted(within, key=len)]
        above = [edit for edit in edits if edit.after == EMPTY and edit.key not in within]
        text, _ = undo(text, [*above, *closing], self.syntax, name=self.name)
        return text, orphans


def _list_created(edits: Sequence[Edit]) -> list[Key]:
    """Return the keys of the runtimes of ours that were not there before us."""
    tables = dict.fromkeys(edit.key for edit in edits if (edit.before, edit.after) == (None, EMPTY))
    return [key for key in tables if key[-2:-1] == (RUNTIMES,) and key[-1] != BUILT_IN]


def _list_starts(runtime: Value) -> Iterator[tuple[Key, Value]]:
    """Yield the settings of a runtime that make it start something."""
    for key, value in leaves(runtime) if isinstance(runtime, Mapping) else ():
        if value and key[-1].lower().replace("_", "") in STARTS:
            yield key, value


def _list_containers(tree: Tree, above: Key) -> Iterator[Key]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield (*above, name)
            yield from _list_containers(value, (*above, name))
