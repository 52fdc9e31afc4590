"""The record, which is the content of the ledger, and the facts observed on the node: all input of a plan."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from installer.config_text import Edit, Syntax
from installer.errors import InstallerError
from installer.model.engine import EngineState, SeenStart
from installer.model.files import DEFAULT_DRIVER_ROOT, Artifact, Carried, Entry, File, Kind, Meta

T = TypeVar("T")
# A name of a version, or of a saved copy, in a directory of ours.
NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME.pattern}\Z")]


class Owner(StrEnum):
    """The owner of a config, in the place of an engine's name, where no single engine owns the config."""

    CDI = "cdi"  # the CDI specifications: each engine with CDI reads them


class SpecialVersion(StrEnum):
    """A version in the ledger's row of the toolkit that names no payload of ours."""

    ADOPTED = "adopted"  # the directory of NVIDIA's installer, which our uninstall removes
    STAND_IN = "stand-in"  # links to a low-level runtime of the host, left by a forced undo


class Saved(Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it would be without us; the bytes are in the backup named ``digest``."""

    digest: Name
    mode: Annotated[str, msgspec.Meta(pattern=r"\A[0-7]{1,7}\Z")]
    uid: int | None
    gid: int | None
    xattrs: Mapping[str, bytes]

    @classmethod
    def of(cls, file: File | None) -> "Saved | None":
        """Return the row of a file; None for a missing file."""
        if file is None:
            return None
        meta = file.meta
        return cls(file.digest, f"{meta.mode:04o}", meta.uid, meta.gid, dict(meta.xattrs))

    @property
    def meta(self) -> Meta:
        """The mode, the owner and the attributes of the saved file."""
        return Meta(int(self.mode, 8), self.uid, self.gid, tuple(self.xattrs.items()))


class ConfigRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The row of a config of an engine. A file written as a whole has neither syntax nor edits."""

    engine: str
    path: PurePosixPath
    syntax: Syntax | None
    original: Saved | None  # None if the file was missing
    ours: tuple[str, ...]  # the digests of our texts: a file with another digest was edited by others
    edits: tuple[Edit, ...]  # to be undone in a file that was edited by others
    target: PurePosixPath | None = None  # the target of a symbolic link when we wrote
    # The programs of the toolkit that the file named before our first install; twice, if it named one twice.
    # None if unknown, as after a lost ledger: then the saved text counts.
    named: tuple[str, ...] | None = None

    @property
    def written(self) -> bool:
        """Whether we wrote the file: rows are also kept for files that only name our programs."""
        return bool(self.edits) or self.syntax is None


class Pending(StrEnum):
    """What an engine has not read of the texts that the last plan left, and who restarts the engine."""

    RESTART_WHEN_IDLE = "restart-when-idle"  # ``run`` does, as soon as the engine creates no container
    RESTART_BY_OWNER = "restart-by-owner"  # the owner does: --restart-mode is none
    # The owner or the next undo does: until then the engine may start our programs, which stay.
    RESTART_AFTER_UNDO = "restart-after-undo"
    CDI_AT_NEXT_START = "cdi-at-next-start"  # the owner does: a reload does not switch CDI on
    CDI_UNSUPPORTED = "cdi-unsupported"  # nobody need: this release of the engine has no CDI


class EngineRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The row of a configured engine: the engine's socket, and the program of each of our runtimes."""

    name: str
    socket: PurePosixPath
    unit: str
    runtimes: Mapping[str, PurePosixPath]
    state: PurePosixPath | None = None  # the containers' directory, searched also while the engine is stopped
    pending: Pending | None = None  # None if the engine has read everything
    config: PurePosixPath | None = None  # the root config; None if nothing has to be set there
    default: str = ""  # the wanted default runtime
    version: tuple[int, ...] | None = None
    seen_start: SeenStart | None = None  # the last start with known texts
    proven: str = ""  # the digest of all texts of the engine after the last install; "" if unknown

    @property
    def restart_due(self) -> bool:
        """Whether ``run`` still has to restart the engine: the engine has never read these texts of ours."""
        return self.pending is Pending.RESTART_WHEN_IDLE


class ToolkitRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The row of the payload."""

    version: Name
    previous: Name | None  # kept beside ``version``
    rendered: str  # config.toml as we wrote it, to recognize an administrator's edits
    replaced: bool = False  # a directory of another installer was set aside
    linked: str | None = None  # the target of another installer's symlink
    files: Mapping[str, str] = {}  # the manifest of ``version``; empty for an adopted toolkit


class CdiRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The unchanged engines that take devices by CDI."""

    engines: tuple[str, ...]
    lacking: str = ""  # the reason for which we have written no specification for these engines


class DeviceNode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A device node."""

    path: PurePosixPath
    born: str  # boot and inode, which a later node of the same name does not have


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """A plan not accepted by an engine."""

    digest: str  # of the plan's whole input
    problem: str  # in the words of the error


class TurnRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A turn that this node has asked for, and may hold (``fleet.turn_rules``)."""

    release: str
    node: str
    revision: str
    engines: tuple[str, ...]  # each with its major version
    asked: str  # the moment, which tells this turn from an earlier one
    is_new: bool = False  # the node restarts without a turn: no pod of a user runs there yet


class PendingUndo(Struct, frozen=True, forbid_unknown_fields=True):
    """An undo that a unit of systemd finishes."""

    since: str  # the moment of the hand-over, in UTC
    reason: str  # the reason for the hand-over
    # From the hand-over: within this time the next pod of a rolling update takes the undo over.
    waits_s: float = 60.0


class MountRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory of the host with a config of ours, which the install found at another path."""

    path: PurePosixPath  # of the host, without links
    here: PurePosixPath  # for the process of the install


class Record(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the ledger: all our changes of a node."""

    directories: tuple[PurePosixPath, ...] = ()
    toolkit: ToolkitRow | None = None
    engines: tuple[EngineRow, ...] = ()
    configs: tuple[ConfigRow, ...] = ()
    finished: bool = False  # false from the first step to the last proof
    failed: Failure | None = None  # a plan that is not tried again unchanged: no crash loop restarts engines
    nodes: tuple[DeviceNode, ...] = ()  # of the driver, made by us
    pid_file: PurePosixPath | None = None  # of the last ``run``; the file ``ready`` was beside the pidfile
    undo_problem: str = ""  # the reason for which the last undo was not complete, "" after an install
    # Units of systemd that a restart of an engine has taken along, and that did not start again.
    units_down: tuple[str, ...] = ()
    undo_pending: PendingUndo | None = None  # None if no undo waits, as after an install
    # Metrics and labels; they stay when the rest of the record is empty, to report a failed install.
    published: tuple[PurePosixPath, ...] = ()
    cdi: CdiRow | None = None  # None except after an install of CDI alone
    nri: PurePosixPath | None = None  # the socket of the engine that the NRI plugin beside ``run`` serves
    turn: TurnRow | None = None  # written before the turn is asked for, removed after its return
    mounts: tuple[MountRow, ...] = ()  # of the last install, as far as configs of ours are below them

    @property
    def served(self) -> tuple[str, ...]:
        """The engines that serve GPUs by this install, changed or unchanged."""
        unchanged = self.cdi.engines if self.cdi else ()
        return tuple(dict.fromkeys((*(row.name for row in self.engines), *unchanged)))

    @property
    def empty(self) -> bool:
        """Whether the record has only directories, published files and a turn."""
        return not (self.toolkit or self.engines or self.configs or self.failed or self.nodes)

    def engine(self, name: str) -> EngineRow | None:
        """Return the row of an engine; None for an engine without a row."""
        return next((row for row in self.engines if row.name == name), None)

    def config(self, path: PurePosixPath) -> ConfigRow | None:
        """Return the row of ``path``."""
        return next((row for row in self.configs if row.path == path), None)


def require(fact: T | None) -> T:
    """Return a fact included in the observation of this verb.

    Raises:
        LookupError: the fact was not observed: a bug.
    """
    if fact is None:
        raise LookupError("not observed for this verb")
    return fact


OUR_PREFIX: Final = "nvidia-"  # of the names of all programs of the toolkit


class Container(Struct, frozen=True):
    """A container on our runtime, whose removal needs the runtime (engine-facts.md#removed-program)."""

    engine: str
    id: str
    name: str  # for people
    binary: PurePosixPath


def names_of(containers: Iterable[Container]) -> str:
    """Return the containers as part of a sentence, the first few of many."""
    return list_some(sorted({f"{each.name} ({each.engine})" for each in containers}))


def explain_running(containers: Sequence[Container]) -> str:
    """Return what runs the containers, as part of a sentence: our runtime, or an owner's program."""
    owners = [each for each in containers if not each.binary.name.startswith(OUR_PREFIX)]
    ours = [each for each in containers if each not in owners]
    reasons = []
    if ours:
        reasons.append(f"our runtime runs {names_of(ours)}")
    if owners:
        reasons.append(f"{owners[0].binary} runs {names_of(owners)}")
    return ", and ".join(reasons)


def list_some(names: Sequence[str], most: int = 8) -> str:
    """Return the first few of many names."""
    text = ", ".join(names[:most])
    more = len(names) - most
    if more > 0:
        text += f" and {more} more"
    return text


def count(number: int, noun: str) -> str:
    """Return a number with its noun, as part of a sentence."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


class Reference(Struct, frozen=True):
    """A text, an engine or a link outside the ledger that may lead to a program of the toolkit."""

    how: str  # begins a sentence that ends with the program
    program: str  # as the text, the engine or the link names the program
    remedy: str = "correct that file"


class ToolkitFacts(Struct, frozen=True):
    """The present state of ``<install-dir>/toolkit``."""

    kind: Kind = Kind.ABSENT
    link: str = ""  # the symlink's target
    versions: Mapping[str, Mapping[PurePosixPath, Entry]] = field(default_factory=dict)  # beside the ledger
    config: str | None = None  # the installed config.toml
    replaced: bool = False  # the directory of another installer was set aside
    theirs: bool = False  # another installer's programs are there
    superseded: bool = False  # another installer has made a new directory since we set its former one aside
    digests: Mapping[PurePosixPath, str] = field(default_factory=dict)  # sha256 of the version in place
    # The copies of an owner's files, by their names in the ledger, whose originals an undo restores.
    restored: frozenset[str] = frozenset()
    immutable: PurePosixPath | None = None  # a file or directory with chattr +i or +a: root cannot remove it


class PayloadFacts(Struct, frozen=True):
    """The payload to be installed, and the node's means for the payload."""

    artifacts: tuple[Artifact, ...]
    absent_interpreters: frozenset[PurePosixPath] = frozenset()  # of the payload's scripts
    version: tuple[int, ...] | None = None  # by the toolkit's own answer
    free_bytes: int | None = None
    machine: str = "x86_64"
    source_flaw: str = ""  # the reason why nothing can be below the source, "" for a directory
    complete_root: PurePosixPath | None = None  # right below or above the source, with a whole toolkit


class DriverFacts(Struct, frozen=True):
    """The root of NVIDIA's driver, and the host's way to find libraries."""

    root: str = str(DEFAULT_DRIVER_ROOT)
    ldconfig_real: bool = False
    suse: bool = False
    host_config: str = ""  # the text of the config.toml of a toolkit of the host's own


class GpuSpecification(Struct, frozen=True):
    """The wanted CDI specification of the node's GPUs, and the present file at the same path."""

    path: PurePosixPath
    text: str = ""  # "" if no specification can be made
    lacking: str = ""  # the reason for which no specification can be made
    ours: bool = False  # the file at ``path`` is ours
    stale: tuple[str, ...] = ()  # missing files that the file at ``path`` names
    others: tuple[PurePosixPath, ...] = ()  # files of others with the same devices, in engines' directories
    missing: tuple[str, ...] = ()  # devices of ours that an engine would get from none of ``others``
    # The failure of nvidia-ctk with a loaded driver: no file shows when nvidia-ctk would succeed.
    problem: InstallerError | None = None


class CdiFacts(Struct, frozen=True):
    """The facts for the CDI specifications of an install."""

    management: str | None = (
        None  # the specification; None while device nodes for the specification are absent
    )
    absent_nodes: tuple[DeviceNode, ...] = ()
    held_nodes: tuple[DeviceNode, ...] = ()  # nodes of the ledger that still exist
    gpus: GpuSpecification | None = None  # None if containers do not get GPUs by CDI


class ContainerFacts(Struct, frozen=True):
    """The containers on our runtimes."""

    running: tuple[Container, ...] = ()
    idle: tuple[str, ...] = ()  # the names of stopped containers that could not start without our runtimes
    low_level: PurePosixPath | None = None  # a runtime of the host that can replace ours


class Facts(Struct, frozen=True):
    """The host as observed. Facts not needed by a verb are None."""

    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]  # each config that was read
    originals: Mapping[PurePosixPath, File | None]  # the saved texts of the configs in the ledger
    missing: frozenset[PurePosixPath]  # directories that would have to be made
    toolkit: ToolkitFacts
    record: Record
    payload: PayloadFacts | None = None
    driver: DriverFacts | None = None
    cdi: CdiFacts | None = None
    containers: ContainerFacts = field(default_factory=ContainerFacts)
    lost: frozenset[PurePosixPath] = frozenset()  # configs with a missing or damaged saved text
    targets: Mapping[PurePosixPath, PurePosixPath] = field(default_factory=dict)  # behind symbolic links
    # The targets of symbolic links that an administrator has put in the place of files that we created.
    relinked: Mapping[PurePosixPath, str] = field(default_factory=dict)
    links: Mapping[str, PurePosixPath] = field(default_factory=dict)  # to programs that have other names
    # Units of ``record.units_down`` that are down still, with their states in systemd's words.
    units_down: Mapping[str, str] = field(default_factory=dict)
    # Programs that come back with the directory that was in the toolkit's place before ours.
    returning: frozenset[str] = frozenset()
    # By a path in configs and flags: the named file's path below the toolkit's directory.
    in_toolkit: Mapping[str, PurePosixPath] = field(default_factory=dict)
    # The named files that can be copied into another version of the toolkit, by their paths below it.
    portable: Mapping[PurePosixPath, Carried] = field(default_factory=dict)
    users: tuple[Reference, ...] = ()  # programs in the toolkit's directory that run containers
    references: tuple[Reference, ...] = ()  # besides the configs of the observed engines
    refused: Mapping[str, InstallerError] = field(default_factory=dict)  # engines with unknown configs
    unwritable: Mapping[PurePosixPath, InstallerError] = field(default_factory=dict)
    obstacles: tuple[InstallerError, ...] = ()  # reasons for which an install could not end well
    notes: tuple[str, ...] = ()

    @property
    def digests(self) -> dict[PurePosixPath, str]:
        """The digest of each config, "" for a missing config."""
        return {path: file.digest if file else "" for path, file in self.contents.items()}
