"""How containers get their GPUs on this node, in the words of its engines; and CDI's parts of a plan.

Those are the driver's device nodes, and specifications for management and of the GPUs.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.config_edits import withdraw, without_us
from installer.errors import InstallerError, Option, Remedy
from installer.model.engine_spec import Version
from installer.model.facts import (
    OWNER,
    CdiRow,
    ConfigRow,
    EngineState,
    Facts,
    GpuSpecification,
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
    Planned,
    RemoveDeviceNodes,
    Step,
    WriteConfig,
    WriteSpecification,
    for_reason,
)

SPEC_DIR: Final = PurePosixPath("/var/run/cdi")
SPECIFICATION: Final = SPEC_DIR / f"{GPU_KIND.replace('/', '-')}.json"
# What an engine may call it: the one is a link to the other on every system of today.
SPEC_DIRS: Final = frozenset({SPEC_DIR, PurePosixPath("/run/cdi")})

DEVICE_NODES: Final = "device-nodes"
GPUS: Final = "gpus"
NAMED: Final = 4  # of the missing devices
NEW: Final = "it is not there"
REMOVED: Final = "it was removed"
CHANGED: Final = "it is not what nvidia-ctk generates for this node any more"
STALE: Final = "it names files that are gone, so no container could start with it"
GIVES_WAY: Final = "another specification with the same devices is there"
WITHDRAWN: Final = "the stale one was removed, and writing a new one failed"
# That the driver, devices or specifications of others change is no drift: what is ours is unchanged.
FOLLOWS: Final = frozenset({NEW, CHANGED, STALE, GIVES_WAY})


def highest_read(engines: Iterable[EngineState]) -> Version | None:
    """Return the version of a specification up to which all of the engines read; None if unknown."""
    found = [read_by(each.name, each.version) for each in engines if each.version]
    return min((read for read in found if read is not None), default=None)


def read_by(name: str, version: Version) -> Version | None:
    """Return the version of a specification up to which an engine reads; None if unknown."""
    return next((read for since, read in ENGINES[name].cdi.reads if version >= since), None)


def mode_of(engines: Iterable[EngineState], record: Record, options: Options) -> tuple[Mode, str]:
    """Return the mode, never ``auto``, and for ``auto`` why it is this one."""
    if options.mode is not Mode.AUTO:
        return options.mode, ""
    against = next(_for_runtimes(tuple(engines), record, options), "")
    if against:
        return Mode.RUNTIME, against
    return Mode.CDI, "every engine has CDI in effect, and no runtime was asked for: nothing is restarted"


def _for_runtimes(engines: tuple[EngineState, ...], record: Record, options: Options) -> Iterator[str]:
    """Yield why engines are to serve runtimes of ours."""
    if record.engines:
        yield f"{ENGINES[record.engines[0].name].title} has runtimes of ours already"
    if flags := options.needs_runtime:
        yield f"a runtime is asked for by {' and '.join(flags)}"
    if not engines:
        yield "no engine is to be asked"
    for engine in engines:
        if lacks := lacking(engine):
            yield f"{engine.title} takes no devices by CDI ({lacks})"


def lacking(engine: EngineState) -> str:
    """Return why containers of this engine get no devices by CDI, in its own words; "" where they do."""
    serving = engine.serving
    if serving is None:
        return engine.silence
    if serving.cdi is None:
        return "it has no CDI"
    if not serving.cdi:
        return "it says that CDI is switched off"
    if engine.version and engine.version < engine.spec.cdi.hands_over:
        return f"{'.'.join(map(str, engine.version))} does not pass on the devices of a kubelet"
    if not SPEC_DIRS & {*serving.cdi_dirs}:
        return (
            f"it reads specifications in {' and '.join(map(str, serving.cdi_dirs)) or 'no directory'} alone"
        )
    return ""


def against_cdi(engines: Iterable[EngineState], record: Record) -> Iterator[InstallerError]:
    """Yield what stands against CDI alone on this node."""
    for row in record.engines:
        yield InstallerError(
            f"use CDI alone for {ENGINES[row.name].title} (an earlier install gave it our runtimes)",
            remedy=Remedy("run toolkit-installer uninstall first, or keep ", Option("mode", "runtime")),
            code="mode-unusable",
        )
    for engine in engines:
        if engine.serving is None:
            problem = f"ask {engine.title} whether it takes devices by CDI ({engine.silence})"
            remedy = engine.remedy or Remedy(
                f"start {engine.title}, see why it does not answer, or leave it out of ", Option("runtime")
            )
            yield InstallerError(problem, remedy=remedy, code="engine-not-answering")
        elif lacks := lacking(engine):
            since = engine.spec.cdi.since
            yield InstallerError(
                f"give containers of {engine.title} GPUs by CDI ({lacks})",
                remedy=Remedy("use ", Option("mode", "runtime"), f"; {since}"),
                code="mode-unusable",
            )


def without_effect(options: Options) -> str:
    """Return what is to be said of flags that change nothing where no engine is changed; "" for nothing."""
    # What one of these says about engines and their runtimes is so in any case, where none is changed.
    places, accepts = options.places.values(), options.toolkit.accept_envvar_when_unprivileged
    asked = {
        "--config": any(each.config for each in places),
        "--drop-in-config": any(each.drop_in for each in places),
        "--restart-mode": options.restart_mode is not RestartMode.AUTO,
        "--retry": options.retry,
        "--no-accept-nvidia-visible-devices-envvar-when-unprivileged": not accepts,
    }
    flags = [flag for flag, given in asked.items() if given]
    if not flags:
        return ""
    have = "has" if len(flags) == 1 else "have"
    return f"{' and '.join(flags)} {have} no effect by CDI: no engine is configured or restarted"


def install_device_nodes(facts: Facts, options: Options) -> Part:
    """Return how the control device nodes that are absent are made."""
    wanted, cdi = options.cdi, require(facts.cdi)
    if wanted is None or not cdi.absent_nodes:
        return Part(DEVICE_NODES, rows=Record(nodes=cdi.held_nodes))
    return Part(
        DEVICE_NODES,
        for_reason(
            "they are not there, and the CDI specification is to name them",
            [MakeDeviceNodes(cdi.absent_nodes, wanted, options.toolkit_source)],
        ),
        Record(nodes=(*cdi.held_nodes, *cdi.absent_nodes)),
    )


def undo_device_nodes(facts: Facts, *, stays: bool) -> Part:
    """Return how the nodes that we had made go, unless something of ours ``stays``."""
    nodes = facts.held.nodes
    # No container could start with the specification of an installer that has taken the place of ours.
    named = {each.program for each in facts.references} if facts.toolkit.theirs else set()
    going = tuple(node for node in nodes if str(node.path) not in named)
    if stays or not going:
        return Part(DEVICE_NODES, rows=Record(nodes=nodes))
    return Part(DEVICE_NODES, ((RemoveDeviceNodes(going), "install made them"),), Record(nodes=nodes))


def install_specification(facts: Facts, options: Options) -> Part:
    """Return how management's specification comes to its place, and one that is not wanted any more goes."""
    wanted, cdi = options.cdi, require(facts.cdi)
    held = {row.path: row for row in facts.held.configs if row.engine == OWNER}
    others = {cdi.gpus.path} if cdi.gpus else set()  # planned in a part of its own
    going = [row for row in held.values() if row.path not in others | ({wanted.path} if wanted else set())]
    steps = (step for row in going if (step := withdraw(row, facts).step))
    planned = for_reason("no CDI specification is asked for there any more", steps)
    if wanted is None:
        return Part(OWNER, planned)
    path = wanted.path
    now, original = facts.contents[path], without_us(path, facts)
    ours: tuple[str, ...] = held[path].ours if path in held else ()
    if cdi.management is None:
        write: Step = WriteSpecification(wanted, options.toolkit_source, now)
        reason = "it is to name device nodes that are not there yet"
    else:
        after = File(cdi.management.encode(), now.meta if now else Meta())
        if path in held and now is not None and now.content == after.content:
            return Part(OWNER, planned, Record(configs=(held[path],)))
        write = WriteConfig(OWNER, path, now, after)
        reason = "it is not there" if now is None else "it is not what nvidia-ctk generates for this node"
        ours = (after.digest,)
    if path in held and path in facts.lost:
        # What is there is ours; what was before it is only known by name.
        saved, original = held[path].original, None
    else:
        saved = Saved.of(original)
    row = ConfigRow(OWNER, path, None, saved, ours, (), facts.targets.get(path))
    backups = (original,) if original else ()
    return Part(OWNER, (*planned, (write, reason)), Record(configs=(row,)), backups=backups)


def undo_specifications(facts: Facts, *, stays: bool) -> Part:
    """Return what restores what stood where a specification is, unless something of ours ``stays``."""
    rows = tuple(row for row in facts.held.configs if row.engine == OWNER)
    steps = (step for row in rows if not stays and (step := withdraw(row, facts).step))
    originals = (without_us(row.path, facts) for row in rows)
    return Part(
        OWNER,
        for_reason("the CDI specification there is ours", steps),
        Record(configs=rows, cdi=facts.held.cdi),
        in_progress=rows,
        backups=tuple(file for file in originals if file is not None),
    )


def generated(rows: Iterable[ConfigRow], steps: Iterable[Step]) -> tuple[ConfigRow, ...]:
    """Return the rows, that of a specification with the text which a step has written there."""
    texts = {
        step.path: step.after.digest
        for step in steps
        if isinstance(step, WriteConfig) and step.engine == OWNER and step.after
    }
    return tuple(
        replace(row, ours=tuple(dict.fromkeys((*row.ours, texts[row.path])))) if row.path in texts else row
        for row in rows
    )


def install_gpus(facts: Facts, options: Options, reason: str) -> Part:
    """Return how the GPUs' specification comes to its place; ``reason`` is that of the mode."""
    spec = require(facts.cdi).gpus
    if spec is None:
        return Part(GPUS, notes=(f"mode {Mode.RUNTIME}: {reason}",) if reason else ())
    planned, row, lacking = _plan_gpus(facts, spec)
    names = tuple(engine.name for engine in facts.engines)
    return Part(
        GPUS,
        planned,
        Record(configs=(row,) if row else (), cdi=CdiRow(names, lacking)),
        notes=(
            *([f"mode {Mode.CDI}: {reason}"] if reason else ()),
            *([note] if (note := without_effect(options)) else ()),
            *([f"no CDI specification of the GPUs: {lacking}"] if lacking else ()),
            *([f"kept the CDI specification of the GPUs: {spec.lacking}"] if row and spec.lacking else ()),
        ),
        obstacles=tuple(against_cdi(facts.engines, facts.held)),
    )


def _plan_gpus(facts: Facts, spec: GpuSpecification) -> tuple[Planned, ConfigRow | None, str]:
    """Return the steps with their reasons, the row that is held then, and why there is no specification."""
    held, now = facts.held.config(spec.path), facts.contents[spec.path]
    # One that is stale, or beside another's, ends containers as long as it is there: it goes first, which
    # takes no space, and a roll-back does not bring it back.
    step = withdraw(held, facts).step if held and now else None
    going = [replace(step, unwanted=True)] if step else []
    # Engines drop both of two devices of one name in one directory, and hide one in another: so each has one
    # owner, and ours gives way.
    if spec.others:
        why = " and ".join(f"{path} has devices of {GPU_KIND}" for path in spec.others)
        if spec.missing:  # no specification has those
            why += f", without {list_some(spec.missing, NAMED)}"
        return for_reason(GIVES_WAY, going), None, why
    if not spec.text:
        if going and not spec.stale:  # a GPU that does not answer takes nothing from the others
            return (), held, ""
        return for_reason(STALE, going), None, spec.lacking
    after = File(spec.text.encode(), now.meta if now else Meta())
    row = ConfigRow(OWNER, spec.path, None, None, (after.digest,), (), facts.targets.get(spec.path))
    if held and now is not None and now.content == after.content:
        return (), held, ""
    reason = CHANGED if now else REMOVED if held else NEW
    if now and spec.stale:
        gone = WriteConfig(OWNER, spec.path, now, None, unwanted=True)
        return ((gone, STALE), (WriteConfig(OWNER, spec.path, None, after), reason)), row, ""
    return ((WriteConfig(OWNER, spec.path, now, after), reason),), row, ""


def without(record: Record, gone: Collection[PurePosixPath]) -> Record:
    """Return the rows less those of specifications that are ``gone``."""
    rows = tuple(row for row in record.configs if row.path not in gone)
    return replace(record, configs=rows, cdi=record.cdi and replace(record.cdi, lacking=WITHDRAWN))
