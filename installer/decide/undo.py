"""What gives everything back: by kind, default and handlers first, the payload last."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from installer.decide.cdi import OWNER, give_back
from installer.decide.configs import pristine, text_of, tree_of
from installer.decide.edits import Syntax, apply, undo
from installer.decide.engines import ENGINES, docker
from installer.decide.engines.containerd_config import OLD_TABLE
from installer.decide.engines.model import Reload as How
from installer.decide.engines.model import RuntimeEntry, leaves
from installer.decide.errors import InstallerError
from installer.decide.facts import Container, EngineFacts, Facts
from installer.decide.inode import File, Meta
from installer.decide.options import InUse, Options, RestartMode
from installer.decide.plan import Plan
from installer.decide.rows import ConfigRow, EngineRow, Holdings, Saved
from installer.decide.steps import (
    ProveUnused,
    Reload,
    RemoveDeviceNodes,
    RemoveDirectory,
    Step,
    WriteConfig,
    inverse,
)
from installer.decide.toolkit_plan import TRY_AGAIN, plan_removal


def plan_undo(facts: Facts, options: Options) -> Plan:
    """Return the steps after which nothing of ours is left, whatever was done and by whom.

    While containers run on our runtimes the payload they were started by stays, or links to a low-level
    runtime in its place, and an engine keeps the handlers it needs for them; ``in_use`` names them.

    Raises:
        InstallerError: somebody has written a config since, and it is not valid any more.
    """
    held = facts.held
    parts = [_engine(engine, facts, options) for engine in held.engines]
    kept = [part for part in parts if part.kept is not None]
    specifications = [give_back(row, facts) for row in held.configs if row.engine == OWNER]
    steps = [step for part in parts for step in part.steps]
    if not facts.live:
        steps += [write for part in specifications for write in part.writes]
        steps += [RemoveDeviceNodes(held.nodes)] if held.nodes else []
    toolkit, payload, obstacles = plan_removal(facts, options)
    if payload and any(isinstance(step, Reload) for step in steps) and not facts.live:
        steps.append(ProveUnused())
    steps += payload
    if not facts.live:
        # The directories that hold the ledger go with it, after all else.
        made = [path for path in held.directories if path not in options.layout.home.parents]
        steps += [RemoveDirectory(path) for path in sorted(made, key=lambda path: -len(path.parts))]
    edits = {row.path: row.edits for row in held.configs}
    rows = {row.path: replace(row, edits=edits[row.path]) for part in parts for row in part.rows}
    rows |= {row.path: row for part in specifications for row in part.rows}
    during = replace(held, configs=tuple(_knowing(rows.values(), steps)), finished=False)
    settled = Holdings(
        directories=held.directories,
        toolkit=toolkit,
        engines=tuple(part.kept for part in kept if part.kept is not None),
        configs=(
            *(row for part in kept for row in part.rows),
            *(row for part in specifications for row in part.rows),
        ),
        nodes=held.nodes,
        pid_file=held.pid_file,
        finished=True,
    )
    return Plan(
        tuple(steps),
        during if steps else held,
        settled if facts.live else None,
        {engine.name: engine for engine in facts.engines},
        backups=(
            *(file for part in parts for file in part.backups),
            *(file for part in specifications for file in part.backups),
        ),
        obstacles=(*_unreachable(facts, options.restart_mode), *_defaults_of_others(facts), *obstacles),
        notes=(*facts.notes, *(note for part in parts for note in part.notes), *_idle(facts)),
        in_use=facts.live,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one engine takes: ``kept`` is its row where its handlers stay, ``rows`` are its configs'."""

    steps: list[Step]
    kept: EngineRow | None
    rows: list[ConfigRow]
    backups: list[File]
    notes: list[str]


def _engine(engine: EngineRow, facts: Facts, options: Options) -> _Part:
    """Return what one engine takes; all of its handlers stay where containers need one of them."""
    found = next((each for each in facts.engines if each.name == engine.name), None)
    used = any(container.engine == engine.name for container in facts.live)
    version = found.version if found else None
    stays = used and (options.in_use is not InUse.FORCE or ENGINES[engine.name].needs_handler(version))
    rows, backups, notes = [], [], []
    writes: list[WriteConfig] = []
    for row in (row for row in facts.held.configs if row.engine == engine.name):
        was, now = pristine(row.path, facts), facts.contents[row.path]
        notes += [_left(row.path, edit.key) for edit in was.overruled if not stays]
        if was.file is not None:
            backups.append(was.file)
        row = replace(row, original=Saved.of(was.file))  # noqa: PLW2901 - the row as it is from here on
        if stays:
            row, after = _demoted(row, now)  # noqa: PLW2901
        else:
            after = was.file
        rows.append(row)
        writes.append(WriteConfig(engine.name, row.path, now, after))
    reload = _reload(engine, writes, stays=stays)
    steps = _give_back(writes, reload, found, facts, options.restart_mode)
    return _Part(steps, engine if stays else None, rows, backups, notes)


def _entries(engine: EngineRow) -> tuple[RuntimeEntry, ...]:
    return tuple(RuntimeEntry(*runtime) for runtime in engine.runtimes)


def _demoted(row: ConfigRow, now: File | None) -> tuple[ConfigRow, File | None]:
    """Return a config in which our runtime is not the default any more, and its row."""
    default = [edit for edit in row.edits if {ENGINES[row.engine].default_key, OLD_TABLE} & {*edit.key[-2:]}]
    if not default or now is None or row.syntax is None:
        return row, now
    text, _ = undo(text_of(now, row.path), default, row.syntax, name=str(row.path))
    after = File(text.encode(), now.meta)
    rest = tuple(edit for edit in row.edits if edit not in default)
    return replace(row, ours=(after.digest,), edits=rest), after


def _reload(engine: EngineRow, writes: Iterable[WriteConfig], *, stays: bool) -> Reload:
    """Return the reload after which those of our handlers are served that the files say: none as the default.

    Files without us may say some, too: runtimes that were taken over from another installer.
    """
    said = [leaf for write in writes for leaf in leaves(tree_of(write.after, write.path))]
    entries = _entries(engine)
    there = [e for e in entries if any(e.name in key and value == str(e.binary) for key, value in said)]
    if not stays:
        return Reload(engine.name, tuple(there), tuple(entry for entry in entries if entry not in there))
    wanted = {value for key, value in said if key[-1] == ENGINES[engine.name].default_key}
    names = frozenset(name for name, _ in engine.runtimes)
    return Reload(engine.name, tuple(there), demoted=names - wanted)


def _left(path: PurePosixPath, key: tuple[str, ...]) -> str:
    return f"left {'.'.join(key)} in {path}: somebody has changed it since"


def _idle(facts: Facts) -> Iterator[str]:
    if facts.idle:
        yield f"stopped containers that need our runtime to start again: {', '.join(facts.idle)}"


def _give_back(
    writes: list[WriteConfig],
    reload: Reload,
    found: EngineFacts | None,
    facts: Facts,
    restart_mode: RestartMode,
) -> list[Step]:
    """Return the steps for one engine; one that is stopped will read its file anyway."""
    # One that looks for the toolkit by itself will not find it at its next start; one whose files said
    # what we wanted before we came has nothing to read.
    unread = not writes or restart_mode is RestartMode.NONE
    asleep = unread or found is None or found.stopped
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    sure = reload.engine != "docker" or facts.held.finished
    if reload.present and not reload.demoted:
        # What others say of the same handlers looks alike before and after.
        sure = facts.held.finished and all(step.before == step.after for step in writes)
    forgotten = asleep or (
        sure and found is not None and found.serving is not None and reload.satisfied_by(found.serving)
    )
    if forgotten:
        return [step for step in writes if step.before != step.after]
    if reload.engine != "docker":
        return [*(step for step in writes if step.before != step.after), reload]
    return _through_intermediate(writes, reload)


def _through_intermediate(writes: list[WriteConfig], reload: Reload) -> list[Step]:
    """Let dockerd forget our runtimes by way of a file that names none, then put the right one there."""
    steps: list[Step] = []
    for step in writes:
        wants = docker.intermediate(tree_of(step.after, step.path))
        text, _ = apply(text_of(step.after, step.path), wants, Syntax.JSON, name=str(step.path))
        middle = File(text.encode(), step.before.meta if step.before else Meta())
        steps += [
            WriteConfig(step.engine, step.path, step.before, middle),
            reload,
            WriteConfig(step.engine, step.path, middle, step.after),
        ]
    return steps


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
        and ENGINES[engine.name].reload is How.HUP
        and engine.serving is None
        and not engine.stopped
    ]


def _defaults_of_others(facts: Facts) -> Iterator[InstallerError]:
    """Yield why an engine that was told by its owner to start all pods with our runtime cannot lose it.

    No pod would start any more, that of the next installer included.
    """
    for row in facts.held.engines:
        found = next((each for each in facts.engines if each.name == row.name), None)
        serving = found.serving if found and ENGINES[row.name].found_by else None
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
            WriteConfig(name, step.path, before=step.after, after=step.before)
            for step in reversed(of_engines)
            if isinstance(step, WriteConfig) and step.engine == name
        ]
        looks = bool(ENGINES[name].found_by)
        again = _again(plan.engines[name], tried[name]) if name in tried and not looks else None
        steps += _through_intermediate(writes, again) if name == "docker" and again else [*writes]
        steps += [again] if again and name != "docker" else []
    steps += [
        back
        for step in reversed(done)
        if not used and step not in of_engines and (back := inverse(step)) is not None
    ]
    rows = tuple(_knowing(plan.during.configs, (*done, *steps)))
    during = replace(plan.during, configs=rows, finished=False)
    return Plan(tuple(steps), during, during if used else held, plan.engines, in_use=live if used else ())


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


def _knowing(rows: Iterable[ConfigRow], steps: Collection[Step]) -> Iterator[ConfigRow]:
    """Yield the rows, each knowing every text of ours that a step may leave in its place."""
    for row in rows:
        texts = [step for step in steps if isinstance(step, WriteConfig) and step.path == row.path]
        files = [file for step in texts for file in (step.before, step.after) if file is not None]
        original = row.original.digest if row.original else ""
        ours = dict.fromkeys((*row.ours, *(file.digest for file in files if file.digest != original)))
        yield replace(row, ours=tuple(ours))
