"""What the program was asked for: frozen, and valid once built."""

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from installer.errors import UsageError
from installer.model.engine_spec import Extras
from installer.model.files import ANSWER, DEFAULT_INSTALL_DIR, METRICS, ROOT, RUN_DIR, SOCKET, Layout
from installer.model.nri import Nri

AUTO: Final = "auto"
GPU_KIND: Final = "nvidia.com/gpu"
DEFAULT_SOURCE: Final = PurePosixPath("/artifacts/deb")
RUNTIME_NAME: Final = "nvidia"


class ToolkitConfig(Struct, frozen=True):
    """What can be asked of config.toml, with NVIDIA's defaults."""

    accept_envvar_when_unprivileged: bool = True
    accept_volume_mounts: bool = False
    cli_debug: str = ""
    runtime_debug: str = "/dev/null"
    log_level: str = "info"
    mode: str = "auto"
    cdi_default_kind: str = "nvidia.com/gpu"
    cdi_annotation_prefixes: tuple[str, ...] = ("cdi.k8s.io/",)
    skip_mode_detection: bool = True
    features: tuple[str, ...] = ()  # a dot in one makes a nested table


class Listen(Struct, frozen=True):
    """Where metrics are asked for: a unix socket at a ``path`` of the host, or an address and a port.

    UsageError where the socket has a name that others may have for something else.
    """

    path: PurePosixPath | None = None
    address: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        if self.path and self.path.suffix != SOCKET:
            raise UsageError(f"listen on {self}", remedy="give a socket that is named *.sock")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.address}:{self.port}"


class Mode(StrEnum):
    """How containers on this node get their GPUs."""

    AUTO = "auto"  # what costs the node least (``cdi.plan``)
    RUNTIME = "runtime"  # engines serve runtimes of ours
    CDI = "cdi"  # engines take devices of a CDI specification: no runtime of ours, no config, no restart
    NRI = "nri"  # the same, and pods that no device plugin serves ask by annotation

    @property
    def by_cdi(self) -> bool:
        """Whether no engine gets a runtime of ours."""
        return self in {Mode.CDI, Mode.NRI}


class RestartMode(StrEnum):
    """Whether an engine is brought to read its config again, each in the one way that works."""

    # SIGHUP for Docker, else a restart (engine-facts.md#containerd-signals, engine-facts.md#crio-reload).
    AUTO = "auto"
    WHEN_IDLE = "when-idle"  # the same, but no restart while containers are created
    NONE = "none"


OPTIONS_SUFFIX: Final = ".options"  # of the file beside a pidfile that has the options of its run


class OnExit(StrEnum):
    """What ``run`` does when it is stopped; ``keep`` serves rolling updates."""

    UNDO = "undo"
    KEEP = "keep"


class Drift(StrEnum):
    """What ``run`` does, while it waits, when the node is not as installed any more."""

    AUTO = "auto"  # repair what no engine has to be restarted or reloaded for
    REPAIR = "repair"  # that as well
    REPORT = "report"  # tell it only
    IGNORE = "ignore"  # say nothing of it as long as the engines serve our runtimes


class InUse(StrEnum):
    """What an undo does while containers run on our runtime."""

    WAIT = "wait"  # give them ten seconds, then as ``keep``
    KEEP = "keep"  # our runtime is not the default any more, its handlers and the payload stay
    FORCE = "force"  # leave links to the low-level runtime in the payload's place


class Places(Struct, frozen=True):
    """Where one engine is found when not at its usual place; host paths."""

    config: PurePosixPath | None = None
    drop_in: PurePosixPath | None = None
    socket: PurePosixPath | None = None


class Cdi(Struct, frozen=True):
    """A CDI specification for management containers: in which directory of the host, and of what kind."""

    directory: PurePosixPath
    kind: str
    driver_root: str
    local_driver_root: str  # as this process sees it
    dev_root: str
    local_dev_root: str
    nodes: bool  # control device nodes are to be made

    @property
    def path(self) -> PurePosixPath:
        """The file, named after vendor and class."""
        return self.directory / f"{self.kind.replace('/', '-')}.yaml"


class Options(Struct, frozen=True):
    """One run of the program. Paths are the host's, but for ``toolkit_source`` and ``mounts[*][1]``.

    UsageError where the combination makes no sense.
    """

    engines: tuple[str, ...] = (AUTO,)  # () for the payload alone
    mode: Mode = Mode.RUNTIME
    toolkit_source: PurePosixPath = DEFAULT_SOURCE
    install_dir: PurePosixPath = DEFAULT_INSTALL_DIR
    host_root: PurePosixPath = ROOT
    mounts: tuple[tuple[PurePosixPath, PurePosixPath], ...] = ()
    driver_root: str = AUTO
    toolkit: ToolkitConfig = field(default_factory=ToolkitConfig)
    low_level: tuple[str, ...] = ()  # the runtimes that ours wrap, where not to be found out
    extras: Extras = field(default_factory=Extras)  # what an engine's config says besides
    cdi: Cdi | None = None
    runtime_name: str = RUNTIME_NAME
    set_as_default: bool = False
    places: Mapping[str, Places] = field(default_factory=dict)
    crio_hook: PurePosixPath | None = None
    restart_mode: RestartMode = RestartMode.AUTO
    pid_file: PurePosixPath = RUN_DIR / "toolkit.pid"
    timeout_s: float = 20.0  # of the wait for one engine to serve what its config says
    on_exit: OnExit = OnExit.UNDO
    in_use: InUse = InUse.WAIT
    drift: Drift = Drift.AUTO
    retry: bool = False  # a plan that failed before is tried once more, as it is
    adopt: bool = False  # an undo removes what NVIDIA's own installer left, too
    thorough: bool = True  # an undo waits for containers, and searches the node for other references
    metrics_textfile: PurePosixPath | None = None  # for node_exporter
    nfd_features: PurePosixPath | None = None  # for Node Feature Discovery
    metrics_listen: Listen | None = None  # where ``run`` answers while it waits
    nri: Nri = field(default_factory=Nri)

    def __post_init__(self) -> None:
        for path in (self.install_dir, self.host_root, self.pid_file):
            if not path.is_absolute() or ".." in path.parts:
                raise UsageError(f"use the path {path}", remedy="give an absolute path without ..")
        # An empty root is NVIDIA's word for the host itself.
        for words in (self.driver_root if self.driver_root != AUTO else "", str(self.toolkit_source)):
            if words and not PurePosixPath(words).is_absolute():
                raise UsageError(f"use the path {words}", remedy="give an absolute path")
        for words in (str(self.install_dir), self.driver_root, self.runtime_name, *self.low_level):
            if not words.isprintable() or words != words.encode(errors="replace").decode():
                raise UsageError(f"write {words!r} into a config", remedy="use plain text without controls")
        self._refuse_published()
        if self.install_dir == ROOT:
            raise UsageError("install into /", remedy=f"choose a directory such as {DEFAULT_INSTALL_DIR}")
        if self.runtime_name in {"runc", "crun"} or not self.runtime_name.strip():
            remedy = "choose a name that no other runtime has, such as nvidia"
            raise UsageError(f"name our runtime {self.runtime_name!r}", remedy=remedy)
        if AUTO in self.engines and len(self.engines) > 1:
            raise UsageError("mix --runtime auto with others", remedy="name the engines, or auto alone")
        if self.serves_nri:
            self.nri.refuse_idle()
        if not 0 < self.timeout_s < inf:
            raise UsageError(f"wait {self.timeout_s:g} seconds", remedy="give --timeout a number above 0")

    def _refuse_published(self) -> None:
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
        """Whether ``run`` has the NRI plugin run beside itself."""
        return self.nri.beside or self.mode is Mode.NRI

    @property
    def in_place(self) -> bool:
        """Whether the toolkit is the host's own, and used where its package manager keeps it."""
        return self.toolkit_source == self.host_root

    @property
    def layout(self) -> Layout:
        """The paths below the install-dir."""
        return Layout(self.install_dir)

    @property
    def auto(self) -> bool:
        """Whether the engines that run here are to be found out."""
        return AUTO in self.engines

    @property
    def needs_runtime(self) -> list[str]:
        """The flags whose giver relies on a runtime: without it containers fail, or start without a GPU."""
        asked = {
            "--set-as-default": self.set_as_default,
            "--runtime-name": self.runtime_name != RUNTIME_NAME,
            "--crio-hook": self.crio_hook is not None,
            "--accept-nvidia-visible-devices-as-volume-mounts": self.toolkit.accept_volume_mounts,
        }
        return [flag for flag, given in asked.items() if given]

    @property
    def at_once(self) -> "Options":
        """The same without a restart that waits until its engine is idle."""
        mode = RestartMode.NONE if self.restart_mode is RestartMode.NONE else RestartMode.AUTO
        return replace(self, restart_mode=mode)

    @property
    def for_engines(self) -> "Options":
        """The same but for what changes nothing of an engine's answer: when it restarts, and who is told."""
        asked = replace(self.at_once, retry=False, drift=Drift.AUTO)
        return replace(asked, metrics_textfile=None, nfd_features=None, metrics_listen=None)

    @property
    def published(self) -> tuple[PurePosixPath, ...]:
        """The files that tell others of us, a socket on which they may ask included."""
        asked = (self.layout.answer, self.metrics_listen.path) if self.metrics_listen else ()
        return tuple(path for path in (self.metrics_textfile, self.nfd_features, *asked) if path is not None)

    @property
    def ready_file(self) -> PurePosixPath:
        """Beside the pidfile: there while the engines are proven to serve our runtimes."""
        return self.pid_file.with_name("ready")

    @property
    def options_file(self) -> PurePosixPath:
        """Beside the pidfile: what ``run`` was asked for, for its children."""
        return self.pid_file.with_name(f"{self.pid_file.name}{OPTIONS_SUFFIX}")

    @property
    def state_file(self) -> PurePosixPath:
        """Beside the pidfile: what ``run`` has seen of the node and its engines, for ``status`` to tell."""
        return self.pid_file.with_name(f"{self.pid_file.name}.state")


class Wish(Struct, frozen=True):
    """What ``run`` was asked for, and how it speaks: read once, and handed to its children."""

    options: Options
    nvidia: bool
    log_format: str
