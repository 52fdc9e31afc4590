"""Whether an engine could be reloaded by its unit, before anything is changed."""

from collections.abc import Iterable

from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.options import Options, RestartMode
from installer.host.files import Host
from installer.record import units


def unit_obstacle(host: Host, facts: EngineFacts) -> InstallerError | None:
    """Return why an engine could not be reloaded, before anything is changed; None where it could."""
    by_signal = ENGINES[facts.name].reload is ReloadMethod.HUP
    if ENGINES[facts.name].reload is ReloadMethod.ITSELF or (by_signal and facts.pid is not None):
        return None
    if not facts.unit:
        return without_unit(facts, "it runs outside any systemd service")
    try:
        state = units.state(host, facts.unit)
    except InstallerError as error:
        return without_unit(facts, error.problem) if by_signal else error
    # Restarting a unit that is not the one that serves would start a second engine beside it.
    if state.active != "active":
        return without_unit(facts, f"its unit {facts.unit} is {state.active}, so something else serves")
    if by_signal and not state.can_reload:
        return without_unit(facts, f"its unit {facts.unit} has no ExecReload")
    return None


def unit_obstacles(
    host: Host, options: Options, engines: Iterable[EngineFacts]
) -> tuple[InstallerError, ...]:
    """Return why engines that serve could not be reloaded; nothing where they are not to be."""
    if options.restart_mode is RestartMode.NONE:
        return ()
    found = (unit_obstacle(host, engine) for engine in engines if engine.serving)
    return tuple(obstacle for obstacle in found if obstacle is not None)


def without_unit(facts: EngineFacts, reason: str) -> InstallerError:
    """Return why an engine cannot be reloaded by its unit."""
    verb = "reload" if ENGINES[facts.name].reload is ReloadMethod.HUP else "restart"
    if facts.pid is not None:
        remedy: str = Remedy(
            "run it as a systemd service, or configure it unproven with ", Option("restart-mode", "none")
        )
    else:
        remedy = "run with the host's pid namespace (hostPID: true), for its process cannot be seen from here"
    return InstallerError(f"{verb} {facts.title} ({reason})", remedy=remedy, code="engine-not-reloaded")
