"""The dry run: an engine's own program reads texts in memory and prints the settings of the next start."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines.config_files import contents_of, with_readable_configs
from installer.engines.config_texts import Texts, decode_configs, read_configs
from installer.engines.host_reader import Reader
from installer.engines.next_start import explain_moved_places
from installer.engines.observe import with_start
from installer.engines.startup import drop_flags, find_missing_requirements
from installer.errors import InstallerError, NotBegunError
from installer.host import systemd
from installer.host.files import Host
from installer.host.programs import (
    ENVIRONMENT,
    OpenText,
    Ran,
    memory_file,
    names_open_files,
    private_directory,
    run_in,
)
from installer.model.effective import EffectiveConfig
from installer.model.engine import Configs, DryRunCommand, EngineState, LoadError, LoadInput, Started
from installer.model.files import PATH, ROOT, File, Kind
from installer.model.steps import Step, WriteConfig

ANSWER_S: Final = 5.0
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
        configs: Configs | None
        try:
            configs = read_configs(engine, files)
            by_texts = engine.kind.predict(engine, configs)
        except InstallerError as error:
            configs = None
            by_texts = EffectiveConfig({}, "", broken=f"cannot {error.problem}")
        if engine.hook is not None or not engine.kind.has_dry_run:
            return by_texts

        start = _choose_start(engine)
        program = self._find_program(engine)
        if program is None:
            self._unvalidated[engine.name] = "its program was not found"
        if program is None or engine.name in self._unvalidated:
            # The answers about some of the texts could not be compared with those about the others.
            return self._check_load(engine, by_texts, configs, start)

        command = engine.kind.describe_dry_run(engine, decode_configs(engine, files))
        ran = self._run_program(program, command, start)
        if ran is None or self._is_doubtful(engine, program, command, ran, start):
            self._unvalidated[engine.name] = f"{program} cannot tell here"
            return self._check_load(engine, by_texts, configs, start)
        if _is_refusal(ran):
            return EffectiveConfig({}, "", undefined=by_texts.undefined, broken=f"{program}: {ran.last_line}")

        effect = by_texts
        is_printed = False
        if command.read_output is not None and not by_texts.broken:
            effect = command.read_output(ran.stdout)
            is_printed = True
        effect = replace(effect, places=self._find_moved_places(engine, effect), is_printed=is_printed)
        return self._check_load(engine, effect, configs, start, ran.stdout)

    def _is_doubtful(
        self,
        engine: EngineState,
        program: PurePosixPath,
        command: DryRunCommand,
        ran: Ran,
        start: Started | None,
    ) -> bool:
        """Tell whether a program may have refused something else than the texts.

        Flags or variables may be unknown here, and a program may panic for another reason. Then the program
        refuses the present configs, too, with which the engine runs.
        """
        if not _is_refusal(ran):
            return False
        lacks_flags = start is None and command.depends_on_flags
        if not lacks_flags and not ran.has_panicked:
            return False
        return self._refuses_present(engine, program, ran, start)

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
        if effect.fatal or configs is None:
            return effect
        error = next(find_load_errors(self._host, engine, configs, start, printed), None)
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
        root = self._host.local_path(ROOT)
        if not names_open_files(root):
            return None
        with ExitStack() as stack:
            places = _write_texts(command, stack)
            ran = run_in(
                root,
                [str(program), *_list_arguments(command, places, start)],
                timeout_s=ANSWER_S,
                environment=ENVIRONMENT | dict(start.environment if start else {}),
                fds=[place.fd for place in places.values()],
            )
        if ran is None or ran.was_cut_short:
            return None
        return replace(ran, stderr=_name_host_paths(ran.stderr, places))


def _write_texts(command: DryRunCommand, stack: ExitStack) -> dict[PurePosixPath, OpenText]:
    """Write the texts of a dry run; return the memory file, or the directory, of each path."""
    places = {path: stack.enter_context(memory_file()) for path in command.memory_files}

    def name_of(path: PurePosixPath) -> str:
        return places[path].name

    for path, text in command.render(name_of).items():
        Path(places[path].name).write_bytes(text.encode())
    for path, texts in command.directories.items():
        places[path] = stack.enter_context(private_directory(texts))
    return places


def _list_arguments(
    command: DryRunCommand, places: Mapping[PurePosixPath, OpenText], start: Started | None
) -> Iterator[str]:
    """Yield the arguments of a dry run, with the flags of the engine's start in the middle."""
    for argument in command.arguments:
        if isinstance(argument, PurePosixPath):
            yield places[argument].name
        else:
            yield argument
    if start is not None and command.replaced_flags is not None:
        yield from drop_flags(start.words, command.replaced_flags)
    yield from command.last_arguments


def _name_host_paths(stderr: str, places: Mapping[PurePosixPath, OpenText]) -> str:
    """Replace the names of memory files in an error by the host's paths."""
    paths_by_name = {place.name: path for path, place in places.items()}
    # The longest name is replaced first: the name /proc/self/fd/11 begins with /proc/self/fd/1.
    for name in sorted(paths_by_name, key=len, reverse=True):
        stderr = stderr.replace(name, str(paths_by_name[name]))
    return stderr


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


def find_load_errors(
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
    if engine.serving is None and after.is_complete:
        return ""  # CRI is off now, and was before
    reason = after.fatal
    if not reason:
        moves = [error.problem for error in explain_moved_places(engine, after)]
        reason = "; ".join(moves)
    if not reason:
        return ""
    return f"it would not start again, another process has just written {names}: {reason}"


def find_start_failures(host: Host, engines: Iterable[EngineState]) -> dict[str, str]:
    """Return the reasons why serving engines would not start with the present configs, by engine."""
    reasons: dict[str, str] = {}
    for engine in engines:
        if engine.serving is None:
            continue
        now = with_readable_configs(host, engine)
        try:
            contents = contents_of(host, now.files)
            lacks = find_missing_requirements(host, systemd.look_at_unit(host, engine.unit).start)
            reason = DryRuns(host, contents)(now, contents).fatal or next(lacks, "")
        except InstallerError as error:
            reason = error.problem
        if reason:
            reasons[engine.name] = reason
    return reasons
