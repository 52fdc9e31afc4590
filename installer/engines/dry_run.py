"""The dry run: an engine's own program reads texts in memory and prints the settings of the next start."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value
from installer.config_text.change import parse
from installer.engines.ask import ask as ask_engine
from installer.engines.config_edits import (
    RUNTIMES,
    DryRun,
    Texts,
    decode_configs,
    digest_of,
    files_without_us,
    read_configs,
    runtime_of,
)
from installer.engines.config_files import (
    contents_of,
    explain_unread,
    is_outdated,
    with_configs,
    with_readable_configs,
)
from installer.engines.host_reader import Reader
from installer.engines.next_start import explain_moved_places
from installer.engines.observe import engine_of_row, list_said, with_flags, with_start
from installer.engines.startup import (
    drop_flags,
    explain_overruling,
    find_lacks,
    find_moves,
    next_start,
    places_by_files,
    read_start,
    refuse_move,
)
from installer.errors import InstallerError, NotBegunError
from installer.host import systemd
from installer.host.files import Host
from installer.host.programs import ENVIRONMENT, Ran, memory_file, names_open_files, private_directory, run_in
from installer.model.effective import EffectiveConfig, Runtime, RuntimeEntry
from installer.model.engine import Configs, DryRunCommand, EngineState, Extras, LoadError, LoadInput, Started
from installer.model.facts import EngineRow, Facts, Record, ToolkitFacts
from installer.model.files import PATH, ROOT, File, Kind
from installer.model.options import RUNTIME_NAME, Options
from installer.model.steps import Step, WriteConfig

ANSWER_S: Final = 5.0
UNREAD: Final = "the directory of our hook is not in hooks_dir"
UNKNOWN_FLAG: Final = "unknown flag"  # dockerd 20.10 has no --validate


class DryRuns:
    """Dry runs by the engines' own programs, in the host's own root; each dry run is done once.

    Texts are passed in memory: no secret is written to a disk, and a crash leaves nothing behind. If a
    program cannot be run, the texts are read alone; the running engine is asked afterwards in any case.
    """

    def __init__(self, host: Host, contents: Texts) -> None:
        self._host = host
        self._contents = contents
        self._unvalidated: dict[str, str] = {}
        self._results: dict[tuple[str, tuple[tuple[PurePosixPath, str], ...]], EffectiveConfig] = {}

    def explain_unvalidated(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield the engines whose new texts were not read by their programs, each with the reason."""
        written = {step.engine for step in steps if isinstance(step, WriteConfig)}
        for name, reason in self._unvalidated.items():
            if name in written:
                yield f"the config of {name} is not validated: {reason}"

    def __call__(self, engine: EngineState, texts: Texts) -> EffectiveConfig:
        """Return the settings of ``engine`` with ``texts`` in the place of the present texts."""
        contents = {path: self._contents.get(path) for path in engine.files} | dict(texts)
        files = {path: file for path, file in contents.items() if file is not None}
        digests = tuple((path, files[path].digest) for path in sorted(files))
        key = (engine.name, digests)
        if key not in self._results:
            self._results[key] = self._predict(engine, files)
        return self._results[key]

    def _predict(self, engine: EngineState, files: Mapping[PurePosixPath, File]) -> EffectiveConfig:
        """Return the settings in force with ``files``, by the engine's program or by the texts alone."""
        kind = engine.kind
        program = self._find_program(engine)
        configs: Configs | None
        try:
            configs = read_configs(engine, files)
            by_texts = kind.predict(engine, configs)
        except InstallerError as error:
            configs = None
            by_texts = EffectiveConfig({}, "", broken=f"cannot {error.problem}")

        start = _choose_start(engine)
        if engine.hook is not None or not kind.has_dry_run:
            return self._check_load(engine, by_texts, configs, start)
        if program is None:
            self._unvalidated[engine.name] = "its program was not found"
        if program is None or engine.name in self._unvalidated:
            # The answers about some of the texts could not be compared with those about the others.
            return self._check_load(engine, by_texts, configs, start)

        command = kind.describe_dry_run(engine, decode_configs(engine, files))
        ran = self._run_program(program, command, start)
        # The program may refuse because of flags or variables that are not known here: then it refuses the
        # present config, with which the engine runs, in the same words.
        # A panic may be the fault of the text: not if the program panics with the present config, too.
        needs_start = start is None and command.depends_on_flags
        is_doubtful = ran is not None and _is_refusal(ran) and (needs_start or ran.has_panicked)
        if ran is not None and is_doubtful and self._refuses_present(engine, program, ran, start):
            ran = None
        if ran is None:
            self._unvalidated[engine.name] = f"{program} cannot tell here"
            return self._check_load(engine, by_texts, configs, start)
        if _is_refusal(ran):
            return EffectiveConfig({}, "", undefined=by_texts.undefined, broken=f"{program}: {ran.last_line}")

        effect = by_texts
        told = False
        if command.read_output is not None and not by_texts.broken:
            effect = command.read_output(ran.stdout)
            told = True
        effect = replace(effect, places=self._find_moved_places(engine, effect), told=told)
        return self._check_load(engine, effect, configs, start, ran.stdout)

    def _refuses_present(
        self, engine: EngineState, program: PurePosixPath, refusal: Ran, start: Started | None
    ) -> bool:
        """Tell whether a program refuses the present configs in the words of a refusal, or cannot be run."""
        files = {path: self._contents.get(path) for path in engine.files}
        command = engine.kind.describe_dry_run(engine, decode_configs(engine, files))
        ran = self._run_program(program, command, start)
        return ran is None or ran.last_line == refusal.last_line

    def _find_moved_places(self, engine: EngineState, effect: EffectiveConfig) -> dict[str, str]:
        """Find the places moved by the next start; two names of a place behind links are no move."""
        served = engine.served.places

        def is_moved(name: str, path: str) -> bool:
            return self._resolve(path) != self._resolve(served.get(name, path))

        moved = {}
        for name, path in effect.places.items():
            if is_moved(name, path):
                moved[name] = path
        return moved

    def _check_load(
        self,
        engine: EngineState,
        effect: EffectiveConfig,
        configs: Configs | None,
        start: Started | None,
        printed: str = "",
    ) -> EffectiveConfig:
        """Return ``effect``, marked as broken if the engine would not load its readable configs."""
        if effect.fatal or configs is None or engine.hook is not None or not engine.kind.has_dry_run:
            return effect
        error = next(_find_load_errors(self._host, engine, configs, start, printed), None)
        if error is None:
            return effect
        return replace(effect, broken=error.reason, remedy=error.remedy)

    def _resolve(self, path: str) -> PurePosixPath:
        """Return a path behind links; the path itself if resolving fails."""
        whole = PurePosixPath("/", path)
        with suppress(InstallerError):
            return self._host.resolve(whole)
        return whole

    def _find_program(self, engine: EngineState) -> PurePosixPath | None:
        """Return the program of an engine, if the name is usual: other programs have other words."""
        kind = engine.kind
        host = self._host
        if engine.exe is not None:
            is_usual = engine.exe.name == kind.process and host.kind(engine.exe) is Kind.FILE
            return engine.exe if is_usual else None

        candidates = [directory / kind.process for directory in PATH]
        if kind.program:
            candidates = [kind.program]
        for path in candidates:
            if host.kind(path) is Kind.FILE:
                return path
        return None

    def _run_program(
        self, program: PurePosixPath, command: DryRunCommand, start: Started | None
    ) -> Ran | None:
        """Put the texts into memory files, and run the program as its engine is started.

        None if the program cannot be run, does not end by itself, or would not find the texts.
        """
        if not names_open_files(self._host.local_path(ROOT)):
            return None
        with ExitStack() as stack:
            places = {path: stack.enter_context(memory_file()) for path in command.memory_files}

            def name_of(path: PurePosixPath) -> str:
                return places[path].name

            for path, text in command.render(name_of).items():
                Path(places[path].name).write_bytes(text.encode())
            for path, texts in command.directories.items():
                places[path] = stack.enter_context(private_directory(texts))

            flags: Sequence[str] = ()
            if start is not None and command.replaced_flags is not None:
                flags = [*drop_flags(start.words, command.replaced_flags)]
            arguments = []
            for argument in command.arguments:
                if isinstance(argument, PurePosixPath):
                    arguments.append(name_of(argument))
                else:
                    arguments.append(argument)
            descriptors = [place.fd for place in places.values()]
            ran = run_in(
                self._host.local_path(ROOT),
                [str(program), *arguments, *flags, *command.last_arguments],
                timeout_s=ANSWER_S,
                environment=ENVIRONMENT | dict(start.environment if start else {}),
                fds=descriptors,
            )
        if ran is None or ran.was_cut_short:
            return None

        # The error names the host's paths. The longest name is replaced first: the name /proc/self/fd/11
        # begins with /proc/self/fd/1.
        stderr = ran.stderr
        paths_by_name = {place.name: path for path, place in places.items()}
        for name in sorted(paths_by_name, key=len, reverse=True):
            stderr = stderr.replace(name, str(paths_by_name[name]))
        return replace(ran, stderr=stderr)


def _choose_start(engine: EngineState) -> Started | None:
    """Return the start by which an engine will read texts: its next start if we restart it."""
    start = engine.started or engine.next_start
    later = engine.next_start
    if start is None or later is None or not engine.kind.is_restarted:
        return start
    # systemd may add variables to the unit's variables.
    return replace(later, environment={**start.environment, **later.environment})


def _is_refusal(ran: Ran) -> bool:
    """Tell whether a program has refused texts, not the flags of the dry run."""
    return bool(ran.returncode) and UNKNOWN_FLAG not in ran.stderr


def _find_load_errors(
    host: Host, engine: EngineState, configs: Configs, start: Started | None, printed: str = ""
) -> Iterator[LoadError]:
    """Yield the engine's load errors for configs; ``printed`` is the output of its program for them."""
    # Unknown if another program starts the engine: the other program may change words and variables.
    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    if start is not None and start.runs(engine.kind.process):
        words = start.words
        # A unit without a PATH has systemd's PATH.
        environment = {"PATH": ":".join(map(str, PATH)), **start.environment}
    load = LoadInput(engine, configs.trees, printed, words, environment, Reader(host))
    yield from engine.kind.find_load_errors(load)


def refuse_changed(
    host: Host, engine: EngineState, seen: Mapping[PurePosixPath, str], done: Iterable[Step]
) -> None:
    """Refuse the reload of an engine that would not start with texts written since its dry run.

    A signalled engine is refused for any text written since: the effect is not known.

    Args:
        host: the node.
        engine: the engine, as at the dry run.
        seen: the digests of the texts of the dry run.
        done: the steps since the dry run.

    Raises:
        NotBegunError: the engine would not start, or must not be restarted any more.
    """
    error = with_start(host, engine).not_restarted
    if error:
        raise NotBegunError(error.problem, remedy=error.remedy, code=error.code)

    written = {}
    for step in done:
        if isinstance(step, WriteConfig):
            written[step.path] = step.after.digest if step.after else ""
    try:
        broken = _broken(host, engine, {**seen, **written})
    except InstallerError as error:
        broken = f"cannot {error.problem}"
    if broken:
        remedy = f"look at what has just been written to the config of {engine.title}, then run again"
        raise NotBegunError(
            f"{engine.kind.reload_verb} {engine.title} ({broken})", remedy=remedy, code="config-changed"
        )


def _broken(host: Host, engine: EngineState, expected: Mapping[PurePosixPath, str]) -> str:
    """Explain why an engine would not start; "" for an engine able to start, or without new texts."""
    now = with_readable_configs(host, engine)
    now = replace(now, files=tuple(dict.fromkeys((*now.files, *engine.files))))
    contents = contents_of(host, now.files)

    changed = []
    for path, file in contents.items():
        digest = file.digest if file else ""
        if digest != expected.get(path, ""):
            changed.append(path)
    changed += sorted(now.unreadable - engine.unreadable)
    if not changed:
        return ""
    names = ", ".join(map(str, changed))
    if engine.kind.reads_config_on_signal:
        return f"another process has just written {names}"
    after = DryRuns(host, contents)(now, contents)
    if engine.serving is None and after.rest_digest:
        return ""  # CRI is off now, and was before
    reason = after.fatal
    if not reason:
        moves = [error.problem for error in explain_moved_places(engine, after)]
        reason = "; ".join(moves)
    if not reason:
        return ""
    return f"it would not come up again, another process has just written {names}: {reason}"


def find_refusals(host: Host, engines: Iterable[EngineState]) -> dict[str, str]:
    """Return the reasons, by name, why serving engines would not start with the present configs."""
    reasons: dict[str, str] = {}
    for engine in engines:
        if engine.serving is None:
            continue
        now = with_readable_configs(host, engine)
        try:
            contents = contents_of(host, now.files)
            lacks = find_lacks(host, systemd.look_at_unit(host, engine.unit).start)
            reason = DryRuns(host, contents)(now, contents).fatal or next(lacks, "")
        except InstallerError as error:
            reason = error.problem
        if reason:
            reasons[engine.name] = reason
    return reasons


def _is_never_in_force(_: Edit) -> bool:
    """Answer that no edit is in force."""
    return False


def _is_always_in_force(_: Edit) -> bool:
    """Answer that any edit is in force."""
    return True


class Comparison(NamedTuple):
    """The configs of an engine compared with its install."""

    fatal: str = ""  # the reason why the engine would not start
    lacks: tuple[str, ...] = ()  # the settings of the install that the engine would not have
    in_force: Callable[[Edit], bool] = _is_never_in_force  # whether an edit is in force
    refused: InstallerError | None = None  # the reason why no install can repair the lacks
    repairable: bool = False  # whether an install repairs the fatal reason
    remedy: str = ""  # the owner's remedy of the fatal reason, if known
    pending: InstallerError | None = None  # a setting that is not in force before the next start


def compare_configs(host: Host, row: EngineRow, record: Record) -> Comparison:
    """Compare the configs of an engine with its install; raise if a config cannot be read."""
    paths = []
    for each in record.configs:
        if each.engine == row.name and each.written:
            paths.append(each.path)
    hook = None
    if row.config is None:
        hook = next(iter(paths), None)
    engine = engine_of_row(row)
    if engine.kind.built_in_runtime or (row.config or hook) is None:
        return Comparison()
    drop_in = next((path for path in paths if path not in {row.config, hook}), engine.kind.drop_ins.usual)
    engine = replace(engine, drop_in=drop_in, hook=hook)

    started = read_start(host, engine)
    later: Started | None = None
    lack = ""
    if started is None or engine.kind.is_restarted:
        unit = systemd.look_at_unit(host, engine.unit).start
        later = next_start(host, engine, unit)
        if engine.kind.looks_up_programs:  # the next start needs these programs and the engine's own
            lack = next(find_lacks(host, unit), "")
    engine = with_flags(replace(engine, started=started or later, next_start=later))
    engine = with_configs(host, engine)
    contents = contents_of(host, engine.files)

    other_start = engine.flags.default or engine.next_flags.default or _starts_otherwise(started, later)
    is_doubtful = lack or engine.unreadable or other_start
    if hook is None and row.proven == digest_of(contents) and not is_doubtful:
        # The last install has left and verified these texts; files that they name may be gone since.
        configs = read_configs(engine, contents)
        if next(_find_load_errors(host, engine, configs, later or started), None) is None:
            return Comparison(in_force=_is_always_in_force)

    dry_run = DryRuns(host, contents)
    asked = replace(engine, hook=None)  # its next start reads the configs of others, too
    effect = dry_run(asked, contents)
    # Saved texts do not count: they are from the install, and others have edited since.
    recorded = {each.path: None for each in record.configs}
    known = recorded | contents
    facts = Facts((engine,), known, {}, frozenset(), ToolkitFacts(), record, lost=frozenset(known))
    fatal = lack or effect.fatal
    if fatal:
        with suppress(InstallerError):  # a text of ours is not valid any more
            before = dry_run(asked, files_without_us(engine, facts))
            return Comparison(fatal, repairable=not (lack or before.fatal), remedy=effect.remedy)
        return Comparison(fatal, remedy=effect.remedy)
    if hook is not None:
        return _compare_hook(host, engine, effect)

    inherited, refused = _inherited(row, engine, facts, dry_run)
    refused = refused or _find_overruling(row, engine)
    lacks = tuple(_lacking(row, effect, inherited))

    def in_force(edit: Edit) -> bool:
        return bool(effect.rest_digest) and _in_force(engine, effect, edit)

    pending = _find_move(host, asked, contents, effect)
    return Comparison(lacks=lacks, in_force=in_force, refused=refused, pending=pending)


def _find_move(
    host: Host, engine: EngineState, contents: Texts, effect: EffectiveConfig
) -> InstallerError | None:
    """Return the move of a running engine to other places by its next start; None for no move.

    Args:
        host: the node.
        engine: the engine, with its start and its next start; it was not asked.
        contents: the texts of its configs.
        effect: the config that the engine's program printed for these texts.
    """
    if not (engine.kind.is_restarted and effect.told):
        return None
    answer = ask_engine(host, engine, timeout_s=ANSWER_S)
    if answer.serving is None:
        return None
    running = replace(engine, serving=answer.serving, places_by_files=places_by_files(engine))
    move = next(find_moves(running), None)
    if move is not None:
        return refuse_move(running, move)
    after = DryRuns(host, contents)(running, contents)
    return next(explain_moved_places(running, after), None)


def _compare_hook(host: Host, engine: EngineState, effect: EffectiveConfig) -> Comparison:
    """Compare the directories in which CRI-O looks for hooks with the place of our hook."""
    unread: list[InstallerError] = []
    is_flagged = engine.started is not None and engine.started.mentions("hooks")
    if not is_flagged:
        unread += explain_unread(host, replace(engine, serving=effect))
    if unread:
        return Comparison(lacks=(UNREAD,) * len(unread), refused=unread[0])
    return Comparison(pending=_find_unread_hook(host, engine))


def _starts_otherwise(started: Started | None, later: Started | None) -> bool:
    """Tell whether a unit gives the next start other words or variables than this start had."""
    if started is None or later is None:
        return False
    if started.words != later.words:
        return True
    # A line without a name sets nothing.
    return any(name and started.environment.get(name) != value for name, value in later.environment.items())


def _find_unread_hook(host: Host, engine: EngineState) -> InstallerError | None:
    """Explain why a running engine does not read our hook before its next start; None for no reason."""
    paths = [*engine.files]
    if engine.drop_in_directory:
        paths.append(engine.drop_in_directory)
    if not is_outdated(host, engine, paths):
        return None  # the engine was started with the present configs
    answer = ask_engine(host, engine, timeout_s=ANSWER_S)
    return next(explain_unread(host, replace(engine, serving=answer.serving)), None)


def _find_overruling(row: EngineRow, engine: EngineState) -> InstallerError | None:
    """Find the conflict of an engine's unit, or of its start, with the wanted default; None for none."""
    options = Options(set_as_default=bool(row.default), runtime_name=row.default or RUNTIME_NAME)
    for start, whose in ((engine.next_start, "its unit starts it"), (engine.started, "it was started")):
        error = next(explain_overruling(engine.kind, list_said(start), options, whose), None)
        if error is not None:
            return error
    return None


def _in_force(engine: EngineState, effect: EffectiveConfig, edit: Edit) -> bool:
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


def _inherited(
    row: EngineRow, engine: EngineState, facts: Facts, dry_run: DryRun
) -> tuple[Mapping[str, Tree], InstallerError | None]:
    """Predict the settings of our runtimes in an engine's answer after an install, or return the error."""
    texts = files_without_us(engine, facts)
    before = dry_run(engine, texts)
    entries = tuple(
        RuntimeEntry(name, path, default=name == row.default) for name, path in row.runtimes.items()
    )
    is_printed = before.rest_digest and not (before.fatal or engine.kind.reload_misreports)
    try:
        configs = read_configs(engine, texts)
        proposal = next(iter(engine.kind.propose(engine, configs, entries, Extras(), before)))
    except InstallerError as error:
        return {}, error
    if not is_printed:
        return {}, None
    return proposal.shown, None


def _lacking(row: EngineRow, effect: EffectiveConfig, inherited: Mapping[str, Tree]) -> Iterator[str]:
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
