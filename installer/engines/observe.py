"""The engines that run here: each is asked what it serves, and its process and unit where its configs are."""

import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from math import inf
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES, cri, generating
from installer.engines.command_line import (
    flags_of,
    next_start,
    overruling,
    path_of,
    process_path,
    started,
    state_of,
    strings,
    unit_start,
)
from installer.engines.config_files import (
    outdated,
    unread,
    with_configs,
    with_drop_in,
    with_places,
    with_readable_configs,
)
from installer.engines.dependencies import RESTART, silence
from installer.engines.hints import without_cri
from installer.engines.restart import ASK_S, Answer, ask, is_held
from installer.engines.restart_checks import Restart, not_restarted, places_by_files
from installer.errors import InstallerError, Option, Remedy
from installer.host import unit_jobs, units
from installer.host.files import Host
from installer.host.processes import Peer, started_in
from installer.host.sockets import listening
from installer.host.units import UnitStart
from installer.model.engine_spec import EngineSpec, ReloadMethod, is_ours
from installer.model.facts import EngineState
from installer.model.options import Options, Places
from installer.model.record import EngineRow, Record

PROC: Final = PurePosixPath("/proc")
KUBELET: Final = PurePosixPath("/var/lib/kubelet")
NRI_SOCKET: Final = "nri.sock"
POLL_S: Final = 0.1
ANSWER_S: Final = 1.0  # of several sockets, one that is no API hangs perhaps


class Found(Struct, frozen=True):
    """The engines that are asked for and run here.

    The ``notes`` are about the others, ``overruled`` is what stands against what is asked for; ``refused``
    tells, by the name of an engine, why nobody knows its configs.
    """

    engines: tuple[EngineState, ...]
    notes: tuple[str, ...]
    overruled: tuple[InstallerError, ...]
    refused: Mapping[str, InstallerError]


class Process(Struct, frozen=True):
    """How an engine that runs was started; when, in seconds of the wall clock, None where nobody knows."""

    cmdline: tuple[str, ...] = ()
    at_s: float | None = None


def running_engines(host: Host, options: Options, record: Record, patience_s: float = 0.0) -> Found:
    """Return the engines that are asked for and run here, and what is to be said of them.

    One that has crashed, and that systemd is about to start again, is waited for ``patience_s``.

    Raises:
        InstallerError: none of them runs here, or one cannot be taken for what it is.
    """
    found: list[EngineState] = []
    notes: list[str] = []
    overruled: list[InstallerError] = []
    refused: dict[str, InstallerError] = {}
    for name in options.engine_names:
        spec, places = ENGINES[name], options.places.get(name, Places())
        sought = looked_for(spec, options)
        answer = _patient(host, sought, options, patience_s)
        sought, answer = located_again(host, sought, answer, record, options)
        if options.auto and (answer.stopped or answer.disabled or _hangs_below(name, answer, found, record)):
            notes += _left_alone(host, name, answer, found)
            continue
        if answer.another:
            raise answer.another
        engine, process = observe(host, sought, answer, places)
        if spec.finds and engine.unit not in spec.units:
            if not engine.unit:
                refuse_unknown(host, engine)
            continue  # its sibling, on the same socket
        overruled += _overruling(spec, engine, _cmdline(answer), options)
        proven = record.finished and any(row.name == name and not row.pending for row in record.engines)
        try:
            engine = with_drop_in(host, spec, engine)
            overruled += unread(host, engine, process.cmdline)
            found.append(_with_configs(host, spec, engine, None if proven else process.at_s))
        except InstallerError as error:  # what is wrong with the others is to be told as well
            refused[name] = error
    if not (found or refused) and options.engine_names:
        raise _nobody_runs(host, options, notes)
    return Found(tuple(found), tuple(notes), tuple(overruled), refused)


def engine_of_row(
    host: Host, row: EngineRow, paths: Iterable[PurePosixPath], options: Options, *, awaits_s: float = inf
) -> EngineState:
    """Return an engine of the ledger, whose configs are at ``paths`` at least, running or not.

    One that is between two lives is waited for ``awaits_s`` at most.
    """
    spec, paths = ENGINES[row.name], tuple(paths)
    sought = EngineState(row.name, spec.config, spec.drop_ins.usual, None, (), row.socket, row.unit)
    sought, answer = located(host, sought, ask_for(host, spec, sought, options, awaits_s), row, options)
    engine, process = observe(host, sought, answer, Places())
    # CRI-O watches the directories of its hooks (engine-facts.md#crio-hooks).
    read = (path for path in paths if path.parent != spec.hook_dir)
    engine = replace(engine, outdated=outdated(host, spec, process.at_s, read))
    engine = with_readable_configs(host, spec, engine)
    return replace(engine, files=tuple(dict.fromkeys((*engine.files, *paths))))


def observe(host: Host, sought: EngineState, answer: Answer, places: Places) -> tuple[EngineState, Process]:
    """Return an engine with what it has said and what its process and unit tell; its configs are not read.

    ``sought`` is where it was looked for.
    """
    # A process that is seen tells by itself which unit it is in, be it none.
    unit = (answer.peer.unit or "") if answer.peer else _unit(host, sought, answer)
    engine = replace(sought, unit=unit)
    process = process_of(host, engine, answer.peer)
    engine = with_places(host, engine, process.cmdline, places)
    exe = PurePosixPath(answer.peer.exe) if answer.peer and answer.peer.exe else None
    waits = answer.serving is None and not (answer.stopped or answer.failed)
    why = silence(host, engine, _cmdline(answer)) if waits else ""
    engine = replace(
        engine,
        version=answer.version,
        serving=answer.serving,
        silence=why or answer.silence,
        remedy=RESTART if why else answer.remedy,
        stopped=answer.stopped,
        failed=answer.failed and not answer.disabled,
        disabled=answer.disabled,
        another=answer.another.reason if answer.another else "",
        pid=answer.peer.pid if answer.peer else None,
        exe=exe,
        build=host.build_of(exe) if exe else "",
        state=(answer.serving and answer.serving.state)
        or state_of(host, ENGINES[engine.name], _cmdline(answer), engine.config),
    )
    return with_start(host, engine), process


def looked_for(spec: EngineSpec, options: Options) -> EngineState:
    """Return where an engine is looked for: where the operator says, else at its usual places."""
    places = options.places.get(spec.name, Places())
    return EngineState(
        spec.name,
        places.config or spec.config,
        places.drop_in or spec.drop_ins.usual,
        options.crio_hook if spec.hook_dir else None,
        (),
        places.socket or spec.socket,
        spec.unit,
    )


def ask_for(
    host: Host, spec: EngineSpec, engine: EngineState, options: Options, awaits_s: float = inf
) -> Answer:
    """Ask an engine what it serves, and again while it only starts, for ``awaits_s`` at most."""
    if is_held(host, spec, engine.socket, engine.unit):
        return Answer(stopped=True, silence=f"{engine.unit} is stopped, and systemd listens for it")
    socket, timeout_s = host.local_path(engine.socket), min(ASK_S, options.timeout_s)
    return awaited(host, engine, ask(spec, socket, timeout_s=timeout_s), awaits_s)


def _patient(host: Host, engine: EngineState, options: Options, patience_s: float) -> Answer:
    """Ask an engine what it serves, and again where systemd was about to start it after a crash."""
    answer = ask_for(host, ENGINES[engine.name], engine, options)
    # One that was stopped has taken its socket along.
    crashed = patience_s and answer.stopped and host.exists(engine.socket)
    if crashed and unit_jobs.await_start(host, engine.unit, timeout_s=patience_s):
        return ask_for(host, ENGINES[engine.name], engine, options)
    return answer


def awaited(host: Host, engine: EngineState, answer: Answer, at_most_s: float) -> Answer:
    """Return the answer of an engine that restarts itself once that is done, if it is between two lives.

    Somebody has changed its configs a moment ago, perhaps we before a crash.
    """
    spec = ENGINES[engine.name]
    silent = answer.serving is None and not answer.failed
    if not (silent and spec.reload is ReloadMethod.ITSELF and spec.generated and host.exists(engine.socket)):
        return answer
    if not any(units.runs(host, unit) for unit in spec.units):
        return answer
    deadline = time.monotonic() + min(spec.generated.start_s, at_most_s)
    while answer.serving is None and not answer.failed and time.monotonic() < deadline:
        time.sleep(POLL_S)
        answer = ask(spec, host.local_path(engine.socket), timeout_s=ANSWER_S)
    return answer


def located(
    host: Host, engine: EngineState, answer: Answer, row: EngineRow, options: Options
) -> tuple[EngineState, Answer]:
    """Return an engine of the ledger where it listens by now, and its answer there.

    Its owner may have started it with another address since: where nobody listens, or another unit does, the
    socket is asked that we are told of now, and each that the process of the unit listens on.
    """
    spec, peer = ENGINES[engine.name], answer.peer
    if not row.unit or not (answer.stopped or (peer is not None and peer.unit not in {None, row.unit})):
        return engine, answer
    told = options.places.get(engine.name, Places()).socket or row.socket
    others = (told, row.socket, *_sockets(host, row.unit)) if not spec.finds else ()
    for socket in dict.fromkeys(path for path in others if path != engine.socket):
        if is_held(host, spec, socket, row.unit):
            continue
        found = ask(spec, host.local_path(socket), timeout_s=ANSWER_S)
        if (found.serving is not None or found.failed) and (not found.peer or found.peer.unit == row.unit):
            return replace(engine, socket=socket, unit=row.unit), found
    if answer.stopped and spec.reload is not ReloadMethod.HUP:
        unit = units.look(host, row.unit)
        crashing = unit.active == "activating"  # as one is all the time whose service ends at each start
        return replace(engine, crashing=crashing), replace(answer, stopped=unit.is_at_rest)
    return engine, answer


def located_again(
    host: Host, engine: EngineState, answer: Answer, record: Record, options: Options
) -> tuple[EngineState, Answer]:
    """Return an engine as ``located`` does if it is in the ledger, and nobody names a socket now."""
    row = next((row for row in record.engines if row.name == engine.name), None)
    if row is None or options.places.get(engine.name, Places()).socket is not None:
        return engine, answer
    return located(host, engine, answer, row, options)


def _sockets(host: Host, unit: str) -> Iterator[PurePosixPath]:
    """Yield what the main process of a unit listens on, short names first: they are those of the API.

    Not NRI's: there each who connects is a plugin, and keeps others out while he says nothing.
    """
    try:
        state = units.read(host, unit)
    except InstallerError:
        return
    if state.active == "active" and state.main_pid:
        for path in sorted(listening(host.local_path(PROC) / str(state.main_pid)), key=len):
            if PurePosixPath(path).name != NRI_SOCKET:
                yield PurePosixPath(path)


def _unit(host: Host, engine: EngineState, answer: Answer) -> str:
    """Return the unit of an engine whose process is not seen: of several, the one that runs."""
    candidates = ENGINES[engine.name].units
    if answer.stopped or engine.unit not in candidates:
        return engine.unit
    return next((unit for unit in candidates if units.runs(host, unit)), "")


def process_of(host: Host, engine: EngineState, peer: Peer | None) -> Process:
    """Return how the process was started that answers, or, where that is not seen, the one of its unit."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    if peer is not None:
        return Process(peer.cmdline, booted_s + peer.started)
    process = process_path(host, engine)
    words, stat = (strings(process / "cmdline"), strings(process / "stat")) if process else ((), ())
    if stat and words and PurePosixPath(words[0]).name == ENGINES[engine.name].process:
        return Process(words, booted_s + started_in(stat[0]))
    return Process()


def with_start(host: Host, engine: EngineState) -> EngineState:
    """Return an engine with how it was started, how its unit will start it, and why not to restart it.

    An admin edits the unit of an engine and restarts it later, after we have gone perhaps.
    """
    spec, unit = ENGINES[engine.name], unit_start(host, engine)
    later = next_start(host, engine, unit)
    how = later if engine.stopped else started(host, engine)
    engine = replace(
        engine,
        paths=tuple(dict.fromkeys(each.paths for each in (how, later) if each)),
        start=_digest(host, unit),
        flags=flags_of(spec, how.words, how.environment) if how else engine.flags,
        next_words=later.words if later else engine.next_words,
        next_flags=flags_of(spec, later.words, later.environment) if later else engine.next_flags,
    )
    if spec.reload is not ReloadMethod.RESTART:
        return engine
    process = process_path(host, engine)
    words = strings(process / "cmdline") if process else ()
    now = words[1:] if words and PurePosixPath(words[0]).name == spec.process else None
    then = later.words if later else None
    return replace(
        engine,
        not_restarted=not_restarted(Restart(host, engine, unit, process, now, then)),
        places_by_files=places_by_files(spec, now, then),
    )


def _digest(host: Host, unit: UnitStart) -> str:
    """Return a digest of how a unit starts its service, and of which programs it runs before."""
    programs = [host.build_of(PurePosixPath("".join(words[:1]))) for _, words in unit.before]
    return sha256(repr((unit, programs)).encode()).hexdigest()


def _cmdline(answer: Answer) -> tuple[str, ...]:
    return answer.peer.cmdline if answer.peer else ()


def _with_configs(host: Host, spec: EngineSpec, engine: EngineState, began_s: float | None) -> EngineState:
    ours = (engine.drop_in,) if engine.drop_in is not None else ()
    engine = replace(engine, outdated=outdated(host, spec, began_s, ours))
    if spec.generated is None:
        refuse_generated(engine)
    return with_configs(host, spec, engine)


def _hangs_below(name: str, answer: Answer, found: Iterable[EngineState], record: Record) -> bool:
    """Tell whether an engine that does not answer is only what keeps another from answering."""
    silent = answer.serving is None and not answer.failed and name not in record.served
    return silent and any(each.serving is None and ENGINES[each.name].uses == name for each in found)


def _left_alone(host: Host, name: str, answer: Answer, found: Iterable[EngineState]) -> Iterator[str]:
    """Yield why an engine that nobody asked for by name is not configured, though somebody answers."""
    if answer.disabled:
        yield f"left {name} alone: {without_cri(host, [each.name for each in found])}"
    if answer.another:
        yield f"left {name} alone: {answer.another.reason}"


def _overruling(
    spec: EngineSpec, engine: EngineState, words: tuple[str, ...], options: Options
) -> Iterator[InstallerError]:
    """Yield what of the command line of an engine, or of its next start, stands against what is asked for."""
    against = [*overruling(spec, words, options, "it was started")]
    yield from against or overruling(spec, engine.next_words, options, "its unit starts it")
    yield from moving(engine, words)


def moving(engine: EngineState, cmdline: tuple[str, ...]) -> Iterator[InstallerError]:
    """Yield why an engine would read another config as soon as it is restarted, by us or by anybody."""
    flags, usual = ENGINES[engine.name].cmdline.config, ENGINES[engine.name].config
    now, later = path_of(cmdline, flags) or usual, path_of(engine.next_words, flags) or usual
    if not (cmdline and engine.next_words) or now == later:
        return
    if engine.not_restarted is not None and engine.not_restarted.code == "restart-moves-engine":
        yield engine.not_restarted
    else:
        yield InstallerError(
            f"configure {engine.title} in {now} (at its next start {engine.unit} gives it {later})",
            remedy=f"restart {engine.unit} at a time of your choice, then run again",
            code="engine-flags",
        )


def refuse_unknown(host: Host, engine: EngineState) -> None:
    """Raise where nobody can tell whose containerd it is that answers on the socket of k3s and RKE2."""
    socket = ENGINES[engine.name].socket
    candidates = [unit for spec in ENGINES.values() if spec.socket == socket for unit in spec.units]
    if not any(units.runs(host, unit) for unit in candidates):
        raise InstallerError(
            f"tell whose containerd answers on {engine.socket} (none of {', '.join(candidates)} runs)",
            remedy=Remedy("name the engines with ", Option("runtime"), ", without k3s and rke2"),
            code="engine-unknown",
        )


def refuse_generated(engine: EngineState) -> None:
    """Raise where another engine makes the config anew at each start, so that no edit of ours would last."""
    names = generating(ENGINES[engine.name].process, engine.config, engine.socket)
    if names:
        whose = " or ".join(ENGINES[name].title for name in names)
        flags = " or ".join(f"--runtime {name}" for name in names)
        raise InstallerError(
            f"configure the containerd of {whose} (it writes {engine.config} itself)",
            remedy=f"run toolkit-installer with {flags}",
            code="engine-generates-config",
        )


def without_unused(
    host: Host, record: Record, engines: tuple[EngineState, ...]
) -> tuple[tuple[EngineState, ...], tuple[str, ...]]:
    """Return the engines less a containerd that only serves Docker, CRI switched on or not; and a note of it.

    A kubelet, a pod, a runtime of ours tell that its CRI is used, and what cannot be asked counts as used.
    """
    for name, other in ((each.name, ENGINES[each.name].uses) for each in engines):
        beside = next((each for each in engines if each.name == other), None)
        if beside is None:
            continue
        serving = beside.serving.binaries.values() if beside.serving else ()
        ours = any(row.name == other for row in record.engines) or any(is_ours(each) for each in serving)
        if ours or host.names(KUBELET) or _runs_pods(host, beside):
            continue
        left = tuple(each for each in engines if each is not beside)
        unused = f"it serves {ENGINES[name].title}, and nobody uses its CRI (no kubelet, no pod)"
        return left, (f"left {other} alone: {unused}",)
    return engines, ()


def _runs_pods(host: Host, engine: EngineState) -> bool:
    try:
        return bool(cri.sandboxes(host.local_path(engine.socket), timeout_s=ASK_S))
    except InstallerError:
        return True


def _nobody_runs(host: Host, options: Options, notes: list[str]) -> InstallerError:
    sockets = ", ".join(dict.fromkeys(str(ENGINES[name].socket) for name in options.engine_names))
    dead = dict.fromkeys(units.describe_end(host, ENGINES[name].unit) for name in options.engine_names)
    told = "; ".join((*notes, *filter(None, dead))) or f"nobody listens on {sockets}"
    return InstallerError(
        f"find a running engine ({told})",
        remedy=Remedy(
            "start one, or name it with ", Option("runtime"), " and its socket with ", Option("socket")
        ),
        code="engine-not-found",
    )
