"""The running engines: what one says it serves, and how it is brought to serve what its config says."""

import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import cri
from installer.engines.config_files import write_config
from installer.engines.docker import api as dockerd
from installer.engines.reloading import postpone
from installer.engines.startup import unit_obstacle, without_unit
from installer.errors import EngineStoppedError, InstallerError, Option, Remedy
from installer.host import processes, systemd, unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.engine import Api, Engine, EngineState
from installer.model.steps import Reload, WriteConfig

ASK_S: Final = 5.0
POLL_S: Final = 0.01
GREETINGS: Final = {Api.DOCKER: processes.HTTP_PING, Api.CRI: processes.HTTP2_PREFACE}


def is_socket_activated(host: Host, spec: Engine, socket: PurePosixPath, unit: str) -> bool:
    """Tell whether systemd holds the socket of a stopped engine, and would start it for whoever connects."""
    if spec.api is not Api.DOCKER or not host.exists(socket):
        return False
    if systemd.look_at_unit(host, unit).active not in {"inactive", "failed", systemd.STOPPING}:
        return False
    found = systemd.look_at_unit(host, f"{unit.removesuffix('.service')}.socket")
    paths = {host.local_path(PurePosixPath(place)) for place in found.listens if place[:1] == "/"}
    return found.active == "active" and (not paths or host.local_path(socket) in paths)


def ask(host: Host, engine: EngineState, *, timeout_s: float = ASK_S) -> EngineState:
    """Return an engine with what it says on its socket: who answers, and what it serves."""
    spec, socket = engine.spec, host.local_path(engine.socket)
    engine = replace(
        engine,
        **dict.fromkeys(("pid", "exe", "version", "serving")),
        **dict.fromkeys(("silence", "remedy", "another"), ""),
        **dict.fromkeys(("stopped", "failed", "disabled"), False),
    )
    try:
        peer = processes.peer_of(socket, greeting=GREETINGS[spec.api], timeout_s=timeout_s)
    except InstallerError as error:
        return replace(engine, silence=error.problem, remedy=error.remedy)
    if isinstance(peer, processes.NotServing):
        return replace(engine, stopped=True, silence=f"nothing answers on {socket}")
    if isinstance(peer, processes.Silent):
        return replace(engine, silence=f"{socket}: {peer.reason}")
    try:
        said = (dockerd.ask_info if spec.api is Api.DOCKER else cri.ask_status)(socket, timeout_s=timeout_s)
    except dockerd.NotServedError as error:
        return replace(engine, stopped=True, silence=error.problem, remedy=error.remedy, another=error.reason)
    except InstallerError as error:
        disabled, failed = error.code == "cri-disabled", error.code == "cri-failed"
        engine = replace(engine, silence=error.problem, disabled=disabled, failed=failed)
    else:
        engine = replace(engine, serving=said.serving, version=parse_version(said.version))
    if isinstance(peer, processes.Peer):  # one that is seen tells by itself which unit it is in, be it none
        exe = PurePosixPath(peer.exe) if peer.exe else None
        engine = replace(engine, pid=peer.pid, exe=exe, unit=peer.unit or "")
    return engine


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version such as v1.6.20~ds1, 28.5.2+dfsg4 or 2.4.0-beta.0."""
    leading = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", text)
    return tuple(map(int, leading[1].split("."))) if leading else ()


def reload(
    host: Host, engine: EngineState, reload: Reload, patience: Patience, gate: Callable[[], None]
) -> bool:
    """Make a running engine read its config, and wait until it serves what ``reload`` asks for.

    ``gate`` is called right before, when all waiting for others is over, and may raise. Return whether it was
    reloaded: one that may rest is left as its owner has stopped it. Raises PendingError while it restarts,
    and InstallerError where it cannot be reloaded, or does not serve that in time.
    """
    deadline = time.monotonic() + limit_s(engine.spec, patience)
    if engine.spec.is_restarted:
        await_idle(host, engine, patience, when_idle=reload.when_idle)
        if patience.may_rest and _is_left_stopped(host, engine, patience):
            return False
    gate()
    began, made_s = time.time(), host.changed_s(engine.socket)
    before = _begin(host, engine, replace(patience, start_s=deadline - time.monotonic()))
    if before is not None and not patience.hurried:
        deadline = time.monotonic() + limit_s(engine.spec, patience)
    return _prove(host, engine, reload, patience, _Begun(began, made_s, before, deadline))


class _Begun(Struct, frozen=True):
    """When a reload began, when the socket was made, how a restarted unit was, and until when to wait."""

    began_s: float
    made_s: float
    before: systemd.Unit | None
    deadline: float


def _prove(host: Host, engine: EngineState, reload: Reload, patience: Patience, begun: _Begun) -> bool:
    spec = engine.spec
    hup = spec.reads_config_on_signal
    while True:
        # An engine that restarts itself does so some time after a write, and makes its socket anew then; one
        # that has not done so until the deadline has nothing to restart for.
        waits = spec.restarts_itself and time.monotonic() < begun.deadline
        still = waits and host.changed_s(engine.socket) == begun.made_s
        left_s = max(1.0, min(ASK_S, begun.deadline - time.monotonic()))  # the last answer is what is told
        # Asked first: what dockerd serves before its reload is over may be gone behind it.
        reloaded = hup and begun.before is None and _has_reloaded(host, engine, begun, timeout_s=left_s)
        answer = ask(host, engine, timeout_s=left_s)
        served = answer.serving is not None and answer.serving.ready and reload.satisfied_by(answer.serving)
        if hup and begun.before is None:
            served = served and reloaded
        if served and not still:
            lost = reload.lost_in(answer.serving) if answer.serving is not None else ()
            if not lost:
                return True
            # What is signalled may show the rest a moment later; what was restarted shows it at once.
            if not hup or time.monotonic() > begun.deadline:
                raise InstallerError(
                    f"verify that {engine.title} serves what it served before "
                    f"(missing or changed: {', '.join(lost)})",
                    remedy=f"look at the config of {engine.title}",
                    code="others-not-served",
                )
        # CRI did not load, or the process has ended: waiting longer cannot help.
        hopeless = not hup and (
            answer.failed
            or answer.disabled
            or (answer.stopped and bool(systemd.describe_unit_end(host, engine.unit)))
        )
        # Asked behind that: a unit that stops may have stopped between two questions.
        if answer.stopped and begun.before is None and _is_left_stopped(host, engine, patience):
            return False
        patience.check()  # before anything is called a failure: the question may have lasted for long
        over = time.monotonic() > begun.deadline and not (served and still)
        if over or (hopeless and not still):
            reason = _describe(answer, reload)
            if answer.stopped:  # how its service has ended since, in its own words where it has some
                died = unit_jobs.why_not_started(host, engine.unit, begun.began_s, begun.before)
                reason = (
                    ": ".join(filter(None, (systemd.describe_unit_end(host, engine.unit), died))) or reason
                )
            remedy = Remedy(
                f"look at the log of {engine.name}, and give ",
                Option("timeout"),
                " more seconds if it is slow",
            )
            if reloaded:
                reason = f"it has read its config since, and {reason}"
                remedy = Remedy(
                    f"if that config is not {engine.config}, name it with ",
                    Option("config", "PATH", engine.name),
                )
            wanted = "serves our runtimes" if reload.present else "no longer serves our runtimes"
            when = f" within {limit_s(spec, patience):g} s" if over else ""
            problem = f"verify that {engine.title} {wanted}{when} ({reason})"
            raise InstallerError(problem, remedy=remedy, code="engine-not-proven")
        time.sleep(POLL_S)


def _has_reloaded(host: Host, engine: EngineState, begun: _Begun, *, timeout_s: float) -> bool:
    """Tell whether dockerd has read its config since its signal, which it obeys some time later."""
    with suppress(InstallerError):
        if dockerd.reloads_since(host.local_path(engine.socket), begun.began_s, timeout_s=timeout_s):
            return True
    # A dockerd that was started since has read its config then, and knows of no reload.
    started_s = host.changed_s(engine.spec.pidfile) if engine.spec.pidfile else 0.0
    return started_s > begun.began_s


def _is_left_stopped(host: Host, engine: EngineState, patience: Patience) -> bool:
    """Log, or raise, that an engine was stopped that was to read its configs."""
    stopped = systemd.look_at_unit(host, engine.unit).active == "inactive"  # else by itself, or by a config
    if stopped and not patience.may_rest:
        problem = f"verify that {engine.title} serves our runtimes ({engine.unit} was stopped)"
        remedy = f"start {engine.unit}, then run again"
        raise EngineStoppedError(problem, remedy=remedy, code="engine-not-proven")
    if stopped:
        log.info("engine left stopped", engine=engine.name, reason="it reads its configs when it starts")
    return stopped


def limit_s(spec: Engine, patience: Patience) -> float:
    """Return how many seconds an engine has to serve what is wanted."""
    return patience.start_s if patience.hurried else max(patience.start_s, spec.start_s)


def _begin(host: Host, engine: EngineState, patience: Patience) -> systemd.Unit | None:
    """Begin a reload; return how the unit was before, None where no unit is restarted."""
    if engine.spec.reads_config_on_signal:
        return _send_sighup(host, engine, patience)
    if engine.spec.restarts_itself:
        log.info("waiting for the engine to restart itself", engine=engine.name)
        return None
    if not engine.unit:
        raise without_unit(engine, "it runs outside any systemd service")
    return unit_jobs.restart(host, engine.unit, patience)


def _send_sighup(host: Host, engine: EngineState, patience: Patience) -> systemd.Unit | None:
    """Send the signal to the process that answers, or let its unit do so where that cannot be seen."""
    peer = processes.peer_of(
        host.local_path(engine.socket), greeting=GREETINGS[engine.spec.api], timeout_s=ASK_S
    )
    if isinstance(peer, processes.Peer):
        processes.signal(peer, signal.SIGHUP, expected=frozenset({engine.spec.process}))
    elif isinstance(peer, processes.Unseen):
        if obstacle := unit_obstacle(host, engine):
            raise obstacle
        unit_jobs.reload(host, engine.unit, timeout_s=patience.start_s)
    elif engine.serving is None and systemd.describe_unit_end(host, engine.unit):
        if not _is_left_stopped(host, engine, patience):  # it has failed: what it refused is what was mended
            return unit_jobs.restart(host, engine.unit, patience)
    else:
        problem = f"reload {engine.title} (nothing answers on {engine.socket})"
        remedy = f"check that {engine.title} is well"
        raise InstallerError(problem, remedy=remedy, code="engine-not-answering")
    return None


def _describe(answer: EngineState, reload: Reload) -> str:
    """Return what is wrong with an engine, in its own words where it has said some."""
    if answer.serving is None:
        return answer.silence
    if answer.serving.ready and reload.satisfied_by(answer.serving):
        return "it has completed no reload since its signal"
    listed = ", ".join(f"{key}={value or '(built in)'}" for key, value in answer.serving.binaries.items())
    found = f"it serves {listed or 'no runtime'}, default {answer.serving.default or '(none)'}"
    wrong = [name for name in reload.wrong_in(answer.serving) if name in answer.serving.handlers]
    found += f", with other settings than asked for in {', '.join(wrong)}" if wrong else ""
    return found if answer.serving.ready else f"{found}, and calls itself not ready"


IDLE_S: Final = 10.0
IDLE_ASK_S: Final = 1.0
IDLE_POLL_S: Final = 0.1


def await_idle(host: Host, engine: EngineState, patience: Patience, *, when_idle: bool = False) -> None:
    """Wait until no container is created but not started: a restart strands it there (gpu-operator#991).

    Ours is one of them until its own start is done (gpu-operator#456). One that stays as it is for longer
    is stuck already, and no reason to wait for ever, unless a restart is asked for only when idle: then it
    raises NotYetError.
    """
    deadline = time.monotonic() + min(IDLE_S, patience.start_s / 2)
    while waiting := _list_creating(host, engine):
        if time.monotonic() > deadline and when_idle:
            raise postpone(replace(engine, creating=waiting))
        if time.monotonic() > deadline:
            names = [each[:12] for each in waiting]
            reason = "not started before the restart, which begins now; delete their pods if they stay so"
            log.warning("containers stuck in CREATED", engine=engine.name, containers=names, reason=reason)
            return
        patience.check()
        time.sleep(IDLE_POLL_S)


def _list_creating(host: Host, engine: EngineState) -> tuple[str, ...]:
    path = host.local_path(engine.socket)
    try:
        return cri.list_ids(path, "ListContainers", cri.CREATED, timeout_s=IDLE_ASK_S)
    except InstallerError:  # CRI is down or hangs: there is nothing that a restart could disturb
        return ()


def with_creating(host: Host, engines: Iterable[EngineState]) -> tuple[EngineState, ...]:
    """Return the engines with the containers that a restart would strand, for those that are restarted."""
    return tuple(
        replace(each, creating=_list_creating(host, each)) if each.spec.is_restarted else each
        for each in engines
    )


def write_once_idle(
    host: Host, write: WriteConfig, engines: Mapping[str, EngineState], patience: Patience
) -> None:
    """Write or remove a config; one that restarts its engine by being written waits for the same as that."""
    engine = engines.get(write.engine)
    if engine is not None and engine.spec.restarts_itself:
        await_idle(host, engine, patience)
    write_config(host, write)
