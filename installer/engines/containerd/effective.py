"""containerd's configs as containerd understands them, and what it makes of them."""

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
    WantedKey,
    leaves,
    table,
    text,
    value_at,
    wrong_type,
)
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.engine import (
    NAMELESS,
    RUNC_TYPE,
    CommandLine,
    Configs,
    DryRunCommand,
    EffectiveConfig,
    EngineState,
    Runtime,
)

# By schema: the plugin that has the runtimes, which later schemas keep.
PLUGINS: Final = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
V2_PLUGIN: Final = PLUGINS[2]
V3_PLUGIN: Final = PLUGINS[3]
IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
V3_IMAGES: Final = "io.containerd.cri.v1.images"
PLUGIN_IDS: Final = tuple(PLUGINS.values())
DEFAULT: Final = "default_runtime_name"
OLD_DEFAULT: Final = "default"  # what a full one of these is called:
OLD_TABLE: Final = "default_runtime"
OLD_UNTRUSTED: Final = "untrusted_workload_runtime"  # 1.x serves it as:
UNTRUSTED: Final = "untrusted"
SCHEMA_OF_NEW_FILES: Final = 2  # read by all from 1.6 to 2.3 (engine-facts.md#containerd-schemas)
CDI: Final = "enable_cdi"  # since 1.7; earlier ones ignore it
BUILT_IN: Final = "runc"
WILDCARD: Final = "*"  # an import without one is a name, whatever else is in it
RUNTIMES: Final = "runtimes"
NRI: Final = "io.containerd.nri.v1.nri"
# What 2.x, and 1.7, print for the built-in runc only, and take for any runtime that says nothing.
UNASKED: Final = (("sandboxer", "podsandbox"), ("sandboxmode", "podsandbox"))
PRINTED: Final = PurePosixPath("config dump")
# The plugins of CRI: 1.x has the last one alone; in 2.x that plugin serves the others.
CRI_PLUGINS: Final = (V3_PLUGIN, IMAGES_PLUGIN, V2_PLUGIN)
# The errors of a plugin that chose not to load, and of a plugin that needs a disabled plugin of CRI.
SWITCHED_OFF: Final = ("skip plugin", "no plugins registered for io.containerd.cri.v1")
FLAGS: Final = CommandLine(
    config=("--config", "-c"),
    places={"root": ("--root",), "state": ("--state",), "address": ("--address", "-a")},
)


class Config(Struct, frozen=True):
    """The files as containerd understands them."""

    # Of the file whose CRI table counts: the root, or in 1.x the last import with one, which replaces it.
    path: PurePosixPath
    tree: Tree
    schema: int
    key: Key  # of the table that holds the runtimes
    merges: bool  # in 2.x: imports add to the root file key by key
    imported: Mapping[PurePosixPath, Tree]  # the other files as they are read, the drop-in asked for included
    runtimes: Tree  # what comes out of all of them
    default: str
    old_default: bool  # the default is the table that schema 1 had for it


def understand(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], *, plugin: str = "", without_version: int = 1
) -> Config:
    """Return what the configs say together, with ``plugin`` for the id that CRI has there, if it is given.

    ``without_version`` is the schema of a root file that has text but no version. Raises InstallerError for a
    value of another type than containerd counts on.
    """
    path = state.config
    tree = trees.get(path, {})
    schema = schema_of(path, tree, without_version if tree else SCHEMA_OF_NEW_FILES)
    merges = major(state) == 2 or (major(state) is None and schema > 2)
    if merges and schema > 1 and state.drop_in in _imported(state, trees, tree, merges=True):
        # A drop-in of NVIDIA's installer has the schema that the engine dumps. 2.1 and 2.2 read all files by
        # the highest one: what the root file says of CRI under the older plugin id is not in force then.
        drop_in = trees.get(state.drop_in, {})
        newer = schema_of(state.drop_in, drop_in, schema)
        schema = max(schema, newer if V3_PLUGIN in table(drop_in, ("plugins",), state.drop_in) else schema)
    plugins = table(tree, ("plugins",), path)
    # containerd 2.x takes the ids of a version 2 file as they are (engine-facts.md#containerd-schemas).
    new_id = schema == 2 and V2_PLUGIN not in plugins and V3_PLUGIN in plugins and major(state) != 1
    plugin = plugin or (V3_PLUGIN if new_id else PLUGINS.get(schema, V3_PLUGIN))
    key = ("plugins", plugin, "containerd")
    imported = _imported(state, trees, tree, merges=merges)
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
    if isinstance(schema, float):
        problem = f"use {path} (version is {schema} where a whole number belongs)"
        raise InstallerError(problem, remedy="correct the file, then run again")
    if isinstance(schema, bool) or not isinstance(schema, int):
        raise wrong_type(path, ("version",), "a whole number", schema)
    return schema


def major(state: EngineState) -> int | None:
    """Return the first number of the running containerd's version."""
    return state.version[0] if state.version else None


def list_imports(config: PurePosixPath, tree: Tree) -> list[PurePosixPath]:
    """Return what a root file imports; relative names are taken from its directory."""
    imports = tree.get("imports")
    return [config.parent / str(pattern) for pattern in imports] if isinstance(imports, list) else []


def own_import(drop_in: PurePosixPath) -> PurePosixPath:
    """Return the import for a drop-in of ours, to be taken with or without the file."""
    # Not *.toml: files not imported so far must stay dormant. Not the bare name: an import of a missing file
    # is fatal (engine-facts.md#containerd-imports).
    return drop_in.with_name(f"{drop_in.stem}*{drop_in.suffix}")


def _imported(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], tree: Tree, *, merges: bool
) -> dict[PurePosixPath, Tree]:
    asked = state.drop_in if merges else None
    names = sorted({*trees, *([asked] if asked else [])} - {state.config})
    order = [
        name for pattern in list_imports(state.config, tree) for name in names if name.match(str(pattern))
    ]
    return {name: trees.get(name, {}) for name in (*order, *([asked] if asked else []))}


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


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Return how containerd is asked: for what it has in force with all files that it would read."""
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}
    return DryRunCommand(
        memory_files=tuple(path for path, _ in list_read(state.config, trees)),
        render=lambda place: rewrite_imports(state.config, texts, trees, place),
        arguments=("--config", state.config),
        last_arguments=("config", "dump"),
        # The other flags change nothing in a dump, and an unknown flag ends the program.
        replaced_flags=("--config", "-c"),
        read_output=_dumped,
    )


def _dumped(text: str) -> EffectiveConfig:
    return read_dump(parse_dump(text))


@lru_cache(maxsize=1)  # a dump is read twice: for its meaning, then by the load check
def parse_dump(text: str) -> Tree:
    """Return the tree of what ``containerd config dump`` prints."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InstallerError(
            f"understand what containerd says of its config ({error})", remedy="report this as a bug"
        ) from error


def read_dump(dump: Tree) -> EffectiveConfig:
    """Return what ``containerd config dump`` says: imports, schemas and defaults are merged there."""
    plugins = table(dump, ("plugins",), PRINTED)
    # 2.x prints the new id whatever the files say; what the old one still holds there is not about runtimes.
    plugin = next(
        (name for name in (V3_PLUGIN, V2_PLUGIN) if "containerd" in table(plugins, (name,), PRINTED)), ""
    )
    off = dump.get("disabled_plugins")  # 2.x prints the table of a plugin that is switched off, too
    if not plugin or (isinstance(off, list) and {*map(str, off)} & {*PLUGIN_IDS}):
        return EffectiveConfig({}, "", rest_digest=_digest(dump, plugin), broken="CRI is switched off")
    cri = table(plugins, (plugin,), PRINTED)
    runtimes, default, broken = _read_runtimes(table(cri, ("containerd",), PRINTED))
    cdi, grpc, nri = cri.get(CDI), table(dump, ("grpc",), PRINTED), table(plugins, (NRI,), PRINTED)
    places = {"root": dump.get("root"), "state": dump.get("state"), "address": grpc.get("address")}
    tables = {name: one for name, one in runtimes.items() if isinstance(one, Mapping)}
    return EffectiveConfig(
        {name: Runtime(binary_of(one), drop_unasked(one)) for name, one in tables.items()},
        default,
        cdi=cdi if isinstance(cdi, bool) else None,
        rest_digest=_digest(dump, plugin),
        # CRI does not load (engine-facts.md#containerd-imports).
        undefined="" if default in runtimes else default,
        broken=broken,
        places={name: said for name, said in places.items() if isinstance(said, str)},
        schema=schema_of(PRINTED, dump, 0),
        nri=not (nri.get("disable") or nri.get("disable_connections")) if nri else None,
        storage_driver=_read_snapshotter(plugins),
    )


def _read_snapshotter(plugins: Tree) -> str:
    """Return the snapshotter of CRI's images, as 2.x or 1.x prints it; "" for none."""
    images = table(plugins, (V3_IMAGES,), PRINTED)
    containerd = table(plugins, (V2_PLUGIN, "containerd"), PRINTED)
    return str(images.get("snapshotter") or containerd.get("snapshotter") or "")


def read_status(status: Mapping[str, Any]) -> EffectiveConfig:
    """Return the config in force by the config in CRI's verbose status."""
    handlers = {}
    for name, runtime in status["containerd"]["runtimes"].items():
        handlers[name] = Runtime(binary_of(runtime), drop_unasked(runtime))
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
    """Return the reason for which a running containerd does not serve CRI.

    Args:
        socket: the socket of containerd.
        plugins: the error of each plugin by its id, "" for a plugin that has loaded.
    """
    errors = [plugins[name] for name in CRI_PLUGINS if name in plugins]
    failed = [error for error in errors if not any(words in error for words in SWITCHED_OFF)]
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


def _read_runtimes(containerd: Tree) -> tuple[Tree, str, str]:
    """Return the runtimes that are printed, the default, and why CRI does not load, or ""."""
    runtimes = dict(table(containerd, (RUNTIMES,), PRINTED))
    default, broken = str(containerd.get(DEFAULT) or BUILT_IN), ""
    old = table(containerd, (OLD_TABLE,), PRINTED)
    if old.get("runtime_type"):
        runtimes[NAMELESS], default = old, NAMELESS  # 1.x takes it for the default, whatever is named so
    untrusted = table(containerd, (OLD_UNTRUSTED,), PRINTED)
    if untrusted.get("runtime_type"):
        if UNTRUSTED in runtimes:  # engine-facts.md#containerd-untrusted
            broken = f"it defines both {OLD_UNTRUSTED} and a runtime of the name {UNTRUSTED}"
        runtimes[UNTRUSTED] = untrusted
    return runtimes, default, broken


def drop_unasked(runtime: Tree) -> Tree:
    """Return what a runtime says in a dump or in CRI's status, less what containerd fills in by itself."""
    said = runtime.items()
    return {name: value for name, value in said if (name.lower().replace("_", ""), value) not in UNASKED}


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return what the texts alone tell, for want of a program that can be run."""
    config = understand(replace(state, drop_in=None), configs.trees)
    runtimes = dict(config.runtimes)
    default = config.default
    # Only a table of runtimes takes the built-in one away, in 1.x; the old table of the default does not.
    if config.merges or not runtimes.keys() - ({OLD_DEFAULT} if config.old_default else set()):
        own = runtimes.get(BUILT_IN)
        runtimes[BUILT_IN] = {"runtime_type": RUNC_TYPE, **(own if isinstance(own, Mapping) else {})}
    default = default or BUILT_IN
    if config.old_default:
        runtimes[NAMELESS], default = runtimes.pop(OLD_DEFAULT), NAMELESS
    untrusted = table(config.tree, (*config.key, OLD_UNTRUSTED), config.path)
    if untrusted.get("runtime_type") and not config.merges:
        runtimes[UNTRUSTED] = untrusted
    return EffectiveConfig(
        {name: Runtime(binary_of(one), one) for name, one in runtimes.items() if isinstance(one, Mapping)},
        default,
        undefined="" if default in runtimes else default,
        broken=find_missing_import(state.config, configs.trees, state.unreadable),
    )


def binary_of(runtime: Tree) -> str:
    """Return what a runtime starts, "" for what its shim starts by itself."""
    options = runtime.get("options")
    # Of two spellings 2.x takes the last in byte order (engine-facts.md#containerd-spellings).
    spelled = sorted(options.items(), reverse=True) if isinstance(options, Mapping) else ()
    # containerd reads option names in any case; v1.linux has other names for it.
    named = [value for word in ("binaryname", "runtime") for name, value in spelled if name.lower() == word]
    return next(
        (text for text in (*named, runtime.get("runtime_engine")) if isinstance(text, str) and text), ""
    )


def _digest(dump: Tree, plugin: str) -> str:
    """Return the digest of what is neither compared by itself nor tells how the files are put together."""
    cri: Key = ("plugins", plugin)
    ours = {(*cri, CDI), *((*cri, "containerd", name) for name in (RUNTIMES, DEFAULT, OLD_TABLE))}
    ours |= {("imports",), ("version",)}
    kept = ((key, repr(value)) for key, value in leaves(dump))
    rest = sorted(each for each in kept if not any(each[0][: len(key)] == key for key in ours))
    return sha256(repr(rest).encode()).hexdigest()


def list_read(
    config: PurePosixPath, trees: Mapping[PurePosixPath, Tree]
) -> Iterator[tuple[PurePosixPath, tuple[PurePosixPath, ...]]]:
    """Yield each file that is read, the root first, with those that it imports itself, in that order."""
    seen, waiting = {config}, [config]
    while waiting:
        path = waiting.pop(0)
        imported = tuple(
            other
            for pattern in list_imports(path, trees.get(path, {}))
            for other in sorted(trees)
            if other.match(str(pattern)) and other != path
        )
        yield path, imported
        fresh = [other for other in dict.fromkeys(imported) if other not in seen]
        seen |= set(fresh)
        waiting += fresh


def find_missing_import(
    config: PurePosixPath, trees: Mapping[PurePosixPath, Tree], unreadable: Collection[PurePosixPath]
) -> str:
    """Return why containerd does not start: an import that is not there, or is no file; "" for none."""
    # 1.6 and 1.7 say so in a dump as well, 2.1 to 2.4 print their defaults in the place of the whole config.
    for path, _ in list_read(config, trees):
        for pattern in list_imports(path, trees.get(path, {})):
            for name in sorted({*unreadable} - trees.keys()):
                if name.match(str(pattern)):
                    return f"{path} imports {name}, which is a link to nowhere, or no file"
            if WILDCARD not in str(pattern) and not _takes(pattern, trees):
                return f"{path} imports {pattern}, which is not there"
    return ""


def rewrite_imports(
    config: PurePosixPath,
    texts: Mapping[PurePosixPath, str],
    trees: Mapping[PurePosixPath, Tree],
    place: Callable[[PurePosixPath], str],
) -> dict[PurePosixPath, str]:
    """Return the texts that are read, with imports that lead to where each of them is put for a trial."""
    put: dict[PurePosixPath, str] = {}
    for path, imported in list_read(config, trees):
        text = texts.get(path, "")
        asked = list_imports(path, trees.get(path, {}))
        # One of a file that is not there stays: containerd may refuse to start with it. A wildcard that takes
        # no text goes: it would take what lies on the disk, such as the drop-in that an undo removes.
        missing = [str(one) for one in asked if WILDCARD not in str(one) and not _takes(one, trees)]
        if asked:
            names = [*(place(other) for other in imported), *missing]
            text, _ = apply(text, [WantedKey(("imports",), names)], Syntax.TOML, name=str(path))
        put[path] = text
    return put


def _takes(pattern: PurePosixPath, trees: Mapping[PurePosixPath, Tree]) -> bool:
    return any(path.match(str(pattern)) for path in trees)


def relocate(edits: tuple[Edit, ...], tree: Tree) -> tuple[Edit, ...]:
    """Return ``edits`` with the plugin's id that ``containerd config migrate`` has given to their keys."""
    there = [
        name for name in PLUGIN_IDS if isinstance(value_at(tree, ("plugins", name, "containerd")), Mapping)
    ]
    moved: dict[Key, Key] = {}
    if there:
        moved = {("plugins", name): ("plugins", there[-1]) for name in PLUGIN_IDS if name not in there}
    edits = tuple(replace(edit, key=moved.get(edit.key[:2], edit.key[:2]) + edit.key[2:]) for edit in edits)
    return tuple(_lift(edit, tree) for edit in edits)


def _lift(edit: Edit, tree: Tree) -> Edit:
    """Return an edit of an option below its runtime, where the header of the options was deleted."""
    *above, options, name = ("", "", *edit.key)
    runtime = value_at(tree, tuple(above[2:]))
    if options != "options" or edit.after is None or not isinstance(runtime, Mapping):
        return edit
    if options in runtime or name not in runtime:
        return edit
    ours = runtime[name] == parse(f"it = {edit.after}", Syntax.TOML, name=name)["it"]
    return replace(edit, key=(*above[2:], name)) if ours else edit
