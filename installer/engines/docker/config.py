"""Docker: runtimes and default-runtime in daemon.json, and what a start or a SIGHUP makes of them."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value, WantedKey, spellings, table, text
from installer.config_text.change import apply, parse
from installer.errors import InstallerError
from installer.model.engine import (
    Configs,
    DryRunCommand,
    EffectiveConfig,
    EngineState,
    Extras,
    Flags,
    Proposal,
    ProposedFile,
    Runtime,
    RuntimeEntry,
    is_oci,
    low_level_words,
    refuse_taken_name,
)
from installer.model.files import File, Meta

FEATURES: Final = "features"
CDI: Final = "cdi"
CONFIG_FLAGS: Final = ("--config-file",)
RUNTIMES: Final = "runtimes"
DEFAULT: Final = "default-runtime"
BUILT_IN: Final = "runc"
FIELDS: Final = ("path", "runtimeArgs", "runtimeType", "options")
LATER: Final = (23,)  # from here on dockerd reads runtimes as 26.1.5 does; the releases before as 20.10.24
OLD_SHIMS: Final = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")  # as 20.10 lists them


class Refused(Struct, frozen=True):
    """dockerd does not take a text up: it stays as it was, or ``dies``."""

    words: str
    dies: bool = False
    remedy: str = ""  # "" where the text is what has to be corrected


class DockerdModel(Struct, frozen=True):
    """One dockerd: where its daemon.json is, its release, None for any, and what its flags said.

    A start takes the file alone. A SIGHUP lays it over what dockerd has: a key that is missing changes
    nothing, so a removed key is sticky; and each release has texts that it refuses, or dies of. A default of
    a flag may not stand in the file as well: it neither starts nor reloads. The runtimes of flags join those
    of the file at a start; a SIGHUP with a file that names any takes them away
    (engine-facts.md#dockerd-reload).
    """

    path: PurePosixPath
    version: tuple[int, ...] | None
    flags: Flags = Flags()

    @property
    def is_old(self) -> bool:
        """Whether it reads runtimes as 20.10 does."""
        return self.version is not None and self.version < LATER

    def start(self, file: File | None) -> EffectiveConfig:
        """Return what dockerd has in force when it starts with ``file``; ``broken`` says why it does not."""
        tree, flaw = self._read(file)
        if flaw:
            return EffectiveConfig(_handlers({}), BUILT_IN, ready=False, broken=flaw)
        said, runtimes = text(tree, DEFAULT, self.path), table(tree, (RUNTIMES,), self.path)
        handlers = _handlers(self._of_flags() | {**runtimes})
        default = said or self.flags.default or BUILT_IN
        # 20.10 looks for a default of the text in the text alone.
        known = _handlers(runtimes) if self.is_old and said else handlers
        if not self._is_defined(default, known):
            named = "--default-runtime" if self.flags.default else "default-runtime"
            words = f'its {named} "{default}" is not defined'
            return EffectiveConfig(handlers, default, ready=False, undefined=default, broken=words)
        return EffectiveConfig(handlers, default)

    def reload(self, in_force: EffectiveConfig, file: File | None) -> EffectiveConfig | Refused:
        """Return what a dockerd that has ``in_force`` in force has after a SIGHUP with ``file``."""
        tree, flaw = self._read(file)
        if flaw:
            return Refused(flaw)
        said, runtimes = text(tree, DEFAULT, self.path), _handlers(table(tree, (RUNTIMES,), self.path))
        if self.is_old and said and not self._is_defined(said, runtimes):
            # 20.10 looks for it in the text alone.
            return Refused(f"specified default runtime '{said}' does not exist")
        if self.is_old and RUNTIMES in tree and tree[RUNTIMES] is None:
            return Refused("assignment to entry in nil map", dies=True)
        handlers = runtimes if RUNTIMES in tree else in_force.handlers
        default = said or (in_force.default if self.is_old or file else BUILT_IN)
        # 20.10 forgets its shims in a reload with a map, and dies of a default that it has lost.
        if not (default in handlers if self.is_old else self._is_defined(default, handlers)):
            words, remedy = f"specified default runtime '{default}' does not exist", ""
            if default == self.flags.default:
                words = f"it was started with --default-runtime {default}, and that would not be defined"
                remedy = f"define {default} in {self.path}, or start Docker without that flag, then run again"
            return Refused(words, dies=self.is_old, remedy=remedy)
        return replace(in_force, handlers=handlers, default=default)

    def find_route(self, in_force: EffectiveConfig | None, target: File | None) -> tuple[File | None, ...]:
        """Return the texts through which dockerd comes to have what a start with ``target`` would give it.

        One SIGHUP follows the first of them, and none a second: that changes nothing any more. ``in_force``
        is what dockerd has now, None where that is not known for sure. InstallerError where dockerd takes up
        no text that leads there, or dies of it.
        """
        releases = [self] if self.version else [replace(self, version=each) for each in ((20, 10), (28,))]
        if target is not None and in_force is not None:
            ends = [(each.reload(in_force, target), each.start(target)) for each in releases]
            if all(not isinstance(now, Refused) and has_same_runtimes(now, wanted) for now, wanted in ends):
                return (target,)
        middle, _ = self.spell_out(target)
        result = self.reload(in_force or self.start(None), middle)
        if isinstance(result, Refused):
            verb = "would crash" if result.dies else "would refuse it"
            usual = f"correct {self.path}, then run the same command again"
            problem = f"reload Docker with {self.path} as it is (dockerd {verb}: {result.words})"
            raise InstallerError(problem, remedy=result.remedy or usual)
        return (middle,) if target is not None and middle.content == target.content else (middle, target)

    def spell_out(self, target: File | None) -> tuple[File, tuple[Edit, ...]]:
        """Return ``target`` with both keys, which every dockerd takes up whatever it has, and the edits.

        Removed keys are sticky, and a map without the live default makes dockerd 20.10 die, so both keys have
        to stand in the file for one SIGHUP. A default that a flag says may not stand there and needs no word,
        for no reload has ever changed it.
        """
        text = target.content.decode() if target else ""
        tree = parse(text, Syntax.JSON, name=str(self.path))
        default, runtimes = tree.get(DEFAULT), tree.get(RUNTIMES)
        wants = []
        if not self.flags.default:
            wants.append(WantedKey((DEFAULT,), default if isinstance(default, str) and default else BUILT_IN))
        if not isinstance(runtimes, Mapping):
            runtimes = {}
            wants.append(WantedKey((RUNTIMES,), {}))
        # Name by name: a key of its own each, so that it can be taken out again of what others edit later.
        missing = {name: entry for name, entry in self._of_flags().items() if name not in runtimes}
        wants += [WantedKey((RUNTIMES, name), entry) for name, entry in missing.items()]
        middle, edits = apply(text, wants, Syntax.JSON, name=str(self.path))
        return File(middle.encode(), target.meta if target else Meta()), edits

    def _of_flags(self) -> dict[str, Value]:
        return {name: {"path": binary} for name, binary in self.flags.runtimes.items()}

    def _is_defined(self, default: str, handlers: Mapping[str, Runtime]) -> bool:
        if self.is_old:
            return default in {*OLD_SHIMS, *handlers}
        # A name with a dot may be that of a containerd shim, which needs no entry.
        return default in handlers or ("." in default and default[0] not in "./")

    def _read(self, file: File | None) -> tuple[Tree, str]:
        """Return what a text says, and why dockerd neither starts with it nor reloads into it, or ""."""
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
        if self.flags.default and DEFAULT in tree:
            yield f"{DEFAULT} is specified both as a flag and in the configuration file"
        for key in (key for key in tree if key.lower() in {DEFAULT, RUNTIMES} - {key}):
            yield f"{key} is not spelled as dockerd spells it"
        if tree.get(DEFAULT) is not None and not isinstance(tree[DEFAULT], str):
            yield f"{DEFAULT} is no string"
        runtimes = tree.get(RUNTIMES)
        if runtimes is not None and not isinstance(runtimes, Mapping):
            yield f"{RUNTIMES} is no object"
        for name, entry in runtimes.items() if isinstance(runtimes, Mapping) else ():
            if name == BUILT_IN:
                yield f"runtime name '{BUILT_IN}' is reserved"
            if entry is not None and not isinstance(entry, Mapping):
                yield f"the runtime {name} is no object"
            elif not self.is_old:
                yield from (f"the runtime {name} has {flaw}" for flaw in _find_flaws_of_entry(entry or {}))


def has_same_runtimes(one: EffectiveConfig, other: EffectiveConfig) -> bool:
    """Tell whether two effects have the same runtimes and default, as far as dockerd tells them."""
    return one.default == other.default and _listed(one) == _listed(other)


def find_differences(in_force: EffectiveConfig, wanted: EffectiveConfig) -> Iterator[tuple[str, bool]]:
    """Yield the runtimes that dockerd has and a start would not give it so; true for those it would lack."""
    listed, defined = _listed(in_force), _listed(wanted)
    yield from ((name, name not in defined) for name in sorted(listed) if listed[name] != defined.get(name))


def _listed(config: EffectiveConfig) -> dict[str, tuple[str, Value]]:
    """Return the runtimes as dockerd lists them, without types and options; shims there come and go."""
    return {
        name: (runtime.binary, runtime.table.get("runtimeArgs") or ())
        for name, runtime in config.handlers.items()
        if not name.startswith("io.containerd.")
    }


def _find_flaws_of_entry(entry: Tree) -> Iterator[str]:
    path, kind = read_field(entry, "path"), read_field(entry, "runtimeType")
    if not path and not kind:
        yield "neither a path nor a runtimeType"
    if path and kind:
        yield "both a path and a runtimeType"
    if path and read_field(entry, "options"):
        yield "options beside a path"
    if kind and read_field(entry, "runtimeArgs"):
        yield "runtimeArgs beside a runtimeType"


def _handlers(runtimes: Tree) -> dict[str, Runtime]:
    handlers = {BUILT_IN: Runtime(BUILT_IN, {"path": BUILT_IN})}
    for name, entry in runtimes.items():
        fields = entry if isinstance(entry, Mapping) else {}
        table = {word: value for word in FIELDS if (value := read_field(fields, word))}
        path = table.get("path")
        handlers[name] = Runtime(path if isinstance(path, str) else "", table)
    return handlers


def read_field(entry: Tree, word: str) -> Value:
    """Return the value of ``word`` in an entry, in whatever case it is written; the last one counts."""
    names = spellings(entry, word)
    return entry[names[-1]] if names else None


def read_info(info: Mapping[str, Any]) -> EffectiveConfig:
    """Return the config in force by dockerd's answer to ``/info``."""
    runtimes = {}
    for name, runtime in info["Runtimes"].items():
        # ``status`` is the program's own report, and no setting.
        table = {key: value for key, value in runtime.items() if key != "status"}
        runtimes[name] = Runtime(runtime.get("path") or "", table)
    # 20.10 has neither this key nor CDI.
    cdi = bool(info["CDISpecDirs"]) if "CDISpecDirs" in info else None
    return EffectiveConfig(
        runtimes,
        info["DefaultRuntime"],
        cdi=cdi,
        cdi_dirs=tuple(map(PurePosixPath, info.get("CDISpecDirs") or ())),
        cgroup_driver=str(info.get("CgroupDriver", "")),
        live_restore=info.get("LiveRestoreEnabled") is not False,
    )


def propose(
    state: EngineState, configs: Configs, entries: tuple[RuntimeEntry, ...], extras: Extras
) -> Iterator[Proposal]:
    """Yield what daemon.json should say; raise where it holds what dockerd would refuse or die of later."""
    path = state.config
    tree = configs.trees.get(path, {})
    runtimes = table(tree, (RUNTIMES,), path)
    for name in runtimes:
        entry = table(tree, (RUNTIMES, name), path)
        for word in ("path", "runtimeType"):
            text(entry, _spell(entry, word)[-1], path, (RUNTIMES, name))
        table(tree, (RUNTIMES, name, _spell(entry, "options")[-1]), path)
    default = text(tree, DEFAULT, path)
    if BUILT_IN in runtimes:
        problem = f"use {path} (it defines a runtime named runc, which dockerd refuses to start with)"
        raise InstallerError(problem, remedy="remove or rename that runtime")
    known = {*runtimes, BUILT_IN, *(entry.name for entry in entries)}
    # A default with a dot names a containerd shim, which needs no entry.
    if default and default not in known and "." not in default:
        problem = f'use {path} (its default-runtime "{default}" is not defined: dockerd would not start)'
        raise InstallerError(problem, remedy=f'define it under "{RUNTIMES}" or remove "{DEFAULT}"')
    wants = [want for entry in entries for want in _entry(path, runtimes, entry)]
    if extras.cdi and table(tree, (FEATURES,), path).get(CDI) is not True:
        wants.append(WantedKey((FEATURES, CDI), value=True))
    yield Proposal(
        (ProposedFile(path, Syntax.JSON, tuple(wants)),), low_level_words(_low_level(runtimes, default))
    )


def predict(state: EngineState, configs: Configs) -> EffectiveConfig:
    """Return the config in force after a start with the text."""
    text = configs.texts.get(state.config)
    file = None if text is None else File(text.encode(), Meta())
    return DockerdModel(state.config, state.version, state.flags_for_texts).start(file)


def describe_dry_run(state: EngineState, texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
    """Return how dockerd is asked: as it was started, for what a flag says may not stand in the file too."""
    return DryRunCommand(
        memory_files=(state.config,),
        render=lambda _: {state.config: texts.get(state.config, "{}")},
        arguments=("--validate", "--config-file", state.config),
        replaced_flags=CONFIG_FLAGS,
        depends_on_flags=True,
    )


def _entry(path: PurePosixPath, runtimes: Tree, entry: RuntimeEntry) -> Iterator[WantedKey]:
    key = (RUNTIMES, entry.name)
    now = table(runtimes, (entry.name,), path)
    refuse_taken_name(path, entry.name, read_field(now, "path") or read_field(now, "runtimeType"))
    for word in _spell(now, "path"):
        yield WantedKey((*key, word), str(entry.binary))
    if not now:
        yield WantedKey((*key, "args"), [])
    # dockerd refuses a runtime that has both a path and a shim. Emptied, not removed: so each comes
    # back to its place, also when others have edited the file.
    empty: dict[str, Value] = {"runtimeType": "", "options": {}}
    for field, nothing in empty.items():
        yield from (WantedKey((*key, word), nothing) for word in spellings(now, field) if now[word])
    if entry.default:
        yield WantedKey((DEFAULT,), entry.name)


def _spell(entry: Tree, word: str) -> list[str]:
    """Return how ``word`` is written in an entry, at least once: dockerd reads the keys in any case."""
    return spellings(entry, word) or [word]


def _low_level(runtimes: Tree, default: str) -> Iterator[Value]:
    """Yield what those runtimes start that ours may wrap: the path, or what a runc shim is given."""
    for name in (default, BUILT_IN, "crun"):
        entry = runtimes.get(name)
        if isinstance(entry, Mapping):
            kind, options = read_field(entry, "runtimeType"), read_field(entry, "options")
            binary = read_field(entry, "path")
            if isinstance(kind, str) and kind:
                shim = (
                    options if kind.startswith("io.containerd.runc.") and isinstance(options, Mapping) else {}
                )
                binary = next((shim[word] for word in spellings(shim, "binaryname")), None)
            if is_oci(name, binary):
                yield binary
