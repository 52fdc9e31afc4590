"""The present start of an engine, its next start by its unit, and the reasons against a restart."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from installer.engines.config_texts import tree_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import (
    PROC,
    TOO_MANY,
    UnfinishedError,
    monitors_in_unit_of,
    read_strings,
    start_time_of,
)
from installer.host.programs import is_program
from installer.model.effective import Flags
from installer.model.engine import Engine, EngineState, Place, Started
from installer.model.facts import count
from installer.model.files import Kind
from installer.model.options import Options, RestartMode

Words = Sequence[str]
VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
# Variables that systemd gives to a single process: sockets, and the address for its readiness message.
OF_PROCESS: Final = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_", "INVOCATION_ID", "JOURNAL_STREAM", "MAINPID")
KILLING: Final = frozenset({"control-group", "mixed"})  # systemd.kill(5); the others leave the shims
RUN_DIRECTORIES: Final = (PurePosixPath("/run"), PurePosixPath("/var/run"))
WILDCARDS: Final = frozenset("*?[")


def value_of(cmdline: Words, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for a flag without a value; None if the flag is not given.

    Of a flag given twice the engines take the last value.
    """
    values = [*values_of(cmdline, names)]
    return values[-1] if values else None


def values_of(cmdline: Words, names: Sequence[str]) -> Iterator[str]:
    """Yield all values of a repeatable flag."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            yield value if equals else next(words, "")


def flags_of(kind: Engine, start: Started) -> Flags:
    """Return the runtimes set by flags and variables; a flag wins over a variable."""
    names = kind.cmdline.runtimes
    if names is None:
        return Flags()

    default = value_of(start.words, (names.default,)) or start.environment.get(names.default_variable, "")
    values = tuple(values_of(start.words, (names.runtime,)))
    if not values:
        values = (start.environment.get(names.runtime_variable, ""),)

    runtimes = {}
    for word in ",".join(values).split(","):
        pair = word.split(names.between)
        if len(pair) > 1:
            runtimes[pair[0]] = pair[1]
    return Flags(default, runtimes)


def path_of(cmdline: Words, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path given by a flag; None without the flag, or for a relative path of unknown base."""
    path = value_of(cmdline, names)
    if not path or not path.startswith("/"):
        return None
    return PurePosixPath(path)


def find_place(host: Host, place: Place, cmdline: Words, config: PurePosixPath) -> PurePosixPath | None:
    """Return the path set by a flag or a key of the config; None for a relative path, or none."""
    value: object = None
    if place.flag:
        value = value_of(cmdline, (place.flag,))
    if value is None and place.key:
        with suppress(InstallerError):
            value = tree_of(host.read(config), config).get(place.key)
    if not isinstance(value, str) or not value.startswith("/"):
        return None
    return PurePosixPath(value, place.below)


def explain_overruling(
    kind: Engine, cmdline: Words, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield the flags and VAR=value words in conflict with our config; ``whose`` names the start."""
    flags = kind.cmdline
    name = kind.name
    for names in (flags.config, flags.drop_ins):
        path = value_of(cmdline, names)
        if path and not path.startswith("/"):
            problem = f"find the config of {name} ({whose} with {names[0]} {path}, a relative path)"
            remedy = Remedy(
                "start it with the absolute path, or name that with ", Option("config", "PATH", name)
            )
            yield InstallerError(problem, remedy=remedy, code="engine-flags")

    conflicts = dict(flags.conflicts)
    if flags.runtimes is not None and options.set_as_default:
        conflicts = {flags.runtimes.default: "which must not be in its config as well", **conflicts}
        variable = flags.runtimes.default_variable
        if value_of(cmdline, (variable,)) not in {None, "", options.runtime_name}:
            conflicts[variable] = "which wins over its config"
    given = [flag for flag in conflicts if value_of(cmdline, (flag,)) is not None]
    if given:
        words = ", and with ".join(f"{flag}, {conflicts[flag]}" for flag in given)
        move = f"move {' and '.join(given)} from its command line to its config, and restart it"
        yield InstallerError(f"configure {name} ({whose} with {words})", remedy=move, code="engine-flags")


def read_start(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> Started | None:
    """Read the start of a running engine; None if unknown.

    ``unit`` is the engine's own unit if the caller has read the unit.
    """
    process = find_process(host, engine, unit)
    if process is None:
        return None
    words = _strings(process / "cmdline")
    if not words:
        return None

    environment = _pairs(_strings(process / "environ"))
    guessed = not environment
    if guessed:  # the environment of the process may not be read, or it has none
        unit = unit or systemd.look_at_unit(host, engine.unit)
        environment = _pairs(unit.start.environment)
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_PROCESS)}
    began_s = start_time_of(int(process.name), process.parent)
    return Started(words[1:], kept, words[0], began_s, guessed)


def predict_next_start(host: Host, engine: EngineState, unit: systemd.UnitStart) -> Started | None:
    """Predict the next start of an engine from its unit, perhaps by env or nice; None if unknown."""
    try:
        environment = _pairs(unit.environment)
        for path in unit.environment_files:
            environment |= _read_environment_file(host, PurePosixPath(path))
    except InstallerError:
        return None

    words = [*unit.words[:1]]
    for word in unit.words[1:]:  # as systemd expands them: a variable that is a word may become several words
        if word[:1] == "$" and word[1:].isidentifier():
            words += environment.get(word[1:], "").split()
        else:
            words.append(_expand(word, environment))

    for index, word in enumerate(words):
        may_be_program = word[:1] == "/" or index == 0
        if may_be_program and " " not in word and PurePosixPath(word).name == engine.kind.process:
            return Started(tuple(words[index + 1 :]), environment, word)
    return None


def _read_environment_file(host: Host, path: PurePosixPath) -> dict[str, str]:
    """Return the variables of an EnvironmentFile: a name, an equals sign, a value on each line.

    A value may be quoted.
    """
    file = host.read(path)
    if file is None:
        return {}
    lines = []
    for raw_line in file.content.decode(errors="replace").splitlines():
        line = raw_line.strip()
        if line[:1] not in {"#", ";"}:
            lines.append(line)
    return {name: value.strip().strip("\"'") for name, value in _pairs(lines).items()}


def _expand(word: str, environment: Mapping[str, str]) -> str:
    """Expand the variables in a word of a command line, for example ``${NAME}``."""

    def value_of_variable(reference: re.Match[str]) -> str:
        return environment.get(reference[1], "")

    return VARIABLE.sub(value_of_variable, word)


def drop_flags(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line except some flags and their values."""
    remaining = iter(words)
    for word in remaining:
        flag, equals, _ = word.partition("=")
        if flag not in flags:
            yield word
        elif not equals:
            next(remaining, "")


def find_process(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> Path | None:
    """Return the process of an engine as its directory of /proc; None for an unseen process."""
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))

    # Without the host's pid namespace systemd reports the number; the host's own /proc has the process.
    proc = host.local_path(PROC)
    unit = unit or systemd.look_at_unit(host, engine.unit)
    process = proc / str(unit.main_pid)
    # Our own /proc, of another pid namespace, has another process under this number, or none.
    is_engine = _strings(process / "comm") == (f"{engine.kind.process}\n",)
    return process if is_engine else None


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc; none if the file cannot be read."""
    with suppress(OSError):
        return read_strings(here)
    return ()


def find_refusals(
    host: Host, engine: EngineState, unit: systemd.UnitStart, process: Path | None
) -> Iterator[InstallerError]:
    """Yield the reasons not to restart an engine, without conditions invisible from here.

    ``process`` is the engine's directory of /proc; None for an unseen process.
    """

    def refuse(reason: str, remedy: str, code: Code = "unit-failed") -> InstallerError:
        problem = f"restart {engine.title} ({reason})"
        return InstallerError(problem, remedy=f"{remedy}, then run again", code=code)

    name = engine.unit
    override = f"in an override of {name} and daemon-reload"
    if unit.masked:
        yield refuse(f"its unit {name} is masked", f"run systemctl unmask {name} on the node")
    for lack in find_missing_requirements(host, unit):
        yield refuse(f"{name} would not start it again: {lack}", f"correct {name}, or what it needs")
    for setting in unit.refuses:
        remedy = f"set RefuseManualStop=no and RefuseManualStart=no {override}"
        yield refuse(f"{name} has {setting}=yes, so systemd refuses that", remedy)
    for move in find_moves(engine):
        yield refuse_move(engine, move)
    live = ""
    if process and unit.kill_mode in KILLING:
        live = _describe_monitors(process)
    if live:
        reason = f"{name} has KillMode={unit.kill_mode}, and {live}: a stop would kill them"
        yield refuse(reason, f"set KillMode=process {override}", code="restart-kills-containers")


def _describe_monitors(process: Path) -> str:
    """Return, in words, the monitors of live containers in the service of a process; "" for none."""
    try:
        monitors = monitors_in_unit_of(process)
    except UnfinishedError:
        return f"shims of live containers may run in it ({TOO_MANY})"
    if not monitors:
        return ""
    verb = "runs" if monitors == 1 else "run"
    return f"{count(monitors, 'shim')} of live containers {verb} in it"


def refuse_move(engine: EngineState, move: str) -> InstallerError:
    """Return the refusal of a restart by which the unit moves the engine, in the words of ``find_moves``."""
    restart = f"restart {engine.unit} at a time of your choice"
    return InstallerError(
        f"restart {engine.title} (at its next start {engine.unit} gives it {move})",
        remedy=f"{restart}, or take that out of the unit, then run again",
        code="restart-moves-engine",
    )


def find_missing_requirements(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield the missing requirements of a unit's start."""
    if unit.gone:
        yield "its unit file is gone"
    for find in (_find_conditions, _find_files, _find_programs):
        with suppress(InstallerError):
            yield from find(host, unit)


def _find_conditions(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield the unmet conditions and assertions of a unit."""
    for condition in unit.conditions:
        path = PurePosixPath(condition.value)
        name = condition.setting.removeprefix("Condition").removeprefix("Assert")
        holds = _CONDITIONS.get(name)
        # A file of the service itself in a run directory goes with the service.
        is_transient = condition.negated and any(path.is_relative_to(above) for above in RUN_DIRECTORIES)
        if holds and path.is_absolute() and not is_transient and holds(host, path) is condition.negated:
            yield f"{condition} does not hold"


def _exists(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path) is not Kind.ABSENT


def _is_directory(host: Host, path: PurePosixPath) -> bool:
    return host.kind(path) is Kind.DIRECTORY


def _is_link(host: Host, path: PurePosixPath) -> bool:
    return host.link_target(path) is not None


def _has_names(host: Host, path: PurePosixPath) -> bool:
    return bool(host.names(path))


def _has_content(host: Host, path: PurePosixPath) -> bool:
    return host.size(path) > 0


_CONDITIONS: Final[dict[str, Callable[[Host, PurePosixPath], bool]]] = {
    "PathExists": _exists,
    "PathIsDirectory": _is_directory,
    "PathIsSymbolicLink": _is_link,
    "DirectoryNotEmpty": _has_names,
    "FileNotEmpty": _has_content,
    "FileIsExecutable": is_program,
}


def _find_files(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield the missing EnvironmentFiles of a unit."""
    for path in unit.needed:
        if not WILDCARDS & {*path} and host.kind(PurePosixPath(path)) is Kind.ABSENT:
            yield f"its EnvironmentFile {path} is not there"


def _find_programs(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield the missing programs of a unit; a bare word is left out, for systemd's search path is unknown."""
    for setting, words in (*unit.before, ("ExecStart", unit.words)):
        program = PurePosixPath("".join(words[:1]))
        if program.is_absolute() and not unit.elsewhere and not is_program(host, program):
            yield f"its {setting} {program} is no program"


def _list_words(engine: EngineState) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Return the words of an engine's start and of its next start; None for unknown words."""
    present: Sequence[str] | None = None
    if engine.started is not None and engine.started.runs(engine.kind.process):
        present = engine.words
    later = engine.next_start.words if engine.next_start else None
    return present, later


def find_moves(engine: EngineState) -> Iterator[str]:
    """Yield the places that an engine gets from its unit at the next start, and does not have now.

    A place is a directory, the socket, or the config. Places set by files are compared by
    ``explain_moved_places``.
    """
    if engine.next_start is None:
        return
    present_words, _ = _list_words(engine)
    # What an engine reads without a flag. An engine reports its other places, but neither of these two.
    usual_files = {"config": str(engine.kind.config), "drop-ins": str(engine.kind.drop_ins.directory)}

    for place, flags in _list_place_flags(engine.kind).items():
        variable = engine.kind.cmdline.variables.get(place, "")
        given_now = _find_present_value(engine, flags, variable)
        given_later, name = _find_next_value(engine.next_start, flags, variable)
        is_present_unknown = present_words is None and place in usual_files
        if is_present_unknown or given_now == given_later:
            continue

        usual = usual_files.get(place)
        present = given_now or engine.served.places.get(place, usual)
        later = given_later or usual
        if later and not (present and normpath(present) == normpath(later)):
            runs = present or "what its config says"
            yield f"{name} {later}, and it runs with {runs}"


def _find_present_value(engine: EngineState, flags: Sequence[str], variable: str) -> str | None:
    """Return the value of a place at an engine's present start; None for no value, or an unknown start."""
    words, _ = _list_words(engine)
    value = value_of(words or (), flags)
    if value:
        return value
    if engine.started is None or engine.started.guessed:
        return None
    return engine.started.environment.get(variable)


def _find_next_value(start: Started, flags: Sequence[str], variable: str) -> tuple[str | None, str]:
    """Return the value of a place at a start, None for no value; and the flag or variable with the value."""
    value = value_of(start.words, flags)
    if value is None and variable in start.environment:
        return start.environment[variable], variable
    return value, flags[0]


def _list_place_flags(kind: Engine) -> dict[str, tuple[str, ...]]:
    """Return the flags for each place of an engine: its config, its drop-ins, and its directories."""
    flags_by_place = {}
    if kind.cmdline.config:
        flags_by_place["config"] = kind.cmdline.config
    if kind.cmdline.drop_ins:
        flags_by_place["drop-ins"] = kind.cmdline.drop_ins
    flags_by_place.update(kind.cmdline.places)
    return flags_by_place


def list_places_by_files(engine: EngineState) -> frozenset[str]:
    """Return the places left to the engine's configs: the places without a flag, if known."""
    now, later = _list_words(engine)
    words = now if later is None else later
    if words is None:
        return frozenset()
    places = engine.kind.cmdline.places
    return frozenset(place for place, flags in places.items() if value_of(words, flags) is None)


def find_unit_obstacle(host: Host, engine: EngineState) -> InstallerError | None:
    """Find the obstacle to a reload of an engine, before any change; None for no obstacle."""
    by_signal = engine.kind.reads_config_on_signal
    if engine.kind.restarts_itself or (by_signal and engine.pid is not None):
        return None
    if not engine.unit:
        return refuse_without_unit(engine, "it runs outside any systemd service")
    try:
        state = systemd.read_unit(host, engine.unit)
    except InstallerError as error:
        if by_signal:
            return refuse_without_unit(engine, error.problem)
        return error
    # Restarting another unit than the engine's own would start a second engine beside the present one.
    if state.active != "active":
        return refuse_without_unit(
            engine, f"its unit {engine.unit} is {state.active}, so another process answers"
        )
    if by_signal and not state.can_reload:
        return refuse_without_unit(engine, f"its unit {engine.unit} has no ExecReload")
    return None


def find_unit_obstacles(
    host: Host, options: Options, engines: Iterable[EngineState]
) -> tuple[InstallerError, ...]:
    """Return the reasons why serving engines could not be reloaded; none with --restart-mode none."""
    if options.restart_mode is RestartMode.NONE:
        return ()
    obstacles = []
    for engine in engines:
        if not engine.serving:
            continue
        obstacle = find_unit_obstacle(host, engine)
        if obstacle is not None:
            obstacles.append(obstacle)
    return tuple(obstacles)


def refuse_without_unit(engine: EngineState, reason: str) -> InstallerError:
    """Make the error of an engine that cannot be reloaded by its unit."""
    if engine.pid is not None:
        remedy: str = Remedy(
            "run it as a systemd service, or configure it unverified with ", Option("restart-mode", "none")
        )
    else:
        remedy = (
            "run with the host's pid namespace (hostPID: true), because its process cannot be seen from here"
        )
    return InstallerError(
        f"{engine.kind.reload_verb} {engine.title} ({reason})", remedy=remedy, code="engine-not-reloaded"
    )
