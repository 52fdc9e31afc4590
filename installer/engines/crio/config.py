"""CRI-O: one drop-in with whole runtime tables, or the OCI hook of older set-ups."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec.structs import replace

from installer.config_text import Key, Syntax, Tree, Value, WantedKey, flatten, leaves, table, text
from installer.config_text.change import parse
from installer.engines.crio.load import find_built_in
from installer.engines.crio.printed import PrintedConfig
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import (
    EffectiveConfig,
    Runtime,
    RuntimeEntry,
    is_oci,
    is_ours,
    low_level_words,
    refuse_taken_name,
)
from installer.model.engine import Configs, DryRunCommand, EngineState, Proposal, ProposedFile, Version

HOOK_DIR: Final = "/usr/share/containers/oci/hooks.d"
RUN_ROOT: Final = "/run/containers/storage"
DRIVER: Final = "overlay"
STATE: Final = PurePosixPath(RUN_ROOT, f"{DRIVER}-containers")
SOURCE: Final = PurePosixPath("/config")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The keys that CRI-O adds to each runtime at its start, ours included: the values of these keys of
# crio.runtime, or its own.
MONITOR: Final = "monitor_path"
CONMON: Final = "conmon"
CONMON_RS: Final = "conmonrs"
PINNS: Final = "pinns"
PINNS_PATH: Final = "pinns_path"
POD: Final = "pod"
FILLED_IN: Final = {"monitor_cgroup": "conmon_cgroup", MONITOR: CONMON, "monitor_env": "conmon_env"}
USUAL: Final = ("system.slice", *(f"{place}/conmon" for place in SYSTEM_PATH.split(":")))
RUNTIME: Final[Key] = ("crio", "runtime")
RUNTIMES: Final[Key] = (*RUNTIME, "runtimes")
DEFAULT: Final = "default_runtime"
BUILT_IN: Final = ("crun", "runc")  # the default of a CRI-O without a config: crun since 1.31
# The first two are ours to say; the others would overrule our path (engine-facts.md#crio-runtime-keys).
PLATFORM_PATHS: Final = "platform_runtime_paths"
INHERIT: Final = "inherit_default_runtime"
NOT_INHERITED: Final = frozenset({"runtime_path", "runtime_type", PLATFORM_PATHS, INHERIT})
DIRECTORY: Final = PurePosixPath("/etc/crio/crio.conf.d")
CONFIG_FLAGS: Final = ("--config", "-c")
DROP_IN_FLAGS: Final = ("--config-dir", "-d")


def propose(state: EngineState, configs: Configs, entries: tuple[RuntimeEntry, ...]) -> Iterator[Proposal]:
    """Yield the proposal for CRI-O's drop-in, or for its hook file.

    Raises:
        InstallerError: CRI-O would not start, or would read another file later that overrules our file.
    """
    trees = configs.trees
    runtimes, default = _merge(state, trees)
    known = {*runtimes, *BUILT_IN}
    known.update(entry.name for entry in entries)
    if default not in known:
        problem = f'configure CRI-O (its default_runtime "{default}" is not defined, so it would not start)'
        raise InstallerError(problem, remedy="define that runtime, or remove default_runtime")

    # CRI-O looks for a runtime without a path in its PATH, by the runtime's name.
    wrappable = _list_wrappable(runtimes, default)
    binaries = [runtimes.get(name, {}).get("runtime_path") or name for name in wrappable]
    low_level = low_level_words(binaries)
    if state.hook is not None:
        yield Proposal(files=(_propose_hook(state.hook, entries),), low_level=low_level)
        return
    file, shown = _propose_drop_in(state, trees, entries, _find_donor(runtimes, default))
    yield Proposal(files=(file,), low_level=low_level, shown=shown)


def _propose_drop_in(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], entries: tuple[RuntimeEntry, ...], donor: Tree
) -> tuple[ProposedFile, dict[str, Tree]]:
    """Propose the file with our runtimes, and list the settings that CRI-O will show besides.

    Args:
        state: the engine.
        trees: the configs.
        entries: our runtimes.
        donor: the runtime whose keys our runtimes inherit.

    Raises:
        InstallerError: another file that CRI-O reads later would overrule ours, or a name is taken.
    """
    path = state.drop_in or state.config
    _refuse_overruled(state, trees, path, entries)
    own_tree = trees.get(path, {})
    in_files, _ = _merge(state, {**_list_earlier(state, trees, path), path: own_tree})
    wanted_keys = []
    for entry in entries:
        if entry.default:
            wanted_keys.append(WantedKey((*RUNTIME, DEFAULT), entry.name))
    shown: dict[str, Tree] = {}
    for entry in entries:
        defined = in_files.get(entry.name, {})
        refuse_taken_name(path, entry.name, defined.get("runtime_path"))
        inherited = _find_inherited(state, entry, donor)
        if _has_moved_monitor(state, inherited, donor):
            shown[entry.name] = {MONITOR: donor.get(MONITOR)}
            inherited = {**inherited, **shown[entry.name]}
        own_entry = table(own_tree, (*RUNTIMES, entry.name), path)
        wanted_keys += _list_runtime_keys(entry, {**inherited, **defined}, own_entry)
    return ProposedFile(path, Syntax.TOML, tuple(wanted_keys)), shown


def _find_inherited(state: EngineState, entry: RuntimeEntry, donor: Tree) -> Tree:
    """Return the keys for a runtime of ours to inherit: of ``donor``, or the keys already inherited.

    Containers may live on the runtime: the runtime keeps these keys, whatever the default is now.
    """
    served = state.served.handlers.get(entry.name)
    if served is None or served.binary != str(entry.binary):
        return donor
    inherited: dict[str, Value] = {}
    for key, value in donor.items():
        if key in FILLED_IN and value in USUAL:
            inherited[key] = value
    inherited.update(served.table)
    return inherited


def _has_moved_monitor(state: EngineState, inherited: Tree, donor: Tree) -> bool:
    """Tell whether the owner has moved the monitor to the place named by ``donor``."""
    is_old_gone = _is_gone(state, inherited.get(MONITOR) or CONMON)
    return is_old_gone and not _is_gone(state, donor.get(MONITOR) or CONMON)


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return the settings in force after the next start, by the texts alone."""
    trees = configs.trees
    known, default = _merge(state, trees)
    # A runtime that only the running CRI-O serves is not there after the next start.
    defined, _ = _merge(replace(state, serving=None), trees)

    handlers: dict[str, Runtime] = {}
    if state.serving is None:
        handlers = {name: Runtime() for name in BUILT_IN}
    ignored: list[str] = []
    for name, runtime in defined.items():
        binary = str(known[name].get("runtime_path") or "")
        if name != default and _is_ignored(state, name, binary):
            ignored.append(name)  # engine-facts.md#crio-absent-program
        else:
            handlers[name] = Runtime(binary, runtime)

    broken = ""
    unreadable = sorted(state.unreadable - trees.keys())
    if unreadable:
        broken = f"it reads {unreadable[0]}, which is a link to nowhere, or no file"
    return EffectiveConfig(
        handlers,
        default,
        undefined="" if default in {*known, *BUILT_IN} else default,
        broken=broken,
        hook_dirs=_read_hook_dirs(trees) or (PurePosixPath(HOOK_DIR),),
        ignored=tuple(ignored),
    )


def _read_hook_dirs(trees: Mapping[PurePosixPath, Tree]) -> tuple[PurePosixPath, ...] | None:
    """Return the directories of hooks by the last file that names some; None for none."""
    hook_dirs: Value = None
    for path, tree in trees.items():
        hook_dirs = table(tree, RUNTIME, path).get("hooks_dir") or hook_dirs
    return _read_paths(hook_dirs)


def _is_ignored(state: EngineState, name: str, binary: str) -> bool:
    """Tell whether CRI-O leaves a runtime out because its program is missing."""
    # Our programs are installed before a config names them.
    return _is_gone(state, binary or name) and not is_ours(binary)


def list_programs(tree: Tree) -> Iterator[tuple[Value, bool]]:
    """Yield the programs named by a config, and the names looked up by CRI-O in its PATH.

    The second field tells whether CRI-O runs the program at its start: monitors only. Other programs only
    have to exist.
    """
    runtime = table(tree, RUNTIME, SOURCE)
    runtimes = table(tree, RUNTIMES, SOURCE)
    for monitor in (CONMON, CONMON_RS, runtime.get(CONMON)):
        yield monitor, True
    for program in (PINNS, *BUILT_IN, runtime.get(PINNS_PATH), *runtimes):
        yield program, False
    for name in runtimes:
        entry = table(runtimes, (name,), SOURCE)
        yield entry.get("runtime_path"), False
        yield entry.get(MONITOR), True


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Return ``crio config`` with the root file, and with the drop-ins in a directory of their own."""
    root = state.config
    directory = DIRECTORY
    if state.drop_in_directory is not None:
        directory = state.drop_in_directory
    elif state.drop_in is not None:
        directory = state.drop_in.parent
    in_directory = [path for path in texts if path.is_relative_to(directory)]
    drop_ins = {path.relative_to(directory): texts[path] for path in in_directory}
    # An OCI hook of ours is among the texts, and has no settings.
    read = [path for path in texts if path in {root, state.drop_in, *in_directory}]

    def render(_find_memory_file: Callable[[PurePosixPath], str]) -> Mapping[PurePosixPath, str]:
        return {root: texts.get(root, "")}

    def read_output(output: str) -> EffectiveConfig:
        trees = {path: parse(texts[path], Syntax.TOML, name=str(path)) for path in read}
        return _add_printed(predict(state, Configs(texts, trees)), PrintedConfig.read(output))

    return DryRunCommand(
        memory_files=(root,),
        render=render,
        arguments=("--config", root, "--config-dir", directory),
        last_arguments=("config",),
        directories={directory: drop_ins},
        replaced_flags=(*CONFIG_FLAGS, *DROP_IN_FLAGS),
        read_output=read_output,
    )


def _add_printed(predicted: EffectiveConfig, printed: PrintedConfig) -> EffectiveConfig:
    """Return the settings by the texts, with the printed settings of variables, flags and defaults."""
    built_in = printed.runtimes - predicted.handlers.keys() - {*predicted.ignored}
    handlers = dict.fromkeys(sorted(built_in), Runtime())
    return replace(
        predicted,
        handlers={**handlers, **predicted.handlers},
        places=printed.places,
        default=printed.default or predicted.default,
        cgroup_driver=printed.cgroup_driver or predicted.cgroup_driver,
        storage_driver=printed.storage_driver,
    )


def _merge(state: EngineState, trees: Mapping[PurePosixPath, Tree]) -> tuple[dict[str, Tree], str]:
    """Merge the runtimes and the default of all files: CRI-O takes a whole runtime from the last file.

    A running CRI-O adds runtimes missing from the files: its own, and runtimes of other files and flags.
    """
    runtimes: dict[str, Tree] = {}
    default = ""
    for path, tree in trees.items():
        runtimes.update(_read_file(tree, path))
        default = text(table(tree, RUNTIME, path), DEFAULT, path, RUNTIME) or default

    flags = state.flags_for_texts
    for name, binary in flags.runtimes.items():
        runtimes[name] = {"runtime_path": binary}
    default = flags.default or default

    served = state.served
    for name, handler in served.handlers.items():
        if is_ours(handler.binary):
            continue
        runtimes[name] = {**handler.table, **runtimes.get(name, {})}
        if not default and name == served.default:
            default = name
    return runtimes, default or find_built_in(state.version)


def _read_file(tree: Tree, path: PurePosixPath) -> Iterator[tuple[str, Tree]]:
    """Yield the runtimes of a file; raise if a value read by us has another type than CRI-O expects."""
    for name in table(tree, RUNTIMES, path):
        key = (*RUNTIMES, name)
        runtime = table(tree, key, path)
        for field in ("runtime_path", "runtime_type"):
            text(runtime, field, path, key)
        table(tree, (*key, PLATFORM_PATHS), path)
        yield name, runtime


def _list_runtime_keys(entry: RuntimeEntry, settings: Tree, own_entry: Tree) -> Iterator[WantedKey]:
    """Yield the keys of a runtime of ours: all keys, as CRI-O replaces an entry of an earlier file whole.

    Args:
        entry: the runtime.
        settings: the inherited or own settings of the runtime.
        own_entry: the present entry in the file for the runtime.
    """
    key = (*RUNTIMES, entry.name)
    yield WantedKey((*key, "runtime_path"), str(entry.binary))
    # With type pod the monitor is conmon-rs, which takes no other type. A VM is no runtime of ours.
    yield WantedKey((*key, "runtime_type"), POD if settings.get("runtime_type") == POD else "oci")
    for below, value in leaves(settings):
        if below[0] not in NOT_INHERITED and value:
            yield WantedKey((*key, *below), value)
    for platform in table(own_entry, (PLATFORM_PATHS,), PurePosixPath()):
        yield WantedKey((*key, PLATFORM_PATHS, platform), str(entry.binary))
    if own_entry.get(INHERIT):
        yield WantedKey((*key, INHERIT), value=False)


def _is_gone(state: EngineState, program: Value) -> bool:
    """Tell whether a program, a path or a name in CRI-O's PATH, is missing."""
    return PurePosixPath(str(program)) in state.missing_programs


def _find_donor(runtimes: Mapping[str, Tree], default: str) -> Tree:
    """Find the donor of our runtimes' keys: a runtime of NVIDIA's only if no other runtime exists."""
    donors = [runtimes[name] for name in _list_wrappable(runtimes, default) if name in runtimes]
    for donor in donors:
        if not is_ours(donor.get("runtime_path")):
            return donor
    return donors[0] if donors else {}


def _list_wrappable(runtimes: Mapping[str, Tree], default: str) -> Iterator[str]:
    """Yield the runtimes that ours may wrap, preferred first, NVIDIA's own among them."""
    for name in (default, "runc", "crun"):
        runtime = runtimes.get(name, {})
        if runtime.get("runtime_type") != "vm" and is_oci(name, runtime.get("runtime_path")):
            yield name


def _list_earlier(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], path: PurePosixPath
) -> dict[PurePosixPath, Tree]:
    """List the files read by CRI-O before ``path``: the root file and earlier drop-ins.

    See engine-facts.md#crio-drop-ins.
    """
    earlier = {}
    for other, tree in trees.items():
        is_drop_in_earlier = other == state.config or other < path
        if path not in {state.config, other} and is_drop_in_earlier:
            earlier[other] = tree
    return earlier


def _refuse_overruled(
    state: EngineState,
    trees: Mapping[PurePosixPath, Tree],
    path: PurePosixPath,
    entries: tuple[RuntimeEntry, ...],
) -> None:
    """Refuse files read by CRI-O after ours that set the same runtimes or the default.

    Raises:
        InstallerError: a later file sets a runtime of ours or the default.
    """
    earlier = _list_earlier(state, trees, path)
    sets_default = any(entry.default for entry in entries)
    for other, tree in trees.items():
        if other == path or other in earlier:
            continue
        names = []
        for entry in entries:
            if _overrules(tree, other, entry):
                names.append(entry.name)
        if names:
            setting = f"the runtime {min(names)}"
        elif sets_default and table(tree, RUNTIME, other).get(DEFAULT):
            setting = DEFAULT
        else:
            continue
        remedy = Remedy(
            "name a file that sorts after it with ", Option("drop-in-config"), f", or remove {setting} there"
        )
        problem = f"configure CRI-O in {path} ({other} is read later and sets {setting} too)"
        raise InstallerError(problem, remedy=remedy)


def _overrules(tree: Tree, path: PurePosixPath, entry: RuntimeEntry) -> bool:
    """Tell whether a file defines our runtime with another program, or with a program for each platform."""
    if entry.name not in table(tree, RUNTIMES, path):
        return False
    runtime = table(tree, (*RUNTIMES, entry.name), path)
    has_program = runtime.get("runtime_path") == str(entry.binary)
    return not has_program or not runtime.keys().isdisjoint({PLATFORM_PATHS, INHERIT})


def _propose_hook(path: PurePosixPath, entries: tuple[RuntimeEntry, ...]) -> ProposedFile:
    """Return the OCI hook file (containers/common oci-hooks(5), version 1.0.0)."""
    toolkit = entries[0].binary.parent
    wanted_keys = (
        WantedKey(("version",), "1.0.0"),
        WantedKey(("hook", "path"), str(toolkit / "nvidia-container-runtime-hook")),
        WantedKey(("hook", "args"), ["nvidia-container-runtime-hook", "prestart"]),
        WantedKey(("hook", "env"), [f"PATH={SYSTEM_PATH}:{toolkit}"]),
        WantedKey(("when", "always"), value=True),
        WantedKey(("when", "commands"), [".*"]),
        WantedKey(("stages",), ["prestart"]),
    )
    return ProposedFile(path, Syntax.JSON, wanted_keys)


def read_effective(tree: Mapping[str, Any]) -> EffectiveConfig:
    """Read the settings in force from a whole config of CRI-O; a missing setting is a default.

    Raises:
        KeyError: the tree is no config of CRI-O.
    """
    crio = table(tree, ("crio",), SOURCE)
    runtime = table(tree, RUNTIME, SOURCE)
    if not runtime:
        raise KeyError("crio.runtime")

    run_root = text(crio, "runroot", SOURCE)
    storage_driver = text(crio, "storage_driver", SOURCE)
    places = {
        "root": text(crio, "root", SOURCE),
        "runroot": run_root,
        "listen": text(table(crio, ("api",), SOURCE), "listen", SOURCE),
    }
    hook_dirs = _read_paths(runtime.get("hooks_dir"))
    cdi_dirs = _read_paths(runtime.get("cdi_spec_dirs"))
    nri = table(crio, ("nri",), SOURCE)
    is_nri_on = nri.get("enable_nri") is not False and not nri.get("nri_disable_connections")
    return EffectiveConfig(
        _read_handlers(runtime),
        text(runtime, DEFAULT, SOURCE),
        cdi=None if cdi_dirs is None else bool(cdi_dirs),
        cdi_dirs=cdi_dirs or (),
        cgroup_driver=text(runtime, "cgroup_manager", SOURCE),
        rest_digest=_digest(tree),
        state=PurePosixPath(run_root or RUN_ROOT, f"{storage_driver or DRIVER}-containers"),
        hook_dirs=(PurePosixPath(HOOK_DIR),) if hook_dirs is None else hook_dirs,
        places={name: place for name, place in places.items() if place},
        nri=is_nri_on if nri else None,
        storage_driver=storage_driver,
    )


def _read_handlers(runtime: Tree) -> dict[str, Runtime]:
    """Read the runtimes of a whole config without the keys added by CRI-O: a reload hides these keys."""
    added = {key: (*USUAL, runtime.get(source)) for key, source in FILLED_IN.items()}
    handlers = {}
    runtimes = table(runtime, ("runtimes",), SOURCE)
    for name in runtimes:
        entry = table(runtimes, (name,), SOURCE)
        settings = {}
        for key, value in entry.items():
            if value not in added.get(key, ()):
                settings[key] = value
        binary = text(entry, "runtime_path", SOURCE)
        handlers[name] = Runtime(binary, settings, text(entry, MONITOR, SOURCE))
    return handlers


def _digest(tree: Mapping[str, Any]) -> str:
    """Return the digest of all settings besides the runtimes and the default."""
    compared = {RUNTIMES, (*RUNTIME, "defaultruntime")}
    rest = []
    for key, value in flatten(tree):
        if (value or value == 0) and key[:3] not in compared:
            rest.append((key, repr(value)))
    return sha256(repr(sorted(rest)).encode()).hexdigest()


def find_runtime_root(effective: EffectiveConfig, handler: str, version: Version | None) -> str:
    """Return the runtime_root of a handler; the default's runtime_root for the handler ""."""
    runtime = effective.handlers.get(handler or effective.default)
    if runtime is not None and runtime.table.get(INHERIT) is True:
        runtime = effective.handlers.get(effective.default)
    if runtime is None:
        return ""
    return str(runtime.table.get("runtime_root") or f"/run/{find_built_in(version)}")


def _read_paths(value: Value) -> tuple[PurePosixPath, ...] | None:
    """Return a list of paths, None for another value."""
    if not isinstance(value, list):
        return None
    return tuple(PurePosixPath(str(each)) for each in value)


def read_runtimes(tree: Tree) -> dict[str, str]:
    """Return the runtimes named by a file, with their programs."""
    runtimes = table(tree, RUNTIMES, SOURCE)
    return {name: text(table(runtimes, (name,), SOURCE), "runtime_path", SOURCE) for name in runtimes}
