"""containerd: CRI runtimes in config.toml, schema 1 to 4, or in a drop-in where that merges."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import Key, Syntax, Tree, Value, WantedKey, leaves, spellings, table, text
from installer.engines.containerd.effective import (
    BUILT_IN,
    CDI,
    DEFAULT,
    OLD_DEFAULT,
    OLD_TABLE,
    PLUGIN_IDS,
    SCHEMA_OF_NEW_FILES,
    V2_PLUGIN,
    V3_PLUGIN,
    Config,
    binary_of,
    list_imports,
    major,
    merge,
    own_import,
    schema_of,
    understand,
)
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine import (
    RUNC_TYPE,
    Configs,
    EffectiveConfig,
    EngineState,
    Extras,
    Proposal,
    ProposedFile,
    RuntimeEntry,
    is_oci,
    is_ours,
    low_level_words,
    refuse_taken_name,
)

RUNC_SHIMS: Final = "io.containerd.runc."
LINUX_V1_TYPE: Final = "io.containerd.runtime.v1.linux"
ANNOTATIONS: Final = "container_annotations"
# CRI of 1.x does not load where one of these stands beside a runc shim: they are of runtime.v1.linux.
OF_LINUX_V1: Final = ("runtime_engine", "runtime_root")


def propose(
    state: EngineState,
    configs: Configs,
    entries: tuple[RuntimeEntry, ...],
    extras: Extras,
    before: EffectiveConfig | None,
) -> Iterator[Proposal]:
    """Yield the ways to have our runtimes served: where it is asked for, then where CRI's table in force is.

    In each place they take over the options of the default runtime: as texts tell, then as it reports. Raises
    InstallerError where containerd could not read the result in any place, or CRI is switched off.
    """
    for path, tree in configs.trees.items():
        names = tree.get("disabled_plugins")
        off = [name for name in PLUGIN_IDS if isinstance(names, list) and name in names]
        if off:
            raise InstallerError(
                f"configure {state.title} in {path} (disabled_plugins switches CRI off)",
                remedy=Remedy(
                    "choose ", Option("runtime", "docker"), f", or remove {off[0]} from disabled_plugins"
                ),
            )
    for place in _find_places(state, configs.trees, entries, extras, before):
        yield place.decide(_find_donor(place.config.runtimes, place.config.default))
        if before is not None:
            yield place.decide(_find_reported_donor(before))


def _find_places(
    state: EngineState,
    trees: Mapping[PurePosixPath, Tree],
    entries: tuple[RuntimeEntry, ...],
    extras: Extras,
    before: EffectiveConfig | None,
) -> Iterator["_Place"]:
    """Yield where our runtimes may go, plainest first."""

    def place(config: Config, drop_in: PurePosixPath | None, *head: WantedKey) -> _Place:
        return _Place(state, before, config, drop_in, head, entries, extras)

    tree = trees.get(state.config, {})
    version = WantedKey(("version",), SCHEMA_OF_NEW_FILES)
    config = understand(state, trees)
    yield place(config, state.drop_in, *([] if tree else [version]))
    if tree and "version" not in tree:
        yield place(understand(state, trees, without_version=SCHEMA_OF_NEW_FILES), state.drop_in, version)
    for plugin in (V2_PLUGIN, V3_PLUGIN):
        if plugin != config.key[1] and plugin in table(tree, ("plugins",), state.config):
            yield place(understand(state, trees, plugin=plugin), state.drop_in)
    for path, below in reversed([*trees.items()]):
        if path != state.config and any(
            "containerd" in table(below, ("plugins", plugin), path) for plugin in PLUGIN_IDS
        ):
            alone = replace(state, config=path, drop_in=None)
            yield place(understand(alone, {path: below}, without_version=config.schema), None)


class _Place(Struct, frozen=True):
    """Our runtimes in one place: ``drop_in`` is the one that is wanted there."""

    state: EngineState
    before: EffectiveConfig | None
    config: Config
    drop_in: PurePosixPath | None
    head: tuple[WantedKey, ...]  # what has to stand at the head of the root file
    entries: tuple[RuntimeEntry, ...]
    extras: Extras

    @property
    def target(self) -> PurePosixPath:
        return (self.drop_in if self.config.merges else None) or self.config.path

    @property
    def has_default(self) -> bool:
        return any(entry.default for entry in self.entries)

    def decide(self, donor: Tree) -> Proposal:
        """Return what the files should say, with the options of ``donor`` for our runtimes."""
        config, target, before = self.config, self.target, self.before
        wrappable = _list_wrappable(config.runtimes, config.default)
        if before:
            reported = {name: runtime.table for name, runtime in before.handlers.items()}
            wrappable += _list_wrappable(reported, before.default)
        wants = [*self._want_settings()]
        shown: dict[str, Tree] = {}
        for entry in self.entries:
            mine = {want.key: want for want in self._want_runtime(entry, _annotate(donor, self.extras))}
            key = (*config.key, "runtimes", entry.name)
            mine |= {
                (*key, *below): WantedKey((*key, *below), value)
                for below, value in leaves(self.extras.override)
            }
            wants += mine.values()
            kind = str(mine[*key, "runtime_type"].value)
            shown[entry.name] = {**self._show(entry, donor), "runtime_type": kind}
        note = f"containerd 1.x takes a drop-in for the whole CRI table: editing {target} in place"
        return Proposal(
            self._place_wants(wants),
            low_level_words(map(binary_of, wrappable)),
            (note,) if self.drop_in is not None and target == config.path != self.drop_in else (),
            shown,
            next(self._find_doubts(), None),
            cdi=self.extras.cdi,
        )

    def _want_settings(self) -> Iterator[WantedKey]:
        """Yield what is wanted besides our runtimes."""
        config = self.config
        yield from (WantedKey((*config.key, DEFAULT), entry.name) for entry in self.entries if entry.default)
        if config.old_default and self.has_default:
            # It overrules the name. Emptied, not removed: it comes back also where others edited.
            yield WantedKey((*config.key, OLD_TABLE, "runtime_type"), "")
            # Pods may ask for it by the name that containerd gives it, and go on doing so.
            for key, value in leaves(table(config.runtimes, (OLD_DEFAULT,), config.path)):
                if value not in ("", [], {}):
                    yield WantedKey((*config.key, "runtimes", OLD_DEFAULT, *key), value)
        named = {*config.runtimes} - ({OLD_DEFAULT} if config.old_default else set())
        # In 1.x naming a runtime takes the built-in runc away, and CRI down; 2.x keeps it, and may become 1.x
        # (engine-facts.md#containerd-built-in-runc). With another default it is gone already, and not needed.
        if BUILT_IN not in named and (not named or config.default in {"", BUILT_IN}):
            yield WantedKey((*config.key, "runtimes", BUILT_IN, "runtime_type"), RUNC_TYPE)
        if self.extras.cdi:
            yield WantedKey((*config.key[:-1], CDI), value=True)

    def _place_wants(self, wants: list[WantedKey]) -> tuple[ProposedFile, ...]:
        """Return the files that ``wants`` stand in: the root file, or the drop-in that it imports."""
        config, target, head = self.config, self.target, self.head
        if target == config.path:
            return (ProposedFile(target, Syntax.TOML, (*head, *wants)),)
        if not any(target.match(str(pattern)) for pattern in list_imports(config.path, config.tree)):
            pattern, dormant = own_import(target), self.state.dormant
            if dormant:  # the import would bring a file of others into force
                raise InstallerError(
                    f"configure {self.state.title} in {target} (its import {pattern} would load "
                    f"{min(dormant)} too, which nothing imports now)",
                    remedy=Remedy(
                        "name another file with ", Option("drop-in-config"), f", or move {min(dormant)} away"
                    ),
                )
            head = (*head, WantedKey(("imports",), str(pattern), member=True))
        drop_in = ProposedFile(target, Syntax.TOML, tuple(wants))
        return (drop_in, ProposedFile(config.path, Syntax.TOML, head)) if head else (drop_in,)

    def _want_runtime(self, entry: RuntimeEntry, donor: Tree) -> Iterator[WantedKey]:
        config, target, key = self.config, self.target, (*self.config.key, "runtimes", entry.name)
        mine = table(config.runtimes, (entry.name,), target)
        options = table(mine, ("options",), target)
        refuse_taken_name(target, entry.name, binary_of(mine) or mine.get("runtime_type"))
        kinds = (text(tree, "runtime_type", target) for tree in (mine, donor))
        gone = "io.containerd.runc.v1" if config.merges else None  # which 2.0 has not any more
        kind = next((kind for kind in kinds if kind.startswith(RUNC_SHIMS) and kind != gone), "")
        yield WantedKey((*key, "runtime_type"), kind or self.extras.runtime_type or RUNC_TYPE)
        for below, value in leaves(donor):
            if below[0] not in {"runtime_type", *OF_LINUX_V1} and value and not _says(mine, below):
                yield WantedKey((*key, *below), value)
        # A second spelling would win by chance (gpu-operator#1374).
        names = spellings(options, "BinaryName") or ["BinaryName"]
        names += spellings(options, "Runtime") or (["Runtime"] if config.schema == 1 else [])
        yield from (WantedKey((*key, "options", name), str(entry.binary)) for name in names)
        for name in OF_LINUX_V1:
            if mine.get(name) and not config.merges:
                yield WantedKey((*key, name), "")

    def _show(self, entry: RuntimeEntry, donor: Tree) -> Tree:
        """Return what containerd has to show of a runtime of ours: given, its own, or inherited."""
        config, extras, before = self.config, self.extras, self.before
        own = mine = table(config.runtimes, (entry.name,), config.path)
        inherited = donor
        if before is not None:
            inherited = _find_reported_donor(before)
            mine = before.handlers[entry.name].table if entry.name in before.handlers else mine
        said = merge(merge(_annotate(inherited, extras), _drop_empty(mine)), extras.override)
        less = {name: value for name, value in said.items() if name not in {"runtime_type", *OF_LINUX_V1}}
        # Which cgroup driver it has in the end: given, its own word, or inherited.
        options = (table(each, ("options",), config.path) for each in (extras.override, own, inherited))
        drivers = (each[name] is True for each in options for name in spellings(each, "SystemdCgroup"))
        driver = {"SystemdCgroup": next(drivers, False)}
        return {**less, "options": {**table(less, ("options",), config.path), **driver}}

    def _find_doubts(self) -> Iterator[InstallerError]:
        """Yield why containerd would not serve our runtimes, as far as the texts tell."""
        state, config = self.state, self.config
        name = state.title
        if config.schema == 1 and major(state) == 2:
            yield InstallerError(
                f"configure {name} in {config.path} (2.x ignores a file of schema 1 or without a version)",
                remedy="rewrite it with containerd config migrate, then run again",
            )
        if config.schema not in (1, 2) and (major(state) == 1 or config.schema < 1):
            yield InstallerError(
                f"configure {name} in {config.path} (this containerd does not read schema {config.schema})",
                remedy="set the version that containerd config default prints",
            )
        for path, tree in config.imported.items():
            version = schema_of(path, tree, config.schema)
            if config.merges and version > config.schema:
                # 2.1 and 2.2 forget the CRI settings of the root file then, 2.3 does not start
                # (engine-facts.md#containerd-imports).
                yield InstallerError(
                    f"configure {name} in {config.path} ({path} is imported and has schema {version}, "
                    f"the root file {config.schema})",
                    remedy="give both the same version",
                )
        known = {"", BUILT_IN, *config.runtimes, *(entry.name for entry in self.entries)}
        if config.default not in known and not self.has_default:
            yield InstallerError(
                f'configure {name} in {config.path} (its default_runtime_name "{config.default}" is not '
                "defined: CRI would not load)",
                remedy="define that runtime, or correct default_runtime_name",
            )
        later = list(config.imported)  # and stronger than what we write
        later = later[later.index(self.target) + 1 :] if self.target in later else later
        for path in later if config.merges else ():
            cri = table(config.imported[path], config.key, path)
            names = {entry.name for entry in self.entries} & table(cri, ("runtimes",), path).keys()
            if names or (DEFAULT in cri and self.has_default):
                word = f"the runtime {min(names)}" if names else DEFAULT
                yield InstallerError(
                    f"configure {self.state.title} ({path} is imported after our file and sets {word} too)",
                    remedy=f"remove {word} from {path}",
                )


def _list_wrappable(runtimes: Tree, default: str) -> list[Tree]:
    """Return the runtimes that ours may wrap, preferred first, and NVIDIA's own among them."""
    wrappable: list[Tree] = []
    for name in (default, BUILT_IN, "crun"):
        runtime = runtimes.get(name)
        if isinstance(runtime, Mapping) and is_oci(name, binary_of(runtime)):
            kind = runtime.get("runtime_type") or RUNC_TYPE
            if isinstance(kind, str) and (kind.startswith(RUNC_SHIMS) or kind == LINUX_V1_TYPE):
                wrappable.append(runtime)
    return wrappable


def _find_donor(runtimes: Tree, default: str) -> Tree:
    """Return the runtime whose options ours take over: the default, or what NVIDIA's own says and wraps."""
    first, *rest = _list_wrappable(runtimes, default) or [{}]
    if not is_ours(binary_of(first)):
        return first
    return merge(next((one for one in rest if not is_ours(binary_of(one))), {}), first)


def _find_reported_donor(before: EffectiveConfig) -> Tree:
    reported = {name: _drop_empty(runtime.table) for name, runtime in before.handlers.items()}
    return _find_donor(reported, before.default)


def _drop_empty(tree: Tree) -> Tree:
    """Return a table as containerd prints it, less what it prints for keys that are not set."""
    kept = {name: _drop_empty(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    return {name: value for name, value in kept.items() if value}


def _annotate(donor: Tree, extras: Extras) -> Tree:
    """Return what a runtime inherits, with the annotations that it is given besides."""
    if not extras.annotations:
        return donor
    had = donor.get(ANNOTATIONS)
    shown = [f"{prefix}*" for prefix in extras.annotations]
    return {**donor, ANNOTATIONS: [*shown, *(had if isinstance(had, list) else ())]}


def _says(runtime: Tree, key: Key) -> bool:
    """Tell whether a runtime has its own value for ``key``; the binary is ours to set in any case."""
    if key[0] == "options" and key[-1].lower() in {"binaryname", "runtime"}:
        return True
    value: Value = runtime
    for part in key:
        names = {name.lower(): child for name, child in value.items()} if isinstance(value, Mapping) else {}
        value = names.get(part.lower())
    return value is not None
