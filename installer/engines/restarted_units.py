"""The units that systemd restarts along with an engine's unit: a restart is done when they are active again.

systemd restarts the active units that have Requires=, BindsTo=, PartOf= or Requisite= of the engine's unit.
It starts no unit that was down before, so a roll-back names the units that were active before the failed
plan.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from installer.engines.stopped_units import find_restarted_units, find_stopped_units
from installer.errors import InstallerError, OtherUnitError
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.engine import EngineState
from installer.model.steps import START_UNIT


def list_units_along(host: Host, engine: EngineState, wanted: Iterable[str]) -> dict[str, systemd.Unit]:
    """List the units that have to be active after a restart of an engine's unit, each as it is now.

    Args:
        host: The node.
        engine: The engine.
        wanted: The units that have to be active although they may be down now.
    """
    unit = systemd.look_at_unit(host, engine.unit)
    stopped_units = find_stopped_units(host, engine.unit, unit)
    names = [each.name for each in find_restarted_units(stopped_units)]
    return {name: systemd.look_at_unit(host, name) for name in dict.fromkeys((*names, *wanted))}


def allow_starts(host: Host, units: Iterable[str]) -> None:
    """Reset the start limits of units: Debian's docker.service may start three times in a minute."""
    for unit in units:
        with suppress(InstallerError):  # systemd does not know a stopped unit that it has unloaded
            unit_jobs.reset_failed(host, unit)


def await_units(
    host: Host, engine: EngineState, units: Mapping[str, systemd.Unit], began_s: float, patience: Patience
) -> None:
    """Wait until units are active again after the restart of an engine; start a unit once if it is down.

    Args:
        host: The node.
        engine: The engine.
        units: The units, each as it was before the restart.
        began_s: The begin of the restart, in seconds of the wall clock.
        patience: The time limits: ``start_s`` for all units together.

    Raises:
        OtherUnitError: units are not active in time; the sentence is about the first one.
    """
    deadline = time.monotonic() + patience.start_s
    reasons = {}
    for name, before in units.items():
        reason = unit_jobs.await_active_again(
            host, name, before, began_s=began_s, deadline=deadline, check=patience.check
        )
        if reason:
            reasons[name] = reason
    if not reasons:
        return
    name, reason = next(iter(reasons.items()))
    problem = f"restart {engine.title} together with {name} ({reason})"
    error = OtherUnitError(problem, remedy=f"{START_UNIT.format(unit=name)}, then run again")
    error.units = tuple(reasons)
    raise error


def list_down(host: Host, units: Iterable[str]) -> dict[str, str]:
    """Return the units that have failed, or fail again and again, each with its state in systemd's words.

    A unit that is inactive was left so by its owner: systemd itself tries to start it.
    """
    down = {}
    for unit in units:
        now = systemd.look_at_unit(host, unit)
        if now.active == "failed" or now.sub == systemd.AGAIN:
            down[unit] = f"{now.active}/{now.sub}"
    return down
