"""The texts by which an engine would serve our runtimes: one candidate for each proposal of the engine."""

from collections.abc import Iterator
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from installer.engines.config_edits import ConfigChange, change_config, configs_of, record_foreign, withdraw
from installer.engines.config_keys import runtime_of
from installer.engines.config_texts import DryRun, Texts, digest_of, predict_from_texts, read_present
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry, name_default
from installer.model.engine import EngineState, Proposal
from installer.model.facts import EngineRow, Facts
from installer.model.options import Options
from installer.model.steps import WriteConfig


class Candidate(Struct, frozen=True):
    """Texts of an engine with our runtimes: the proposal, and the change of each config."""

    proposal: Proposal
    changes: tuple[ConfigChange, ...]

    @property
    def writes(self) -> tuple[WriteConfig, ...]:
        """The configs to write."""
        return tuple(change.step for change in self.changes if change.step is not None)

    @property
    def texts(self) -> Texts:
        """The texts to write, by path."""
        return {step.path: step.after for step in self.writes}

    @property
    def only_adds(self) -> bool:
        """Whether each write only adds keys to our text."""
        return all(change.adds for change in self.changes if change.step is not None)


class InstallRequest(Struct, frozen=True):
    """The runtimes that an engine is to serve, and everything on which the choice of texts depends."""

    engine: EngineState
    entries: tuple[RuntimeEntry, ...]
    facts: Facts
    options: Options
    dry_run: DryRun
    names: frozenset[str]  # of the entries
    row: EngineRow | None  # the engine's row in the ledger

    @classmethod
    def of(
        cls,
        engine: EngineState,
        entries: tuple[RuntimeEntry, ...],
        facts: Facts,
        options: Options,
        dry_run: DryRun,
    ) -> Self:
        """Return the request for an engine, with the engine's row in the ledger."""
        return cls(
            engine=engine,
            entries=entries,
            facts=facts,
            options=options,
            dry_run=dry_run,
            names=frozenset(entry.name for entry in entries),
            row=facts.record.engine(engine.name),
        )


def find_changes(request: InstallRequest, proposal: Proposal) -> tuple[ConfigChange, ...]:
    """Return the change of each config of a proposal, of an earlier install, or of others."""
    engine = request.engine
    facts = request.facts
    changes = [change_config(engine.name, wanted, facts) for wanted in proposal.files]
    wanted = {files.path for files in proposal.files}
    known = set(wanted)
    # Our keys leave a file that an earlier install wrote and that this one does not use.
    for row in configs_of(engine, facts):
        if row.written and row.path not in wanted:
            changes.append(withdraw(row, facts))
            known.add(row.path)
    toolkits = {entry.binary.parent for entry in request.entries}
    for path in engine.files:
        if path in known:
            continue
        foreign = record_foreign(engine.name, path, facts, toolkits)
        if foreign is not None:
            changes.append(foreign)
    return tuple(changes)


def make_candidate(
    request: InstallRequest, proposal: Proposal, changes: tuple[ConfigChange, ...]
) -> Candidate:
    """Return the candidate of a proposal.

    For an engine with wrong answers after a reload (``reload_misreports``), the candidate is without writes
    if the same runtimes are installed and in force. Their inherited settings were chosen when they were
    written. The proposal follows the engine's answer, and after a reload the answer has the edits of an
    owner, in force or not.
    """
    if has_recovered_rows(request):
        # Without a ledger it is not known what our runtimes have inherited.
        proposal = replace(proposal, shown={})
    candidate = Candidate(proposal, changes)
    # A setting that the engine has to show is written in any case: the owner has moved CRI-O's monitor.
    may_stay_unwritten = request.engine.kind.reload_misreports and not proposal.shown
    if may_stay_unwritten and _is_installed_unedited(request, candidate):
        unwritten = keep_present_texts(candidate, request.facts)
        if is_in_force(request, unwritten):
            return unwritten
    return candidate


def _is_installed_unedited(request: InstallRequest, candidate: Candidate) -> bool:
    """Tell whether the same runtimes were installed in the same files, and these were not edited since."""
    written = set()
    for config in configs_of(request.engine, request.facts):
        if config.written:
            written.add(config.path)
            file = request.facts.contents.get(config.path)
            if file is None or file.digest not in config.ours:
                return False
    proposed = {files.path for files in candidate.proposal.files}
    if written != proposed:
        return False
    row = request.row
    if row is None:
        return False
    runtimes = {entry.name: entry.binary for entry in request.entries}
    return row.runtimes == runtimes and row.default == name_default(request.entries)


def keep_present_texts(candidate: Candidate, facts: Facts) -> Candidate:
    """Drop the writes of known files from a candidate; the rows of the ledger stay."""
    changes = []
    for change in candidate.changes:
        row = facts.record.config(change.step.path) if change.step is not None else None
        changes.append(change if row is None else ConfigChange(step=None, row=row, original=None))
    return replace(candidate, changes=tuple(changes))


def has_recovered_rows(request: InstallRequest) -> bool:
    """Tell whether the rows of an engine were recovered from its configs, because the ledger was lost."""
    return any(row.edits and not row.ours for row in configs_of(request.engine, request.facts))


def read_inherited(request: InstallRequest, present_texts: Texts) -> EffectiveConfig:
    """Return our runtimes as the files of a silent engine define them, with the inherited settings."""
    in_files = predict_from_texts(request.engine, present_texts).handlers
    handlers = {}
    for name in request.names & in_files.keys():
        handlers[name] = in_files[name]
    return EffectiveConfig(handlers, "")


def list_former_names(request: InstallRequest) -> set[str]:
    """Return the names of the runtimes that earlier installs have given an engine."""
    names: set[str] = set()
    for row in request.facts.record.configs:
        if row.engine == request.engine.name:
            for edit in row.edits:
                names.add(runtime_of(edit.key))
    if request.row is not None:
        names.update(request.row.runtimes)
    return names


def is_in_force(request: InstallRequest, candidate: Candidate) -> bool:
    """Tell whether the present texts still bring our runtimes into force, despite the additions of others.

    The engine's program is asked only if the texts have changed since they were proven.
    """
    present_texts = read_present(request.engine, request.facts)
    if request.row is None or request.row.proven in {"", digest_of(present_texts)}:
        return True
    now = request.dry_run(request.engine, present_texts)
    # Another check reports an engine that would not start; until then it serves.
    return bool(now.fatal) or not any(find_unserved(request, candidate.proposal, now))


def find_unserved(request: InstallRequest, proposal: Proposal, after: EffectiveConfig) -> Iterator[str]:
    """Yield, in words, the runtimes that an engine would not serve as asked for."""
    if request.engine.hook is not None:
        return
    for entry in request.entries:
        served = after.handlers.get(entry.name)
        if served is None:
            yield f"the runtime {entry.name} would not be there"
        elif not served.shows(Runtime(str(entry.binary), proposal.shown.get(entry.name) or {})):
            yield f"the runtime {entry.name} would not be as asked for"
        if entry.default and after.default != entry.name:
            yield f"its default runtime would be {after.default}"
