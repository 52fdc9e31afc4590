"""containerd's configs as containerd itself understands them: schemas, imports, merging."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Tree
from installer.model.engine_spec import ConfigFiles, table, text, wrong_type

# By schema: the plugin that has the runtimes, which later schemas keep.
PLUGINS: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
V2_PLUGIN: Final = PLUGINS[2]
V3_PLUGIN: Final = PLUGINS[3]
PLUGIN_IDS: Final = tuple(PLUGINS.values())
DEFAULT: Final = "default_runtime_name"
OLD_DEFAULT: Final = "default"  # what a full one of these is called:
OLD_TABLE: Final = "default_runtime"
OLD_UNTRUSTED: Final = "untrusted_workload_runtime"  # 1.x serves it as:
UNTRUSTED: Final = "untrusted"
NEW_SCHEMA: Final = 2  # read by every containerd from 1.6 to 2.3 (engine-facts.md#containerd-schemas)


class Config(Struct, frozen=True):
    """The files, understand as containerd does.

    ``path`` and ``tree`` are the file whose CRI table counts: the root file, or on 1.x the last import
    that has one, for it replaces that of the root. ``key`` is the table that holds the runtimes.
    ``imported`` are the other files in the order of reading, the drop-in that was asked for among them.
    Where ``merges`` is true (2.x), they add to the root file key by key, and ``runtimes`` and ``default``
    are what comes out. ``old_default`` tells that the default is the table that schema 1 had for it.
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


def understand(files: ConfigFiles, *, plugin: str = "", without_version: int = 1) -> Config:
    """Return what the configs say together, with ``plugin`` for the id that CRI has there, if it is given.

    ``without_version`` is the schema of a root file that has text but no version.

    Raises:
        InstallerError: a value has another type than containerd counts on.
    """
    path = files.config
    tree = files.trees.get(path, {})
    schema = schema_of(path, tree, without_version if tree else NEW_SCHEMA)
    merges = major(files) == 2 or (major(files) is None and schema > 2)
    if merges and schema > 1 and files.drop_in in _imported(files, tree, merges=True):
        # A drop-in of NVIDIA's installer has the schema that the engine dumps. 2.1 and 2.2 read all files by
        # the highest one: what the root file says of CRI under the older plugin id is not in force then.
        drop_in = files.trees.get(files.drop_in, {})
        newer = schema_of(files.drop_in, drop_in, schema)
        schema = max(schema, newer if V3_PLUGIN in table(drop_in, ("plugins",), files.drop_in) else schema)
    plugins = table(tree, ("plugins",), path)
    # containerd 2.x takes the ids of a version 2 file as they are (engine-facts.md#containerd-schemas).
    new_id = schema == 2 and V2_PLUGIN not in plugins and V3_PLUGIN in plugins and major(files) != 1
    plugin = plugin or (V3_PLUGIN if new_id else PLUGINS.get(schema, V3_PLUGIN))
    key = ("plugins", plugin, "containerd")
    imported = _imported(files, tree, merges=merges)
    if not merges:
        with_cri = [name for name, below in imported.items() if plugin in table(below, ("plugins",), name)]
        path, tree = (with_cri[-1], imported[with_cri[-1]]) if with_cri else (path, tree)
    cri = _cri(path, tree, key)
    for other, below in imported.items() if merges else ():
        cri = merge(cri, _cri(other, below, key))
    runtimes = table(cri, ("runtimes",), path)
    default = text(cri, DEFAULT, path)
    # The default config of 1.6 writes the old table out, empty; a full one is a runtime of this name.
    table_of_old = table(cri, (OLD_TABLE,), path)
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


def list_imports(config: PurePosixPath, tree: Tree) -> list[PurePosixPath]:
    """Return what a root file imports; relative names are taken from its directory."""
    imports = tree.get("imports")
    return [config.parent / str(pattern) for pattern in imports] if isinstance(imports, list) else []


def own_import(drop_in: PurePosixPath) -> PurePosixPath:
    """Return the import for a drop-in of ours, to be taken with or without the file.

    Not *.toml: files that nobody imported so far must stay dormant. Not the bare name: an import of a missing
    file is fatal (engine-facts.md#containerd-imports).
    """
    return drop_in.with_name(f"{drop_in.stem}*{drop_in.suffix}")


def _imported(files: ConfigFiles, tree: Tree, *, merges: bool) -> dict[PurePosixPath, Tree]:
    asked = files.drop_in if merges else None
    names = sorted({*files.trees, *([asked] if asked else [])} - {files.config})
    order = [
        name for pattern in list_imports(files.config, tree) for name in names if name.match(str(pattern))
    ]
    return {name: files.trees.get(name, {}) for name in (*order, *([asked] if asked else []))}


def _cri(path: PurePosixPath, tree: Tree, key: Key) -> Tree:
    """Return the table of the runtimes in one file, every type that we count on checked."""
    for name in table(tree, (*key, "runtimes"), path):
        runtime = (*key, "runtimes", name)
        table(tree, (*runtime, "options"), path)
        text(table(tree, runtime, path), "runtime_type", path, runtime)
    table(tree, (*key, OLD_TABLE, "options"), path)
    cri = table(tree, key, path)
    text(cri, DEFAULT, path, key)
    return cri


def merge(under: Tree, over: Tree) -> Tree:
    """Return two tables as containerd 2.x merges them: key by key, ``over`` wins."""
    both = dict(under)
    for name, value in over.items():
        below = under.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            both[name] = merge(below, value)
        else:
            both[name] = value
    return both
