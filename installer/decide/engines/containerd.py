"""containerd: CRI runtimes in config.toml, schema 1 to 4, or in a drop-in where that merges."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.decide.edits import Key, Syntax, Tree, Value, Want
from installer.decide.engines.containerd_config import (
    DEFAULT,
    NEW_SCHEMA,
    OLD_DEFAULT,
    OLD_TABLE,
    V2_PLUGIN,
    V3_PLUGIN,
    Config,
    major,
    patterns,
    schema_of,
    understood,
)
from installer.decide.engines.model import (
    ConfigFiles,
    Decision,
    Extras,
    FileWants,
    RuntimeEntry,
    is_oci,
    is_ours,
    leaves,
    low_level_words,
    refuse_taken_name,
    table,
    text,
)
from installer.decide.errors import InstallerError, Option, Remedy

RUNC_SHIMS: Final = "io.containerd.runc."
RUNC_TYPE: Final = "io.containerd.runc.v2"
RUNC_V1_TYPE: Final = "io.containerd.runc.v1"  # gone in 2.0
LINUX_V1_TYPE: Final = "io.containerd.runtime.v1.linux"
BUILT_IN: Final = "runc"
CDI: Final = "enable_cdi"  # since 1.7; earlier ones ignore it
ANNOTATIONS: Final = "container_annotations"
# CRI of 1.x does not load where one of these stands beside a runc shim: they are of runtime.v1.linux.
OF_LINUX_V1: Final = ("runtime_engine", "runtime_root")


def edits(files: ConfigFiles, entries: tuple[RuntimeEntry, ...], extras: Extras) -> Decision:
    """Return what containerd's root file, and a drop-in where one is asked for, should say.

    Raises:
        InstallerError: containerd would not read the result, or CRI is switched off in it.
    """
    config = understood(files)
    target = (files.drop_in if config.merges else None) or config.path
    _refuse_unserved(files, config)
    _refuse_overruled(config, target, entries)
    _refuse_unknown_default(config, entries)
    donor = _donor(config)
    wants = [Want((*config.key, DEFAULT), entry.name) for entry in entries if entry.default]
    if config.old_default and any(entry.default for entry in entries):
        # It overrules the name. Emptied, not removed: so it comes back also when others have edited the file.
        wants.append(Want((*config.key, OLD_TABLE, "runtime_type"), ""))
    if _needs_runc(config):
        wants.append(Want((*config.key, "runtimes", BUILT_IN, "runtime_type"), RUNC_TYPE))
    if extras.cdi:
        wants.append(Want((*config.key[:-1], CDI), value=True))
    for entry in entries:
        mine = {want.key: want for want in _entry(config, target, _with(donor, extras), entry, extras)}
        told = {(*config.key, "runtimes", entry.name, *key): value for key, value in leaves(extras.override)}
        wants += (mine | {key: Want(key, value) for key, value in told.items()}).values()
    cgroups = {entry.name: _systemd_cgroup(config, donor, entry, extras) for entry in entries}
    head = [] if config.tree else [Want(("version",), NEW_SCHEMA)]
    low_level = low_level_words(_low_level(config))
    if target == config.path:
        notes = []
        if files.drop_in is not None:
            notes.append(f"containerd 1.x takes a drop-in for the whole CRI table: editing {target} in place")
        return Decision((FileWants(target, Syntax.TOML, (*head, *wants)),), low_level, tuple(notes), cgroups)
    out = [FileWants(target, Syntax.TOML, tuple(wants))]
    if not any(target.match(str(pattern)) for pattern in patterns(config.path, config.tree)):
        # Not *.toml: files that nobody imported so far must stay dormant. Not the bare
        # name: an import of a missing file is fatal (engines.md, case L1).
        pattern = str(target.with_name(f"{target.stem}*{target.suffix}"))
        head.append(Want(("imports",), pattern, member=True))
    out += [FileWants(config.path, Syntax.TOML, tuple(head))] if head else []
    return Decision(tuple(out), low_level, systemd_cgroup=cgroups)


def _refuse_unserved(files: ConfigFiles, config: Config) -> None:
    for path, tree in ((config.path, config.tree), *config.imported.items()):
        names = tree.get("disabled_plugins")
        off = [name for name in ("cri", V2_PLUGIN, V3_PLUGIN) if isinstance(names, list) and name in names]
        if off:
            raise InstallerError(
                f"configure containerd in {path} (disabled_plugins switches CRI off: it serves Docker)",
                remedy=Remedy(
                    "choose ", Option("runtime", "docker"), f", or remove {off[0]} from disabled_plugins"
                ),
            )
    if config.schema == 1 and major(files) == 2:
        raise InstallerError(
            f"configure containerd in {config.path} (2.x ignores a file of schema 1 or without a version)",
            remedy="rewrite it with containerd config migrate, then run again",
        )
    if config.schema not in (1, 2) and (major(files) == 1 or config.schema < 1):
        raise InstallerError(
            f"configure containerd in {config.path} (this containerd does not read schema {config.schema})",
            remedy="set the version that the installed containerd writes in containerd config default",
        )
    for path, tree in config.imported.items():
        version = schema_of(path, tree, config.schema)
        if config.merges and version > config.schema:
            # 2.1 and 2.2 forget the CRI settings of the root file then, 2.3 does not start (engines.md 2).
            raise InstallerError(
                f"configure containerd in {config.path} ({path} is imported and has schema {version}, "
                f"the root file {config.schema})",
                remedy="give both the same version",
            )


def _refuse_unknown_default(config: Config, entries: tuple[RuntimeEntry, ...]) -> None:
    """Raise where a restart would leave CRI down, which no program of containerd's finds out before."""
    known = {"", BUILT_IN, *config.runtimes, *(entry.name for entry in entries)}
    nested = any("imports" in tree for tree in config.imported.values())  # which are not read here
    if config.default not in known and not nested and not any(entry.default for entry in entries):
        raise InstallerError(
            f'configure containerd in {config.path} (its default_runtime_name "{config.default}" is not '
            "defined: CRI would not load)",
            remedy="define that runtime, or correct default_runtime_name",
        )


def _refuse_overruled(config: Config, target: PurePosixPath, entries: tuple[RuntimeEntry, ...]) -> None:
    """Raise where something is stronger than what we write; on 1.x an import replaces the whole CRI table."""
    default = any(entry.default for entry in entries)
    later = list(config.imported)
    later = later[later.index(target) + 1 :] if target in later else later
    for path in later if config.merges else ():
        cri = table(config.imported[path], config.key, path)
        names = {entry.name for entry in entries} & table(cri, ("runtimes",), path).keys()
        if names or (DEFAULT in cri and default):
            word = f"the runtime {min(names)}" if names else DEFAULT
            raise InstallerError(
                f"configure containerd ({path} is imported after our file and sets {word} too)",
                remedy=f"remove {word} from {path}",
            )


def _needs_runc(config: Config) -> bool:
    """Tell whether naming a runtime takes the built-in runc away and CRI down (engines.md 2, case P).

    A file that names runtimes and another default has lost it already, and does without.
    """
    named = {*config.runtimes} - ({OLD_DEFAULT} if config.old_default else set())
    return not config.merges and BUILT_IN not in named and (not named or config.default in {"", BUILT_IN})


def _binary(runtime: Tree, path: PurePosixPath) -> Value:
    """Return what a runtime starts, "" for what its shim starts by itself."""
    options = table(runtime, ("options",), path)
    # containerd reads option names in any case; v1.linux has other names for it.
    named = [options[name] for word in ("binaryname", "runtime") for name in _spelled(options, word)]
    return next((binary for binary in (*named, runtime.get("runtime_engine")) if binary), "")


def _spelled(options: Tree, word: str) -> list[str]:
    return [name for name in options if name.lower() == word]


def _wrappable(config: Config, name: str) -> bool:
    runtime = table(config.runtimes, (name,), config.path)
    kind = text(runtime, "runtime_type", config.path)
    shim = not kind or kind.startswith(RUNC_SHIMS) or kind == LINUX_V1_TYPE
    return name in config.runtimes and shim and is_oci(name, _binary(runtime, config.path))


def _candidates(config: Config) -> list[str]:
    """Return the runtimes that ours may wrap, preferred first, and NVIDIA's own among them."""
    return [name for name in (config.default, BUILT_IN, "crun") if _wrappable(config, name)]


def _donor(config: Config) -> Tree:
    """Return the runtime whose options ours take over; one of NVIDIA's where there is no other."""
    found = [table(config.runtimes, (name,), config.path) for name in _candidates(config)]
    return next((one for one in found if not is_ours(_binary(one, config.path))), found[0] if found else {})


def _low_level(config: Config) -> Iterator[Value]:
    for name in _candidates(config):
        binary = _binary(table(config.runtimes, (name,), config.path), config.path)
        if not is_ours(binary):
            yield binary


def _entry(
    config: Config, target: PurePosixPath, donor: Tree, entry: RuntimeEntry, extras: Extras
) -> Iterator[Want]:
    key = (*config.key, "runtimes", entry.name)
    mine = table(config.runtimes, (entry.name,), target)
    options = table(mine, ("options",), target)
    refuse_taken_name(target, entry.name, _binary(mine, target) or mine.get("runtime_type"))
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
