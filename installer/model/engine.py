"""An engine: what it is, the types of its methods, and an engine as observed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import Edit, Key, Syntax, Tree, Value, WantedKey
from installer.errors import InstallerError, Option, Remedy
from installer.model.effective import EffectiveConfig, Flags, RuntimeEntry
from installer.model.files import PATH, File, Kind

Version: TypeAlias = tuple[int, ...]
SHORT_ID: Final = 12  # the characters of a container's id in a message


class Configs(Struct, frozen=True):
    """The texts of an engine's configs and their trees, in the order of reading; no missing file."""

    texts: Mapping[PurePosixPath, str]
    trees: Mapping[PurePosixPath, Tree]


class Extras(Struct, frozen=True):
    """Further settings for an engine's config."""

    cdi: bool = False  # the engine's own CDI support
    # containerd's: prefixes of the annotations passed to our runtimes, the type of a runtime without an
    # inherited type, and keys of a runtime's table that win over inherited keys.
    annotations: tuple[str, ...] = ()
    runtime_type: str = ""
    override: Mapping[str, Any] = field(default_factory=dict)


class ProposedFile(Struct, frozen=True):
    """The wanted keys of a file; all else in the file stays."""

    path: PurePosixPath
    syntax: Syntax
    keys: tuple[WantedKey, ...]


class Proposal(Struct, frozen=True):
    """The wanted keys of each file for an engine to serve our runtimes."""

    files: tuple[ProposedFile, ...]
    low_level: tuple[str, ...]  # the programs of the runtimes that ours may wrap, preferred first
    notes: tuple[str, ...] = ()  # for the owner of the engine
    # The settings that the engine must show of our runtimes after its reload, by the runtime's name.
    shown: Mapping[str, Tree] = field(default_factory=dict)
    # The reason, by the texts alone, for which the engine would not serve our runtimes; its program may find
    # none.
    doubt: InstallerError | None = None
    cdi: bool = False  # the engine must serve CDI devices after its reload


class RuntimeFlags(Struct, frozen=True):
    """The flags and variables of an engine's start for runtimes."""

    # The flag of the default runtime. dockerd refuses to start with both the flag and a default in its
    # config; with CRI-O the flag wins.
    default: str
    runtime: str  # the flag of a single runtime: its value is the name, ``between`` and the path
    between: str
    default_variable: str = ""
    runtime_variable: str = ""


class CommandLine(Struct, frozen=True):
    """Flags of an engine's command line, each by its names."""

    config: tuple[str, ...]  # of the root file
    drop_ins: tuple[str, ...] = ()  # of the drop-ins' directory
    # The root, the state and the socket; an engine without such flags has none.
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  # that set such a place where no flag does
    runtimes: RuntimeFlags | None = None
    addresses: tuple[str, ...] = ()  # of the addresses on which the engine listens
    conflicts: Mapping[str, str] = field(default_factory=dict)  # flag: reason against runtimes in a config


class DropIns(Struct, frozen=True):
    """The files read by an engine besides the root file."""

    usual: PurePosixPath | None = None  # the usual path of our drop-in
    directory: PurePosixPath | None = None  # the engine reads all files here
    pattern: str = ""  # of the names that the engine reads there; "" for all, also in sub-directories
    is_imported: bool = False  # the root file must import our drop-in
    imports: bool = False  # files may name further files with ``imports``

    @property
    def takes_ours(self) -> bool:
        """Whether the engine can read a drop-in of ours."""
        return self.is_imported or self.directory is not None


class Place(Struct, frozen=True):
    """A directory of an engine: ``usual`` unless a flag or a key of the root file names another."""

    usual: PurePosixPath
    flag: str
    key: str
    below: str = ""  # the path of the place below the directory of flag and key


class CdiSupport(Struct, frozen=True):
    """The support of CDI devices in an engine (engine-facts.md#cdi-in-force)."""

    since: str  # the first release, or the setting: for a remedy
    # By first release, newest first: the highest version of a specification that is read; None if unknown.
    reads: tuple[tuple[Version, Version | None], ...]
    hands_over: Version = ()  # the first release that takes devices from a kubelet, not only from files


class DryRunCommand(Struct, frozen=True):
    """The command by which an engine's own program tells the effect of texts.

    The flags of the running engine stand between ``arguments`` and ``last_arguments``.
    """

    memory_files: tuple[PurePosixPath, ...]  # the paths of the texts for memory files
    # Returns the content of these files, given a function that names the memory file of a path.
    render: Callable[[Callable[[PurePosixPath], str]], Mapping[PurePosixPath, str]]
    arguments: tuple[str | PurePosixPath, ...]  # a path stands for its memory file or its directory
    last_arguments: tuple[str, ...] = ()
    # Directories that are written as a whole, with their texts by the names below the directory.
    directories: Mapping[PurePosixPath, Mapping[PurePosixPath, str]] = field(default_factory=dict)
    # The flags of the running engine that ``arguments`` replace; None: the program gets no flags of it.
    replaced_flags: tuple[str, ...] | None = None
    read_output: Callable[[str], EffectiveConfig] | None = None  # None: only the exit status counts
    depends_on_flags: bool = False  # of the start: without these flags a refusal is uncertain


class Route(Struct, frozen=True):
    """The texts through which an engine comes to have the last text in force.

    The engine is reloaded after the first text. A second text needs no reload: all settings are in force.
    """

    texts: tuple[File | None, ...]
    passing: tuple[Edit, ...] = ()  # the edits that make the last text the intermediate text


class Template(Struct, frozen=True):
    """A template of an engine's owner, from which the engine generates the config."""

    plugin: str  # the id of the CRI plugin in the template
    since: Version = ()  # the first version of containerd with which the engine looks for the template


class TemplateFlaw(Struct, frozen=True):
    """The reason why an engine does not serve our runtime after the next start, and a remedy."""

    reason: str
    remedy: str


class HostReader(Protocol):
    """The reading of the host for a load check."""

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        """Return the kind of file at a path, behind links unless ``last`` is false."""

    def read(self, path: PurePosixPath) -> File | None:
        """Return a regular file, None for a missing file; raise InstallerError for anything else."""

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        """Return the names in a directory, none for a missing directory."""

    def is_program(self, path: PurePosixPath) -> bool:
        """Tell whether an executable regular file is at a path, or a link to an executable file."""

    def is_dead(self, path: PurePosixPath) -> bool:
        """Tell whether no process listens on a unix socket; False if the socket cannot be seen from here."""


class LoadInput(Struct, frozen=True):
    """The input of an engine's next start, for a load check."""

    state: "EngineState"
    trees: Mapping[PurePosixPath, Tree]  # of the configs, in the order of reading
    # The files merged with the defaults, printed by the engine's program; "" if the program was not asked.
    printed: str
    words: tuple[str, ...]  # of the engine's command line, () if unknown
    environment: Mapping[str, str]
    host: HostReader


class LoadError(Struct, frozen=True):
    """The failure of an engine that accepts a config and then fails to load the config."""

    reason: str  # part of a sentence; names the file
    remedy: str  # the one act of the engine's owner, in the imperative


class Engine(ABC):
    """A kind of engine, such as Docker or containerd: its places and methods.

    Derived classes stand in ``engines``, one file each. They have no state: an engine as observed on the
    node is an ``EngineState``, which names its kind. All methods are pure.
    """

    __slots__ = ()

    name: str
    title: str  # in a sentence

    # Its configs.
    config: PurePosixPath  # the root file
    drop_ins: DropIns = DropIns()
    hook_dir: PurePosixPath | None = None  # of OCI hooks
    default_key: str  # the last part of the key that names the default runtime
    cdi_key: Key = ()  # the key that makes the engine serve CDI devices; () for an engine without such a key

    # For an engine that generates a config at each start.
    config_markers: tuple[str, ...] = ()  # parts of paths that only this engine has; () for an engine without
    # The runtime that the engine finds by itself: nothing is edited. "" if texts make the generated config.
    built_in_runtime: str = ""
    # The owner's templates of the generated config by their names beside it, the preferred first.
    templates: Mapping[str, Template] = MappingProxyType({})
    inputs: tuple[PurePosixPath, ...] = ()  # further inputs of the generated config
    units: tuple[str, ...] = ()  # the engine is part of one of these units
    start_s: float = 0.0  # the least time to wait for a start
    generated_config: PurePosixPath | None = None  # beside the root file, or an absolute path
    needs_root_file: bool = False  # the engine does not start without its root file
    # The pattern of files that may replace the root file: the root file of another revision of a snap.
    copies: PurePosixPath | None = None

    # Its process and its socket.
    process: str
    program: PurePosixPath | None = None  # in an unusual place
    unit: str
    socket: PurePosixPath
    api: str  # the protocol of the socket, by its name in engines/apis.py
    # A socket unit of systemd may hold the socket: then a client's connection starts a stopped engine.
    has_socket_unit: bool = False
    pidfile: PurePosixPath | None = None  # written at each start; for an engine whose socket systemd holds
    cmdline: CommandLine
    lower_engine: str = ""  # the engine that runs this engine's containers
    lower_socket: Place | None = None  # the socket of that engine
    # Patterns of programs that the engine starts though no config names them. The default is containerd's:
    # io.containerd.gpu.v2 is containerd-shim-gpu-v2, which any client may ask for.
    started_programs: tuple[str, ...] = ("runc", "containerd-shim", "containerd-shim-*")
    gpus_hook: str = ""  # the program that ``--gpus`` of the engine's client needs in the engine's PATH
    has_dry_run: bool = True  # its program tells, without a start, the effect of texts
    looks_up_programs: bool = False  # at its start, but not in a dry run: see ``list_programs``

    # Its reload: how the engine gets to read a changed config. Without the first two its unit is restarted.
    # At SIGHUP the engine reads its config, goes on, and keeps the settings that its config leaves out.
    reads_config_on_signal: bool = False
    restarts_itself: bool = False  # when one of its configs is written
    reload_verb: str = "restart"
    reload_event: str = "engine restarted"
    # After a reload the engine answers with its files, but still serves the old config
    # (engine-facts.md#crio-reload).
    reload_misreports: bool = False
    # The engine stops after the calls in flight: a container being stopped cannot wait for the restart.
    finishes_calls: bool = False

    # Its containers.
    state: Place  # of the bundles
    # The containers are held by shims of containerd, which leave records in ``state``; otherwise by conmon.
    has_shims: bool = True
    # The program that holds a container, looked up by its name (engine-facts.md#below-an-engine).
    monitor_program: str = "containerd-shim-runc-v2"
    # The settings of a runtime that name its monitor by a path, in small letters without underscores.
    monitor_keys: tuple[str, ...] = ("runtimepath", "runtimetype")
    # A container stays after its end, and may be started again with the runtime of its creation.
    keeps_containers: bool = False
    # The setting with which the containers outlive a stop of the engine; "" if they always do.
    live_restore_key: str = ""
    namespace: str = ""  # of containerd, for this engine's containers only; "" for any
    data: Place | None = None  # of the containers' files
    # The first version in which a container cannot be used without its handler in the config, None for none:
    # containerd 2.x refuses exec, CRI-O stop and remove (engine-facts.md#removed-handler).
    needs_handler_since: Version | None = None

    # After a restart the engine finds its containers by their handlers: see ``find_runtime_root``.
    finds_by_handler: bool = False

    # Devices without a runtime of ours.
    cdi: CdiSupport
    nri_name: str = ""  # the engine's name towards an NRI plugin; "" for an engine without NRI

    @abstractmethod
    def propose(
        self,
        state: "EngineState",
        configs: Configs,
        entries: tuple[RuntimeEntry, ...],
        extras: Extras,
        before: EffectiveConfig | None = None,
    ) -> Iterable[Proposal]:
        """Propose configs for the service of our runtimes, the plainest first.

        Args:
            state: the engine as observed.
            configs: the configs as they would be without us.
            entries: our runtimes.
            extras: further settings.
            before: the settings in force without us, by the engine's own program; None if not asked yet.

        Raises:
            InstallerError: no candidate exists.
        """

    @abstractmethod
    def predict(self, state: "EngineState", configs: Configs) -> EffectiveConfig:
        """Predict the config in force after the next start, by the texts alone.

        Raises:
            InstallerError: a value has a type refused by the engine.
        """

    @abstractmethod
    def describe_dry_run(self, state: "EngineState", texts: Mapping[PurePosixPath, str]) -> DryRunCommand:
        """Return the dry run of texts by the engine's own program, for an engine with ``has_dry_run``."""

    def find_load_errors(self, _load: LoadInput) -> Iterable[LoadError]:
        """Find the errors by which the engine would not load a config accepted by its program.

        The running engine does not count here, nor does a config refused by the program itself.
        """
        return ()

    @abstractmethod
    def read_status(self, status: Mapping[str, Any]) -> EffectiveConfig:
        """Read the config in force from the running engine's own answer.

        Args:
            status: the answer, as ``engines.cri`` and ``engines.docker.api`` decode it.

        Raises:
            AttributeError, KeyError, TypeError, InstallerError: the answer is of another engine.
        """

    def explain_missing_cri(self, socket: str, _plugins: Mapping[str, str]) -> InstallerError:
        """Explain why a running engine does not serve CRI.

        Args:
            socket: the engine's socket.
            _plugins: the error of each of the engine's plugins by the plugin's id, "" for no error.
        """
        remedy = "check that it is the engine's socket"
        return InstallerError(f"find CRI on {socket}", remedy=remedy, code="engine-unknown")

    def find_route(
        self,
        _state: "EngineState",
        _path: PurePosixPath,
        _in_force: EffectiveConfig | None,
        target: File | None,
    ) -> Route:
        """Find the texts through which the engine comes to have the text ``target`` in force.

        Args:
            _state: the running engine.
            _path: the config with the text ``target``.
            _in_force: the config in force; None if unknown.
            target: the text, None for no file.

        Raises:
            InstallerError: the engine takes up no text on the way.
        """
        return Route((target,))

    def find_differences(
        self, serving: EffectiveConfig, wanted: EffectiveConfig
    ) -> Iterator[tuple[str, bool]]:
        """Yield the served runtimes defined otherwise by ``wanted``, true for an undefined runtime."""
        for name, served in sorted(serving.handlers.items()):
            defined = wanted.handlers.get(name)
            if defined is None:
                yield name, True
                continue
            # The engine fills in empty settings: containerd 1.7 reports a sandboxMode that its dump leaves
            # empty.
            filled = {key: value for key, value in defined.table.items() if value or value is False}
            if not served.shows(replace(defined, table=filled)):
                yield name, False

    def is_default_key(self, key: Key) -> bool:
        """Tell whether a key of a config names the default runtime, or is in a table for the default."""
        return self.default_key in key[-2:]

    def list_imports(self, _config: PurePosixPath, _tree: Tree) -> list[PurePosixPath]:
        """List the patterns of the files imported by a config, as absolute paths."""
        return []

    def find_own_import(self, _drop_in: PurePosixPath) -> PurePosixPath | None:
        """Return the pattern by which the root file imports our drop-in; None if no import is needed."""
        return None

    def find_template_flaw(self, _path: PurePosixPath, _text: str) -> TemplateFlaw | None:
        """Return the flaw of the owner's template for our runtime; None if the template has none."""
        return None

    def read_runtimes(self, _tree: Tree) -> Mapping[str, str]:
        """Return the runtimes of a text that the engine may look up by name, with their programs or ""."""
        return {}

    def list_programs(self, _tree: Tree) -> Iterable[tuple[Value, bool]]:
        """List the programs that the engine looks up at its start but not in a dry run.

        Each program is a path, or a name in the PATH; the second field tells whether the engine runs the
        program at once.
        """
        return ()

    def find_runtime_root(self, _config: EffectiveConfig, _handler: str, _version: Version | None) -> str:
        """Return the directory of the containers on the runtime of a handler, "" for the default."""
        return ""

    def relocate_edits(self, edits: tuple[Edit, ...], _tree: Tree) -> tuple[Edit, ...]:
        """Move the keys of edits to their present place, after a move by the engine's own tools."""
        return edits

    def explain_refused_drop_in(self, _drop_in: Tree) -> str:
        """Return why some releases of the engine do not start with a drop-in; "" if all start."""
        return ""

    @property
    def is_restarted(self) -> bool:
        """Whether we restart the engine's unit to have a changed config read."""
        return not (self.reads_config_on_signal or self.restarts_itself)

    def describe_reload(self) -> str:
        """Return the reload as a step of a plan, in the imperative."""
        return f"{self.reload_verb} {self.title}"

    def describe_gpu_test(self, _runtime: str) -> str:
        """Return a user's command that shows the GPUs in a container; "" for an engine without a client."""
        return ""

    def needs_handler(self, version: Version | None) -> bool:
        """Tell whether this version cannot use a container after the handler is removed from the config."""
        since = self.needs_handler_since
        return since is not None and (not version or version >= since)

    def find_generated_config(self, config: PurePosixPath) -> PurePosixPath | None:
        """Return the config generated by the engine, given the root file; None for no generated config."""
        if self.generated_config is None:
            return None
        return config.parent / self.generated_config

    def is_copy(self, path: PurePosixPath) -> bool:
        """Tell whether a file is no config of the engine, but may replace the root file."""
        return self.copies is not None and path != self.config and path.match(str(self.copies))

    def __repr__(self) -> str:
        """Return the name: a repr without an address is part of digests."""
        return self.name


class Started(Struct, frozen=True):
    """The past or the next start of an engine."""

    words: tuple[str, ...] = ()  # behind ``program``
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    began_s: float | None = None  # in seconds of the wall clock; None if unknown
    # The environment of the process may not be read, as in our pod: ``environment`` is that of the unit now.
    guessed: bool = False

    def runs(self, process: str) -> bool:
        """Tell whether ``program`` is the process itself, not a wrapper with the process as a word."""
        return PurePosixPath(self.program).name == process

    def mentions(self, word: str) -> bool:
        """Tell whether a flag or the name of a variable contains ``word``: they may overrule a config."""
        return any(word in each.lower() for each in (*self.words, *self.environment))

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """The directories for the look-up of a program's name; without a unit's PATH systemd sets a PATH."""
        directories = self.environment.get("PATH", "").split(":")
        absolute = tuple(PurePosixPath(each) for each in directories if each.startswith("/"))
        return absolute or PATH


class SeenStart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The configs read by an engine at an observed start, and settings that the engine itself does not tell.

    While the engine runs, the present configs are compared with this record, and no clock counts.
    """

    invocation: str  # of the engine's unit; "" until the start is done
    texts: Mapping[str, str]  # the digest of each config, by its path
    inputs: str = ""  # as in ``EngineState``
    storage_driver: str = ""
    nri: bool | None = None


class LiveContainer(Struct, frozen=True):
    """A running container, and the handler by which the engine finds runtime and root after a restart."""

    name: str  # for people
    handler: str  # "" for the default of the moment
    runtime_root: str
    program: str  # the runtime with which its monitor was started


class RestartedUnit(Struct, frozen=True):
    """An active unit that systemd restarts along with an engine's unit."""

    name: str
    setting: str  # the setting of the unit by which systemd does that, for example BindsTo=containerd.service
    # The setting in force by which the containers of the unit outlive the restart; "" if unknown, or for a
    # unit of no engine.
    live_restore_key: str = ""


class EngineState(Struct, frozen=True):
    """An engine as observed: the places, by the paths of the host, and the running engine's answers."""

    kind: Engine  # Docker, containerd, CRI-O ...
    config: PurePosixPath
    drop_in: PurePosixPath | None
    hook: PurePosixPath | None
    files: tuple[PurePosixPath, ...]  # the configs of the engine, in the order of reading
    socket: PurePosixPath
    unit: str
    version: tuple[int, ...] | None = None
    serving: EffectiveConfig | None = None  # None if the engine does not answer
    silence_reason: str = ""  # the reason for which the engine does not answer
    remedy: str = ""  # the act that lets us connect, if nothing else is missing
    stopped: bool = False  # the socket does not answer
    failed: bool = False  # CRI did not load, and will not
    disabled: bool = False  # the engine runs without CRI on purpose
    other_engine_reason: str = ""  # the reason why another engine answers this engine's API
    crashing: bool = False  # the engine is down now: its unit is started again and again
    pid: int | None = None  # the process, if it is in a pid namespace that we see
    exe: PurePosixPath | None = None
    build: str = ""  # differs between two builds of ``exe``
    start: str = ""  # differs between two commands or environments of the unit
    inputs: str = ""  # differs between two sets of the files of which the engine generates its config
    edited_inputs: tuple[PurePosixPath, ...] = ()  # inputs that were changed after the engine's start
    state: PurePosixPath | None = None  # the directory of the containers' state, if not the usual directory
    # A config changed since the start, and no install has proven it: the engine may serve less than it says.
    outdated: bool = False
    hooks: tuple[PurePosixPath, ...] = ()  # the engine's OCI hooks, for --adopt only
    started: Started | None = None  # the start of the process, None if unknown
    invocation: str = ""  # of the unit: systemd gives each start another one; "" if unknown
    seen_start: SeenStart | None = None  # of this start, None if we have not seen it
    unit_began_s: float | None = None  # the start of the unit, for a process that is not seen
    flags: Flags = field(default_factory=Flags)
    next_flags: Flags = field(default_factory=Flags)  # given by the unit at the next start
    next_start: Started | None = None  # the next start by the unit, None if unknown
    unreadable: frozenset[PurePosixPath] = (
        frozenset()
    )  # imports that are no regular files: no start with them
    missing_programs: frozenset[PurePosixPath] = frozenset()  # named by the engine or its configs
    drop_in_directory: PurePosixPath | None = None  # the engine's directory of drop-ins
    dormant: frozenset[PurePosixPath] = frozenset()  # files that an import of ours would make the engine read
    rendered: File | None = (
        None  # the config generated by the engine at its start; None without a generated config
    )
    not_restarted: InstallerError | None = None  # the reason for which we must not restart the engine
    restarted_units: tuple[RestartedUnit, ...] = ()  # the units that a restart of the engine restarts along
    changed: tuple[PurePosixPath, ...] = ()  # configs that were changed after the start
    fresh: tuple[PurePosixPath, ...] = ()  # configs and inputs that were changed after the start, seconds ago
    replaced: bool = False  # the program was replaced after the start
    # The paths at which the unit mounts other files or directories of the host, each with the host's path.
    unit_mounts: tuple[tuple[PurePosixPath, PurePosixPath], ...] = ()
    unit_unread: bool = False  # files of the unit were changed since systemd has read them
    unit_edited: bool = False  # files of the unit were changed after a start whose environment is a guess
    places_by_files: frozenset[str] = frozenset()  # places that only the configs set for the next start
    paths: tuple[tuple[PurePosixPath, ...], ...] = ()  # the PATHs of this start and of the next
    creating: tuple[str, ...] = ()  # containers in state CREATED, for --restart-mode when-idle
    # Of an engine that finds its containers by their handlers: one for each handler, root and program.
    live: tuple[LiveContainer, ...] = ()

    @classmethod
    def usual(cls, kind: Engine) -> Self:
        """Make an engine at the usual places, before any observation."""
        return cls(
            kind=kind,
            config=kind.config,
            drop_in=kind.drop_ins.usual,
            hook=None,
            files=(),
            socket=kind.socket,
            unit=kind.unit,
        )

    @property
    def name(self) -> str:
        """The engine's name in flags, in the ledger and in events."""
        return self.kind.name

    @property
    def title(self) -> str:
        """The engine's name in a sentence."""
        return self.kind.title

    @property
    def flags_for_texts(self) -> Flags:
        """The flags of the start at which the engine reads changed texts."""
        if self.kind.is_restarted and self.next_start:
            return self.next_flags
        return self.flags

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments of the running process, () if unknown."""
        return self.started.words if self.started else ()

    @property
    def began_s(self) -> float | None:
        """The start of the process in seconds of the wall clock; None if unknown."""
        if self.started is not None and self.started.began_s is not None:
            return self.started.began_s
        return self.unit_began_s

    @property
    def program(self) -> PurePosixPath | None:
        """The program of the process; for an unreadable process, by the first word of the command line."""
        if self.exe is None and self.started is not None and self.started.program.startswith("/"):
            return PurePosixPath(self.started.program)
        return self.exe

    @property
    def next_words(self) -> tuple[str, ...]:
        """The arguments of the next start by the unit, () if unknown."""
        return self.next_start.words if self.next_start else ()

    @property
    def served(self) -> EffectiveConfig:
        """The config in force by the engine's answer, an empty config if the engine does not answer."""
        return self.serving or EffectiveConfig({}, "")


class OtherEngine(Struct, frozen=True):
    """An engine that serves CRI on a socket that is neither the usual one nor one of the options."""

    kind: Engine
    owner: str  # the unit, or the pid
    socket: PurePosixPath

    @property
    def problem(self) -> str:
        """The finding, as a sentence."""
        title = self.kind.title
        return f"another {title}, of {self.owner}, serves CRI on {self.socket}, and is not configured"

    @property
    def remedy(self) -> Remedy:
        """The flags that name the engine."""
        name = self.kind.name
        socket = Option("socket", str(self.socket), name)
        return Remedy("name it with ", Option("runtime", name), " ", socket)
