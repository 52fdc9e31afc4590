"""What the program was asked for: frozen, and valid once built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from pathlib import PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.engines.model import Extras
from installer.decide.engines.row import Reload
from installer.decide.errors import UsageError
from installer.decide.layout import DEFAULT_DRIVER_ROOT, DEFAULT_INSTALL_DIR, RUN_DIR, Layout
from installer.decide.toolkit_config import ToolkitConfig

AUTO: Final = "auto"
DEFAULT_SOURCE: Final = PurePosixPath("/artifacts/deb")
ROOT: Final = PurePosixPath("/")
LOW_LEVEL_NAMES: Final = frozenset({"runc", "crun"})


class RestartMode(StrEnum):
    """How an engine is brought to read its config again.

    ``signal`` means ``auto`` for containerd and CRI-O: no signal reloads them (engines.md 1, 11).
    """

    AUTO = "auto"
    SIGNAL = "signal"
    SYSTEMD = "systemd"
    NONE = "none"


class OnExit(StrEnum):
    """What ``run`` does when it is told to stop; ``keep`` serves rolling updates."""

    UNDO = "undo"
    KEEP = "keep"


class InUse(StrEnum):
    """What an undo does while containers run on our runtime.

    ``wait`` gives them ten seconds, then does as ``keep``: our runtime is not the default any more, its
    handlers and the payload stay. ``force`` leaves links to the low-level runtime in the payload's place.
    """

    WAIT = "wait"
    KEEP = "keep"
    FORCE = "force"


@dataclass(frozen=True, slots=True)
class Places:
    """Where one engine is found when not at its usual place; host paths."""

    config: PurePosixPath | None = None
    drop_in: PurePosixPath | None = None
    socket: PurePosixPath | None = None


@dataclass(frozen=True, slots=True)
class Cdi:
    """A CDI specification for management containers: in which directory of the host, and of what kind.

    ``driver_here`` and ``dev_here`` are where this process finds the driver and the device nodes, the others
    where the host does; ``nodes`` says that control device nodes are to be made.
    """

    directory: PurePosixPath
    kind: str
    driver_root: str
    driver_here: str
    dev_root: str
    dev_here: str
    nodes: bool

    @property
    def path(self) -> PurePosixPath:
        """The file, named after vendor and class."""
        return self.directory / f"{self.kind.replace('/', '-')}.yaml"


@dataclass(frozen=True, slots=True)
class Options:
    """One run of the program. Paths are the host's, but for ``toolkit_source`` and ``mounts[*][1]``.

    No ``runtimes`` means the payload alone. ``toolkit`` is what config.toml is asked to say, ``extras`` what
    an engine's config says besides; ``low_level`` are the runtimes that ours wrap, where not to be found out.
    ``timeout_s`` bounds, in seconds, the wait for one engine to serve what its config says;
    ``retry`` tries a plan that failed before once more, as it is; ``adopt`` lets an undo take back what
    NVIDIA's own installer left, too.

    Raises:
        UsageError: the combination makes no sense.
    """

    runtimes: tuple[str, ...] = (AUTO,)
    toolkit_source: PurePosixPath = DEFAULT_SOURCE
    install_dir: PurePosixPath = DEFAULT_INSTALL_DIR
    host_root: PurePosixPath = ROOT
    mounts: tuple[tuple[PurePosixPath, PurePosixPath], ...] = ()
    driver_root: str = str(DEFAULT_DRIVER_ROOT)
    toolkit: ToolkitConfig = field(default_factory=ToolkitConfig)
    low_level: tuple[str, ...] = ()
    extras: Extras = field(default_factory=Extras)
    cdi: Cdi | None = None
    runtime_name: str = "nvidia"
    set_as_default: bool = False
    places: Mapping[str, Places] = field(default_factory=dict)
    crio_hook: PurePosixPath | None = None
    restart_mode: RestartMode = RestartMode.AUTO
    pid_file: PurePosixPath = RUN_DIR / "toolkit.pid"
    timeout_s: float = 20.0
    on_exit: OnExit = OnExit.UNDO
    in_use: InUse = InUse.WAIT
    retry: bool = False
    adopt: bool = False

    def __post_init__(self) -> None:
        for path in (self.install_dir, self.host_root, self.pid_file):
            if not path.is_absolute() or ".." in path.parts:
                raise UsageError(f"use the path {path}", remedy="give an absolute path without ..")
        for words in (str(self.install_dir), self.driver_root, self.runtime_name, *self.low_level):
            if not words.isprintable() or words != words.encode(errors="replace").decode():
                raise UsageError(f"write {words!r} into a config", remedy="use plain text without controls")
        if self.install_dir == ROOT:
            raise UsageError("install into /", remedy=f"choose a directory such as {DEFAULT_INSTALL_DIR}")
        if self.runtime_name in LOW_LEVEL_NAMES or not self.runtime_name.strip():
            raise UsageError(
                f"name our runtime {self.runtime_name!r}",
                remedy="choose a name that no other runtime has, such as nvidia",
            )
        if AUTO in self.runtimes and len(self.runtimes) > 1:
            raise UsageError("mix --runtime auto with others", remedy="name the engines, or auto alone")
        if not 0 < self.timeout_s < inf:
            raise UsageError(
                f"wait {self.timeout_s:g} seconds", remedy="give --timeout a number of seconds above 0"
            )
        self._refuse_signal()

    def _refuse_signal(self) -> None:
        restarted = [
            name for name in self.runtimes if name != AUTO and ENGINES[name].reload is not Reload.HUP
        ]
        if self.restart_mode is RestartMode.SIGNAL and restarted:
            raise UsageError(
                f"reload {restarted[0]} by a signal (none makes it read its config; SIGHUP ends containerd)",
                remedy="use --restart-mode auto or systemd",
            )

    @property
    def layout(self) -> Layout:
        """The paths below the install-dir."""
        return Layout(self.install_dir)

    @property
    def engine_names(self) -> tuple[str, ...]:
        """The engines to look at: the ones named, or all for ``auto``."""
        return tuple(ENGINES) if self.auto else self.runtimes

    @property
    def auto(self) -> bool:
        """Whether the engines that run here are to be found out."""
        return AUTO in self.runtimes

    @property
    def ready_file(self) -> PurePosixPath:
        """Beside the pidfile: there while the engines are proven to serve our runtimes."""
        return self.pid_file.with_name("ready")
