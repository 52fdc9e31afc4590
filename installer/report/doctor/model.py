"""The facts that ``doctor`` reads on a node, and the verdict of a check; unreadable facts are empty."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field

from installer.config_text import Tree, value_at
from installer.engines import CONTAINERD
from installer.model.effective import EffectiveConfig, is_ours
from installer.model.engine import EngineState, OtherEngine
from installer.model.facts import CdiRow, list_some

Version = tuple[int, ...]
ROOT: Final = PurePosixPath("/")
PACKAGED: Final = (PurePosixPath("/usr/bin"), PurePosixPath("/usr/local/bin"))  # where packages put a toolkit


class Level(StrEnum):
    """The result of a check; NONE if the check does not apply, or cannot be made from here."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    NONE = "n/a"


class Verdict(Struct, frozen=True):
    """The verdict of one check on one node.

    Attributes:
        level: The result.
        text: The observation, as a sentence.
        remedy: The act that helps on this node; "" for the remedy in the table of checks.
    """

    level: Level
    text: str
    remedy: str = ""


ok: Final = partial(Verdict, Level.OK)
warn: Final = partial(Verdict, Level.WARN)
bad: Final = partial(Verdict, Level.BAD)
none: Final = partial(Verdict, Level.NONE)
list_words: Final = partial(list_some, most=4)


def judge(flaws: Sequence[str], problem: str, fine: str, level: Callable[[str], Verdict] = bad) -> Verdict:
    """Return a verdict on flaws.

    Args:
        flaws: The flaws; the text names the first few.
        problem: The text in front of the flaws.
        fine: The text of a verdict without a flaw.
        level: Makes the verdict on the flaws.
    """
    if flaws:
        return level(problem + list_words(flaws))
    return ok(fine)


def spell_version(version: Version) -> str:
    """Return a version as people write versions."""
    return ".".join(map(str, version))


class DeviceNode(Struct, frozen=True):
    """A character device below /dev."""

    path: PurePosixPath
    major: int
    minor: int
    label: str = ""  # of SELinux


class Driver(Struct, frozen=True):
    """The kernel's side of the driver, and the driver's libraries."""

    gpus: Mapping[str, str] = field(default_factory=dict)  # the driver of each GPU, by the PCI address
    switches: int = 0  # the number of NVSwitches
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
        """Whether the kernel module is loaded."""
        return "nvidia" in self.modules


class Spec(Struct, frozen=True):
    """The facts from a CDI specification; the text itself may be long."""

    path: PurePosixPath
    version: Version = ()  # as the specification declares
    uvm_majors: frozenset[int] = frozenset()  # of nvidia-uvm's device nodes
    caps: frozenset[int] = frozenset()  # the minors of the MIG device nodes
    paths: tuple[str, ...] = ()  # the named paths of the host
    missing_paths: tuple[str, ...] = ()  # the named paths without a file
    gpus: frozenset[str] = frozenset()  # the names of the devices of nvidia.com/gpu
    read_error: str = ""  # the reason why the file was not read


class Toolkit(Struct, frozen=True):
    """A toolkit of NVIDIA's on the node; versions are () if the program does not say its version."""

    directory: PurePosixPath
    library: Version = ()  # of libnvidia-container
    cli: Version = ()  # of nvidia-container-cli
    ctk: Version = ()  # of nvidia-ctk
    config: Tree | None = None  # config.toml, None if absent or unreadable
    config_path: PurePosixPath = ROOT
    linked_directory: PurePosixPath | None = None  # of another toolkit, to which the programs are links

    def value(self, *key: str) -> object:
        """Return a value of config.toml, None if absent."""
        return value_at(self.config, key)


class Process(Struct, frozen=True):
    """A process of root with a program of interest, and the facts that the program tells about itself."""

    pid: int
    name: str
    program: str = ""  # the path of the program
    deleted: bool = False  # the file was replaced or removed since the start
    version: Version = ()
    label: str = ""  # name and version, as the program spells its version
    nil_pointer: bool = False  # the shims of containerd 1.2.1 and 1.2.2 die in a function of this program


class EngineExam(EngineState, frozen=True):
    """A running engine, and the facts that only ``doctor`` reads."""

    on_disk: EffectiveConfig | None = None  # by the engine's program, None if it was not asked
    trees: Mapping[PurePosixPath, Tree] = field(default_factory=dict)  # the parsed configs
    config_error: str = ""  # the reason why a config cannot be parsed
    next_start_flaw: str = ""  # why the unit would not start the engine again
    next_start_move: str = ""  # the place, or the config, that the unit changes at the next start
    unit_state: str = ""  # "" if systemd does not tell
    has_hook: bool | None = None  # NVIDIA's hook is in the PATH of the running dockerd
    start_problem: str = ""  # the reason why the engine cannot start containers

    @property
    def label(self) -> str:
        """The engine's name and, if known, version."""
        return f"{self.name} {spell_version(self.version or ())}".strip()

    @property
    def programs(self) -> Mapping[str, str]:
        """The program of each runtime, by a path or by a name in the engine's PATH; "" if not known."""
        return {name: handler.program for name, handler in self.served.handlers.items()}

    @property
    def nvidia_runtimes(self) -> tuple[str, ...]:
        """The names of the served runtimes whose program is NVIDIA's."""
        return tuple(name for name, binary in self.served.binaries.items() if is_ours(binary))

    @property
    def is_containerd(self) -> bool:
        """Whether the engine is a containerd, be it the containerd of a distribution."""
        return self.kind.process == CONTAINERD.process


class System(Struct, frozen=True):
    """The node's facts besides driver, toolkit and engines."""

    cgroup2: bool = False
    tegra: bool = False
    selinux_enforcing: bool = False
    devices_for_containers: bool = False  # a boolean of SELinux lets containers use the driver's nodes
    apparmor_profiles: frozenset[str] = frozenset()
    inotify: tuple[int, int] = (0, 0)  # the instances of root's processes, and their limit
    # The used percentage of a file system and of its inodes, by a path in it; -1 without a limit.
    spaces: Mapping[PurePosixPath, tuple[int, int]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)  # "active/sub/result" of the present units
    kubelet_cgroups: str = ""  # the kubelet's cgroup driver
    refused_files: Mapping[str, str] = field(
        default_factory=dict
    )  # by unit, the file that its engine refuses


class Node(Struct, frozen=True):
    """The facts of a node for all checks."""

    driver: Driver = Driver()
    specs: tuple[Spec, ...] = ()
    toolkits: tuple[Toolkit, ...] = ()
    engines: tuple[EngineExam, ...] = ()
    other_engines: tuple[OtherEngine, ...] = ()  # engines with CRI on sockets that nobody has named
    processes: tuple[Process, ...] = ()
    runc: Mapping[str, tuple[Version, str]] = field(
        default_factory=dict
    )  # and crun: by path, version and label
    programs: frozenset[str] = frozenset()  # the present programs among the programs that configs name
    hooks: Mapping[PurePosixPath, str] = field(default_factory=dict)  # the program of each OCI hook
    status_lines: tuple[tuple[str, str, bool], ...] = ()  # the lines of status, and whether each is good
    last_check: str = ""  # the time of the last check by a run that has ended without an undo
    without_runtime: frozenset[str] = frozenset()  # engines below Docker, or with our hook
    by_cdi: CdiRow | None = None  # the last install was for CDI alone
    plugin: tuple[tuple[str, bool], ...] = ()  # the states of our NRI plugin, and whether each is good
    engine_units: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # unit and state, by engine
    system: System = System()
    run_waits: bool = False  # a waiting run keeps an install out, and repairs on request
    sees_host: bool = True  # the host's processes are in view

    @property
    def has_nvidia(self) -> bool:
        """Whether a GPU, a part of the driver or a toolkit was found; a Tegra's GPU is part of the chip."""
        driver = self.driver
        return bool(
            driver.gpus
            or driver.loaded
            or driver.libraries
            or driver.nodes
            or self.toolkits
            or self.system.tegra
        )


Check = Callable[[Node], Verdict]


def given(applies: Callable[[Node], object], reason: str) -> Callable[[Check], Check]:
    """Limit a check to nodes to which the check applies.

    Args:
        applies: Returns a true value for a node to which the check applies.
        reason: The text of the verdict on other nodes.
    """

    def decorate(check: Check) -> Check:
        def check_if_applicable(node: Node) -> Verdict:
            if applies(node):
                return check(node)
            return none(reason)

        return check_if_applicable

    return decorate
