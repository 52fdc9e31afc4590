"""The steps by which an engine takes up its new configs, why each is taken, and why one is not."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec.structs import replace

from installer.config_text.change import list_missing
from installer.engines import ENGINES
from installer.engines.config_edits import (
    ConfigChange,
    digest_of,
    group_of,
    read_present,
    syntax_of,
    text_of,
    tree_of,
    without_us,
)
from installer.engines.containerd.effective import CDI
from installer.engines.docker.config import DockerdModel, find_differences
from installer.errors import InstallerError, NotYetError
from installer.model.engine_spec import NAMELESS, EffectiveConfig, Extras, ReloadMethod, RuntimeEntry
from installer.model.facts import ConfigRow, EngineState, Facts, Record, Saved, list_some
from installer.model.files import File
from installer.model.steps import Planned, Reload, Step, WriteConfig

FIRST_MERGING: Final = 2  # the release of containerd from which on a dump has another schema
LAST_SCHEMA_OF_1: Final = 2
# Of daemon.json, besides runtimes and the default, which are compared with what dockerd has in force.
TAKEN_BY_A_RELOAD: Final = frozenset((
    "allow-nondistributable-artifacts", "authorization-plugins", "debug", "features", "insecure-registries",
    "labels", "live-restore", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts",
    "registry-mirrors", "shutdown-timeout",
))  # fmt: skip
PASSING: Final = "an intermediate text for one reload: dockerd keeps a key that its file leaves out"
PASSED: Final = "the reload that needed the intermediate text is done"
DUE: Final = "its restart, as soon as it creates no container (--restart-mode when-idle)"
PENDING: Final = "pending"  # begins the state of an engine that has not read its configs
AT_NEXT_START: Final = "takes effect when dockerd starts the next time"
LEFT: Final = "its restart or reload, which --restart-mode none leaves to you"
UNREAD: Final = "its restart: until then it may start our programs, which stay for that"


def take_up(
    writes: Sequence[WriteConfig], reload: Reload, in_force: EffectiveConfig | None, engine: EngineState
) -> list[Step]:
    """Return the writes and the reload of one engine; ``in_force`` is None if unknown.

    One that is restarted has what its files say. One that is signalled keeps what its file does not say any
    more, and may die of a file that a start would take: it is led there by way of another text.
    """
    if ENGINES[reload.engine].reload is not ReloadMethod.HUP:
        return [*(step for step in writes if step.before != step.after), reload]
    last = {step.path: step for step in writes}
    steps: list[Step] = []
    for step in writes:
        if step is not last[step.path]:
            steps.append(step)
            continue
        dockerd = DockerdModel(step.path, engine.version, engine.flags)
        first, *rest = dockerd.find_route(in_force, step.after)
        passing = dockerd.spell_out(step.after)[1] if rest else ()
        texts = [step.before, first, *rest]
        pairs = [
            replace(step, before=before, after=after, passing=passing) for before, after in pairwise(texts)
        ]
        steps += [*(pair for pair in pairs[:1] if pair.before != pair.after), reload, *pairs[1:]]
    return steps


def list_rows(
    changes: Collection[ConfigChange], steps: Iterable[Step]
) -> Iterator[tuple[ConfigRow, File | None]]:
    """Yield the row of each config that is ours or written to, with the file as it would be without us."""
    known = {change.step.path for change in changes if change.step is not None and change.step.after is None}
    for change in changes:
        if change.row is not None:
            known.add(change.row.path)
            yield change.row, change.original
    for step in steps:
        if isinstance(step, WriteConfig) and step.before is not None and step.path not in known:
            # Nothing of ours stands there, but for the time of a reload.
            known.add(step.path)
            syntax = syntax_of(step.path, text_of(step.before, step.path), step.engine)
            saved = Saved.of(step.before)
            yield ConfigRow(step.engine, step.path, syntax, saved, (step.before.digest,), ()), step.before


def explain_stale_state(engine: EngineState, facts: Facts, entries: Iterable[RuntimeEntry]) -> Iterator[str]:
    """Yield what an engine has in force, not by us, that its config does not say: dockerd keeps what went."""
    if engine.spec.reload is not ReloadMethod.HUP or engine.serving is None:
        return
    row = facts.held.engine(engine.name)
    ours = {entry.name for entry in entries} | {*(row.runtimes if row else ())}
    default = engine.serving.default
    dockerd = DockerdModel(engine.config, engine.version, engine.flags)
    wanted = dockerd.start(without_us(engine.config, facts))
    if not wanted.broken and default != wanted.default and not {default, wanted.default} & ours:
        yield (
            f"{engine.title} has the default runtime {default} in force and {engine.config} says "
            f"{wanted.default}: a reload brings into force what the file says"
        )
    yield from explain_stale_runtimes(engine, wanted, ours)


def explain_stale_runtimes(
    engine: EngineState, wanted: EffectiveConfig | None, ours: Collection[str]
) -> Iterator[str]:
    """Yield which runtimes of others an engine serves otherwise than its files would have it: ``wanted``."""
    by_signal = engine.spec.reload is ReloadMethod.HUP
    # Where only the texts tell nothing is said: an engine serves more than its texts.
    if engine.serving is None or wanted is None or wanted.broken or not (by_signal or wanted.rest_digest):
        return
    found = find_differences(engine.serving, wanted) if by_signal else _find_not_shown(engine.serving, wanted)
    files, when = (engine.config, "reload or start") if by_signal else ("its configs", "start")
    for name, lacks in found:
        if name not in ours and name != NAMELESS:
            how, does = ("", "ends") if lacks else (" as it is", "changes")
            yield (
                f"{engine.title} serves the runtime {name}, which is not defined{how} in {files}: its next "
                f"{when} {does} that"
            )


def _find_not_shown(serving: EffectiveConfig, wanted: EffectiveConfig) -> Iterator[tuple[str, bool]]:
    for name, served in sorted(serving.handlers.items()):
        defined = wanted.handlers.get(name)
        # Where files say nothing the engine fills in: 1.7 tells of a sandboxMode that its dump leaves empty.
        table = defined.table.items() if defined else ()
        said = {key: value for key, value in table if value or value is False}
        if defined is None or not served.shows(replace(defined, table=said)):
            yield name, defined is None


def explain_pending(engine: EngineState, extras: Extras, *, asks_cdi: bool) -> str:
    """Return what an engine will not have in force after its reload, and when it will; "" for nothing."""
    serving, by_signal = engine.serving, engine.spec.reload is ReloadMethod.HUP
    # ``serving.cdi`` tells, whatever the release: some have CDI switched on without being asked for it.
    if serving is None or serving.cdi or not (asks_cdi or (by_signal and extras.cdi)):
        return ""
    key, whose = ("features.cdi", "dockerd") if by_signal else (CDI, engine.title)
    if serving.cdi is None:
        return f"{key} in {engine.config} has no effect, for this {whose} has no CDI"
    return f"{key} in {engine.config} {AT_NEXT_START}" if by_signal else ""


def in_progress(record: Record, final: Record, steps: Sequence[Step]) -> Record:
    """Return the rows for the time of the steps: a file may hold our new text, or still the one before it."""
    if final == record and not any(isinstance(step, WriteConfig) for step in steps):
        return record
    configs = []
    for row in final.configs:
        before = record.config(row.path)
        texts = dict.fromkeys((*row.ours, *(before.ours if before else ())))
        edits = dict.fromkeys((*(before.edits if before else ()), *row.edits))
        configs.append(replace(row, ours=tuple(texts), edits=tuple(edits)))
    going = [row for row in record.configs if final.config(row.path) is None]
    known = add_known_texts((*configs, *going), steps)
    due = {row.name for row in record.engines if row.restart_due}
    engines = tuple(replace(row, restart_due=row.restart_due or row.name in due) for row in final.engines)
    return replace(final, engines=engines, configs=tuple(known), finished=False, failed=record.failed)


def add_known_texts(rows: Iterable[ConfigRow], steps: Collection[Step]) -> Iterator[ConfigRow]:
    """Yield the rows, each knowing every text of ours that a step may leave there, and how to undo it."""
    for row in rows:
        texts = [step for step in steps if isinstance(step, WriteConfig) and step.path == row.path]
        files = [file for step in texts for file in (step.before, step.after) if file is not None]
        original = row.original.digest if row.original else ""
        ours = dict.fromkeys((*row.ours, *(file.digest for file in files if file.digest != original)))
        edits = dict.fromkeys((*row.edits, *(edit for step in texts for edit in step.passing)))
        yield replace(row, ours=tuple(ours), edits=tuple(edits))


def explain_install(
    steps: Sequence[Step], written: Iterable[ConfigChange], engine: EngineState, record: Record
) -> Planned:
    """Return the steps of an install, each with its reason."""
    pairs = ((each.step, each.row) for each in written if each.step is not None)
    reasons = {step.path: _explain_write(step, row, record.config(step.path)) for step, row in pairs}
    return _explain_steps(steps, engine, reasons, "its config changes")


def explain_undo(steps: Sequence[Step], engine: EngineState) -> Planned:
    """Return the steps of an undo, each with its reason."""
    writes = (step for step in steps if isinstance(step, WriteConfig))
    reasons = {step.path: f"reverts what install {'changed' if step.after else 'made'}" for step in writes}
    return _explain_steps(steps, engine, reasons, "its config is restored")


def _explain_steps(
    steps: Sequence[Step], engine: EngineState, reasons: Mapping[PurePosixPath, str], otherwise: str
) -> Planned:
    """Return each step with its reason; ``reasons`` has that of the last write of a file."""
    last = {step.path: step for step in steps if isinstance(step, WriteConfig)}
    planned: list[tuple[Step, str]] = []
    for step in steps:
        if isinstance(step, WriteConfig):
            reason = reasons.get(step.path, PASSED) if step is last[step.path] else PASSING
            planned.append((step, reason))
        elif isinstance(step, Reload):
            planned.append((step, _explain_reload(step, engine) or otherwise))
    return tuple(planned)


def _explain_write(step: WriteConfig, row: ConfigRow | None, held: ConfigRow | None) -> str:
    """Return why a file is written: what it does not hold yet, or holds still."""
    if row is None:
        return "an earlier install wrote it, and this one does not use it"
    now, edits = text_of(step.before, step.path), [edit for edit in row.edits if edit.after is not None]
    missing = list_missing(now, edits, syntax_of(step.path, now, row.engine), name=str(step.path))
    wanted = {group_of(edit.key, row.engine) for edit in missing}
    before = held.edits if held else ()
    gone = {group_of(edit.key, row.engine) for edit in before if edit.after != "{}"}
    gone -= {group_of(edit.key, row.engine) for edit in row.edits} | {""}
    if wanted:
        return f"missing there, or with another value: {', '.join(sorted(wanted))}"
    if gone:
        return f"it still has {', '.join(sorted(gone))}, which this install does not ask for"
    return "our keys there differ from what is asked for"


def _explain_reload(reload: Reload, engine: EngineState) -> str:
    """Return what a running engine serves otherwise than it should; "" where that is nothing."""
    serving = engine.serving
    if serving is None:
        return f"it is not known what it serves ({engine.silence})"
    wrong = reload.wrong_in(serving)
    missing = sorted(name for name in wrong if name not in serving.handlers)
    other = sorted(name for name in wrong if name in serving.handlers)
    still = [each.name for each in reload.absent if serving.binaries.get(each.name) == str(each.binary)]
    said = (
        (engine.outdated, "its config was changed after its start"),
        (missing, f"it does not serve {', '.join(missing)}"),
        (other, f"it serves {', '.join(other)} otherwise than asked for"),
        (still, f"it still serves {', '.join(still)}"),
        (serving.default in reload.demoted, f"its default runtime is {serving.default}"),
        (reload.cdi and serving.cdi is False, "it does not serve CDI devices"),
    )
    return " and ".join(words for holds, words in said if holds)


def postpone(engine: EngineState) -> NotYetError:
    """Return why the restart of an engine that creates containers is put off."""
    names = list_some([each[:12] for each in sorted(engine.creating)])
    return NotYetError(
        f"restart {engine.title} yet (it has created containers that are not started: {names})",
        remedy="wait for run to find none, or restart it at once with toolkit-installer reconcile; where "
        "no run waits, run install again",
    )


def explain_refusals(
    engine: EngineState,
    steps: Iterable[Step],
    after: EffectiveConfig | None,
    facts: Facts,
    ours: Collection[str],
) -> Iterator[InstallerError]:
    """Yield why the steps may not restart an engine, which has ``after`` in force then.

    ``ours`` are the runtimes that the steps are about.
    """
    if not any(isinstance(step, Reload) for step in steps):
        return
    if engine.spec.needs_root and facts.contents.get(engine.config) is None:
        yield InstallerError(
            f"restart {engine.title} ({engine.unit} would not start it again: {engine.config} is not there)",
            remedy=f"correct {engine.unit}, or what it needs, then run again",
            code="unit-failed",
        )
    if engine.not_restarted is not None:
        yield engine.not_restarted
    elif after is not None:
        yield from explain_moved_places(engine, after)
        yield from explain_losses(engine, after, ours)


def explain_edited_inputs(engine: EngineState, steps: Iterable[Step]) -> Iterator[str]:
    """Yield what others have changed since an engine's start that its restart brings into force, too."""
    if engine.edited_inputs and any(isinstance(step, Reload) for step in steps):
        paths = ", ".join(map(str, engine.edited_inputs))
        yield f"the restart of {engine.title} brings into force what was changed after its start in {paths}"


def explain_losses(
    engine: EngineState, after: EffectiveConfig, ours: Collection[str]
) -> Iterator[InstallerError]:
    """Yield what others have changed since an engine's start that a restart of ours would bring into force.

    What an engine loads besides, and what only is added, does no harm to what it serves now.
    """
    now = engine.serving
    if now is None or after.broken:
        return
    for name in sorted(now.handlers.keys() & {*after.ignored} - {*ours}):
        yield InstallerError(
            f"restart {engine.title} (its next start leaves out the runtime {name}, which it serves, for its "
            "program is not there)",
            remedy=f"install that program, or restart {engine.unit} at a time of your choice, then run again",
            code="pending-by-others",
        )
    if not after.told:
        return
    losses = [*_find_losses(now, after, ours)]
    if losses:
        yield InstallerError(
            f"restart {engine.title} (its configs were edited after its start, and {'; '.join(losses)})",
            remedy=f"restart {engine.unit} at a time of your choice, or undo that edit, then run again",
            code="pending-by-others",
        )
    if (other := explain_other_major(engine, after)) is not None:
        yield other


def explain_other_major(engine: EngineState, found: EffectiveConfig) -> InstallerError | None:
    """Return why an engine is not restarted whose program on the disk is of another major version.

    ``found`` is what that program has printed of any config.
    """
    if engine.serving is None or not engine.version or not found.schema:
        return None
    runs_new, starts_new = engine.version[0] >= FIRST_MERGING, found.schema > LAST_SCHEMA_OF_1
    if runs_new == starts_new:
        return None
    version = ".".join(map(str, engine.version))
    reason = f"it runs {version}, and its program was replaced by one of another major version"
    return InstallerError(
        f"restart {engine.title} ({reason})",
        remedy=f"restart {engine.unit} at a time of your choice, then run again",
        code="pending-by-others",
    )


def explain_changes(
    engine: EngineState, after: EffectiveConfig | None, facts: Facts, ours: Collection[str]
) -> Iterator[str]:
    """Yield what others have changed since an engine's start that its restart or reload brings into force.

    None of that takes anything away (see ``explain_losses``). Values stay unsaid: they may be secrets.
    """
    row, there = facts.held.engine(engine.name), read_present(engine, facts)
    known = row is not None and row.proven == digest_of(there)
    by_signal = engine.spec.reload is ReloadMethod.HUP
    for path in engine.changed if not known else ():
        held, file = facts.held.config(path), there.get(path)
        if file is None or (held is not None and file.digest in held.ours):
            continue
        if not by_signal:
            yield f"{path} was changed after the start of {engine.title}: its restart brings that into force"
        elif keys := sorted(TAKEN_BY_A_RELOAD & tree_of(file, path).keys()):
            said = ", ".join(keys)
            yield f"{path} was changed after the start of {engine.title}: its reload takes up {said}, too"
    if by_signal:
        return
    if engine.replaced:
        yield f"{engine.exe} was replaced after the start of {engine.title}: its restart runs the new program"
    if settings := [*_find_new_settings(engine)]:
        said = ", ".join(settings)
        yield f"{engine.unit} was changed after the start of {engine.title}: its restart takes up {said}"
    if engine.serving is not None and after is not None and after.rest_digest:
        for name in sorted(after.handlers.keys() - engine.serving.handlers.keys() - {*ours}):
            yield f"the restart of {engine.title} adds the runtime {name}, which others have defined"


def _find_new_settings(engine: EngineState) -> Iterator[str]:
    """Yield the names of flags and variables that a unit will give its engine, and has not yet given it."""
    now, later = engine.started, engine.next_start
    if now is None or later is None:
        return
    if now.runs(engine.spec.process):
        words = (word for word in later.words if word[:1] == "-" and word not in now.words)
        yield from (word.partition("=")[0] for word in words)
    for name, value in sorted(later.environment.items()):
        if now.environment.get(name) != value:
            yield name


def _find_losses(now: EffectiveConfig, after: EffectiveConfig, ours: Collection[str]) -> Iterator[str]:
    for name in sorted(now.handlers.keys() - {*ours, NAMELESS}):
        defined = after.handlers.get(name)
        if defined is None:
            yield f"its next start takes away the runtime {name}, which it serves"
            continue
        driver = "systemdcgroup"
        was, will = bool(now.handlers[name].options.get(driver)), bool(defined.options.get(driver))
        if was != will:
            wanted, present = str(will).lower(), str(was).lower()
            change = f"SystemdCgroup = {wanted}, and it runs with {present}"
            yield f"its next start gives the runtime {name} {change}"
    if now.cgroup_driver and after.cgroup_driver and now.cgroup_driver != after.cgroup_driver:
        drivers = f"{after.cgroup_driver} in the place of {now.cgroup_driver}"
        yield f"its next start uses the cgroup driver {drivers}"
    if now.default and after.default != now.default and not {now.default, after.default} & {*ours}:
        yield f"its next start makes {after.default} the default runtime in the place of {now.default}"


def explain_moved_places(engine: EngineState, after: EffectiveConfig) -> Iterator[InstallerError]:
    """Yield why an engine would look for its containers, or be looked for, at another place than now."""
    now = engine.served.places
    for place in sorted(engine.places_by_files & now.keys() & after.places.keys()):  # edited since its start
        was, will = now[place], after.places[place]
        # containerd tells root and state without a slash at the end, and prints them as they are written.
        if will.startswith("/") and normpath(was) != normpath(will):
            yield InstallerError(
                f"restart {engine.title} (at its next start its config gives it the {place} {will}, and it "
                f"runs with {was})",
                remedy=f"restart {engine.unit} at a time of your choice, or take that out of its config, "
                "then run again",
                code="restart-moves-engine",
            )
