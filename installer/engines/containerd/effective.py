"""What containerd makes of its configs: as its own program prints it, and as texts alone tell."""

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Want, apply, parse
from installer.engines.containerd.tables import (
    DEFAULT,
    OLD_DEFAULT,
    OLD_TABLE,
    OLD_UNTRUSTED,
    PLUGIN_IDS,
    UNTRUSTED,
    V2_PLUGIN,
    V3_PLUGIN,
    list_imports,
    understand,
)
from installer.errors import InstallerError
from installer.model.effective import NAMELESS, EffectiveConfig, Runtime
from installer.model.engine_spec import Check, CommandLine, ConfigFiles, Question, table, value_at

CDI: Final = "enable_cdi"  # since 1.7; earlier ones ignore it
BUILT_IN: Final = "runc"
WILDCARD: Final = "*"  # an import without one is a name, whatever else is in it
RUNC_TYPE: Final = "io.containerd.runc.v2"
RUNTIMES: Final = "runtimes"
# What 2.x, and 1.7, print for the built-in runc only, and take for any runtime that says nothing.
NRI: Final = "io.containerd.nri.v1.nri"
UNASKED: Final = (("sandboxer", "podsandbox"), ("sandboxmode", "podsandbox"))
PRINTED: Final = PurePosixPath("config dump")
FLAGS: Final = CommandLine(
    config=("--config", "-c"),
    places={"root": ("--root",), "state": ("--state",), "address": ("--address", "-a")},
)


def make_check(question: Question) -> Check:
    """Return how containerd is asked: for what it has in force with all files that it would read."""
    texts = question.texts
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}
    return Check(
        paths=tuple(path for path, _ in list_read(question.config, trees)),
        texts=lambda place: rewrite_imports(question.config, texts, trees, place),
        words=("--config", question.config),
        last=("config", "dump"),
        says=_dumped,
    )


def _dumped(text: str) -> EffectiveConfig:
    try:
        return read_dump(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InstallerError(
            f"understand what containerd says of its config ({error})", remedy="report this as a bug"
        ) from error


def read_dump(dump: Tree) -> EffectiveConfig:
    """Return what ``containerd config dump`` says: imports, schemas and defaults are merged there.

    It does not say whether CRI loads: for that a default runtime has to be defined
    (engine-facts.md#containerd-imports).
    """
    plugins = table(dump, ("plugins",), PRINTED)
    # 2.x prints the new id whatever the files say; what the old one still holds there is not about runtimes.
    plugin = next(
        (name for name in (V3_PLUGIN, V2_PLUGIN) if "containerd" in table(plugins, (name,), PRINTED)), ""
    )
    off = dump.get("disabled_plugins")  # 2.x prints the table of a plugin that is switched off, too
    if not plugin or (isinstance(off, list) and {*map(str, off)} & {*PLUGIN_IDS}):
        return EffectiveConfig({}, "", rest_digest=_digest(dump), broken="CRI is switched off")
    cri, containerd = (table(plugins, key, PRINTED) for key in ((plugin,), (plugin, "containerd")))
    runtimes = dict(table(containerd, (RUNTIMES,), PRINTED))
    default = str(containerd.get(DEFAULT) or BUILT_IN)
    old = table(containerd, (OLD_TABLE,), PRINTED)
    if old.get("runtime_type"):
        runtimes[NAMELESS], default = old, NAMELESS  # 1.x takes it for the default, whatever is named so
    untrusted, twice = table(containerd, (OLD_UNTRUSTED,), PRINTED), False
    if untrusted.get("runtime_type"):
        twice = UNTRUSTED in runtimes
        runtimes[UNTRUSTED] = untrusted
    cdi, grpc, nri = cri.get(CDI), table(dump, ("grpc",), PRINTED), table(plugins, (NRI,), PRINTED)
    places = {"root": dump.get("root"), "state": dump.get("state"), "address": grpc.get("address")}
    handlers = {
        name: Runtime(binary_of(one), drop_unasked(one))
        for name, one in runtimes.items()
        if isinstance(one, Mapping)
    }
    return EffectiveConfig(
        handlers,
        default,
        cdi=cdi if isinstance(cdi, bool) else None,
        rest_digest=_digest(_rest(dump, plugin)),
        undefined="" if default in runtimes else default,
        # engine-facts.md#containerd-untrusted
        broken=f"it defines both {OLD_UNTRUSTED} and a runtime of the name {UNTRUSTED}" if twice else "",
        places={name: said for name, said in places.items() if isinstance(said, str)},
        nri=not (nri.get("disable") or nri.get("disable_connections")) if nri else None,
    )


def drop_unasked(runtime: Tree) -> Tree:
    """Return what a runtime says in a dump or in CRI's status, less what containerd fills in by itself."""
    return {
        name: value
        for name, value in runtime.items()
        if (name.lower().replace("_", ""), value) not in UNASKED
    }


def estimate(files: ConfigFiles) -> EffectiveConfig:
    """Return what the texts alone tell, for want of a program that can be run.

    Raises:
        InstallerError: a value has another type than containerd counts on.
    """
    config = understand(ConfigFiles(files.config, None, files.trees, files.version))
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
        broken=find_missing_import(files.config, files.trees, files.unreadable),
    )


def binary_of(runtime: Tree) -> str:
    """Return what a runtime starts, "" for what its shim starts by itself.

    Of two spellings that of 2.x, which takes the last in byte order (engine-facts.md#containerd-spellings).
    """
    options = runtime.get("options")
    spelled = sorted(options.items(), reverse=True) if isinstance(options, Mapping) else ()
    # containerd reads option names in any case; v1.linux has other names for it.
    named = [value for word in ("binaryname", "runtime") for name, value in spelled if name.lower() == word]
    return next(
        (text for text in (*named, runtime.get("runtime_engine")) if isinstance(text, str) and text), ""
    )


def _rest(dump: Tree, plugin: str) -> Tree:
    """Return what is printed less what is compared by itself, and less how the files are put together."""
    plugins = table(dump, ("plugins",), PRINTED)
    cri = table(plugins, (plugin,), PRINTED)
    containerd = table(cri, ("containerd",), PRINTED)
    rest = {name: value for name, value in containerd.items() if name not in (RUNTIMES, DEFAULT, OLD_TABLE)}
    less = {name: value for name, value in cri.items() if name != CDI} | {"containerd": rest}
    top = {name: value for name, value in dump.items() if name not in ("imports", "version")}
    return {**top, "plugins": {**plugins, plugin: less}}


def _digest(tree: Tree) -> str:
    return sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


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
    """Return why containerd does not start: an import that is not there, or is no file; "" for none.

    1.6 and 1.7 say so in a dump as well, 2.1 to 2.4 print their defaults in the place of the whole config.
    """
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
    """Return the texts that are read, with imports that lead to where each of them is put for a trial.

    An import of a file that is not there stays as it is: containerd may refuse to start with it. A wildcard
    that takes no text goes: it would take what lies on the disk, such as the drop-in that an undo removes.
    """
    put: dict[PurePosixPath, str] = {}
    for path, imported in list_read(config, trees):
        text = texts.get(path, "")
        asked = list_imports(path, trees.get(path, {}))
        missing = [str(one) for one in asked if WILDCARD not in str(one) and not _takes(one, trees)]
        if asked:
            names = [*(place(other) for other in imported), *missing]
            text, _ = apply(text, [Want(("imports",), names)], Syntax.TOML, name=str(path))
        put[path] = text
    return put


def _takes(pattern: PurePosixPath, trees: Mapping[PurePosixPath, Tree]) -> bool:
    return any(path.match(str(pattern)) for path in trees)


def needs_handler(version: tuple[int, ...] | None) -> bool:
    """Tell whether a container cannot be used any more once its runtime is gone: so it is from 2.0 on."""
    return not version or version >= (2,)


def relocate(edits: tuple[Edit, ...], tree: Tree) -> tuple[Edit, ...]:
    """Return ``edits`` with the plugin's id that ``containerd config migrate`` has given to their keys.

    And with the table that options stand in whose header somebody has deleted: that of their runtime.
    """
    there = [
        name for name in PLUGIN_IDS if isinstance(value_at(tree, ("plugins", name, "containerd")), Mapping)
    ]
    return tuple(_lift(_migrate(edit, there), tree) for edit in edits)


def _migrate(edit: Edit, plugins: list[str]) -> Edit:
    part, plugin, *below = (*edit.key, "", "")
    if part != "plugins" or plugin not in PLUGIN_IDS or plugin in plugins or not plugins:
        return edit
    return replace(edit, key=("plugins", plugins[-1], *below[:-2]))


def _lift(edit: Edit, tree: Tree) -> Edit:
    *above, options, name = ("", "", *edit.key)
    runtime = value_at(tree, tuple(above[2:]))
    if options != "options" or edit.after is None or not isinstance(runtime, Mapping):
        return edit
    if options in runtime or name not in runtime:
        return edit
    ours = runtime[name] == parse(f"it = {edit.after}", Syntax.TOML, name=name)["it"]
    return replace(edit, key=(*above[2:], name)) if ours else edit
