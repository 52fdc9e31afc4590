"""Facts and Options in, steps out: what an install would do, without doing any of it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from installer.decide.advisories import advice
from installer.decide.cdi import OWNER, plan_cdi
from installer.decide.configs import pristine
from installer.decide.effect import flat
from installer.decide.engine_part import EnginePart, install_engine, texts_alone
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError, Option, Remedy, UndoIncompleteError
from installer.decide.facts import Container, EngineFacts, Facts, names_of
from installer.decide.inode import File
from installer.decide.layout import DEFAULT_INSTALL_DIR
from installer.decide.options import Options, RestartMode
from installer.decide.references import with_named
from installer.decide.reloading import during, stale, unstartable
from installer.decide.rows import Holdings, ToolkitRow
from installer.decide.steps import FindRuntimes, MakeDirectory, Reload, Step, WriteConfig, WriteSpecification
from installer.decide.texts import Ask
from installer.decide.toolkit_plan import plan_toolkit

NAME: Final = Option("runtime-name")
UNPROVEN: Final = Option("restart-mode", "none")
MODES: Final = ("", ".cdi", ".legacy")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and what the ledger says before the first step and after the last.

    ``settled`` is None where nothing is held any more. ``backups`` are saved ahead of all
    steps; ``obstacles`` keep the plan from being carried out; ``unproven`` names the engines
    that nobody will ask whether they serve what their config says. ``digest`` is that of all an
    engine's answer depends on. An undo stays incomplete for the containers ``in_use``, and for what is
    ``needed`` by others, each with its reason. ``seen`` holds the digest of each config as it was read, ""
    where there was none.
    """

    steps: tuple[Step, ...]
    during: Holdings
    settled: Holdings | None
    engines: Mapping[str, EngineFacts]
    digest: str = ""
    backups: tuple[File, ...] = ()
    obstacles: tuple[InstallerError, ...] = ()
    notes: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    in_use: tuple[Container, ...] = ()
    needed: tuple[InstallerError, ...] = ()
    seen: Mapping[PurePosixPath, str] = field(default_factory=dict)


def entries_for(options: Options) -> tuple[RuntimeEntry, ...]:
    """Return the three runtimes as NVIDIA writes them (engine-facts.md#nvidia-runtimes).

    A custom name takes the place of ``nvidia``; one of the other two only chooses the default.
    """
    standard = tuple(f"nvidia{mode.replace('.', '-')}" for mode in MODES)
    chosen = options.runtime_name
    names = standard if chosen in standard else (chosen, *standard[1:])
    return tuple(
        RuntimeEntry(
            name,
            options.layout.toolkit / f"nvidia-container-runtime{mode}",
            default=options.set_as_default and name == chosen,
        )
        for name, mode in zip(names, MODES, strict=True)
    )


def plan_install(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps that make the host serve our runtimes; none where it does.

    Raises:
        InstallerError: a config cannot be edited as it is.
    """
    entries = entries_for(options)
    try:
        parts = [install_engine(engine, entries, facts, options, ask) for engine in facts.engines]
    except InstallerError as error:
        # What stands against any plan, as a flag of the engine's start, is the cause of what fails then.
        for obstacle in facts.obstacles:
            raise obstacle from error
        raise
    toolkit = plan_toolkit(facts, options, options.low_level or _low_level(parts, facts, options))
    cdi = plan_cdi(facts, options)
    directories = _directories(facts, [*cdi.writes, *(write for part in parts for write in part.writes)])
    steps: list[Step] = [*cdi.nodes_made, *toolkit.steps, *map(MakeDirectory, directories), *cdi.writes]
    steps += [
        FindRuntimes(part.row.name, tuple(path for _, path in part.row.runtimes))
        for part in parts
        if part.writes and any(isinstance(step, Reload) for step in part.steps)
    ]
    for part in parts:
        steps += part.steps
    steps += toolkit.afterwards
    held = facts.held
    planned = {OWNER, *(part.row.name for part in parts)}
    others = (row for row in held.configs if row.engine not in planned)
    of_engines = with_named((row for part in parts for row in part.configs), facts, options.layout)
    rows = (*others, *of_engines, *cdi.rows)
    settled = Holdings(
        directories=tuple(dict.fromkeys((*held.directories, *directories))),
        toolkit=toolkit.row,
        engines=tuple({row.name: row for row in (*held.engines, *(part.row for part in parts))}.values()),
        configs=tuple({row.path: row for row in rows}.values()),
        nodes=cdi.nodes,
        pid_file=held.pid_file,
        finished=True,
    )
    plan = Plan(
        tuple(steps),
        during(held, settled, steps),
        settled,
        {engine.name: engine for engine in facts.engines},
        _digest(facts, options, toolkit.row),
        backups=(*cdi.backups, *(file for part in parts for file in part.backups)),
        obstacles=(
            *facts.obstacles,
            *toolkit.obstacles,
            *_silent(facts.engines, options, {part.row.name for part in parts if part.heals}),
            *_not_found_there(facts.engines, options),
            *_needed(facts, entries),
            *unstartable(steps, facts.engines),
        ),
        notes=(
            *facts.notes,
            *advice(facts.version),
            *(note for part in parts for note in part.notes),
            *stale(facts, entries),
            *(f"{part.row.name}, pending: {part.row.pending}" for part in parts if part.row.pending),
            *toolkit.notes,
        ),
        unproven=tuple(
            engine.name
            for engine in facts.engines
            if options.restart_mode is RestartMode.NONE or engine.hook is not None
        ),
        seen=facts.digests,
    )
    return replace(plan, obstacles=(*plan.obstacles, *_refused_before(plan, held, options)))


def _digest(facts: Facts, options: Options, toolkit: ToolkitRow | None) -> str:
    """Return the digest of all an engine's answer depends on: what failed once fails the same way again."""
    engines = []
    for engine in facts.engines:
        files = [pristine(path, facts).file for path in engine.files]
        texts = [file.digest if file else "" for file in files]
        serves = _served(engine) if ENGINES[engine.name].reload is ReloadMethod.RESTART else ()
        engines.append(
            (engine.name, engine.version, engine.build, engine.unit, engine.config, serves, *texts)
        )
    asked = replace(options, retry=False)
    words = repr((engines, toolkit.version if toolkit else "", asked))
    return sha256(words.encode()).hexdigest()


def _served(engine: EngineFacts) -> tuple[object, ...]:
    """Return what an engine serves; one that is signalled may have kept what a failed try told it."""
    if engine.serving is None:
        return ()
    handlers = sorted(
        (name, sorted(map(repr, flat(one.table)))) for name, one in engine.serving.handlers.items()
    )
    return (engine.serving.default, handlers)


def _refused_before(plan: Plan, held: Holdings, options: Options) -> tuple[InstallerError, ...]:
    """Return why a plan that would reload an engine is not tried again as it is."""
    failed = held.failed
    reloads = any(isinstance(step, Reload) for step in plan.steps)
    if failed is None or not reloads or options.retry or failed.digest != plan.digest:
        return ()
    problem = f"configure again what failed before ({failed.problem})"
    if not held.finished and held.toolkit is not None:
        return (
            UndoIncompleteError(
                problem, remedy="run toolkit-installer uninstall: the roll-back of it did not end well"
            ),
        )
    remedy = Remedy(
        "change the config, the payload, the engine or the options, or try once more with ", Option("retry")
    )
    return (InstallerError(problem, remedy=remedy),)


def _low_level(parts: Iterable[EnginePart], facts: Facts, options: Options) -> tuple[str, ...]:
    """Return what all engines can start, paths before words; ours is not for ours, whatever its name."""
    words = dict.fromkeys(word for part in parts for word in part.low_level)
    words = {word: None for word in words if not facts.leads_into(word, options.layout)}
    return tuple(sorted(words, key=lambda word: not word.startswith("/"))) or ("runc", "crun")


def _needed(facts: Facts, entries: tuple[RuntimeEntry, ...]) -> tuple[InstallerError, ...]:
    """Return why a runtime cannot go by another name: containers that it started need the one it has."""
    names = {entry.name for entry in entries}
    for row in facts.held.engines:
        for name, binary in row.runtimes:
            used = [each for each in facts.live if (each.engine, each.binary) == (row.name, binary)]
            if name not in names and used:
                problem = f"take the runtime {name} away from {row.name} (it runs {names_of(used)})"
                return (
                    InstallerError(problem, remedy=Remedy("stop them first, or keep ", NAME, " as it was")),
                )
    return ()


def _not_found_there(engines: Iterable[EngineFacts], options: Options) -> Iterator[InstallerError]:
    """Yield why an engine that looks for the toolkit by itself would not find what was asked for."""
    for engine in engines:
        finds = ENGINES[engine.name].finds
        if finds and options.install_dir != DEFAULT_INSTALL_DIR:
            problem = (
                f"install into {options.install_dir} ({engine.name} looks below {DEFAULT_INSTALL_DIR} only)"
            )
            yield InstallerError(problem, remedy=Remedy("leave ", Option("install-dir"), " as it is"))
        if finds and options.runtime_name != finds:
            problem = f"name the runtime {options.runtime_name} ({engine.name} names it {finds} by itself)"
            yield InstallerError(problem, remedy=Remedy("leave ", NAME, " as it is"))
        if finds and options.set_as_default:
            problem = f"make the runtime the default of {engine.name} (it writes its config itself)"
            yield InstallerError(problem, remedy=f"start {engine.name} with --default-runtime {finds}")


def _directories(
    facts: Facts, writes: Iterable[WriteConfig | WriteSpecification]
) -> tuple[PurePosixPath, ...]:
    paths = {path for write in writes for path in (write.path, facts.targets.get(write.path, write.path))}
    needed = {parent for path in paths for parent in path.parents} & facts.missing
    return tuple(sorted(needed, key=lambda path: len(path.parts)))


def _silent(
    engines: Iterable[EngineFacts], options: Options, healed: Collection[str]
) -> tuple[InstallerError, ...]:
    if options.restart_mode is RestartMode.NONE:
        return ()
    return tuple(
        InstallerError(
            f"prove that {engine.name} serves our runtimes ({engine.silence})",
            remedy=Remedy(
                f"start {engine.name}" if engine.stopped else f"correct what the log of {engine.name} says",
                ", or configure it unproven with ",
                UNPROVEN,
            ),
        )
        for engine in engines
        if engine.serving is None and engine.hook is None and engine.name not in healed
    )
