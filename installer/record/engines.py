"""The running engines: what one says it serves, and how it is brought to serve what its config says."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from installer.decide.engines import ENGINES
from installer.decide.engines.model import Engine, Serving
from installer.decide.engines.model import Reload as How
from installer.decide.errors import InstallerError
from installer.decide.facts import EngineFacts
from installer.decide.layout import SYSTEM_BUSES
from installer.decide.steps import Reload
from installer.host import cri, dockerd, processes, systemd
from installer.host.files import Host
from installer.host.processes import NotServing, Peer, Silent, Unseen

ASK_S: Final = 5.0
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found behind an engine's socket.

    ``serving`` is None, and ``silence`` says why, where there is no usable answer; ``stopped``
    that nobody listens, ``disabled`` that it runs without CRI on purpose.
    """

    peer: Peer | None = None
    serving: Serving | None = None
    version: tuple[int, ...] | None = None
    silence: str = ""
    stopped: bool = False
    disabled: bool = False


def ask(engine: Engine, socket: Path, *, timeout_s: float = ASK_S) -> Answer:
    """Ask the engine behind ``socket`` who it is and what it serves."""
    greeting = processes.HTTP_PING if engine.name == "docker" else processes.HTTP2_PREFACE
    try:
        peer = processes.peer_of(socket, greeting=greeting, timeout_s=timeout_s)
    except InstallerError as error:
        return Answer(silence=error.problem)
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
    except cri.CriDisabledError as error:
        return Answer(seen, silence=error.problem, disabled=True)
    except InstallerError as error:
        return Answer(seen, silence=error.problem)
    return Answer(seen, serving, version)


def _serving(engine: Engine, socket: Path, timeout_s: float) -> tuple[Serving, tuple[int, ...]]:
    if engine.name == "docker":
        info = dockerd.info(socket, timeout_s=timeout_s)
        return Serving(info.runtimes, info.default_runtime, {}), numbers(info.version)
    status = cri.status(socket, timeout_s=timeout_s)
    handlers = status.handlers.values()
    return (
        Serving(
            {handler.name: handler.binary for handler in handlers},
            status.default,
            {handler.name: bool(handler.systemd_cgroup) for handler in handlers},
        ),
        numbers(status.version),
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version such as v1.6.20~ds1 or 28.5.2+dfsg4."""
    found: list[int] = []
    for part in version.removeprefix("v").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def buses(host: Host) -> tuple[Path, ...]:
    """Return where systemd may be reached, under the host's root."""
    return tuple(host.here(path) for path in SYSTEM_BUSES)


def unit_obstacle(host: Host, engine: Engine, unit: str) -> InstallerError | None:
    """Return why ``unit`` could not be restarted, before anything is changed; None where it could."""
    if engine.reload is not How.RESTART:
        return None
    if not unit:
        return _without_unit(engine.name, "it runs outside any systemd service")
    try:
        state = systemd.unit_state(buses(host), unit, timeout_s=ASK_S)
    except InstallerError as error:
        return error
    # Restarting a unit that is not the one that serves would start a second engine beside it.
    if state.active != "active":
        return _without_unit(engine.name, f"its unit {unit} is {state.active}, so something else serves")
    return None


def _without_unit(name: str, reason: str) -> InstallerError:
    return InstallerError(
        f"restart {name} ({reason})",
        remedy="run it as a systemd service, or configure it unproven with --restart-mode none",
    )


def reload(
    host: Host, facts: EngineFacts, step: Reload, *, timeout_s: float, check: Callable[[], None]
) -> None:
    """Make a running engine read its config, and wait until it serves what ``step`` asks for.

    ``check`` is called between two questions and may raise.

    Raises:
        InstallerError: it cannot be reloaded, or does not serve that within ``timeout_s``.
    """
    engine = ENGINES[facts.name]
    deadline = time.monotonic() + timeout_s
    socket = host.here(facts.socket)
    began = time.time()
    if engine.reload is How.HUP:
        _hang_up(engine, socket, facts.socket)
    elif facts.unit:
        systemd.restart_unit(buses(host), facts.unit, timeout_s=timeout_s)
    else:
        raise _without_unit(facts.name, "it runs outside any systemd service")
    while True:
        left_s = max(0.1, min(ASK_S, deadline - time.monotonic()))
        answer = ask(engine, socket, timeout_s=left_s)
        served = answer.serving is not None and step.satisfied_by(answer.serving)
        if served and _taken_up(engine, socket, began, left_s):
            return
        if time.monotonic() > deadline:
            raise _unproven(facts.name, answer, step, timeout_s)
        check()
        time.sleep(POLL_S)


def _taken_up(engine: Engine, socket: Path, since: float, timeout_s: float) -> bool:
    """Tell whether the answer is that of the reloaded engine: a signal is obeyed some time later.

    An engine that has nothing of ours yet would otherwise prove to have let go of it.
    """
    return engine.reload is not How.HUP or dockerd.reloads_since(socket, since, timeout_s=timeout_s) > 0


def _hang_up(engine: Engine, socket: Path, named: PurePosixPath) -> None:
    peer = processes.peer_of(socket, greeting=processes.HTTP_PING, timeout_s=ASK_S)
    if isinstance(peer, Peer):
        processes.signal(peer, signal.SIGHUP, expected=frozenset({engine.process}))
    elif isinstance(peer, Unseen):
        raise InstallerError(
            f"reload {engine.name} (it runs in a pid namespace that cannot be seen from here)",
            remedy="run with the host's pid namespace (hostPID: true)",
        )
    else:
        raise InstallerError(
            f"reload {engine.name} (nobody answers on {named})", remedy=f"check that {engine.name} is well"
        )


def _unproven(name: str, answer: Answer, step: Reload, timeout_s: float) -> InstallerError:
    if answer.serving is None:
        found = answer.silence
    else:
        listed = ", ".join(f"{key}={value or '(built in)'}" for key, value in answer.serving.binaries.items())
        found = f"it serves {listed or 'no runtime'}, default {answer.serving.default or '(none)'}"
    wanted = "serves our runtimes" if step.present else "has let go of our runtimes"
    return InstallerError(
        f"prove that {name} {wanted} within {timeout_s:g} s ({found})",
        remedy=f"look at the log of {name}, and give --timeout more seconds if it is slow",
    )
