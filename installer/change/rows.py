"""The ledger's rows of configs: after a plan, and while its steps are done."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from installer.engines.config_edits import ConfigChange
from installer.engines.config_texts import syntax_of, text_of
from installer.model.facts import ConfigRow, Record, Saved
from installer.model.files import File
from installer.model.steps import Step, WriteConfig


def list_rows(
    changes: Collection[ConfigChange], steps: Iterable[Step]
) -> Iterator[tuple[ConfigRow, File | None]]:
    """Yield the row of each changed or written config, and the file without us."""
    known = set()
    for change in changes:
        if change.row is not None:
            known.add(change.row.path)
            yield change.row, change.original
        elif change.step is not None:
            known.add(change.step.path)  # nothing of ours is in the file after the step
    for step in steps:
        if isinstance(step, WriteConfig) and step.before is not None and step.path not in known:
            # The step is no change: dockerd's config gets an intermediate text until the reload is done.
            known.add(step.path)
            syntax = syntax_of(step.path, text_of(step.before, step.path), step.engine)
            saved = Saved.of(step.before)
            yield ConfigRow(step.engine, step.path, syntax, saved, (step.before.digest,), ()), step.before


def in_progress(record: Record, final: Record, steps: Sequence[Step]) -> Record:
    """Return the ledger while the steps are done: a file may hold our new text or the text before."""
    if final == record and not any(isinstance(step, WriteConfig) for step in steps):
        return record

    configs = []
    for row in final.configs:
        before = record.config(row.path)
        earlier_texts = before.ours if before else ()
        earlier_edits = before.edits if before else ()
        texts = dict.fromkeys((*row.ours, *earlier_texts))
        edits = dict.fromkeys((*earlier_edits, *row.edits))
        configs.append(replace(row, ours=tuple(texts), edits=tuple(edits)))
    removed = [row for row in record.configs if final.config(row.path) is None]
    known = add_known_texts((*configs, *removed), steps)

    engines = []
    for engine in final.engines:
        before_plan = record.engine(engine.name)
        if before_plan is not None and before_plan.restart_due:
            # The restart of an earlier plan stays due until this plan has proven the engine.
            engines.append(replace(engine, pending=before_plan.pending))
        else:
            engines.append(engine)
    return replace(final, engines=tuple(engines), configs=tuple(known), finished=False, failed=record.failed)


def add_known_texts(rows: Iterable[ConfigRow], steps: Collection[Step]) -> Iterator[ConfigRow]:
    """Add to each row the digests and edits of our texts that a killed process may leave after a step."""
    for row in rows:
        original = row.original.digest if row.original else ""
        ours = dict.fromkeys(row.ours)
        edits = dict.fromkeys(row.edits)
        for step in steps:
            if not isinstance(step, WriteConfig) or step.path != row.path:
                continue
            for file in (step.before, step.after):
                if file is not None and file.digest != original:
                    ours[file.digest] = None
            edits.update(dict.fromkeys(step.passing))
        yield replace(row, ours=tuple(ours), edits=tuple(edits))
