"""What was read on a node before anything is judged: plain values, an empty one where nobody could tell."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import dataclass, field
from installer.decide.edits import Tree
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.containerd import CONTAINERD
from installer.decide.rows import CdiRow

Version = tuple[int, ...]
ROOT: Final = PurePosixPath("/")
DISPLAYS: Final = frozenset({0x0300, 0x0302})
SWITCH: Final = 0x0680


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a PCI device of NVIDIA's: ``kind`` is its class (0x0302), ``driver`` may be ""."""

    address: str
    kind: int
    driver: str = ""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device below /dev; ``label`` is that of SELinux, "" without one."""

    path: PurePosixPath
    major: int
    minor: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Driver:
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


@dataclass(frozen=True, slots=True)
class Spec:
    """A CDI specification: ``gone`` are the paths of the host in it that nothing stands at."""

    path: PurePosixPath
    text: str
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toolkit:
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


@dataclass(frozen=True, slots=True)
class Process:
    """A process of root's whose program counts here, as that program tells about itself.

    ``program`` is its path; ``deleted`` that the file was replaced or removed since the start; ``said`` its
    own words about its version. ``nil_pointer`` tells that the shim's program has the function that those
    of containerd 1.2.1 and 1.2.2 die in.
    """

    pid: int
    name: str
    program: str = ""
    deleted: bool = False
    version: Version = ()
    said: str = ""
    nil_pointer: bool = False
    cmdline: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """One engine that runs: what it says, what its configs say, and its unit.

    ``serving`` is None, and ``silence`` says why, where there is no usable answer. ``told`` is what its
    configs have in force by its own program, None where nobody can tell; ``trees`` are these configs.
    ``unit_state`` is "" where systemd does not tell. ``cgroup_driver``, ``live_restore`` are dockerd's;
    ``finds_hook`` tells whether dockerd found NVIDIA's hook in its PATH when it started, None where unknown.
    ``unable`` is what below it keeps it from starting any container.
    """

    name: str
    said: str = ""
    version: Version = ()
    serving: Effect | None = None
    silence: str = ""
    failed: bool = False
    disabled: bool = False
    another: str = ""
    told: Effect | None = None
    trees: Mapping[PurePosixPath, Tree] = field(default_factory=dict)
    config: PurePosixPath = ROOT
    unreadable: str = ""
    unit: str = ""
    unit_state: str = ""
    cgroup_driver: str = ""
    live_restore: bool | None = None
    finds_hook: bool | None = None
    unable: str = ""

    @property
    def is_containerd(self) -> bool:
        """Whether it is a containerd, be it that of a distribution."""
        return ENGINES[self.name].process == CONTAINERD.process


@dataclass(frozen=True, slots=True)
class Space:
    """A file system by a path in it: shares in percent that are used, -1 where it has no such limit."""

    path: PurePosixPath
    used: int
    inodes_used: int = -1


@dataclass(frozen=True, slots=True)
class System:
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


@dataclass(frozen=True, slots=True)
class Node:
    """Everything that is judged. ``held`` are the lines of ``status`` with whether each is good.

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
    engines: tuple[RunningEngine, ...] = ()
    processes: tuple[Process, ...] = ()
    runc: Mapping[str, tuple[Version, str]] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    held: tuple[tuple[str, str, bool], ...] = ()
    by_cdi: CdiRow | None = None
    plugin: tuple[tuple[str, bool], ...] = ()
    configured: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    system: System = System()
    sees_host: bool = True
