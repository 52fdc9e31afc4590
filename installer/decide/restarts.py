"""Why an engine is not restarted: the start would bring more into force than our configs, or end more."""

from collections.abc import Iterable, Iterator, Sequence
from posixpath import normpath
from typing import Final

from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import EngineStoppedError, InstallerError, NotIdleError
from installer.decide.facts import NAMED, EngineFacts, Facts
from installer.decide.options import Options, RestartMode
from installer.decide.steps import Reload, Step

DUE: Final = "its restart, which waits until it creates no container (--restart-mode when-idle)"
LEFT: Final = "that it reads its configs again, which --restart-mode none leaves to you"
SHORT: Final = 12  # characters of an id, as crictl and docker print it


def waits(engine: EngineFacts, options: Options) -> bool:
    """Tell whether an engine is not restarted now, for it is creating containers."""
    restarted = ENGINES[engine.name].reload is ReloadMethod.RESTART
    return restarted and options.restart_mode is RestartMode.WHEN_IDLE and bool(engine.creating)


def is_left(engine: EngineFacts, reload: Reload, options: Options) -> bool:
    """Tell whether an engine that answers does not serve yet what it is to, and its owner restarts it."""
    left = options.restart_mode is RestartMode.NONE and engine.hook is None
    return left and engine.serving is not None and not engine.serves(reload)


def not_idle(engine: EngineFacts, creating: Sequence[str]) -> NotIdleError:
    """Return why the restart of an engine is left for later."""
    names = ", ".join(each[:SHORT] for each in sorted(creating)[:NAMED])
    more = f" and {len(creating) - NAMED} more" if len(creating) > NAMED else ""
    return NotIdleError(
        f"restart {engine.title} yet (it has created containers that are not started: {names}{more})",
        remedy="wait for run to find none, or restart it at once with toolkit-installer reconcile; where "
        "no run waits, run install again",
    )


def refused(
    engine: EngineFacts | None, steps: Iterable[Step], after: Effect | None, facts: Facts
) -> Iterator[InstallerError]:
    """Yield why the steps may not restart an engine, which has ``after`` in force then."""
    if engine is None or not any(isinstance(step, Reload) for step in steps):
        return
    generated = ENGINES[engine.name].generated
    if generated and generated.needs_root and facts.contents.get(engine.config) is None:
        yield not_started_again(engine, f"{engine.config} is not there")
    if engine.not_restarted is not None:
        yield engine.not_restarted
    elif after is not None:
        yield from elsewhere(engine, after)


def elsewhere(engine: EngineFacts, after: Effect) -> Iterator[InstallerError]:
    """Yield why an engine would look for its containers, or be looked for, at another place than now.

    Somebody has written so to its config since its start. Nobody knows of one that does not tell its places.
    """
    now = engine.serving.places if engine.serving else {}
    for place in sorted(engine.places_by_files & now.keys() & after.places.keys()):
        was, will = now[place], after.places[place]
        # containerd tells root and state without a slash at the end, and prints them as they are written.
        if will.startswith("/") and normpath(was) != normpath(will):
            yield moved(engine, f"its config gives it the {place} {will}", was, "its config")


def moved(engine: EngineFacts, what: str, was: str, where: str) -> InstallerError:
    """Return why an engine is not restarted that would have another config, root, state or address then."""
    return InstallerError(
        f"restart {engine.title} (at its next start {what}, and it runs with {was})",
        remedy=f"restart {engine.unit} at a time of your choice, or take that out of {where}, then run again",
        code="restart-moves-engine",
    )


def not_started_again(engine: EngineFacts, reason: str) -> InstallerError:
    """Return why an engine is not restarted whose unit was edited since its start."""
    return InstallerError(
        f"restart {engine.title} ({engine.unit} would not start it again: {reason})",
        remedy=f"correct {engine.unit}, or what it needs, then run again",
        code="unit-failed",
    )


def masked(engine: EngineFacts) -> InstallerError:
    """Return why an engine is not restarted whose unit systemd starts for nobody."""
    return InstallerError(
        f"restart {engine.title} (its unit {engine.unit} is masked)",
        remedy=f"say systemctl unmask {engine.unit} on the node, then run again",
        code="unit-failed",
    )


def not_by_hand(engine: EngineFacts, setting: str) -> InstallerError:
    """Return why an engine is not restarted whose unit only others may start or stop."""
    return InstallerError(
        f"restart {engine.title} ({engine.unit} has {setting}=yes, so systemd refuses that)",
        remedy=f"say {setting}=no in an override of {engine.unit} and daemon-reload, then run again",
        code="unit-failed",
    )


def ending_containers(engine: EngineFacts, mode: str, monitors: int) -> InstallerError:
    """Return why an engine is not restarted whose unit takes the monitors of live containers with it."""
    return InstallerError(
        f"restart {engine.title} ({engine.unit} has KillMode={mode}, and {monitors} shims of live containers "
        "run in it: a stop would kill them)",
        remedy=f"say KillMode=process in an override of {engine.unit} and daemon-reload, then run again",
        code="restart-kills-containers",
    )


def stopped_meanwhile(engine: EngineFacts) -> EngineStoppedError:
    """Return why nobody knows whether an engine would serve our runtimes."""
    return EngineStoppedError(
        f"prove that {engine.title} serves our runtimes (somebody has stopped {engine.unit})",
        remedy=f"start {engine.unit}, then run again",
        code="engine-not-proven",
    )
