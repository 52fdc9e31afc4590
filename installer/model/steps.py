"""The steps of a plan: each is one change to the host as plain data, with the state before and after."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from installer.config_text import Edit
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.engine import Engine, EngineState
from installer.model.facts import CdiRow, ConfigRow, DeviceNode, EngineRow, Record, ToolkitRow
from installer.model.files import File, PayloadFile
from installer.model.options import Cdi


class MakeDirectory(Struct, frozen=True):
    """Make a missing directory."""

    path: PurePosixPath


class RemoveDirectory(Struct, frozen=True):
    """Remove a directory of ours, if the directory is empty."""

    path: PurePosixPath


class FindRuntimes(Struct, frozen=True):
    """Check that the engine finds ``binaries`` at the paths of its future config."""

    engine_kind: Engine
    binaries: tuple[PurePosixPath, ...]


class WriteConfig(Struct, frozen=True):
    """Replace the file ``before`` with ``after``; None is a missing file."""

    engine: str
    path: PurePosixPath
    before: File | None
    after: File | None
    # The target of a symbolic link that an administrator has put here since we created a file. The link is
    # removed together with the file, for a link to nowhere is not the absence before our install.
    link: str = ""
    # The edits of a text for the time of a reload only: the text may stay, and be edited by others.
    passing: tuple[Edit, ...] = ()
    unwanted: bool = False  # a roll-back does not restore ``before``


class InstallVersion(Struct, frozen=True):
    """Put a payload beside the other payloads, complete or not at all."""

    version: str
    files: tuple[PayloadFile, ...]
    repairs: bool = False  # the payload replaces a damaged copy of the same version, which is not restored


class RemoveVersion(Struct, frozen=True):
    """Remove a payload without users."""

    version: str


class SwitchToolkit(Struct, frozen=True):
    """Give ``<install-dir>/toolkit`` the state ``after``."""

    # The target of a symlink; "" for nothing at the path; None for another installer's directory, which is
    # set aside while our symlink is in its place. None on both sides: that installer has made a new
    # directory, and the directory that was set aside is removed.
    before: str | None
    after: str | None


class Neighbour(Struct, frozen=True):
    """A runtime of others, and the accepted forms of the runtime after a reload."""

    name: str
    forms: tuple[Runtime, ...]


class Reload(Struct, frozen=True):
    """Make a running engine read the config; verify that the engine serves ``present`` and not ``absent``."""

    engine_kind: Engine
    present: tuple[RuntimeEntry, ...]
    absent: tuple[RuntimeEntry, ...] = ()
    unwanted_defaults: frozenset[str] = frozenset()  # none of these may be the engine's default runtime
    others: tuple[Neighbour, ...] = ()  # the engine must serve these as before
    defaults: frozenset[str] = frozenset()  # the engine's default runtime must be one of these; empty: any
    cdi: bool = False  # the engine must serve CDI, if its answer speaks of CDI at all
    when_idle: bool = False  # not to be done while the engine creates containers: ``run`` does it later

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.engine_kind.name

    @property
    def names(self) -> frozenset[str]:
        """The names of our runtimes, present and absent."""
        return frozenset(entry.name for entry in (*self.present, *self.absent))

    def is_served_by(self, engine: EngineState) -> bool:
        """Tell whether an engine already has the result of this reload in force, from the present configs."""
        serving = engine.serving
        if serving is None:
            return False
        if engine.hook is not None:  # the hook's directory was checked before
            return bool(serving.hook_dirs)
        return not engine.outdated and self.satisfied_by(serving)

    def satisfied_by(self, serving: EffectiveConfig) -> bool:
        """Tell whether an engine with ``serving`` in force needs no reload any more."""
        binaries = serving.binaries
        for entry in self.absent:
            is_served = binaries.get(entry.name) == str(entry.binary)
            is_default = serving.default == entry.name and entry.name not in binaries
            if is_served or is_default:
                return False
        if serving.default in self.unwanted_defaults:
            return False
        if self.cdi and serving.cdi is False:
            return False
        return not self.wrong_in(serving)

    def lost_in(self, serving: EffectiveConfig) -> tuple[str, ...]:
        """List the names of others' runtimes not served as before, and "the default"."""
        lost = []
        for neighbour in self.others:
            runtime = serving.handlers.get(neighbour.name)
            if runtime is None or not _has_form(runtime, neighbour.forms):
                lost.append(neighbour.name)
        if self.defaults and serving.default not in self.defaults:
            lost.append("the default")
        return tuple(lost)

    def wrong_in(self, serving: EffectiveConfig) -> tuple[str, ...]:
        """List the names of our runtimes not served as wanted."""
        wrong = []
        for entry in self.present:
            runtime = serving.handlers.get(entry.name)
            wanted = Runtime(str(entry.binary), entry.table or {})
            is_served = runtime is not None and runtime.shows(wanted)
            lacks_default = entry.default and serving.default != entry.name
            if not is_served or lacks_default:
                wrong.append(entry.name)
        return tuple(wrong)


def _has_form(runtime: Runtime, forms: Iterable[Runtime]) -> bool:
    """Tell whether an engine serves a runtime in any of several forms."""
    return any(runtime.same(form) or runtime.shows(form) for form in forms)


class RemoveToolkit(Struct, frozen=True):
    """Remove the directory of another installer, for --adopt."""


class MakeDeviceNodes(Struct, frozen=True):
    """Make the driver's missing device nodes with the toolkit's nvidia-ctk from ``source``."""

    nodes: tuple[DeviceNode, ...]
    cdi: Cdi
    source: PurePosixPath


class RemoveDeviceNodes(Struct, frozen=True):
    """Remove device nodes made by us for the driver, unless the driver has made them again."""

    nodes: tuple[DeviceNode, ...]


class WriteSpecification(Struct, frozen=True):
    """Write the CDI specification generated by the toolkit's nvidia-ctk after the device nodes are made.

    When the text is known, a ``WriteConfig`` replaces this step.
    """

    cdi: Cdi
    source: PurePosixPath
    before: File | None

    @property
    def path(self) -> PurePosixPath:
        """The path of the file."""
        return self.cdi.path


class ProveUnused(Struct, frozen=True):
    """Go on only if no container runs on our runtimes, and no config names a program of ours."""

    hooked: str = ""  # an engine that had our OCI hook: containers in creation must run the hook first


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


class StepDescription(Struct, frozen=True):
    """The description of a step for people, and the step for the undo."""

    text: str  # in the imperative
    event: str  # logged when the step is done
    fields: Mapping[str, str]  # of the event
    undo: Step | None = None  # None if nothing must be undone, and for a reload: a plan decides its undo


def describe(step: Step) -> StepDescription:
    """Return the description of a step for people, and the step for the undo."""
    match step:
        case MakeDirectory() | RemoveDirectory():
            return _describe_directory(step)
        case FindRuntimes(kind):
            text = f"make sure that {kind.title} finds the runtimes"
            return StepDescription(text, "runtimes made visible to the engine", {"engine": kind.name})
        case WriteConfig():
            return _describe_write(step)
        case InstallVersion():
            return _describe_version(step)
        case RemoveVersion(version):
            return StepDescription(f"remove toolkit {version}", "toolkit removed", {"version": version})
        case SwitchToolkit():
            return _describe_switch(step)
        case Reload():
            return _describe_reload(step)
        case RemoveToolkit():
            return StepDescription("remove the toolkit of NVIDIA's installer", "toolkit removed", {})
        case MakeDeviceNodes() | RemoveDeviceNodes():
            return _describe_device_nodes(step)
        case WriteSpecification(cdi):  # has no event: a WriteConfig replaces this step before it is done
            return StepDescription(f"generate the CDI specification {cdi.path}", "", {})
        case ProveUnused():
            text = "make sure that no container runs on the runtimes, and that nothing names their programs"
            return StepDescription(text, "searched again for remaining use", {"found": "nothing"})
        case _:
            assert_never(step)


def _describe_directory(step: MakeDirectory | RemoveDirectory) -> StepDescription:
    """Return the description of the making or the removal of a directory."""
    path = step.path
    fields = {"path": str(path)}
    if isinstance(step, MakeDirectory):
        return StepDescription(f"make the directory {path}", "directory made", fields, RemoveDirectory(path))
    return StepDescription(f"remove the directory {path}", "directory removed", fields, MakeDirectory(path))


def _describe_device_nodes(step: MakeDeviceNodes | RemoveDeviceNodes) -> StepDescription:
    """Return the description of the making or the removal of device nodes."""
    paths = ", ".join(str(node.path) for node in step.nodes)
    fields = {"paths": paths}
    if isinstance(step, MakeDeviceNodes):
        return StepDescription(
            f"make the device nodes {paths}", "device nodes made", fields, RemoveDeviceNodes(step.nodes)
        )
    return StepDescription(f"remove the device nodes {paths}", "device nodes removed", fields)


def _describe_version(step: InstallVersion) -> StepDescription:
    """Return the description of the installation or the repair of a payload."""
    size = f"({len(step.files)} files)"
    fields = {"version": step.version}
    if step.repairs:
        return StepDescription(f"install toolkit {step.version} anew {size}", "toolkit installed", fields)
    undo = RemoveVersion(step.version)
    return StepDescription(f"install toolkit {step.version} {size}", "toolkit installed", fields, undo)


def _describe_reload(step: Reload) -> StepDescription:
    """Return the description of a reload or a restart, by the engine's method."""
    kind = step.engine_kind
    text = kind.describe_reload()
    if step.present:
        text += " and verify that it serves the runtimes"
    return StepDescription(text, kind.reload_event, {"engine": kind.name})


def _describe_write(step: WriteConfig) -> StepDescription:
    """Return the description of the change of a config."""
    if step.before is None:
        text = f"create {step.path}"
    elif step.after is None:
        text = f"remove {step.path}"
    else:
        text = f"edit {step.path}"
    event = "config written" if step.after else "config removed"
    fields = {"engine": step.engine, "path": str(step.path)}
    if step.unwanted:
        return StepDescription(text, event, fields)
    return StepDescription(text, event, fields, replace(step, before=step.after, after=step.before))


def _describe_switch(step: SwitchToolkit) -> StepDescription:
    """Return the description of a change of ``<install-dir>/toolkit``."""
    if step.before is None and step.after is None:
        return StepDescription(
            "remove the previous toolkit of another installer", "previous toolkit removed", {}
        )
    back = SwitchToolkit(step.after, step.before) if step.before != step.after else None
    if step.after is None:
        return StepDescription(
            "restore the toolkit of another installer", "previous toolkit restored", {}, back
        )
    if not step.after:
        return StepDescription("remove the link toolkit", "toolkit link removed", {}, back)
    event = "toolkit link changed" if step.before else "toolkit link created"
    return StepDescription(f"point toolkit to {step.after}", event, {"target": step.after}, back)


START_UNIT: Final = "correct {unit} (see journalctl -u {unit} on the node) and start it"
SINCE_OUR_RESTART: Final = "since our restart of another unit"


class PartId(StrEnum):
    """The id of a part of a plan, as shown with its obstacles. For the part of an engine: ``name_part``."""

    ADOPTED = "adopted"  # files of a lost ledger, or of another installer
    CDI = "cdi"  # the management specification (--cdi-enabled)
    DEVICE_NODES = "device-nodes"
    DIRECTORIES = "directories"
    FAILED_BEFORE = "failed-before"
    GPUS = "gpus"  # the CDI specification of the GPUs (--mode cdi)
    NODE = "node"
    NRI = "nri"
    REFERENCES = "references"
    ROLL_BACK = "roll-back"
    TOOLKIT = "toolkit"
    VALIDATION = "validation"


class Part(Struct, frozen=True):
    """A part of the plan of an install or an undo."""

    id: str
    planned: Planned = ()
    rows: Record = field(default_factory=Record)  # the part's rows of the ledger after the steps
    in_progress: tuple[ConfigRow, ...] = ()  # of an undo: the rows of its configs while the steps are done
    backups: tuple[File, ...] = ()  # saved ahead of all steps
    notes: tuple[str, ...] = ()
    obstacles: tuple[InstallerError, ...] = ()  # each keeps the whole plan from being carried out
    needed: tuple[InstallerError, ...] = ()  # of an undo: the reasons for which something stays
    refused: bool = False  # the part could not be planned

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in their order."""
        return tuple(step for step, _ in self.planned)


def for_reason(reason: str, steps: Iterable[Step]) -> Planned:
    """Return steps, each with the same reason."""
    return tuple((step, reason) for step in steps)


def name_part(name: str) -> str:
    """Return the id of the part of an engine."""
    return f"engine-{name}"


def make_part(part: str, make: Callable[[], Part]) -> Part:
    """Make a part by ``make``, or a part with the error: a plan shows all obstacles."""
    try:
        return make()
    except InstallerError as error:
        return Part(part, obstacles=(error,), refused=True)


def sum_rows(parts: Iterable[Part]) -> Record:
    """Return the ledger's rows of all parts; of two rows for the same thing the row of the later part."""
    directories: dict[PurePosixPath, None] = {}
    toolkit: ToolkitRow | None = None
    engines: dict[str, EngineRow] = {}
    configs: dict[PurePosixPath, ConfigRow] = {}
    nodes: list[DeviceNode] = []
    cdi: CdiRow | None = None
    nri: PurePosixPath | None = None
    for part in parts:
        rows = part.rows
        directories.update(dict.fromkeys(rows.directories))
        toolkit = rows.toolkit or toolkit
        engines.update((row.name, row) for row in rows.engines)
        configs.update((row.path, row) for row in rows.configs)
        nodes += rows.nodes
        cdi = cdi or rows.cdi
        nri = nri or rows.nri
    return Record(
        directories=tuple(directories),
        toolkit=toolkit,
        engines=tuple(engines.values()),
        configs=tuple(configs.values()),
        nodes=tuple(nodes),
        cdi=cdi,
        nri=nri,
    )
