"""The comparison of an engine's present configs with its install: would it start, and with our settings?"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value
from installer.config_text.change import parse
from installer.engines.ask import ask as ask_engine
from installer.engines.config_edits import files_without_us
from installer.engines.config_files import contents_of, explain_unread, is_outdated, with_configs
from installer.engines.config_keys import RUNTIMES, runtime_of
from installer.engines.config_texts import DryRun, Texts, digest_of, read_configs
from installer.engines.dry_run import ANSWER_S, DryRuns, find_load_errors
from installer.engines.next_start import explain_moved_places
from installer.engines.observe import engine_of_row, list_words_and_variables, with_flags
from installer.engines.startup import (
    explain_overruling,
    find_missing_requirements,
    find_moves,
    list_places_by_files,
    predict_next_start,
    read_start,
    refuse_move,
)
from installer.errors import InstallerError
from installer.host import systemd
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.engine import EngineState, Extras, Started
from installer.model.facts import EngineRow, Facts, Record, ToolkitFacts
from installer.model.options import RUNTIME_NAME, Options

UNREAD: Final = "the directory of our hook is not in hooks_dir"


def _is_never_in_force(_: Edit) -> bool:
    """Answer that no edit is in force."""
    return False


def _is_always_in_force(_: Edit) -> bool:
    """Answer that any edit is in force."""
    return True


class Comparison(Struct, frozen=True):
    """The configs of an engine compared with its install."""

    fatal: str = ""  # the reason why the engine would not start
    lacks: tuple[str, ...] = ()  # the settings of the install that the engine would not have
    in_force: Callable[[Edit], bool] = _is_never_in_force  # whether an edit is in force
    refused: InstallerError | None = None  # the reason why no install can repair the lacks
    repairable: bool = False  # whether an install repairs the fatal reason
    remedy: str = ""  # the owner's remedy of the fatal reason, if known
    pending: InstallerError | None = None  # a setting that is not in force before the next start

    @property
    def is_as_installed(self) -> bool:
        """Whether the engine would start, with all settings of the install."""
        return not self.fatal and not self.lacks


def compare_configs(host: Host, row: EngineRow, record: Record) -> Comparison:
    """Compare the configs of an engine with its install.

    A dry run reads the configs, except texts verified by the install. With an OCI hook no config is ours:
    CRI-O's directories of hooks are compared instead.

    Raises:
        InstallerError: a config cannot be read.
    """
    paths = [config.path for config in record.configs if config.engine == row.name and config.written]
    hook = None
    if row.config is None:
        hook = next(iter(paths), None)
    engine = engine_of_row(row)
    if engine.kind.built_in_runtime or (row.config or hook) is None:
        return Comparison()

    drop_in = next((path for path in paths if path not in {row.config, hook}), engine.kind.drop_ins.usual)
    engine, missing_program = _read_next_start(host, replace(engine, drop_in=drop_in, hook=hook))
    contents = contents_of(host, engine.files)
    if hook is None and not missing_program and _is_as_proven(host, row, engine, contents):
        return Comparison(in_force=_is_always_in_force)

    dry_run = DryRuns(host, contents)
    by_configs = replace(engine, hook=None)  # also with a hook the next start reads the configs of others
    effect = dry_run(by_configs, contents)
    # Saved texts do not count: they are from the install, and others have edited since.
    recorded = {config.path: None for config in record.configs}
    known = recorded | contents
    facts = Facts((engine,), known, {}, frozenset(), ToolkitFacts(), record, lost=frozenset(known))
    fatal = missing_program or effect.fatal
    if fatal:
        repairable = not missing_program and _starts_without_us(by_configs, facts, dry_run)
        return Comparison(fatal, repairable=repairable, remedy=effect.remedy)
    if hook is not None:
        return _compare_hook(host, engine, effect)
    return _compare_settings(host, row, engine, facts, dry_run)


def _read_next_start(host: Host, engine: EngineState) -> tuple[EngineState, str]:
    """Fill in an engine's starts and configs; return also the reason of a missing program, "" for none."""
    unit = systemd.look_at_unit(host, engine.unit)
    started = read_start(host, engine, unit)
    later: Started | None = None
    missing_program = ""
    if started is None or engine.kind.is_restarted:
        later = predict_next_start(host, engine, unit.start)
        if engine.kind.looks_up_programs:  # the next start needs these programs and the engine's own
            missing_program = next(find_missing_requirements(host, unit.start), "")
    engine = with_flags(replace(engine, started=started or later, next_start=later))
    return with_configs(host, engine), missing_program


def _is_as_proven(host: Host, row: EngineRow, engine: EngineState, contents: Texts) -> bool:
    """Tell whether an engine would start by the texts that the last install has left and verified."""
    if row.proven != digest_of(contents) or engine.unreadable:
        return False
    if engine.flags.default or engine.next_flags.default or _starts_otherwise(engine):
        return False
    # Files that the texts name may be gone since.
    configs = read_configs(engine, contents)
    start = engine.next_start or engine.started
    return next(find_load_errors(host, engine, configs, start), None) is None


def _starts_otherwise(engine: EngineState) -> bool:
    """Tell whether a unit gives the next start other words or variables than this start had."""
    started = engine.started
    later = engine.next_start
    if started is None or later is None:
        return False
    if started.words != later.words:
        return True
    # A line without a name sets nothing.
    return any(name and started.environment.get(name) != value for name, value in later.environment.items())


def _starts_without_us(engine: EngineState, facts: Facts, dry_run: DryRun) -> bool:
    """Tell whether an engine would start by its configs without us: then an install repairs them."""
    try:
        before = dry_run(engine, files_without_us(engine, facts))
    except InstallerError:  # a text of ours is not valid any more
        return False
    return not before.fatal


def _compare_settings(
    host: Host, row: EngineRow, engine: EngineState, facts: Facts, dry_run: DryRun
) -> Comparison:
    """Compare the settings of an engine's next start with the settings of its install.

    Args:
        host: the node.
        row: the engine's row in the ledger.
        engine: the engine, not asked yet, with its start and its next start.
        facts: the present configs, and the ledger.
        dry_run: predicts the settings in force with given texts.
    """
    contents = {path: facts.contents[path] for path in engine.files}
    effect = dry_run(engine, contents)
    inherited, refused = _predict_inherited(row, engine, facts, dry_run)

    def in_force(edit: Edit) -> bool:
        return effect.is_complete and _is_in_force(engine, effect, edit)

    return Comparison(
        lacks=tuple(_list_lacks(row, effect, inherited)),
        in_force=in_force,
        refused=refused or _find_overruling(row, engine),
        pending=_find_move(host, engine, contents, effect),
    )


def _find_move(
    host: Host, engine: EngineState, contents: Texts, effect: EffectiveConfig
) -> InstallerError | None:
    """Return the move of a running engine to other places by its next start; None for no move.

    Args:
        host: the node.
        engine: the engine, not asked yet, with its start and its next start.
        contents: the texts of the engine's configs.
        effect: the config printed for these texts by the engine's program.
    """
    if not (engine.kind.is_restarted and effect.is_printed):
        return None
    answer = ask_engine(host, engine, timeout_s=ANSWER_S)
    if answer.serving is None:
        return None
    running = replace(engine, serving=answer.serving, places_by_files=list_places_by_files(engine))
    move = next(find_moves(running), None)
    if move is not None:
        return refuse_move(running, move)
    after = DryRuns(host, contents)(running, contents)
    return next(explain_moved_places(running, after), None)


def _find_overruling(row: EngineRow, engine: EngineState) -> InstallerError | None:
    """Find the conflict of an engine's unit, or of its start, with the wanted default; None for none."""
    options = Options(set_as_default=bool(row.default), runtime_name=row.default or RUNTIME_NAME)
    for start, whose in ((engine.next_start, "its unit starts it"), (engine.started, "it was started")):
        error = next(explain_overruling(engine.kind, list_words_and_variables(start), options, whose), None)
        if error is not None:
            return error
    return None


def _is_in_force(engine: EngineState, effect: EffectiveConfig, edit: Edit) -> bool:
    """Tell whether the setting of an edit is in force; programs and the default are not compared."""
    name = runtime_of(edit.key)
    if not name:
        is_cdi_key = edit.key[-1:] == engine.kind.cdi_key[-1:]
        return not is_cdi_key or effect.cdi is True
    if name not in effect.handlers or edit.after is None:
        return False
    table: Value = parse(f"it = {edit.after}", Syntax.TOML, name=name)["it"]
    for part in reversed(edit.key[edit.key.index(RUNTIMES) + 2 :]):
        table = {part: table}
    handler = effect.handlers[name]
    return isinstance(table, Mapping) and handler.shows(Runtime(handler.binary, table))


def _predict_inherited(
    row: EngineRow, engine: EngineState, facts: Facts, dry_run: DryRun
) -> tuple[Mapping[str, Tree], InstallerError | None]:
    """Predict the settings of our runtimes in an engine's answer after an install, or return the error."""
    texts = files_without_us(engine, facts)
    before = dry_run(engine, texts)
    entries = tuple(
        RuntimeEntry(name, path, default=name == row.default) for name, path in row.runtimes.items()
    )
    is_shown_known = before.is_complete and not (before.fatal or engine.kind.reload_misreports)
    try:
        configs = read_configs(engine, texts)
        proposal = next(iter(engine.kind.propose(engine, configs, entries, Extras(), before)))
    except InstallerError as error:
        return {}, error
    if not is_shown_known:
        return {}, None
    return proposal.shown, None


def _list_lacks(row: EngineRow, effect: EffectiveConfig, inherited: Mapping[str, Tree]) -> Iterator[str]:
    """Yield the settings of an install missing from an engine's settings in force."""
    for name, binary in row.runtimes.items():
        handler = effect.handlers.get(name)
        if handler is None:
            yield f"the runtime {name} is not defined"
        elif handler.binary != str(binary):
            yield f"the runtime {name} starts {handler.binary or 'something else'}"
        elif not handler.shows(Runtime(handler.binary, inherited.get(name, {}))):
            yield f"the options that the runtime {name} inherits have changed"
    if row.default and effect.default != row.default:
        yield f"the default runtime is {effect.default}, not {row.default}"


def _compare_hook(host: Host, engine: EngineState, effect: EffectiveConfig) -> Comparison:
    """Compare the directories in which CRI-O looks for hooks with the place of our hook."""
    unread: list[InstallerError] = []
    is_flagged = engine.started is not None and engine.started.mentions("hooks")
    if not is_flagged:
        unread += explain_unread(host, replace(engine, serving=effect))
    if unread:
        return Comparison(lacks=(UNREAD,) * len(unread), refused=unread[0])
    return Comparison(pending=_find_unread_hook(host, engine))


def _find_unread_hook(host: Host, engine: EngineState) -> InstallerError | None:
    """Explain why a running engine does not read our hook before its next start; None for no reason."""
    paths = [*engine.files]
    if engine.drop_in_directory:
        paths.append(engine.drop_in_directory)
    if not is_outdated(host, engine, paths):
        return None  # the engine was started with the present configs
    answer = ask_engine(host, engine, timeout_s=ANSWER_S)
    return next(explain_unread(host, replace(engine, serving=answer.serving)), None)
