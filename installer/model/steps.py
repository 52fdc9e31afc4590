"""A step is one change to the host, as plain data: what is there before it and what after."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import Edit
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine_spec import ReloadMethod, RuntimeEntry
from installer.model.files import File, PayloadFile
from installer.model.options import Cdi
from installer.model.record import ConfigRow, DeviceNode, Record


class MakeDirectory(Struct, frozen=True):
    """Make one directory that is not there."""

    path: PurePosixPath


class RemoveDirectory(Struct, frozen=True):
    """Remove one directory that we made, if nobody put anything into it."""

    path: PurePosixPath


class FindRuntimes(Struct, frozen=True):
    """Look whether the engine finds ``binaries`` where its config is going to name them."""

    engine: str
    binaries: tuple[PurePosixPath, ...]


class WriteConfig(Struct, frozen=True):
    """Put ``after`` in the place of ``before``; None is no file.

    ``link`` is what a symbolic link holds that somebody has put at ``path`` since we created a file there:
    it goes with the file, for a link to nowhere is not the absence that was there before us. ``passing`` are
    the edits of a text that stands there for the time of a reload only: it may stay, and be edited by others.
    ``unwanted`` is that nobody wants ``before`` back, also if what follows fails.
    """

    engine: str
    path: PurePosixPath
    before: File | None
    after: File | None
    link: str = ""
    passing: tuple[Edit, ...] = ()
    unwanted: bool = False


class InstallVersion(Struct, frozen=True):
    """Put a payload beside the others, complete or not at all.

    One that ``repairs`` takes the place of the same version, damaged, which nobody wants back.
    """

    version: str
    files: tuple[PayloadFile, ...]
    repairs: bool = False


class RemoveVersion(Struct, frozen=True):
    """Remove a payload that nothing names any more."""

    version: str


class SwitchToolkit(Struct, frozen=True):
    """Let ``<install-dir>/toolkit`` be what ``after`` says.

    Each side is what a symlink holds, "" for no such name, or None for the directory of another
    installer, which stands aside while our symlink is in its place; on both sides, the one that stands
    aside goes, for a later one has taken its name.
    """

    before: str | None
    after: str | None


class Neighbour(Struct, frozen=True):
    """A runtime that is not ours, and the forms in which its engine may serve it after a reload."""

    name: str
    forms: tuple[Runtime, ...]


class Reload(Struct, frozen=True):
    """Make a running engine read its config; prove that it serves ``present`` and not ``absent``.

    None of ``demoted`` may be its default runtime, and the ``others`` have to be served as they were, with
    one of ``defaults`` for the default where any are given. ``cdi`` tells that CDI has to be served, where
    the engine tells of it at all.
    """

    engine: str
    present: tuple[RuntimeEntry, ...]
    absent: tuple[RuntimeEntry, ...] = ()
    demoted: frozenset[str] = frozenset()
    others: tuple[Neighbour, ...] = ()
    defaults: frozenset[str] = frozenset()
    cdi: bool = False

    def satisfied_by(self, serving: EffectiveConfig) -> bool:
        """Tell whether an engine that serves this needs no reload any more."""
        binaries = serving.binaries
        gone = all(
            binaries.get(entry.name) != str(entry.binary)
            and (serving.default != entry.name or entry.name in binaries)
            for entry in self.absent
        )
        unasked = serving.default not in self.demoted and not (self.cdi and serving.cdi is False)
        return gone and unasked and not self.wrong_in(serving)

    def lost_in(self, serving: EffectiveConfig) -> tuple[str, ...]:
        """Return what is not served as it was: the runtimes of others, and the default."""
        lost = tuple(
            one.name
            for one in self.others
            if (found := serving.handlers.get(one.name)) is None
            or not any(found.same(form) or found.shows(form) for form in one.forms)
        )
        return (*lost, "the default") if self.defaults and serving.default not in self.defaults else lost

    def wrong_in(self, serving: EffectiveConfig) -> tuple[str, ...]:
        """Return the names of the runtimes that are not served as they should be."""
        return tuple(
            entry.name
            for entry in self.present
            if (found := serving.handlers.get(entry.name)) is None
            or not found.shows(Runtime(str(entry.binary), entry.table or {}))
            or (entry.default and serving.default != entry.name)
        )


class RemoveToolkit(Struct, frozen=True):
    """Remove the directory of another installer, which we were told to adopt."""


class MakeDeviceNodes(Struct, frozen=True):
    """Let the toolkit's nvidia-ctk, from ``source``, make the driver's device nodes that are absent."""

    nodes: tuple[DeviceNode, ...]
    cdi: Cdi
    source: PurePosixPath


class RemoveDeviceNodes(Struct, frozen=True):
    """Remove device nodes of the driver that we had made, each if it still is that one."""

    nodes: tuple[DeviceNode, ...]


class WriteSpecification(Struct, frozen=True):
    """Write the CDI specification that the toolkit's nvidia-ctk generates once the device nodes are there.

    It is carried out as a ``WriteConfig``, once its text is known.
    """

    cdi: Cdi
    source: PurePosixPath
    before: File | None

    @property
    def path(self) -> PurePosixPath:
        """The file."""
        return self.cdi.path


class ProveUnused(Struct, frozen=True):
    """Go on only if no container has been started on our runtimes since the host was looked at.

    ``hooked`` is the engine that had an OCI hook of ours: what it is making has to run that first.
    """

    hooked: str = ""


ConcreteStep: TypeAlias = (
    MakeDirectory
    | RemoveDirectory
    | FindRuntimes
    | WriteConfig
    | InstallVersion
    | RemoveVersion
    | SwitchToolkit
    | Reload
    | RemoveToolkit
    | MakeDeviceNodes
    | RemoveDeviceNodes
    | ProveUnused
)
Step: TypeAlias = ConcreteStep | WriteSpecification


TAKES_UP: Final[Mapping[ReloadMethod, str]] = {
    ReloadMethod.HUP: "reload {}",
    ReloadMethod.RESTART: "restart {}",
    ReloadMethod.ITSELF: "wait until {} has restarted containerd by itself",
}
PROOF: Final = " and prove that it serves the runtimes"


def describe(step: Step) -> str:
    """Return the step as a line for people, in the imperative."""
    match step:
        case MakeDirectory(path) | RemoveDirectory(path):
            return f"{'make' if isinstance(step, MakeDirectory) else 'remove'} the directory {path}"
        case FindRuntimes(engine):
            return f"make sure that {ENGINES[engine].title} finds the runtimes"
        case WriteConfig(_, path, before, after):
            verb = "create" if before is None else "remove" if after is None else "edit"
            return f"{verb} {path}"
        case InstallVersion(version, files, repairs):
            return f"install toolkit {version}{' anew' if repairs else ''} ({len(files)} files)"
        case RemoveVersion(version):
            return f"remove toolkit {version}"
        case SwitchToolkit(before, after):
            return _switched(before, after)
        case Reload(engine, present):
            return (
                f"{TAKES_UP[ENGINES[engine].reload].format(ENGINES[engine].title)}{PROOF if present else ''}"
            )
        case RemoveToolkit():
            return "remove the toolkit of NVIDIA's installer"
        case MakeDeviceNodes(nodes) | RemoveDeviceNodes(nodes):
            verb = "make" if isinstance(step, MakeDeviceNodes) else "remove"
            return f"{verb} the device nodes {paths_of(nodes)}"
        case WriteSpecification(cdi):
            return f"generate the CDI specification {cdi.path}"
        case ProveUnused():
            return "make sure that no container runs on the runtimes"
        case _:
            assert_never(step)


def _switched(before: str | None, after: str | None) -> str:
    if before is None and after is None:
        return "remove the toolkit that another installer had there before"
    return f"point toolkit to {after}" if after else "point toolkit to what it was before"


def paths_of(nodes: Iterable[DeviceNode]) -> str:
    """Return the paths of device nodes as part of a sentence."""
    return ", ".join(str(node.path) for node in nodes)


def inverse(step: Step) -> Step | None:
    """Return the step that undoes ``step``; None where there is nothing to undo.

    A reload is undone by whoever knows what the engine served before.
    """
    match step:
        case MakeDirectory(path):
            return RemoveDirectory(path)
        case RemoveDirectory(path):
            return MakeDirectory(path)
        case WriteConfig(_, _, before, after, unwanted=unwanted):
            return None if unwanted else replace(step, before=after, after=before)
        case InstallVersion(version, _, repairs):
            return None if repairs else RemoveVersion(version)
        case SwitchToolkit(before, after):
            return SwitchToolkit(before=after, after=before) if before != after else None
        case MakeDeviceNodes(nodes):
            return RemoveDeviceNodes(nodes)
        case (
            FindRuntimes()
            | RemoveVersion()
            | Reload()
            | RemoveToolkit()
            | RemoveDeviceNodes()
            | ProveUnused()
        ):
            return None
        case WriteSpecification():
            return None  # what was written stands in its place as a WriteConfig
        case _:
            assert_never(step)


TRY_AGAIN: Final = "run toolkit-installer uninstall again"


class Part(Struct, frozen=True):
    """What one part of an install or an undo takes.

    ``why`` has the reason of each step. ``rows`` is what is held of it after the steps; an undo also says
    in ``in_progress`` what is held of its configs while they go on, and in ``needed`` why something stays.
    ``backups`` are saved ahead of all steps; ``obstacles`` keep the whole plan from being carried out.
    ``refused`` tells that nobody can say what the part would take.
    """

    id: str
    steps: tuple[Step, ...] = ()
    why: tuple[str, ...] = ()
    rows: Record = field(default_factory=Record)
    in_progress: tuple[ConfigRow, ...] = ()
    backups: tuple[File, ...] = ()
    notes: tuple[str, ...] = ()
    obstacles: tuple[InstallerError, ...] = ()
    needed: tuple[InstallerError, ...] = ()
    refused: bool = False

    @property
    def reasons(self) -> tuple[tuple[Step, str], ...]:
        """Each step with its reason."""
        return tuple(zip(self.steps, self.why, strict=True))


def id_of(name: str) -> str:
    """Return the id of the part that is about an engine."""
    return f"engine-{name}"


def attempted(part: str, make: Callable[[], Part]) -> Part:
    """Return what ``make`` makes, or a part that says why nobody can: a plan tells all its obstacles."""
    try:
        return make()
    except InstallerError as error:
        return Part(part, obstacles=(error,), refused=True)


def rows_of(parts: Iterable[Part]) -> Record:
    """Return what is held of all parts; where two have a row for the same thing, that of the later one."""
    rows = [part.rows for part in parts]
    return Record(
        directories=tuple(dict.fromkeys(path for each in rows for path in each.directories)),
        toolkit=next((each.toolkit for each in reversed(rows) if each.toolkit), None),
        engines=tuple({row.name: row for each in rows for row in each.engines}.values()),
        configs=tuple({row.path: row for each in rows for row in each.configs}.values()),
        nodes=tuple(node for each in rows for node in each.nodes),
        cdi=next((each.cdi for each in rows if each.cdi), None),
        nri=next((each.nri for each in rows if each.nri), None),
    )
