"""Docker: runtimes and default-runtime in daemon.json, and their effect at a start and at a SIGHUP."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value, WantedKey, spellings, table, text
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.effective import (
    EffectiveConfig,
    Flags,
    Runtime,
    RuntimeEntry,
    is_oci,
    low_level_words,
    refuse_taken_name,
)
from installer.model.engine import Configs, DryRunCommand, EngineState, Extras, Proposal, ProposedFile, Route
from installer.model.files import File, Meta

FEATURES: Final = "features"
# Keys of daemon.json, and their names in the answer to /info.
TOLD: Final = {
    "data-root": "DockerRootDir",
    "debug": "Debug",
    "labels": "Labels",
    "live-restore": "LiveRestoreEnabled",
}
CDI: Final = "cdi"
CONFIG_FLAGS: Final = ("--config-file",)
RUNTIMES: Final = "runtimes"
DEFAULT: Final = "default-runtime"
BUILT_IN: Final = "runc"
FIELDS: Final = ("path", "runtimeArgs", "runtimeType", "options")
LATER: Final = (23,)  # from here on dockerd reads runtimes as 26.1.5 does; the releases before as 20.10.24
# From here on (measured: 26.1.5 and 28.5.2) each SIGHUP is refused where the text itself says PROXY without a
# PROXY_PATH. A start takes the path of a flag, or looks docker-proxy up (engine-facts.md#dockerd-load).
NEEDS_PROXY: Final = (26,)
PROXY: Final = "userland-proxy"
PROXY_PATH: Final = "userland-proxy-path"
OLD_SHIMS: Final = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")  # as 20.10 lists them


class Refusal(Struct, frozen=True):
    """The refusal of a text by a running dockerd; dockerd keeps its settings, or ``dies``."""

    reason: str  # in dockerd's words where dockerd has a message
    dies: bool = False
    remedy: str = ""  # "" if the owner has to correct the text


class DockerdModel(Struct, frozen=True):
    """A dockerd: the path of its daemon.json, its release, None for any release, and its flags.

    At a start dockerd reads the file alone. At a SIGHUP dockerd lays the file over its settings: a key absent
    from the file keeps its value, so a removed key is sticky. Each release refuses some texts, or dies of
    them. With a default in a flag the file may have none: with both dockerd neither starts nor reloads. The
    runtimes of flags join the file's runtimes at a start. A SIGHUP with runtimes in the file takes the flags'
    runtimes away (engine-facts.md#dockerd-reload).
    """

    path: PurePosixPath
    version: tuple[int, ...] | None
    flags: Flags = Flags()

    @property
    def is_old(self) -> bool:
        """Whether this dockerd reads runtimes as 20.10 does."""
        return self.version is not None and self.version < LATER

    def start(self, file: File | None) -> EffectiveConfig:
        """Return the settings in force after a start with ``file``; ``broken`` if dockerd does not start."""
        tree, flaw = self._read(file)
        if flaw:
            return EffectiveConfig(_read_handlers({}), BUILT_IN, ready=False, broken=flaw)

        named_default = text(tree, DEFAULT, self.path)
        runtimes = table(tree, (RUNTIMES,), self.path)
        handlers = _read_handlers(self._runtimes_of_flags() | {**runtimes})
        default = named_default or self.flags.default or BUILT_IN

        known = handlers
        if self.is_old and named_default:
            # 20.10 looks for a default of the text in the text alone.
            known = _read_handlers(runtimes)
        if self._is_defined(default, known):
            return EffectiveConfig(handlers, default)
        setting = "--default-runtime" if self.flags.default else "default-runtime"
        broken = f'its {setting} "{default}" is not defined'
        return EffectiveConfig(handlers, default, ready=False, undefined=default, broken=broken)

    def reload(self, in_force: EffectiveConfig, file: File | None) -> EffectiveConfig | Refusal:
        """Predict the settings in force after a SIGHUP with ``file``, or the refusal.

        Args:
            in_force: the settings in force before the SIGHUP.
            file: daemon.json, None for no file.
        """
        tree, flaw = self._read(file)
        if flaw:
            return Refusal(flaw)
        refusal = self._refuse_tree(tree)
        if refusal is not None:
            return refusal

        handlers = in_force.handlers
        if RUNTIMES in tree:
            handlers = _read_handlers(table(tree, (RUNTIMES,), self.path))
        default = text(tree, DEFAULT, self.path)
        if not default:
            # Without a file a later dockerd takes its built-in default again.
            default = in_force.default if self.is_old or file else BUILT_IN
        # 20.10 forgets its shims in a reload with a map, and dies of a default that it has lost.
        is_defined = default in handlers if self.is_old else self._is_defined(default, handlers)
        if not is_defined:
            return self._refuse_default(default)
        return replace(in_force, handlers=handlers, default=default)

    def _refuse_tree(self, tree: Tree) -> Refusal | None:
        """Return the refusal of a text that a start may accept, and a SIGHUP never; None for no refusal."""
        lacks_proxy = tree.get(PROXY) is True and not tree.get(PROXY_PATH)
        if lacks_proxy and self.version and self.version >= NEEDS_PROXY:
            return Refusal(
                f"{PROXY} is enabled, but {PROXY_PATH} is not set",
                remedy=f"set {PROXY_PATH} in {self.path} or take {PROXY} out of it, then run again",
            )
        if not self.is_old:
            return None

        default = text(tree, DEFAULT, self.path)
        if default and not self._is_defined(default, _read_handlers(table(tree, (RUNTIMES,), self.path))):
            # 20.10 looks for the default in the text alone.
            return Refusal(f"specified default runtime '{default}' does not exist")
        if RUNTIMES in tree and tree[RUNTIMES] is None:
            return Refusal("assignment to entry in nil map", dies=True)
        return None

    def _refuse_default(self, default: str) -> Refusal:
        """Return the refusal of a text without a definition of the default in force."""
        if default != self.flags.default:
            return Refusal(f"specified default runtime '{default}' does not exist", dies=self.is_old)
        return Refusal(
            f"it was started with --default-runtime {default}, and that would not be defined",
            dies=self.is_old,
            remedy=f"define {default} in {self.path}, or start Docker without that flag, then run again",
        )

    def find_route(self, in_force: EffectiveConfig | None, target: File | None) -> Route:
        """Find the texts by which a running dockerd comes to the settings of a start with ``target``.

        Args:
            in_force: the settings in force, None if not known for sure.
            target: the wanted text, None for no file.

        Returns:
            ``target`` alone, if a SIGHUP with ``target`` has the effect of a start. Else an intermediate text
            for the SIGHUP, and ``target`` for after the SIGHUP: by then ``target`` changes nothing.

        Raises:
            InstallerError: dockerd refuses the intermediate text, or dies of the intermediate text.
        """
        if target is not None and in_force is not None and self._takes_at_once(in_force, target):
            return Route((target,))

        intermediate, edits = self.spell_out(target)
        after_reload = self.reload(in_force or self.start(None), intermediate)
        if isinstance(after_reload, Refusal):
            raise self._explain(after_reload)
        if target is not None and intermediate.content == target.content:
            return Route((intermediate,))
        return Route((intermediate, target), passing=edits)

    def _explain(self, refusal: Refusal) -> InstallerError:
        """Make the error of a dockerd that takes no text on the way to a wanted text."""
        verb = "would crash" if refusal.dies else "would refuse it"
        return InstallerError(
            f"reload Docker with {self.path} as it is (dockerd {verb}: {refusal.reason})",
            remedy=refusal.remedy or f"correct {self.path}, then run the same command again",
        )

    def _takes_at_once(self, in_force: EffectiveConfig, target: File) -> bool:
        """Tell whether a SIGHUP with ``target`` has the effect of a start with ``target``.

        If the release is unknown, an old and a new release are asked.
        """
        releases = [self]
        if not self.version:
            releases = [replace(self, version=version) for version in ((20, 10), (28,))]
        for dockerd in releases:
            after_reload = dockerd.reload(in_force, target)
            after_start = dockerd.start(target)
            if isinstance(after_reload, Refusal) or not has_same_runtimes(after_reload, after_start):
                return False
        return True

    def spell_out(self, target: File | None) -> tuple[File, tuple[Edit, ...]]:
        """Return ``target`` with both keys written out, and the edits: the intermediate text.

        A removed key is sticky, and 20.10 dies of a map without the default in force: so both keys have to
        stand in the file for a SIGHUP.
        """
        content = target.content.decode() if target else ""
        tree = parse(content, Syntax.JSON, name=str(self.path))
        intermediate, edits = apply(content, self._list_spelled_out(tree), Syntax.JSON, name=str(self.path))
        meta = target.meta if target else Meta()
        return File(intermediate.encode(), meta), edits

    def _list_spelled_out(self, tree: Tree) -> list[WantedKey]:
        """List the keys of the intermediate text for a tree."""
        wanted_keys = []
        # A default in a flag may not stand in the file. It needs no key: no reload has ever changed it.
        if not self.flags.default:
            default = tree.get(DEFAULT)
            if not isinstance(default, str) or not default:
                default = BUILT_IN
            wanted_keys.append(WantedKey((DEFAULT,), default))
        runtimes = tree.get(RUNTIMES)
        if not isinstance(runtimes, Mapping):
            runtimes = {}
            wanted_keys.append(WantedKey((RUNTIMES,), {}))
        # Each runtime is a key of its own: so it can be removed from a file that others edit later.
        for name, entry in self._runtimes_of_flags().items():
            if name not in runtimes:
                wanted_keys.append(WantedKey((RUNTIMES, name), entry))
        return wanted_keys

    def _runtimes_of_flags(self) -> dict[str, Value]:
        """Return the runtimes of the flags as entries of daemon.json."""
        return {name: {"path": binary} for name, binary in self.flags.runtimes.items()}

    def _is_defined(self, default: str, handlers: Mapping[str, Runtime]) -> bool:
        """Tell whether a default runtime has a definition, or needs none."""
        if self.is_old:
            return default in {*OLD_SHIMS, *handlers}
        # A name with a dot may be that of a containerd shim, which needs no entry.
        return default in handlers or ("." in default and default[0] not in "./")

    def _read(self, file: File | None) -> tuple[Tree, str]:
        """Parse a text; return the tree, and dockerd's reason against a start and a reload with the text."""
        if file is None:
            return {}, ""
        if self.is_old and not file.content.strip():
            return {}, f"read {self.path} (it is empty)"
        if self.is_old and file.content.startswith(b"\xef\xbb\xbf"):
            return {}, f"read {self.path} (it begins with a byte order mark)"
        try:
            tree = parse(file.content.decode(), Syntax.JSON, name=str(self.path))
        except UnicodeDecodeError:
            return {}, f"read {self.path} (it is not UTF-8)"
        except InstallerError as error:
            return {}, error.problem
        return tree, next(self._find_flaws(tree), "")

    def _find_flaws(self, tree: Tree) -> Iterator[str]:
        """Yield the reasons why dockerd refuses a tree."""
        default = tree.get(DEFAULT)
        runtimes = tree.get(RUNTIMES)
        if self.flags.default and DEFAULT in tree:
            yield f"{DEFAULT} is specified both as a flag and in the configuration file"
        for key in tree:
            if key not in {DEFAULT, RUNTIMES} and key.lower() in {DEFAULT, RUNTIMES}:
                yield f"{key} is not spelled as dockerd spells it"
        if default is not None and not isinstance(default, str):
            yield f"{DEFAULT} is no string"
        if runtimes is None:
            return
        if not isinstance(runtimes, Mapping):
            yield f"{RUNTIMES} is no object"
            return
        for name, entry in runtimes.items():
            if name == BUILT_IN:
                yield f"runtime name '{BUILT_IN}' is reserved"
            if entry is not None and not isinstance(entry, Mapping):
                yield f"the runtime {name} is no object"
            elif not self.is_old:
                for flaw in _find_flaws_of_entry(entry or {}):
                    yield f"the runtime {name} has {flaw}"


def has_same_runtimes(one: EffectiveConfig, other: EffectiveConfig) -> bool:
    """Tell whether two configs in force have the same runtimes and default, as dockerd lists them."""
    return one.default == other.default and _list_as_dockerd(one) == _list_as_dockerd(other)


def find_differences(in_force: EffectiveConfig, wanted: EffectiveConfig) -> Iterator[tuple[str, bool]]:
    """Yield dockerd's runtimes defined otherwise by ``wanted``, true for an undefined runtime."""
    present = _list_as_dockerd(in_force)
    defined = _list_as_dockerd(wanted)
    for name in sorted(present):
        if present[name] != defined.get(name):
            yield name, name not in defined


def _list_as_dockerd(config: EffectiveConfig) -> dict[str, tuple[str, Value]]:
    """Return the runtimes as dockerd lists them: without types and options, and without shims.

    Shims come and go in dockerd's list.
    """
    listed: dict[str, tuple[str, Value]] = {}
    for name, runtime in config.handlers.items():
        if not name.startswith("io.containerd."):
            listed[name] = (runtime.binary, runtime.table.get("runtimeArgs") or ())
    return listed


def _find_flaws_of_entry(entry: Tree) -> Iterator[str]:
    """Yield the combinations of keys in an entry refused by dockerd."""
    path = read_field(entry, "path")
    kind = read_field(entry, "runtimeType")
    if not path and not kind:
        yield "neither a path nor a runtimeType"
    if path and kind:
        yield "both a path and a runtimeType"
    if path and read_field(entry, "options"):
        yield "options beside a path"
    if kind and read_field(entry, "runtimeArgs"):
        yield "runtimeArgs beside a runtimeType"


def _read_handlers(runtimes: Tree) -> dict[str, Runtime]:
    """Return the runtimes of daemon.json, with the built-in runtime."""
    handlers = {BUILT_IN: Runtime(BUILT_IN, {"path": BUILT_IN})}
    for name, entry in runtimes.items():
        settings: dict[str, Value] = {}
        if isinstance(entry, Mapping):
            for field in FIELDS:
                value = read_field(entry, field)
                if value:
                    settings[field] = value
        path = settings.get("path")
        handlers[name] = Runtime(path if isinstance(path, str) else "", settings)
    return handlers


def read_field(entry: Tree, field: str) -> Value:
    """Return the value of a field, spelled in any case; the last spelling counts."""
    names = spellings(entry, field)
    return entry[names[-1]] if names else None


def read_info(info: Mapping[str, Any]) -> EffectiveConfig:
    """Return the config in force by dockerd's answer to ``/info``."""
    runtimes = {}
    for name, runtime in info["Runtimes"].items():
        # ``status`` is the program's own report, and no setting.
        runtime_table = {key: value for key, value in runtime.items() if key != "status"}
        runtimes[name] = Runtime(runtime.get("path") or "", runtime_table)
    # 20.10 has neither this key nor CDI.
    cdi = bool(info["CDISpecDirs"]) if "CDISpecDirs" in info else None
    settings = {key: info[name] for key, name in TOLD.items() if name in info}
    return EffectiveConfig(
        runtimes,
        info["DefaultRuntime"],
        cdi=cdi,
        cdi_dirs=tuple(map(PurePosixPath, info.get("CDISpecDirs") or ())),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        live_restore=info.get("LiveRestoreEnabled") is not False,
        settings=settings,
    )


def propose(
    state: EngineState, configs: Configs, entries: tuple[RuntimeEntry, ...], extras: Extras
) -> Iterator[Proposal]:
    """Yield the proposal for daemon.json.

    Raises:
        InstallerError: daemon.json has a setting that dockerd refuses, or later dies of.
    """
    path = state.config
    tree = configs.trees.get(path, {})
    runtimes = table(tree, (RUNTIMES,), path)
    _check_types(path, tree, runtimes)

    default = text(tree, DEFAULT, path)
    if BUILT_IN in runtimes:
        problem = f"use {path} (it defines a runtime named runc, which dockerd refuses to start with)"
        raise InstallerError(problem, remedy="remove or rename that runtime")
    known = {*runtimes, BUILT_IN}
    known.update(entry.name for entry in entries)
    # A default with a dot names a containerd shim, which needs no entry.
    if default and default not in known and "." not in default:
        problem = f'use {path} (its default-runtime "{default}" is not defined: dockerd would not start)'
        raise InstallerError(problem, remedy=f'define it under "{RUNTIMES}" or remove "{DEFAULT}"')

    wanted_keys: list[WantedKey] = []
    for entry in entries:
        wanted_keys += _list_runtime_keys(path, runtimes, entry)
    if extras.cdi and table(tree, (FEATURES,), path).get(CDI) is not True:
        wanted_keys.append(WantedKey((FEATURES, CDI), value=True))
    file = ProposedFile(path, Syntax.JSON, tuple(wanted_keys))
    yield Proposal(files=(file,), low_level=low_level_words(_list_low_level(runtimes, default)))


def _check_types(path: PurePosixPath, tree: Tree, runtimes: Tree) -> None:
    """Check the types of the fields of all runtimes.

    Raises:
        InstallerError: a value has another type than dockerd expects.
    """
    for name in runtimes:
        entry = table(tree, (RUNTIMES, name), path)
        for field in ("path", "runtimeType"):
            text(entry, _list_spellings(entry, field)[-1], path, (RUNTIMES, name))
        table(tree, (RUNTIMES, name, _list_spellings(entry, "options")[-1]), path)


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return the settings in force after a start with the text."""
    daemon_json = configs.texts.get(state.config)
    file = None if daemon_json is None else File(daemon_json.encode(), Meta())
    return DockerdModel(state.config, state.version, state.flags_for_texts).start(file)


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Describe ``dockerd --validate`` with the flags of the running dockerd; some flags exclude a key."""
    path = state.config

    def render(_find_memory_file: Callable[[PurePosixPath], str]) -> Mapping[PurePosixPath, str]:
        return {path: texts.get(path, "{}")}

    return DryRunCommand(
        memory_files=(path,),
        render=render,
        arguments=("--validate", "--config-file", path),
        replaced_flags=CONFIG_FLAGS,
        depends_on_flags=True,
    )


def _list_runtime_keys(path: PurePosixPath, runtimes: Tree, entry: RuntimeEntry) -> Iterator[WantedKey]:
    """Yield the wanted keys of a runtime of ours, and of the default.

    Raises:
        InstallerError: a runtime of others has the name.
    """
    key = (RUNTIMES, entry.name)
    present = table(runtimes, (entry.name,), path)
    program = read_field(present, "path") or read_field(present, "runtimeType")
    refuse_taken_name(path, entry.name, program)
    for name in _list_spellings(present, "path"):
        yield WantedKey((*key, name), str(entry.binary))
    if not present:
        yield WantedKey((*key, "args"), [])
    # dockerd refuses a runtime with both a path and a shim. The fields are emptied, not removed: so each
    # comes back to its place, also in a file that others have edited.
    empty_values: dict[str, Value] = {"runtimeType": "", "options": {}}
    for field, empty in empty_values.items():
        for name in spellings(present, field):
            if present[name]:
                yield WantedKey((*key, name), empty)
    if entry.default:
        yield WantedKey((DEFAULT,), entry.name)


def _list_spellings(entry: Tree, field: str) -> list[str]:
    """List the spellings of a field in an entry, at least one: dockerd reads keys in any case."""
    return spellings(entry, field) or [field]


def _list_low_level(runtimes: Tree, default: str) -> Iterator[Value]:
    """Yield the programs of the runtimes that ours may wrap."""
    for name in (default, BUILT_IN, "crun"):
        entry = runtimes.get(name)
        if not isinstance(entry, Mapping):
            continue
        program = _find_program(entry)
        if is_oci(name, program):
            yield program


def _find_program(entry: Tree) -> Value:
    """Return the program of a runtime: its path, or the program in an option of a runc shim."""
    kind = read_field(entry, "runtimeType")
    if not isinstance(kind, str) or not kind:
        return read_field(entry, "path")
    options = read_field(entry, "options")
    if not kind.startswith("io.containerd.runc.") or not isinstance(options, Mapping):
        return None
    names = spellings(options, "binaryname")
    return options[names[0]] if names else None
