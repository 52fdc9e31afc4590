"""What differs from engine to engine: one row each, which every floor reads."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import dataclass, field
from installer.decide.edits import Edit, Tree
from installer.decide.effect import Effect
from installer.decide.engines.model import ConfigFiles, Decision, Extras, RuntimeEntry

# dockerd does not start with a default in its config as well; the flags of CRI-O win.
DEFAULT_BY_FLAG: Final = {"--default-runtime": "which its config may not say too"}


class ReloadMethod(StrEnum):
    """How an engine takes up a changed config."""

    HUP = "SIGHUP"
    RESTART = "restart"
    ITSELF = "it watches its configs, and restarts itself"


class Api(StrEnum):
    """What an engine answers on its socket, and is greeted in."""

    DOCKER = "Docker's over HTTP/1.1"
    CRI = "CRI over HTTP/2"


@dataclass(frozen=True, slots=True)
class Telling:
    """What tells an engine of runtimes besides its files, as it is started.

    ``default`` is the flag of its default runtime, ``runtime`` the flag of one runtime, whose value has the
    name, ``between`` and the path; either may come by a variable instead.
    """

    default: str
    runtime: str
    between: str
    default_variable: str = ""
    runtime_variable: str = ""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Flags of an engine's command line, each by its names.

    ``config`` and ``drop_ins`` name the root file and the directory of drop-ins, ``places`` where it keeps
    what it knows of its containers and where it listens: without these it has none. ``conflicts`` says why a
    flag stands against any runtime in a config, ``conflicts_as_default`` against a default there.
    """

    config: tuple[str, ...]
    drop_ins: tuple[str, ...] = ()
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    telling: Telling | None = None
    conflicts: Mapping[str, str] = field(default_factory=dict)
    conflicts_as_default: Mapping[str, str] = field(default_factory=dict)


class DropIns(StrEnum):
    """How an engine comes to read another file than its root file."""

    NONE = "not at all"
    IMPORTED = "by an import of the root file"
    READ = "all that are in a directory"


class Monitor(StrEnum):
    """Who holds a container while it runs, and leaves its bundle on the disk."""

    SHIM = "a shim of containerd's"
    CONMON = "conmon"


@dataclass(frozen=True, slots=True)
class State:
    """Where the bundles of an engine's containers are: at ``usual``, if it is not told otherwise.

    ``namespace`` is that of containerd which has its containers alone, "" for any.
    It is told by ``flag`` or by ``key`` of its root file, "" where there is none; they are ``below`` that.
    """

    usual: PurePosixPath
    flag: str = ""
    key: str = ""
    below: str = ""
    namespace: str = ""
    monitor: Monitor = Monitor.SHIM


@dataclass(frozen=True, slots=True)
class Generated:
    """What there is to know of an engine that writes a config anew each time it starts.

    ``finds`` is the runtime of a toolkit at its usual place that it looks for by itself: nothing is edited
    there; "" where it makes that config of texts that others write. ``rendered`` is the file that it makes of
    them, beside the root file if that is no whole path: what stands there is read and is nobody's to edit.
    It is part of one of ``units``; a start is waited for ``start_s`` seconds at least. ``marks`` are parts of
    its paths that no other engine's have. ``needs_root`` tells that it does not start without its root file.
    ``refuses`` returns why a release of it does not start with a drop-in, and which; "" where all do.
    ``copies`` is the pattern of what may take the place of the root file: that of another revision of a snap.
    """

    finds: str
    units: tuple[str, ...]
    start_s: float
    marks: tuple[str, ...]
    rendered: PurePosixPath | None = None
    needs_root: bool = False
    copies: PurePosixPath | None = None
    refuses: Callable[[Tree], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Check:
    """How the program of an engine is asked what it makes of some texts.

    ``words`` are its arguments: a path in them stands for the place where that text is put for the question,
    whose name nobody knows before. ``texts`` returns the texts to be put, given what names their places, and
    ``beside`` holds those of a directory that is put as a whole, by their names in it. ``given`` are the
    flags that an engine that runs was started with and that the question has in other words, None where it
    is asked without any of them; the rest of them stands between ``words`` and ``last``.

    ``says`` returns what the answer means; None where the program has only yes and no. ``by_start`` tells
    that its answer depends on how it is started, so that without that knowledge a no may mean nothing.
    """

    paths: tuple[PurePosixPath, ...]
    texts: Callable[[Callable[[PurePosixPath], str]], Mapping[PurePosixPath, str]]
    words: tuple[str | PurePosixPath, ...]
    last: tuple[str, ...] = ()
    beside: Mapping[PurePosixPath, Mapping[PurePosixPath, str]] = field(default_factory=dict)
    given: tuple[str, ...] | None = None
    says: Callable[[str], Effect] | None = None
    by_start: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """What a program is asked about: the ``texts`` of an engine, and where two of them belong.

    ``rendered`` is what the engine has made of such texts at its last start (see ``Generated``), "" for none.
    """

    config: PurePosixPath
    drop_in: PurePosixPath | None
    texts: Mapping[PurePosixPath, str]
    rendered: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: what differs from the others is in this row.

    ``title`` is how a sentence calls it. ``default_key`` is the last part of the key that names its default
    runtime. ``needs_handler`` tells for a version whether a container cannot be used any more once its
    handler is not configured: containerd 2.x then refuses exec, CRI-O even stop and remove
    (engine-facts.md#removed-handler).

    ``drop_in_names`` is the pattern of the names that it reads in ``drop_in_dir``, "" for all of them and
    those below as well; ``imports`` tells that its files name others to be read with ``imports``.
    ``program`` is where its program is that is in no usual place.

    ``hook_dir`` is where it looks for OCI hooks, None where it has none. ``uses`` is the engine that runs its
    containers for it. ``reload_misreports`` tells that after a reload it says what its files say, and
    serves what it had (engine-facts.md#crio-reload).

    ``named`` returns the runtimes that a file names, with their programs: "" is looked for by its name.

    ``check`` returns how its program is asked what it makes of texts, None where it has no such question.

    ``edits`` are the ways to have our runtimes served, the plainest first; ``effect`` is what files have in
    force as far as their texts tell; ``relocated`` are edits whose keys the engine's own tools have moved.

    ``starts`` are the programs, as patterns of their names, that it starts though no config names them, by
    default those of containerd: io.containerd.gpu.v2 is containerd-shim-gpu-v2, which any client may ask for.

    ``finishes_calls`` tells that it stops when the calls in flight have returned, so that a container which
    it ends cannot wait for its restart.

    ``pidfile`` is what it writes at each start where its socket stays as it was, for systemd holds that.
    """

    name: str
    title: str
    config: PurePosixPath
    drop_in: PurePosixPath | None
    drop_in_dir: PurePosixPath | None
    drop_ins: DropIns
    socket: PurePosixPath
    unit: str
    process: str
    api: Api
    cmdline: CommandLine
    state: State
    reload: ReloadMethod
    default_key: str
    needs_handler: Callable[[tuple[int, ...] | None], bool]
    edits: Callable[[ConfigFiles, tuple[RuntimeEntry, ...], Extras], Iterable[Decision]]
    effect: Callable[[ConfigFiles], Effect]
    drop_in_names: str = ""
    imports: bool = False
    program: PurePosixPath | None = None
    hook_dir: PurePosixPath | None = None
    uses: str = ""
    reload_misreports: bool = False
    check: Callable[[Question], Check] | None = None
    named: Callable[[Tree], Mapping[str, str]] | None = None
    starts: tuple[str, ...] = ("runc", "containerd-shim", "containerd-shim-*")
    finishes_calls: bool = False
    pidfile: PurePosixPath | None = None
    generated: Generated | None = None
    relocated: Callable[[tuple[Edit, ...], Tree], tuple[Edit, ...]] = lambda edits, _: edits

    @property
    def finds(self) -> str:
        """The runtime that it looks for by itself, "" where it has to be told of ours in its config."""
        return self.generated.finds if self.generated else ""

    def rendered(self, config: PurePosixPath) -> PurePosixPath | None:
        """Return the file that it makes of its configs, given its root file; None where it makes none."""
        name = self.generated.rendered if self.generated else None
        return name and config.parent / name

    def is_copy(self, path: PurePosixPath) -> bool:
        """Tell whether a file is none of its configs, and may take the place of its root file."""
        copies = self.generated.copies if self.generated else None
        return copies is not None and path != self.config and path.match(str(copies))

    @property
    def units(self) -> tuple[str, ...]:
        """The units that it may be a part of, where that is not always the same one."""
        return self.generated.units if self.generated else ()
