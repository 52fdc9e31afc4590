"""Whether an engine may be restarted or reloaded by its unit: checks on what systemd tells of that."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Final

from msgspec import Struct

from installer.engines import ENGINES
from installer.engines.command_line import value_of
from installer.errors import Code, InstallerError, Option, Remedy
from installer.host import units
from installer.host.files import Host
from installer.host.processes import monitors_in_unit_of
from installer.host.programs import is_program
from installer.host.units import UnitStart
from installer.model.engine_spec import EngineSpec, ReloadMethod
from installer.model.facts import EngineState
from installer.model.files import Kind
from installer.model.options import Options, RestartMode

KILLING: Final = frozenset({"control-group", "mixed"})  # systemd.kill(5); the others leave the shims
RUN_DIRECTORIES: Final = (PurePosixPath("/run"), PurePosixPath("/var/run"))
WILDCARDS: Final = frozenset("*?[")
CONFIG: Final = "config"


class Restart(Struct, frozen=True):
    """What a restart of an engine would be.

    ``process`` is the one of the engine, a directory of /proc, ``now`` are the words of its command line,
    ``later`` those that its unit will give it; None where nobody knows.
    """

    host: Host
    engine: EngineState
    unit: UnitStart
    process: Path | None
    now: Sequence[str] | None
    later: Sequence[str] | None


def not_restarted(restart: Restart) -> InstallerError | None:
    """Return why an engine is not restarted by us; what cannot be looked at from here is no reason."""
    engine = restart.engine
    for check, first, code in _CHECKS:
        with suppress(InstallerError):
            if reason := next(check(restart), ""):
                remedy = f"{first.format(unit=engine.unit)}, then run again"
                return InstallerError(f"restart {engine.title} ({reason})", remedy=remedy, code=code)
    return None


def _check_mask(restart: Restart) -> Iterator[str]:
    if restart.unit.masked:
        yield f"its unit {restart.engine.unit} is masked"


def _check_conditions(restart: Restart) -> Iterator[str]:
    for condition in restart.unit.conditions:
        path, kind = PurePosixPath(condition.value), condition.setting.removeprefix("Condition")
        judge = _JUDGES.get(kind.removeprefix("Assert"))
        # What the service itself has put there may go with it, and come back with it.
        passing = condition.negated and any(path.is_relative_to(place) for place in RUN_DIRECTORIES)
        if judge and path.is_absolute() and not passing and judge(restart.host, path) is condition.negated:
            yield _no_start(restart, f"{condition} does not hold")


_JUDGES: Final[dict[str, Callable[[Host, PurePosixPath], bool]]] = {
    "PathExists": lambda host, path: host.kind(path) is not Kind.ABSENT,
    "PathIsDirectory": lambda host, path: host.kind(path) is Kind.DIRECTORY,
    "PathIsSymbolicLink": lambda host, path: host.link_target(path) is not None,
    "DirectoryNotEmpty": lambda host, path: bool(host.names(path)),
    "FileNotEmpty": lambda host, path: host.size(path) > 0,
    "FileIsExecutable": is_program,
}


def _check_files(restart: Restart) -> Iterator[str]:
    for path in restart.unit.needed:
        if not WILDCARDS & {*path} and restart.host.kind(PurePosixPath(path)) is Kind.ABSENT:
            yield _no_start(restart, f"its EnvironmentFile {path} is not there")


def _check_programs(restart: Restart) -> Iterator[str]:
    """Yield which programs are none; where systemd looks for a word is not known here."""
    for setting, words in (*restart.unit.before, ("ExecStart", restart.unit.words)):
        program = PurePosixPath("".join(words[:1]))
        if program.is_absolute() and not restart.unit.elsewhere and not is_program(restart.host, program):
            yield _no_start(restart, f"its {setting} {program} is no program")


def _no_start(restart: Restart, reason: str) -> str:
    return f"{restart.engine.unit} would not start it again: {reason}"


def _check_refusals(restart: Restart) -> Iterator[str]:
    for setting in restart.unit.refuses:
        yield f"{restart.engine.unit} has {setting}=yes, so systemd refuses that"


def _check_places(restart: Restart) -> Iterator[str]:
    """Yield which places of an engine its unit has changed; those that files give are compared elsewhere."""
    engine, now, row = restart.engine, restart.now, ENGINES[restart.engine.name]
    usual = {CONFIG: str(row.config), **(engine.serving.places if engine.serving else {})}
    flags_of = (
        {CONFIG: row.cmdline.config, **row.cmdline.places} if row.cmdline.config else row.cmdline.places
    )
    for place, flags in flags_of.items() if restart.later is not None else ():
        was, will = value_of(now or (), flags), value_of(restart.later or (), flags)
        if (now is None and place == CONFIG) or (now is not None and was == will):
            continue
        was, will = was or usual.get(place), will or (usual[CONFIG] if place == CONFIG else None)
        if will and not (was and normpath(was) == normpath(will)):
            runs = was or "what its config says"
            yield f"at its next start {engine.unit} gives it {flags[0]} {will}, and it runs with {runs}"


def _check_containers(restart: Restart) -> Iterator[str]:
    mode, process = restart.unit.kill_mode, restart.process
    if mode in KILLING and process is not None and (count := monitors_in_unit_of(process)):
        shims = f"{count} shims of live containers run in it: a stop would kill them"
        yield f"{restart.engine.unit} has KillMode={mode}, and {shims}"


_PUT_RIGHT: Final = "correct {unit}, or what it needs"
_CHECKS: Final[tuple[tuple[Callable[[Restart], Iterator[str]], str, Code], ...]] = (
    (_check_mask, "say systemctl unmask {unit} on the node", "unit-failed"),
    (_check_conditions, _PUT_RIGHT, "unit-failed"),
    (_check_files, _PUT_RIGHT, "unit-failed"),
    (_check_programs, _PUT_RIGHT, "unit-failed"),
    (
        _check_refusals,
        "say RefuseManualStop=no and RefuseManualStart=no in an override of {unit} and daemon-reload",
        "unit-failed",
    ),
    (
        _check_places,
        "restart {unit} at a time of your choice, or take that out of the unit",
        "restart-moves-engine",
    ),
    (
        _check_containers,
        "say KillMode=process in an override of {unit} and daemon-reload",
        "restart-kills-containers",
    ),
)


def places_by_files(
    spec: EngineSpec, now: Sequence[str] | None, later: Sequence[str] | None
) -> frozenset[str]:
    """Return which places the configs of an engine will give it: those that no flag does, if known."""
    words = now if later is None else later
    if words is None:
        return frozenset()
    return frozenset(place for place, flags in spec.cmdline.places.items() if value_of(words, flags) is None)


def unit_obstacle(host: Host, engine: EngineState) -> InstallerError | None:
    """Return why an engine could not be reloaded, before anything is changed; None where it could."""
    by_signal = ENGINES[engine.name].reload is ReloadMethod.HUP
    if ENGINES[engine.name].reload is ReloadMethod.ITSELF or (by_signal and engine.pid is not None):
        return None
    if not engine.unit:
        return without_unit(engine, "it runs outside any systemd service")
    try:
        state = units.read(host, engine.unit)
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
    verb = "reload" if ENGINES[engine.name].reload is ReloadMethod.HUP else "restart"
    if engine.pid is not None:
        remedy: str = Remedy(
            "run it as a systemd service, or configure it unproven with ", Option("restart-mode", "none")
        )
    else:
        remedy = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"
    return InstallerError(f"{verb} {engine.title} ({reason})", remedy=remedy, code="engine-not-reloaded")
