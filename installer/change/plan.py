"""Facts and Options in, steps out: what an install, an undo and a roll-back would do, without doing it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from installer.cdi import plan as cdi
from installer.change import engine_plan
from installer.change.gate import Choice, TakesUp, choose
from installer.change.references import find_references, find_taken_over, leads_into
from installer.config_text import flatten
from installer.engines import ENGINES, reloading
from installer.engines.config_edits import Ask, files_without_us, texts_alone, toolkit_runtimes, without_us
from installer.errors import InstallerError, NotYetError, Option, Remedy, UndoIncompleteError
from installer.model.engine_spec import STANDARD_NAMES, ReloadMethod, RuntimeEntry
from installer.model.facts import OWNER, Container, EngineState, Facts, Record, ToolkitRow, names_of, require
from installer.model.files import File
from installer.model.options import Options
from installer.model.steps import (
    TRY_AGAIN,
    MakeDirectory,
    Part,
    Planned,
    Reload,
    RemoveDirectory,
    Step,
    WriteConfig,
    WriteSpecification,
    describe,
    for_reason,
    make_part,
    name_part,
    sum_rows,
)
from installer.nri import plan as nri
from installer.payload import plan as toolkit
from installer.payload.files import advise

MODES: Final = ("", ".cdi", ".legacy")
DIRECTORIES: Final = "directories"
NODE: Final = "node"


class Plan(Struct, frozen=True):
    """A sum of parts, in the order of their steps, and what the ledger says before them and after."""

    parts: tuple[Part, ...]
    in_progress: Record
    final: Record | None  # None where nothing is held any more
    engines: Mapping[str, EngineState]
    digest: str = ""  # of all an engine's answer depends on
    unproven: tuple[str, ...] = ()  # engines that are not asked whether they serve what their config says
    in_use: tuple[Container, ...] = ()  # for which an undo stays incomplete, as for what is ``needed``
    seen: Mapping[PurePosixPath, str] = field(default_factory=dict)  # the digest of each config as read
    release: tuple[int, ...] | None = None  # the toolkit's version, if it tells
    pending: Mapping[str, NotYetError] = field(default_factory=dict)  # why an engine is not restarted yet
    due: frozenset[str] = frozenset()  # engines whose restart an earlier plan has left for later
    earlier: tuple[WriteConfig, ...] = ()  # what was written for that: a roll-back takes it back as well
    unmade: InstallerError | None = None  # why no specification of all GPUs, though a driver is loaded

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done, in this order."""
        return tuple(step for step, _ in self.planned)

    @property
    def planned(self) -> Planned:
        """The steps, each with its reason."""
        return tuple(each for part in self.parts for each in part.planned)

    @property
    def reloaded(self) -> tuple[str, ...]:
        """The engines that read their configs anew."""
        return tuple(step.engine for step in self.steps if isinstance(step, Reload))

    @property
    def backups(self) -> tuple[File, ...]:
        """What is saved ahead of all steps."""
        return tuple(file for part in self.parts for file in part.backups)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the owner should know, and what stops nothing."""
        return tuple(note for part in self.parts for note in part.notes)

    @property
    def obstacles(self) -> tuple[InstallerError, ...]:
        """What keeps the plan from being carried out."""
        return tuple(error for part in self.parts for error in part.obstacles)

    @property
    def needed(self) -> tuple[InstallerError, ...]:
        """Why something of ours stays after an undo."""
        return tuple(error for part in self.parts for error in part.needed)


def entries_for(options: Options) -> tuple[RuntimeEntry, ...]:
    """Return the three runtimes as NVIDIA writes them (engine-facts.md#nvidia-runtimes)."""
    # A custom name takes the place of ``nvidia``; one of the other two only chooses the default.
    chosen = options.runtime_name
    names = STANDARD_NAMES if chosen in STANDARD_NAMES else (chosen, *STANDARD_NAMES[1:])
    return tuple(
        RuntimeEntry(
            name,
            options.layout.toolkit / f"nvidia-container-runtime{mode}",
            default=options.set_as_default and name == chosen,
        )
        for name, mode in zip(names, MODES, strict=True)
    )


def plan_install(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps that make the host serve our runtimes, or our devices by CDI; none where it does."""
    held, (mode, reason) = facts.held, cdi.mode_of(facts.engines, facts.held, options)
    by_cdi = mode.by_cdi
    entries = () if by_cdi else entries_for(options)
    chosen, refused = list[Choice](), dict(facts.refused)
    for engine in facts.engines if not by_cdi else ():
        try:
            chosen.append(choose(engine, entries, facts, options, ask))
        except InstallerError as error:
            refused[engine.name] = error
    engines = [engine_plan.install(choice, entries, facts, options, ask) for choice in chosen]
    words = [word for choice in chosen for word in choice.way.decision.low_level]
    # Containers may run on the toolkit: it wraps what it wraps now until an engine joins.
    now = held.toolkit.rendered if chosen and held.toolkit else facts.toolkit.config
    if not any(choice.way.writes for choice in chosen if held.engine(choice.engine.name) is None):
        with suppress(InstallerError):  # it is no TOML, and is written anew
            words = [*toolkit_runtimes(now or "")] or words
    # Ours wraps no program of ours, whatever its name; paths come before words.
    words = [word for word in dict.fromkeys(words) if not leads_into(facts, word, options.layout)]
    found = tuple(sorted(words, key=lambda word: not word.startswith("/"))) or ("runc", "crun")
    low_level = options.low_level or found
    payload = make_part(toolkit.ID, lambda: toolkit.install(facts, options, low_level, by_cdi=by_cdi))
    specification = cdi.install_specification(facts, options)
    of_gpus, plugin = cdi.install_gpus(facts, options, reason), nri.install(facts, options, ask)
    planned = {OWNER, nri.ID, *(engine.name for engine in facts.engines)}
    others = tuple(row for row in held.configs if row.engine not in planned)  # that have no part
    node = Part(
        NODE,
        rows=Record(directories=held.directories, engines=held.engines, configs=others),
        notes=(*facts.notes, *advise(require(facts.payload).version)),
        obstacles=(*facts.obstacles, *_find_renamed(facts, {entry.name for entry in entries})),
    )
    parts = (
        node,
        *(Part(name_part(name), obstacles=(error,), refused=True) for name, error in refused.items()),
        cdi.install_device_nodes(facts, options),
        payload,
        _make_directories(facts, (specification, of_gpus, plugin, *engines)),
        specification,
        of_gpus,
        plugin,
        *map(engine_plan.find_runtimes, chosen),
        *engines,
        toolkit.sweep(facts, payload),
    )
    return _sum_install(parts, facts, options, chosen)


def _sum_install(parts: tuple[Part, ...], facts: Facts, options: Options, chosen: Sequence[Choice]) -> Plan:
    held, rows, gpus = facts.held, sum_rows(parts), require(facts.cdi).gpus
    configs = sorted(rows.configs, key=lambda row: row.engine == OWNER)  # the specification comes last
    final = replace(
        rows, configs=tuple(configs), pid_file=held.pid_file, published=held.published, finished=True
    )
    steps = [step for part in parts for step in part.steps]
    plan = Plan(
        parts,
        reloading.in_progress(held, final, steps),
        final,
        {each.name: each for each in facts.engines},
        _digest(facts, options, rows.toolkit),
        unproven=tuple(
            each.engine.name
            for each in chosen
            if each.pending or (each.takes_up is TakesUp.LEFT and not each.reload.is_served_by(each.engine))
        ),
        seen=facts.digests,
        release=require(facts.payload).version,
        pending={each.engine.name: each.pending for each in chosen if each.pending},
        due=frozenset(row.name for row in held.engines if row.restart_due),
        earlier=tuple(write for each in chosen for write in _find_earlier(each, facts)),
        unmade=gpus.unmade if gpus else None,
    )
    failed = Part("failed-before", obstacles=_refuse_failed(plan, held, options))
    return replace(plan, parts=(*parts, failed))


def _find_earlier(choice: Choice, facts: Facts) -> Iterator[WriteConfig]:
    """Yield what earlier installs have written, and a restart brings into force only now."""
    engine = choice.engine
    row = facts.held.engine(engine.name)
    if row is None or not row.restart_due or choice.takes_up is not TakesUp.NOW:
        return
    for path, without in files_without_us(engine, facts).items():
        if (now := facts.contents.get(path)) != without:
            yield WriteConfig(engine.name, path, without, now)


def _digest(facts: Facts, options: Options, payload: ToolkitRow | None) -> str:
    """Return the digest of all an engine's answer depends on: what failed once fails the same way again."""
    engines = []
    for each in facts.engines:
        files = [without_us(path, facts) for path in each.files]
        texts = [file.digest if file else "" for file in files]
        serves: tuple[object, ...] = ()
        # One that is signalled may have kept what a failed try made it read.
        if each.serving is not None and each.spec.reload is not ReloadMethod.HUP:
            handlers = each.serving.handlers.items()
            tables = sorted((name, sorted(map(repr, flatten(one.table)))) for name, one in handlers)
            serves = (each.serving.default, tables)
        known_by = (each.version, each.build, each.unit, each.start, each.inputs, each.config)
        engines.append((each.name, *known_by, serves, *texts))
    words = repr((engines, payload.version if payload else "", options.for_engines))
    return sha256(words.encode()).hexdigest()


def _refuse_failed(plan: Plan, record: Record, options: Options) -> tuple[InstallerError, ...]:
    """Return why a plan that would reload an engine is not tried again as it is."""
    failed = record.failed
    reloads = any(isinstance(step, Reload) for step in plan.steps) or plan.pending
    if failed is None or not reloads or options.retry or failed.digest != plan.digest:
        return ()
    problem = f"configure again what failed before ({failed.problem})"
    if not record.finished and record.toolkit is not None:
        undo = "run toolkit-installer uninstall: the roll-back of it did not end well"
        return (UndoIncompleteError(problem, remedy=undo, code="failed-before"),)
    remedy = Remedy("change config, payload, engine, unit or options, or try again with ", Option("retry"))
    return (InstallerError(problem, remedy=remedy, code="failed-before"),)


def _find_renamed(facts: Facts, names: set[str]) -> Iterator[InstallerError]:
    """Yield why a runtime cannot go, or be renamed: containers that it started need the one it has."""
    by_cdi = Remedy(
        "stop them, run toolkit-installer uninstall, then try again; or keep ", Option("mode", "runtime")
    )
    renamed = Remedy("stop them first, or keep ", Option("runtime-name"), " as it was")
    hooked = {engine.name for engine in facts.engines if engine.hook is not None}
    for row in facts.held.engines:
        remedy = "stop them first, or do without the OCI hook" if row.name in hooked else renamed
        for name, binary in row.runtimes.items():
            used = [
                each for each in facts.containers.running if (each.engine, each.binary) == (row.name, binary)
            ]
            if used and (name not in names or row.name in hooked):
                title = ENGINES[row.name].title
                problem = f"remove the runtime {name} from {title} (it runs {names_of(used)})"
                yield InstallerError(problem, remedy=remedy if names else by_cdi, code="in-use")


def _make_directories(facts: Facts, parts: Iterable[Part]) -> Part:
    """Return how the directories of all files that ``parts`` write are made, and what stands against that."""
    steps = (step for part in parts for step in part.steps)
    written = {step.path for step in steps if isinstance(step, WriteConfig | WriteSpecification)}
    paths = written | {facts.targets[path] for path in written & facts.targets.keys()}
    needed = {parent for path in paths for parent in path.parents} & facts.missing
    made = sorted(needed, key=lambda path: len(path.parts))
    return Part(
        DIRECTORIES,
        tuple(
            (
                MakeDirectory(each),
                f"{next(path for path in sorted(paths) if each in path.parents)} goes there",
            )
            for each in made
        ),
        Record(directories=tuple(made)),
        obstacles=tuple(error for path, error in sorted(facts.unwritable.items()) if path in written),
    )


def plan_undo(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps after which nothing of ours is left, whatever was done and by whom.

    While containers run on our runtimes the payload they were started by stays, or links to a low-level
    runtime in its place, and an engine keeps the handlers it needs for them; ``in_use`` names them.
    """
    held, ledger_above = facts.held, options.layout.home.parents
    engines = [
        make_part(name_part(row.name), partial(engine_plan.undo, row, facts, options, ask))
        for row in held.engines
    ]
    named = make_part("references", lambda: _find_references(facts, engines, options))
    first = (*engines, named, _check_undo(facts, options))
    needed = [error for part in first for error in part.needed]
    stays = bool(facts.containers.running or needed)
    made = _make_directories(facts, engines)  # dockerd gives up what it has by way of another text
    # Those that hold the ledger go with it, after all else.
    directories = (*held.directories, *made.rows.directories)
    going = [path for path in directories if not stays and path not in ledger_above]
    going.sort(key=lambda path: -len(path.parts))
    parts = (
        made,
        *first,
        nri.undo(facts),
        cdi.undo_specifications(facts, stays=stays),
        cdi.undo_device_nodes(facts, stays=stays),
        toolkit.undo(facts, options, needed),
        find_taken_over(facts, options),
        Part(
            DIRECTORIES,
            for_reason("install made it", map(RemoveDirectory, going)),
            Record(directories=directories),
        ),
    )
    running, rows = facts.containers.running, sum_rows(parts)
    steps = [step for part in parts for step in part.steps]
    configs = {row.path: row for part in parts for row in part.in_progress}.values()
    problems = (error.problem for part in parts for error in part.needed)
    left = f"undo everything (our runtime runs {names_of(running)})" if running else next(problems, "")
    in_progress, final = held, None
    if steps:
        known = tuple(reloading.add_known_texts(configs, steps))
        in_progress = replace(held, configs=known, directories=rows.directories, finished=False)
    if stays:
        final = replace(
            rows,
            pid_file=held.pid_file,
            published=held.published,
            finished=True,
            left=left,
            undo_pending=held.undo_pending,
        )
    by_name = {each.name: each for each in facts.engines}
    return Plan(parts, in_progress, final, by_name, in_use=running, seen=facts.digests)


def _find_references(facts: Facts, engines: Sequence[Part], options: Options) -> Part:
    """Return what else names the toolkit; where it does the engines are asked again, for what runs counts."""
    needed = tuple(find_references(facts, engines, options))
    if not options.thorough:
        problem = "remove the toolkit (an undo was killed, so what else starts it was not searched)"
        needed += (InstallerError(problem, remedy="run uninstall", code="undo-killed"),)
    kept = {row.name for part in engines for row in part.rows.engines}
    rows = (replace(row, config=None) for row in facts.held.engines if needed and row.name not in kept)
    return Part("references", rows=Record(engines=tuple(rows)), needed=needed)


def _check_undo(facts: Facts, options: Options) -> Part:
    """Return what stands against an undo, and what cannot be restored."""
    obstacles, needed = [], []
    for engine in facts.engines:
        spec = engine.spec
        # No pod would start any more, that of the next installer included.
        if spec.finds and engine.serving is not None and engine.serving.default == spec.finds:
            problem = f"remove the toolkit of {engine.title} (its default runtime is {spec.finds})"
            remedy = f"start {engine.title} without --default-runtime, then {TRY_AGAIN}"
            obstacles.append(InstallerError(problem, remedy=remedy, code="runtime-needed"))
    for row in facts.held.configs:
        now = facts.contents[row.path]
        # A file that we wrote whole cannot be given back where what stood there is lost.
        if row.path in facts.lost and row.syntax is None and now is not None and now.digest in row.ours:
            copy = options.layout.backups / (row.original.digest if row.original else "")
            problem = f"restore {row.path} (its saved copy {copy} is missing or damaged)"
            remedy = f"write the right file there, or remove it, then {TRY_AGAIN}"
            needed.append(InstallerError(problem, remedy=remedy, code="backup-lost"))
    idle = f"stopped containers that need our runtime to start again: {', '.join(facts.containers.idle)}"
    notes = (*facts.notes, *([idle] if facts.containers.idle else []))
    return Part(NODE, notes=notes, obstacles=tuple(obstacles), needed=tuple(needed))


def plan_rollback(
    plan: Plan,
    done: tuple[Step, ...],
    record: Record,
    running: tuple[Container, ...] = (),
    reason: str = "the install failed",
) -> Plan:
    """Return the steps that take ``done``, the last of which may be half done, back to ``record``.

    An engine whose reload was tried is reloaded again, and proven to serve what it served before, if it did.
    Where nothing was held before, ``running`` containers keep their engine and the payload as they are.
    """
    used = {container.engine for container in running} if record.toolkit is None else set()
    tried = {step.engine: step for step in done if isinstance(step, Reload)}
    done = (*(step for step in plan.earlier if step.engine in tried), *done)
    # A file that belongs to no engine goes back as any other step does.
    of_engines = [
        step for step in done if isinstance(step, WriteConfig | Reload) and step.engine in plan.engines
    ]
    steps: list[Step] = []
    for name in dict.fromkeys(step.engine for step in reversed(of_engines) if step.engine not in used):
        written = [step for step in of_engines if isinstance(step, WriteConfig) and step.engine == name]
        steps += _roll_back_engine(plan.engines[name], written, tried.get(name))
    if not used:
        backs = (describe(step).undo for step in reversed(done) if step not in of_engines)
        steps += [back for back in backs if back is not None]
    rows = tuple(reloading.add_known_texts(plan.in_progress.configs, (*done, *steps)))
    in_progress = replace(plan.in_progress, configs=rows, finished=False)
    # What lies there now is our own text: no other process has written it since the plan.
    seen = dict(plan.seen)
    for step in done:
        if isinstance(step, WriteConfig):
            seen[step.path] = step.after.digest if step.after else ""
    # A specification that no container could use is not wanted back.
    gone = {step.path for step in done if isinstance(step, WriteConfig) and step.unwanted}
    final = cdi.without(record, gone) if gone and record.cdi is not None else record
    return Plan(
        (Part("roll-back", for_reason(reason, steps)),),
        in_progress,
        in_progress if used else final,
        plan.engines,
        in_use=running if used else (),
        seen=seen,
    )


def _roll_back_engine(
    engine: EngineState, written: Sequence[WriteConfig], tried: Reload | None
) -> Sequence[Step]:
    """Return how an engine's configs go back, and serves of the runtimes ``tried`` what it served before."""
    writes = [replace(step, before=step.after, after=step.before) for step in reversed(written)]
    before = engine.serving
    if tried is None or before is None or engine.spec.finds:
        return writes
    entries = (*tried.present, *tried.absent)
    present = tuple(
        RuntimeEntry(entry.name, PurePosixPath(binary), default=entry.name == before.default)
        for entry in entries
        if (binary := before.binaries.get(entry.name))
    )
    kept = {(entry.name, entry.binary) for entry in present}
    absent = tuple(
        RuntimeEntry(entry.name, entry.binary) for entry in entries if (entry.name, entry.binary) not in kept
    )
    # What dockerd has depends on when it failed.
    return reloading.take_up(writes, Reload(engine.spec, present, absent), None, engine)
