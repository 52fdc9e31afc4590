"""Notes for the owner of an engine: what a restart or reload of ours brings into force besides our edits.

Nothing here stops a plan: the reasons against a restart are in ``next_start.py``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from installer.config_text import Tree
from installer.engines.config_edits import without_us
from installer.engines.config_texts import Texts, digest_of, predict_from_texts, read_present, tree_of
from installer.errors import InstallerError
from installer.model.effective import NAMELESS, EffectiveConfig, RuntimeEntry
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, EngineRow, Facts, Pending, Record
from installer.model.files import File

FRESH_S: Final = 30.0  # after an edit, for whoever restarts the engine because of it
# Of daemon.json, besides runtimes and the default, which are compared with what dockerd has in force.
TAKEN_BY_A_RELOAD: Final = frozenset((
    "allow-nondistributable-artifacts", "authorization-plugins", "debug", "features", "insecure-registries",
    "labels", "live-restore", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts",
    "registry-mirrors", "shutdown-timeout",
))  # fmt: skip
# What may be pending of an engine that has read all keys of its config that a reload takes up.
READ_ALL: Final = (None, Pending.CDI_AT_NEXT_START, Pending.CDI_UNSUPPORTED)


def explain_changes(
    engine: EngineState, after: EffectiveConfig | None, facts: Facts, ours: Collection[str]
) -> Iterator[str]:
    """Yield the edits of others since an engine's start, brought into force by its restart or reload.

    The edits of configs, of the inputs of a generated config, of the program and of the unit. For the edits
    against which a restart is refused see ``explain_losses``. Values are left out: a value may be a secret.

    Args:
        engine: the engine, as it runs.
        after: the config in force after the restart or reload; None if unknown.
        facts: the facts about the node.
        ours: the names of our runtimes.
    """
    row = facts.record.engine(engine.name)
    texts = read_present(engine, facts)
    is_proven = row is not None and row.proven == digest_of(texts)
    if not is_proven:
        yield from _explain_edited_configs(engine, facts, texts)
    if engine.kind.reads_config_on_signal:
        return

    if engine.edited_inputs:
        paths = ", ".join(map(str, engine.edited_inputs))
        yield f"the restart of {engine.title} brings into force what was changed after its start in {paths}"
    its_start = f"the start of {engine.title}"
    if engine.replaced:
        yield f"{engine.program} was replaced after {its_start}: its restart runs the new program"
    settings = [*_find_new_settings(engine)]
    if settings:
        names = ", ".join(settings)
        yield f"{engine.unit} was changed after {its_start}: its restart takes up {names}"
    elif engine.unit_edited and not engine.unit_unread:
        yield f"{engine.unit} was changed after {its_start}: its restart brings that into force"
    if engine.unit_unread:
        yield (
            f"{engine.unit} was changed on disk, and systemd uses that only after systemctl daemon-reload: "
            f"the restart of {engine.title} does not bring that into force"
        )
    if engine.serving is not None and after is not None and after.is_complete:
        for name in sorted(after.handlers.keys() - engine.serving.handlers.keys() - {*ours}):
            yield f"the restart of {engine.title} adds the runtime {name}, which others have defined"


def explain_restarted_units(engine: EngineState) -> Iterator[str]:
    """Yield a note for each unit that systemd restarts along with an engine's unit."""
    for unit in engine.restarted_units:
        note = f"the restart of {engine.title} restarts {unit.name}, too, which has {unit.setting}"
        if unit.live_restore_key:
            note += f": its containers stay, by {unit.live_restore_key}"
        yield note


def _explain_edited_configs(engine: EngineState, facts: Facts, texts: Texts) -> Iterator[str]:
    """Yield the configs edited by others since an engine's start, with the effect of a reload or restart."""
    for path in engine.changed:
        file = texts.get(path)
        if file is None or _is_written_by_us(
            file, facts.record.config(path), facts.record.engine(engine.name)
        ):
            continue
        if not engine.kind.reads_config_on_signal:
            yield f"{path} was changed after the start of {engine.title}: its restart brings that into force"
            continue
        effect = _describe_reload(engine, facts, path, tree_of(without_us(path, facts), path))
        if effect:
            yield f"{path} was changed after the start of {engine.title}: its reload {effect}"


def _is_written_by_us(file: File, row: ConfigRow | None, engine: EngineRow | None) -> bool:
    """Tell whether a config is as our last install or undo has written it."""
    if row is None:
        return False
    if file.digest in row.ours:
        return True
    is_undone = engine is not None and engine.pending is Pending.RESTART_AFTER_UNDO
    return is_undone and row.original is not None and file.digest == row.original.digest


def _describe_reload(engine: EngineState, facts: Facts, path: PurePosixPath, tree: Tree) -> str:
    """Describe which keys of a config a reload takes up besides ours; "" for none.

    What is in force is told by the engine for some keys, and for the others by the text that the last install
    has found: the engine has read that text. Without such a text a reload may take up the key.

    Args:
        engine: the engine, as it runs.
        facts: the facts about the node.
        path: the config.
        tree: the keys of the config without ours.
    """
    in_force = engine.serving.settings if engine.serving is not None else {}
    last_read = _find_last_read(engine, facts, path)
    changed = []
    unknown = []
    for key in sorted(TAKEN_BY_A_RELOAD & tree.keys()):
        if key in in_force:
            is_changed = tree[key] != in_force[key]
        elif last_read is not None:
            is_changed = key not in last_read or tree[key] != last_read[key]
        else:
            unknown.append(key)
            continue
        if is_changed:
            changed.append(key)

    effects = []
    if changed:
        effects.append(f"takes up {', '.join(changed)}")
    if unknown:
        effects.append(f"may take up {', '.join(unknown)}")
    if not effects:
        return ""
    return f"{' and '.join(effects)}, too"


def _find_last_read(engine: EngineState, facts: Facts, path: PurePosixPath) -> Tree | None:
    """Return the keys of others in the text that an engine has read for the last install; None if unknown."""
    engine_row = facts.record.engine(engine.name)
    config_row = facts.record.config(path)
    if engine_row is None or config_row is None or engine_row.pending not in READ_ALL:
        return None
    if not facts.record.finished or path in facts.lost:
        return None
    with suppress(InstallerError):
        return tree_of(facts.originals.get(path), path)
    return None


def _find_new_settings(engine: EngineState) -> Iterator[str]:
    """Yield the names of the flags and variables new at the next start of an engine."""
    now = engine.started
    later = engine.next_start
    if now is None or later is None:
        return
    if now.runs(engine.kind.process):
        for word in later.words:
            if word[:1] == "-" and word not in now.words:
                yield word.partition("=")[0]
    if now.guessed:  # the variables of its start are not known
        return
    for name, value in sorted(later.environment.items()):
        if now.environment.get(name) != value:
            yield name


def list_fresh_edits(
    engine: EngineState, record: Record, digests: Mapping[PurePosixPath, str]
) -> Iterator[PurePosixPath]:
    """Yield the configs changed by others after an engine's start, and seconds ago.

    The editor may be about to restart the engine. An engine without restarts has no fresh edits.

    Args:
        engine: the engine.
        record: the content of the ledger, with our texts.
        digests: the digest of each config.
    """
    if not engine.kind.is_restarted:
        return
    for path in engine.fresh:
        row = record.config(path)
        if row is None or digests.get(path) not in row.ours:
            yield path


def explain_fresh_edits(engine: EngineState, facts: Facts) -> Iterator[str]:
    """Yield a note: an install waits for a restart by the editors of an engine's configs."""
    paths = ", ".join(map(str, list_fresh_edits(engine, facts.record, facts.digests)))
    if paths:
        yield (
            f"{paths} was changed less than {FRESH_S:g} s ago: before its restart of {engine.title} an "
            f"install waits up to {FRESH_S:g} s for a restart by whoever changed that"
        )


def explain_stale_state(engine: EngineState, facts: Facts, entries: Iterable[RuntimeEntry]) -> Iterator[str]:
    """Yield the settings in force, not ours, missing from the config: dockerd keeps removed keys."""
    if not engine.kind.reads_config_on_signal or engine.serving is None:
        return
    ours = {entry.name for entry in entries}
    row = facts.record.engine(engine.name)
    if row is not None:
        ours.update(row.runtimes)

    default = engine.serving.default
    wanted = _predict_start(engine, without_us(engine.config, facts))
    if (
        wanted is not None
        and not wanted.broken
        and default != wanted.default
        and not {default, wanted.default} & ours
    ):
        yield (
            f"{engine.title} has the default runtime {default} in force and {engine.config} says "
            f"{wanted.default}: a reload brings into force what the file says"
        )
    yield from explain_stale_runtimes(engine, wanted, ours)


def explain_taken_over(engine: EngineState, facts: Facts, entries: Iterable[RuntimeEntry]) -> Iterator[str]:
    """Yield the runtimes of others that have the name of one of ours: a first install makes them run ours."""
    if engine.kind.built_in_runtime or engine.serving is None or facts.record.engine(engine.name) is not None:
        return
    for entry in entries:
        runtime = engine.serving.handlers.get(entry.name)
        if runtime is None or runtime.program in {"", str(entry.binary)}:
            continue
        default = ""
        if engine.serving.default == entry.name:
            default = " (the default runtime)"
        yield (
            f"others have defined the runtime {entry.name}{default} of {engine.title}: "
            "until an uninstall it runs our program"
        )


def _predict_start(engine: EngineState, file: File | None) -> EffectiveConfig | None:
    """Predict the settings in force after a start with a root file; None for an invalid text."""
    with suppress(InstallerError):  # reported where the file is read
        return predict_from_texts(engine, {engine.config: file})
    return None


def explain_stale_runtimes(
    engine: EngineState, wanted: EffectiveConfig | None, ours: Collection[str]
) -> Iterator[str]:
    """Yield the runtimes of others served by an engine but defined otherwise by its files, ``wanted``."""
    by_signal = engine.kind.reads_config_on_signal
    # An engine serves more than its texts define: without the answer of its program nothing is compared.
    if engine.serving is None or wanted is None or wanted.broken or not (by_signal or wanted.is_complete):
        return

    if by_signal:
        files = str(engine.config)
        event = "reload or start"
    else:
        files = "its configs"
        event = "start"

    for name, is_undefined in engine.kind.find_differences(engine.serving, wanted):
        if name in ours or name == NAMELESS:
            continue
        if is_undefined:
            manner = ""
            effect = "ends"
        else:
            manner = " as it is"
            effect = "changes"
        yield (
            f"{engine.title} serves the runtime {name}, which is not defined{manner} in {files}: its next "
            f"{event} {effect} that"
        )
