"""Recognize the runtimes that an install of ours has written into a config, without a ledger."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.change.references import list_runtimes
from installer.config_text import Key, Tree, value_at
from installer.engines.config_texts import tree_of
from installer.errors import InstallerError
from installer.model.effective import MODES, STANDARD_NAMES
from installer.model.facts import ConfigRow, Facts, SpecialVersion
from installer.model.options import Options

PLAIN_PROGRAM: Final = "nvidia-container-runtime"
# The programs of the runtimes that an install writes beside the plain runtime, by the runtime's name.
SPECIAL_PROGRAMS: Final = {
    name: f"{PLAIN_PROGRAM}{mode}" for name, mode in zip(STANDARD_NAMES[1:], MODES[1:], strict=True)
}
TOGETHER: Final = 2  # a runtime of ours does not stand alone in a config


def find_our_runtimes(tree: Tree, toolkit: PurePosixPath, runtime_name: str) -> dict[Key, PurePosixPath]:
    """Find the runtimes in a config that an install of ours writes: several together, each by its own name.

    A runtime of another name, or alone, is an administrator's, whatever it starts. Of several plain runtimes
    only the one that a flag names is ours: the usual name may be an administrator's beside ``gpu`` of ours.

    Args:
        tree: the config.
        toolkit: the directory of our programs.
        runtime_name: the name of the plain runtime; the lost install may have used another name.
    """
    tables: dict[Key, dict[str, PurePosixPath]] = {}
    for key, binary in list_runtimes(tree, toolkit):
        if _may_be_written_by_install(value_at(tree, key)):
            tables.setdefault(key[:-1], {})[key[-1]] = binary

    found: dict[Key, PurePosixPath] = {}
    for above, binaries in tables.items():
        names = [
            name for name, program in SPECIAL_PROGRAMS.items() if binaries.get(name) == toolkit / program
        ]
        plain = [name for name, binary in binaries.items() if binary.name == PLAIN_PROGRAM]
        ours = _choose_plain(plain, runtime_name, is_beside_all=len(names) == len(SPECIAL_PROGRAMS))
        if ours:
            names.append(ours)
        if len(names) >= TOGETHER:
            for name in names:
                found[(*above, name)] = binaries[name]
    return found


def _choose_plain(plain: Sequence[str], runtime_name: str, *, is_beside_all: bool) -> str:
    """Choose the plain runtime that is ours; "" for none.

    Args:
        plain: the names of the runtimes with the plain program.
        runtime_name: the name of the plain runtime by the options.
        is_beside_all: whether all runtimes that an install writes beside the plain runtime are there.
    """
    usual = STANDARD_NAMES[0]
    if len(plain) > 1:
        is_named = runtime_name in plain and runtime_name != usual
        return runtime_name if is_named else ""
    for name in plain:
        if name in {usual, runtime_name} or is_beside_all:
            return name
    return ""


def _may_be_written_by_install(definition: object) -> bool:
    """Tell whether a runtime's table may be an install's; with other keys it is an administrator's.

    For containerd and CRI-O an install always writes the type, and any setting of the runtime that it copies.
    For Docker it writes the path and empty arguments, or empties the other fields of a former runtime.
    """
    if not isinstance(definition, dict):
        return False
    if definition.get("runtime_type"):
        return True
    values = [value for name, value in definition.items() if name.lower() != "path"]
    return bool(values) and not any(values)


def forget_our_runtimes(rows: Iterable[ConfigRow], facts: Facts, options: Options) -> Iterator[ConfigRow]:
    """Drop our own runtimes from the programs that each new row's file names before our first install.

    Only if the ledger was lost: it may have known the file, and an undo must not leave our runtimes there
    without the toolkit.
    """
    toolkit = facts.record.toolkit
    is_lost = toolkit is not None and toolkit.version == SpecialVersion.ADOPTED
    for row in rows:
        if row.named and is_lost and facts.record.config(row.path) is None:
            ours = _list_our_programs(row.path, facts, options)
            yield replace(row, named=tuple(program for program in row.named if program not in ours))
        else:
            yield row


def _list_our_programs(path: PurePosixPath, facts: Facts, options: Options) -> set[str]:
    """List the programs of our runtimes in a config as it is."""
    with suppress(InstallerError):  # no engine can read this config
        tree = tree_of(facts.contents.get(path), path)
        runtimes = find_our_runtimes(tree, options.layout.toolkit, options.runtime_name)
        return {str(binary) for binary in runtimes.values()}
    return set()
