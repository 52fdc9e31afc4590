"""What was read on a node, plain values that are empty where they could not be read; what a check says."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.config_text import Tree, value_at
from installer.engines import CONTAINERD
from installer.engines.containerd.effective import RUNC_TYPE
from installer.model.engine import EffectiveConfig, is_ours
from installer.model.facts import CdiRow, EngineState, list_some

Version = tuple[int, ...]
ROOT: Final = PurePosixPath("/")
PACKAGED: Final = (PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin"))  # where packages put a toolkit


class Level(StrEnum):
    """What a check comes to; NONE where it does not apply, or cannot be made from here."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    NONE = "n/a"


class Verdict(Struct, frozen=True):
    """What one check found on one node; ``remedy`` is what to do here, "" where that of the check fits."""

    level: Level
    found: str
    remedy: str = ""


ok: Final = partial(Verdict, Level.OK)
warn: Final = partial(Verdict, Level.WARN)
bad: Final = partial(Verdict, Level.BAD)
none: Final = partial(Verdict, Level.NONE)
list_words: Final = partial(list_some, most=4)


def judge(wrong: Sequence[str], problem: str, fine: str, level: Callable[[str], Verdict] = bad) -> Verdict:
    """Return ``problem`` and the first few of what is ``wrong``, or that all is well if nothing is."""
    return level(problem + list_words(wrong)) if wrong else ok(fine)


def spell_version(version: Version) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))


class DeviceNode(Struct, frozen=True):
    """A character device below /dev."""

    path: PurePosixPath
    major: int
    minor: int
    label: str = ""  # of SELinux


class Driver(Struct, frozen=True):
    """The kernel's side of the driver, and its libraries."""

    gpus: Mapping[str, str] = field(default_factory=dict)  # what drives each, by its address on the PCI bus
    switches: int = 0  # how many NVSwitches there are
    modules: frozenset[str] = frozenset()
    version: str = ""  # of the loaded module
    root: PurePosixPath = ROOT
    libraries: tuple[str, ...] = ()  # the names of libnvidia-ml.so.* below the root
    majors: Mapping[str, int] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
    char_links: frozenset[tuple[int, int]] = frozenset()  # the numbers that /dev/char has links for
    log: tuple[str, ...] = ()  # the lines of the kernel's log that matter here
    secure_boot: bool = False
    persistenced: str = "absent"  # or "answers" or "dead"
    mig_minors: tuple[int, ...] = ()

    @property
    def loaded(self) -> bool:
        """Whether the kernel module is there."""
        return "nvidia" in self.modules


class Spec(Struct, frozen=True):
    """A CDI specification: what counts here of its text, which may be long."""

    path: PurePosixPath
    version: Version = ()  # as it says
    uvm_majors: frozenset[int] = frozenset()  # of nvidia-uvm's device nodes
    caps: frozenset[int] = frozenset()  # the minors of the MIG device nodes
    paths: tuple[str, ...] = ()  # of the host, that it names
    gone: tuple[str, ...] = ()  # those of them that nothing stands at
    gpus: frozenset[str] = frozenset()  # the names of its devices of nvidia.com/gpu
    unreadable: str = ""  # why it is out of bounds


class Toolkit(Struct, frozen=True):
    """A toolkit of NVIDIA's on the node, as its own programs tell; () where one does not say its version."""

    directory: PurePosixPath
    library: Version = ()  # of libnvidia-container
    cli: Version = ()  # of nvidia-container-cli
    ctk: Version = ()  # of nvidia-ctk
    config: Tree | None = None  # its config.toml, None without one that can be read
    config_path: PurePosixPath = ROOT
    starts: PurePosixPath | None = None  # where its programs are, if it leads to those of another

    def value(self, *key: str) -> object:
        """Return a value of config.toml, None where it is not there."""
        return value_at(self.config, key)


class Process(Struct, frozen=True):
    """A process of root's whose program counts here, as that program tells about itself."""

    pid: int
    name: str
    program: str = ""  # its path
    deleted: bool = False  # the file was replaced or removed since the start
    version: Version = ()
    label: str = ""  # its name and version as it spells it
    nil_pointer: bool = False  # it has the function that the shims of containerd 1.2.1 and 1.2.2 die in


class EngineExam(EngineState, frozen=True):
    """One engine that runs, and what is examined besides."""

    on_disk: EffectiveConfig | None = None  # what its configs come to by its own program; None if not asked
    trees: Mapping[PurePosixPath, Tree] = field(default_factory=dict)  # its configs
    invalid: str = ""  # why a config is none
    next_flaw: str = ""  # why its unit would not start it again, or with another config
    unit_state: str = ""  # "" where systemd does not tell
    has_hook: bool | None = None  # NVIDIA's hook is in the PATH that dockerd was started with
    unable: str = ""  # what keeps it from starting containers

    @property
    def label(self) -> str:
        """Its name and version, as far as it tells."""
        return f"{self.name} {spell_version(self.version or ())}".strip()

    @property
    def programs(self) -> Mapping[str, str]:
        """What its runtimes start, by a path or by a name in its PATH; "" where that is open."""
        return {
            name: one.binary or ("runc" if RUNC_TYPE in one.table.values() else "")
            for name, one in self.served.handlers.items()
        }

    @property
    def nvidia_runtimes(self) -> tuple[str, ...]:
        """The names of the runtimes that it serves by a program of NVIDIA's."""
        return tuple(name for name, binary in self.served.binaries.items() if is_ours(binary))

    @property
    def is_containerd(self) -> bool:
        """Whether it is a containerd, be it that of a distribution."""
        return self.spec.process == CONTAINERD.process


class System(Struct, frozen=True):
    """The node besides driver, toolkit and engines."""

    cgroup2: bool = False
    tegra: bool = False
    selinux_enforcing: bool = False
    devices_for_containers: bool = False  # a boolean of SELinux lets containers use the driver's nodes
    apparmor_profiles: frozenset[str] = frozenset()
    inotify: tuple[int, int] = (0, 0)  # how many instances root's processes hold, and how many they may
    # By a path in a file system, how many percent of it and of its inodes are used: -1 without a limit.
    spaces: Mapping[PurePosixPath, tuple[int, int]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)  # "active/sub/result" of those that exist
    kubelet_cgroups: str = ""  # its cgroup driver
    refused: Mapping[str, str] = field(default_factory=dict)  # by unit, the file that it does not start with


class Node(Struct, frozen=True):
    """Everything that is judged."""

    driver: Driver = Driver()
    specs: tuple[Spec, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    engines: tuple[EngineExam, ...] = ()
    processes: tuple[Process, ...] = ()
    runc: Mapping[str, tuple[Version, str]] = field(default_factory=dict)  # what runc and crun say, by path
    programs: frozenset[str] = frozenset()  # those that configs name and that are there
    hooks: Mapping[PurePosixPath, str] = field(
        default_factory=dict
    )  # by OCI hook, the program that it starts
    installed: tuple[tuple[str, str, bool], ...] = ()  # the lines of status, and whether each is good
    unwatched: str = ""  # when a run that has ended without an undo last checked the node
    exempt: frozenset[str] = frozenset()  # engines that need no runtime: below Docker, or with our hook
    by_cdi: CdiRow | None = None  # the last install was one of CDI alone
    plugin: tuple[tuple[str, bool], ...] = ()  # how an NRI plugin of ours is, and whether that is good
    configured: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # unit and state, by engine
    system: System = System()
    run_waits: bool = False  # it keeps an install out, and repairs when it is asked
    sees_host: bool = True  # the host's processes are in view


Judge = Callable[[Node], Verdict]


def given(holds: Callable[[Node], object], reason: str) -> Callable[[Judge], Judge]:
    """Make a check that does not apply, for ``reason``, but where ``holds``."""
    return lambda judge: lambda node: judge(node) if holds(node) else none(reason)
