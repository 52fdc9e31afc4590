"""What an engine has in force with texts in memory, or will have at its next start: its own program tells."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from msgspec.structs import replace

from installer.config_text import Edit, Syntax, Tree, Value
from installer.config_text.change import parse
from installer.engines.config_edits import (
    RUNTIMES,
    Ask,
    Texts,
    config_files,
    digest_of,
    files_without_us,
    runtime_of,
)
from installer.engines.config_files import (
    contents_of,
    explain_unread,
    is_outdated,
    with_configs,
    with_readable_configs,
)
from installer.engines.containerd.effective import CDI
from installer.engines.observe import engine_of_row, list_said, with_flags, with_start
from installer.engines.reloading import explain_moved_places
from installer.engines.restart import ask as ask_engine
from installer.engines.startup import drop_flags, explain_overruling, find_lacks, next_start, read_start
from installer.errors import InstallerError, NotBegunError
from installer.host import systemd
from installer.host.files import Host
from installer.host.programs import ENVIRONMENT, Ran, is_program, memory_file, private_directory, run_in
from installer.host.sockets import is_dead
from installer.model.engine_spec import (
    Check,
    ConfigFiles,
    EffectiveConfig,
    Extras,
    LoadError,
    LoadInput,
    ReloadMethod,
    Runtime,
    RuntimeEntry,
)
from installer.model.facts import EngineRow, EngineState, Facts, Record, Started, ToolkitFacts
from installer.model.files import PATH, ROOT, File, Kind
from installer.model.options import RUNTIME_NAME, Options
from installer.model.steps import Step, WriteConfig

ANSWER_S: Final = 5.0
UNREAD: Final = "the directory of our hook is not in hooks_dir"
UNKNOWN_FLAG: Final = "unknown flag"  # dockerd 20.10 has no --validate


class Trials:
    """Asks engines' own programs, in the host's own root, each question once.

    Texts are handed over in memory: no secret gets onto a disk, and a crash leaves nothing. Where a program
    cannot be run the texts alone have to tell; the running engine is asked afterwards in any case.
    """

    def __init__(self, host: Host, contents: Texts) -> None:
        self._host = host
        self._contents = contents
        self._unasked: dict[str, str] = {}
        self._known: dict[tuple[str, tuple[tuple[PurePosixPath, str], ...]], EffectiveConfig] = {}

    def unvalidated(self, steps: Iterable[Step]) -> Iterator[str]:
        """Yield the engines that are given a text which their programs have not read, and why."""
        written = {step.engine for step in steps if isinstance(step, WriteConfig)}
        for name, reason in self._unasked.items():
            if name in written:
                yield f"the config of {name} is not validated: {reason}"

    def __call__(self, engine: EngineState, texts: Texts) -> EffectiveConfig:
        """Return what ``engine`` would have in force with ``texts`` in the place of those that lie there."""
        there = {path: self._contents.get(path) for path in engine.files} | dict(texts)
        files = {path: file for path, file in there.items() if file is not None}
        key = engine.name, tuple((path, files[path].digest) for path in sorted(files))
        if key not in self._known:
            self._known[key] = self._ask(engine, files)
        return self._known[key]

    def _ask(self, engine: EngineState, files: Mapping[PurePosixPath, File]) -> EffectiveConfig:
        spec, program = engine.spec, self._program(engine)
        try:
            given = config_files(engine, files)
            by_texts = spec.estimate(given)
        except InstallerError as error:
            given, by_texts = None, EffectiveConfig({}, "", broken=f"cannot {error.problem}")
        start, later = engine.started or engine.next_start, engine.next_start
        if start and later and spec.reload is ReloadMethod.RESTART:  # systemd may add variables to the unit's
            start = replace(later, environment={**start.environment, **later.environment})
        if spec.make_check is None or engine.hook is not None:
            return self._check_load(engine, by_texts, given, start)
        if program is None:
            self._unasked[engine.name] = "its program was not found"
            return self._check_load(engine, by_texts, given, start)
        check = spec.make_check(given or config_files(engine, files, parsed=False))
        ran = self._run(program, check, start)
        refuses = ran is not None and ran.returncode and UNKNOWN_FLAG not in ran.stderr
        if ran and refuses and start is None and check.by_start:
            # It may refuse what comes of flags or an environment that is not known here: then it says the
            # same of the present config, with which it runs.
            present = {path: file for path in engine.files if (file := self._contents.get(path))}
            before = self._run(program, spec.make_check(config_files(engine, present, parsed=False)), None)
            ran = None if before is None or before.last_line == ran.last_line else ran
        if ran is None:
            self._unasked[engine.name] = f"{program} cannot tell here"
            return self._check_load(engine, by_texts, given, start)
        if refuses:
            return EffectiveConfig({}, "", undefined=by_texts.undefined, broken=f"{program}: {ran.last_line}")
        said = by_texts if by_texts.broken or check.says is None else check.says(ran.stdout)
        # Of two names of one place the engine tells now this one, now that: it resolves links that are there.
        now, real = engine.served.places, self._resolve
        moved = {name: will for name, will in said.places.items() if real(will) != real(now.get(name, will))}
        told = check.says is not None and not by_texts.broken
        return self._check_load(engine, replace(said, places=moved, told=told), given, start, ran.stdout)

    def _check_load(
        self,
        engine: EngineState,
        said: EffectiveConfig,
        given: ConfigFiles | None,
        start: Started | None,
        printed: str = "",
    ) -> EffectiveConfig:
        """Return what an engine has in force, broken where it would not load what it can read."""
        if said.fatal or given is None or engine.spec.find_load_errors is None or engine.hook is not None:
            return said
        error = next(iter(_find_load_errors(self._host, engine, given, start, printed)), None)
        return replace(said, broken=error.reason, remedy=error.remedy) if error else said

    def _resolve(self, path: str) -> PurePosixPath:
        whole = PurePosixPath("/", path)
        with suppress(InstallerError):
            return self._host.resolve(whole)
        return whole

    def _program(self, engine: EngineState) -> PurePosixPath | None:
        """Return what the engine runs, if it goes by its name: others would take the words differently."""
        spec, host = engine.spec, self._host
        if engine.exe is not None:
            is_its_own = engine.exe.name == spec.process and host.kind(engine.exe) is Kind.FILE
            return engine.exe if is_its_own else None
        usual = (spec.program,) if spec.program else tuple(place / spec.process for place in PATH)
        return next((path for path in usual if host.kind(path) is Kind.FILE), None)

    def _run(self, program: PurePosixPath, check: Check, start: Started | None) -> Ran | None:
        """Put the texts where only the program finds them, and run it as its engine is started."""
        with ExitStack() as stack:
            places = {path: stack.enter_context(memory_file()) for path in check.paths}
            for path, text in check.texts(lambda path: places[path].name).items():
                Path(places[path].name).write_bytes(text.encode())
            for path, texts in check.beside.items():
                places[path] = stack.enter_context(private_directory(texts))
            flags = start.words if start and check.given is not None else ()
            given = drop_flags(flags, check.given or ())
            words = [places[word].name if isinstance(word, PurePosixPath) else word for word in check.words]
            ran = run_in(
                self._host.local_path(ROOT),
                [str(program), *words, *given, *check.last],
                timeout_s=ANSWER_S,
                environment=ENVIRONMENT | dict(start.environment if start else {}),
                fds=[place.fd for place in places.values()],
            )
        if ran is None:
            return None
        stderr = ran.stderr  # with the names that the host knows, once these are put in
        # The longest first: /proc/self/fd/1 begins the name of /proc/self/fd/11 too.
        for path, place in sorted(places.items(), key=lambda each: -len(each[1].name)):
            stderr = stderr.replace(place.name, str(path))
        return replace(ran, stderr=stderr)


class _Reader(NamedTuple):
    """What load checks may look at on the host: a ``HostReader``."""

    host: Host

    def kind(self, path: PurePosixPath, *, last: bool = True) -> Kind:
        return self.host.kind(path, last=last)

    def read(self, path: PurePosixPath) -> File | None:
        return self.host.read(path)

    def names(self, path: PurePosixPath) -> tuple[str, ...]:
        return self.host.names(path)

    def is_program(self, path: PurePosixPath) -> bool:
        return is_program(self.host, path)

    def is_dead(self, path: PurePosixPath) -> bool:
        return is_dead(self.host.local_path(path))


def _find_load_errors(
    host: Host, engine: EngineState, files: ConfigFiles, start: Started | None, printed: str = ""
) -> Iterator[LoadError]:
    """Yield why an engine would not load configs; ``printed`` is what its own program makes of them."""
    if engine.spec.find_load_errors is None:
        return
    if start is not None and start.runs(engine.spec.process):
        words = start.words
        # A unit without a PATH has that of systemd.
        environment = {"PATH": ":".join(map(str, PATH)), **start.environment}
    else:  # it is started by a program that may change both
        words, environment = (), {}
    yield from engine.spec.find_load_errors(LoadInput(files, printed, words, environment, _Reader(host)))


def refuse_changed(
    host: Host, engine: EngineState, seen: Mapping[PurePosixPath, str], done: Iterable[Step]
) -> None:
    """Raise NotBegunError where an engine would not come up with what was written since the gate was asked.

    ``seen`` are the digests of what was read then, ``done`` the steps since. One that is signalled is refused
    in any case: it is not known what it makes of such a text.
    """
    if error := with_start(host, engine).not_restarted:
        raise NotBegunError(error.problem, remedy=error.remedy, code=error.code)
    writes = (step for step in done if isinstance(step, WriteConfig))
    written = {step.path: step.after.digest if step.after else "" for step in writes}
    try:
        broken = _broken(host, engine, {**seen, **written})
    except InstallerError as error:
        broken = f"cannot {error.problem}"
    if broken:
        verb = "reload" if engine.spec.reload is ReloadMethod.HUP else "restart"
        remedy = f"look at what has just been written to the config of {engine.title}, then run again"
        raise NotBegunError(f"{verb} {engine.title} ({broken})", remedy=remedy, code="config-changed")


def _broken(host: Host, engine: EngineState, expected: Mapping[PurePosixPath, str]) -> str:
    """Return why an engine would not come up, "" where it would or nothing has changed."""
    now = with_readable_configs(host, engine)
    now = replace(now, files=tuple(dict.fromkeys((*now.files, *engine.files))))
    contents = contents_of(host, now.files)
    changed = [
        path for path, file in contents.items() if (file.digest if file else "") != expected.get(path, "")
    ]
    changed += sorted(now.unreadable - engine.unreadable)
    if not changed:
        return ""
    names = ", ".join(map(str, changed))
    if engine.spec.reload is ReloadMethod.HUP:
        return f"another process has just written {names}"
    after = Trials(host, contents)(now, contents)
    if engine.serving is None and after.rest_digest:
        return ""  # its CRI is off, and was before
    reason = after.fatal or "; ".join(error.problem for error in explain_moved_places(engine, after))
    return reason and f"it would not come up again, another process has just written {names}: {reason}"


def find_refusals(host: Host, engines: Iterable[EngineState]) -> dict[str, str]:
    """Return by name why engines that serve would not come up with what lies there."""
    found: dict[str, str] = {}
    for engine in (each for each in engines if each.serving is not None):
        now = with_readable_configs(host, engine)
        try:
            contents = contents_of(host, now.files)
            lacks = find_lacks(host, systemd.look_at_unit(host, engine.unit).start)
            reason = Trials(host, contents)(now, contents).fatal or next(lacks, "")
        except InstallerError as error:
            reason = error.problem
        if reason:
            found[engine.name] = reason
    return found


class Comparison(NamedTuple):
    """What the configs of an engine come to, beside what was installed."""

    fatal: str = ""  # why it would not start
    lacks: tuple[str, ...] = ()  # what it would not serve
    has: Callable[[Edit], bool] = lambda _: False  # whether an edit is in force
    refused: InstallerError | None = None  # why no install can mend that
    heals: bool = False  # by an install, what keeps it from starting
    remedy: str = ""  # what its owner does about that, where it is known
    waits: InstallerError | None = None  # what it does not have in force before its next start


def compare_configs(host: Host, row: EngineRow, record: Record) -> Comparison:
    """Compare the configs of an engine with what was installed; raise where one cannot be read."""
    paths = [each.path for each in record.configs if each.engine == row.name and each.written]
    hook = next(iter(paths), None) if row.config is None else None
    engine = engine_of_row(row)
    if engine.spec.finds or (row.config or hook) is None:
        return Comparison()
    drop_in = next((path for path in paths if path not in {row.config, hook}), engine.spec.drop_ins.usual)
    engine = replace(engine, drop_in=drop_in, hook=hook)
    started, later, lack = read_start(host, engine), None, ""
    if started is None or engine.spec.list_programs:
        unit = systemd.look_at_unit(host, engine.unit).start
        later = next_start(host, engine, unit)
        if engine.spec.list_programs:  # which its next start looks for, and its own
            lack = next(find_lacks(host, unit), "")
    engine = with_flags(replace(engine, started=started or later, next_start=later))
    engine = with_configs(host, engine)
    contents = contents_of(host, engine.files)
    other_start = engine.flags.default or engine.next_flags.default or _starts_otherwise(started, later)
    doubtful = lack or engine.unreadable or other_start
    if hook is None and row.proven == digest_of(contents) and not doubtful:
        # As its last install has left and proven them; what they name may have gone since.
        files = config_files(engine, contents)
        if next(_find_load_errors(host, engine, files, later or started), None) is None:
            return Comparison(has=lambda _: True)
    ask = Trials(host, contents)
    found = ask(engine, contents)
    # Saved texts do not count: they are of the install, others have edited since.
    known = {each.path: None for each in record.configs} | contents
    facts = Facts((engine,), known, {}, frozenset(), ToolkitFacts(), record, lost=frozenset(known))
    if fatal := lack or found.fatal:
        with suppress(InstallerError):  # a text of ours is not valid any more
            before = ask(engine, files_without_us(engine, facts))
            return Comparison(fatal, heals=not (lack or before.fatal), remedy=found.remedy)
        return Comparison(fatal, remedy=found.remedy)
    if hook is not None:
        flagged = engine.started is not None and engine.started.mentions("hooks")
        unread = [] if flagged else [*explain_unread(host, replace(engine, serving=found))]
        waits = None if unread else _find_unread_hook(host, engine)
        return Comparison(lacks=(UNREAD,) * len(unread), refused=next(iter(unread), None), waits=waits)
    inherited, refused = _inherited(row, engine, facts, ask)
    refused = refused or _find_overruling(row, engine)
    lacks, asked = tuple(_lacking(row, found, inherited)), bool(found.rest_digest)
    return Comparison("", lacks, lambda edit: asked and _in_force(found, edit), refused)


def _starts_otherwise(started: Started | None, later: Started | None) -> bool:
    """Tell whether a unit gives the next start other words or variables than this start had."""
    if started is None or later is None:
        return False
    differing = (name for name, value in later.environment.items() if started.environment.get(name) != value)
    return started.words != later.words or any(differing)


def _find_unread_hook(host: Host, engine: EngineState) -> InstallerError | None:
    """Return why a running engine does not read our hook before its next start; None where it does."""
    directories = (engine.drop_in_directory,) if engine.drop_in_directory else ()
    if not is_outdated(host, engine, (*engine.files, *directories)):
        return None  # it was started with what its configs say
    answer = ask_engine(host, engine, timeout_s=ANSWER_S)
    return next(explain_unread(host, replace(engine, serving=answer.serving)), None)


def _find_overruling(row: EngineRow, engine: EngineState) -> InstallerError | None:
    """Return why the unit of an engine, or its start, keeps it from the default that was asked for."""
    options = Options(set_as_default=bool(row.default), runtime_name=row.default or RUNTIME_NAME)
    for start, whose in ((engine.next_start, "its unit starts it"), (engine.started, "it was started")):
        for error in explain_overruling(engine.spec, list_said(start), options, whose):
            return error
    return None


def _in_force(found: EffectiveConfig, edit: Edit) -> bool:
    """Tell whether an engine has in force what an edit has made, but for programs and the default."""
    if (name := runtime_of(edit.key)) == "":
        return edit.key[-1:] != (CDI,) or found.cdi is True
    if name not in found.handlers or edit.after is None:
        return False
    table: Value = parse(f"it = {edit.after}", Syntax.TOML, name=name)["it"]
    for part in reversed(edit.key[edit.key.index(RUNTIMES) + 2 :]):
        table = {part: table}
    handler = found.handlers[name]
    return isinstance(table, Mapping) and handler.shows(Runtime(handler.binary, table))


def _inherited(
    row: EngineRow, engine: EngineState, facts: Facts, ask: Ask
) -> tuple[Mapping[str, Tree], InstallerError | None]:
    """Return what an install would have the engine show of our runtimes, or why it could not."""
    before = ask(engine, texts := files_without_us(engine, facts))
    entries = tuple(
        RuntimeEntry(name, path, default=name == row.default) for name, path in row.runtimes.items()
    )
    known_by_it = before.rest_digest and not (before.fatal or engine.spec.reload_misreports)
    try:
        files = replace(config_files(engine, texts), before=before)
        decision = next(iter(engine.spec.draft(files, entries, Extras())))
    except InstallerError as error:
        return {}, error
    return decision.shown if known_by_it else {}, None


def _lacking(row: EngineRow, found: EffectiveConfig, inherited: Mapping[str, Tree]) -> Iterator[str]:
    for name, binary in row.runtimes.items():
        handler = found.handlers.get(name)
        if handler is None:
            yield f"the runtime {name} is not defined"
        elif handler.binary != str(binary):
            yield f"the runtime {name} starts {handler.binary or 'something else'}"
        elif not handler.shows(Runtime(handler.binary, inherited.get(name, {}))):
            yield f"the options that the runtime {name} inherits have changed"
    if row.default and found.default != row.default:
        yield f"the default runtime is {found.default}, not {row.default}"
