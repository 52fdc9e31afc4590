"""What is held on the node, which is the ledger's content, and what was found there: all that decides."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Final, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from installer.config_text import Edit, Syntax
from installer.errors import InstallerError
from installer.model.engine_spec import EffectiveConfig, EngineSpec, Flags
from installer.model.files import DEFAULT_DRIVER_ROOT, PATH, Artifact, Entry, File, Kind, Meta

T = TypeVar("T")
STAND_IN: Final = "stand-in"  # the version of links to a low-level runtime that a forced undo leaves
ADOPTED: Final = "adopted"  # the version of NVIDIA's own directory, once it is ours to remove
OWNER: Final = "cdi"  # of CDI specifications: in the place of an engine's name, in rows and steps
# What the ledger has for one name in a directory of ours: that of a version, or of a saved copy.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME.pattern}\Z")]


class Saved(Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it would be without us; its bytes are in the backup named ``digest``."""

    digest: Name
    mode: Annotated[str, msgspec.Meta(pattern=r"\A[0-7]{1,7}\Z")]
    uid: int | None
    gid: int | None
    xattrs: Mapping[str, bytes]

    @classmethod
    def of(cls, file: File | None) -> "Saved | None":
        """Return the row of a file; None where there is none."""
        meta = file.meta if file else Meta()
        return cls(file.digest, f"{meta.mode:04o}", meta.uid, meta.gid, dict(meta.xattrs)) if file else None

    @property
    def meta(self) -> Meta:
        """What it was apart from its bytes."""
        return Meta(int(self.mode, 8), self.uid, self.gid, tuple(self.xattrs.items()))


class ConfigRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One config of one engine. A file that is written whole has neither syntax nor edits."""

    engine: str
    path: PurePosixPath
    syntax: Syntax | None
    original: Saved | None  # None where there was no file
    ours: tuple[str, ...]  # the digests of every text we wrote there: a file that is none of them was edited
    edits: tuple[Edit, ...]  # what is undone in a file that was edited
    target: PurePosixPath | None = None  # where a symbolic link led when we wrote
    # The programs of the toolkit that the file named before our first install, once for each time.
    named: tuple[str, ...] | None = None  # None in a ledger of 0.1.0

    @property
    def written(self) -> bool:
        """Whether we wrote there at all: what names our programs without us is remembered, too."""
        return bool(self.edits) or self.syntax is None


class EngineRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An engine that was configured: where to reach it, and the program of each runtime that it was given."""

    name: str
    socket: PurePosixPath
    unit: str
    runtimes: Mapping[str, PurePosixPath]
    state: PurePosixPath | None = None  # where its containers are, looked for also when it is stopped
    pending: str = ""  # what it had not taken up when it was last asked, and when it will
    config: PurePosixPath | None = None  # its root config; None where nothing has to be said there
    default: str = ""  # the runtime that was to be its default
    version: tuple[int, ...] | None = None
    restart_due: bool = False  # the restart by which it reads its configs is still to come
    proven: str = ""  # the digest of all texts that it reads, as the last install left them; "" in 0.2.0


class ToolkitRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The payload."""

    version: Name
    previous: Name | None  # which is kept beside it
    rendered: str  # config.toml as we wrote it, to tell an administrator's edits
    replaced: bool = False  # a directory of another installer was exchanged away
    linked: str | None = None  # what a symlink of another installer held
    files: Mapping[str, str] = {}  # the manifest of ``version``; not in ledgers of 0.1.0


class CdiRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The engines that take devices by CDI and were not changed."""

    engines: tuple[str, ...]
    lacking: str = ""  # why there is no specification of ours for them


class DeviceNode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A device node; ``born`` tells it from a later one of that name: boot and inode."""

    path: PurePosixPath
    born: str


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan that an engine did not take: ``digest`` of all it depends on, and why in the error's words."""

    digest: str
    problem: str


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything we hold on one node."""

    directories: tuple[PurePosixPath, ...] = ()
    toolkit: ToolkitRow | None = None
    engines: tuple[EngineRow, ...] = ()
    configs: tuple[ConfigRow, ...] = ()
    finished: bool = False  # false from the first step to the last proof
    failed: Failure | None = None  # a plan that is not tried again as it is: no crash loop restarts engines
    nodes: tuple[DeviceNode, ...] = ()  # those of the driver that we had made
    pid_file: PurePosixPath | None = None  # of the last ``run``; beside it stood the file of its readiness
    left: str = ""  # why the last undo could not undo everything, "" after an install
    # Since when an undo waits for the rest of it, in UTC; "" where none does, as after an install.
    undo_pending: str = ""
    # Metrics and labels; they stay when nothing else is held, to tell of an install that failed.
    published: tuple[PurePosixPath, ...] = ()
    cdi: CdiRow | None = None  # None but after an install of CDI alone
    nri: PurePosixPath | None = None  # the socket of the engine that the NRI plugin beside ``run`` serves

    @property
    def served(self) -> tuple[str, ...]:
        """The engines that serve what is installed, changed for it or not."""
        unchanged = self.cdi.engines if self.cdi else ()
        return tuple(dict.fromkeys((*(row.name for row in self.engines), *unchanged)))

    @property
    def empty(self) -> bool:
        """Whether nothing is held but directories, and files that tell so."""
        return not (self.toolkit or self.engines or self.configs or self.failed or self.nodes)

    def engine(self, name: str) -> EngineRow | None:
        """Return the row of an engine; None where it is not held."""
        return next((row for row in self.engines if row.name == name), None)

    def config(self, path: PurePosixPath) -> ConfigRow | None:
        """Return the row of ``path``."""
        return next((row for row in self.configs if row.path == path), None)


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


class EngineState(Struct, frozen=True):
    """One engine: where it is configured, by the paths of the host, and what the running one says."""

    spec: EngineSpec
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
    inputs: str = ""  # tells one set of files that it makes its config of from another
    edited_inputs: tuple[PurePosixPath, ...] = ()  # those of them that were changed after its start
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
    drop_in_directory: PurePosixPath | None = None  # the directory of drop-ins that it reads
    dormant: frozenset[PurePosixPath] = frozenset()  # files that it would read with an import of ours
    rendered: File | None = None  # what it made of its configs at its start, where it does not read them
    not_restarted: InstallerError | None = None  # why it is not to be restarted by us
    changed: tuple[PurePosixPath, ...] = ()  # configs that were changed after its start, as far as times tell
    replaced: bool = False  # its program was replaced after its start
    places_by_files: frozenset[str] = frozenset()  # those of its places that its configs alone will give it
    paths: tuple[tuple[PurePosixPath, ...], ...] = ()  # its PATHs, of this start and of its next
    creating: tuple[str, ...] = ()  # containers created and not yet started, for --restart-mode when-idle

    @classmethod
    def usual(cls, spec: EngineSpec) -> Self:
        """Return an engine at its usual places, of which nothing was observed."""
        return cls(spec, spec.config, spec.drop_ins.usual, None, (), spec.socket, spec.unit)

    @property
    def name(self) -> str:
        """What flags, the ledger and events call it."""
        return self.spec.name

    @property
    def title(self) -> str:
        """How a sentence calls it."""
        return self.spec.title

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
