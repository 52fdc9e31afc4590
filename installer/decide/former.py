"""What an undo has taken away while more of ours had to stay: a config that is put back is ours again."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from installer.decide.configs import DEFAULT, group_of, relocated, text_of
from installer.decide.data import replace
from installer.decide.edits import Edit, unheld
from installer.decide.engines.model import is_ours
from installer.decide.errors import InstallerError
from installer.decide.inode import File
from installer.decide.rows import ConfigRow, Record
from installer.decide.undone import runtime_of


def after_undo(held: Record, left: Record) -> Record:
    """Return what an undo has ``left`` with, besides, the rows of ``held`` that it has taken something from.

    The owner of a config may put a copy back that he made between install and undo.
    """
    known = {row.path: row for row in (*held.configs, *held.former_configs)}
    configs = tuple(row for row in known.values() if row.written and left.config(row.path) != row)
    engines = {row.name: row for row in (*held.engines, *held.former_engines)}
    of_configs = {row.engine for row in configs}
    former = tuple(row for row in engines.values() if row.name in of_configs)
    return replace(left, former_configs=configs, former_engines=former)


def after_install(held: Record, final: Record) -> Record:
    """Return what an install holds, with the former rows that it has no part for."""
    configs = tuple(row for row in held.former_configs if final.config(row.path) is None)
    names = {row.engine for row in configs} - {row.name for row in final.engines}
    engines = tuple(row for row in held.former_engines if row.name in names)
    return replace(final, former_configs=configs, former_engines=engines)


def revived(held: Record, contents: Mapping[PurePosixPath, File | None]) -> Record:
    """Return the rows with those of before an undo for each config that somebody has put back since."""
    again = {row.path: row for row in _put_back(held, contents)}
    if not again:
        return held
    names = {row.engine for row in again.values()}
    engines = {row.name: row for row in held.engines}
    engines |= {row.name: row for row in held.former_engines if row.name in names}
    configs = {row.path: row for row in held.configs} | again
    return replace(held, engines=tuple(engines.values()), configs=tuple(configs.values()))


def _put_back(held: Record, contents: Mapping[PurePosixPath, File | None]) -> Iterator[ConfigRow]:
    """Yield the former rows whose file holds again what the undo had taken from it."""
    for row in held.former_configs:
        now, left = contents.get(row.path), held.config(row.path)
        ours = left.ours if left is not None else ()
        if now is not None and now.digest not in ours and holds_ours(row, now, left.edits if left else ()):
            yield replace(row, ours=tuple(dict.fromkeys((*row.ours, *ours))))


def holds_ours(row: ConfigRow, now: File, known: Collection[Edit] = ()) -> bool:
    """Tell whether a file is a text of a row's, or has by its edits a runtime of ours, or one as its default.

    What the ``known`` edits tell does not count.
    """
    if now.digest in row.ours or row.syntax is None:
        return now.digest in row.ours
    try:
        edits = [edit for edit in relocated(row, now) if edit not in known and _is_about_us(edit, row.engine)]
        lacking = unheld(text_of(now, row.path), edits, row.syntax, name=str(row.path))
    except InstallerError:  # it is told where that file is read
        return False
    return len(lacking) < len(edits)


def _is_about_us(edit: Edit, engine: str) -> bool:
    """Tell whether an edit names our program, or makes a runtime of ours the default."""
    named = bool(runtime_of(edit.key)) and is_ours((edit.after or "").strip("\"'"))
    return named or (edit.after is not None and group_of(edit.key, engine) == DEFAULT)
