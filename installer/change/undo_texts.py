"""The texts of an engine without us, or without our default alone: the candidates of an undo."""

from functools import partial
from pathlib import PurePosixPath
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from installer.engines.config_edits import notes_of, undo_config, without_us
from installer.engines.config_keys import program_of, runtime_of
from installer.engines.config_texts import DryRun, read_present
from installer.errors import InstallerError
from installer.model.effective import EffectiveConfig, is_of_toolkit, is_ours
from installer.model.engine import EngineState
from installer.model.facts import ConfigRow, EngineRow, Facts, Saved
from installer.model.files import File
from installer.model.options import Options
from installer.model.steps import WriteConfig


class UndoRequest(Struct, frozen=True):
    """The undo of an engine, and everything on which the plan depends."""

    row: EngineRow
    engine: EngineState
    facts: Facts
    options: Options
    dry_run: DryRun
    configs: tuple[ConfigRow, ...]
    # The engine as if it served no runtime by our names. A prediction adds to CRI-O's texts what the running
    # CRI-O serves: it must not add our runtimes.
    engine_without_us: EngineState

    @classmethod
    def of(cls, row: EngineRow, facts: Facts, options: Options, dry_run: DryRun) -> Self:
        """Return the undo of the engine of a row."""
        row = _add_earlier_runtimes(row, facts)
        engine = next(each for each in facts.engines if each.name == row.name)
        engine_without_us = engine
        if engine.serving is not None:
            handlers = {}
            for name, runtime in engine.serving.handlers.items():
                if name not in row.runtimes:
                    handlers[name] = runtime
            engine_without_us = replace(engine, serving=replace(engine.serving, handlers=handlers))
        return cls(
            row=row,
            engine=engine,
            facts=facts,
            options=options,
            dry_run=dry_run,
            configs=tuple(config for config in facts.record.configs if config.engine == row.name),
            engine_without_us=engine_without_us,
        )


class UndoCandidate(Struct, frozen=True):
    """The texts of an engine without us, or, if ``demoted``, only without our default runtime."""

    rows: tuple[ConfigRow, ...]  # of the configs while they are written
    kept_rows: tuple[ConfigRow, ...]  # of the configs after that, if our runtimes stay
    writes: tuple[WriteConfig, ...] = ()
    notes: tuple[str, ...] = ()
    demoted: bool = False
    now: EffectiveConfig | None = None  # by the present texts; None if the engine's program is not asked
    after: EffectiveConfig | None = None  # by the texts of the candidate; None likewise
    start_failure: str = ""  # the reason why a crashing engine does not start with these texts either

    @property
    def changes(self) -> tuple[WriteConfig, ...]:
        """The writes with a changed text."""
        return tuple(write for write in self.writes if write.before != write.after)

    @property
    def texts(self) -> dict[PurePosixPath, File | None]:
        """The texts after the writes, by path."""
        return {write.path: write.after for write in self.writes}


def _add_earlier_runtimes(row: EngineRow, facts: Facts) -> EngineRow:
    """Add to the row the runtimes of earlier installs, unless removed by later installs."""
    toolkits = {str(binary.parent) for binary in row.runtimes.values()}
    earlier: dict[str, PurePosixPath] = {}
    for config in facts.record.configs:
        if config.engine != row.name:
            continue
        for edit in config.edits:
            binary = PurePosixPath(program_of(edit))
            if str(binary.parent) not in toolkits:
                continue
            name = runtime_of(edit.key)
            if name:
                earlier[name] = binary
    return replace(row, runtimes=earlier | {**row.runtimes})


def make_undo_candidate(request: UndoRequest, *, demoted: bool) -> UndoCandidate:
    """Make the configs of an engine without our keys, or, if ``demoted``, without our default alone."""
    engine = request.engine
    facts = request.facts
    rows: list[ConfigRow] = []
    kept_rows: list[ConfigRow] = []
    writes: list[WriteConfig] = []
    notes: list[str] = []
    for config in request.configs:
        path = config.path
        present = facts.contents[path]
        after, undone = undo_config(path, facts, demoted=demoted)
        row = replace(config, original=Saved.of(without_us(path, facts)))
        rows.append(row)
        if after == present:
            kept_rows.append(config)
        elif after:
            kept_rows.append(replace(row, ours=(after.digest,)))
        else:
            kept_rows.append(row)
        writes.append(WriteConfig(engine.name, path, present, after, facts.relinked.get(path, "")))
        notes += notes_of(path, undone)

    candidate = UndoCandidate(
        rows=tuple(rows),
        kept_rows=tuple(kept_rows),
        writes=tuple(writes),
        notes=tuple(notes),
        demoted=demoted,
    )
    if engine.hook is None and not engine.kind.built_in_runtime:
        texts = read_present(engine, facts)
        predict = partial(request.dry_run, request.engine_without_us)
        predicted = predict({**texts, **candidate.texts})
        start_failure = predicted.broken if engine.crashing else ""
        return replace(candidate, now=predict(texts), after=predicted, start_failure=start_failure)
    return candidate


def find_unwritable(facts: Facts, candidate: UndoCandidate) -> InstallerError | None:
    """Return the error of the first unwritable change; None if all can be written."""
    for write in candidate.changes:
        if write.path in facts.unwritable:
            return facts.unwritable[write.path]
    return None


def list_ours(row: EngineRow, candidate: UndoCandidate) -> frozenset[str]:
    """Return the names of our runtimes, but not of a runtime with an administrator's program."""
    binaries = candidate.now.binaries if candidate.now is not None else {}
    # A runtime whose program was taken out of the text has no other program: it still is ours.
    names = set()
    for name, ours in row.runtimes.items():
        program = binaries.get(name)
        if not program or is_ours(program) or is_of_toolkit(program, ours):
            names.add(name)
    return frozenset(names)
