"""The options of the program: frozen, and valid once built."""

import re
from collections.abc import Mapping
from enum import StrEnum
from math import inf
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from installer.errors import UsageError
from installer.model.engine import Extras
from installer.model.files import ANSWER, DEFAULT_INSTALL_DIR, METRICS, ROOT, RUN_DIR, SOCKET, Layout
from installer.model.nri import Nri

AUTO: Final = "auto"
GPU_KIND: Final = "nvidia.com/gpu"
DEFAULT_SOURCE: Final = PurePosixPath("/artifacts/deb")
RUNTIME_NAME: Final = "nvidia"
# The release is a label's value and the beginning of the names of Leases.
RELEASE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,51}[a-z0-9])?")


class ToolkitConfig(Struct, frozen=True):
    """The options of config.toml, with NVIDIA's defaults."""

    accept_envvar_when_unprivileged: bool = True
    envvar_by_host: bool = True  # nobody asked for it: if the host's own config.toml says no, ours does
    accept_volume_mounts: bool = False
    cli_debug: str = ""
    runtime_debug: str = "/dev/null"
    log_level: str = "info"
    mode: str = "auto"
    cdi_default_kind: str = "nvidia.com/gpu"
    cdi_annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    skip_mode_detection: bool = True
    features: tuple[str, ...] = ()  # a dot in a name makes a nested table


class Listen(Struct, frozen=True):
    """The place of the metrics: a unix socket at a ``path`` of the host, or an address and a port.

    Raises:
        UsageError: the socket's name does not end in .sock: other files may have the name.
    """

    path: PurePosixPath | None = None
    address: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        if self.path and self.path.suffix != SOCKET:
            raise UsageError(f"listen on {self}", remedy="give a socket that is named *.sock")

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"{self.address}:{self.port}"


class Mode(StrEnum):
    """How containers on this node get their GPUs."""

    AUTO = "auto"  # the mode that changes least on the node (``cdi.plan``)
    RUNTIME = "runtime"  # engines serve runtimes of ours
    CDI = "cdi"  # engines take devices of a CDI specification: no runtime of ours, no config, no restart
    NRI = "nri"  # as CDI, and pods without a device plugin ask by annotation

    @property
    def by_cdi(self) -> bool:
        """Whether no engine gets a runtime of ours."""
        return self in {Mode.CDI, Mode.NRI}


class RestartMode(StrEnum):
    """Whether an engine is made to read the config again, by the method of the engine."""

    # SIGHUP for Docker, else a restart (engine-facts.md#containerd-signals, engine-facts.md#crio-reload).
    AUTO = "auto"
    WHEN_IDLE = "when-idle"  # as AUTO, but no restart while containers are created
    NONE = "none"


OPTIONS_SUFFIX: Final = ".options"  # of the file beside a pidfile that has the options of its run


class OnExit(StrEnum):
    """The act of ``run`` when stopped; ``keep`` and ``auto`` serve rolling updates."""

    UNDO = "undo"
    KEEP = "keep"
    AUTO = "auto"  # as keep if a pod of the DaemonSet will run on this node again, else as undo


class Drift(StrEnum):
    """The act of a waiting ``run`` on a drifted node."""

    AUTO = "auto"  # repair the parts for which no engine has to be restarted or reloaded
    REPAIR = "repair"  # repair all parts
    REPORT = "report"  # log only
    IGNORE = "ignore"  # log nothing as long as the engines serve our runtimes


class InUse(StrEnum):
    """The act of an undo while containers run on our runtime."""

    WAIT = "wait"  # wait ten seconds for the containers, then act as ``keep``
    KEEP = "keep"  # our runtime is not the default any more, its handlers and the payload stay
    FORCE = "force"  # leave links to the low-level runtime in the payload's place


class Places(Struct, frozen=True):
    """The paths of an engine on the host; None for the usual path."""

    config: PurePosixPath | None = None
    drop_in: PurePosixPath | None = None
    socket: PurePosixPath | None = None


class Cdi(Struct, frozen=True):
    """A CDI specification for management containers."""

    directory: PurePosixPath  # of the host
    kind: str
    driver_root: str
    local_driver_root: str  # as this process sees it
    dev_root: str
    local_dev_root: str
    nodes: bool  # make control device nodes

    @property
    def path(self) -> PurePosixPath:
        """The path of the specification, named after vendor and class."""
        return self.directory / f"{self.kind.replace('/', '-')}.yaml"


class TurnOptions(Struct, frozen=True):
    """Restarts of engines by turns among the nodes of a release.

    Limits and canary stand in a Lease, which the owner may change at any time. The fields of this class make
    a Lease that is missing.

    Attributes:
        release: The name of the release; "" for restarts without turns.
        at_most: The nodes that restart an engine at the same time; 0: a missing Lease is not made.
        stop_after: The failed nodes after which no node takes a turn.
        canary: The label selector of the nodes that go first.
        soak_s: The seconds after the proof in which an engine has to go on serving.

    Raises:
        UsageError: a value is not usable, or the release is missing.
    """

    release: str = ""
    at_most: int = 0
    stop_after: int = 0
    canary: str = ""
    soak_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.release:
            if self.at_most or self.stop_after or self.canary:
                problem = "restart engines by turns without a release"
                raise UsageError(problem, remedy="name it with --release")
            return
        if not RELEASE.fullmatch(self.release):
            remedy = "give small letters, digits and dashes, at most 53"
            raise UsageError(f"use {self.release!r} as --release", remedy=remedy)
        if not 0 <= self.soak_s < inf:
            raise UsageError(f"wait {self.soak_s:g} seconds", remedy="give --soak a number from 0")


class Options(Struct, frozen=True):
    """The options of a run. Paths are the host's, except ``toolkit_source`` and ``mounts[*][1]``.

    Raises:
        UsageError: a value is not usable, or the combination makes no sense.
    """

    engines: tuple[str, ...] = (AUTO,)  # () for the payload alone
    mode: Mode = Mode.RUNTIME
    toolkit_source: PurePosixPath = DEFAULT_SOURCE
    install_dir: PurePosixPath = DEFAULT_INSTALL_DIR
    host_root: PurePosixPath = ROOT
    mounts: tuple[tuple[PurePosixPath, PurePosixPath], ...] = ()
    driver_root: str = AUTO
    toolkit: ToolkitConfig = field(default_factory=ToolkitConfig)
    low_level: tuple[str, ...] = ()  # the runtimes that ours wrap; () to find them
    extras: Extras = field(default_factory=Extras)  # further settings of an engine's config
    cdi: Cdi | None = None
    runtime_name: str = RUNTIME_NAME
    set_as_default: bool = False
    places: Mapping[str, Places] = field(default_factory=dict)
    crio_hook: PurePosixPath | None = None
    restart_mode: RestartMode = RestartMode.AUTO
    pid_file: PurePosixPath = RUN_DIR / "toolkit.pid"
    timeout_s: float = 20.0  # of the wait for an engine to serve its config
    on_exit: OnExit = OnExit.UNDO
    daemonset: str = ""  # the DaemonSet of this pod; "": the owner of the pod
    node_name: str = ""  # the node of this pod; "": as the pod's token or the pod says
    in_use: InUse = InUse.WAIT
    drift: Drift = Drift.AUTO
    accept_pending: bool = False  # a restart may bring into force the changed values of others
    retry: bool = False  # a plan that failed before is tried once more, unchanged
    adopt: bool = False  # an undo removes the changes of NVIDIA's own installer, too
    thorough: bool = True  # an undo waits for containers, and searches the node for other references
    metrics_textfile: PurePosixPath | None = None  # for node_exporter
    nfd_features: PurePosixPath | None = None  # for Node Feature Discovery
    metrics_listen: Listen | None = None  # the place where a waiting ``run`` serves metrics
    nri: Nri = field(default_factory=Nri)
    turns: TurnOptions = field(default_factory=TurnOptions)

    def __post_init__(self) -> None:
        for path in (self.install_dir, self.host_root, self.pid_file):
            if not path.is_absolute() or ".." in path.parts:
                raise UsageError(f"use the path {path}", remedy="give an absolute path without ..")

        # An empty root is NVIDIA's word for the host itself.
        driver_root = "" if self.driver_root == AUTO else self.driver_root
        for root in (driver_root, str(self.toolkit_source)):
            if root and not PurePosixPath(root).is_absolute():
                raise UsageError(f"use the path {root}", remedy="give an absolute path")

        for text in (str(self.install_dir), self.driver_root, self.runtime_name, *self.low_level):
            if not text.isprintable() or text != text.encode(errors="replace").decode():
                raise UsageError(f"write {text!r} into a config", remedy="use plain text without controls")

        self._refuse_published()
        if self.install_dir == ROOT:
            raise UsageError("install into /", remedy=f"choose a directory such as {DEFAULT_INSTALL_DIR}")
        is_word = self.runtime_name and not any(letter.isspace() for letter in self.runtime_name)
        if self.runtime_name in {"runc", "crun"} or not is_word:
            remedy = "choose a word that no other runtime has for its name, such as nvidia"
            raise UsageError(f"name our runtime {self.runtime_name!r}", remedy=remedy)
        if AUTO in self.engines and len(self.engines) > 1:
            raise UsageError("mix --runtime auto with others", remedy="name the engines, or auto alone")
        if self.serves_nri:
            self.nri.refuse_idle()
        if not 0 < self.timeout_s < inf:
            raise UsageError(f"wait {self.timeout_s:g} seconds", remedy="give --timeout a number above 0")
        self._refuse_turns()

    def _refuse_turns(self) -> None:
        """Refuse turns with an undo at each stop: undos need no turn, but the installs after them would."""
        if not self.turns.release or self.on_exit is not OnExit.UNDO:
            return
        others = " or ".join(policy for policy in OnExit if policy is not OnExit.UNDO)
        problem = "restart engines by turns with --on-exit undo (an update would undo each node at once)"
        raise UsageError(problem, remedy=f"use --on-exit {others}, or leave --release out")

    def _refuse_published(self) -> None:
        """Refuse published files at unusable paths."""
        for path in self.published:
            if not path.is_absolute() or ".." in path.parts:
                raise UsageError(f"write {path}", remedy="give an absolute path without ..")
        if self.metrics_textfile and self.metrics_textfile.suffix != METRICS:
            remedy = "give a file whose name ends in .prom: node_exporter reads no other"
            raise UsageError(f"write metrics to {self.metrics_textfile}", remedy=remedy)
        labels = self.nfd_features
        if labels and (labels.suffix in {METRICS, ANSWER, SOCKET} or labels.name[:1] == "."):
            remedy = "give a file of NFD's directory features.d, without a leading dot and not *.prom"
            raise UsageError(f"write labels to {labels}", remedy=remedy)

    @property
    def serves_nri(self) -> bool:
        """Whether ``run`` starts the NRI plugin beside itself."""
        return self.nri.beside or self.mode is Mode.NRI

    @property
    def in_place(self) -> bool:
        """Whether the toolkit is the host's own, used at the paths of the host's package manager."""
        return self.toolkit_source == self.host_root

    @property
    def layout(self) -> Layout:
        """The paths below the install-dir."""
        return Layout(self.install_dir)

    @property
    def auto(self) -> bool:
        """Whether the running engines must be detected."""
        return AUTO in self.engines

    @property
    def needs_runtime(self) -> list[str]:
        """The given flags that need a runtime: without the runtime containers fail or start without a GPU."""
        flags = {
            "--set-as-default": self.set_as_default,
            "--runtime-name": self.runtime_name != RUNTIME_NAME,
            "--crio-hook": self.crio_hook is not None,
            "--accept-nvidia-visible-devices-as-volume-mounts": self.toolkit.accept_volume_mounts,
        }
        return [flag for flag, is_given in flags.items() if is_given]

    @property
    def at_once(self) -> "Options":
        """The same options without a restart that waits for an idle engine."""
        if self.restart_mode is RestartMode.NONE:
            return self
        return replace(self, restart_mode=RestartMode.AUTO)

    @property
    def for_engines(self) -> "Options":
        """The same options with defaults for all options without an effect on an engine's answer."""
        return replace(
            self.at_once,
            accept_pending=False,
            daemonset="",
            node_name="",
            retry=False,
            drift=Drift.AUTO,
            metrics_textfile=None,
            nfd_features=None,
            metrics_listen=None,
            turns=TurnOptions(),
        )

    @property
    def published(self) -> tuple[PurePosixPath, ...]:
        """The published files: metrics, labels, and the socket of metrics with the answer served there."""
        paths = [self.metrics_textfile, self.nfd_features]
        if self.metrics_listen:
            paths += [self.layout.answer, self.metrics_listen.path]
        return tuple(path for path in paths if path is not None)

    @property
    def ready_file(self) -> PurePosixPath:
        """A file beside the pidfile, present while the engines are proven to serve our runtimes."""
        return self.pid_file.with_name("ready")

    @property
    def options_file(self) -> PurePosixPath:
        """A file beside the pidfile with the options of ``run``, for child processes."""
        return self.pid_file.with_name(f"{self.pid_file.name}{OPTIONS_SUFFIX}")

    @property
    def state_file(self) -> PurePosixPath:
        """A file beside the pidfile with the last check of the node by ``run``, for ``status``."""
        return self.pid_file.with_name(f"{self.pid_file.name}.state")


class RunRequest(Struct, frozen=True):
    """The options of ``run`` and the log format: read once, and passed to the children."""

    options: Options
    nvidia: bool
    log_format: str
