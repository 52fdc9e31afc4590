"""The running engines: what one says it serves, and how it is brought to serve what its config says."""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES, cri
from installer.engines.cri import CriDisabledError, CriFailedError
from installer.engines.docker import api as dockerd
from installer.engines.reloading import not_idle
from installer.engines.restart_checks import unit_obstacle, without_unit
from installer.engines.write_config import write_config
from installer.errors import EngineStoppedError, InstallerError, Option, Remedy
from installer.host import processes, units
from installer.host.events import log
from installer.host.failed_start import why_not_started
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import NotServing, Peer, Silent, Unseen
from installer.host.systemd import UnitState
from installer.host.units import Patience
from installer.model.effective import EffectiveConfig
from installer.model.engine_spec import Api, EngineSpec, ReloadMethod
from installer.model.facts import EngineState
from installer.model.steps import Reload, WriteConfig

ASK_S: Final = 5.0
POLL_S: Final = 0.01
GREETINGS: Final = {Api.DOCKER: processes.HTTP_PING, Api.CRI: processes.HTTP2_PREFACE}


class Answer(Struct, frozen=True):
    """What was found behind an engine's socket.

    ``serving`` is None, and ``silence`` says why, where there is no usable answer; ``stopped``
    that nobody listens, ``disabled`` that it runs without CRI on purpose, ``failed`` that its CRI
    did not load and will not. ``another`` says why it is not the engine whose API it answers, ``remedy``
    what lets us connect, where we may not.
    """

    peer: Peer | None = None
    serving: EffectiveConfig | None = None
    version: tuple[int, ...] | None = None
    silence: str = ""
    remedy: str = ""
    stopped: bool = False
    disabled: bool = False
    failed: bool = False
    another: str = ""


def is_held(host: Host, spec: EngineSpec, socket: PurePosixPath, unit: str) -> bool:
    """Tell whether whoever connects to an engine would start it, for systemd holds the socket meanwhile.

    Its owner has stopped it then. Of our engines Docker alone comes with such a unit.
    """
    return spec.api is Api.DOCKER and host.exists(socket) and units.held_for(host, unit, socket)


def ask(spec: EngineSpec, socket: Path, *, timeout_s: float = ASK_S) -> Answer:
    """Ask the engine behind ``socket`` who it is and what it serves."""
    greeting = GREETINGS[spec.api]
    try:
        peer = processes.peer_of(socket, greeting=greeting, timeout_s=timeout_s)
    except InstallerError as error:
        return Answer(silence=error.problem, remedy=error.remedy)
    match peer:
        case NotServing():
            return Answer(stopped=True, silence=f"nobody listens on {socket}")
        case Silent(reason):
            return Answer(silence=f"{socket}: {reason}")
        case Unseen():
            seen = None
        case Peer():
            seen = peer
    try:
        serving, version = _ask_serving(spec, socket, timeout_s)
    except dockerd.NotServedError as error:
        return Answer(stopped=True, silence=error.problem, remedy=error.remedy, another=error.reason)
    except CriDisabledError as error:
        return Answer(seen, silence=error.problem, disabled=True, failed=True)
    except CriFailedError as error:
        return Answer(seen, silence=error.problem, failed=True)
    except InstallerError as error:
        return Answer(seen, silence=error.problem)
    return Answer(seen, serving, version)


def _ask_serving(spec: EngineSpec, socket: Path, timeout_s: float) -> tuple[EffectiveConfig, tuple[int, ...]]:
    if spec.api is Api.DOCKER:
        info = dockerd.info(socket, timeout_s=timeout_s)
        return info.serving, numbers(info.version)
    status = cri.status(socket, timeout_s=timeout_s)
    return status.serving, numbers(status.version)


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version such as v1.6.20~ds1 or 28.5.2+dfsg4."""
    found: list[int] = []
    for part in text.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break  # what follows is about a release before this one: 2.4.0-beta.0
    return tuple(found)


def reload(
    host: Host, engine: EngineState, reload: Reload, patience: Patience, gate: Callable[[], None]
) -> bool:
    """Make a running engine read its config, and wait until it serves what ``reload`` asks for.

    ``gate`` is called right before, when all waiting for others is over, and may raise. Return whether
    it was reloaded: one that may rest is left as it is where its owner has stopped it.

    Raises:
        PendingError: it is still being restarted.
        InstallerError: it cannot be reloaded, or does not serve that in time.
    """
    deadline = time.monotonic() + limit_s(ENGINES[engine.name], patience)
    if ENGINES[engine.name].reload is ReloadMethod.RESTART:
        await_idle(host, engine, patience)
        if patience.may_rest and _rests(host, engine, patience):
            return False
    gate()
    return _reload_and_prove(host, engine, reload, patience, deadline)


def _reload_and_prove(
    host: Host, facts: EngineState, reload: Reload, patience: Patience, deadline: float
) -> bool:
    engine, check = ENGINES[facts.name], patience.check
    socket, timeout_s = host.local_path(facts.socket), limit_s(engine, patience)
    began, made_s = time.time(), changed_s(socket)
    before = _begin(host, facts, replace(patience, start_s=deadline - time.monotonic()))
    deadline = time.monotonic() + timeout_s if before is not None and not patience.hurried else deadline
    while True:
        # An engine that restarts itself does so some time after a write, and makes its socket anew then; one
        # that has not done so until the deadline has nothing to restart for.
        waits = engine.reload is ReloadMethod.ITSELF and time.monotonic() < deadline
        still = waits and changed_s(socket) == made_s
        left_s = max(0.1, min(ASK_S, deadline - time.monotonic()))
        answer = ask(engine, socket, timeout_s=left_s)
        served = answer.serving is not None and answer.serving.ready and reload.satisfied_by(answer.serving)
        if served and not still and (before is not None or _taken_up(engine, socket, began, left_s)):
            # What is signalled may show the rest a moment later; what was restarted shows it at once.
            last = engine.reload is not ReloadMethod.HUP or time.monotonic() > deadline
            if not _disturbed(facts, reload, answer, raises=last):
                return True
        hopeless = not still and _hopeless(host, facts, answer)
        # Asked behind that: a unit that stops may have stopped between two questions.
        if answer.stopped and before is None and _rests(host, facts, patience):
            return False
        check()  # before anything is called a failure: the question may have lasted until the deadline
        over = time.monotonic() > deadline and not (served and still)
        if over or hopeless:
            found = _describe(answer, reload, lambda: _explain_death(host, facts.unit, began, before))
            raise _unproven(facts, reload, found, f" within {timeout_s:g} s" if over else "")
        time.sleep(POLL_S)


def _rests(host: Host, engine: EngineState, patience: Patience) -> bool:
    """Tell, or raise, that somebody has stopped an engine that was to read its configs."""
    stopped = units.stopped_by_owner(host, engine.unit)
    if stopped and not patience.may_rest:
        raise EngineStoppedError(
            f"prove that {engine.title} serves our runtimes (somebody has stopped {engine.unit})",
            remedy=f"start {engine.unit}, then run again",
            code="engine-not-proven",
        )
    if stopped:
        log.info("engine left stopped", engine=engine.name, why="it reads its configs when it starts")
    return stopped


def limit_s(spec: EngineSpec, patience: Patience) -> float:
    """Return how many seconds an engine has to serve what is wanted."""
    least_s = spec.generated.start_s if spec.generated and not patience.hurried else 0.0
    return max(patience.start_s, least_s)


def _begin(host: Host, engine: EngineState, patience: Patience) -> UnitState | None:
    """Begin a reload; return how the unit was before, None where no unit is restarted."""
    match ENGINES[engine.name].reload:
        case ReloadMethod.HUP:
            return _send_sighup(host, engine, patience)
        case ReloadMethod.ITSELF:
            log.info("waiting for the engine to restart itself", engine=engine.name)
        case ReloadMethod.RESTART:
            if not engine.unit:
                raise without_unit(engine, "it runs outside any systemd service")
            return _restart_unit(host, engine.unit, patience)
        case other:
            assert_never(other)
    return None


def _restart_unit(host: Host, unit: str, patience: Patience) -> UnitState:
    return units.restart(host, unit, patience, partial(why_not_started, host, units.buses(host), unit))


def _disturbed(engine: EngineState, reload: Reload, answer: Answer, *, raises: bool) -> bool:
    """Tell, or raise, that the engine does not serve all else as it did before."""
    lost = reload.lost_in(answer.serving) if answer.serving is not None else ()
    if lost and raises:
        raise InstallerError(
            f"prove that {engine.title} serves what it served before (not as it was: {', '.join(lost)})",
            remedy=f"look at the config of {engine.title}",
            code="others-not-served",
        )
    return bool(lost)


def _hopeless(host: Host, engine: EngineState, answer: Answer) -> bool:
    """Tell whether waiting longer cannot help: CRI did not load, or the engine's process has ended."""
    restarted = ENGINES[engine.name].reload is not ReloadMethod.HUP
    return restarted and (answer.failed or (answer.stopped and bool(units.died(host, engine.unit))))


def _taken_up(spec: EngineSpec, socket: Path, since: float, timeout_s: float) -> bool:
    """Tell whether the answer is that of the reloaded engine: a signal is obeyed some time later.

    An engine that has nothing of ours yet would otherwise seem to have finished its reload.
    """
    return (
        spec.reload is not ReloadMethod.HUP or dockerd.reloads_since(socket, since, timeout_s=timeout_s) > 0
    )


def _send_sighup(host: Host, facts: EngineState, patience: Patience) -> UnitState | None:
    """Send the signal to the process that answers, or let its unit do so where that cannot be seen.

    One that has failed is started: what it refused is what was mended.
    """
    engine, socket = ENGINES[facts.name], host.local_path(facts.socket)
    peer = processes.peer_of(socket, greeting=GREETINGS[engine.api], timeout_s=ASK_S)
    if isinstance(peer, Peer):
        processes.signal(peer, signal.SIGHUP, expected=frozenset({engine.process}))
    elif isinstance(peer, Unseen):
        if obstacle := unit_obstacle(host, facts):
            raise obstacle
        units.reload(host, facts.unit, timeout_s=patience.start_s)
    elif facts.serving is None and units.died(host, facts.unit):
        return None if _rests(host, facts, patience) else _restart_unit(host, facts.unit, patience)
    else:
        raise InstallerError(
            f"reload {engine.title} (nobody answers on {facts.socket})",
            remedy=f"check that {engine.title} is well",
            code="engine-not-answering",
        )
    return None


def _unproven(engine: EngineState, reload: Reload, found: str, when: str) -> InstallerError:
    wanted = "serves our runtimes" if reload.present else "has let go of our runtimes"
    return InstallerError(
        f"prove that {engine.title} {wanted}{when} ({found})",
        remedy=Remedy(
            f"look at the log of {engine.name}, and give ",
            Option("timeout"),
            " more seconds if it is slow",
        ),
        code="engine-not-proven",
    )


def _explain_death(host: Host, unit: str, began_s: float, before: UnitState | None) -> str:
    """Return how the service of a unit has ended since a reload, in its own words where it has some."""
    said = (units.died(host, unit), why_not_started(host, units.buses(host), unit, began_s, before))
    return ": ".join(filter(None, said))


def _describe(answer: Answer, reload: Reload, died: Callable[[], str]) -> str:
    """Return what is wrong with an engine, in its own words where it has said some."""
    if answer.serving is None:
        return (answer.stopped and died()) or answer.silence
    listed = ", ".join(f"{key}={value or '(built in)'}" for key, value in answer.serving.binaries.items())
    found = f"it serves {listed or 'no runtime'}, default {answer.serving.default or '(none)'}"
    wrong = [name for name in reload.wrong_in(answer.serving) if name in answer.serving.handlers]
    found += f", with other settings than asked for in {', '.join(wrong)}" if wrong else ""
    return found if answer.serving.ready else f"{found}, and calls itself not ready"


IDLE_S: Final = 10.0
IDLE_ASK_S: Final = 1.0
IDLE_POLL_S: Final = 0.1


def await_idle(host: Host, engine: EngineState, patience: Patience) -> None:
    """Wait until no container is created but not started: a restart strands it there (gpu-operator#991).

    Ours is one of them until its own start is done (gpu-operator#456). One that stays as it is for longer
    is stuck already, and no reason to wait for ever, unless a restart is asked for only when idle.

    Raises:
        NotIdleError: it is not, and is asked for.
    """
    deadline = time.monotonic() + min(IDLE_S, patience.start_s / 2)
    while waiting := _creating(host, engine):
        if time.monotonic() > deadline and patience.when_idle:
            raise not_idle(engine, waiting)
        if time.monotonic() > deadline:
            names = [each[:12] for each in waiting]
            log.warning("containers stuck in CREATED", engine=engine.name, containers=names)
            return
        patience.check()
        time.sleep(IDLE_POLL_S)


def _creating(host: Host, engine: EngineState) -> tuple[str, ...]:
    try:
        return cri.unready_containers(host.local_path(engine.socket), timeout_s=IDLE_ASK_S)
    except InstallerError:  # CRI is down or hangs: there is nothing that a restart could disturb
        return ()


def with_creating(host: Host, engines: Iterable[EngineState]) -> tuple[EngineState, ...]:
    """Return the engines with the containers that a restart would strand, for those that are restarted."""
    return tuple(
        replace(each, creating=_creating(host, each))
        if ENGINES[each.name].reload is ReloadMethod.RESTART
        else each
        for each in engines
    )


def write_when_idle(
    host: Host, write: WriteConfig, engines: Mapping[str, EngineState], patience: Patience
) -> None:
    """Write or remove a config; one that restarts its engine by being written waits for the same as that."""
    facts = engines.get(write.engine)
    if facts is not None and ENGINES[write.engine].reload is ReloadMethod.ITSELF:
        await_idle(host, facts, patience)
    write_config(host, write)
