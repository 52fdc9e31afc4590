"""CRI-O: one drop-in with whole runtime tables, or the OCI hook of older set-ups."""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.config_text import Key, Syntax, Tree, Value, WantedKey, flatten, leaves, table, text
from installer.config_text.change import parse
from installer.engines.crio.load import find_built_in
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine import (
    Configs,
    DryRunCommand,
    EffectiveConfig,
    EngineState,
    Proposal,
    ProposedFile,
    Runtime,
    RuntimeEntry,
    Version,
    is_oci,
    is_ours,
    low_level_words,
    refuse_taken_name,
)

HOOK_DIR: Final = "/usr/share/containers/oci/hooks.d"
RUN_ROOT: Final = "/run/containers/storage"
DRIVER: Final = "overlay"
STATE: Final = PurePosixPath(RUN_ROOT, f"{DRIVER}-containers")
SOURCE: Final = PurePosixPath("/config")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What CRI-O fills into each runtime at its start, ours too: from these keys of crio.runtime, or by itself.
MONITOR: Final = "monitor_path"
CONMON, CONMON_RS, PINNS, PINNS_PATH, POD = "conmon", "conmonrs", "pinns", "pinns_path", "pod"
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
# A line of what ``crio config`` prints: commented out where it is CRI-O's default, or storage.conf's.
PLACE: Final = re.compile(r'^(?:# )?(root|runroot|listen) = "(.+)"$', re.MULTILINE)
PRINTED_DEFAULT: Final = re.compile(r'^(?:# )?default_runtime = "(.+)"$', re.MULTILINE)
# Built-in runtimes are printed as comments; runtime-handler is the name in the documentation of the table.
PRINTED_RUNTIME: Final = re.compile(
    r"^(?:# )?\[crio\.runtime\.runtimes\.(?!runtime-handler\])([^\]\"]+)\]$", re.MULTILINE
)
PRINTED_CGROUP_DRIVER: Final = re.compile(r'^(?:# )?cgroup_manager = "(.+)"$', re.MULTILINE)


def propose(state: EngineState, configs: Configs, entries: tuple[RuntimeEntry, ...]) -> Iterator[Proposal]:
    """Yield what CRI-O's drop-in, or its hook file, should say; raise where CRI-O would not read that so."""
    trees = configs.trees
    runtimes, default = _merge(state, trees)
    if default not in {*runtimes, *BUILT_IN, *(entry.name for entry in entries)}:
        problem = f'configure CRI-O (its default_runtime "{default}" is not defined, so it would not start)'
        raise InstallerError(problem, remedy="define that runtime, or remove default_runtime")
    # CRI-O looks a runtime without a path up in $PATH by its name.
    wrappable = _list_wrappable(runtimes, default)
    low_level = low_level_words(runtimes.get(name, {}).get("runtime_path") or name for name in wrappable)
    if state.hook is not None:
        yield Proposal((_want_hook(state.hook, entries),), low_level)
        return
    path = state.drop_in or state.config
    _refuse_overruled(state, trees, path, entries)
    usual = _find_donor(runtimes, default)
    served = state.serving.handlers if state.serving else {}
    wants = [WantedKey((*RUNTIME, DEFAULT), entry.name) for entry in entries if entry.default]
    own_tree = trees.get(path, {})
    inherited, _ = _merge(state, {**_read_before(state, trees, path), path: own_tree})
    moved: dict[str, Tree] = {}
    for entry in entries:
        mine = inherited.get(entry.name, {})
        refuse_taken_name(path, entry.name, mine.get("runtime_path"))
        # Containers may live on it: what it has inherited stays, whatever the default is now.
        now, donor = served.get(entry.name), usual
        if now and now.binary == str(entry.binary):
            named = {key: one for key, one in usual.items() if key in FILLED_IN and one in USUAL}
            donor = {**named, **now.table}
        # Its owner has moved the monitor.
        if _is_gone(state, donor.get(MONITOR) or CONMON) and not _is_gone(
            state, usual.get(MONITOR) or CONMON
        ):
            moved[entry.name] = {MONITOR: usual.get(MONITOR)}
            donor = {**donor, **moved[entry.name]}
        there = table(own_tree, (*RUNTIMES, entry.name), path)
        wants += _want_runtime(entry, {**donor, **mine}, there)
    yield Proposal((ProposedFile(path, Syntax.TOML, tuple(wants)),), low_level, shown=moved)


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return what the texts alone tell, for want of a program that can be run."""
    trees = configs.trees
    known, default = _merge(state, trees)
    # The texts alone: what it serves beside them its next start does not have.
    texts, _ = _merge(replace(state, serving=None), trees)
    built_in = {name: Runtime() for name in BUILT_IN if state.serving is None}
    binaries = {name: str(known[name].get("runtime_path") or "") for name in texts}
    handlers = {name: Runtime(binaries[name], one) for name, one in texts.items()}
    # engine-facts.md#crio-absent-program
    ignored = tuple(name for name in texts if name != default and _is_ignored(state, name, binaries[name]))
    for name in ignored:
        del handlers[name]
    undefined = "" if default in {*known, *BUILT_IN} else default
    unreadable = sorted(state.unreadable - trees.keys())  # names among its drop-ins that are no files
    broken = [f"it reads {path}, which is a link to nowhere, or no file" for path in unreadable]
    sections = (table(tree, RUNTIME, path) for path, tree in trees.items())
    said = {key: value for section in sections for key, value in section.items() if value}
    return EffectiveConfig(
        {**built_in, **handlers},
        default,
        undefined=undefined,
        broken="".join(broken[:1]),
        hook_dirs=_read_paths(said.get("hooks_dir")) or (PurePosixPath(HOOK_DIR),),
        ignored=ignored,
    )


def _is_ignored(state: EngineState, name: str, binary: str) -> bool:
    """Tell whether CRI-O leaves a runtime out for want of its program."""
    return _is_gone(state, binary or name) and not is_ours(binary)  # ours are put there before they are named


def list_programs(tree: Tree) -> Iterator[tuple[Value, bool]]:
    """Yield the programs that a config names, and the words that CRI-O looks for in its PATH.

    Its start runs a monitor, with a bool of True, and asks of another path only whether something is there.
    """
    runtime, runtimes = table(tree, RUNTIME, SOURCE), table(tree, RUNTIMES, SOURCE)
    yield from ((word, True) for word in (CONMON, CONMON_RS, runtime.get(CONMON)))
    yield from ((word, False) for word in (PINNS, *BUILT_IN, runtime.get(PINNS_PATH), *runtimes))
    for one in (table(runtimes, (name,), SOURCE) for name in runtimes):
        yield from ((one.get("runtime_path"), False), (one.get(MONITOR), True))


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Return how CRI-O is asked: with its drop-ins in a directory of their own, all of which it reads."""
    config = state.config
    place = state.drop_in_directory or (state.drop_in.parent if state.drop_in else DIRECTORY)
    beside = {path.relative_to(place): text for path, text in texts.items() if path.is_relative_to(place)}
    # An OCI hook of ours is among the texts, and has no settings.
    read = {
        path: text
        for path, text in texts.items()
        if path in {config, state.drop_in} or path.is_relative_to(place)
    }
    return DryRunCommand(
        memory_files=(config,),
        render=lambda _: {config: texts.get(config, "")},
        arguments=("--config", config, "--config-dir", place),
        last_arguments=("config",),
        directories={place: beside},
        replaced_flags=(*CONFIG_FLAGS, *DROP_IN_FLAGS),
        read_output=lambda printed: _understand(state, read, printed),
    )


def _understand(state: EngineState, texts: Mapping[PurePosixPath, str], printed: str) -> EffectiveConfig:
    """Return what the texts have in force, with what ``crio config`` prints of files, variables and flags."""
    trees = {path: parse(text, Syntax.TOML, name=str(path)) for path, text in texts.items()}
    effective = predict(state, Configs(texts, trees))
    effective = replace(effective, places=dict(PLACE.findall(printed)))
    built_in = {*PRINTED_RUNTIME.findall(printed)} - effective.handlers.keys() - {*effective.ignored}
    handlers = {**dict.fromkeys(sorted(built_in), Runtime()), **effective.handlers}
    effective = replace(effective, handlers=handlers)
    default = PRINTED_DEFAULT.search(printed)
    if default:
        effective = replace(effective, default=default[1])
    cgroup_driver = PRINTED_CGROUP_DRIVER.search(printed)
    if cgroup_driver:
        effective = replace(effective, cgroup_driver=cgroup_driver[1])
    return effective


def _merge(state: EngineState, trees: Mapping[PurePosixPath, Tree]) -> tuple[dict[str, Tree], str]:
    """Return the runtimes and the default as CRI-O merges its files: by name, whole, the last one wins."""
    runtimes: dict[str, Tree] = {}
    named = ""
    for path, tree in trees.items():
        for name in table(tree, RUNTIMES, path):
            key = (*RUNTIMES, name)
            runtimes[name] = table(tree, key, path)
            for word in ("runtime_path", "runtime_type"):
                text(runtimes[name], word, path, key)
            table(tree, (*key, PLATFORM_PATHS), path)
        named = text(table(tree, RUNTIME, path), DEFAULT, path, RUNTIME) or named
    flags = state.flags_for_texts
    runtimes |= {name: {"runtime_path": binary} for name, binary in flags.runtimes.items()}
    named = flags.default or named
    # A running CRI-O tells what the files do not: what it fills in, and what other files and flags say.
    reported = state.serving.handlers.items() if state.serving else ()
    theirs = {name: handler.table for name, handler in reported if not is_ours(handler.binary)}
    runtimes |= {name: {**said, **runtimes.get(name, {})} for name, said in theirs.items()}
    if state.serving and state.serving.default in theirs:
        named = named or state.serving.default
    return runtimes, named or find_built_in(state.version)


def _want_runtime(entry: RuntimeEntry, like: Tree, there: Tree) -> Iterator[WantedKey]:
    """Yield what our entry holds: the keys of ``like``, as CRI-O replaces an entry of an earlier file whole.

    ``there`` is what an entry of that name holds in our file already.
    """
    key = (*RUNTIMES, entry.name)
    yield WantedKey((*key, "runtime_path"), str(entry.binary))
    # With type pod the monitor is conmon-rs, which takes no other; a VM is no runtime of ours.
    yield WantedKey((*key, "runtime_type"), POD if like.get("runtime_type") == POD else "oci")
    for below, value in leaves(like):
        if below[0] not in NOT_INHERITED and value:
            yield WantedKey((*key, *below), value)
    for platform in table(there, (PLATFORM_PATHS,), PurePosixPath()):
        yield WantedKey((*key, PLATFORM_PATHS, platform), str(entry.binary))
    if there.get(INHERIT):
        yield WantedKey((*key, INHERIT), value=False)


def _is_gone(state: EngineState, program: Value) -> bool:
    return PurePosixPath(str(program)) in state.gone


def _find_donor(runtimes: Mapping[str, Tree], default: str) -> Tree:
    """Return the runtime whose keys ours take over; one of NVIDIA's where there is no other."""
    donors = [runtimes[name] for name in _list_wrappable(runtimes, default) if name in runtimes]
    return next((one for one in donors if not is_ours(one.get("runtime_path"))), donors[0] if donors else {})


def _list_wrappable(runtimes: Mapping[str, Tree], default: str) -> Iterator[str]:
    """Yield the runtimes that ours may wrap, preferred first, and NVIDIA's own among them."""
    for name in (default, "runc", "crun"):
        entry = runtimes.get(name, {})
        if entry.get("runtime_type") != "vm" and is_oci(name, entry.get("runtime_path")):
            yield name


def _read_before(
    state: EngineState, trees: Mapping[PurePosixPath, Tree], path: PurePosixPath
) -> Mapping[PurePosixPath, Tree]:
    """Return the files that are read before ``path``, the root file first (engine-facts.md#crio-drop-ins)."""
    return {
        other: tree
        for other, tree in trees.items()
        if other != path and (other == state.config or (path != state.config and other < path))
    }


def _refuse_overruled(
    state: EngineState,
    trees: Mapping[PurePosixPath, Tree],
    path: PurePosixPath,
    entries: tuple[RuntimeEntry, ...],
) -> None:
    before = _read_before(state, trees, path)
    for other, tree in trees.items():
        if other == path or other in before:
            continue
        later, names = table(tree, RUNTIME, other), set()
        for entry in entries:
            one = table(tree, (*RUNTIMES, entry.name), other)
            same = one.get("runtime_path") == str(entry.binary) and not one.keys() & {PLATFORM_PATHS, INHERIT}
            if entry.name in table(tree, RUNTIMES, other) and not same:
                names.add(entry.name)
        if names or (any(entry.default for entry in entries) and later.get(DEFAULT)):
            word = f"the runtime {min(names)}" if names else DEFAULT
            raise InstallerError(
                f"configure CRI-O in {path} ({other} is read later and sets {word} too)",
                remedy=Remedy(
                    "name a file that sorts after it with ",
                    Option("drop-in-config"),
                    f", or remove {word} there",
                ),
            )


def _want_hook(path: PurePosixPath, entries: tuple[RuntimeEntry, ...]) -> ProposedFile:
    """Return the OCI hook file (containers/common oci-hooks(5), version 1.0.0)."""
    toolkit = entries[0].binary.parent
    return ProposedFile(
        path,
        Syntax.JSON,
        (
            WantedKey(("version",), "1.0.0"),
            WantedKey(("hook", "path"), str(toolkit / "nvidia-container-runtime-hook")),
            WantedKey(("hook", "args"), ["nvidia-container-runtime-hook", "prestart"]),
            WantedKey(("hook", "env"), [f"PATH={SYSTEM_PATH}:{toolkit}"]),
            WantedKey(("when", "always"), value=True),
            WantedKey(("when", "commands"), [".*"]),
            WantedKey(("stages",), ["prestart"]),
        ),
    )


def read_effective(tree: Tree) -> EffectiveConfig:
    """Return what a whole config of CRI-O has in force; raise KeyError where it is none of CRI-O's.

    What ``crio config`` leaves out, or comments out, is CRI-O's default.
    """
    storage, runtime = table(tree, ("crio",), SOURCE), table(tree, ("crio", "runtime"), SOURCE)
    if not runtime:
        raise KeyError("crio.runtime")
    runtimes = table(runtime, ("runtimes",), SOURCE)
    # A reloaded CRI-O does not say what it has filled in.
    filled = {key: (*USUAL, runtime.get(said)) for key, said in FILLED_IN.items()}
    handlers = {}
    for name in runtimes:
        one = table(runtimes, (name,), SOURCE)
        said = {key: value for key, value in one.items() if value not in filled.get(key, ())}
        handlers[name] = Runtime(text(one, "runtime_path", SOURCE), said, text(one, MONITOR, SOURCE))
    run_root = text(storage, "runroot", SOURCE) or RUN_ROOT
    driver = text(storage, "storage_driver", SOURCE) or DRIVER
    places = {"root": text(storage, "root", SOURCE), "runroot": text(storage, "runroot", SOURCE)}
    places["listen"] = text(table(storage, ("api",), SOURCE), "listen", SOURCE)
    hook_dirs, cdi_dirs = _read_paths(runtime.get("hooks_dir")), _read_paths(runtime.get("cdi_spec_dirs"))
    nri, ours = table(storage, ("nri",), SOURCE), {RUNTIMES, (*RUNTIME, "defaultruntime")}
    known = ((key, repr(value)) for key, value in flatten(tree) if value or value == 0)
    rest = sorted(each for each in known if each[0][:3] not in ours)
    return EffectiveConfig(
        handlers,
        text(runtime, "default_runtime", SOURCE),
        cdi=None if cdi_dirs is None else bool(cdi_dirs),
        cdi_dirs=cdi_dirs or (),
        cgroup_driver=text(runtime, "cgroup_manager", SOURCE),
        rest_digest=sha256(repr(rest).encode()).hexdigest(),
        state=PurePosixPath(run_root, f"{driver}-containers"),
        hook_dirs=(PurePosixPath(HOOK_DIR),) if hook_dirs is None else hook_dirs,
        places={name: said for name, said in places.items() if said},
        nri=nri.get("enable_nri") is not False and not nri.get("nri_disable_connections") if nri else None,
    )


def find_runtime_root(effective: EffectiveConfig, handler: str, version: Version | None) -> str:
    """Return the runtime_root of a handler; that of the default if the handler is ""."""
    runtime = effective.handlers.get(handler or effective.default)
    if runtime is not None and runtime.table.get(INHERIT) is True:
        runtime = effective.handlers.get(effective.default)
    if runtime is None:
        return ""
    return str(runtime.table.get("runtime_root") or f"/run/{find_built_in(version)}")


def _read_paths(value: Value) -> tuple[PurePosixPath, ...] | None:
    return tuple(PurePosixPath(str(each)) for each in value) if isinstance(value, list) else None


def read_runtimes(tree: Tree) -> dict[str, str]:
    """Return the runtimes that a file names, with their programs."""
    runtimes = table(tree, ("crio", "runtime", "runtimes"), SOURCE)
    return {name: text(table(runtimes, (name,), SOURCE), "runtime_path", SOURCE) for name in runtimes}
