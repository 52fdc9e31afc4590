"""containerd: CRI runtimes in config.toml, schema 1 to 4, or in a drop-in where that merges."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from installer.decide.edits import Key, Syntax, Tree, Value, Want
from installer.decide.engines.model import (
    ConfigFiles,
    Decision,
    FileWants,
    RuntimeEntry,
    is_oci,
    is_ours,
    leaves,
    low_level_words,
    refuse_taken_name,
    table,
    text,
    wrong_type,
)
from installer.decide.errors import InstallerError

RUNC_TYPE: Final = "io.containerd.runc.v2"
V2_PLUGIN: Final = "io.containerd.grpc.v1.cri"
V3_PLUGIN: Final = "io.containerd.cri.v1.runtime"
DEFAULT: Final = "default_runtime_name"
NEW_SCHEMA: Final = 2  # read by every containerd from 1.6 to 2.3 (engines.md, design consequences 2)


@dataclass(frozen=True, slots=True)
class _Root:
    """The root file, understood: its schema and the key of the table that holds the runtimes.

    ``merged`` is what containerd makes of the root file and its imports.
    """

    path: PurePosixPath
    tree: Tree
    schema: int
    key: Key
    merged: Tree

    @property
    def cri(self) -> Tree:
        return table(self.merged, self.key, self.path)

    @property
    def runtimes(self) -> Tree:
        return table(self.merged, (*self.key, "runtimes"), self.path)


def edits(files: ConfigFiles, entries: tuple[RuntimeEntry, ...]) -> Decision:
    """Return what containerd's root file, and a drop-in where one is asked for, should say.

    Raises:
        InstallerError: containerd would not read the result, or CRI is switched off in it.
    """
    root = _understood(files)
    _refuse_unserved(files, root, entries)
    donor = _donor(root)
    beside = _drop_in(files, root)
    target = beside or root.path
    now = table(files.trees.get(target, {}), (*root.key, "runtimes"), target)
    wants = [want for entry in entries for want in _entry(root, target, donor, now, entry)]
    if _needs_runc(files, root):
        wants.insert(0, Want((*root.key, "runtimes", "runc", "runtime_type"), RUNC_TYPE))
    head = [] if root.tree else [Want(("version",), NEW_SCHEMA)]
    notes: tuple[str, ...] = ()
    if beside is None:
        out = [FileWants(root.path, Syntax.TOML, (*head, *wants))]
        if files.drop_in is not None:
            notes = (f"containerd 1.x takes a drop-in for the whole CRI table: editing {root.path} in place",)
    else:
        # Not *.toml: files that nobody imported so far must stay dormant. Not the bare
        # name: an import of a missing file is fatal (engines.md, case L1).
        pattern = str(beside.with_name(f"{beside.stem}*{beside.suffix}"))
        imports = Want(("imports",), pattern, member=True)
        out = [
            FileWants(beside, Syntax.TOML, tuple(wants)),
            FileWants(root.path, Syntax.TOML, (*head, imports)),
        ]
    return Decision(tuple(out), low_level_words(_low_level(root)), notes)


def _understood(files: ConfigFiles) -> _Root:
    path = files.config
    tree = files.trees.get(path, {})
    schema = tree.get("version", 1 if tree else NEW_SCHEMA)
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise wrong_type(path, ("version",), "a number", schema)
    plugins = table(tree, ("plugins",), path)
    plugin = {1: "cri", 2: V2_PLUGIN}.get(schema, V3_PLUGIN)
    # containerd 2.x takes the ids of a version 2 file as they are (engines.md 3).
    if schema == 2 and V2_PLUGIN not in plugins and V3_PLUGIN in plugins and _major(files) != 1:
        plugin = V3_PLUGIN
    merged = tree
    if _merges(files, schema):
        for other in files.trees.values():
            merged = _merge(merged, other)
    return _Root(path, tree, schema, ("plugins", plugin, "containerd"), merged)


def _merges(files: ConfigFiles, schema: int) -> bool:
    """Tell whether imports merge key by key (2.x), and not table by table (1.x; engines.md 2)."""
    return _major(files) == 2 or (_major(files) is None and schema > 2)


def _merge(under: Tree, over: Tree) -> Tree:
    merged = dict(under)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _merge(below, value)  # noqa: PLW2901 - the same value, with what lies under it
        merged[name] = value
    return merged


def _major(files: ConfigFiles) -> int | None:
    return files.version[0] if files.version else None


def _refuse_unserved(files: ConfigFiles, root: _Root, entries: tuple[RuntimeEntry, ...]) -> None:
    disabled = root.tree.get("disabled_plugins") or []
    if isinstance(disabled, list) and {"cri", root.key[1]} & {str(name) for name in disabled}:
        raise InstallerError(
            f"configure containerd in {root.path} (disabled_plugins switches CRI off: it serves Docker)",
            remedy="choose --runtime docker, or remove cri from disabled_plugins",
        )
    if root.schema == 1 and _major(files) == 2:
        raise InstallerError(
            f"configure containerd in {root.path} (2.x ignores a file of schema 1 or without a version)",
            remedy="rewrite it with containerd config migrate, then run again",
        )
    if root.schema not in (1, 2) and (_major(files) == 1 or root.schema < 1):
        raise InstallerError(
            f"configure containerd in {root.path} (this containerd does not read schema {root.schema})",
            remedy="set the version that the installed containerd writes in containerd config default",
        )
    # containerd 1.x writes the table out empty in its own default config.
    old_default = table(root.tree, (*root.key, "default_runtime"), root.path)
    if old_default.get("runtime_type") and any(entry.default for entry in entries):
        raise InstallerError(
            f"set the default runtime in {root.path} (its old default_runtime table overrules the name)",
            remedy="replace that table by default_runtime_name, or run with --no-set-as-default",
        )
    _refuse_shadowed(files, root, entries)


def _refuse_shadowed(files: ConfigFiles, root: _Root, entries: tuple[RuntimeEntry, ...]) -> None:
    """Raise where an imported file is stronger than ours: on 1.x it replaces the whole CRI table."""
    merges = _merges(files, root.schema)
    for path, tree in files.trees.items():
        if path == root.path or (merges and path == files.drop_in):
            continue
        if merges:
            _refuse_overruled(path, table(tree, root.key, path), entries)
        elif root.key[1] in table(tree, ("plugins",), path):
            raise InstallerError(
                f"configure containerd in {root.path} ({path} is imported and replaces its whole CRI table)",
                remedy=f"name the file that counts with --config containerd={path}",
            )


def _refuse_overruled(path: PurePosixPath, cri: Tree, entries: tuple[RuntimeEntry, ...]) -> None:
    names = {entry.name for entry in entries} & table(cri, ("runtimes",), path).keys()
    if names or (DEFAULT in cri and any(entry.default for entry in entries)):
        word = f"the runtime {min(names)}" if names else DEFAULT
        raise InstallerError(
            f"configure containerd ({path} is imported after our file and sets {word} too)",
            remedy=f"remove {word} from {path}",
        )


def _drop_in(files: ConfigFiles, root: _Root) -> PurePosixPath | None:
    return files.drop_in if _merges(files, root.schema) else None


def _needs_runc(files: ConfigFiles, root: _Root) -> bool:
    """Tell whether naming a runtime would take the built-in runc away and CRI down (engines.md 2, case P)."""
    return "runc" not in root.runtimes and _major(files) != 2 and root.schema <= 2


def _runtime(root: _Root, name: str) -> tuple[Tree, Value] | None:
    """Return the table and the binary of a runtime that ours may wrap."""
    if name not in root.runtimes:
        return None
    entry = table(root.merged, (*root.key, "runtimes", name), root.path)
    kind = text(entry, "runtime_type", root.path, (*root.key, "runtimes", name))
    options = table(root.merged, (*root.key, "runtimes", name, "options"), root.path)
    binary = next((value for key, value in options.items() if key.lower() == "binaryname"), None)
    wrappable = not kind or kind.startswith(("io.containerd.runc.", "io.containerd.runtime.v1."))
    return (entry, binary) if wrappable and is_oci(name, binary) and not is_ours(binary) else None


def _candidates(root: _Root) -> tuple[str, ...]:
    return (text(root.cri, DEFAULT, root.path, root.key), "runc", "crun")


def _donor(root: _Root) -> Tree:
    found = (_runtime(root, name) for name in _candidates(root))
    return next((entry for entry, _ in filter(None, found)), {})


def _low_level(root: _Root) -> Iterator[Value]:
    for name in _candidates(root):
        found = _runtime(root, name)
        if found:
            yield found[1]


def _entry(root: _Root, target: PurePosixPath, donor: Tree, now: Tree, entry: RuntimeEntry) -> Iterator[Want]:
    key = (*root.key, "runtimes", entry.name)
    mine = table(now, (entry.name,), target)
    options = table(mine, ("options",), target)
    # containerd reads option names in any case, so a second spelling would win by chance (gpu-operator#1374).
    spellings = [name for name in options if name.lower() == "binaryname"]
    refuse_taken_name(target, entry.name, options[spellings[0]] if spellings else mine.get("runtime_type"))
    kind = text(mine, "runtime_type", target, key)
    if not kind.startswith("io.containerd.runc."):
        yield Want((*key, "runtime_type"), donor.get("runtime_type") or RUNC_TYPE)
    for below, value in leaves(donor):
        inherited = below[0] != "runtime_type" and below[-1].lower() not in {"binaryname", "runtime"}
        if inherited and _at(mine, below) is None and value != {}:
            yield Want((*key, *below), value)
    for name in spellings or ["BinaryName"]:
        yield Want((*key, "options", name), str(entry.binary))
    if root.schema == 1:
        yield Want((*key, "options", "Runtime"), str(entry.binary))
    if entry.default:
        yield Want((*root.key, DEFAULT), entry.name)


def _at(tree: Tree, key: Key) -> Value:
    value: Value = tree
    for part in key:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
