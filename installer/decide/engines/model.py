"""What every engine's function is given, and what it says."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import dataclass, field
from installer.decide.edits import Key, Syntax, Tree, Value, Want
from installer.decide.edits.tree import dotted, kind_of
from installer.decide.effect import Effect, Flags
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.inode import File

OUR_BINARIES: Final = frozenset(
    f"nvidia-container-runtime{mode}{real}"
    for mode in ("", ".cdi", ".legacy", ".experimental")  # the last is that of 2021
    for real in ("", ".real")
)
# A VM or a user-space kernel cannot start a container for our runtime, nor can a shim (compatibility.md#d33).
NOT_OCI_PREFIXES: Final = ("kata", "runsc", "krun", "crun-vm", "cc-runtime", "containerd-shim-")
# A runtime of containerd's or CRI-O's has some twenty options, in two tables.
MOST_OPTIONS: Final = 200
DEEPEST_OPTION: Final = 16
STANDARD_NAMES: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")


@dataclass(frozen=True, slots=True)
class RuntimeEntry:
    """One OCI runtime; ``binary`` is the path the host sees.

    ``table`` is what its engine has to say of it when it serves it, None where only the binary counts.
    """

    name: str
    binary: PurePosixPath
    default: bool = False
    table: Tree | None = None


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The configs of one engine as they would be without us.

    ``trees`` holds each file that exists, in the order in which the engine reads them;
    ``version`` is that of the running engine, or None where none runs; ``serving`` is what that one says.
    ``before`` is what the files have in force, None where nobody was asked yet. ``flags`` are those of its
    start, in force besides. ``engine`` is what a sentence calls it. ``unreadable``, ``dormant`` and
    ``rendered`` are as in ``EngineFacts``.
    """

    config: PurePosixPath
    drop_in: PurePosixPath | None
    trees: Mapping[PurePosixPath, Tree]
    version: tuple[int, ...] | None = None
    hook: PurePosixPath | None = None
    before: Effect | None = None
    serving: Effect | None = None
    files: Mapping[PurePosixPath, File] = field(default_factory=dict)
    flags: Flags = field(default_factory=Flags)
    unreadable: frozenset[PurePosixPath] = frozenset()
    dormant: frozenset[PurePosixPath] = frozenset()
    rendered: File | None = None
    engine: str = "containerd"


@dataclass(frozen=True, slots=True)
class Extras:
    """What else an engine's config may be asked to say.

    ``cdi`` switches the engine's own CDI support on. The others are containerd's: ``annotations`` are the
    prefixes of those that our runtimes are shown, ``runtime_type`` is that of a runtime that inherits none,
    and ``override`` holds keys of a runtime's table that win over what it inherits.
    """

    cdi: bool = False
    annotations: tuple[str, ...] = ()
    runtime_type: str = ""
    override: Tree = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileWants:
    """What the keys of one file should hold."""

    path: PurePosixPath
    syntax: Syntax
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one engine's configs should say.

    ``low_level`` are the runtimes that ours may wrap, preferred first; ``notes`` are for the owner.
    ``shown`` holds what the engine has to show of our runtimes, by name, where more than the binary counts.
    ``doubt`` is why it would not serve them, as far as the texts tell; its own program may know better.
    ``cdi`` tells that the engine has to serve CDI devices after its reload.
    """

    files: tuple[FileWants, ...]
    low_level: tuple[str, ...]
    notes: tuple[str, ...] = ()
    shown: Mapping[str, Tree] = field(default_factory=dict)
    doubt: InstallerError | None = None
    cdi: bool = False


def is_ours(binary: Value) -> bool:
    """Tell whether ``binary`` is a runtime of this toolkit, whatever the name it is configured under.

    Ours as its own low-level runtime would exec itself for ever (compatibility.md#d1).
    """
    return isinstance(binary, str) and PurePosixPath(binary).name in OUR_BINARIES


def is_oci(name: str, binary: Value) -> bool:
    """Tell whether a runtime can be the low-level runtime of ours: neither a VM nor a sandbox."""
    base = PurePosixPath(binary).name if isinstance(binary, str) else ""
    return not name.startswith(NOT_OCI_PREFIXES) and not base.startswith(NOT_OCI_PREFIXES)


def low_level_words(binaries: Iterator[Value]) -> tuple[str, ...]:
    """Return the paths found in a config, then words to be looked up, runc and crun among them, each once."""
    found = [binary for binary in binaries if isinstance(binary, str) and binary]
    # A word may be found elsewhere than where the engine finds it, or not at all.
    found.sort(key=lambda binary: not binary.startswith("/"))
    return tuple(dict.fromkeys([*found, "runc", "crun"]))


def table(tree: Tree, key: Key, path: PurePosixPath) -> Tree:
    """Return the table at ``key``; an empty one where there is none.

    Raises:
        InstallerError: something else stands there or on the way.
    """
    for depth, part in enumerate(key, 1):
        value = tree.get(part)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise wrong_type(path, key[:depth], "a table", value)
        tree = value
    return tree


def text(tree: Tree, name: str, path: PurePosixPath, above: Key = ()) -> str:
    """Return the string at ``name``; "" where there is none.

    Raises:
        InstallerError: something else stands there.
    """
    value = tree.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong_type(path, (*above, name), "a string", value)
    return value


def wrong_type(path: PurePosixPath, key: Key, wanted: str, found: Value) -> InstallerError:
    """Return the error for a key that holds a value of another type."""
    return InstallerError(
        f"use {path} ({dotted(key)} is {kind_of(found)} where {wanted} belongs)",
        remedy="correct the file, then run again",
    )


def leaves(tree: Tree, above: Key = ()) -> Iterator[tuple[Key, Value]]:
    """Yield each value below ``tree`` that is not a table, with its key."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def refuse_large_donor(path: PurePosixPath, donor: Tree) -> None:
    """Raise where the runtime whose options ours take over is none that a person has written.

    Raises:
        InstallerError: always in that case.
    """
    keys = [key for key, _ in leaves(donor)]
    deepest = max(map(len, keys), default=0)
    if len(keys) > MOST_OPTIONS or deepest > DEEPEST_OPTION:
        raise InstallerError(
            f"edit {path} (its default runtime has {len(keys)} options, in tables up to {deepest} deep, "
            f"which ours would take over: no more than {MOST_OPTIONS}, and {DEEPEST_OPTION} deep)",
            remedy="take out what the runtime does not need, then run again",
        )


def refuse_taken_name(path: PurePosixPath, name: str, binary: Value) -> None:
    """Raise where a custom runtime name would replace a runtime that is not NVIDIA's.

    Raises:
        InstallerError: always in that case (compatibility.md#d34).
    """
    if name in STANDARD_NAMES or not binary or is_ours(binary):
        return
    raise InstallerError(
        f"use {path} (a runtime named {name} is there already and starts {binary})",
        remedy=Remedy("choose another name with ", Option("runtime-name")),
    )
