"""What was found on the host: everything a decision may depend on."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final, Self

from msgspec import Struct, field

from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Flags
from installer.model.engine_spec import EngineSpec
from installer.model.files import Artifact, Entry, File, Kind
from installer.model.paths import DEFAULT_DRIVER_ROOT, PATH, Layout
from installer.model.record import DeviceNode, Record
from installer.model.steps import Reload

NAMED: Final = 8


class Container(Struct, frozen=True):
    """A container whose runtime is ours; ``name`` is what its owner calls it.

    It can only be stopped and removed while the binary it was started by is there
    (engine-facts.md#removed-program).
    """

    engine: str
    id: str
    name: str
    binary: PurePosixPath


def names_of(containers: Iterable[Container]) -> str:
    """Return the containers as part of a sentence, the first few of many."""
    names = sorted({f"{each.name} ({each.engine})" for each in containers})
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


class Started(Struct, frozen=True):
    """How an engine was started, or will be: the words behind its ``program``, and the environment."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """Where programs are looked for that a word names; systemd sets a PATH where a unit does not."""
        places = self.environment.get("PATH", "").split(":")
        return tuple(PurePosixPath(place) for place in places if place.startswith("/")) or PATH


class EngineState(Struct, frozen=True):
    """One engine of this run: where it is configured, and what the running one says.

    ``files`` are the configs it reads, in that order, by the host's path. ``serving`` is
    None, and ``silence`` says why, where none answers; ``remedy`` what lets us connect, where that alone is
    it; ``stopped`` that none runs at all; ``crashing`` that
    none does for the moment, for its unit is started again and again.
    ``pid`` is its process where that is in a pid namespace we see, ``exe`` what it runs, ``build`` tells
    one build of that binary from another, ``start`` one way in which its unit starts it from another;
    ``state`` is where the state of its containers is, if not at the usual place. ``outdated`` tells that it
    may serve less than it says: a config changed since its start, and no install has proven it.
    ``hooks`` are the OCI hooks that it runs, where somebody looked for them. ``started`` is how its process
    was started, ``next_start`` how its unit will start it; None where nobody can tell. ``flags`` are those of
    its start that say more than its files, ``next_flags`` those of its next. ``unreadable`` are the names
    that it imports which are there without a text as well, as symbolic links and directories are: with such a
    one it does not start. ``dormant`` are files that it does not read, and would with an import of ours.
    ``rendered`` is what it made of its configs at its last start, where it does not read them as they are.
    ``not_restarted`` is why it is not to be restarted by us, as far as anybody can tell, ``places_by_files``
    are those of its places that its configs alone will give it. ``paths`` are the PATHs by which it finds
    programs, of this start and of its next. ``creating`` are the containers that it has created and not yet
    started, where somebody has asked.
    """

    name: str
    config: PurePosixPath
    drop_in: PurePosixPath | None
    hook: PurePosixPath | None
    files: tuple[PurePosixPath, ...]
    socket: PurePosixPath
    unit: str
    version: tuple[int, ...] | None = None
    serving: EffectiveConfig | None = None
    silence: str = ""
    remedy: str = ""
    stopped: bool = False
    failed: bool = False
    disabled: bool = False
    another: str = ""
    crashing: bool = False
    pid: int | None = None
    exe: PurePosixPath | None = None
    build: str = ""
    start: str = ""
    state: PurePosixPath | None = None
    outdated: bool = False
    hooks: tuple[PurePosixPath, ...] = ()
    started: Started | None = None
    flags: Flags = field(default_factory=Flags)
    next_flags: Flags = field(default_factory=Flags)
    next_start: Started | None = None
    unreadable: frozenset[PurePosixPath] = frozenset()
    dormant: frozenset[PurePosixPath] = frozenset()
    rendered: File | None = None
    not_restarted: InstallerError | None = None
    places_by_files: frozenset[str] = frozenset()
    paths: tuple[tuple[PurePosixPath, ...], ...] = ()
    creating: tuple[str, ...] = ()

    @classmethod
    def usual(cls, spec: EngineSpec) -> Self:
        """Return an engine at its usual places, of which nothing was observed."""
        return cls(spec.name, spec.config, spec.drop_in, None, (), spec.socket, spec.unit)

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the running process was started with, () where nobody can tell."""
        return self.started.words if self.started else ()

    @property
    def next_words(self) -> tuple[str, ...]:
        """The words that its unit will start it with, () where nobody can tell."""
        return self.next_start.words if self.next_start else ()

    @property
    def title(self) -> str:
        """How a sentence calls it."""
        return ENGINES[self.name].title

    def serves(self, reload: Reload) -> bool:
        """Tell whether it says that it serves what a reload is to bring about, of configs it has read."""
        return self.serving is not None and not self.outdated and reload.satisfied_by(self.serving)


class Reference(Struct, frozen=True):
    """A text, an engine or a link, none of the ledger's, that may lead to a program of the toolkit.

    ``how`` begins a sentence that ends with ``program``, as it is named there; ``remedy`` ends it.
    """

    how: str
    program: str
    remedy: str = "correct that file"


class ToolkitFacts(Struct, frozen=True):
    """What stands at ``<install-dir>/toolkit``.

    ``link`` is what the symlink holds; ``versions`` lists the payloads beside the ledger, file
    by file, and ``digests`` holds the sha256 of the files of the one that the symlink leads to;
    ``config`` is the text of the installed config.toml; ``replaced`` tells that the directory of
    another installer stands aside; ``theirs`` that what stands there has programs, and is not ours;
    ``superseded`` that what we have set aside has a later one in its place; ``defaults`` are the default
    runtimes that configs had before ours, where they are that installer's by now.
    """

    kind: Kind = Kind.ABSENT
    link: str = ""
    versions: Mapping[str, Mapping[PurePosixPath, Entry]] = field(default_factory=dict)
    config: str | None = None
    replaced: bool = False
    theirs: bool = False
    superseded: bool = False
    defaults: Mapping[PurePosixPath, str] = field(default_factory=dict)
    digests: Mapping[PurePosixPath, str] = field(default_factory=dict)


class GpuSpecification(Struct, frozen=True):
    """The CDI specification of the node's GPUs: what it is to be, and what stands in its place.

    ``text`` is "" where none can be made, and then ``lacking`` says why. ``ours`` tells that what stands at
    ``path`` is one of ours, and ``stale`` are the files that it names and that are not there any more.
    ``others`` are the files of somebody else, in directories that engines read, with devices that ours has,
    too, and ``missing`` the devices that one of these engines gets of nobody then. ``unmade`` is how
    nvidia-ctk has failed although a driver is loaded, for no file may tell when it would not, or that the
    others have not all GPUs.
    """

    path: PurePosixPath
    text: str = ""
    lacking: str = ""
    ours: bool = False
    stale: tuple[str, ...] = ()
    others: tuple[PurePosixPath, ...] = ()
    missing: tuple[str, ...] = ()
    unmade: InstallerError | None = None


class Facts(Struct, frozen=True):
    """The host as it was found.

    ``contents`` holds each config that was read, ``originals`` the saved text of those in the ledger,
    ``missing`` the directories that would have to be made. ``obstacles`` are reasons for which an install
    could not end well. ``targets`` tells of each config that is reached through a symbolic link where it
    is. ``running`` are the containers on our runtimes, ``idle`` the names of stopped ones that could not be
    started without them; ``low_level`` is a runtime of the host that can take the place of ours;
    ``cdi_spec`` is the specification for this node, None while device nodes are absent that it would name:
    ``absent_nodes``; ``held_nodes`` are those of the ledger that are still there. ``gpus`` is there where
    containers get GPUs by CDI.
    ``absent_interpreters`` are those of the payload's scripts that the host lacks. ``version`` is what the
    toolkit to be installed says of itself, if anything. ``links`` tells of what configs and engines name by a
    symbolic link where it is, ``returning`` what of that comes back with the directory that stood in the
    toolkit's place before ours. ``lost`` are the configs whose saved text is missing or damaged; ``relinked``
    tells what the symbolic links hold that somebody has put in the place of files that we created.
    ``references`` are what names the toolkit, or device nodes of ours, besides the configs of the ledger's
    engines. ``refused`` tells by name of an engine that runs why nobody knows its configs;
    ``unwritable`` tells by path why a file that an install may write could not be written.
    """

    engines: tuple[EngineState, ...]
    contents: Mapping[PurePosixPath, File | None]
    originals: Mapping[PurePosixPath, File | None]
    missing: frozenset[PurePosixPath]
    artifacts: tuple[Artifact, ...]
    toolkit: ToolkitFacts
    held: Record
    driver_root: str = str(DEFAULT_DRIVER_ROOT)
    ldconfig_real: bool = False
    suse: bool = False
    free_bytes: int | None = None
    machine: str = "x86_64"
    obstacles: tuple[InstallerError, ...] = ()
    notes: tuple[str, ...] = ()
    targets: Mapping[PurePosixPath, PurePosixPath] = field(default_factory=dict)
    running: tuple[Container, ...] = ()
    idle: tuple[str, ...] = ()
    low_level: PurePosixPath | None = None
    cdi_spec: str | None = None
    gpus: GpuSpecification | None = None
    absent_nodes: tuple[DeviceNode, ...] = ()
    held_nodes: tuple[DeviceNode, ...] = ()
    absent_interpreters: frozenset[PurePosixPath] = frozenset()
    lost: frozenset[PurePosixPath] = frozenset()
    version: tuple[int, ...] | None = None
    links: Mapping[str, PurePosixPath] = field(default_factory=dict)
    returning: frozenset[str] = frozenset()
    relinked: Mapping[PurePosixPath, str] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    refused: Mapping[str, InstallerError] = field(default_factory=dict)
    unwritable: Mapping[PurePosixPath, InstallerError] = field(default_factory=dict)

    @property
    def digests(self) -> dict[PurePosixPath, str]:
        """The digest of each config, "" where there is none."""
        return {path: file.digest if file else "" for path, file in self.contents.items()}

    def leads_into(self, value: str, layout: Layout) -> bool:
        """Tell whether a path is one of the toolkit's: by its name, behind ``toolkit``, by another link."""
        return self._leads(value, layout, lambda each: (each.toolkit, each.home))

    def goes(self, value: str, layout: Layout) -> bool:
        """Tell whether an undo takes the program at a path away: not that of another toolkit in our place.

        Nor one that comes back with the directory that stood there before ours.
        """
        if value in self.returning:
            return False
        if not self.toolkit.theirs:
            return self.leads_into(value, layout)
        return self._leads(value, layout, lambda each: (each.home,))

    def _leads(
        self, value: str, layout: Layout, places_of: Callable[[Layout], tuple[PurePosixPath, ...]]
    ) -> bool:
        real = self.links.get(str(layout.install_dir), layout.install_dir)
        places = {each for directory in (layout, Layout(real)) for each in places_of(directory)}
        # Without what only spells it otherwise; a word is no path.
        named = PurePosixPath(normpath(f"/{value.lstrip('/')}")) if value.startswith("/") else None
        found = {named, self.links.get(value)}
        return any(
            path is not None and path not in places and path.is_relative_to(place)
            for path in found
            for place in places
        )
