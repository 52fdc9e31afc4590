"""The reload of an engine: the begin, and the proof that the new config is in force.

An engine reads a changed config on a signal, at a restart of its unit, or restarts itself: a class for each.
"""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from installer.engines.apis import api_of
from installer.engines.ask import ASK_S, ask
from installer.engines.config_files import write_config
from installer.engines.reload_plan import postpone, serves_as_before
from installer.engines.restarted_units import allow_starts, await_units, list_units_along
from installer.engines.startup import find_unit_obstacle, refuse_without_unit
from installer.errors import EngineStoppedError, InstallerError, Option, Remedy
from installer.host import processes, systemd, unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.effective import EffectiveConfig
from installer.model.engine import SHORT_ID, Engine, EngineState
from installer.model.steps import Reload, WriteConfig

POLL_S: Final = 0.01
NO_RELOAD: Final = "it has completed no reload since its signal"


def reload(  # noqa: PLR0913 - an engine, its step, its limits, and the units beside it
    host: Host,
    engine: EngineState,
    step: Reload,
    patience: Patience,
    last_look: Callable[[], None],
    *,
    wanted_units: Sequence[str] = (),
) -> bool:
    """Make a running engine read its config, and wait until the engine serves the runtimes of ``step``.

    Args:
        host: The node.
        engine: The engine.
        step: The runtimes that the engine has to serve, and the runtimes forbidden to the engine.
        patience: The time limits.
        last_look: Called right before the reload, after all waiting for containers; may raise.
        wanted_units: The units that have to be active after a restart of the unit, besides those that
            systemd restarts along.

    Returns:
        Whether the engine was reloaded: an engine that may rest stays stopped after its owner's stop.

    Raises:
        PendingError: The engine still restarts.
        OtherUnitError: A unit that systemd restarts along with the engine's unit is not active in time.
        InstallerError: The engine cannot be reloaded, or does not serve the runtimes of ``step`` in time.
    """
    method = _choose_method(engine.kind)
    return method(host, engine, step, patience, wanted_units).carry_out(last_look)


def _choose_method(kind: Engine) -> type["_EngineReload"]:
    """Choose the class by how an engine reads a changed config."""
    if kind.reads_config_on_signal:
        return _ReloadBySignal
    if kind.restarts_itself:
        return _ReloadByItself
    return _ReloadByRestart


def limit_s(kind: Engine, patience: Patience) -> float:
    """Return the time for an engine to serve the runtimes of a step, in seconds."""
    return patience.start_s if patience.hurried else max(patience.start_s, kind.start_s)


class _EngineReload(ABC):
    """The reload of an engine: the wait for the right moment, the begin, and the proof."""

    # An engine that goes on shows its other settings a moment later; a restarted engine shows all at once.
    shows_rest_later = False

    def __init__(
        self, host: Host, engine: EngineState, step: Reload, patience: Patience, wanted_units: Sequence[str]
    ) -> None:
        self.host = host
        self.engine = engine
        self.step = step
        self.patience = patience
        self.deadline = time.monotonic() + limit_s(engine.kind, patience)
        self.began_s = 0.0  # of the wall clock
        self.unit_before: systemd.Unit | None = None  # the unit before its restart; None without a restart
        self.answer = engine  # the engine with its latest answer
        self.wanted_units = wanted_units
        # The units that have to be active after a restart of the unit, each as it was before.
        self.units_along: dict[str, systemd.Unit] = {}

    def carry_out(self, last_look: Callable[[], None]) -> bool:
        """Reload the engine; tell whether the engine was reloaded, as ``reload`` does."""
        if not self.await_idle_moment():
            return False
        last_look()
        self.began_s = time.time()
        self.begin(replace(self.patience, start_s=self.deadline - time.monotonic()))
        if self.unit_before is not None and not self.patience.hurried:
            self.deadline = time.monotonic() + limit_s(self.engine.kind, self.patience)
        is_reloaded = self.prove()
        self.await_units_along()
        return is_reloaded

    def restart_unit(self, patience: Patience) -> None:
        """Restart the engine's unit, and with it the units that systemd restarts along."""
        self.units_along = list_units_along(self.host, self.engine, self.wanted_units)
        allow_starts(self.host, self.units_along)
        self.unit_before = unit_jobs.restart(self.host, self.engine.unit, patience)

    def await_units_along(self) -> None:
        """Wait until the units are active that systemd restarts along.

        Raises:
            OtherUnitError: a unit is not active in time.
        """
        patience = self.patience
        if patience.hurried:
            patience = replace(patience, start_s=max(1.0, self.deadline - time.monotonic()))
        await_units(self.host, self.engine, self.units_along, self.began_s, patience)

    def await_idle_moment(self) -> bool:
        """Wait until the reload disturbs no container; False if the engine is to stay stopped."""
        return True

    @abstractmethod
    def begin(self, patience: Patience) -> None:
        """Begin the reload; set ``unit_before`` if a unit is restarted."""

    def may_start_later(self) -> bool:
        """Tell whether the reload itself may be yet to come; the present answer proves nothing then."""
        return False

    def find_served(self, timeout_s: float) -> EffectiveConfig | None:
        """Ask the engine; return the config in force if the config satisfies the step."""
        self.answer = ask(self.host, self.engine, timeout_s=timeout_s)
        serving = self.answer.serving
        if serving is None or not serving.ready or not self.step.satisfied_by(serving):
            return None
        return serving

    def is_hopeless(self, unit: systemd.Unit) -> bool:
        """Tell whether waiting longer cannot help: CRI did not load, or the process has ended.

        Args:
            unit: The engine's unit, seen after the latest answer.
        """
        if self.answer.failed or self.answer.disabled:
            return True
        return self.answer.stopped and unit.has_ended

    def prove(self) -> bool:
        """Wait until the engine's config satisfies the step.

        Returns:
            True if it does. False if the engine stays as it is: its owner has stopped it, or it has refused a
            reload that it does not need.

        Raises:
            InstallerError: the engine serves other runtimes no more, fails, or does not obey in time.
        """
        while True:
            # Asked before the engine answers: only an answer from after the reload proves anything.
            may_start_later = self.may_start_later()
            left_s = self.deadline - time.monotonic()
            # At least a second, although the time may be over: a failure is described by the last answer.
            served = self.find_served(timeout_s=max(1.0, min(ASK_S, left_s)))
            if served is not None and not may_start_later:
                lost = self.step.lost_in(served)
                if not lost:
                    return True
                if not self.shows_rest_later or time.monotonic() > self.deadline:
                    raise self.explain_loss(lost)

            unit = systemd.Unit()
            if self.answer.stopped:
                unit = systemd.look_at_unit(self.host, self.engine.unit)
            if self.unit_before is None and unit.is_stopped_by_owner:
                _accept_stop(self.engine, self.patience)
                return False
            self.patience.check()  # before anything is called a failure: the question may have lasted long

            # By the same look: a stop by the owner is no failure because a second look shows another state.
            is_hopeless = self.is_hopeless(unit)
            is_late = time.monotonic() > self.deadline
            if served is not None and may_start_later:
                is_late = False  # at the deadline nothing may start later: the next answer decides
            if is_late and self.needs_no_reload():
                reason = "it serves already what it should, so its config was put back without a reload"
                log.warning("reload refused by the engine", engine=self.engine.name, reason=reason)
                return False
            if is_late or (is_hopeless and not may_start_later):
                raise self.explain_failure(is_late=is_late)
            time.sleep(POLL_S)

    def needs_no_reload(self) -> bool:
        """Tell whether the engine has not obeyed, and has in force all that it should have."""
        return False

    def explain_loss(self, lost: Iterable[str]) -> InstallerError:
        """Make the error of an engine with our runtimes, but with other runtimes lost or changed."""
        title = self.engine.title
        return InstallerError(
            f"verify that {title} serves what it served before (missing or changed: {', '.join(lost)})",
            remedy=f"look at the config of {title}",
            code="others-not-served",
        )

    def explain_failure(self, *, is_late: bool) -> InstallerError:
        """Make the error of an engine without the config wanted by the step."""
        reason, remedy = self.find_reason()
        wanted = "serves our runtimes" if self.step.present else "no longer serves our runtimes"
        when = ""
        if is_late:
            when = f" within {limit_s(self.engine.kind, self.patience):g} s"
        problem = f"verify that {self.engine.title} {wanted}{when} ({reason})"
        return InstallerError(problem, remedy=remedy, code="engine-not-proven")

    def find_reason(self) -> tuple[str, Remedy]:
        """Find the reason of a failure, in the engine's own words if known, and a remedy."""
        reason = _describe(self.answer, self.step)
        if self.answer.stopped:
            unit = self.engine.unit
            start_failure = unit_jobs.why_not_started(self.host, unit, self.began_s, self.unit_before)
            unit_end = systemd.describe_unit_end(self.host, unit)
            reason = ": ".join(filter(None, (unit_end, start_failure))) or reason
        remedy = Remedy(
            f"see the log of {self.engine.name}, and give ", Option("timeout"), " more seconds if it is slow"
        )
        return reason, remedy


class _ReloadByRestart(_EngineReload):
    """The restart of the engine's unit, as soon as the engine creates no container."""

    def await_idle_moment(self) -> bool:
        """Wait until no container is in creation; False if the engine is to stay stopped."""
        await_idle(self.host, self.engine, self.patience, when_idle=self.step.when_idle)
        if not self.patience.may_rest:
            return True
        unit = systemd.look_at_unit(self.host, self.engine.unit)
        if unit.is_stopped_by_owner:
            _accept_stop(self.engine, self.patience)
            return False
        return True

    def begin(self, patience: Patience) -> None:
        """Restart the unit."""
        if not self.engine.unit:
            raise refuse_without_unit(self.engine, "it runs outside any systemd service")
        self.restart_unit(patience)


class _ReloadByItself(_EngineReload):
    """The wait for an engine that watches its configs and restarts itself some time after a write."""

    socket_changed_s = 0.0

    def begin(self, patience: Patience) -> None:  # noqa: ARG002 - nothing is begun
        """Remember the present socket: the engine makes a new socket at its restart."""
        self.socket_changed_s = self.host.changed_s(self.engine.socket)
        log.info("waiting for the engine to restart itself", engine=self.engine.name)

    def may_start_later(self) -> bool:
        """Tell whether the socket is still the old socket; at the deadline no restart was needed."""
        if time.monotonic() >= self.deadline:
            return False
        return self.host.changed_s(self.engine.socket) == self.socket_changed_s


class _ReloadBySignal(_EngineReload):
    """The SIGHUP to an engine that goes on; an engine with a failed unit is restarted."""

    shows_rest_later = True
    has_reloaded = False  # since the signal

    def begin(self, patience: Patience) -> None:
        """Send the signal to the answering process; let its unit send the signal to an unseen process.

        Raises:
            InstallerError: nothing answers, and the unit has not failed either.
        """
        engine = self.engine
        greeting = api_of(engine.kind).greeting
        peer = processes.peer_of(self.host.local_path(engine.socket), greeting=greeting, timeout_s=ASK_S)
        if isinstance(peer, processes.Peer):
            processes.signal(peer, signal.SIGHUP, expected=frozenset({engine.kind.process}))
            return
        if isinstance(peer, processes.Unseen):
            obstacle = find_unit_obstacle(self.host, engine)
            if obstacle is not None:
                raise obstacle
            unit_jobs.reload(self.host, engine.unit, timeout_s=patience.start_s)
            return

        unit = systemd.look_at_unit(self.host, engine.unit)
        if engine.serving is not None or not unit.has_ended:
            problem = f"reload {engine.title} (nothing answers on {engine.socket})"
            remedy = f"check that {engine.title} is well"
            raise InstallerError(problem, remedy=remedy, code="engine-not-answering")
        if unit.is_stopped_by_owner:
            _accept_stop(engine, patience)
            return
        # The unit has failed, perhaps because of the config that was mended now.
        self.restart_unit(patience)

    def find_served(self, timeout_s: float) -> EffectiveConfig | None:
        """Return the config in force if the step is satisfied, and the engine has obeyed the signal."""
        if self.unit_before is not None:
            return super().find_served(timeout_s)
        # Asked first: the config that dockerd serves before the end of its reload may be gone after that.
        self.has_reloaded = self._has_reloaded(timeout_s)
        served = super().find_served(timeout_s)
        return served if self.has_reloaded else None

    def _has_reloaded(self, timeout_s: float) -> bool:
        """Tell whether the engine has read its config since the signal: the engine obeys some time later."""
        socket = self.host.local_path(self.engine.socket)
        with suppress(InstallerError):
            if api_of(self.engine.kind).count_reloads(socket, self.began_s, timeout_s=timeout_s):
                return True
        # An engine that was started since has read its config then, and knows of no reload.
        pidfile = self.engine.kind.pidfile
        if pidfile is None:
            return False
        return self.host.changed_s(pidfile) > self.began_s

    def is_hopeless(self, unit: systemd.Unit) -> bool:  # noqa: ARG002 - the same for any unit
        """Answer that waiting may always help: the engine goes on, or its unit is restarted."""
        return False

    def needs_no_reload(self) -> bool:
        """Tell whether dockerd has refused the reload of an undo that changes nothing in force.

        dockerd refuses each reload of a config with certain flaws. The refusal does no harm if dockerd serves
        the same as before, none of our runtimes among it.
        """
        serving = self.answer.serving
        if self.has_reloaded or self.unit_before is not None or not self.patience.may_rest:
            return False
        if serving is None or not self.step.satisfied_by(serving) or self.step.lost_in(serving):
            return False
        return serves_as_before(self.engine, serving)

    def find_reason(self) -> tuple[str, Remedy]:
        """Find the reason of a failure; an engine that has read its config may read another file."""
        reason, remedy = super().find_reason()
        if self.has_reloaded:
            reason = f"it has read its config since, and {reason}"
            remedy = Remedy(
                f"if that config is not {self.engine.config}, name it with ",
                Option("config", "PATH", self.engine.name),
            )
        elif self.unit_before is None and self.answer.serving is not None and reason != NO_RELOAD:
            reason = f"{NO_RELOAD}, and {reason}"
        return reason, remedy


def _accept_stop(engine: EngineState, patience: Patience) -> None:
    """Leave an engine stopped that its owner has stopped.

    Raises:
        EngineStoppedError: our runtimes have to be served.
    """
    if not patience.may_rest:
        problem = f"verify that {engine.title} serves our runtimes ({engine.unit} was stopped)"
        remedy = f"start {engine.unit}, then run again"
        raise EngineStoppedError(problem, remedy=remedy, code="engine-not-proven")
    log.info("engine left stopped", engine=engine.name, reason="it reads its configs when it starts")


def _describe(answer: EngineState, step: Reload) -> str:
    """Describe the runtimes served by an engine, or give the reason of its silence."""
    serving = answer.serving
    if serving is None:
        return answer.silence_reason
    if serving.ready and step.satisfied_by(serving):
        return NO_RELOAD

    listed = ", ".join(f"{name}={binary or '(built in)'}" for name, binary in serving.binaries.items())
    description = f"it serves {listed or 'no runtime'}, default {serving.default or '(none)'}"
    wrong = [name for name in step.wrong_in(serving) if name in serving.handlers]
    if wrong:
        description += f", with other settings than asked for in {', '.join(wrong)}"
    if not serving.ready:
        description += ", and reports that it is not ready"
    return description


IDLE_S: Final = 10.0
IDLE_ASK_S: Final = 1.0
IDLE_POLL_S: Final = 0.1


def await_idle(host: Host, engine: EngineState, patience: Patience, *, when_idle: bool = False) -> None:
    """Wait until no container is in state CREATED: a restart strands such a container (gpu-operator#991).

    Our own container is in state CREATED until the end of its start (gpu-operator#456). A container in state
    CREATED for longer is stuck already, and no reason to wait for ever.

    Raises:
        NotYetError: ``when_idle`` is true, and the engine goes on creating containers.
    """
    deadline = time.monotonic() + min(IDLE_S, patience.start_s / 2)
    while creating := _list_creating(host, engine):
        if time.monotonic() > deadline and when_idle:
            raise postpone(replace(engine, creating=creating))
        if time.monotonic() > deadline:
            ids = [container_id[:SHORT_ID] for container_id in creating]
            reason = "not started before the restart, which begins now; delete their pods if they stay so"
            log.warning("containers stuck in CREATED", engine=engine.name, containers=ids, reason=reason)
            return
        patience.check()
        time.sleep(IDLE_POLL_S)


def _list_creating(host: Host, engine: EngineState) -> tuple[str, ...]:
    """List the ids of the containers that a restart would strand; none if the engine does not answer."""
    socket = host.local_path(engine.socket)
    try:
        return api_of(engine.kind).list_creating(socket, timeout_s=IDLE_ASK_S)
    except InstallerError:  # the engine is down or hangs: a restart could disturb nothing
        return ()


def with_creating(host: Host, engines: Iterable[EngineState]) -> tuple[EngineState, ...]:
    """Fill in the containers to be stranded by a restart, for engines reloaded by a restart."""
    known: list[EngineState] = []
    for engine in engines:
        if engine.kind.is_restarted:
            known.append(replace(engine, creating=_list_creating(host, engine)))
        else:
            known.append(engine)
    return tuple(known)


def write_once_idle(
    host: Host, write: WriteConfig, engines: Mapping[str, EngineState], patience: Patience
) -> bool:
    """Write or remove a config; return whether the file was another one before.

    Before a write to a self-restarting engine, wait as before a restart.
    """
    engine = engines.get(write.engine)
    if engine is not None and engine.kind.restarts_itself:
        await_idle(host, engine, patience)
    return write_config(host, write)
