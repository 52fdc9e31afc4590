"""What was read on a node before anything is judged: plain values, empty where they could not be read."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.config_text import Tree
from installer.engines import ENGINES
from installer.engines.containerd.config import CONTAINERD
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import is_ours
from installer.model.facts import EngineState
from installer.model.record import CdiRow
from installer.report.doctor.verdict import Verdict, spell_version

Version = tuple[int, ...]
ROOT: Final = PurePosixPath("/")
DISPLAYS: Final = frozenset({0x0300, 0x0302})
SWITCH: Final = 0x0680
PACKAGED: Final = (PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin"))  # where packages put a toolkit


class Function(Struct, frozen=True):
    """One function of a PCI device of NVIDIA's: ``kind`` is its class (0x0302), ``driver`` may be ""."""

    address: str
    kind: int
    driver: str = ""


class DeviceNode(Struct, frozen=True):
    """A character device below /dev; ``label`` is that of SELinux, "" without one."""

    path: PurePosixPath
    major: int
    minor: int
    label: str = ""


class Driver(Struct, frozen=True):
    """The kernel's side of the driver, and its libraries.

    ``version`` is that of the loaded module. ``libraries`` are the names of libnvidia-ml.so* below ``root``;
    ``char_links`` are the numbers that /dev/char has links for; ``log`` are the lines of the kernel's log
    that matter here; ``persistenced`` is "absent", "answers" or "dead"; ``mig_minors`` are those of the MIG
    devices.
    """

    functions: tuple[Function, ...] = ()
    modules: frozenset[str] = frozenset()
    version: str = ""
    root: PurePosixPath = ROOT
    libraries: tuple[str, ...] = ()
    majors: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
    char_links: frozenset[tuple[int, int]] = frozenset()
    log: tuple[str, ...] = ()
    secure_boot: bool = False
    persistenced: str = "absent"
    mig_minors: tuple[int, ...] = ()

    @property
    def gpus(self) -> tuple[Function, ...]:
        """Display controllers: VGA and 3D."""
        return tuple(each for each in self.functions if each.kind in DISPLAYS)

    @property
    def switches(self) -> tuple[Function, ...]:
        """NVSwitches: bridges of class "other"."""
        return tuple(each for each in self.functions if each.kind == SWITCH)

    @property
    def loaded(self) -> bool:
        """Whether the kernel module is there."""
        return "nvidia" in self.modules


class Spec(Struct, frozen=True):
    """A CDI specification: ``gone`` are the paths of the host in it that nothing stands at.

    ``gpus`` are the names of its devices of nvidia.com/gpu; ``unreadable`` says why it is out of bounds.
    """

    path: PurePosixPath
    text: str
    gone: tuple[str, ...] = ()
    gpus: frozenset[str] = frozenset()
    unreadable: str = ""


class Toolkit(Struct, frozen=True):
    """A toolkit of NVIDIA's on the node, as its own programs tell.

    ``library`` is libnvidia-container's version, ``cli`` that of nvidia-container-cli, ``ctk`` of nvidia-ctk;
    () where a program does not say. ``config`` is its config.toml, None without one that can be read.
    ``starts`` is where its programs are, for one that leads to those of another.
    """

    directory: PurePosixPath
    library: Version = ()
    cli: Version = ()
    ctk: Version = ()
    config: Tree | None = None
    config_path: PurePosixPath = ROOT
    starts: PurePosixPath | None = None

    def value(self, *key: str) -> object:
        """Return a value of config.toml, None where it is not there."""
        found: object = self.config
        for part in key:
            found = found.get(part) if isinstance(found, dict) else None
        return found


class Process(Struct, frozen=True):
    """A process of root's whose program counts here, as that program tells about itself.

    ``program`` is its path; ``deleted`` that the file was replaced or removed since the start; ``label`` its
    name and version as it spells it. ``nil_pointer`` tells that the shim's program has the function that
    those of containerd 1.2.1 and 1.2.2 die in.
    """

    pid: int
    name: str
    program: str = ""
    deleted: bool = False
    version: Version = ()
    label: str = ""
    nil_pointer: bool = False


class EngineExam(Struct, frozen=True):
    """One engine that runs, and what is examined besides.

    ``on_disk`` is what its configs come to by its own program, None where that could not be asked; ``trees``
    are these configs, ``unreadable`` why one is none. ``unit_state`` is "" where systemd does not tell.
    ``cgroup_driver``, ``live_restore`` are dockerd's; ``has_hook`` tells whether NVIDIA's hook is in the PATH
    that dockerd was started with, None where unknown. ``unable`` is what keeps it from starting containers.
    """

    engine: EngineState
    on_disk: EffectiveConfig | None = None
    trees: Mapping[PurePosixPath, Tree] = field(default_factory=dict)
    unreadable: str = ""
    unit_state: str = ""
    cgroup_driver: str = ""
    live_restore: bool | None = None
    has_hook: bool | None = None
    unable: str = ""

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.name

    @property
    def label(self) -> str:
        """Its name and version, as far as it tells."""
        return f"{self.name} {spell_version(self.engine.version or ())}".strip()

    @property
    def serving(self) -> EffectiveConfig | None:
        """What it serves; None where it gives no usable answer."""
        return self.engine.serving

    @property
    def binaries(self) -> Mapping[str, str]:
        """The programs of the runtimes that it serves; none where it does not answer."""
        return self.serving.binaries if self.serving else {}

    @property
    def nvidia_runtimes(self) -> tuple[str, ...]:
        """The names of the runtimes that it serves by a program of NVIDIA's."""
        return tuple(name for name, binary in self.binaries.items() if is_ours(binary))

    @property
    def is_containerd(self) -> bool:
        """Whether it is a containerd, be it that of a distribution."""
        return ENGINES[self.name].process == CONTAINERD.process


class Space(Struct, frozen=True):
    """A file system by a path in it: shares in percent that are used, -1 where it has no such limit."""

    path: PurePosixPath
    used: int
    inodes_used: int = -1


class System(Struct, frozen=True):
    """The node besides driver, toolkit and engines.

    ``units`` has "active/sub/result" by unit, of those that exist, ``refused`` why one does not start with
    what lies there, as far as files tell. ``inotify`` is how many instances root's
    processes hold, and how many are allowed. ``kubelet_cgroups`` is its cgroup driver, "" where nobody says.
    ``devices_for_containers`` tells that a boolean of SELinux lets containers use the driver's nodes.
    """

    cgroup2: bool = False
    tegra: bool = False
    selinux_enforcing: bool = False
    devices_for_containers: bool = False
    apparmor_profiles: frozenset[str] = frozenset()
    inotify: tuple[int, int] = (0, 0)
    spaces: tuple[Space, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    kubelet_cgroups: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)


class Node(Struct, frozen=True):
    """Everything that is judged. ``installed`` are the lines of ``status`` with whether each is good.

    ``by_cdi`` is there where the last install was one of CDI alone (``--mode cdi``, ``--mode nri``).
    ``plugin`` is what there is to tell of an NRI plugin of ours, with whether each is good.
    ``programs`` are the files of the node that engines' runtimes and toolkits name, and that are there;
    ``runc`` is what runc and crun of the node say of themselves, by path. ``configured`` has the engines that
    are to serve what is installed, each with its unit and the state of that, "" where systemd does not tell.
    ``sees_host`` tells that the host's processes are in view.
    """

    driver: Driver = Driver()
    specs: tuple[Spec, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    engines: tuple[EngineExam, ...] = ()
    processes: tuple[Process, ...] = ()
    runc: Mapping[str, tuple[Version, str]] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    installed: tuple[tuple[str, str, bool], ...] = ()
    by_cdi: CdiRow | None = None
    plugin: tuple[tuple[str, bool], ...] = ()
    configured: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    system: System = System()
    sees_host: bool = True


Judge = Callable[[Node], Verdict]
