"""How an engine was started, how its unit will start it again, and why that is not to be asked of it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from installer.engines.config_edits import tree_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import PROC, monitors_in_unit_of, read_strings, start_time_of
from installer.host.programs import is_program
from installer.model.engine_spec import EngineSpec, Flags, Place, ReloadMethod
from installer.model.facts import EngineState, Started, count
from installer.model.files import Kind
from installer.model.options import Options, RestartMode

Words = Sequence[str]
VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
# What systemd gives to one process alone: sockets, and whom to tell that it is ready.
OF_PROCESS: Final = ("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_", "INVOCATION_ID", "JOURNAL_STREAM", "MAINPID")
KILLING: Final = frozenset({"control-group", "mixed"})  # systemd.kill(5); the others leave the shims
RUN_DIRECTORIES: Final = (PurePosixPath("/run"), PurePosixPath("/var/run"))
WILDCARDS: Final = frozenset("*?[")


def value_of(cmdline: Words, names: Sequence[str]) -> str | None:
    """Return the value of a flag, "" for one without; None where it is not given."""
    return next(values_of(cmdline, names), None)


def values_of(cmdline: Words, names: Sequence[str]) -> Iterator[str]:
    """Yield all values of a flag that may be given more than once."""
    words = iter(cmdline)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            yield value if equals else next(words, "")


def flags_of(spec: EngineSpec, start: Started) -> Flags:
    """Return what flags and variables say of runtimes; a flag wins over a variable."""
    by = spec.cmdline.runtimes
    if by is None:
        return Flags()
    default = value_of(start.words, (by.default,)) or start.environment.get(by.default_variable, "")
    values = tuple(values_of(start.words, (by.runtime,)))
    values = values or (start.environment.get(by.runtime_variable, ""),)
    pairs = (word.split(by.between) for value in values for word in value.split(","))
    return Flags(default, {pair[0]: pair[1] for pair in pairs if len(pair) > 1})


def path_of(cmdline: Words, names: Sequence[str]) -> PurePosixPath | None:
    """Return the path that a flag gives; None for one that is relative to who knows what."""
    named = value_of(cmdline, names)
    return PurePosixPath(named) if named and named.startswith("/") else None


def find_place(host: Host, place: Place, cmdline: Words, config: PurePosixPath) -> PurePosixPath | None:
    """Return where a flag, or else a key of the config, puts a place; None for none, and a relative one."""
    value: object = value_of(cmdline, (place.flag,)) if place.flag else None
    if value is None and place.key:
        with suppress(InstallerError):
            value = tree_of(host.read(config), config).get(place.key)
    return PurePosixPath(value, place.below) if isinstance(value, str) and value.startswith("/") else None


def explain_overruling(
    spec: EngineSpec, cmdline: Words, options: Options, whose: str = "it was started"
) -> Iterator[InstallerError]:
    """Yield why a flag, or a VAR=value, stands against what we would write; ``whose`` says which start."""
    by, name = spec.cmdline, spec.name
    for names in (by.config, by.drop_ins):
        path = value_of(cmdline, names)
        if path and not path.startswith("/"):
            problem = f"find the config of {name} ({whose} with {names[0]} {path}, a relative path)"
            remedy = Remedy(
                "start it with the absolute path, or name that with ", Option("config", "PATH", name)
            )
            yield InstallerError(problem, remedy=remedy, code="engine-flags")
    conflicts = dict(by.conflicts)
    if by.runtimes is not None and options.set_as_default:
        conflicts = {by.runtimes.default: "which must not be in its config as well", **conflicts}
        if value_of(cmdline, (by.runtimes.default_variable,)) not in {None, "", options.runtime_name}:
            conflicts[by.runtimes.default_variable] = "which wins over its config"
    found = [flag for flag in conflicts if value_of(cmdline, (flag,)) is not None]
    if found:
        words = ", and with ".join(f"{flag}, {conflicts[flag]}" for flag in found)
        move = f"move {' and '.join(found)} from its command line to its config, and restart it"
        yield InstallerError(f"configure {name} ({whose} with {words})", remedy=move, code="engine-flags")


def read_start(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> Started | None:
    """Return how the engine that runs was started; None where that is not known.

    ``unit`` is its own, where that was read already.
    """
    process = process_path(host, engine, unit)
    words = _strings(process / "cmdline") if process else ()
    if process is None or not words:
        return None
    # Of the unit where that of the process may not be read.
    environment = _pairs(_strings(process / "environ")) or _pairs(
        (unit or systemd.look_at_unit(host, engine.unit)).start.environment
    )
    kept = {name: value for name, value in environment.items() if not name.startswith(OF_PROCESS)}
    return Started(words[1:], kept, words[0], start_time_of(int(process.name), process.parent))


def next_start(host: Host, engine: EngineState, unit: systemd.UnitStart) -> Started | None:
    """Return how its unit will start an engine, which env or nice may do; None where that is not known."""
    try:
        environment = _pairs(unit.environment)
        for path in unit.environment_files:  # a name, an equals sign, a value, quoted or not, on each line
            file = host.read(PurePosixPath(path))
            lines = map(str.strip, file.content.decode(errors="replace").splitlines() if file else ())
            pairs = _pairs([line for line in lines if line[:1] not in {"#", ";"}])
            environment |= {name: value.strip().strip("\"'") for name, value in pairs.items()}
    except InstallerError:
        return None
    words = [*unit.words[:1]]
    for word in unit.words[1:]:  # as systemd makes them: a variable that is a word may become several words
        if word[:1] == "$" and word[1:].isidentifier():
            words += environment.get(word[1:], "").split()
        else:
            words.append(VARIABLE.sub(lambda found: environment.get(found[1], ""), word))
    for index, word in enumerate(words):
        program = word[:1] == "/" or not index
        if program and " " not in word and PurePosixPath(word).name == engine.spec.process:
            return Started(tuple(words[index + 1 :]), environment, word)
    return None


def drop_flags(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line but for some flags and their values."""
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag not in flags:
            yield word
        elif not equals:
            next(rest, "")


def process_path(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> Path | None:
    """Return the process of an engine, a directory of /proc; None where it is not seen."""
    if engine.pid is not None:
        return Path("/proc", str(engine.pid))
    # Without the host's pid namespace systemd tells the number, and the host's own /proc the rest.
    process = host.local_path(PROC) / str((unit or systemd.look_at_unit(host, engine.unit)).main_pid)
    # Our own /proc, of another pid namespace, has another process under that number, or none.
    return process if _strings(process / "comm") == (f"{engine.spec.process}\n",) else None


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _strings(here: Path) -> tuple[str, ...]:
    """Return the strings of a file of /proc; none where it cannot be read."""
    with suppress(OSError):
        return read_strings(here)
    return ()


def find_refusals(
    host: Host, engine: EngineState, unit: systemd.UnitStart, process: Path | None
) -> Iterator[InstallerError]:
    """Yield why an engine is not restarted by us; what cannot be looked at from here is no reason.

    ``process`` is its own, a directory of /proc; None where that is not seen.
    """

    def refuse(reason: str, remedy: str, code: Code = "unit-failed") -> InstallerError:
        problem = f"restart {engine.title} ({reason})"
        return InstallerError(problem, remedy=f"{remedy}, then run again", code=code)

    name = engine.unit
    override = f"in an override of {name} and daemon-reload"
    if unit.masked:
        yield refuse(f"its unit {name} is masked", f"run systemctl unmask {name} on the node")
    for lack in find_lacks(host, unit):
        yield refuse(f"{name} would not start it again: {lack}", f"correct {name}, or what it needs")
    for setting in unit.refuses:
        remedy = f"set RefuseManualStop=no and RefuseManualStart=no {override}"
        yield refuse(f"{name} has {setting}=yes, so systemd refuses that", remedy)
    for move in find_moves(engine):
        remedy = f"restart {name} at a time of your choice, or take that out of the unit"
        yield refuse(f"at its next start {name} gives it {move}", remedy, code="restart-moves-engine")
    with suppress(InstallerError):
        monitors = monitors_in_unit_of(process) if process and unit.kill_mode in KILLING else 0
        if monitors:
            live = f"{count(monitors, 'shim')} of live containers {'runs' if monitors == 1 else 'run'} in it"
            reason = f"{name} has KillMode={unit.kill_mode}, and {live}: a stop would kill them"
            yield refuse(reason, f"set KillMode=process {override}", code="restart-kills-containers")


def find_lacks(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield what is not there that a unit needs to start."""
    if unit.gone:
        yield "its unit file is gone"
    for find in (_find_conditions, _find_files, _find_programs):
        with suppress(InstallerError):
            yield from find(host, unit)


def _find_conditions(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    for condition in unit.conditions:
        path, kind = PurePosixPath(condition.value), condition.setting.removeprefix("Condition")
        judge = _JUDGES.get(kind.removeprefix("Assert"))
        # What the service itself has put there may go with it, and come back with it.
        passing = condition.negated and any(path.is_relative_to(place) for place in RUN_DIRECTORIES)
        if judge and path.is_absolute() and not passing and judge(host, path) is condition.negated:
            yield f"{condition} does not hold"


_JUDGES: Final[dict[str, Callable[[Host, PurePosixPath], bool]]] = {
    "PathExists": lambda host, path: host.kind(path) is not Kind.ABSENT,
    "PathIsDirectory": lambda host, path: host.kind(path) is Kind.DIRECTORY,
    "PathIsSymbolicLink": lambda host, path: host.link_target(path) is not None,
    "DirectoryNotEmpty": lambda host, path: bool(host.names(path)),
    "FileNotEmpty": lambda host, path: host.size(path) > 0,
    "FileIsExecutable": is_program,
}


def _find_files(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    for path in unit.needed:
        if not WILDCARDS & {*path} and host.kind(PurePosixPath(path)) is Kind.ABSENT:
            yield f"its EnvironmentFile {path} is not there"


def _find_programs(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield which programs are none; where systemd looks for a word is not known here."""
    for setting, words in (*unit.before, ("ExecStart", unit.words)):
        program = PurePosixPath("".join(words[:1]))
        if program.is_absolute() and not unit.elsewhere and not is_program(host, program):
            yield f"its {setting} {program} is no program"


def _list_words(engine: EngineState) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Return the words of its command line, and those that its unit will give it; None where not known."""
    now, later = engine.started, engine.next_start
    own = now is not None and now.runs(engine.spec.process)
    return engine.words if own else None, later.words if later else None


def find_moves(engine: EngineState) -> Iterator[str]:
    """Yield which places of an engine its unit has changed; those that files give are compared elsewhere."""
    (now, later), spec = _list_words(engine), engine.spec
    # The engine itself tells none of these two.
    files = {
        "config": (spec.cmdline.config, spec.config),
        "drop-ins": (spec.cmdline.drop_ins, spec.drop_ins.directory),
    }
    usual = {**{place: str(path) for place, (_, path) in files.items()}, **engine.served.places}
    flags_of = {**{place: flags for place, (flags, _) in files.items() if flags}, **spec.cmdline.places}
    for place, flags in flags_of.items() if later is not None else ():
        was, will = value_of(now or (), flags), value_of(later or (), flags)
        if (now is None and place in files) or (now is not None and was == will):
            continue
        was, will = was or usual.get(place), will or (usual[place] if place in files else None)
        if will and not (was and normpath(was) == normpath(will)):
            runs = was or "what its config says"
            yield f"{flags[0]} {will}, and it runs with {runs}"


def places_by_files(engine: EngineState) -> frozenset[str]:
    """Return which places the configs of an engine will give it: those that no flag does, if known."""
    now, later = _list_words(engine)
    words = now if later is None else later
    if words is None:
        return frozenset()
    places = engine.spec.cmdline.places
    return frozenset(place for place, flags in places.items() if value_of(words, flags) is None)


def unit_obstacle(host: Host, engine: EngineState) -> InstallerError | None:
    """Return why an engine could not be reloaded, before anything is changed; None where it could."""
    by_signal = engine.spec.reload is ReloadMethod.HUP
    if engine.spec.reload is ReloadMethod.ITSELF or (by_signal and engine.pid is not None):
        return None
    if not engine.unit:
        return without_unit(engine, "it runs outside any systemd service")
    try:
        state = systemd.read_unit(host, engine.unit)
    except InstallerError as error:
        return without_unit(engine, error.problem) if by_signal else error
    # Restarting a unit that is not the one that serves would start a second engine beside it.
    if state.active != "active":
        return without_unit(engine, f"its unit {engine.unit} is {state.active}, so another process answers")
    if by_signal and not state.can_reload:
        return without_unit(engine, f"its unit {engine.unit} has no ExecReload")
    return None


def unit_obstacles(
    host: Host, options: Options, engines: Iterable[EngineState]
) -> tuple[InstallerError, ...]:
    """Return why engines that serve could not be reloaded; nothing where they are not to be."""
    if options.restart_mode is RestartMode.NONE:
        return ()
    found = (unit_obstacle(host, engine) for engine in engines if engine.serving)
    return tuple(obstacle for obstacle in found if obstacle is not None)


def without_unit(engine: EngineState, reason: str) -> InstallerError:
    """Return why an engine cannot be reloaded by its unit."""
    verb = "reload" if engine.spec.reload is ReloadMethod.HUP else "restart"
    if engine.pid is not None:
        remedy: str = Remedy(
            "run it as a systemd service, or configure it unverified with ", Option("restart-mode", "none")
        )
    else:
        remedy = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"
    return InstallerError(f"{verb} {engine.title} ({reason})", remedy=remedy, code="engine-not-reloaded")
