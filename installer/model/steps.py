"""A step is one change to the host, as plain data: what is there before it and what after."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import Edit
from installer.errors import InstallerError
from installer.model.engine_spec import EffectiveConfig, EngineSpec, ReloadMethod, Runtime, RuntimeEntry
from installer.model.facts import ConfigRow, DeviceNode, EngineState, Record
from installer.model.files import File, PayloadFile
from installer.model.options import Cdi


class MakeDirectory(Struct, frozen=True):
    """Make one directory that is not there."""

    path: PurePosixPath


class RemoveDirectory(Struct, frozen=True):
    """Remove one directory that we made, if it is empty."""

    path: PurePosixPath


class FindRuntimes(Struct, frozen=True):
    """Look whether the engine finds ``binaries`` where its config will name them."""

    spec: EngineSpec
    binaries: tuple[PurePosixPath, ...]


class WriteConfig(Struct, frozen=True):
    """Put ``after`` in the place of ``before``; None is no file."""

    engine: str
    path: PurePosixPath
    before: File | None
    after: File | None
    # What a symbolic link holds that an administrator has put here since we created a file: it goes with the
    # file, for a link to nowhere is not the absence that was there before us.
    link: str = ""
    # The edits of a text that stands there for the time of a reload: it may stay, and be edited by others.
    passing: tuple[Edit, ...] = ()
    unwanted: bool = False  # ``before`` does not come back, also if what follows fails


class InstallVersion(Struct, frozen=True):
    """Put a payload beside the others, complete or not at all."""

    version: str
    files: tuple[PayloadFile, ...]
    repairs: bool = False  # it takes the place of the same version, damaged, which does not come back


class RemoveVersion(Struct, frozen=True):
    """Remove a payload that nothing names any more."""

    version: str


class SwitchToolkit(Struct, frozen=True):
    """Let ``<install-dir>/toolkit`` be what ``after`` says."""

    # What a symlink holds, "" for no such name, None for another installer's directory, which stands aside
    # while our symlink is in its place. None on both sides: that goes, for a later one has taken its name.
    before: str | None
    after: str | None


class Neighbour(Struct, frozen=True):
    """A runtime that is not ours, and the forms in which its engine may serve it after a reload."""

    name: str
    forms: tuple[Runtime, ...]


class Reload(Struct, frozen=True):
    """Make a running engine read its config; verify that it serves ``present`` and not ``absent``."""

    spec: EngineSpec
    present: tuple[RuntimeEntry, ...]
    absent: tuple[RuntimeEntry, ...] = ()
    demoted: frozenset[str] = frozenset()  # none of these may be its default runtime
    others: tuple[Neighbour, ...] = ()  # which have to be served as they were
    defaults: frozenset[str] = frozenset()  # one of these has to be its default, where any are given
    cdi: bool = False  # CDI has to be served, where the engine tells of it at all
    when_idle: bool = False  # it is given up where the engine goes on creating containers

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.spec.name

    def is_served_by(self, engine: EngineState) -> bool:
        """Tell whether an engine says that it serves what this is to bring about, of configs it has read."""
        serving = engine.serving
        if engine.hook is not None:  # in a directory that it names, which is checked before
            return serving is not None and bool(serving.hook_dirs)
        return serving is not None and not engine.outdated and self.satisfied_by(serving)

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
    """Remove the directory of another installer, for --adopt."""


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
    """Go on only if no container runs on our runtimes by now, and nothing names a program of ours."""

    hooked: str = ""  # the engine that had an OCI hook of ours: what it is making has to run that first


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
Planned: TypeAlias = tuple[tuple[Step, str], ...]  # steps, each with its reason


TAKES_UP: Final[Mapping[ReloadMethod, tuple[str, str]]] = {
    ReloadMethod.HUP: ("reload {}", "engine reloaded"),
    ReloadMethod.RESTART: ("restart {}", "engine restarted"),
    ReloadMethod.ITSELF: ("wait until {} has restarted containerd by itself", "engine restarted by itself"),
}


class Deed(Struct, frozen=True):
    """What a step is to people: in the imperative, as the event that tells it is done, and what undoes it."""

    text: str
    event: str
    fields: Mapping[str, str]
    undo: Step | None = None  # None where there is nothing to undo, or, of a reload, where a plan decides


def describe(step: Step) -> Deed:
    """Return what a step is to people, and the step that undoes it."""
    match step:
        case MakeDirectory(path) | RemoveDirectory(path):
            verb, past = ("make", "made") if isinstance(step, MakeDirectory) else ("remove", "removed")
            other: Step = RemoveDirectory(path) if isinstance(step, MakeDirectory) else MakeDirectory(path)
            return Deed(f"{verb} the directory {path}", f"directory {past}", {"path": str(path)}, other)
        case FindRuntimes(spec):
            text = f"make sure that {spec.title} finds the runtimes"
            return Deed(text, "runtimes found by the engine", {"engine": spec.name})
        case WriteConfig(engine, path, before, after):
            text = f"{'create' if before is None else 'remove' if after is None else 'edit'} {path}"
            event = "config written" if after else "config removed"
            back = None if step.unwanted else replace(step, before=after, after=before)
            return Deed(text, event, {"engine": engine, "path": str(path)}, back)
        case InstallVersion(version, files, repairs):
            text = f"install toolkit {version}{' anew' if repairs else ''} ({len(files)} files)"
            gone = None if repairs else RemoveVersion(version)
            return Deed(text, "toolkit installed", {"version": version}, gone)
        case RemoveVersion(version):
            return Deed(f"remove toolkit {version}", "toolkit removed", {"version": version})
        case SwitchToolkit():
            return _describe_switch(step)
        case Reload(spec, present):
            text, event = TAKES_UP[spec.reload]
            proof = " and verify that it serves the runtimes" if present else ""
            return Deed(f"{text.format(spec.title)}{proof}", event, {"engine": spec.name})
        case RemoveToolkit():
            return Deed("remove the toolkit of NVIDIA's installer", "toolkit removed", {})
        case MakeDeviceNodes(nodes) | RemoveDeviceNodes(nodes):
            verb, past = ("make", "made") if isinstance(step, MakeDeviceNodes) else ("remove", "removed")
            paths = ", ".join(str(node.path) for node in nodes)
            removal = RemoveDeviceNodes(nodes) if isinstance(step, MakeDeviceNodes) else None
            return Deed(f"{verb} the device nodes {paths}", f"device nodes {past}", {"paths": paths}, removal)
        case WriteSpecification(cdi):  # once its text is known a WriteConfig stands in its place
            return Deed(f"generate the CDI specification {cdi.path}", "", {})
        case ProveUnused():
            text = "make sure that no container runs on the runtimes, and that nothing names their programs"
            return Deed(text, "no use of our programs found", {})
        case _:
            assert_never(step)


def _describe_switch(step: SwitchToolkit) -> Deed:
    if step.before is None and step.after is None:
        return Deed("remove the previous toolkit of another installer", "previous toolkit removed", {})
    back = SwitchToolkit(step.after, step.before) if step.before != step.after else None
    if step.after is None:
        return Deed("restore the toolkit of another installer", "previous toolkit restored", {}, back)
    if not step.after:
        return Deed("remove the link toolkit", "toolkit link removed", {}, back)
    event = "toolkit link changed" if step.before else "toolkit link created"
    return Deed(f"point toolkit to {step.after}", event, {"target": step.after}, back)


TRY_AGAIN: Final = "run toolkit-installer uninstall again"


class Part(Struct, frozen=True):
    """What one part of an install or an undo takes."""

    id: str
    planned: Planned = ()
    rows: Record = field(default_factory=Record)  # what is held of it after the steps
    in_progress: tuple[ConfigRow, ...] = ()  # of an undo: what is held of its configs meanwhile
    backups: tuple[File, ...] = ()  # which are saved ahead of all steps
    notes: tuple[str, ...] = ()
    obstacles: tuple[InstallerError, ...] = ()  # which keep the whole plan from being carried out
    needed: tuple[InstallerError, ...] = ()  # of an undo: why something stays
    refused: bool = False  # what the part would take is not known

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done, in this order."""
        return tuple(step for step, _ in self.planned)


def for_reason(reason: str, steps: Iterable[Step]) -> Planned:
    """Return steps that all have one reason."""
    return tuple((step, reason) for step in steps)


def name_part(name: str) -> str:
    """Return the id of the part that is about an engine."""
    return f"engine-{name}"


def make_part(part: str, make: Callable[[], Part]) -> Part:
    """Return what ``make`` makes, or a part with the reason why it cannot: a plan has all obstacles."""
    try:
        return make()
    except InstallerError as error:
        return Part(part, obstacles=(error,), refused=True)


def sum_rows(parts: Iterable[Part]) -> Record:
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
