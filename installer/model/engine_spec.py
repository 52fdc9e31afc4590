"""What differs from engine to engine: the row, what its functions take and give, what is in force."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct, field

from installer.config_text import Edit, Syntax, Tree, Value, Want, flatten
from installer.errors import InstallerError, Option, Remedy
from installer.model.files import File, Kind

Version: TypeAlias = tuple[int, ...]

OUR_BINARIES: Final = frozenset(
    f"nvidia-container-runtime{mode}{real}"
    for mode in ("", ".cdi", ".legacy", ".experimental")  # the last is that of 2021
    for real in ("", ".real")
)
# A VM or a user-space kernel cannot start a container for our runtime, nor can a shim (compatibility.md#d33).
NOT_OCI_PREFIXES: Final = ("kata", "runsc", "krun", "crun-vm", "cc-runtime", "containerd-shim-")
STANDARD_NAMES: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")
NAMELESS: Final = "default"  # what containerd 1.x calls a default that is a table of its own
# In the words of containerd, of CRI-O, and of schema 1: what names the program that a runtime starts.
BINARY_NAMES: Final = frozenset({"binaryname", "runtime", "runtimepath", "path"})


class Runtime(Struct, frozen=True):
    """One runtime as its engine has it."""

    binary: str = ""  # what it starts, "" for the engine's own choice
    # What the engine says of it: the words of a file, of CRI and of HTTP differ in case and underscores.
    table: Tree = field(default_factory=dict)
    monitor: str = ""  # what holds its containers, as a running engine tells

    @property
    def options(self) -> Tree:
        """Its options, by their names in lower case."""
        options = self.table.get("options")
        return {name.lower(): value for name, value in options.items()} if isinstance(options, dict) else {}

    def same(self, other: "Runtime") -> bool:
        """Tell whether an engine that said ``other`` before serves this runtime as it did."""
        # An empty value says nothing, and the program is compared by itself.
        said, before = (
            {key: value for key, value in flatten(table) if value and key[-1] not in BINARY_NAMES}
            for table in (self.table, other.table)
        )
        return self.binary == other.binary and said == before

    def shows(self, wanted: "Runtime") -> bool:
        """Tell whether what was ``wanted`` is there, as far as the engine tells it at all."""
        shown = dict(flatten(self.table))
        names = {key[0] for key in shown}
        return self.binary == wanted.binary and all(
            (shown.get(key) or None) == (value or None)
            for key, value in flatten(wanted.table)
            if key[0] in names and key[-1] not in BINARY_NAMES
        )


class EffectiveConfig(Struct, frozen=True):
    """What an engine has in force, or would have with other texts; None and "" where it does not tell."""

    handlers: Mapping[str, Runtime]
    default: str
    ready: bool = True  # as it says of itself: CRI's RuntimeReady
    cdi: bool | None = None  # whether it serves CDI devices
    cdi_dirs: tuple[PurePosixPath, ...] = ()  # where a running one looks for CDI specifications
    rest_digest: str = ""  # of all else in force, which the engine's program alone tells
    undefined: str = ""  # the default runtime that is not defined: the engine serves nothing
    broken: str = ""  # why it would not start at all, in its own words
    remedy: str = ""  # what its owner does about that, where a load check tells
    ignored: tuple[
        str, ...
    ] = ()  # runtimes of its files that it leaves out, for their programs are not there
    state: PurePosixPath | None = None  # where the bundles of its containers are
    hook_dirs: tuple[PurePosixPath, ...] = ()  # where it looks for OCI hooks
    places: Mapping[str, str] = field(default_factory=dict)  # by flag: its root, its state, where it listens
    schema: int = 0  # of containerd: in which its program prints configs, which tells 1.x from 2.x
    nri: bool | None = None  # whether plugins can connect to it by NRI
    cgroup_driver: str = ""  # of dockerd
    live_restore: bool = True  # of dockerd: its containers outlive its restart

    @property
    def fatal(self) -> str:
        """Why an engine that is started so serves nothing; "" where it serves."""
        return self.broken or (self.undefined and f"its default runtime {self.undefined} is not defined")

    @property
    def binaries(self) -> dict[str, str]:
        """The runtimes by name, "" where the engine chooses the program."""
        return {name: handler.binary for name, handler in self.handlers.items()}


class Answer(Struct, frozen=True):
    """What a running engine says on its socket; its ``name`` over CRI alone, ``pause_image`` CRI-O alone."""

    serving: EffectiveConfig
    version: str
    name: str = ""
    pause_image: str = ""


class Flags(Struct, frozen=True):
    """What the flags of an engine say of runtimes: no file can change that."""

    default: str = ""
    runtimes: Mapping[str, str] = field(default_factory=dict)  # with what they start


def find_disturbances(
    before: EffectiveConfig, after: EffectiveConfig, ours: Collection[str]
) -> Iterator[str]:
    """Yield, in words, what an engine would not have as before, besides the runtimes that are ours."""
    if after.broken:
        yield f"it would not start: {after.broken}"
        return
    if after.undefined:
        yield f"its default runtime {after.undefined} would not be defined"
    for name in sorted((before.handlers.keys() | after.handlers.keys()) - {*ours}):
        was, now = before.handlers.get(name), after.handlers.get(name)
        returns = name == NAMELESS and before.default in {*ours}
        healed = before.undefined and not before.handlers  # it would not have started
        if (was is None and (healed or name == before.undefined)) or returns:
            continue  # the engine is the better for it, or was asked for it
        if now is None or was is None:
            yield f"the runtime {name} would {'be lost' if now is None else 'appear'}"
        elif not now.same(was):
            yield f"the runtime {name} would have other settings"
    if after.default != before.default and not {after.default, before.default} & {*ours}:
        yield f"its default runtime would be {after.default} in the place of {before.default}"
    if before.rest_digest and after.rest_digest and before.rest_digest != after.rest_digest:
        yield "settings besides the runtimes would change"


class RuntimeEntry(Struct, frozen=True):
    """One OCI runtime; ``binary`` is the path the host sees."""

    name: str
    binary: PurePosixPath
    default: bool = False
    table: Tree | None = None  # what its engine says when it serves it; None where the binary alone counts


class ConfigFiles(Struct, frozen=True):
    """The configs of one engine as they would be without us, and what of ``EngineState`` matters for them."""

    config: PurePosixPath
    drop_in: PurePosixPath | None
    trees: Mapping[PurePosixPath, Tree]  # each file that exists, in the order of reading
    version: Version | None = None  # of the running engine
    hook: PurePosixPath | None = None
    before: EffectiveConfig | None = None  # what the files have in force; None before a question
    serving: EffectiveConfig | None = None  # what the running engine says
    texts: Mapping[PurePosixPath, str] = field(default_factory=dict)
    flags: Flags = field(default_factory=Flags)  # of its start, in force besides
    unreadable: frozenset[PurePosixPath] = frozenset()
    dormant: frozenset[PurePosixPath] = frozenset()
    rendered: str = ""  # what the engine has made of its texts at its last start (see ``Generated``)
    engine: str = "containerd"  # its title
    gone: frozenset[PurePosixPath] = frozenset()
    drop_in_directory: PurePosixPath | None = None  # that it reads whole


class Extras(Struct, frozen=True):
    """What else an engine's config may be asked to say."""

    cdi: bool = False  # the engine's own CDI support
    # containerd's: prefixes of the annotations that our runtimes are shown, the type of one that inherits
    # none, and keys of a runtime's table that win over what it inherits.
    annotations: tuple[str, ...] = ()
    runtime_type: str = ""
    override: Mapping[str, Any] = field(default_factory=dict)


class FileWants(Struct, frozen=True):
    """What the keys of one file should hold."""

    path: PurePosixPath
    syntax: Syntax
    wants: tuple[Want, ...]


class Decision(Struct, frozen=True):
    """What one engine's configs should say."""

    files: tuple[FileWants, ...]
    low_level: tuple[str, ...]  # the runtimes that ours may wrap, preferred first
    notes: tuple[str, ...] = ()  # for the owner
    shown: Mapping[str, Tree] = field(default_factory=dict)  # what the engine has to show of ours, by name
    doubt: InstallerError | None = None  # why it would not serve them; its own program may know better
    cdi: bool = False  # it has to serve CDI devices after its reload


def is_ours(binary: Value) -> bool:
    """Tell whether ``binary`` is a runtime of this toolkit, whatever the name it is configured under."""
    # Ours as its own low-level runtime would exec itself for ever (compatibility.md#d1).
    return isinstance(binary, str) and PurePosixPath(binary).name in OUR_BINARIES


def is_oci(name: str, binary: Value) -> bool:
    """Tell whether a runtime can be the low-level runtime of ours: neither a VM nor a sandbox."""
    base = PurePosixPath(binary).name if isinstance(binary, str) else ""
    return not name.startswith(NOT_OCI_PREFIXES) and not base.startswith(NOT_OCI_PREFIXES)


def low_level_words(binaries: Iterable[Value]) -> tuple[str, ...]:
    """Return the paths of others in a config, then words to be looked up, runc and crun too, each once."""
    found = [binary for binary in binaries if isinstance(binary, str) and binary and not is_ours(binary)]
    # A word may be found elsewhere than where the engine finds it, or not at all.
    found.sort(key=lambda binary: not binary.startswith("/"))
    return tuple(dict.fromkeys([*found, "runc", "crun"]))


def refuse_taken_name(path: PurePosixPath, name: str, binary: Value) -> None:
    """Raise where a custom name would replace a runtime that is not NVIDIA's (compatibility.md#d34)."""
    if name not in STANDARD_NAMES and binary and not is_ours(binary):
        problem = f"use {path} (a runtime named {name} is there already and starts {binary})"
        raise InstallerError(problem, remedy=Remedy("choose another name with ", Option("runtime-name")))


class ReloadMethod(StrEnum):
    """How an engine takes up a changed config."""

    HUP = "SIGHUP"
    RESTART = "restart"
    ITSELF = "it watches its configs, and restarts itself"


class Api(StrEnum):
    """What an engine answers on its socket, and is greeted in."""

    DOCKER = "Docker's over HTTP/1.1"
    CRI = "CRI over HTTP/2"


class RuntimeFlags(Struct, frozen=True):
    """The flags and variables that name runtimes to an engine as it starts."""

    # The flag of the default runtime: dockerd does not start with one in its config as well, CRI-O's wins.
    default: str
    runtime: str  # the flag of one runtime: its value is the name, ``between`` and the path
    between: str
    default_variable: str = ""
    runtime_variable: str = ""


class CommandLine(Struct, frozen=True):
    """Flags of an engine's command line, each by its names."""

    config: tuple[str, ...]  # of the root file
    drop_ins: tuple[str, ...] = ()  # of their directory
    # Where it keeps what it knows of its containers, and where it listens: without these it has none.
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    runtimes: RuntimeFlags | None = None
    conflicts: Mapping[str, str] = field(default_factory=dict)  # why, with any runtime in a config


class DropIns(Struct, frozen=True):
    """The files that an engine reads besides its root file."""

    usual: PurePosixPath | None = None  # where ours goes
    directory: PurePosixPath | None = None  # all in it are read
    pattern: str = ""  # of the names that it reads there; "" for all, those below as well
    is_imported: bool = False  # ours, by the root file
    imports: bool = False  # its files name others to be read, with ``imports``

    @property
    def takes_ours(self) -> bool:
        """Whether ours may be one of them."""
        return self.is_imported or self.directory is not None


class Monitor(StrEnum):
    """Who holds a container while it runs, and leaves its bundle on the disk."""

    SHIM = "a shim of containerd's"
    CONMON = "conmon"


class Place(Struct, frozen=True):
    """A place of an engine's: at ``usual``, if no flag and no key of its root file says otherwise."""

    usual: PurePosixPath
    flag: str
    key: str
    below: str = ""  # what they say


class CdiSupport(Struct, frozen=True):
    """How an engine takes CDI devices (engine-facts.md#cdi-in-force)."""

    since: str  # with which release, or setting: for a remedy
    # From a release on, newest first: the latest version of a specification that it reads; None: not known.
    reads: tuple[tuple[Version, Version | None], ...]
    hands_over: Version = ()  # the first release that hands on the devices of a kubelet, not of files alone


class Check(Struct, frozen=True):
    """How the program of an engine is asked what it makes of some texts."""

    paths: tuple[PurePosixPath, ...]
    # Returns the texts to be put, given what names their places.
    texts: Callable[[Callable[[PurePosixPath], str]], Mapping[PurePosixPath, str]]
    words: tuple[str | PurePosixPath, ...]  # a path stands for the place where that text will be put
    last: tuple[str, ...] = ()
    # Texts of a directory that is put as a whole, by their names in it.
    beside: Mapping[PurePosixPath, Mapping[PurePosixPath, str]] = field(default_factory=dict)
    # Flags of the running engine that ``words`` replace: the others stand before ``last``. None: it is asked
    # without any.
    given: tuple[str, ...] | None = None
    says: Callable[[str], EffectiveConfig] | None = None  # what the answer means; None for yes or no
    by_start: bool = False  # the answer depends on how it is started: without that, a no may mean nothing


class HostReader(Protocol):
    """What a load check may look at on the host."""

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return what stands at a path, behind links unless ``last`` is false."""

    def read(self, path: PurePosixPath) -> File | None:
        """Return a regular file, None where there is nothing; raise InstallerError for anything else."""

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the names in a directory, none where there is no directory."""

    def is_program(self, path: PurePosixPath) -> bool:
        """Tell whether a regular file that is executable stands at a path, or a link to such a file."""

    def is_dead(self, path: PurePosixPath) -> bool:
        """Tell whether nobody listens on a unix socket; False where that cannot be seen from here."""


class LoadInput(Struct, frozen=True):
    """Everything that the next start of an engine takes, for a load check."""

    files: ConfigFiles  # as they would be, each parsed
    # What the engine's own program prints of them, merged, with its defaults; "" where it was not asked.
    printed: str
    words: tuple[str, ...]  # of its command line, () where that is not known
    environment: Mapping[str, str]
    host: HostReader


class LoadError(Struct, frozen=True):
    """Why an engine takes a config and then fails while it loads."""

    reason: str  # part of a sentence; names the file
    remedy: str  # the one act of the engine's owner, in the imperative


class EngineSpec(Struct, frozen=True, kw_only=True):
    """One engine: what differs from the others is in this row."""

    name: str
    title: str  # in a sentence

    # Its configs.
    config: PurePosixPath  # the root file
    drop_ins: DropIns = DropIns()
    hook_dir: PurePosixPath | None = None  # of OCI hooks
    default_key: str  # the last part of the key that names the default runtime
    # The ways to have our runtimes served, the plainest first; an error where there is none.
    draft: Callable[[ConfigFiles, tuple[RuntimeEntry, ...], Extras], Iterable[Decision]]
    # What files have in force as far as their texts tell; an error where a value has a type that it refuses.
    estimate: Callable[[ConfigFiles], EffectiveConfig]
    # How its own program is asked.
    make_check: Callable[[ConfigFiles], Check] | None = None
    # Its load check: why it would not load what its program accepts. The running engine counts for nothing
    # here, nor does what its program refuses itself.
    find_load_errors: Callable[[LoadInput], Iterable[LoadError]] | None = None
    # The runtimes that a text names, with their programs: "" is looked for by its name.
    read_runtimes: Callable[[Tree], Mapping[str, str]] | None = None
    # What its start looks for, and its program does not when it is asked: paths, words for its PATH, and
    # whether that is run at once.
    list_programs: Callable[[Tree], Iterable[tuple[Value, bool]]] | None = None
    # Edits with their keys where the engine's own tools have moved them.
    relocate: Callable[[tuple[Edit, ...], Tree], tuple[Edit, ...]] = lambda edits, _: edits

    # Where it writes a config anew each time it starts.
    marks: tuple[str, ...] = ()  # parts of its paths that no other engine's have; () for one that does not
    # The runtime that it looks for by itself: nothing is edited. "" where it makes its config of other texts.
    finds: str = ""
    # Its owner's templates of that config, beside it, the preferred first, with the CRI plugin of each.
    templates: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[PurePosixPath, ...] = ()  # what else it makes that config of
    units: tuple[str, ...] = ()  # it is part of one of them
    start_s: float = 0.0  # for which a start is waited at least
    makes: PurePosixPath | None = None  # that config, beside the root file or a whole path
    needs_root: bool = False  # it does not start without its root file
    # The pattern of what may take the place of the root file: that of another revision of a snap.
    copies: PurePosixPath | None = None
    # Why a release of it does not start with a drop-in, and which; "" where all do.
    refuses: Callable[[Tree], str] = lambda _: ""

    # Its process and its socket.
    process: str
    program: PurePosixPath | None = None  # where that is no usual place
    unit: str
    socket: PurePosixPath
    api: Api
    pidfile: PurePosixPath | None = None  # written at each start, where systemd holds the socket
    cmdline: CommandLine
    uses: str = ""  # the engine that runs its containers for it
    # As patterns, what it starts though no config names it, by default as containerd: io.containerd.gpu.v2 is
    # containerd-shim-gpu-v2, which any client may ask for.
    starts: tuple[str, ...] = ("runc", "containerd-shim", "containerd-shim-*")

    # Its reload.
    reload: ReloadMethod
    # It says afterwards what its files say, and serves what it had (engine-facts.md#crio-reload).
    reload_misreports: bool = False
    # It stops when calls in flight have returned: a container which it ends cannot wait for its restart.
    finishes_calls: bool = False

    # Its containers.
    state: Place  # of their bundles
    monitor: Monitor = Monitor.SHIM
    namespace: str = ""  # of containerd, which has this engine's containers alone; "" for any
    data: Place | None = None  # of their files
    # From which version on one cannot be used once its handler is not configured, None for none: containerd
    # 2.x refuses exec, CRI-O stop and remove (engine-facts.md#removed-handler).
    needs_handler_since: Version | None = None

    # Devices without a runtime of ours.
    cdi: CdiSupport
    nri_name: str = ""  # what it calls itself towards an NRI plugin; "" where it has no NRI

    def needs_handler(self, version: Version | None) -> bool:
        """Tell whether a container cannot be used once its handler is not configured, with this version."""
        since = self.needs_handler_since
        return since is not None and (not version or version >= since)

    def rendered(self, config: PurePosixPath) -> PurePosixPath | None:
        """Return the file that it makes of its configs, given its root file; None where it makes none."""
        return self.makes and config.parent / self.makes

    def is_copy(self, path: PurePosixPath) -> bool:
        """Tell whether a file is none of its configs, and may take the place of its root file."""
        return self.copies is not None and path != self.config and path.match(str(self.copies))
