"""What was found on the host: everything a decision may depend on."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Self, TypeVar

from msgspec import Struct, field

from installer.errors import InstallerError
from installer.model.engine_spec import EffectiveConfig, EngineSpec, Flags
from installer.model.files import DEFAULT_DRIVER_ROOT, PATH, Artifact, Entry, File, Kind
from installer.model.record import DeviceNode, Named, Record
from installer.model.steps import Reload

T = TypeVar("T")


def require(fact: T | None) -> T:
    """Return a fact that the observation of this verb includes; LookupError, a bug, where it does not."""
    if fact is None:
        raise LookupError("not observed for this verb")
    return fact


class Container(Struct, frozen=True):
    """A container on our runtime, without which it cannot be removed (engine-facts.md#removed-program)."""

    engine: str
    id: str
    name: str  # what its owner calls it
    binary: PurePosixPath


def names_of(containers: Iterable[Container]) -> str:
    """Return the containers as part of a sentence, the first few of many."""
    return list_some(sorted({f"{each.name} ({each.engine})" for each in containers}))


def list_some(names: Sequence[str], most: int = 8) -> str:
    """Return the first few of many names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def count(number: int, noun: str) -> str:
    """Return how many there are of something, as part of a sentence."""
    return f"{number} {noun}{'s' * (number != 1)}"


class Started(Struct, frozen=True):
    """How an engine was started, or will be: the words behind its ``program``, and the environment."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    began_s: float | None = None  # when, in seconds of the wall clock; None if unknown

    def runs(self, process: str) -> bool:
        """Tell whether it starts that program itself, and no other that has it as a word."""
        return PurePosixPath(self.program).name == process

    def mentions(self, word: str) -> bool:
        """Tell whether a flag or the name of a variable has a word in it: it may overrule a config."""
        return any(word in each.lower() for each in (*self.words, *self.environment))

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """Where programs are looked for that a word names; systemd sets a PATH where a unit does not."""
        places = self.environment.get("PATH", "").split(":")
        return tuple(PurePosixPath(place) for place in places if place.startswith("/")) or PATH


class EngineState(Named, frozen=True):
    """One engine: where it is configured, by the paths of the host, and what the running one says."""

    config: PurePosixPath
    drop_in: PurePosixPath | None
    hook: PurePosixPath | None
    files: tuple[PurePosixPath, ...]  # the configs it reads, in that order
    socket: PurePosixPath
    unit: str
    version: tuple[int, ...] | None = None
    serving: EffectiveConfig | None = None  # None where it does not answer
    silence: str = ""  # the reason for that
    remedy: str = ""  # what lets us connect, where that alone is missing
    stopped: bool = False  # its socket does not answer
    failed: bool = False  # its CRI did not load, and will not
    disabled: bool = False  # it runs without CRI on purpose
    another: str = ""  # why it is not the engine whose API it answers
    crashing: bool = False  # it does not run for the moment: its unit is started again and again
    pid: int | None = None  # its process, where that is in a pid namespace we see
    exe: PurePosixPath | None = None
    build: str = ""  # tells one build of ``exe`` from another
    start: str = ""  # tells one way in which its unit starts it from another
    state: PurePosixPath | None = None  # where the state of its containers is, if not at the usual place
    # A config changed since its start, and no install has proven it: it may serve less than it says.
    outdated: bool = False
    hooks: tuple[PurePosixPath, ...] = ()  # OCI hooks that it runs, for --adopt only
    started: Started | None = None  # how its process was started, None where that is not known
    flags: Flags = field(default_factory=Flags)
    next_flags: Flags = field(default_factory=Flags)  # those that its unit will give it at its next start
    next_start: Started | None = None  # how its unit will start it, None where that is not known
    unreadable: frozenset[PurePosixPath] = frozenset()  # imports without a text, with which it does not start
    gone: frozenset[PurePosixPath] = frozenset()  # programs that it or its configs name, and that are none
    dormant: frozenset[PurePosixPath] = frozenset()  # files that it would read with an import of ours
    rendered: File | None = None  # what it made of its configs at its start, where it does not read them
    not_restarted: InstallerError | None = None  # why it is not to be restarted by us
    places_by_files: frozenset[str] = frozenset()  # those of its places that its configs alone will give it
    paths: tuple[tuple[PurePosixPath, ...], ...] = ()  # its PATHs, of this start and of its next
    creating: tuple[str, ...] = ()  # containers created and not yet started, for --restart-mode when-idle

    @classmethod
    def usual(cls, spec: EngineSpec) -> Self:
        """Return an engine at its usual places, of which nothing was observed."""
        return cls(spec.name, spec.config, spec.drop_ins.usual, None, (), spec.socket, spec.unit)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the running process was started with, () if unknown."""
        return self.started.words if self.started else ()

    @property
    def next_words(self) -> tuple[str, ...]:
        """The words that its unit will start it with, () if unknown."""
        return self.next_start.words if self.next_start else ()

    @property
    def served(self) -> EffectiveConfig:
        """What it says that it serves, nothing where it does not answer."""
        return self.serving or EffectiveConfig({}, "")

    def serves(self, reload: Reload) -> bool:
        """Tell whether it says that it serves what a reload is to bring about, of configs it has read."""
        if self.hook is not None:  # in a directory that it names, which is checked before
            return self.serving is not None and bool(self.serving.hook_dirs)
        return self.serving is not None and not self.outdated and reload.satisfied_by(self.serving)


class Reference(Struct, frozen=True):
    """A text, an engine or a link, none of the ledger's, that may lead to a program of the toolkit."""

    how: str  # begins a sentence that ends with the program
    program: str  # as it is named there
    remedy: str = "correct that file"


class ToolkitFacts(Struct, frozen=True):
    """What stands at ``<install-dir>/toolkit``."""

    kind: Kind = Kind.ABSENT
    link: str = ""  # what the symlink holds
    versions: Mapping[str, Mapping[PurePosixPath, Entry]] = field(default_factory=dict)  # beside the ledger
    config: str | None = None  # the installed config.toml
    replaced: bool = False  # the directory of another installer stands aside
    theirs: bool = False  # another installer's programs stand there
    superseded: bool = False  # what we have set aside has a later one in its place
    # The default runtimes that configs had before ours, where they are that installer's.
    defaults: Mapping[PurePosixPath, str] = field(default_factory=dict)
    digests: Mapping[PurePosixPath, str] = field(default_factory=dict)  # sha256 of the version in place


class PayloadFacts(Struct, frozen=True):
    """What is to be installed, and what the node has for it."""

    artifacts: tuple[Artifact, ...]
    absent_interpreters: frozenset[PurePosixPath] = frozenset()  # of the payload's scripts
    version: tuple[int, ...] | None = None  # what the toolkit says of itself
    free_bytes: int | None = None
    machine: str = "x86_64"


class DriverFacts(Struct, frozen=True):
    """Where NVIDIA's driver is, and how the host finds libraries."""

    root: str = str(DEFAULT_DRIVER_ROOT)
    ldconfig_real: bool = False
    suse: bool = False


class GpuSpecification(Struct, frozen=True):
    """The CDI specification of the node's GPUs: what it is to be, and what stands in its place."""

    path: PurePosixPath
    text: str = ""  # "" where none can be made, for which ``lacking`` is the reason
    lacking: str = ""
    ours: bool = False  # what stands at ``path`` is ours
    stale: tuple[str, ...] = ()  # files that it names and that are gone
    others: tuple[PurePosixPath, ...] = ()  # of others, with its devices, where engines read them
    missing: tuple[str, ...] = ()  # devices of ours that one of these engines gets from no file then
    # How nvidia-ctk has failed although a driver is loaded: no file tells when it would not.
    unmade: InstallerError | None = None


class CdiFacts(Struct, frozen=True):
    """What the CDI specifications depend on that an install writes."""

    management: str | None = None  # its text; None while device nodes are absent that it would name
    absent_nodes: tuple[DeviceNode, ...] = ()
    held_nodes: tuple[DeviceNode, ...] = ()  # those of the ledger that are still there
    gpus: GpuSpecification | None = None  # None where containers do not get GPUs by CDI


class ContainerFacts(Struct, frozen=True):
    """The containers on our runtimes, and the names of stopped ones that could not start without them."""

    running: tuple[Container, ...] = ()
    idle: tuple[str, ...] = ()
    low_level: PurePosixPath | None = None  # a runtime of the host that can take the place of ours


class Facts(Struct, frozen=True):
    """The host as it was found. What one verb does not look at is None."""

    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]  # each config that was read
    originals: Mapping[PurePosixPath, File | None]  # the saved text of those in the ledger
    missing: frozenset[PurePosixPath]  # directories that would have to be made
    toolkit: ToolkitFacts
    held: Record
    payload: PayloadFacts | None = None
    driver: DriverFacts | None = None
    cdi: CdiFacts | None = None
    containers: ContainerFacts = field(default_factory=ContainerFacts)
    lost: frozenset[PurePosixPath] = frozenset()  # configs whose saved text is missing or damaged
    targets: Mapping[PurePosixPath, PurePosixPath] = field(default_factory=dict)  # behind symbolic links
    # What the symbolic links hold that an administrator has put in the place of files that we created.
    relinked: Mapping[PurePosixPath, str] = field(default_factory=dict)
    links: Mapping[str, PurePosixPath] = field(default_factory=dict)  # to programs that have other names
    # Programs that come back with the directory that stood in the toolkit's place before ours.
    returning: frozenset[str] = frozenset()
    references: tuple[Reference, ...] = ()  # besides the configs of the ledger's engines
    refused: Mapping[str, InstallerError] = field(default_factory=dict)  # engines whose configs are not known
    unwritable: Mapping[PurePosixPath, InstallerError] = field(default_factory=dict)
    obstacles: tuple[InstallerError, ...] = ()  # reasons for which an install could not end well
    notes: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[PurePosixPath, str]:
        """The digest of each config, "" where there is none."""
        return {path: file.digest if file else "" for path, file in self.contents.items()}
