"""What an engine has to serve after a restart: of ours, of others, and as its default.

The answer stands in the ``Reload`` step, and is proven after the restart.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.change.install_texts import Candidate, InstallRequest
from installer.change.undo_texts import UndoCandidate, UndoRequest, list_ours
from installer.engines.config_edits import configs_of
from installer.engines.config_keys import DEFAULT, group_of
from installer.engines.config_texts import predict_from_texts, read_present
from installer.model.effective import EffectiveConfig, RuntimeEntry
from installer.model.engine import EngineState
from installer.model.options import RestartMode
from installer.model.steps import Neighbour, Reload


def expect_after_install(
    request: InstallRequest, candidate: Candidate, after: EffectiveConfig | None
) -> Reload:
    """Return the runtimes to serve after an install; ``after`` is None if no program was asked."""
    engine = request.engine
    proposal = candidate.proposal
    present = tuple(replace(entry, table=proposal.shown.get(entry.name)) for entry in request.entries)
    if engine.kind.built_in_runtime:
        present = tuple(entry for entry in request.entries if entry.name == engine.kind.built_in_runtime)
    names = {entry.name for entry in present}

    absent = []
    if request.row is not None:
        # Another installer's entry of the same name, which we had taken over, may be back.
        binaries = after.binaries if after is not None else {}
        for name, binary in request.row.runtimes.items():
            if name not in names and binaries.get(name) != str(binary):
                absent.append(RuntimeEntry(name, binary))

    ours = {*names, *(entry.name for entry in absent)}
    return Reload(
        engine.kind,
        present,
        tuple(absent),
        unwanted_defaults=_list_unwanted_defaults(request, candidate, after, ours),
        others=_expect_others(engine, after, ours),
        defaults=_expect_defaults(engine, after, ours),
        cdi=proposal.cdi,
        when_idle=request.options.restart_mode is RestartMode.WHEN_IDLE,
    )


def _list_unwanted_defaults(
    request: InstallRequest, candidate: Candidate, after: EffectiveConfig | None, ours: Collection[str]
) -> frozenset[str]:
    """Return our runtimes that may not be the engine's default after the restart."""
    engine = request.engine
    facts = request.facts
    if engine.kind.built_in_runtime:
        return frozenset()
    # dockerd keeps a default that its file does not name any more. An engine that is restarted keeps none:
    # only an unfinished install of ours counts, since the owner may have prepared a start of his own.
    by_signal = engine.kind.reads_config_on_signal
    if not (by_signal or _has_unfinished_default(request)):
        return frozenset()
    if after is None:
        after = predict_from_texts(engine, {**read_present(engine, facts), **candidate.texts})
    return frozenset({*ours} - {after.default})


def _has_unfinished_default(request: InstallRequest) -> bool:
    """Tell whether our install has set the default, is pending, or did not finish."""
    if request.row is None:
        return False
    if request.row.pending is not None or not request.facts.record.finished:
        return True
    for row in configs_of(request.engine, request.facts):
        if any(group_of(edit.key, request.engine.name) == DEFAULT for edit in row.edits):
            return True
    return False


def expect_after_undo(request: UndoRequest, candidate: UndoCandidate) -> Reload:
    """Return the runtimes to serve after an undo.

    The engine has to serve the rest as before, and our runtimes only if the files without us define them.
    """
    row = request.row
    engine = request.engine
    after = candidate.after
    if after is not None and after.broken:
        after = None
    binaries = after.binaries if after is not None else {}
    present: list[RuntimeEntry] = []
    absent: list[RuntimeEntry] = []
    for name, binary in row.runtimes.items():
        if binary in engine.missing_programs:
            # CRI-O leaves out a runtime whose program is gone: it serves the runtime only until it restarts.
            continue
        entry = RuntimeEntry(name, binary)
        if binaries.get(name) == str(binary):
            # Files without us define runtimes that we had taken over from another installer.
            present.append(entry)
        else:
            absent.append(entry)
    unwanted_defaults: set[str] = set()
    defaults: frozenset[str] = frozenset()
    if after is not None and candidate.demoted:
        unwanted_defaults = {*row.runtimes} - {after.default}
    elif after is not None:
        defaults = _expect_defaults(engine, after, row.runtimes)
    return Reload(
        engine.kind,
        tuple(present),
        tuple(absent),
        unwanted_defaults=frozenset(unwanted_defaults),
        others=_expect_others(engine, candidate.after, list_ours(row, candidate)),
        defaults=defaults,
    )


def expect_after_rollback(engine: EngineState, tried: Reload) -> Reload:
    """Return the runtimes to serve after a roll-back: our runtimes as before ``tried``."""
    before = engine.served
    entries: Sequence[RuntimeEntry] = (*tried.present, *tried.absent)
    present: list[RuntimeEntry] = []
    for entry in entries:
        binary = before.binaries.get(entry.name)
        if binary:
            is_default = entry.name == before.default
            present.append(RuntimeEntry(entry.name, PurePosixPath(binary), default=is_default))
    kept = {(entry.name, entry.binary) for entry in present}
    absent = []
    for entry in entries:
        if (entry.name, entry.binary) not in kept:
            absent.append(RuntimeEntry(entry.name, entry.binary))
    return Reload(engine.kind, tuple(present), tuple(absent))


def _expect_defaults(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> frozenset[str]:
    """Return the runtimes that may be the engine's default after a restart; none for an unknown default."""
    if engine.serving is None or (after is not None and after.broken):
        return frozenset()
    now = engine.serving.default
    if after is None:
        return frozenset({now})
    if now in {*ours}:
        return frozenset({after.default})
    return frozenset({now, after.default} - {""})


def _expect_others(
    engine: EngineState, after: EffectiveConfig | None, ours: Iterable[str]
) -> tuple[Neighbour, ...]:
    """Return the runtimes of others to keep through a restart.

    Each is served as now, or as defined by the engine's files.
    """
    if engine.serving is None:
        return ()
    served = engine.serving.handlers
    names = sorted(served.keys() - {*ours})
    if after is None:
        return tuple(Neighbour(name, (served[name],)) for name in names)
    # An administrator may have edited them without a reload. A runtime that he removed is not missed.
    neighbours = []
    for name in names:
        if name in after.handlers:
            neighbours.append(Neighbour(name, (served[name], after.handlers[name])))
    return tuple(neighbours)
