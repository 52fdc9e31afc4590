"""One config: what it would be without us, what it should be with us, and the row that leads back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath

from installer.decide.edits import Edit, Key, Syntax, Tree, apply, holds, parse, undo
from installer.decide.engines.model import FileWants
from installer.decide.errors import InstallerError
from installer.decide.facts import Facts
from installer.decide.inode import File, Meta
from installer.decide.rows import ConfigRow, Saved
from installer.decide.steps import WriteConfig


@dataclass(frozen=True, slots=True)
class Pristine:
    """A file as it would be without us, and the edits of ours that somebody else has overruled."""

    file: File | None
    overruled: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What becomes of one config.

    ``step`` is None where the file is as wanted, ``row`` where nothing in it is ours;
    ``original`` is the file without us, to be saved; ``taken_back`` tells that keys we wanted
    in an earlier run are not wanted any more.
    """

    step: WriteConfig | None
    row: ConfigRow | None
    original: File | None
    taken_back: bool = False


def syntax_of(path: PurePosixPath) -> Syntax:
    """Return the syntax of a config by its name; all engines read TOML but for JSON files."""
    return Syntax.JSON if path.suffix == ".json" else Syntax.TOML


def text_of(file: File | None, path: PurePosixPath) -> str:
    """Return the text of a config; "" where there is no file.

    Raises:
        InstallerError: the bytes are not UTF-8.
    """
    if file is None:
        return ""
    try:
        return _decoded(file.content)
    except UnicodeDecodeError as error:
        raise InstallerError(
            f"read {path} (byte {error.start} is not UTF-8)", remedy="save the file as UTF-8, then run again"
        ) from error


@lru_cache(maxsize=2)
def _decoded(content: bytes) -> str:
    """Return the text of bytes that are asked for again and again, and may be megabytes, once."""
    return content.decode()


def tree_of(file: File | None, path: PurePosixPath) -> Tree:
    """Return what a config says; an empty tree where there is no file.

    Raises:
        InstallerError: the text is not valid.
    """
    return parse(text_of(file, path), syntax_of(path), name=str(path))


def pristine(path: PurePosixPath, facts: Facts) -> Pristine:
    """Return the file at ``path`` without us: the saved one, or the present one less our keys.

    Mode, owner and labels are those of the present file: we never change them, so a change is somebody's.

    Raises:
        InstallerError: somebody else wrote since, and the text is not valid any more.
    """
    now, row = facts.contents[path], facts.held.config(path)
    if row is None or now is None:
        return Pristine(now)
    if now.digest in row.ours:
        original = facts.originals[path]
        return Pristine(original and replace(original, meta=now.meta))
    if row.syntax is None:
        return Pristine(now)  # a file that was ours as a whole is now somebody else's
    text, overruled = undo(text_of(now, path), row.edits, row.syntax, name=str(path))
    if row.original is None and not text.strip():
        return Pristine(None, overruled)
    return Pristine(File(text.encode(), now.meta), overruled)


def config_change(engine: str, wanted: FileWants, facts: Facts) -> ConfigChange:
    """Return what brings one config to what is wanted, touching nothing else in it.

    Raises:
        InstallerError: the text is not valid, or holds another type on the way to a wanted key.
    """
    path, syntax = wanted.path, wanted.syntax
    now, row = facts.contents[path], facts.held.config(path)
    original = pristine(path, facts).file
    clean, total = apply(text_of(original, path), wanted.wants, syntax, name=str(path))
    stale = _stale(row.edits if row else (), total)
    text = text_of(now, path)
    if not stale and now is not None and holds(text, wanted.wants, syntax, name=str(path)):
        return ConfigChange(None, row, original)
    if row is None or now is None or now.digest in row.ours:
        target = clean
    else:
        base, _ = undo(text, stale, syntax, name=str(path))
        target, _ = apply(base, wanted.wants, syntax, name=str(path))
    meta = now.meta if now else original.meta if original else Meta()
    after = File(target.encode(), meta)
    saved = Saved.of(original)
    return ConfigChange(
        WriteConfig(engine, path, now, after),
        ConfigRow(engine, path, syntax, saved, (after.digest,), total, facts.targets.get(path)),
        original,
        taken_back=bool(stale),
    )


def _stale(held: Sequence[Edit], total: Sequence[Edit]) -> tuple[Edit, ...]:
    """Return the edits of an earlier run that this one does not make."""
    kept = {_asked(edit) for edit in total}
    return tuple(edit for edit in held if _asked(edit) not in kept)


def _asked(edit: Edit) -> tuple[Key, str | None]:
    """Return what an edit is about: a key, or one member of the array at a key."""
    return edit.key, edit.after if edit.member else None
