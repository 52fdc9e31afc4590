"""containerd's configs as containerd itself understands them: schemas, imports, merging."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from installer.decide.edits import Key, Tree
from installer.decide.engines.model import ConfigFiles, table, text, wrong_type

V2_PLUGIN: Final = "io.containerd.grpc.v1.cri"
V3_PLUGIN: Final = "io.containerd.cri.v1.runtime"
DEFAULT: Final = "default_runtime_name"
OLD_DEFAULT: Final = "default"
NEW_SCHEMA: Final = 2  # read by every containerd from 1.6 to 2.3 (engines.md, design consequences 2)


@dataclass(frozen=True, slots=True)
class Config:
    """The files, understood as containerd does.

    ``key`` is the table that holds the runtimes. ``imported`` are the other files in the order of
    reading, the drop-in that was asked for among them. Where ``merges`` is true (2.x), they add to
    the root file key by key, and ``runtimes`` and ``default`` are what comes out. ``old_default``
    tells that the default is the table that schema 1 had for it.
    """

    path: PurePosixPath
    tree: Tree
    schema: int
    key: Key
    merges: bool
    imported: Mapping[PurePosixPath, Tree]
    runtimes: Tree
    default: str
    old_default: bool


def understood(files: ConfigFiles, *, plugin: str = "", without_version: int = 1) -> Config:
    """Return what the configs say together, with ``plugin`` for the id that CRI has there, if it is given.

    ``without_version`` is the schema of a root file that has text but no version.

    Raises:
        InstallerError: a value has another type than containerd counts on.
    """
    path = files.config
    tree = files.trees.get(path, {})
    schema = schema_of(path, tree, without_version if tree else NEW_SCHEMA)
    merges = major(files) == 2 or (major(files) is None and schema > 2)
    plugins = table(tree, ("plugins",), path)
    # containerd 2.x takes the ids of a version 2 file as they are (engines.md 3).
    new_id = schema == 2 and V2_PLUGIN not in plugins and V3_PLUGIN in plugins and major(files) != 1
    plugin = plugin or (V3_PLUGIN if new_id else {1: "cri", 2: V2_PLUGIN}.get(schema, V3_PLUGIN))
    key = ("plugins", plugin, "containerd")
    imported = _imported(files, tree, merges=merges)
    cri = _cri(path, tree, key)
    for other, below in imported.items() if merges else ():
        cri = merged(cri, _cri(other, below, key))
    runtimes = table(cri, ("runtimes",), path)
    default = text(cri, DEFAULT, path)
    # The default config of 1.6 writes the old table out, empty; a full one is a runtime of this name.
    table_of_old = table(cri, ("default_runtime",), path)
    old_default = bool(table_of_old.get("runtime_type")) and not merges
    if old_default:
        runtimes, default = {**runtimes, OLD_DEFAULT: table_of_old}, OLD_DEFAULT
    return Config(path, tree, schema, key, merges, imported, runtimes, default, old_default)


def schema_of(path: PurePosixPath, tree: Tree, without: int) -> int:
    """Return the schema a file names, or ``without``."""
    schema = tree.get("version", without)
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise wrong_type(path, ("version",), "a number", schema)
    return schema


def major(files: ConfigFiles) -> int | None:
    """Return the first number of the running containerd's version."""
    return files.version[0] if files.version else None


def patterns(config: PurePosixPath, tree: Tree) -> list[PurePosixPath]:
    """Return what a root file imports; relative names are taken from its directory."""
    imports = tree.get("imports")
    return [config.parent / str(pattern) for pattern in imports] if isinstance(imports, list) else []


def _imported(files: ConfigFiles, tree: Tree, *, merges: bool) -> dict[PurePosixPath, Tree]:
    asked = files.drop_in if merges else None
    names = sorted({*files.trees, *([asked] if asked else [])} - {files.config})
    order = [name for pattern in patterns(files.config, tree) for name in names if name.match(str(pattern))]
    return {name: files.trees.get(name, {}) for name in (*order, *([asked] if asked else []))}


def _cri(path: PurePosixPath, tree: Tree, key: Key) -> Tree:
    """Return the table of the runtimes in one file, every type that we count on checked."""
    for name in table(tree, (*key, "runtimes"), path):
        runtime = (*key, "runtimes", name)
        table(tree, (*runtime, "options"), path)
        text(table(tree, runtime, path), "runtime_type", path, runtime)
    table(tree, (*key, "default_runtime", "options"), path)
    cri = table(tree, key, path)
    text(cri, DEFAULT, path, key)
    return cri


def merged(under: Tree, over: Tree) -> Tree:
    """Return two tables as containerd 2.x merges them: key by key, ``over`` wins."""
    both = dict(under)
    for name, value in over.items():
        below = under.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[name] = merged(below, value)
        else:
            both[name] = value
    return both
