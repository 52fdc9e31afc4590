"""containerd's configs as containerd understands them, and the settings that they bring into force."""

import posixpath
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import (
    Edit,
    Key,
    Syntax,
    Tree,
    Value,
    WantedKey,
    leaves,
    table,
    text,
    value_at,
    wrong_type,
)
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.effective import NAMELESS, RUNC_TYPE, EffectiveConfig, Runtime
from installer.model.engine import CommandLine, Configs, DryRunCommand, EngineState

# The plugin that has the runtimes, by schema; schemas later than 3 keep the id.
PLUGINS: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
V2_PLUGIN: Final = PLUGINS[2]
V3_PLUGIN: Final = PLUGINS[3]
IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
PLUGIN_IDS: Final = tuple(PLUGINS.values())
DEFAULT: Final = "default_runtime_name"
OLD_TABLE: Final = "default_runtime"  # the table of the default runtime in schema 1
OLD_DEFAULT: Final = "default"  # the name of the runtime in ``OLD_TABLE``, if the table has a type
OLD_UNTRUSTED: Final = "untrusted_workload_runtime"  # another table of a runtime in schema 1
UNTRUSTED: Final = "untrusted"  # the name of the runtime in ``OLD_UNTRUSTED``
MERGING: Final = 2  # the major version of containerd that merges its imports
LARGEST_INTEGER: Final = 1 << 63  # of TOML; Python refuses to print a number of more than 4300 digits
LATEST_SCHEMA: Final = 4  # of 2.3 (engine-facts.md#containerd-schemas)
SCHEMA_OF_NEW_FILES: Final = 2  # read by all from 1.6 to 2.3 (engine-facts.md#containerd-schemas)
CDI: Final = "enable_cdi"  # since 1.7; earlier releases ignore the key
BUILT_IN: Final = "runc"
WILDCARD: Final = "*"  # an import without this character is a name, whatever else is in the import
RUNTIMES: Final = "runtimes"
NRI: Final = "io.containerd.nri.v1.nri"
# Settings, in small letters without underscores, that 1.7 and 2.x print for the built-in runc alone. Any
# runtime without the setting has this value.
ADDED_SETTINGS: Final = (("sandboxer", "podsandbox"), ("sandboxmode", "podsandbox"))
PRINTED: Final = PurePosixPath("config dump")
# The plugins of CRI: 1.x has only the last plugin; in 2.x the last plugin serves the others.
CRI_PLUGINS: Final = (V3_PLUGIN, IMAGES_PLUGIN, V2_PLUGIN)
# The errors of a plugin that chose not to load, and of a plugin that needs a disabled plugin of CRI.
SWITCHED_OFF: Final = ("skip plugin", "no plugins registered for io.containerd.cri.v1")
FLAGS: Final = CommandLine(
    config=("--config", "-c"),
    places={"root": ("--root",), "state": ("--state",), "address": ("--address", "-a")},
)


class Config(Struct, frozen=True):
    """The files as containerd understands them."""

    # The file with the CRI table in force: the root file, or in 1.x the last import with a CRI table.
    path: PurePosixPath
    tree: Tree  # of ``path``
    schema: int
    key: Key  # of the table that holds the runtimes
    merges: bool  # 2.x adds its imports to the root file key by key
    imported: Mapping[PurePosixPath, Tree]  # in the order of reading, with the drop-in that is asked for
    runtimes: Tree  # of all files
    default: str
    old_default: bool  # the default is the runtime in the table of schema 1

    @property
    def plugin(self) -> str:
        """The id of CRI's plugin with the runtimes."""
        return self.key[1]


def understand(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], *, plugin: str = "", without_version: int = 1
) -> Config:
    """Combine the settings of all configs.

    Args:
        state: the engine, with the drop-in of the options.
        trees: the configs.
        plugin: the id of CRI's plugin; "" to find the id by the schema.
        without_version: the schema of a root file with a text but no version.

    Raises:
        InstallerError: a value has another type than containerd expects.
    """
    path = state.config
    tree = trees.get(path, {})
    schema = schema_of(path, tree, without_version if tree else SCHEMA_OF_NEW_FILES)
    merges = _merges_imports(state, schema)
    if merges and schema > 1:
        schema = max(schema, _find_schema_of_drop_in(state, trees, schema))
    key: Key = ("plugins", plugin or _choose_plugin(state, tree, schema), "containerd")
    imported = _list_imported(state, trees, merges=merges)

    if merges:
        cri = _read_cri(path, tree, key)
        for other, below in imported.items():
            cri = merge(cri, _read_cri(other, below, key))
    else:
        # In 1.x the last import with a CRI table replaces the CRI table of the files before.
        for other, below in imported.items():
            if key[1] in table(below, ("plugins",), other):
                path = other
                tree = below
        cri = _read_cri(path, tree, key)

    runtimes = table(cri, (RUNTIMES,), path)
    default = text(cri, DEFAULT, path)
    # The default config of 1.6 has the old table without a type. With a type it is the default runtime.
    old_table = table(cri, (OLD_TABLE,), path)
    old_default = bool(old_table.get("runtime_type")) and not merges
    if old_default:
        runtimes = {**runtimes, OLD_DEFAULT: old_table}
        default = OLD_DEFAULT
    return Config(
        path=path,
        tree=tree,
        schema=schema,
        key=key,
        merges=merges,
        imported=imported,
        runtimes=runtimes,
        default=default,
        old_default=old_default,
    )


def _merges_imports(state: EngineState, schema: int) -> bool:
    """Tell whether containerd merges imports: by its version, else by the schema of the root file."""
    version = major(state)
    if version is None:
        return schema > 2
    return version == MERGING


def _find_schema_of_drop_in(state: EngineState, trees: Mapping[PurePosixPath, Tree], schema: int) -> int:
    """Find the schema of the drop-in of the options, if the drop-in has the CRI table of 2.x.

    A drop-in of NVIDIA's installer has the schema dumped by containerd. 2.1 and 2.2 read all files by the
    highest schema: then the CRI settings under the older plugin id in the root file are not in force.
    """
    path = state.drop_in
    if path is None or path not in _list_imported(state, trees, merges=True):
        return schema
    drop_in = trees.get(path, {})
    drop_in_schema = schema_of(path, drop_in, schema)
    if V3_PLUGIN not in table(drop_in, ("plugins",), path):
        return schema
    return drop_in_schema


def _choose_plugin(state: EngineState, tree: Tree, schema: int) -> str:
    """Return the id of CRI's plugin in a root file."""
    plugins = table(tree, ("plugins",), state.config)
    # 2.x takes the ids of a file of schema 2 as they are (engine-facts.md#containerd-schemas).
    has_new_id = V2_PLUGIN not in plugins and V3_PLUGIN in plugins
    if schema == 2 and has_new_id and major(state) != 1:
        return V3_PLUGIN
    return PLUGINS.get(schema, V3_PLUGIN)


def schema_of(path: PurePosixPath, tree: Tree, without_version: int) -> int:
    """Return the schema named by a file, or ``without_version``."""
    schema = tree.get("version", without_version)
    if isinstance(schema, float):
        problem = f"use {path} (version is {schema} where a whole number belongs)"
        raise InstallerError(problem, remedy="correct the file, then run again")
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise wrong_type(path, ("version",), "a whole number", schema)
    return schema


def major(state: EngineState) -> int | None:
    """Return the major version of the running containerd; None if unknown."""
    return state.version[0] if state.version else None


def list_imports(config: PurePosixPath, tree: Tree) -> list[PurePosixPath]:
    """Return the patterns of the imports of a file; relative patterns begin at the file's directory."""
    imports = tree.get("imports")
    if not isinstance(imports, list):
        return []
    return [config.parent / str(pattern) for pattern in imports]


def make_own_import(drop_in: PurePosixPath) -> PurePosixPath:
    """Return the import for a drop-in of ours, present or missing."""
    # Not *.toml: files not imported so far must stay dormant. Not the bare name: an import of a missing file
    # is fatal (engine-facts.md#containerd-imports).
    return drop_in.with_name(f"{drop_in.stem}*{drop_in.suffix}")


def _list_imported(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], *, merges: bool
) -> dict[PurePosixPath, Tree]:
    """Collect the files imported by the root file, in the order of reading.

    A merging containerd will read the drop-in of the options, too: we import the drop-in.
    """
    root = state.config
    drop_in = state.drop_in if merges else None
    names = {*trees} - {root}
    if drop_in is not None and drop_in != root:
        names.add(drop_in)

    order: list[PurePosixPath] = []
    for pattern in list_imports(root, trees.get(root, {})):
        for name in sorted(names):
            if name.match(str(pattern)):
                order.append(name)
    if drop_in is not None:
        order.append(drop_in)
    return {name: trees.get(name, {}) for name in order}


def _read_cri(path: PurePosixPath, tree: Tree, key: Key) -> Tree:
    """Return the table of the runtimes of a file; raise if a value read by us has another type."""
    for name in table(tree, (*key, RUNTIMES), path):
        runtime = (*key, RUNTIMES, name)
        table(tree, (*runtime, "options"), path)
        text(table(tree, runtime, path), "runtime_type", path, runtime)
    table(tree, (*key, OLD_TABLE, "options"), path)
    cri = table(tree, key, path)
    text(cri, DEFAULT, path, key)
    return cri


def merge(under: Tree, over: Tree) -> Tree:
    """Return two tables as containerd 2.x merges them: key by key, ``over`` wins."""
    merged = dict(under)
    for name, value in over.items():
        below = under.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        else:
            merged[name] = value
    return merged


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Describe ``containerd config dump`` with the texts of all files that containerd would read."""
    root = state.config
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}

    def render(find_memory_file: Callable[[PurePosixPath], str]) -> Mapping[PurePosixPath, str]:
        return rewrite_imports(root, texts, trees, find_memory_file)

    return DryRunCommand(
        memory_files=tuple(path for path, _ in list_read(root, trees)),
        render=render,
        arguments=("--config", root),
        last_arguments=("config", "dump"),
        # The other flags change nothing in a dump, and an unknown flag ends the program.
        replaced_flags=("--config", "-c"),
        read_output=_read_output,
    )


def _read_output(output: str) -> EffectiveConfig:
    """Return the settings in force by the output of ``containerd config dump``."""
    return read_dump(parse_dump(output))


@lru_cache(maxsize=1)  # a dump is read twice: for its meaning, then by the load check
def parse_dump(text: str) -> Tree:
    """Return the tree of the output of ``containerd config dump``."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = f"understand what containerd says of its config ({error})"
        raise InstallerError(problem, remedy="report this as a bug") from error


def read_dump(dump: Tree) -> EffectiveConfig:
    """Read the settings in force from a dump, with imports, schemas and defaults merged."""
    plugins = table(dump, ("plugins",), PRINTED)
    plugin = _find_plugin(plugins)
    # 2.x prints the table of a disabled plugin, too.
    disabled = dump.get("disabled_plugins")
    is_disabled = isinstance(disabled, list) and not {*map(str, disabled)}.isdisjoint(PLUGIN_IDS)
    if not plugin or is_disabled:
        return EffectiveConfig({}, "", rest_digest=_digest(dump, plugin), broken="CRI is switched off")

    cri = table(plugins, (plugin,), PRINTED)
    containerd = table(cri, ("containerd",), PRINTED)
    runtimes, default = _read_runtimes(containerd)
    handlers = {}
    for name, runtime in runtimes.items():
        if isinstance(runtime, Mapping):
            handlers[name] = Runtime(binary_of(runtime), drop_added_settings(runtime))
    cdi = cri.get(CDI)
    return EffectiveConfig(
        handlers,
        default,
        cdi=cdi if isinstance(cdi, bool) else None,
        rest_digest=_digest(dump, plugin),
        # CRI does not load (engine-facts.md#containerd-imports).
        undefined="" if default in runtimes else default,
        broken=_find_two_untrusted(containerd),
        places=_read_places(dump),
        schema=schema_of(PRINTED, dump, 0),
        nri=_read_nri(plugins),
        storage_driver=_read_snapshotter(plugins),
    )


def _find_plugin(plugins: Tree) -> str:
    """Return the id of CRI's plugin in a dump; "" for a dump without CRI."""
    # 2.x prints the new id for any file. The table of the old id has other settings than runtimes there.
    for name in (V3_PLUGIN, V2_PLUGIN):
        if "containerd" in table(plugins, (name,), PRINTED):
            return name
    return ""


def _read_places(dump: Tree) -> dict[str, str]:
    """Return the directories and the socket named by a dump."""
    places = {
        "root": dump.get("root"),
        "state": dump.get("state"),
        "address": table(dump, ("grpc",), PRINTED).get("address"),
    }
    return {name: place for name, place in places.items() if isinstance(place, str)}


def _read_nri(plugins: Tree) -> bool | None:
    """Tell whether NRI is on by a dump; None for a containerd without NRI."""
    nri = table(plugins, (NRI,), PRINTED)
    if not nri:
        return None
    return not (nri.get("disable") or nri.get("disable_connections"))


def _read_snapshotter(plugins: Tree) -> str:
    """Return the snapshotter of CRI's images, as printed by 2.x or 1.x; "" for none."""
    images = table(plugins, (IMAGES_PLUGIN,), PRINTED)
    containerd = table(plugins, (V2_PLUGIN, "containerd"), PRINTED)
    return str(images.get("snapshotter") or containerd.get("snapshotter") or "")


def read_status(status: Mapping[str, Any]) -> EffectiveConfig:
    """Return the config in force by the config in CRI's verbose status."""
    handlers = {}
    for name, runtime in status["containerd"]["runtimes"].items():
        handlers[name] = Runtime(binary_of(runtime), drop_added_settings(runtime))
    state = status.get("stateDir")  # that of CRI, below the engine's own (engine-facts.md#containerd-places)
    places = {
        "root": status.get("containerdRootDir"),
        "state": state and posixpath.dirname(state),
        "address": status.get("containerdEndpoint"),
    }
    return EffectiveConfig(
        handlers,
        status["containerd"]["defaultRuntimeName"],
        cdi=status.get("enableCDI"),
        cdi_dirs=tuple(PurePosixPath(each) for each in status.get("cdiSpecDirs") or ()),
        places={name: path for name, path in places.items() if path},
        storage_driver=status["containerd"].get("snapshotter") or "",  # 2.x does not tell
    )


def explain_missing_cri(socket: str, plugins: Mapping[str, str]) -> InstallerError:
    """Explain why a running containerd does not serve CRI.

    Args:
        socket: the socket of containerd.
        plugins: the error of each plugin by its id, "" for a loaded plugin.
    """
    errors = [plugins[name] for name in CRI_PLUGINS if name in plugins]
    failed = [error for error in errors if not _is_switched_off(error)]
    if len(failed) < len(errors) or V2_PLUGIN not in plugins:
        problem = f"use CRI on {socket} (it is switched off)"
        remedy = "if a kubelet is to use it, take cri out of disabled_plugins in containerd's config"
        return InstallerError(problem, remedy=remedy, code="cri-disabled")

    failure = next(filter(None, failed), "")  # the errors after the first say that they need the first
    if failure:
        problem = f"use CRI on {socket} (containerd's plugin did not load: {failure})"
        remedy = "correct containerd's config and restart it"
        return InstallerError(problem, remedy=remedy, code="cri-failed")
    problem = f"use CRI on {socket} (it serves no version v1)"
    return InstallerError(problem, remedy="update containerd to 1.6 or later", code="cri-failed")


def _is_switched_off(error: str) -> bool:
    """Tell whether the error of a plugin reports a disabled plugin: this plugin, or a plugin below."""
    return any(words in error for words in SWITCHED_OFF)


def _read_runtimes(containerd: Tree) -> tuple[Tree, str]:
    """Return the printed runtimes, including the old tables, and the name of the default."""
    runtimes = dict(table(containerd, (RUNTIMES,), PRINTED))
    default = str(containerd.get(DEFAULT) or BUILT_IN)
    old_table = table(containerd, (OLD_TABLE,), PRINTED)
    if old_table.get("runtime_type"):
        # 1.x takes this runtime for the default, whatever runtime has the same name.
        runtimes[NAMELESS] = old_table
        default = NAMELESS
    untrusted = table(containerd, (OLD_UNTRUSTED,), PRINTED)
    if untrusted.get("runtime_type"):
        runtimes[UNTRUSTED] = untrusted
    return runtimes, default


def _find_two_untrusted(containerd: Tree) -> str:
    """Explain why CRI does not load: two untrusted runtimes; "" for no reason."""
    untrusted = table(containerd, (OLD_UNTRUSTED,), PRINTED)
    if untrusted.get("runtime_type") and UNTRUSTED in table(containerd, (RUNTIMES,), PRINTED):
        # engine-facts.md#containerd-untrusted
        return f"it defines both {OLD_UNTRUSTED} and a runtime of the name {UNTRUSTED}"
    return ""


def drop_added_settings(runtime: Tree) -> Tree:
    """Drop the settings that containerd adds by itself from a printed or reported runtime."""

    def is_added(name: str, value: Value) -> bool:
        return (name.lower().replace("_", ""), value) in ADDED_SETTINGS

    remaining = {}
    for name, value in runtime.items():
        if not is_added(name, value):
            remaining[name] = value
    return remaining


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return the settings in force after the next start, by the texts alone."""
    config = understand(replace(state, drop_in=None), configs.trees)
    runtimes = dict(config.runtimes)
    default = config.default or BUILT_IN

    # Only a table of runtimes takes the built-in runtime away, in 1.x; the old table of the default does not.
    named = set(runtimes)
    if config.old_default:
        named.discard(OLD_DEFAULT)
    if config.merges or not named:
        built_in: dict[str, Value] = {"runtime_type": RUNC_TYPE}
        defined = runtimes.get(BUILT_IN)
        if isinstance(defined, Mapping):
            built_in.update(defined)
        runtimes[BUILT_IN] = built_in

    if config.old_default:
        runtimes[NAMELESS] = runtimes.pop(OLD_DEFAULT)
        default = NAMELESS
    untrusted = table(config.tree, (*config.key, OLD_UNTRUSTED), config.path)
    if untrusted.get("runtime_type") and not config.merges:
        runtimes[UNTRUSTED] = untrusted

    handlers = {}
    for name, runtime in runtimes.items():
        if isinstance(runtime, Mapping):
            handlers[name] = Runtime(binary_of(runtime), runtime)
    return EffectiveConfig(
        handlers,
        default,
        undefined="" if default in runtimes else default,
        broken=find_missing_import(state.config, configs.trees, state.unreadable),
    )


def binary_of(runtime: Tree) -> str:
    """Return the program named by a runtime, "" if the shim chooses the program."""
    options = runtime.get("options")
    # Of two spellings 2.x takes the last in byte order (engine-facts.md#containerd-spellings).
    spelled = sorted(options.items(), reverse=True) if isinstance(options, Mapping) else []
    # containerd reads the names of options in any case; runtime.v1.linux has other names for the program.
    candidates: list[Value] = []
    for option in ("binaryname", "runtime"):
        for name, value in spelled:
            if name.lower() == option:
                candidates.append(value)
    candidates.append(runtime.get("runtime_engine"))
    for candidate in candidates:
        if isinstance(candidate, str) and candidate:
            return candidate
    return ""


def _digest(dump: Tree, plugin: str) -> str:
    """Compute the digest of the settings without a comparison of their own.

    The imports and the version are left out: they only tell how the files are put together.
    """
    cri: Key = ("plugins", plugin)
    compared: list[Key] = [("imports",), ("version",), (*cri, CDI)]
    compared += [(*cri, "containerd", name) for name in (RUNTIMES, DEFAULT, OLD_TABLE)]
    rest = []
    for key, value in leaves(dump):
        if not any(key[: len(prefix)] == prefix for prefix in compared):
            rest.append((key, repr(value)))
    return sha256(repr(sorted(rest)).encode()).hexdigest()


def list_read(
    config: PurePosixPath, trees: Mapping[PurePosixPath, Tree]
) -> Iterator[tuple[PurePosixPath, tuple[PurePosixPath, ...]]]:
    """Yield each file read by containerd, the root file first, with its imported files in order."""
    known = {config}
    waiting = [config]
    while waiting:
        path = waiting.pop(0)
        imported: list[PurePosixPath] = []
        for pattern in list_imports(path, trees.get(path, {})):
            for other in sorted(trees):
                if other != path and other.match(str(pattern)):
                    imported.append(other)
        yield path, tuple(imported)

        for other in imported:
            if other not in known:
                known.add(other)
                waiting.append(other)


def find_missing_import(
    config: PurePosixPath, trees: Mapping[PurePosixPath, Tree], unreadable: Collection[PurePosixPath]
) -> str:
    """Explain why containerd does not start: an import without a regular file; "" for no reason.

    A dump by 1.6 and 1.7 reports the reason, too. 2.1 to 2.4 print their defaults instead of the config.
    """
    names = sorted({*unreadable} - trees.keys())
    for path, _ in list_read(config, trees):
        for pattern in list_imports(path, trees.get(path, {})):
            for name in names:
                if name.match(str(pattern)):
                    return f"{path} imports {name}, which is a link to nowhere, or no file"
            if WILDCARD not in str(pattern) and not _matches_any(pattern, trees):
                return f"{path} imports {pattern}, which is not there"
    return ""


def rewrite_imports(
    config: PurePosixPath,
    texts: Mapping[PurePosixPath, str],
    trees: Mapping[PurePosixPath, Tree],
    find_memory_file: Callable[[PurePosixPath], str],
) -> dict[PurePosixPath, str]:
    """Return the texts read by containerd, with imports of the memory files of a dry run.

    An import of a missing file stays: containerd may refuse to start with the import. A pattern without a
    matching text goes: the pattern would match a file on the disk, like the drop-in removed by an undo.
    """
    rewritten: dict[PurePosixPath, str] = {}
    for path, imported in list_read(config, trees):
        text = texts.get(path, "")
        patterns = list_imports(path, trees.get(path, {}))
        if patterns:
            missing = []
            for pattern in patterns:
                if WILDCARD not in str(pattern) and not _matches_any(pattern, trees):
                    missing.append(pattern)
            imports = [*map(find_memory_file, imported), *map(str, missing)]
            text, _ = apply(text, [WantedKey(("imports",), imports)], Syntax.TOML, name=str(path))
        rewritten[path] = text
    return rewritten


def _matches_any(pattern: PurePosixPath, trees: Mapping[PurePosixPath, Tree]) -> bool:
    """Tell whether an import matches a file of ``trees``."""
    return any(path.match(str(pattern)) for path in trees)


def relocate(edits: tuple[Edit, ...], tree: Tree) -> tuple[Edit, ...]:
    """Move the keys of ``edits`` to their place after ``containerd config migrate``.

    The command gives the settings of CRI to a plugin with another id.
    """
    present = []
    for plugin in PLUGIN_IDS:
        if isinstance(value_at(tree, ("plugins", plugin, "containerd")), Mapping):
            present.append(plugin)
    relocated = []
    for edit in edits:
        plugin = edit.key[1] if edit.key[:1] == ("plugins",) and len(edit.key) > 1 else ""
        if present and plugin in PLUGIN_IDS and plugin not in present:
            moved = replace(edit, key=("plugins", present[-1], *edit.key[2:]))
            relocated.append(_lift(moved, tree))
        else:
            relocated.append(_lift(edit, tree))
    return tuple(relocated)


def _lift(edit: Edit, tree: Tree) -> Edit:
    """Return an edit of an option with a key in the runtime itself, if the options' header was deleted."""
    if edit.key[-2:-1] != ("options",) or edit.after is None:
        return edit
    above = edit.key[:-2]
    name = edit.key[-1]
    runtime = value_at(tree, above)
    if not isinstance(runtime, Mapping) or "options" in runtime or name not in runtime:
        return edit
    value = parse(f"it = {edit.after}", Syntax.TOML, name=name)["it"]
    if runtime[name] != value:
        return edit
    return replace(edit, key=(*above, name))
