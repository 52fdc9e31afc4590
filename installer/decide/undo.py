"""What gives everything back: by kind, default and handlers first, the payload last."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from installer.decide.configs import pristine, text_of, tree_of
from installer.decide.edits import Syntax, apply
from installer.decide.engines import ENGINES, docker
from installer.decide.engines.model import Reload as How
from installer.decide.engines.model import RuntimeEntry
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts, Facts
from installer.decide.inode import File, Meta
from installer.decide.options import Options, RestartMode
from installer.decide.plan import Plan
from installer.decide.rows import ConfigRow, EngineRow, Holdings, Saved
from installer.decide.steps import (
    Reload,
    RemoveDirectory,
    RemoveVersion,
    Step,
    SwitchToolkit,
    WriteConfig,
    inverse,
)
from installer.decide.toolkit_plan import VERSIONS, standing

TRY_AGAIN: Final = "run uninstall again"


def plan_undo(facts: Facts, options: Options) -> Plan:
    """Return the steps after which nothing of ours is left, whatever was done and by whom.

    Raises:
        InstallerError: somebody has written a config since, and it is not valid any more.
    """
    held, restart_mode = facts.held, options.restart_mode
    steps: list[Step] = []
    rows = {row.path: row for row in held.configs}
    backups: list[File] = []
    notes: list[str] = []
    for engine in held.engines:
        for row in (row for row in held.configs if row.engine == engine.name):
            was = pristine(row.path, facts)
            notes += [_left(row.path, edit.key) for edit in was.overruled]
            saved = Saved(was.file.digest, was.file.meta) if was.file else None
            rows[row.path] = replace(row, original=saved)
            if was.file is not None:
                backups.append(was.file)
        found = next((each for each in facts.engines if each.name == engine.name), None)
        part = _give_back(engine, found, facts, restart_mode)
        steps += part
    payload, obstacles = _payload(facts)
    steps += payload
    # The directories that hold the ledger go with it, after all else.
    made = [path for path in held.directories if path not in options.layout.home.parents]
    steps += [RemoveDirectory(path) for path in sorted(made, key=lambda path: -len(path.parts))]
    during = replace(held, configs=tuple(_knowing(rows, steps)), finished=False)
    return Plan(
        tuple(steps),
        during if steps else held,
        None,
        {engine.name: engine for engine in facts.engines},
        backups=tuple(backups),
        obstacles=(*_unreachable(facts, restart_mode), *obstacles),
        notes=(*facts.notes, *notes),
    )


def _left(path: PurePosixPath, key: tuple[str, ...]) -> str:
    return f"left {'.'.join(key)} in {path}: somebody has changed it since"


def _give_back(
    engine: EngineRow, found: EngineFacts | None, facts: Facts, restart_mode: RestartMode
) -> list[Step]:
    """Return the steps for one engine; one that is stopped will read its file anyway."""
    rows = [row for row in facts.held.configs if row.engine == engine.name]
    reload = Reload(engine.name, (), tuple(RuntimeEntry(*runtime) for runtime in engine.runtimes))
    asleep = found is None or found.stopped or restart_mode is RestartMode.NONE
    # After an unclean end a SIGHUP may still be on its way; another one costs dockerd nothing.
    sure = engine.name != "docker" or facts.held.finished
    forgotten = asleep or (
        sure and found is not None and found.serving is not None and reload.satisfied_by(found.serving)
    )
    final = [
        WriteConfig(engine.name, row.path, facts.contents[row.path], pristine(row.path, facts).file)
        for row in rows
    ]
    if forgotten:
        return [step for step in final if step.before != step.after]
    if engine.name != "docker":
        return [*(step for step in final if step.before != step.after), reload]
    return _through_intermediate(final, reload)


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


def _payload(facts: Facts) -> tuple[list[Step], list[InstallerError]]:
    row = facts.held.toolkit
    steps: list[Step] = []
    obstacles: list[InstallerError] = []
    now = standing(facts)
    if row is not None and now is not None and now.startswith(VERSIONS):
        steps.append(SwitchToolkit(now, None if row.replaced else row.linked or ""))
    elif row is not None and facts.toolkit.replaced:
        if now == "":
            steps.append(SwitchToolkit(now, None))
        else:
            obstacles.append(
                InstallerError(
                    "give the toolkit directory of another installer back (something else has its name)",
                    remedy=f"move it away, then {TRY_AGAIN}",
                )
            )
    versions = sorted(facts.toolkit.versions)
    return [*steps, *(RemoveVersion(version) for version in versions)], obstacles


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


def plan_rollback(plan: Plan, done: tuple[Step, ...], held: Holdings) -> Plan:
    """Return the steps that take ``done``, the last of which may be half done, back to ``held``.

    An engine whose reload was tried is reloaded again, and proven to serve what it served before.
    """
    tried = {step.engine: step for step in done if isinstance(step, Reload)}
    steps: list[Step] = []
    for name in dict.fromkeys(
        step.engine for step in reversed(done) if isinstance(step, WriteConfig | Reload)
    ):
        writes = [
            WriteConfig(name, step.path, before=step.after, after=step.before)
            for step in reversed(done)
            if isinstance(step, WriteConfig) and step.engine == name
        ]
        again = _again(plan.engines[name], tried[name]) if name in tried else None
        steps += _through_intermediate(writes, again) if name == "docker" and again else [*writes]
        steps += [again] if again and name != "docker" else []
    steps += [
        back
        for step in reversed(done)
        if not isinstance(step, WriteConfig | Reload) and (back := inverse(step)) is not None
    ]
    rows = {row.path: row for row in plan.during.configs}
    during = replace(plan.during, configs=tuple(_knowing(rows, steps)), finished=False)
    return Plan(tuple(steps), during, held, plan.engines)


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


def _knowing(rows: Mapping[PurePosixPath, ConfigRow], steps: Iterable[Step]) -> Iterator[ConfigRow]:
    """Yield the rows that a step writes to, knowing each text of ours that may stand there meanwhile."""
    for path, row in rows.items():
        texts = [step for step in steps if isinstance(step, WriteConfig) and step.path == path]
        files = [file for step in texts for file in (step.before, step.after) if file is not None]
        original = row.original.digest if row.original else ""
        ours = dict.fromkeys((*row.ours, *(file.digest for file in files if file.digest != original)))
        yield replace(row, ours=tuple(ours))
