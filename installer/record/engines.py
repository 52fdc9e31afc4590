"""The running engines: what one says it serves, and how it is brought to serve what its config says."""

import signal
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final, assert_never

from installer.decide.data import dataclass, replace
from installer.decide.effect import Effect
from installer.decide.engines import ENGINES
from installer.decide.engines.row import Api, Engine, ReloadMethod
from installer.decide.errors import InstallerError, Option, Remedy
from installer.decide.facts import EngineFacts
from installer.decide.restarts import stopped_meanwhile
from installer.decide.steps import Reload
from installer.host import cri, dockerd, processes
from installer.host.cri_errors import CriDisabledError, CriFailedError
from installer.host.events import log
from installer.host.files import Host
from installer.host.inodes import changed_s
from installer.host.processes import NotServing, Peer, Silent, Unseen
from installer.host.systemd import UnitState
from installer.record import units
from installer.record.await_idle import await_idle
from installer.record.failed_start import why_not_started
from installer.record.reloadable import unit_obstacle, without_unit
from installer.record.units import Patience

ASK_S: Final = 5.0
POLL_S: Final = 0.01
GREETINGS: Final = {Api.DOCKER: processes.HTTP_PING, Api.CRI: processes.HTTP2_PREFACE}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found behind an engine's socket.

    ``serving`` is None, and ``silence`` says why, where there is no usable answer; ``stopped``
    that nobody listens, ``disabled`` that it runs without CRI on purpose, ``failed`` that its CRI
    did not load and will not. ``another`` says that it is not the engine whose API it answers, ``remedy``
    what lets us connect, where we may not.
    """

    peer: Peer | None = None
    serving: Effect | None = None
    version: tuple[int, ...] | None = None
    silence: str = ""
    remedy: str = ""
    stopped: bool = False
    disabled: bool = False
    failed: bool = False
    another: dockerd.NotServedError | None = None


def is_held(host: Host, engine: Engine, socket: PurePosixPath, unit: str) -> bool:
    """Tell whether whoever connects to an engine would start it, for systemd holds the socket meanwhile.

    Its owner has stopped it then. Of our engines Docker alone comes with such a unit.
    """
    return engine.api is Api.DOCKER and host.exists(socket) and units.held_for(host, unit, socket)


def ask(engine: Engine, socket: Path, *, timeout_s: float = ASK_S) -> Answer:
    """Ask the engine behind ``socket`` who it is and what it serves."""
    greeting = GREETINGS[engine.api]
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
        serving, version = _serving(engine, socket, timeout_s)
    except dockerd.NotServedError as error:
        return Answer(stopped=True, silence=error.problem, another=error)
    except CriDisabledError as error:
        return Answer(seen, silence=error.problem, disabled=True, failed=True)
    except CriFailedError as error:
        return Answer(seen, silence=error.problem, failed=True)
    except InstallerError as error:
        return Answer(seen, silence=error.problem)
    return Answer(seen, serving, version)


def _serving(engine: Engine, socket: Path, timeout_s: float) -> tuple[Effect, tuple[int, ...]]:
    if engine.api is Api.DOCKER:
        info = dockerd.info(socket, timeout_s=timeout_s)
        return info.serving, numbers(info.version)
    status = cri.status(socket, timeout_s=timeout_s)
    return status.serving, numbers(status.version)


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version such as v1.6.20~ds1 or 28.5.2+dfsg4."""
    found: list[int] = []
    for part in version.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break  # what follows is about a release before this one: 2.4.0-beta.0
    return tuple(found)


def reload(
    host: Host, facts: EngineFacts, step: Reload, patience: Patience, gate: Callable[[], None]
) -> bool:
    """Make a running engine read its config, and wait until it serves what ``step`` asks for.

    ``gate`` is called right before, when all waiting for others is over, and may raise. Return whether
    it was reloaded: one that may rest is left as it is where its owner has stopped it.

    Raises:
        PendingError: it is still being restarted.
        InstallerError: it cannot be reloaded, or does not serve that in time.
    """
    deadline = time.monotonic() + limit_s(ENGINES[facts.name], patience)
    if ENGINES[facts.name].reload is ReloadMethod.RESTART:
        await_idle(host, facts, patience)
        if patience.may_rest and _rests(host, facts, patience):
            return False
    gate()
    return _reloaded(host, facts, step, patience, deadline)


def _reloaded(host: Host, facts: EngineFacts, step: Reload, patience: Patience, deadline: float) -> bool:
    engine, check = ENGINES[facts.name], patience.check
    socket, timeout_s = host.local_path(facts.socket), limit_s(engine, patience)
    began, made_s = time.time(), changed_s(socket)
    before = _begun(host, facts, replace(patience, start_s=deadline - time.monotonic()))
    deadline = time.monotonic() + timeout_s if before is not None and not patience.hurried else deadline
    while True:
        # An engine that restarts itself does so some time after a write, and makes its socket anew then; one
        # that has not done so until the deadline has nothing to restart for.
        waits = engine.reload is ReloadMethod.ITSELF and time.monotonic() < deadline
        still = waits and changed_s(socket) == made_s
        left_s = max(0.1, min(ASK_S, deadline - time.monotonic()))
        answer = ask(engine, socket, timeout_s=left_s)
        served = answer.serving is not None and answer.serving.ready and step.satisfied_by(answer.serving)
        if served and not still and (before is not None or _taken_up(engine, socket, began, left_s)):
            # What is signalled may show the rest a moment later; what was restarted shows it at once.
            last = engine.reload is not ReloadMethod.HUP or time.monotonic() > deadline
            if not _disturbed(facts, step, answer, raises=last):
                return True
        hopeless = not still and _hopeless(host, facts, answer)
        # Asked behind that: a unit that stops may have stopped between two questions.
        if answer.stopped and before is None and _rests(host, facts, patience):
            return False
        check()  # before anything is called a failure: the question may have lasted until the deadline
        over = time.monotonic() > deadline and not (served and still)
        if over or hopeless:
            found = _found(answer, step, lambda: _death(host, facts.unit, began, before))
            raise _unproven(facts, step, found, f" within {timeout_s:g} s" if over else "")
        time.sleep(POLL_S)


def _rests(host: Host, facts: EngineFacts, patience: Patience) -> bool:
    """Tell, or raise, that somebody has stopped an engine that was to read its configs."""
    stopped = units.stopped_by_owner(host, facts.unit)
    if stopped and not patience.may_rest:
        raise stopped_meanwhile(facts)
    if stopped:
        log.info("engine left stopped", engine=facts.name, why="it reads its configs when it starts")
    return stopped


def limit_s(engine: Engine, patience: Patience) -> float:
    """Return how many seconds an engine has to serve what is wanted."""
    least_s = engine.generated.start_s if engine.generated and not patience.hurried else 0.0
    return max(patience.start_s, least_s)


def _begun(host: Host, facts: EngineFacts, patience: Patience) -> UnitState | None:
    """Begin a reload; return how the unit was before, None where no unit is restarted."""
    match ENGINES[facts.name].reload:
        case ReloadMethod.HUP:
            return _send_sighup(host, facts, patience)
        case ReloadMethod.ITSELF:
            log.info("waiting for the engine to restart itself", engine=facts.name)
        case ReloadMethod.RESTART:
            if not facts.unit:
                raise without_unit(facts, "it runs outside any systemd service")
            return units.restart(host, facts.unit, patience)
        case other:
            assert_never(other)
    return None


def _disturbed(facts: EngineFacts, step: Reload, answer: Answer, *, raises: bool) -> bool:
    """Tell, or raise, that the engine does not serve all else as it did before."""
    lost = step.lost_in(answer.serving) if answer.serving is not None else ()
    if lost and raises:
        raise InstallerError(
            f"prove that {facts.title} serves what it served before (not as it was: {', '.join(lost)})",
            remedy=f"look at the config of {facts.title}",
            code="others-not-served",
        )
    return bool(lost)


def _hopeless(host: Host, facts: EngineFacts, answer: Answer) -> bool:
    """Tell whether waiting longer cannot help: CRI did not load, or the engine's process has ended."""
    restarted = ENGINES[facts.name].reload is not ReloadMethod.HUP
    return restarted and (answer.failed or (answer.stopped and bool(units.died(host, facts.unit))))


def _taken_up(engine: Engine, socket: Path, since: float, timeout_s: float) -> bool:
    """Tell whether the answer is that of the reloaded engine: a signal is obeyed some time later.

    An engine that has nothing of ours yet would otherwise seem to have finished its reload.
    """
    return (
        engine.reload is not ReloadMethod.HUP or dockerd.reloads_since(socket, since, timeout_s=timeout_s) > 0
    )


def _send_sighup(host: Host, facts: EngineFacts, patience: Patience) -> UnitState | None:
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
        return None if _rests(host, facts, patience) else units.restart(host, facts.unit, patience)
    else:
        raise InstallerError(
            f"reload {engine.title} (nobody answers on {facts.socket})",
            remedy=f"check that {engine.title} is well",
            code="engine-not-answering",
        )
    return None


def _unproven(facts: EngineFacts, step: Reload, found: str, when: str) -> InstallerError:
    wanted = "serves our runtimes" if step.present else "has let go of our runtimes"
    return InstallerError(
        f"prove that {facts.title} {wanted}{when} ({found})",
        remedy=Remedy(
            f"look at the log of {facts.name}, and give ",
            Option("timeout"),
            " more seconds if it is slow",
        ),
        code="engine-not-proven",
    )


def _death(host: Host, unit: str, began_s: float, before: UnitState | None) -> str:
    """Return how the service of a unit has ended since a reload, in its own words where it has some."""
    said = (units.died(host, unit), why_not_started(host, units.buses(host), unit, began_s, before))
    return ": ".join(filter(None, said))


def _found(answer: Answer, step: Reload, died: Callable[[], str]) -> str:
    """Return what is wrong with an engine, in its own words where it has said some."""
    if answer.serving is None:
        return (answer.stopped and died()) or answer.silence
    listed = ", ".join(f"{key}={value or '(built in)'}" for key, value in answer.serving.binaries.items())
    found = f"it serves {listed or 'no runtime'}, default {answer.serving.default or '(none)'}"
    wrong = [name for name in step.wrong_in(answer.serving) if name in answer.serving.handlers]
    found += f", with other settings than asked for in {', '.join(wrong)}" if wrong else ""
    return found if answer.serving.ready else f"{found}, and calls itself not ready"
