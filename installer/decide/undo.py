"""What gives everything back: by kind, default and handlers first, the payload last."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from installer.decide.cdi import OWNER, give_back
from installer.decide.engine_part import texts_alone
from installer.decide.engine_undo import UndoPart, undo_engine
from installer.decide.engines import ENGINES
from installer.decide.engines.model import RuntimeEntry
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.facts import Container, EngineFacts, Facts, names_of
from installer.decide.options import Options, RestartMode
from installer.decide.plan import Plan
from installer.decide.references import references
from installer.decide.reloading import knowing, take_up, unstartable
from installer.decide.rows import ConfigRow, Holdings
from installer.decide.steps import (
    ProveUnused,
    Reload,
    RemoveDeviceNodes,
    RemoveDirectory,
    Step,
    WriteConfig,
    inverse,
)
from installer.decide.texts import Ask
from installer.decide.toolkit_plan import TRY_AGAIN, plan_removal


def plan_undo(facts: Facts, options: Options, ask: Ask = texts_alone) -> Plan:
    """Return the steps after which nothing of ours is left, whatever was done and by whom.

    While containers run on our runtimes the payload they were started by stays, or links to a low-level
    runtime in its place, and an engine keeps the handlers it needs for them; ``in_use`` names them.

    Raises:
        InstallerError: somebody has written a config since, and it is not valid any more.
    """
    held = facts.held
    parts = [undo_engine(engine, facts, options, ask) for engine in held.engines]
    specifications = [give_back(row, facts) for row in held.configs if row.engine == OWNER]
    steps = [step for part in parts for step in part.steps]
    named = tuple(references(facts, parts, options))
    needed = (*(error for part in parts for error in part.needed), *named, *_lost(facts, options))
    stays = bool(facts.live or needed)
    if not stays:
        steps += [write for part in specifications for write in part.writes]
        steps += [RemoveDeviceNodes(held.nodes)] if held.nodes else []
    toolkit, payload, obstacles = plan_removal(facts, options) if not needed else (held.toolkit, [], [])
    hooked = next((row.engine for row in held.configs if _is_hook(row)), "")
    if payload and (hooked or any(isinstance(step, Reload) for step in steps)) and not facts.live:
        steps.append(ProveUnused(hooked))
    steps += payload
    if not stays:
        # The directories that hold the ledger go with it, after all else.
        made = [path for path in held.directories if path not in options.layout.home.parents]
        steps += [RemoveDirectory(path) for path in sorted(made, key=lambda path: -len(path.parts))]
    edits = {row.path: row.edits for row in held.configs}
    rows = {row.path: replace(row, edits=edits[row.path]) for part in parts for row in part.rows}
    rows |= {row.path: row for part in specifications for row in part.rows}
    during = replace(held, configs=tuple(knowing(rows.values(), steps)), finished=False)
    settled = Holdings(
        directories=held.directories,
        toolkit=toolkit,
        # Where the toolkit is still named its engines are asked again: what runs counts, too.
        engines=tuple(
            part.kept or replace(row, config=None)
            for part, row in zip(parts, held.engines, strict=True)
            if part.kept or named
        ),
        configs=(
            *(row for part in parts if part.kept is not None for row in part.rows),
            *(_as_found(row, part) for part in parts if part.kept is None for row in part.rows if row.named),
            *(row for part in specifications for row in part.rows),
        ),
        nodes=held.nodes,
        pid_file=held.pid_file,
        finished=True,
        left=f"our runtime runs {names_of(facts.live)}"
        if facts.live
        else next((each.problem for each in needed), ""),
    )
    return Plan(
        tuple(steps),
        during if steps else held,
        settled if stays else None,
        {engine.name: engine for engine in facts.engines},
        backups=(
            *(file for part in parts for file in part.backups),
            *(file for part in specifications for file in part.backups),
        ),
        obstacles=(
            *_unreachable(facts, options.restart_mode),
            *_defaults_of_others(facts),
            *obstacles,
            *unstartable(steps, facts.engines),
        ),
        notes=(*facts.notes, *(note for part in parts for note in part.notes), *_idle(facts)),
        in_use=facts.live,
        needed=needed,
        seen=facts.digests,
    )


def _as_found(row: ConfigRow, part: UndoPart) -> ConfigRow:
    """Return the row of a file with nothing of ours that named the toolkit before us, and may go on."""
    texts = [step.after for step in part.steps if isinstance(step, WriteConfig) and step.path == row.path]
    digests = (texts[-1].digest,) if texts and texts[-1] is not None else row.ours
    return replace(row, ours=digests, edits=())


def _lost(facts: Facts, options: Options) -> Iterator[InstallerError]:
    """Yield which files that we wrote whole cannot be given back: what stood there is lost."""
    for row in facts.held.configs:
        now = facts.contents[row.path]
        if row.path in facts.lost and row.syntax is None and now is not None and now.digest in row.ours:
            layout = options.layout
            copy = layout.backups / (row.original.digest if row.original else "")
            yield InstallerError(
                f"give {row.path} back (its saved copy {copy} is missing or damaged)",
                remedy=f"put the file there that belongs there, or remove it, then {TRY_AGAIN}",
            )


def _idle(facts: Facts) -> Iterator[str]:
    if facts.idle:
        yield f"stopped containers that need our runtime to start again: {', '.join(facts.idle)}"


def _unreachable(facts: Facts, restart_mode: RestartMode) -> list[InstallerError]:
    """Return why an engine that runs cannot be asked; a binary must outlive the config that names it.

    One that is restarted may be healed by just that, and has to answer afterwards.
    """
    if restart_mode is RestartMode.NONE:
        return []
    held = {engine.name for engine in facts.held.engines}
    return [
        InstallerError(
            f"prove that {engine.name} has let go of our runtimes ({engine.silence})",
            remedy=f"make it answer, then {TRY_AGAIN}",
        )
        for engine in facts.engines
        if engine.name in held
        and ENGINES[engine.name].reload is ReloadMethod.HUP
        and engine.serving is None
        and not engine.stopped
    ]


def _is_hook(row: ConfigRow) -> bool:
    engine = ENGINES.get(row.engine)
    return engine is not None and engine.hook_dir is not None and row.path.suffix == ".json"


def _defaults_of_others(facts: Facts) -> Iterator[InstallerError]:
    """Yield why an engine that was told by its owner to start all pods with our runtime cannot lose it.

    No pod would start any more, that of the next installer included.
    """
    for row in facts.held.engines:
        found = next((each for each in facts.engines if each.name == row.name), None)
        serving = found.serving if found and ENGINES[row.name].finds else None
        if serving is not None and serving.default in {name for name, _ in row.runtimes}:
            yield InstallerError(
                f"take the toolkit away from {row.name} (its default runtime is {serving.default})",
                remedy=f"start {row.name} without --default-runtime, then {TRY_AGAIN}",
            )


def plan_rollback(
    plan: Plan, done: tuple[Step, ...], held: Holdings, live: tuple[Container, ...] = ()
) -> Plan:
    """Return the steps that take ``done``, the last of which may be half done, back to ``held``.

    An engine whose reload was tried is reloaded again, and proven to serve what it served before.
    Where nothing was held before, ``live`` containers keep their engine and the payload as they are.
    """
    used = {container.engine for container in live} if held.toolkit is None else set()
    tried = {step.engine: step for step in done if isinstance(step, Reload)}
    # A file that belongs to no engine goes back as any other step does.
    of_engines = [
        step for step in done if isinstance(step, WriteConfig | Reload) and step.engine in plan.engines
    ]
    steps: list[Step] = []
    for name in dict.fromkeys(step.engine for step in reversed(of_engines) if step.engine not in used):
        writes = [
            replace(step, before=step.after, after=step.before)
            for step in reversed(of_engines)
            if isinstance(step, WriteConfig) and step.engine == name
        ]
        looks = bool(ENGINES[name].finds)
        again = _again(plan.engines[name], tried[name]) if name in tried and not looks else None
        # What dockerd has by now depends on when it failed.
        steps += take_up(writes, again, None, plan.engines[name]) if again else [*writes]
    steps += [
        back
        for step in reversed(done)
        if not used and step not in of_engines and (back := inverse(step)) is not None
    ]
    rows = tuple(knowing(plan.during.configs, (*done, *steps)))
    during = replace(plan.during, configs=rows, finished=False)
    settled = during if used else held
    return Plan(tuple(steps), during, settled, plan.engines, in_use=live if used else (), seen=plan.seen)


def _again(engine: EngineFacts, tried: Reload) -> Reload:
    """Return the reload after which the engine serves, of the runtimes that were tried, those of before."""
    before = engine.serving.binaries if engine.serving else {}
    default = engine.serving.default if engine.serving else ""
    entries = (*tried.present, *tried.absent)
    present = [
        RuntimeEntry(entry.name, PurePosixPath(before[entry.name]), default=entry.name == default)
        for entry in entries
        if before.get(entry.name)
    ]
    kept = {(entry.name, entry.binary) for entry in present}
    absent = [
        RuntimeEntry(entry.name, entry.binary) for entry in entries if (entry.name, entry.binary) not in kept
    ]
    return Reload(tried.engine, tuple(present), tuple(absent))
