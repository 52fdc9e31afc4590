"""Plan an install, an undo and a roll-back from facts and options, without doing anything.

A plan's steps are carried out in transaction.py. engine_plan.py plans the part of one engine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import PurePosixPath

from msgspec import Struct, field
from msgspec.structs import replace

from installer.cdi import plan as cdi
from installer.change import engine_plan, rows
from installer.change.engine_plan import EngineInstall
from installer.change.gate import choose_install_texts
from installer.change.install_texts import InstallRequest
from installer.change.references import find_named_in_toolkit, find_references, find_taken_over, leads_into
from installer.change.restart import When
from installer.config_text import flatten
from installer.engines import ENGINES
from installer.engines.config_edits import files_without_us, without_us
from installer.engines.config_texts import DryRun, predict_from_texts, toolkit_runtimes
from installer.errors import (
    UNINSTALL_AGAIN,
    InstallerError,
    NotYetError,
    Option,
    OtherUnitError,
    Remedy,
    UndoIncompleteError,
)
from installer.model.effective import MODES, STANDARD_NAMES, EffectiveConfig, RuntimeEntry
from installer.model.engine import EngineState
from installer.model.facts import (
    ConfigRow,
    Container,
    EngineRow,
    Facts,
    Owner,
    Record,
    ToolkitRow,
    explain_running,
    names_of,
    require,
)
from installer.model.files import File
from installer.model.options import Options
from installer.model.steps import (
    SINCE_OUR_RESTART,
    START_UNIT,
    MakeDirectory,
    Part,
    PartId,
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


class Plan(Struct, frozen=True):
    """A sum of parts, in the order of their steps, and the rows of the ledger before and after them."""

    parts: tuple[Part, ...]
    in_progress: Record
    final: Record | None  # None if nothing is held any more
    engines: Mapping[str, EngineState]
    digest: str = ""  # of everything on which an engine's answer depends
    unverified_engines: tuple[str, ...] = ()  # not asked whether they serve what their config says
    in_use: tuple[Container, ...] = ()  # containers that make an undo incomplete, as ``needed`` does
    seen: Mapping[PurePosixPath, str] = field(default_factory=dict)  # the digest of each config as read
    release: tuple[int, ...] | None = None  # the toolkit's version, if it tells
    pending: Mapping[str, NotYetError] = field(default_factory=dict)  # why an engine is not restarted yet
    restarts_due: frozenset[str] = frozenset()  # engines whose restart an earlier plan has left for later
    earlier: tuple[WriteConfig, ...] = ()  # the writes of those earlier plans: a roll-back reverts them, too
    # The reason for which no specification of all GPUs exists though a driver is loaded.
    specification_problem: InstallerError | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in their order."""
        return tuple(step for step, _ in self.planned)

    @property
    def planned(self) -> Planned:
        """The steps, each with its reason."""
        return tuple(chain.from_iterable(part.planned for part in self.parts))

    @property
    def reloaded(self) -> tuple[str, ...]:
        """The restarted or reloaded engines."""
        return tuple(step.engine for step in self.steps if isinstance(step, Reload))

    @property
    def backups(self) -> tuple[File, ...]:
        """The files to save ahead of all steps."""
        return tuple(chain.from_iterable(part.backups for part in self.parts))

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts for the owner; a note stops nothing."""
        return tuple(chain.from_iterable(part.notes for part in self.parts))

    @property
    def obstacles(self) -> tuple[InstallerError, ...]:
        """The reasons why the plan cannot be carried out."""
        return tuple(chain.from_iterable(part.obstacles for part in self.parts))

    @property
    def needed(self) -> tuple[InstallerError, ...]:
        """The reasons to keep the toolkit after an undo."""
        return tuple(chain.from_iterable(part.needed for part in self.parts))


def entries_for(options: Options) -> tuple[RuntimeEntry, ...]:
    """Return the three runtimes as NVIDIA writes them (engine-facts.md#nvidia-runtimes)."""
    # A custom name takes the place of ``nvidia``; one of the other two only chooses the default.
    chosen = options.runtime_name
    names = STANDARD_NAMES if chosen in STANDARD_NAMES else (chosen, *STANDARD_NAMES[1:])
    entries = []
    for name, mode in zip(names, MODES, strict=True):
        binary = options.layout.toolkit / f"nvidia-container-runtime{mode}"
        is_default = options.set_as_default and name == chosen
        entries.append(RuntimeEntry(name, binary, default=is_default))
    return tuple(entries)


def plan_install(facts: Facts, options: Options, dry_run: DryRun = predict_from_texts) -> Plan:
    """Plan to make the host serve our runtimes, or our devices by CDI; a served host gets no steps.

    Args:
        facts: the observed node.
        options: the options of the install.
        dry_run: the dry run: the config of an engine in force with given texts.
    """
    record = facts.record
    mode, reason = cdi.mode_of(facts.engines, record, options)
    entries: tuple[RuntimeEntry, ...] = ()
    installs: list[EngineInstall] = []
    refused = dict(facts.refused)
    if not mode.by_cdi:
        entries = entries_for(options)
        for engine in facts.engines:
            request = InstallRequest.of(engine, entries, facts, options, dry_run)
            try:
                accepted = choose_install_texts(request)
                installs.append(engine_plan.make_install(request, accepted))
            except InstallerError as error:
                refused[engine.name] = error
    engines = list(map(engine_plan.install_engine, installs))

    low_level = options.low_level or _find_low_level(installs, facts, options)
    specification = cdi.install_specification(facts, options)
    of_gpus = cdi.install_gpus(facts, options, reason)
    plugin = nri.install(facts, options, dry_run)
    named = find_named_in_toolkit(facts, (specification, of_gpus, plugin, *engines))
    payload = make_part(
        PartId.TOOLKIT, lambda: toolkit.install(facts, options, low_level, named, by_cdi=mode.by_cdi)
    )

    # Rows of engines without a part in this plan stay as they are.
    planned_names = {Owner.CDI, *(engine.name for engine in facts.engines)}
    other_rows = tuple(row for row in record.configs if row.engine not in planned_names)
    node = Part(
        PartId.NODE,
        rows=Record(directories=record.directories, engines=record.engines, configs=other_rows),
        notes=(*facts.notes, *advise(require(facts.payload).version)),
        obstacles=(*facts.obstacles, *_find_renamed(facts, {entry.name for entry in entries})),
    )
    refusals = []
    for name, refusal in refused.items():
        refusals.append(Part(name_part(name), obstacles=(refusal,), refused=True))
    parts = (
        node,
        *refusals,
        cdi.install_device_nodes(facts, options),
        payload,
        _make_directories(facts, (specification, of_gpus, plugin, *engines)),
        specification,
        of_gpus,
        plugin,
        *map(engine_plan.plan_visibility_check, installs),
        *engines,
        toolkit.sweep(facts, payload),
    )
    return _sum_install(parts, facts, options, installs)


def _find_low_level(installs: Sequence[EngineInstall], facts: Facts, options: Options) -> tuple[str, ...]:
    """List the low-level runtimes for our runtimes to wrap: paths first, then the names of programs."""
    record = facts.record
    words: list[str] = []
    for install in installs:
        words += install.accepted.candidate.proposal.low_level
    # Containers may run on the toolkit: the toolkit wraps the same runtimes as before, until an engine joins.
    config = facts.toolkit.config
    if installs and record.toolkit is not None:
        config = record.toolkit.rendered
    joins = False
    for install in installs:
        is_new = record.engine(install.engine.name) is None
        joins = joins or (is_new and bool(install.accepted.candidate.writes))
    if not joins:
        with suppress(InstallerError):  # a config that is no TOML is written anew
            words = [*toolkit_runtimes(config or "")] or words
    # Our runtime may not wrap a program of ours, whatever its name.
    paths = []
    names = []
    for word in dict.fromkeys(words):
        if leads_into(facts, word, options.layout):
            continue
        if word.startswith("/"):
            paths.append(word)
        else:
            names.append(word)
    return (*paths, *names) or ("runc", "crun")


def _sum_install(
    parts: tuple[Part, ...], facts: Facts, options: Options, installs: Sequence[EngineInstall]
) -> Plan:
    """Return the plan of an install, unless the same has failed before."""
    record = facts.record
    final_rows = sum_rows(parts)
    gpus = require(facts.cdi).gpus
    # The rows of CDI specifications come last.
    configs = sorted(final_rows.configs, key=lambda row: row.engine == Owner.CDI)
    final = replace(
        final_rows,
        configs=tuple(configs),
        pid_file=record.pid_file,
        published=record.published,
        turn=record.turn,
        mounts=record.mounts,
        finished=True,
        units_down=tuple(facts.units_down),
    )
    steps = _list_steps(parts)
    pending: dict[str, NotYetError] = {}
    unverified: list[str] = []
    earlier: list[WriteConfig] = []
    for install in installs:
        if install.postponed:
            pending[install.engine.name] = install.postponed
        if install.is_unproven:
            unverified.append(install.engine.name)
        earlier += _find_earlier_writes(install)
    plan = Plan(
        parts=parts,
        in_progress=rows.in_progress(record, final, steps),
        final=final,
        engines={each.name: each for each in facts.engines},
        digest=_digest(facts, options, final_rows.toolkit),
        unverified_engines=tuple(unverified),
        seen=facts.digests,
        release=require(facts.payload).version,
        pending=pending,
        restarts_due=frozenset(row.name for row in record.engines if row.restart_due),
        earlier=tuple(earlier),
        specification_problem=gpus.problem if gpus else None,
    )
    failed = Part(PartId.FAILED_BEFORE, obstacles=_refuse_failed(plan, record, options))
    return replace(plan, parts=(*parts, failed))


def _list_steps(parts: Iterable[Part]) -> list[Step]:
    """Return the steps of all parts, in their order."""
    steps: list[Step] = []
    for part in parts:
        steps += part.steps
    return steps


def _find_earlier_writes(install: EngineInstall) -> Iterator[WriteConfig]:
    """Yield the writes of earlier installs that wait for the restart of this plan."""
    engine = install.engine
    facts = install.request.facts
    row = install.request.row
    if row is None or not row.restart_due or install.accepted.restart.when is not When.NOW:
        return
    for path, without_ours in files_without_us(engine, facts).items():
        present = facts.contents.get(path)
        if present != without_ours:
            yield WriteConfig(engine.name, path, without_ours, present)


def _digest(facts: Facts, options: Options, payload: ToolkitRow | None) -> str:
    """Return the digest of everything on which an engine's answer depends.

    An install that has failed fails again while the digest is the same.
    """
    engines = []
    for each in facts.engines:
        texts = []
        for path in each.files:
            file = without_us(path, facts)
            texts.append(file.digest if file else "")
        serves: tuple[object, ...] = ()
        # dockerd keeps what a failed attempt loaded: what it serves tells nothing.
        if each.serving is not None and not each.kind.reads_config_on_signal:
            tables = []
            for name, runtime in each.serving.handlers.items():
                tables.append((name, sorted(map(repr, flatten(runtime.table)))))
            serves = (each.serving.default, sorted(tables))
        identity = (each.version, each.build, each.unit, each.start, each.inputs, each.config)
        engines.append((each.name, *identity, serves, *texts))
    words = repr((engines, payload.version if payload else "", options.for_engines))
    return sha256(words.encode()).hexdigest()


def _refuse_failed(plan: Plan, record: Record, options: Options) -> tuple[InstallerError, ...]:
    """Refuse to reload an engine again by a plan that has failed."""
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
    """Refuse to remove or rename a runtime under running containers.

    ``names`` are the runtimes of the install; none in CDI mode.
    """
    by_cdi = Remedy(
        "stop them, run toolkit-installer uninstall, then try again; or keep ", Option("mode", "runtime")
    )
    renamed = Remedy("stop them first, or keep ", Option("runtime-name"), " as it was")
    hooked = {engine.name for engine in facts.engines if engine.hook is not None}
    for row in facts.record.engines:
        is_hooked = row.name in hooked
        remedy: str = by_cdi
        if names:
            remedy = "stop them first, or do without the OCI hook" if is_hooked else renamed
        for name, binary in row.runtimes.items():
            used = []
            for container in facts.containers.running:
                if container.engine == row.name and container.binary == binary:
                    used.append(container)
            if used and (name not in names or is_hooked):
                title = ENGINES[row.name].title
                problem = f"remove the runtime {name} from {title} (it runs {names_of(used)})"
                yield InstallerError(problem, remedy=remedy, code="in-use")


def _make_directories(facts: Facts, parts: Iterable[Part]) -> Part:
    """Plan the missing directories of all files in the writes of ``parts``.

    An unwritable directory is an obstacle.
    """
    written: set[PurePosixPath] = set()
    for step in _list_steps(parts):
        if isinstance(step, WriteConfig | WriteSpecification):
            written.add(step.path)
    paths = set(written)
    for path in written & facts.targets.keys():
        paths.add(facts.targets[path])
    above: set[PurePosixPath] = set()
    for path in paths:
        above.update(path.parents)
    missing = above & facts.missing
    made = sorted(missing, key=lambda path: len(path.parts))
    planned: list[tuple[Step, str]] = []
    for directory in made:
        first = next(path for path in sorted(paths) if directory in path.parents)
        planned.append((MakeDirectory(directory), f"{first} goes there"))
    obstacles = []
    for path, error in sorted(facts.unwritable.items()):
        if path in written:
            obstacles.append(error)
    return Part(
        PartId.DIRECTORIES, tuple(planned), Record(directories=tuple(made)), obstacles=tuple(obstacles)
    )


def plan_undo(facts: Facts, options: Options, dry_run: DryRun = predict_from_texts) -> Plan:
    """Plan the removal of everything we installed, whoever has changed the node since.

    The engines come first (``engine_plan.undo_engine``), the payload last. While containers run on our
    runtimes, the payload stays, or links to a low-level runtime replace the payload, and an engine keeps the
    handlers of these containers, which ``in_use`` names.
    """
    record = facts.record
    engines = []
    for row in record.engines:
        undo_engine = partial(engine_plan.undo_engine, row, facts, options, dry_run)
        engines.append(make_part(name_part(row.name), undo_engine))
    references = make_part("references", lambda: _find_references(facts, engines, options))
    first = (*engines, references, _check_undo(facts, options))
    needed: list[InstallerError] = []
    for part in first:
        needed += part.needed
    running = facts.containers.running
    stays = bool(running or needed)

    made = _make_directories(facts, engines)  # dockerd may need an intermediate text
    directories = (*record.directories, *made.rows.directories)
    removed: list[PurePosixPath] = []
    if not stays:
        # The directories that hold the ledger are removed with it, after everything else.
        ledger_above = options.layout.home.parents
        removed = [path for path in directories if path not in ledger_above]
        removed.sort(key=lambda path: -len(path.parts))
    parts = (
        made,
        *first,
        cdi.undo_specifications(facts, stays=stays),
        cdi.undo_device_nodes(facts, stays=stays),
        toolkit.undo(facts, options, needed),
        find_taken_over(facts, options),
        Part(
            PartId.DIRECTORIES,
            for_reason("install made it", map(RemoveDirectory, removed)),
            Record(directories=directories),
        ),
    )
    return _sum_undo(parts, facts, stays=stays)


def _sum_undo(parts: tuple[Part, ...], facts: Facts, *, stays: bool) -> Plan:
    """Return the plan of an undo; if the toolkit ``stays``, the ledger has the reason."""
    record = facts.record
    running = facts.containers.running
    final_rows = sum_rows(parts)
    steps = _list_steps(parts)
    in_progress = record
    if steps:
        configs: dict[PurePosixPath, ConfigRow] = {}
        for part in parts:
            for row in part.in_progress:
                configs[row.path] = row
        known = tuple(rows.add_known_texts(configs.values(), steps))
        in_progress = replace(record, configs=known, directories=final_rows.directories, finished=False)

    final = None
    if stays:
        needed: list[InstallerError] = []
        for part in parts:
            needed += part.needed
        problem = needed[0].problem if needed else ""
        if running:
            problem = f"undo everything ({explain_running(running)})"
        final = replace(
            final_rows,
            pid_file=record.pid_file,
            published=record.published,
            turn=record.turn,
            mounts=record.mounts,
            finished=True,
            undo_problem=problem,
            units_down=tuple(facts.units_down),
            undo_pending=record.undo_pending,
        )
    return Plan(
        parts=parts,
        in_progress=in_progress,
        final=final,
        engines={each.name: each for each in facts.engines},
        in_use=running,
        seen=facts.digests,
    )


def _find_references(facts: Facts, engines: Sequence[Part], options: Options) -> Part:
    """Keep the toolkit while others name it.

    The rows of undone engines stay then, too, and the next undo asks these engines again: the answer of a
    running engine counts as a reference, despite the files.
    """
    needed = tuple(find_references(facts, engines, options))
    if not options.thorough:
        problem = "remove the toolkit (an undo was killed, so what else starts it was not searched)"
        needed += (InstallerError(problem, remedy="run uninstall", code="undo-killed"),)
    undone: list[EngineRow] = []
    if needed:
        kept: set[str] = set()
        for part in engines:
            kept.update(row.name for row in part.rows.engines)
        for row in facts.record.engines:
            if row.name not in kept:
                undone.append(replace(row, config=None))
    return Part(PartId.REFERENCES, rows=Record(engines=tuple(undone)), needed=needed)


def _check_undo(facts: Facts, options: Options) -> Part:
    """Collect the obstacles of an undo, and note the unrestorable files."""
    obstacles = []
    needed = []
    for engine in facts.engines:
        kind = engine.kind
        # Without its default runtime no pod would start any more, that of the next installer included.
        if (
            kind.built_in_runtime
            and engine.serving is not None
            and engine.serving.default == kind.built_in_runtime
        ):
            problem = f"remove the toolkit of {engine.title} (its default runtime is {kind.built_in_runtime})"
            remedy = f"start {engine.title} without --default-runtime, then {UNINSTALL_AGAIN}"
            obstacles.append(InstallerError(problem, remedy=remedy, code="runtime-needed"))
    for row in facts.record.configs:
        present = facts.contents[row.path]
        is_whole = row.syntax is None  # we wrote the whole file
        # A file that we wrote whole cannot be restored if the saved copy of the former file is lost.
        if row.path in facts.lost and is_whole and present is not None and present.digest in row.ours:
            copy = options.layout.backups / (row.original.digest if row.original else "")
            problem = f"restore {row.path} (its saved copy {copy} is missing or damaged)"
            remedy = f"write the right file there, or remove it, then {UNINSTALL_AGAIN}"
            needed.append(InstallerError(problem, remedy=remedy, code="backup-lost"))
    for unit, state in facts.units_down.items():
        problem = f"finish the undo ({unit} is {state} {SINCE_OUR_RESTART})"
        give_up = f"or give it up with systemctl reset-failed {unit}; then {UNINSTALL_AGAIN}"
        remedy = f"{START_UNIT.format(unit=unit)}, {give_up}"
        needed.append(OtherUnitError(problem, remedy=remedy))
    notes = [*facts.notes]
    if facts.containers.idle:
        idle = ", ".join(facts.containers.idle)
        notes.append(f"stopped containers that need our runtime to start again: {idle}")
    return Part(PartId.NODE, notes=tuple(notes), obstacles=tuple(obstacles), needed=tuple(needed))


def plan_rollback(  # noqa: PLR0913 - a plan, its state, and what was found since
    plan: Plan,
    done: tuple[Step, ...],
    record: Record,
    running: tuple[Container, ...] = (),
    *,
    reason: str = "the install failed",
    in_force: Mapping[str, EffectiveConfig] | None = None,
) -> Plan:
    """Plan to revert the steps ``done`` of a plan and to restore the former rows, ``record``.

    After a tried reload an engine is reloaded again, and has to serve the same runtimes as before.
    After a first install ``running`` containers keep their engine and the payload as they are.

    Args:
        plan: the failed plan.
        done: the steps so far; the last may be half done.
        record: the ledger before the plan.
        running: the containers on our runtimes.
        reason: the reason of the roll-back, for the log.
        in_force: the configs of the engines that were asked after their reload had failed.
    """
    if in_force is None:
        in_force = {}
    kept_engines: set[str] = set()
    if record.toolkit is None:
        kept_engines = {container.engine for container in running}
    tried = {step.engine: step for step in done if isinstance(step, Reload)}
    # A reload may have brought the texts of an earlier plan into force: its roll-back reverts these, too.
    earlier = [step for step in plan.earlier if step.engine in tried]
    to_revert = (*earlier, *done)

    # The newest step is reverted first.
    written: dict[str, list[WriteConfig]] = {}  # by engine; an engine that was only restarted has no writes
    others: list[Step] = []  # a file that belongs to no engine is reverted like the other steps
    for step in reversed(to_revert):
        if isinstance(step, WriteConfig | Reload) and step.engine in plan.engines:
            writes = written.setdefault(step.engine, [])
            if isinstance(step, WriteConfig):
                writes.append(step)
        else:
            others.append(step)

    steps: list[Step] = []
    for name, writes in written.items():
        if name not in kept_engines:
            engine = plan.engines[name]
            steps += engine_plan.roll_back_engine(engine, writes, tried.get(name), in_force.get(name))
    if not kept_engines:
        for step in others:
            undo = describe(step).undo
            if undo is not None:
                steps.append(undo)

    configs = tuple(rows.add_known_texts(plan.in_progress.configs, (*to_revert, *steps)))
    in_progress = replace(plan.in_progress, configs=configs, finished=False)
    return Plan(
        parts=(Part(PartId.ROLL_BACK, for_reason(reason, steps)),),
        in_progress=in_progress,
        final=in_progress if kept_engines else _without_unwanted(record, to_revert),
        engines=plan.engines,
        in_use=running if kept_engines else (),
        seen=_note_own_writes(plan.seen, to_revert),
    )


def _without_unwanted(record: Record, done: Iterable[Step]) -> Record:
    """Return a ledger without the CDI specifications that a roll-back does not restore."""
    unwanted = {step.path for step in done if isinstance(step, WriteConfig) and step.unwanted}
    if unwanted and record.cdi is not None:
        return cdi.without(record, unwanted)
    return record


def _note_own_writes(seen: Mapping[PurePosixPath, str], done: Iterable[Step]) -> dict[PurePosixPath, str]:
    """Return the digest of each config as read, or as the steps ``done`` have written it since."""
    digests = dict(seen)
    for step in done:
        if isinstance(step, WriteConfig):
            digests[step.path] = step.after.digest if step.after else ""
    return digests
