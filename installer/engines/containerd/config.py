"""containerd: our runtimes in config.toml, schema 1 to 4, or in a drop-in if this containerd merges drop-ins.

``propose`` yields its proposals from plain to rare: each reading of the files (``_list_readings``), and with
each reading the options of the default runtime by the texts, then by containerd's own program.
"""

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
    LARGEST_INTEGER,
    LATEST_SCHEMA,
    OLD_DEFAULT,
    OLD_TABLE,
    PLUGIN_IDS,
    PLUGINS,
    RUNTIMES,
    SCHEMA_OF_NEW_FILES,
    V2_PLUGIN,
    V3_PLUGIN,
    Config,
    binary_of,
    list_imports,
    major,
    make_own_import,
    merge,
    schema_of,
    understand,
)
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import (
    RUNC_TYPE,
    EffectiveConfig,
    RuntimeEntry,
    is_oci,
    is_ours,
    low_level_words,
    refuse_taken_name,
)
from installer.model.engine import Configs, EngineState, Extras, Proposal, ProposedFile

TYPE: Final = "runtime_type"
OPTIONS: Final = "options"
RUNC_SHIMS: Final = "io.containerd.runc."
RUNC_V1_TYPE: Final = "io.containerd.runc.v1"  # removed in 2.0
LINUX_V1_TYPE: Final = "io.containerd.runtime.v1.linux"
ANNOTATIONS: Final = "container_annotations"
CGROUP_DRIVER: Final = "SystemdCgroup"
# Settings of runtime.v1.linux: with any of them in a runtime with a runc shim CRI of 1.x does not load.
OF_LINUX_V1: Final = ("runtime_engine", "runtime_root")


def propose(
    state: EngineState,
    configs: Configs,
    entries: tuple[RuntimeEntry, ...],
    extras: Extras,
    before: EffectiveConfig | None,
) -> Iterator[Proposal]:
    """Yield the proposals for our runtimes, the plainest first.

    Raises:
        InstallerError: CRI is switched off, or containerd could not read any of the results.
    """
    trees = configs.trees
    _refuse_disabled_cri(state, trees)
    for reading in _list_readings(state, trees):
        draft = _Draft(state, before, reading, entries, extras)
        yield draft.propose(_find_donor(reading.config.runtimes, reading.config.default))
        if before is not None:
            yield draft.propose(_find_printed_donor(before))


def _refuse_disabled_cri(state: EngineState, trees: Mapping[PurePosixPath, Tree]) -> None:
    """Refuse files that switch CRI off.

    Raises:
        InstallerError: a file disables a plugin of CRI.
    """
    for path, tree in trees.items():
        disabled = tree.get("disabled_plugins")
        if not isinstance(disabled, list):
            continue
        plugin = next((name for name in PLUGIN_IDS if name in disabled), None)
        if plugin is not None:
            remedy = Remedy(
                "choose ", Option("runtime", "docker"), f", or remove {plugin} from disabled_plugins"
            )
            problem = f"configure {state.title} in {path} (disabled_plugins switches CRI off)"
            raise InstallerError(problem, remedy=remedy)


class _Reading(Struct, frozen=True):
    """A possible reading of the files by containerd: the texts do not always settle the reading."""

    config: Config
    drop_in: PurePosixPath | None = None  # the drop-in to which our runtimes shall go
    head: tuple[WantedKey, ...] = ()  # keys at the head of the root file that make containerd read so


def _list_readings(state: EngineState, trees: Mapping[PurePosixPath, Tree]) -> Iterator[_Reading]:
    """Yield the possible readings of the files, the plainest first."""
    drop_in = state.drop_in
    tree = trees.get(state.config, {})
    version = WantedKey(("version",), SCHEMA_OF_NEW_FILES)

    config = understand(state, trees)
    yield _Reading(config, drop_in, head=() if tree else (version,))

    # A root file without a version: we add the version.
    if tree and "version" not in tree:
        versioned = understand(state, trees, without_version=SCHEMA_OF_NEW_FILES)
        yield _Reading(versioned, drop_in, head=(version,))

    # The root file has the table of a plugin that its schema does not have.
    plugins = table(tree, ("plugins",), state.config)
    for plugin in (V2_PLUGIN, V3_PLUGIN):
        if plugin != config.plugin and plugin in plugins:
            yield _Reading(understand(state, trees, plugin=plugin), drop_in)

    # The CRI table of another file replaces that of the root file.
    for path, other in reversed([*trees.items()]):
        if path != state.config and _has_cri_table(path, other):
            alone = replace(state, config=path, drop_in=None)
            yield _Reading(understand(alone, {path: other}, without_version=config.schema))


def _has_cri_table(path: PurePosixPath, tree: Tree) -> bool:
    """Tell whether a file has the table of CRI's runtimes under any plugin's id."""
    return any("containerd" in table(tree, ("plugins", plugin), path) for plugin in PLUGIN_IDS)


class _Draft(Struct, frozen=True):
    """Our runtimes as they would stand in the files, under a single reading of the files."""

    state: EngineState
    before: EffectiveConfig | None  # in force without us, as containerd's program prints; None if unknown
    reading: _Reading
    entries: tuple[RuntimeEntry, ...]
    extras: Extras

    @property
    def config(self) -> Config:
        """The files as containerd understands them."""
        return self.reading.config

    @property
    def target(self) -> PurePosixPath:
        """The file for our runtimes."""
        drop_in = self.reading.drop_in
        if self.config.merges and drop_in is not None:
            return drop_in
        return self.config.path

    @property
    def sets_default(self) -> bool:
        """Whether a runtime of ours shall be the default."""
        return any(entry.default for entry in self.entries)

    def propose(self, donor: Tree) -> Proposal:
        """Propose our runtimes with the options of the runtime ``donor``."""
        inherited = _add_annotations(donor, self.extras)
        wrappable = self._list_wrappable()
        wanted_keys = [*self._list_settings()]
        shown: dict[str, Tree] = {}
        for entry in self.entries:
            definition = self._define_runtime(entry, inherited)
            wanted_keys += definition.values()
            runtime_type = definition[*self._key_of(entry), TYPE].value
            shown[entry.name] = {**self._predict_shown(entry, donor), TYPE: str(runtime_type)}
        return Proposal(
            files=self._divide_among_files(wanted_keys),
            low_level=low_level_words(map(binary_of, wrappable)),
            notes=tuple(self._list_notes()),
            shown=shown,
            doubt=next(self._find_doubts(), None),
            cdi=self.extras.cdi,
        )

    def _key_of(self, entry: RuntimeEntry) -> Key:
        """Return the key of the table of a runtime of ours."""
        return (*self.config.key, RUNTIMES, entry.name)

    def _list_wrappable(self) -> list[Tree]:
        """List the runtimes that ours may wrap, by the texts and by containerd's program."""
        wrappable = _list_wrappable(self.config.runtimes, self.config.default)
        if self.before is not None:
            printed = {name: runtime.table for name, runtime in self.before.handlers.items()}
            wrappable += _list_wrappable(printed, self.before.default)
        return wrappable

    def _list_notes(self) -> Iterator[str]:
        """Yield notes about an unknown schema, and about a drop-in of the options that is not used."""
        schema = self.config.schema
        if schema > LATEST_SCHEMA:
            version = f"version = {schema}" if schema < LARGEST_INTEGER else "the version"
            used = f"the keys of version {max(PLUGINS)} are used"
            yield f"{version} of {self.config.path} is not known here: {used}"
        drop_in = self.reading.drop_in
        if drop_in is not None and drop_in != self.target:
            yield f"containerd 1.x takes a drop-in for the whole CRI table: editing {self.target} in place"

    def _list_settings(self) -> Iterator[WantedKey]:
        """Yield the wanted keys besides the tables of our runtimes."""
        config = self.config
        for entry in self.entries:
            if entry.default:
                yield WantedKey((*config.key, DEFAULT), entry.name)

        if config.old_default and self.sets_default:
            # The old table overrules default_runtime_name. Its type is emptied, not removed: so the type
            # comes back at an undo also in a file that others have edited.
            yield WantedKey((*config.key, OLD_TABLE, TYPE), "")
            # Pods may ask for that runtime by the name that containerd gives to it, and go on doing so.
            old_runtime = table(config.runtimes, (OLD_DEFAULT,), config.path)
            for below, value in leaves(old_runtime):
                if value not in ("", [], {}):
                    yield WantedKey((*config.key, RUNTIMES, OLD_DEFAULT, *below), value)

        named = set(config.runtimes)
        if config.old_default:
            named.discard(OLD_DEFAULT)
        is_built_in_default = config.default in {"", BUILT_IN}
        # In 1.x naming a runtime takes the built-in runc away, and CRI down. 2.x keeps runc; a 2.x may become
        # a 1.x (engine-facts.md#containerd-built-in-runc). With another default runc is gone, and not needed.
        if BUILT_IN not in named and (not named or is_built_in_default):
            yield WantedKey((*config.key, RUNTIMES, BUILT_IN, TYPE), RUNC_TYPE)

        if self.extras.cdi:
            yield WantedKey((*config.key[:-1], CDI), value=True)

    def _define_runtime(self, entry: RuntimeEntry, inherited: Tree) -> dict[Key, WantedKey]:
        """Define a runtime of ours: the wanted keys by key, with the settings of ``extras.override``."""
        definition = {}
        for wanted in self._list_runtime_keys(entry, inherited):
            definition[wanted.key] = wanted
        for below, value in leaves(self.extras.override):
            key = (*self._key_of(entry), *below)
            definition[key] = WantedKey(key, value)
        return definition

    def _list_runtime_keys(self, entry: RuntimeEntry, inherited: Tree) -> Iterator[WantedKey]:
        """Yield the wanted keys of a runtime of ours: type, inherited settings, and program."""
        config = self.config
        key = self._key_of(entry)
        present = table(config.runtimes, (entry.name,), self.target)
        options = table(present, (OPTIONS,), self.target)
        refuse_taken_name(self.target, entry.name, binary_of(present) or present.get(TYPE))

        yield WantedKey((*key, TYPE), self._choose_type(present, inherited))
        for below, value in leaves(inherited):
            is_inherited = below[0] not in {TYPE, *OF_LINUX_V1}
            if is_inherited and value and not _has_value(present, below):
                yield WantedKey((*key, *below), value)

        # containerd would choose between two spellings by chance (gpu-operator#1374): all get our program.
        binary_names = spellings(options, "BinaryName") or ["BinaryName"]
        binary_names += spellings(options, "Runtime")
        if config.schema == 1 and not spellings(options, "Runtime"):
            binary_names.append("Runtime")
        for name in binary_names:
            yield WantedKey((*key, OPTIONS, name), str(entry.binary))

        for name in OF_LINUX_V1:
            if present.get(name) and not config.merges:
                yield WantedKey((*key, name), "")

    def _choose_type(self, present: Tree, inherited: Tree) -> str:
        """Choose the type of a runtime of ours: the present type, the inherited type, or runc's."""
        for runtime in (present, inherited):
            runtime_type = text(runtime, TYPE, self.target)
            is_removed = self.config.merges and runtime_type == RUNC_V1_TYPE
            if runtime_type.startswith(RUNC_SHIMS) and not is_removed:
                return runtime_type
        return self.extras.runtime_type or RUNC_TYPE

    def _predict_shown(self, entry: RuntimeEntry, donor: Tree) -> Tree:
        """Predict the settings of a runtime of ours in containerd's answer after the restart."""
        path = self.config.path
        in_files = table(self.config.runtimes, (entry.name,), path)
        inherited = donor
        present = in_files
        if self.before is not None:
            inherited = _find_printed_donor(self.before)
            if entry.name in self.before.handlers:
                present = self.before.handlers[entry.name].table

        override = self.extras.override
        shown = merge(_add_annotations(inherited, self.extras), _drop_empty(present))
        shown = merge(shown, override)
        shown = {name: value for name, value in shown.items() if name not in {TYPE, *OF_LINUX_V1}}

        options = dict(table(shown, (OPTIONS,), path))
        options[CGROUP_DRIVER] = _uses_systemd_cgroup((override, in_files, inherited), path)
        return {**shown, OPTIONS: options}

    def _divide_among_files(self, wanted_keys: list[WantedKey]) -> tuple[ProposedFile, ...]:
        """Divide the wanted keys between the root file and a drop-in with its import."""
        path = self.config.path
        target = self.target
        head = self.reading.head
        if target == path:
            return (ProposedFile(target, Syntax.TOML, (*head, *wanted_keys)),)

        is_imported = any(target.match(str(pattern)) for pattern in list_imports(path, self.config.tree))
        if not is_imported:
            pattern = make_own_import(target)
            self._refuse_dormant_files(pattern)
            head = (*head, WantedKey(("imports",), str(pattern), member=True))
        files = [ProposedFile(target, Syntax.TOML, tuple(wanted_keys))]
        if head:
            files.append(ProposedFile(path, Syntax.TOML, head))
        return tuple(files)

    def _refuse_dormant_files(self, pattern: PurePosixPath) -> None:
        """Refuse an import of ours that would bring a file of others into force.

        Raises:
            InstallerError: a file of others matches the import.
        """
        if not self.state.dormant:
            return
        dormant = min(self.state.dormant)
        raise InstallerError(
            f"configure {self.state.title} in {self.target} (its import {pattern} would load {dormant} too, "
            "which nothing imports now)",
            remedy=Remedy("name another file with ", Option("drop-in-config"), f", or move {dormant} away"),
        )

    def _find_doubts(self) -> Iterator[InstallerError]:
        """Yield the reasons against the service of our runtimes by containerd, by the texts alone."""
        yield from self._find_unread_schema()
        yield from self._find_newer_imports()
        yield from self._find_undefined_default()
        yield from self._find_overruling_imports()

    def _find_unread_schema(self) -> Iterator[InstallerError]:
        """Yield the reasons why this containerd does not read the schema of the root file."""
        path = self.config.path
        schema = self.config.schema
        title = self.state.title
        if schema == 1 and major(self.state) == 2:
            yield InstallerError(
                f"configure {title} in {path} (2.x ignores a file of schema 1 or without a version)",
                remedy="rewrite it with containerd config migrate, then run again",
            )
        if schema not in (1, 2) and (major(self.state) == 1 or schema < 1):
            yield InstallerError(
                f"configure {title} in {path} (this containerd does not read schema {schema})",
                remedy="set the version that containerd config default prints",
            )

    def _find_newer_imports(self) -> Iterator[InstallerError]:
        """Yield the imported files with a later schema than the root file.

        With an import of a later schema 2.1 and 2.2 forget the CRI settings of the root file, and 2.3 does
        not start (engine-facts.md#containerd-imports).
        """
        config = self.config
        for path, tree in config.imported.items():
            schema = schema_of(path, tree, config.schema)
            if config.merges and schema > config.schema:
                yield InstallerError(
                    f"configure {self.state.title} in {config.path} ({path} is imported and has schema "
                    f"{schema}, the root file {config.schema})",
                    remedy="give both the same version",
                )

    def _find_undefined_default(self) -> Iterator[InstallerError]:
        """Yield the reason why CRI would not load, if the default runtime is not defined."""
        config = self.config
        known = {"", BUILT_IN, *config.runtimes}
        known.update(entry.name for entry in self.entries)
        if config.default not in known and not self.sets_default:
            yield InstallerError(
                f'configure {self.state.title} in {config.path} (its default_runtime_name "{config.default}" '
                "is not defined: CRI would not load)",
                remedy="define that runtime, or correct default_runtime_name",
            )

    def _find_overruling_imports(self) -> Iterator[InstallerError]:
        """Yield the files merged by containerd after our file and with the same keys."""
        config = self.config
        if not config.merges:
            return
        later = list(config.imported)
        if self.target in later:
            later = later[later.index(self.target) + 1 :]

        ours = {entry.name for entry in self.entries}
        for path in later:
            containerd = table(config.imported[path], config.key, path)
            names = ours & table(containerd, (RUNTIMES,), path).keys()
            if names:
                setting = f"the runtime {min(names)}"
            elif DEFAULT in containerd and self.sets_default:
                setting = DEFAULT
            else:
                continue
            yield InstallerError(
                f"configure {self.state.title} ({path} is imported after our file and sets {setting} too)",
                remedy=f"remove {setting} from {path}",
            )


def _list_wrappable(runtimes: Tree, default: str) -> list[Tree]:
    """List the runtimes that ours may wrap, preferred first, NVIDIA's own among them."""
    wrappable: list[Tree] = []
    for name in (default, BUILT_IN, "crun"):
        runtime = runtimes.get(name)
        if not isinstance(runtime, Mapping) or not is_oci(name, binary_of(runtime)):
            continue
        runtime_type = runtime.get(TYPE) or RUNC_TYPE
        if not isinstance(runtime_type, str):
            continue
        if runtime_type.startswith(RUNC_SHIMS) or runtime_type == LINUX_V1_TYPE:
            wrappable.append(runtime)
    return wrappable


def _find_donor(runtimes: Tree, default: str) -> Tree:
    """Find the donor of our runtimes' options: the default; below NVIDIA's runtime the wrapped runtime."""
    wrappable = _list_wrappable(runtimes, default)
    if not wrappable:
        return {}
    first = wrappable[0]
    if not is_ours(binary_of(first)):
        return first
    wrapped = next((runtime for runtime in wrappable[1:] if not is_ours(binary_of(runtime))), {})
    return merge(wrapped, first)


def _find_printed_donor(before: EffectiveConfig) -> Tree:
    """Find the donor of our runtimes' options among the runtimes printed by containerd's program."""
    printed = {name: _drop_empty(runtime.table) for name, runtime in before.handlers.items()}
    return _find_donor(printed, before.default)


def _drop_empty(tree: Tree) -> Tree:
    """Drop the empty settings of a printed table: containerd also prints keys set in no file."""
    remaining: dict[str, Value] = {}
    for name, value in tree.items():
        setting = _drop_empty(value) if isinstance(value, Mapping) else value
        if setting:
            remaining[name] = setting
    return remaining


def _add_annotations(donor: Tree, extras: Extras) -> Tree:
    """Add the annotations of our runtimes to the inherited settings."""
    if not extras.annotations:
        return donor
    annotations: list[Value] = [f"{prefix}*" for prefix in extras.annotations]
    inherited = donor.get(ANNOTATIONS)
    if isinstance(inherited, list):
        annotations += inherited
    return {**donor, ANNOTATIONS: annotations}


def _uses_systemd_cgroup(runtimes: tuple[Tree, ...], path: PurePosixPath) -> bool:
    """Tell whether systemd manages the cgroups, by the first runtime with an option for the driver."""
    for runtime in runtimes:
        options = table(runtime, (OPTIONS,), path)
        names = spellings(options, CGROUP_DRIVER)
        if names:
            return options[names[0]] is True
    return False


def _has_value(runtime: Tree, key: Key) -> bool:
    """Tell whether a runtime has its own value for ``key``; we set the program in any case."""
    if key[0] == OPTIONS and key[-1].lower() in {"binaryname", "runtime"}:
        return True
    value: Value = runtime
    for part in key:
        if not isinstance(value, Mapping):
            return False
        by_lower_case = {name.lower(): child for name, child in value.items()}
        value = by_lower_case.get(part.lower())
    return value is not None
