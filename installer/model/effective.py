"""The runtimes of an engine, and its effective config: what is in force now, or would be with other texts."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.config_text import Key, Tree, Value, flatten
from installer.errors import InstallerError, Option, Remedy
from installer.model.files import host_path

OUR_BINARIES: Final = frozenset(
    {
        "nvidia-container-runtime",
        "nvidia-container-runtime.real",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.cdi.real",
        "nvidia-container-runtime.legacy",
        "nvidia-container-runtime.legacy.real",
        "nvidia-container-runtime.experimental",  # of the toolkits of 2021
        "nvidia-container-runtime.experimental.real",
    }
)
# A VM or a user-space kernel cannot start a container for our runtime, nor can a shim (compatibility.md#d33).
NOT_OCI_PREFIXES: Final = ("kata", "runsc", "krun", "crun-vm", "cc-runtime", "containerd-shim-")
STANDARD_NAMES: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")
MODES: Final = ("", ".cdi", ".legacy")  # the end of the program of each standard name
NAMELESS: Final = "default"  # containerd 1.x's name for a default runtime with a table of its own
RUNC_TYPE: Final = "io.containerd.runc.v2"  # the shim of containerd and of Docker that starts runc
# The keys for the program of a runtime, in the words of containerd, of CRI-O, and of schema 1.
BINARY_NAMES: Final = frozenset({"binaryname", "runtime", "runtimepath", "path"})


class Runtime(Struct, frozen=True):
    """A runtime of an engine, as the engine sees the runtime."""

    binary: str = ""  # the program, "" for the engine's own choice
    # The settings in the engine's words: files, CRI and HTTP differ in case and underscores.
    table: Tree = field(default_factory=dict)
    monitor: str = ""  # the program that holds the containers, as a running engine tells

    @property
    def options(self) -> Tree:
        """The runtime's options, by their names in lower case."""
        options = self.table.get("options")
        if not isinstance(options, dict):
            return {}
        return {name.lower(): value for name, value in options.items()}

    @property
    def program(self) -> str:
        """The program started by the runtime, a path or a name in the engine's PATH; "" if unknown."""
        if self.binary:
            return self.binary
        if RUNC_TYPE in self.table.values():
            return "runc"
        return ""

    def same(self, other: "Runtime") -> bool:
        """Tell whether an engine serves this runtime as ``other``; an empty value equals a missing key."""
        return self.binary == other.binary and _read_settings(self.table) == _read_settings(other.table)

    def shows(self, wanted: "Runtime") -> bool:
        """Tell whether the runtime is as ``wanted``, in every table shown by the engine."""
        if self.binary != wanted.binary:
            return False
        shown = dict(flatten(self.table))
        shown_tables = {key[0] for key in shown}
        for key, value in flatten(wanted.table):
            if key[0] not in shown_tables or key[-1] in BINARY_NAMES:
                continue
            if (shown.get(key) or None) != (value or None):
                return False
        return True


def _read_settings(table: Tree) -> dict[Key, Value]:
    """Collect the settings with a value, by flattened key; without the program, compared alone."""
    return {key: value for key, value in flatten(table) if value and key[-1] not in BINARY_NAMES}


class EffectiveConfig(Struct, frozen=True):
    """The config in force in an engine, now or with other texts; an unknown value is the default."""

    handlers: Mapping[str, Runtime]
    default: str
    ready: bool = True  # the engine's own answer: CRI's RuntimeReady
    cdi: bool | None = None  # whether the engine serves CDI devices
    cdi_dirs: tuple[PurePosixPath, ...] = ()  # the directories of CDI specifications of a running engine
    rest_digest: str = ""  # of all other settings; "" for a config that is not complete
    undefined: str = ""  # the default runtime, if not defined: the engine serves nothing
    broken: str = ""  # the reason for which the engine would not start, in its own words
    remedy: str = ""  # the owner's act against ``broken``, if a load check gives one
    ignored: tuple[str, ...] = ()  # runtimes of the files that the engine drops: their programs are missing
    state: PurePosixPath | None = None  # the directory of the containers' bundles
    hook_dirs: tuple[PurePosixPath, ...] = ()  # the directories of OCI hooks
    places: Mapping[str, str] = field(default_factory=dict)  # by flag: root, state, socket
    schema: int = 0  # of containerd: the schema in which its program prints configs: 1.x and 2.x differ
    nri: bool | None = None  # whether NRI plugins can connect
    cgroup_driver: str = ""  # of dockerd and CRI-O: all runtimes share a driver
    is_printed: bool = False  # by the engine's own program, at least in part: see ``is_complete``
    live_restore: bool = True  # of dockerd: its containers outlive its restart
    settings: Mapping[str, Value] = field(default_factory=dict)  # of dockerd: other keys that it tells
    # The driver of the containers' file systems: containerd's snapshotter, CRI-O's storage driver.
    storage_driver: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the engine itself tells all settings, so that our reading of the texts adds nothing.

        The program of containerd prints all settings, and a running CRI-O answers with all. The program of
        CRI-O prints only some, to be completed by the texts: such a config ``is_printed``, but not complete.
        """
        return bool(self.rest_digest)

    @property
    def fatal(self) -> str:
        """The reason why an engine with this config serves nothing; "" if the engine serves."""
        if self.broken or not self.undefined:
            return self.broken
        return f"its default runtime {self.undefined} is not defined"

    @property
    def binaries(self) -> dict[str, str]:
        """The programs of the runtimes by name, "" for the engine's own choice."""
        return {name: handler.binary for name, handler in self.handlers.items()}


class Answer(Struct, frozen=True):
    """The answer of a running engine on its socket."""

    serving: EffectiveConfig
    version: str
    name: str = ""  # by CRI only
    pause_image: str = ""  # by CRI-O only


class Flags(Struct, frozen=True):
    """The runtimes in the flags of an engine; no file can change them."""

    default: str = ""
    runtimes: Mapping[str, str] = field(default_factory=dict)  # the programs by name


class RuntimeEntry(Struct, frozen=True):
    """An OCI runtime for an engine."""

    name: str
    binary: PurePosixPath  # as the host sees the path
    default: bool = False
    table: Tree | None = None  # the settings that the engine must show; None if only the binary counts


def name_default(entries: Iterable[RuntimeEntry]) -> str:
    """Return the name of the default among our runtimes; "" for none."""
    return next((entry.name for entry in entries if entry.default), "")


def find_disturbances(
    before: EffectiveConfig, after: EffectiveConfig, ours: Collection[str]
) -> Iterator[str]:
    """Describe each change of an engine's config, besides changes of the runtimes ``ours``."""
    if after.broken:
        yield f"it would not start: {after.broken}"
        return
    if after.undefined:
        yield f"its default runtime {after.undefined} would not be defined"
    for name in sorted((before.handlers.keys() | after.handlers.keys()) - {*ours}):
        old = before.handlers.get(name)
        new = after.handlers.get(name)
        if name == NAMELESS and before.default in {*ours}:
            continue  # the default without us comes back
        if old is None:
            # A missing default, or an engine that would not have started, is healed.
            healed = name == before.undefined or (before.undefined and not before.handlers)
            if not healed:
                yield f"the runtime {name} would appear"
        elif new is None:
            yield f"the runtime {name} would be lost"
        elif not new.same(old):
            yield f"the runtime {name} would have other settings"
    if after.default != before.default and not {after.default, before.default} & {*ours}:
        yield f"its default runtime would be {after.default} in the place of {before.default}"
    if before.is_complete and after.is_complete and before.rest_digest != after.rest_digest:
        yield "settings besides the runtimes would change"


def is_ours(binary: Value) -> bool:
    """Tell whether ``binary`` is a runtime of this toolkit, whatever the name in the config."""
    # Our runtime as its own low-level runtime would exec itself for ever (compatibility.md#d1).
    return isinstance(binary, str) and PurePosixPath(binary).name in OUR_BINARIES


def is_of_toolkit(program: Value, ours: PurePosixPath) -> bool:
    """Tell whether a path is in the directory of a program of ours, which goes with the toolkit."""
    if not isinstance(program, str):
        return False
    path = host_path(program)
    return ".." not in path.parts and path.is_relative_to(ours.parent)


def is_oci(name: str, binary: Value) -> bool:
    """Tell whether our runtime can wrap a runtime: a VM or a sandbox cannot be wrapped."""
    base = PurePosixPath(binary).name if isinstance(binary, str) else ""
    return not name.startswith(NOT_OCI_PREFIXES) and not base.startswith(NOT_OCI_PREFIXES)


def low_level_words(binaries: Iterable[Value]) -> tuple[str, ...]:
    """Return the runtimes of others in a config, paths before bare names, then runc and crun, each once."""
    paths = []
    names = []
    for binary in binaries:
        if not isinstance(binary, str) or not binary or is_ours(binary):
            continue
        if binary.startswith("/"):
            paths.append(binary)
        else:
            # Our look-up of a bare name may find another program than the engine's look-up, or none.
            names.append(binary)
    return tuple(dict.fromkeys([*paths, *names, "runc", "crun"]))


def refuse_taken_name(path: PurePosixPath, name: str, binary: Value) -> None:
    """Refuse a custom name that would replace a runtime of others (compatibility.md#d34).

    Raises:
        InstallerError: a runtime of others has the name.
    """
    if name not in STANDARD_NAMES and binary and not is_ours(binary):
        problem = f"use {path} (a runtime named {name} is there already and starts {binary})"
        raise InstallerError(problem, remedy=Remedy("choose another name with ", Option("runtime-name")))
