"""containerd: CRI runtimes in config.toml, schema 1 to 4, or in a drop-in where that merges."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct

from installer.config_text import Key, Syntax, Tree, Value, Want
from installer.engines.containerd.effective import (
    BUILT_IN,
    CDI,
    FLAGS,
    RUNC_TYPE,
    binary_of,
    estimate,
    make_check,
    needs_handler,
    relocate,
)
from installer.engines.containerd.tables import (
    DEFAULT,
    NEW_SCHEMA,
    OLD_DEFAULT,
    OLD_TABLE,
    PLUGIN_IDS,
    V2_PLUGIN,
    V3_PLUGIN,
    Config,
    major,
    merged,
    own_import,
    patterns,
    schema_of,
    understood,
)
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import (
    Api,
    CdiSupport,
    ConfigFiles,
    Data,
    Decision,
    DropInKind,
    DropIns,
    EngineSpec,
    Extras,
    FileWants,
    ReloadMethod,
    RuntimeEntry,
    State,
    is_oci,
    is_ours,
    leaves,
    low_level_words,
    refuse_large_donor,
    refuse_taken_name,
    table,
    text,
)

RUNC_SHIMS: Final = "io.containerd.runc."
RUNC_V1_TYPE: Final = "io.containerd.runc.v1"  # gone in 2.0
LINUX_V1_TYPE: Final = "io.containerd.runtime.v1.linux"
ANNOTATIONS: Final = "container_annotations"
# CRI of 1.x does not load where one of these stands beside a runc shim: they are of runtime.v1.linux.
OF_LINUX_V1: Final = ("runtime_engine", "runtime_root")


def draft(files: ConfigFiles, entries: tuple[RuntimeEntry, ...], extras: Extras) -> Iterator[Decision]:
    """Yield the ways to have our runtimes served: where it is asked for, then where CRI's table in force is.

    In each place they take over the options of the default runtime: as texts tell, then as it reports.

    Raises:
        InstallerError: containerd could not read the result in any place, or CRI is switched off.
    """
    _refuse_without_cri(files)
    for config, asked, head in _places(files):
        wanted = _Wanted(config, asked, entries, extras)
        yield _decision(wanted, _donor(config.runtimes, config.default), head, files)
        if files.before is not None:
            yield _decision(wanted, _told_donor(files.before), head, files)


class _Wanted(Struct, frozen=True):
    """Our runtimes in one place; ``asked`` is the drop-in that is wanted there."""

    config: Config
    asked: PurePosixPath | None
    entries: tuple[RuntimeEntry, ...]
    extras: Extras

    @property
    def target(self) -> PurePosixPath:
        return (self.asked if self.config.merges else None) or self.config.path


def _places(files: ConfigFiles) -> Iterator[tuple[Config, PurePosixPath | None, list[Want]]]:
    """Yield where our runtimes may go, plainest first, and what has to stand at the head of that file."""
    tree = files.trees.get(files.config, {})
    version = Want(("version",), NEW_SCHEMA)
    config = understood(files)
    yield config, files.drop_in, [] if tree else [version]
    if tree and "version" not in tree:
        yield understood(files, without_version=NEW_SCHEMA), files.drop_in, [version]
    for plugin in (V2_PLUGIN, V3_PLUGIN):
        if plugin != config.key[1] and plugin in table(tree, ("plugins",), files.config):
            yield understood(files, plugin=plugin), files.drop_in, []
    for path, below in reversed([*files.trees.items()]):
        if path != files.config and any(
            "containerd" in table(below, ("plugins", plugin), path) for plugin in PLUGIN_IDS
        ):
            alone = ConfigFiles(path, None, {path: below}, files.version, before=files.before)
            yield understood(alone, without_version=config.schema), None, []


def _decision(wanted: _Wanted, donor: Tree, head: list[Want], files: ConfigFiles) -> Decision:
    config, target, extras, entries = wanted.config, wanted.target, wanted.extras, wanted.entries
    refuse_large_donor(config.path, donor)
    wants = [Want((*config.key, DEFAULT), entry.name) for entry in entries if entry.default]
    if config.old_default and any(entry.default for entry in entries):
        # It overrules the name. Emptied, not removed: so it comes back also when others have edited the file.
        wants.append(Want((*config.key, OLD_TABLE, "runtime_type"), ""))
        # Pods may ask for it by the name that containerd gives it, and go on doing so.
        named, place = leaves(table(config.runtimes, (OLD_DEFAULT,), config.path)), (*config.key, "runtimes")
        wants += [
            Want((*place, OLD_DEFAULT, *key), value) for key, value in named if value not in ("", [], {})
        ]
    if _needs_runc(config):
        wants.append(Want((*config.key, "runtimes", BUILT_IN, "runtime_type"), RUNC_TYPE))
    if extras.cdi:
        wants.append(Want((*config.key[:-1], CDI), value=True))
    shown: dict[str, Tree] = {}
    for entry in entries:
        mine = {want.key: want for want in _entry(config, target, _with(donor, extras), entry, extras)}
        told = {(*config.key, "runtimes", entry.name, *key): value for key, value in leaves(extras.override)}
        mine |= {key: Want(key, value) for key, value in told.items()}
        wants += mine.values()
        kind = str(mine[*config.key, "runtimes", entry.name, "runtime_type"].value)
        shown[entry.name] = {**_shown(wanted, donor, entry, files.before), "runtime_type": kind}
    low_level = low_level_words(_low_level(config, files.before))
    notes: tuple[str, ...] = ()
    if wanted.asked is not None and target == config.path != wanted.asked:
        notes = (f"containerd 1.x takes a drop-in for the whole CRI table: editing {target} in place",)
    if target == config.path:
        out = [FileWants(target, Syntax.TOML, (*head, *wants))]
    else:
        out = [FileWants(target, Syntax.TOML, tuple(wants))]
        if not any(target.match(str(pattern)) for pattern in patterns(config.path, config.tree)):
            pattern = own_import(target)
            _refuse_dormant(files, target, pattern)
            head = [*head, Want(("imports",), str(pattern), member=True)]
        out += [FileWants(config.path, Syntax.TOML, tuple(head))] if head else []
    doubt = next(_doubts(files, config, target, entries), None)
    return Decision(tuple(out), low_level, notes, shown, doubt, cdi=extras.cdi)


def _refuse_without_cri(files: ConfigFiles) -> None:
    """Raise where CRI is switched off."""
    for path, tree in files.trees.items():
        names = tree.get("disabled_plugins")
        off = [name for name in PLUGIN_IDS if isinstance(names, list) and name in names]
        if off:
            raise InstallerError(
                f"configure {files.engine} in {path} (disabled_plugins switches CRI off)",
                remedy=Remedy(
                    "choose ", Option("runtime", "docker"), f", or remove {off[0]} from disabled_plugins"
                ),
            )


def _refuse_dormant(files: ConfigFiles, target: PurePosixPath, pattern: PurePosixPath) -> None:
    """Raise where the import for a drop-in of ours would bring a file of others into force."""
    if files.dormant:
        other = min(files.dormant)
        raise InstallerError(
            f"configure {files.engine} in {target} (its import {pattern} would take {other} too, which "
            "nothing imports now)",
            remedy=Remedy("name another file with ", Option("drop-in-config"), f", or move {other} away"),
        )


def _doubts(
    files: ConfigFiles, config: Config, target: PurePosixPath, entries: tuple[RuntimeEntry, ...]
) -> Iterator[InstallerError]:
    """Yield why containerd would not serve our runtimes, as far as the texts tell."""
    name = files.engine
    if config.schema == 1 and major(files) == 2:
        yield InstallerError(
            f"configure {name} in {config.path} (2.x ignores a file of schema 1 or without a version)",
            remedy="rewrite it with containerd config migrate, then run again",
        )
    if config.schema not in (1, 2) and (major(files) == 1 or config.schema < 1):
        yield InstallerError(
            f"configure {name} in {config.path} (this containerd does not read schema {config.schema})",
            remedy="set the version that the installed containerd writes in containerd config default",
        )
    for path, tree in config.imported.items():
        version = schema_of(path, tree, config.schema)
        if config.merges and version > config.schema:
            # 2.1 and 2.2 forget the CRI settings of the root file then, 2.3 does not start
            # (engine-facts.md#containerd-imports).
            yield InstallerError(
                f"configure {files.engine} in {config.path} ({path} is imported and has schema {version}, "
                f"the root file {config.schema})",
                remedy="give both the same version",
            )
    known = {"", BUILT_IN, *config.runtimes, *(entry.name for entry in entries)}
    if config.default not in known and not any(entry.default for entry in entries):
        yield InstallerError(
            f'configure {files.engine} in {config.path} (its default_runtime_name "{config.default}" is not '
            "defined: CRI would not load)",
            remedy="define that runtime, or correct default_runtime_name",
        )
    yield from _overruled(files.engine, config, target, entries)


def _overruled(
    name: str, config: Config, target: PurePosixPath, entries: tuple[RuntimeEntry, ...]
) -> Iterator[InstallerError]:
    """Yield what is stronger than what we write."""
    default = any(entry.default for entry in entries)
    later = list(config.imported)
    later = later[later.index(target) + 1 :] if target in later else later
    for path in later if config.merges else ():
        cri = table(config.imported[path], config.key, path)
        names = {entry.name for entry in entries} & table(cri, ("runtimes",), path).keys()
        if names or (DEFAULT in cri and default):
            word = f"the runtime {min(names)}" if names else DEFAULT
            yield InstallerError(
                f"configure {name} ({path} is imported after our file and sets {word} too)",
                remedy=f"remove {word} from {path}",
            )


def _needs_runc(config: Config) -> bool:
    """Tell whether naming a runtime takes the built-in runc away, and CRI down, in containerd 1.x.

    2.x keeps it (engine-facts.md#containerd-built-in-runc), and may be exchanged for 1.x.
    A file that names runtimes and another default has lost it already, and does without.
    """
    named = {*config.runtimes} - ({OLD_DEFAULT} if config.old_default else set())
    return BUILT_IN not in named and (not named or config.default in {"", BUILT_IN})


def _spelled(options: Tree, word: str) -> list[str]:
    return [name for name in options if name.lower() == word]


def _wrappable(runtimes: Tree, name: str) -> bool:
    runtime = runtimes.get(name)
    if not isinstance(runtime, Mapping):
        return False
    kind = runtime.get("runtime_type") or ""
    shim = isinstance(kind, str) and (not kind or kind.startswith(RUNC_SHIMS) or kind == LINUX_V1_TYPE)
    return shim and is_oci(name, binary_of(runtime))


def _candidates(runtimes: Tree, default: str) -> list[tuple[str, Tree]]:
    """Return the runtimes that ours may wrap, preferred first, and NVIDIA's own among them."""
    names = [name for name in (default, BUILT_IN, "crun") if _wrappable(runtimes, name)]
    return [(name, one) for name in names if isinstance(one := runtimes[name], Mapping)]


def _donor(runtimes: Tree, default: str) -> Tree:
    """Return the runtime whose options ours take over: the default, or what NVIDIA's own wraps as default.

    What NVIDIA's says for itself counts before what it wraps says.
    """
    found = [one for _, one in _candidates(runtimes, default)]
    wrapped = next((one for one in found if not is_ours(binary_of(one))), None)
    if wrapped is None or not found or found[0] is wrapped:
        return found[0] if found else {}
    return merged(wrapped, found[0])


def _low_level(config: Config, before: EffectiveConfig | None) -> Iterator[Value]:
    told = {name: handler.table for name, handler in before.handlers.items()} if before else {}
    found = _candidates(config.runtimes, config.default)
    for _, one in (*found, *_candidates(told, before.default if before else "")):
        if not is_ours(binary := binary_of(one)):
            yield binary


def _told_donor(before: EffectiveConfig) -> Tree:
    told = {name: _nonempty(handler.table) for name, handler in before.handlers.items()}
    return _donor(told, before.default)


def _nonempty(tree: Tree) -> Tree:
    """Return a table as containerd prints it, less what it prints for keys that nobody has set."""
    kept = {name: _nonempty(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    return {name: value for name, value in kept.items() if value}


def _shown(wanted: _Wanted, donor: Tree, entry: RuntimeEntry, before: EffectiveConfig | None) -> Tree:
    """Return what containerd has to show of one of ours: what it was told, what it had, what it inherits."""
    config, extras = wanted.config, wanted.extras
    mine: Tree = table(config.runtimes, (entry.name,), config.path)
    if before is not None:
        donor = _told_donor(before)
        mine = before.handlers[entry.name].table if entry.name in before.handlers else mine
    told = merged(merged(_with(donor, extras), _nonempty(mine)), extras.override)
    less = {name: value for name, value in told.items() if name not in {"runtime_type", *OF_LINUX_V1}}
    driver = _systemd_cgroup(config, donor, entry, extras)
    options = table(less, ("options",), config.path)
    return {**less, "options": {**options, "SystemdCgroup": driver}}


def _entry(
    config: Config, target: PurePosixPath, donor: Tree, entry: RuntimeEntry, extras: Extras
) -> Iterator[Want]:
    key = (*config.key, "runtimes", entry.name)
    mine = table(config.runtimes, (entry.name,), target)
    options = table(mine, ("options",), target)
    refuse_taken_name(target, entry.name, binary_of(mine) or mine.get("runtime_type"))
    kinds = (text(tree, "runtime_type", target) for tree in (mine, donor))
    kind = next((kind for kind in kinds if _has_shim(config, kind)), extras.runtime_type or RUNC_TYPE)
    yield Want((*key, "runtime_type"), kind)
    for below, value in leaves(donor):
        if below[0] not in {"runtime_type", *OF_LINUX_V1} and value and not _says(mine, below):
            yield Want((*key, *below), value)
    # A second spelling would win by chance (gpu-operator#1374).
    for name in _spelled(options, "binaryname") or ["BinaryName"]:
        yield Want((*key, "options", name), str(entry.binary))
    for name in _spelled(options, "runtime") or (["Runtime"] if config.schema == 1 else []):
        yield Want((*key, "options", name), str(entry.binary))
    for name in OF_LINUX_V1:
        if mine.get(name) and not config.merges:
            yield Want((*key, name), "")


def _with(donor: Tree, extras: Extras) -> Tree:
    """Return what a runtime inherits, with the annotations that it is given besides."""
    shown = [f"{prefix}*" for prefix in extras.annotations]
    had = donor.get(ANNOTATIONS)
    more: dict[str, Value] = {}
    if shown:
        more[ANNOTATIONS] = [*shown, *(had if isinstance(had, list) else ())]
    return {**donor, **more}


def _systemd_cgroup(config: Config, donor: Tree, entry: RuntimeEntry, extras: Extras) -> bool:
    """Return which cgroup driver an entry has in the end: told, its own word, or inherited."""
    for runtime in (extras.override, table(config.runtimes, (entry.name,), config.path), donor):
        for name, value in table(runtime, ("options",), config.path).items():
            if name.lower() == "systemdcgroup":
                return value is True
    return False


def _has_shim(config: Config, kind: str) -> bool:
    return kind.startswith(RUNC_SHIMS) and not (config.merges and kind == RUNC_V1_TYPE)


def _says(runtime: Tree, key: Key) -> bool:
    """Tell whether a runtime has its own value for ``key``; the binary is ours to set in any case."""
    if key[0] == "options" and key[-1].lower() in {"binaryname", "runtime"}:
        return True
    value: Value = runtime
    for part in key:
        names = {name.lower(): child for name, child in value.items()} if isinstance(value, Mapping) else {}
        value = names.get(part.lower())
    return value is not None


CONTAINERD: Final = EngineSpec(
    name="containerd",
    title="containerd",
    config=PurePosixPath("/etc/containerd/config.toml"),
    drop_ins=DropIns(DropInKind.IMPORTED, imports=True),
    socket=PurePosixPath("/run/containerd/containerd.sock"),
    unit="containerd.service",
    process="containerd",
    api=Api.CRI,
    cmdline=FLAGS,
    state=State(PurePosixPath("/run/containerd"), "--state", "state"),
    data=Data(("--root",), "root", PurePosixPath("/var/lib/containerd")),
    reload=ReloadMethod.RESTART,
    default_key=DEFAULT,
    needs_handler=needs_handler,
    draft=draft,
    make_check=make_check,
    estimate=estimate,
    relocate=relocate,
    cdi=CdiSupport(
        "containerd 2.0 has CDI switched on, 1.7 with enable_cdi = true in its config, restarted",
        reads=(
            ((2, 3), (1, 1, 0)),
            ((2, 1), (1, 0, 0)),
            ((2, 0), (0, 8, 0)),
            ((1, 7, 16), (0, 7, 0)),
            ((0,), (0, 5, 0)),
        ),
    ),
    nri_name="containerd",
)
