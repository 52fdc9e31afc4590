"""Whether an engine may be restarted or reloaded by its unit: checks on what systemd tells of that."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from installer.engines.command_line import value_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import systemd
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.programs import is_program
from installer.model.engine_spec import ReloadMethod
from installer.model.facts import EngineState, count
from installer.model.files import Kind
from installer.model.options import Options, RestartMode

KILLING: Final = frozenset({"control-group", "mixed"})  # systemd.kill(5); the others leave the shims
RUN_DIRECTORIES: Final = (PurePosixPath("/run"), PurePosixPath("/var/run"))
WILDCARDS: Final = frozenset("*?[")
CONFIG: Final = "config"


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
        yield refuse(f"its unit {name} is masked", f"say systemctl unmask {name} on the node")
    for lack in find_lacks(host, unit):
        yield refuse(f"{name} would not start it again: {lack}", f"correct {name}, or what it needs")
    for setting in unit.refuses:
        remedy = f"say RefuseManualStop=no and RefuseManualStart=no {override}"
        yield refuse(f"{name} has {setting}=yes, so systemd refuses that", remedy)
    for move in _find_moves(engine):
        remedy = f"restart {name} at a time of your choice, or take that out of the unit"
        yield refuse(f"at its next start {name} gives it {move}", remedy, code="restart-moves-engine")
    with suppress(InstallerError):
        monitors = monitors_in_unit_of(process) if process and unit.kill_mode in KILLING else 0
        if monitors:
            live = f"{count(monitors, 'shim')} of live containers {'runs' if monitors == 1 else 'run'} in it"
            reason = f"{name} has KillMode={unit.kill_mode}, and {live}: a stop would kill them"
            yield refuse(reason, f"say KillMode=process {override}", code="restart-kills-containers")


def find_lacks(host: Host, unit: systemd.UnitStart) -> Iterator[str]:
    """Yield what is not there that a unit needs to start."""
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


def _find_moves(engine: EngineState) -> Iterator[str]:
    """Yield which places of an engine its unit has changed; those that files give are compared elsewhere."""
    (now, later), spec = _list_words(engine), engine.spec
    usual = {CONFIG: str(spec.config), **(engine.serving.places if engine.serving else {})}
    flags_of = {**({CONFIG: spec.cmdline.config} if spec.cmdline.config else {}), **spec.cmdline.places}
    for place, flags in flags_of.items() if later is not None else ():
        was, will = value_of(now or (), flags), value_of(later or (), flags)
        if (now is None and place == CONFIG) or (now is not None and was == will):
            continue
        was, will = was or usual.get(place), will or (usual[CONFIG] if place == CONFIG else None)
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
        return without_unit(engine, f"its unit {engine.unit} is {state.active}, so something else serves")
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
            "run it as a systemd service, or configure it unproven with ", Option("restart-mode", "none")
        )
    else:
        remedy = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"
    return InstallerError(f"{verb} {engine.title} ({reason})", remedy=remedy, code="engine-not-reloaded")
