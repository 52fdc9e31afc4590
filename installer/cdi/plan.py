"""The mode of this node, by what its engines say of CDI; and CDI's parts of a plan.

The parts are the driver's device nodes, the management specification, and the specification of the GPUs.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_edits import withdraw, without_us
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine import EngineState, Version
from installer.model.facts import (
    CdiRow,
    ConfigRow,
    Facts,
    GpuSpecification,
    Owner,
    Record,
    Saved,
    list_some,
    require,
)
from installer.model.files import File, Meta
from installer.model.options import GPU_KIND, Mode, Options, RestartMode
from installer.model.steps import (
    MakeDeviceNodes,
    Part,
    PartId,
    Planned,
    RemoveDeviceNodes,
    Step,
    WriteConfig,
    WriteSpecification,
    for_reason,
)

SPEC_DIR: Final = PurePosixPath("/var/run/cdi")
SPECIFICATION: Final = SPEC_DIR / f"{GPU_KIND.replace('/', '-')}.json"
# Both names of the directory in engines' configs: on every current system one is a link to the other.
SPEC_DIRS: Final = frozenset({SPEC_DIR, PurePosixPath("/run/cdi")})

NAMED: Final = 4  # of the missing devices
NEW: Final = "it is not there"
REMOVED: Final = "it was removed"
CHANGED: Final = "nvidia-ctk generates another one for this node now"
STALE: Final = "it names files that are gone, so no container could start with it"
GIVES_WAY: Final = "another specification with the same devices is there"
WITHDRAWN: Final = "the stale one was removed, but a new one could not be written"
# Reasons outside our files (driver, devices, specifications of others): they are not drift.
FOLLOWS: Final = frozenset({NEW, CHANGED, STALE, GIVES_WAY})


def highest_read(engines: Iterable[EngineState]) -> Version | None:
    """Return the highest version of specifications for all of the engines; None if unknown."""
    found = []
    for engine in engines:
        if engine.version:
            version = read_by(engine.name, engine.version)
            if version is not None:
                found.append(version)
    return min(found, default=None)


def read_by(name: str, version: Version) -> Version | None:
    """Return the highest version of specifications for an engine; None if unknown."""
    for since, read in ENGINES[name].cdi.reads:
        if version >= since:
            return read
    return None


def mode_of(engines: Iterable[EngineState], record: Record, options: Options) -> tuple[Mode, str]:
    """Return the mode of this node, never ``auto``, and for the option ``auto`` the reason of the choice."""
    if options.mode is not Mode.AUTO:
        return options.mode, ""
    against = next(_for_runtimes(tuple(engines), record, options), "")
    if against:
        return Mode.RUNTIME, against
    return Mode.CDI, "every engine has CDI in effect, and no runtime was asked for: nothing is restarted"


def _for_runtimes(engines: tuple[EngineState, ...], record: Record, options: Options) -> Iterator[str]:
    """Yield why the engines must serve our runtimes."""
    if record.engines:
        yield f"{ENGINES[record.engines[0].name].title} has runtimes of ours already"
    flags = options.needs_runtime
    if flags:
        yield f"a runtime is asked for by {' and '.join(flags)}"
    if not engines:
        yield "no engine is to be asked"
    for engine in engines:
        reason = lacking(engine)
        if reason:
            yield f"{engine.title} takes no devices by CDI ({reason})"


def lacking(engine: EngineState) -> str:
    """Return the reason, in the engine's words, why containers get no devices by CDI; "" if CDI works."""
    serving = engine.serving
    if serving is None:
        return engine.silence_reason
    if serving.cdi is None:
        return "it has no CDI"
    if not serving.cdi:
        return "it says that CDI is switched off"
    if engine.version and engine.version < engine.kind.cdi.hands_over:
        return f"{'.'.join(map(str, engine.version))} does not pass on the devices of a kubelet"
    if SPEC_DIRS.isdisjoint(serving.cdi_dirs):
        directories = " and ".join(map(str, serving.cdi_dirs)) or "no directory"
        return f"it reads specifications in {directories} alone"
    return ""


def against_cdi(engines: Iterable[EngineState], record: Record) -> Iterator[InstallerError]:
    """Yield why this node cannot use CDI alone."""
    for row in record.engines:
        yield InstallerError(
            f"use CDI alone for {ENGINES[row.name].title} (an earlier install gave it our runtimes)",
            remedy=Remedy("run toolkit-installer uninstall first, or keep ", Option("mode", "runtime")),
            code="mode-unusable",
        )
    for engine in engines:
        if engine.serving is None:
            problem = f"ask {engine.title} whether it takes devices by CDI ({engine.silence_reason})"
            remedy = engine.remedy or Remedy(
                f"start {engine.title}, see why it does not answer, or leave it out of ", Option("runtime")
            )
            yield InstallerError(problem, remedy=remedy, code="engine-not-answering")
            continue
        reason = lacking(engine)
        if reason:
            yield InstallerError(
                f"give containers of {engine.title} GPUs by CDI ({reason})",
                remedy=Remedy("use ", Option("mode", "runtime"), f"; {engine.kind.cdi.since}"),
                code="mode-unusable",
            )


def without_effect(options: Options) -> str:
    """Note the flags without effect in mode cdi, where no engine is changed; "" for none."""
    places = options.places.values()
    given = {
        "--config": any(each.config for each in places),
        "--drop-in-config": any(each.drop_in for each in places),
        "--restart-mode": options.restart_mode is not RestartMode.AUTO,
        "--accept-pending": options.accept_pending,
        "--retry": options.retry,
        "--no-accept-nvidia-visible-devices-envvar-when-unprivileged": (
            not options.toolkit.accept_envvar_when_unprivileged
        ),
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if not flags:
        return ""
    have = "has" if len(flags) == 1 else "have"
    return f"{' and '.join(flags)} {have} no effect by CDI: no engine is configured or restarted"


def install_device_nodes(facts: Facts, options: Options) -> Part:
    """Plan to make the missing control device nodes."""
    wanted = options.cdi
    cdi = require(facts.cdi)
    if wanted is None or not cdi.absent_nodes:
        return Part(PartId.DEVICE_NODES, rows=Record(nodes=cdi.held_nodes))
    step = MakeDeviceNodes(cdi.absent_nodes, wanted, options.toolkit_source)
    reason = "they are not there, and the CDI specification is to name them"
    rows = Record(nodes=(*cdi.held_nodes, *cdi.absent_nodes))
    return Part(PartId.DEVICE_NODES, ((step, reason),), rows)


def undo_device_nodes(facts: Facts, *, stays: bool) -> Part:
    """Plan the removal of our device nodes, unless the toolkit ``stays``."""
    nodes = facts.record.nodes
    named: set[str] = set()
    if facts.toolkit.theirs:
        # Another installer's specification may name our nodes; without them no container could start with it.
        named = {each.program for each in facts.references}
    going = tuple(node for node in nodes if str(node.path) not in named)
    if stays or not going:
        return Part(PartId.DEVICE_NODES, rows=Record(nodes=nodes))
    return Part(PartId.DEVICE_NODES, ((RemoveDeviceNodes(going), "install made them"),), Record(nodes=nodes))


def install_specification(facts: Facts, options: Options) -> Part:
    """Plan to write the management specification, and to remove a former specification."""
    wanted = options.cdi
    cdi = require(facts.cdi)
    rows = {row.path: row for row in facts.record.configs if row.engine == Owner.CDI}
    stay = set()
    if cdi.gpus:
        stay.add(cdi.gpus.path)  # planned in a part of its own
    if wanted:
        stay.add(wanted.path)
    former = [row for path, row in rows.items() if path not in stay]
    planned = for_reason("no CDI specification is asked for there any more", _withdraw(former, facts))
    if wanted is None:
        return Part(PartId.CDI, planned)
    path = wanted.path
    now = facts.contents[path]
    original = without_us(path, facts)
    row = rows.get(path)
    ours = row.ours if row is not None else ()
    if cdi.management is None:
        write: Step = WriteSpecification(wanted, options.toolkit_source, now)
        reason = "it is to name device nodes that are not there yet"
    else:
        after = File(cdi.management.encode(), now.meta if now else Meta())
        if row is not None and now is not None and now.content == after.content:
            return Part(PartId.CDI, planned, Record(configs=(row,)))
        write = WriteConfig(Owner.CDI, path, now, after)
        reason = "it is not there" if now is None else "it is not what nvidia-ctk generates for this node"
        ours = (after.digest,)
    saved = Saved.of(original)
    backups = (original,) if original else ()
    if row is not None and path in facts.lost:
        # The file there is ours; of the file before it only the ledger's row is left, without its content.
        saved = row.original
        backups = ()
    new_row = ConfigRow(Owner.CDI, path, None, saved, ours, (), facts.targets.get(path))
    return Part(PartId.CDI, (*planned, (write, reason)), Record(configs=(new_row,)), backups=backups)


def _withdraw(rows: Iterable[ConfigRow], facts: Facts) -> Iterator[Step]:
    """Restore the former content of each row's file, unless already restored."""
    for row in rows:
        step = withdraw(row, facts).step
        if step is not None:
            yield step


def undo_specifications(facts: Facts, *, stays: bool) -> Part:
    """Plan to restore the former files of the specifications, unless the toolkit ``stays``."""
    rows = tuple(row for row in facts.record.configs if row.engine == Owner.CDI)
    steps = () if stays else _withdraw(rows, facts)
    originals = [without_us(row.path, facts) for row in rows]
    return Part(
        PartId.CDI,
        for_reason("the CDI specification at that path is ours", steps),
        Record(configs=rows, cdi=facts.record.cdi),
        in_progress=rows,
        backups=tuple(file for file in originals if file is not None),
    )


def generated(rows: Iterable[ConfigRow], steps: Iterable[Step]) -> tuple[ConfigRow, ...]:
    """Add the digests of the specifications written by ``steps`` to the rows."""
    written = {}
    for step in steps:
        if isinstance(step, WriteConfig) and step.engine == Owner.CDI and step.after:
            written[step.path] = step.after.digest
    completed = []
    for row in rows:
        if row.path in written:
            digests = dict.fromkeys((*row.ours, written[row.path]))
            completed.append(replace(row, ours=tuple(digests)))
        else:
            completed.append(row)
    return tuple(completed)


def install_gpus(facts: Facts, options: Options, reason: str) -> Part:
    """Plan to write the GPUs' specification; ``reason`` is the reason of the mode, or ""."""
    spec = require(facts.cdi).gpus
    notes = []
    if spec is None:
        if reason:
            notes.append(f"mode {Mode.RUNTIME}: {reason}")
        return Part(PartId.GPUS, notes=tuple(notes))
    planned, row, missing_reason = _plan_gpus(facts, spec)
    if reason:
        notes.append(f"mode {Mode.CDI}: {reason}")
    flags_note = without_effect(options)
    if flags_note:
        notes.append(flags_note)
    if missing_reason:
        notes.append(f"no CDI specification of the GPUs: {missing_reason}")
    if row and spec.lacking:
        notes.append(f"kept the CDI specification of the GPUs: {spec.lacking}")
    names = tuple(engine.name for engine in facts.engines)
    return Part(
        PartId.GPUS,
        planned,
        Record(configs=(row,) if row else (), cdi=CdiRow(names, missing_reason)),
        notes=tuple(notes),
        obstacles=tuple(against_cdi(facts.engines, facts.record)),
    )


def _plan_gpus(facts: Facts, spec: GpuSpecification) -> tuple[Planned, ConfigRow | None, str]:
    """Return the steps with their reasons, the ledger's new row, and the reason for no specification."""
    former_row = facts.record.config(spec.path)
    now = facts.contents[spec.path]
    # Containers fail while a stale specification is there, or ours beside another installer's. Its removal
    # comes first, needs no disk space, and is not reverted by a roll-back.
    removal: list[Step] = []
    if former_row and now:
        step = withdraw(former_row, facts).step
        if step:
            removal.append(replace(step, unwanted=True))
    # Engines drop a device that two files in one directory define; of files in two directories one hides the
    # other. So each device has one owner, and ours gives way.
    if spec.others:
        why = " and ".join(f"{path} has devices of {GPU_KIND}" for path in spec.others)
        if spec.missing:  # devices of ours that no other specification has
            why += f", without {list_some(spec.missing, NAMED)}"
        return for_reason(GIVES_WAY, removal), None, why
    if not spec.text:
        if removal and not spec.stale:  # a GPU that does not answer does not take the other GPUs away
            return (), former_row, ""
        return for_reason(STALE, removal), None, spec.lacking
    after = File(spec.text.encode(), now.meta if now else Meta())
    if former_row and now is not None and now.content == after.content:
        return (), former_row, ""
    row = ConfigRow(Owner.CDI, spec.path, None, None, (after.digest,), (), facts.targets.get(spec.path))
    if now:
        reason = CHANGED
    elif former_row:
        reason = REMOVED
    else:
        reason = NEW
    if now and spec.stale:
        remove_stale = WriteConfig(Owner.CDI, spec.path, now, None, unwanted=True)
        write = WriteConfig(Owner.CDI, spec.path, None, after)
        return ((remove_stale, STALE), (write, reason)), row, ""
    return ((WriteConfig(Owner.CDI, spec.path, now, after), reason),), row, ""


def without(record: Record, gone: Collection[PurePosixPath]) -> Record:
    """Return the record without the rows of the specifications at the paths ``gone``."""
    rows = tuple(row for row in record.configs if row.path not in gone)
    cdi = replace(record.cdi, lacking=WITHDRAWN) if record.cdi else None
    return replace(record, configs=rows, cdi=cdi)
