"""The engines that run here: their answers, and their configs by their processes and units."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from math import inf
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.engines import ENGINES, list_generating
from installer.engines.apis import api_of
from installer.engines.ask import ASK_S, ask, is_socket_activated
from installer.engines.config_files import (
    explain_unread,
    explain_unread_root,
    is_outdated,
    is_replaced,
    is_unit_edited,
    with_configs,
    with_drop_in,
    with_places,
    with_readable_configs,
)
from installer.engines.config_texts import tree_of
from installer.engines.dependencies import RESTART, explain_silence, without_cri
from installer.engines.other_engines import explain_other_engines
from installer.engines.seen_start import with_seen_start
from installer.engines.startup import (
    explain_overruling,
    find_place,
    find_process,
    find_refusals,
    flags_of,
    list_places_by_files,
    path_of,
    predict_next_start,
    read_start,
    values_of,
)
from installer.engines.stopped_units import explain_stopped_units, find_stopped_units, list_restarted_units
from installer.engines.templates import digest_inputs, explain_inputs, explain_template, list_edited_inputs
from installer.errors import InstallerError, Option, Remedy
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.sockets import list_listening
from installer.model.effective import Flags, is_ours
from installer.model.engine import Engine, EngineState, Started
from installer.model.facts import EngineRow, Record
from installer.model.options import Options, Places

PROC: Final = PurePosixPath("/proc")
POLL_S: Final = 0.1
ANSWER_S: Final = 1.0  # for each of several sockets: a socket of another protocol may hang


class RunningEngines(Struct, frozen=True):
    """The running engines among the engines of the options."""

    engines: tuple[EngineState, ...]
    notes: tuple[str, ...]  # about other engines
    overruled: tuple[InstallerError, ...]  # flags and units that conflict with the options
    refused: Mapping[str, InstallerError]  # the reasons, by name, for which an engine's configs are unknown


def list_asked(options: Options) -> tuple[Engine, ...]:
    """Return the engines of the options: the named engines, or all for ``auto``."""
    names = ENGINES if options.auto else options.engines
    return tuple(ENGINES[name] for name in names)


def find_engines(host: Host, options: Options, record: Record, crash_s: float = 0.0) -> RunningEngines:
    """Find the running engines among the engines of the options.

    Args:
        host: The node.
        options: The options.
        record: The ledger.
        crash_s: How long to wait for systemd to start a crashed engine again.

    Raises:
        InstallerError: No engine of the options runs here, or another program answers as an engine.
    """
    engines: list[EngineState] = []
    notes: list[str] = []
    overruled: list[InstallerError] = []
    refused: dict[str, InstallerError] = {}
    asked = list_asked(options)
    for kind in asked:
        row = record.engine(kind.name)
        places = options.places.get(kind.name, Places())
        engine = _ask_crashed(host, look_for(kind, options), options, crash_s)
        if row is None:
            engine = look_elsewhere(host, engine, places)
        elif places.socket is None:
            engine = locate(host, engine, row, options)
        if options.auto and _is_unused(engine, engines, record):
            notes += _explain_unused(host, engine, engines)
            continue
        if engine.other_engine_reason:
            raise InstallerError(engine.silence_reason, remedy=engine.remedy, code="engine-unknown")

        engine, _ = with_process(host, engine, places)
        engine = with_seen_start(engine, row)
        if kind.built_in_runtime and engine.unit not in kind.units:
            if not engine.unit:
                refuse_unknown(host, engine)
            continue  # its sibling, on the same socket

        overruled += _explain_overruling(engine, options)
        overruled += explain_moving(engine)
        try:
            engine = with_drop_in(host, engine)
            overruled += explain_unread(host, engine)
            overruled += explain_unread_root(host, engine, places)
            is_proven = record.finished and row is not None and row.pending is None
            engines.append(_read_configs(host, engine, is_proven=is_proven))
        except InstallerError as error:  # the errors of the other engines are reported as well
            refused[kind.name] = error

    notes += explain_other_engines(host, options, engines)
    if asked and not (engines or refused):
        raise explain_absence(host, options, notes)
    return RunningEngines(tuple(engines), tuple(notes), tuple(overruled), refused)


def _read_configs(host: Host, engine: EngineState, *, is_proven: bool) -> EngineState:
    """Fill in the configs of an engine, and whether they were changed since its start.

    Args:
        host: The node.
        engine: The engine, with its start.
        is_proven: The last install has proven that the engine serves what its configs say.

    Raises:
        InstallerError: The configs are unknown, or another program generates them.
    """
    if not is_proven:
        ours = (engine.drop_in,) if engine.drop_in is not None else ()
        engine = replace(engine, outdated=is_outdated(host, engine, ours))
    if not engine.kind.config_markers:
        refuse_generated(engine)
    return with_configs(host, engine)


def _is_unused(engine: EngineState, others: Iterable[EngineState], record: Record) -> bool:
    """Tell whether ``auto`` leaves an engine alone: stopped, without CRI, or the reason of another's silence.

    A silent containerd below a silent Docker is the cause of both silences, and no engine of its own here.
    """
    if engine.stopped or engine.disabled:
        return True
    is_silent = engine.serving is None and not engine.failed and engine.name not in record.served
    for other in others:
        if other.serving is None and other.kind.lower_engine == engine.name:
            return is_silent
    return False


def _explain_unused(host: Host, engine: EngineState, others: Iterable[EngineState]) -> Iterator[str]:
    """Explain in a note why an engine is left alone, unless the reason is plain."""
    reason = engine.other_engine_reason
    if engine.disabled:
        names = [other.name for other in others]
        reason = without_cri(host, names)
    if reason:
        yield f"left {engine.name} alone: {reason}"


def _explain_overruling(engine: EngineState, options: Options) -> list[InstallerError]:
    """List the flags in conflict with our config, of this start, or else of the next start."""
    words = list_words_and_variables(engine.started)
    conflicts = list(explain_overruling(engine.kind, words, options, "it was started"))
    if conflicts:
        return conflicts
    later_words = list_words_and_variables(engine.next_start)
    return list(explain_overruling(engine.kind, later_words, options, "its unit starts it"))


def list_words_and_variables(start: Started | None) -> tuple[str, ...]:
    """Return the words and the variables of a start, () for an unknown start."""
    if start is None:
        return ()
    variables = ("=".join(pair) for pair in start.environment.items())
    return (*start.words, *variables)


def observe_row(
    host: Host, row: EngineRow, paths: Iterable[PurePosixPath], options: Options, *, awaits_s: float = inf
) -> EngineState:
    """Return an engine of the ledger with its configs, also those at ``paths``.

    Args:
        host: The node.
        row: The engine's row of the ledger.
        paths: The configs of the ledger.
        options: The options.
        awaits_s: How long to wait, at most, for an engine that restarts itself.
    """
    configs = tuple(paths)
    engine = ask_for(host, engine_of_row(row), options, awaits_s)
    engine = locate(host, engine, row, options)
    engine, _ = with_process(host, engine, Places())
    engine = with_seen_start(engine, row)
    # CRI-O watches the directories of its hooks (engine-facts.md#crio-hooks).
    read_at_start = [path for path in configs if path.parent != engine.kind.hook_dir]
    engine = replace(engine, outdated=is_outdated(host, engine, read_at_start))
    engine = with_readable_configs(host, engine)
    return replace(engine, files=tuple(dict.fromkeys((*engine.files, *configs))))


def engine_of_row(row: EngineRow) -> EngineState:
    """Build an engine from its row, as the last install has seen the engine, without an observation."""
    usual = EngineState.usual(ENGINES[row.name])
    return replace(
        usual,
        config=row.config or usual.config,
        socket=row.socket,
        unit=row.unit,
        version=row.version,
        state=row.state,
    )


def _ask_crashed(host: Host, sought: EngineState, options: Options, crash_s: float) -> EngineState:
    """Ask an engine; wait for systemd to start a crashed engine again."""
    engine = ask_for(host, sought, options)
    # A crash leaves the socket behind, a stop removes the socket.
    if not (crash_s and engine.stopped and host.exists(sought.socket)):
        return engine
    if not unit_jobs.await_start(host, sought.unit, timeout_s=crash_s):
        return engine
    return ask_for(host, sought, options)


def with_process(host: Host, engine: EngineState, places: Places) -> tuple[EngineState, systemd.Unit]:
    """Fill in the facts of an answering engine's process and unit; return the unit, too."""
    if engine.pid is None and not engine.stopped and engine.unit in engine.kind.units:
        # Only the running unit of several units counts.
        running = (unit for unit in engine.kind.units if systemd.unit_runs(host, unit))
        engine = replace(engine, unit=next(running, ""))
    unit = systemd.look_at_unit(host, engine.unit)
    engine = replace(
        engine, started=read_start(host, engine, unit), unit_began_s=unit.began_s, invocation=unit.invocation
    )
    engine = with_places(host, engine, places)
    if engine.serving is None and not (engine.stopped or engine.failed or engine.disabled):
        engine = _explain_silence(host, engine)

    state = engine.served.state or find_place(host, engine.kind.state, engine.words, engine.config)
    build = host.build_of(engine.exe) if engine.exe else ""
    engine = replace(engine, build=build, state=state)
    return with_start(host, engine, unit), unit


def _explain_silence(host: Host, engine: EngineState) -> EngineState:
    """Complete the reason of an engine's silence: its containerd, or the addresses in its flags."""
    address_flags = engine.kind.cmdline.addresses
    addresses = ", ".join(values_of(engine.words, address_flags))
    reason = explain_silence(host, engine)
    if reason:
        return replace(engine, silence_reason=reason, remedy=RESTART)
    if addresses and "fd://" not in addresses:  # fd:// is the socket that systemd hands over
        return replace(
            engine, silence_reason=f"{engine.silence_reason}; its {address_flags[0]} is {addresses}"
        )
    return engine


def look_for(kind: Engine, options: Options) -> EngineState:
    """Make an engine with the places of the options, or else with its usual places."""
    places = options.places.get(kind.name, Places())
    usual = EngineState.usual(kind)
    return replace(
        usual,
        config=places.config or usual.config,
        drop_in=places.drop_in or usual.drop_in,
        hook=options.crio_hook if kind.hook_dir else None,
        socket=places.socket or usual.socket,
    )


def ask_for(host: Host, sought: EngineState, options: Options, awaits_s: float = inf) -> EngineState:
    """Ask an engine; ask a self-restarting engine, silent during its restart, again for ``awaits_s``."""
    kind = sought.kind
    if is_socket_activated(host, kind, sought.socket, sought.unit):
        return replace(
            sought, stopped=True, silence_reason=f"{sought.unit} is stopped, and systemd listens for it"
        )
    engine = ask(host, sought, timeout_s=min(ASK_S, options.timeout_s))
    if not kind.restarts_itself or not host.exists(sought.socket):
        return engine
    deadline = time.monotonic() + min(kind.start_s, awaits_s)
    while engine.serving is None and not (engine.failed or engine.disabled) and time.monotonic() < deadline:
        if not any(systemd.unit_runs(host, unit) for unit in kind.units):
            break
        time.sleep(POLL_S)
        engine = ask(host, sought, timeout_s=ANSWER_S)
    return engine


def locate(host: Host, engine: EngineState, row: EngineRow, options: Options) -> EngineState:
    """Look for an engine of the ledger that does not answer, on its present socket.

    Args:
        host: The node.
        engine: The engine, as asked on a socket of the ledger or of the options.
        row: The engine's row of the ledger.
        options: The options.
    """
    is_another = engine.pid is not None and engine.unit not in {"", row.unit}
    if not row.unit or not (engine.stopped or is_another):
        return engine

    found = _find_on_other_sockets(host, engine, row, options)
    if found is not None:
        return found
    if not engine.stopped or engine.kind.reads_config_on_signal:
        return engine
    unit = systemd.look_at_unit(host, row.unit)
    # An active unit without a socket: the socket was removed.
    remedy = f"restart {engine.title}" if unit.active == "active" else ""
    # A service that ends at each start is "activating" all the time.
    return replace(engine, crashing=unit.active == "activating", stopped=unit.is_at_rest, remedy=remedy)


def _find_on_other_sockets(
    host: Host, engine: EngineState, row: EngineRow, options: Options
) -> EngineState | None:
    """Find the engine of a row on another socket: of the options, or of the changed unit; None if silent."""
    if engine.kind.built_in_runtime:
        return None
    named = options.places.get(engine.name, Places()).socket or row.socket
    sockets = [named, row.socket, *_list_sockets(host, row.unit)]
    for socket in dict.fromkeys(sockets):
        if socket == engine.socket or is_socket_activated(host, engine.kind, socket, row.unit):
            continue
        candidate = ask(host, replace(engine, socket=socket, unit=row.unit), timeout_s=ANSWER_S)
        answers = candidate.serving is not None or candidate.failed or candidate.disabled
        if answers and candidate.unit == row.unit:
            return candidate
    return None


def look_elsewhere(host: Host, engine: EngineState, places: Places) -> EngineState:
    """Ask an engine that does not answer on its usual socket on the other sockets of its running unit.

    Its config or its unit may name another socket, as ``hosts`` in daemon.json does.
    """
    if not engine.stopped or places.socket is not None or engine.kind.built_in_runtime:
        return engine
    unit = engine.kind.unit
    for socket in _list_sockets(host, unit):
        candidate = ask(host, replace(engine, socket=socket, unit=unit), timeout_s=ANSWER_S)
        if candidate.unit == unit and (candidate.serving is not None or candidate.failed):
            return candidate
    return engine


def _list_sockets(host: Host, unit: str) -> Iterator[PurePosixPath]:
    """Yield the sockets of a unit's main process, short names first: the API has a short name."""
    pid = systemd.main_pid_of(host, unit)
    if not pid:
        return
    for path in sorted(list_listening(host.local_path(PROC) / str(pid)), key=len):
        # A client of the NRI socket is a plugin, and keeps other plugins out while it is silent.
        if PurePosixPath(path).name != "nri.sock":
            yield PurePosixPath(path)


def with_start(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> EngineState:
    """Fill in the facts of an engine's start and next start, and a reason not to restart the engine."""
    if unit is None:
        unit = systemd.look_at_unit(host, engine.unit)
    later = predict_next_start(host, engine, unit.start)  # by an edited unit, perhaps after our end
    start = later if engine.stopped else engine.started
    paths: dict[tuple[PurePosixPath, ...], None] = {}
    for each in (start, later):
        if each is not None:
            paths[each.paths] = None
    programs = []
    for _, words in unit.start.before:
        programs.append(host.build_of(PurePosixPath("".join(words[:1]))))
    mounts = [(PurePosixPath(path), PurePosixPath(source)) for path, source in unit.mounts]
    engine = replace(
        with_flags(replace(engine, next_start=later)),
        paths=tuple(paths),
        start=sha256(repr((unit.start, programs)).encode()).hexdigest(),
        inputs=digest_inputs(host, engine),
        edited_inputs=tuple(list_edited_inputs(host, engine)),
        replaced=is_replaced(host, engine),
        unit_mounts=tuple(mounts),
        unit_unread=unit.needs_daemon_reload,
        unit_edited=is_unit_edited(host, engine, unit.start),
    )
    if not engine.kind.is_restarted:
        return engine
    stopped_units = tuple(find_stopped_units(host, engine.unit, unit))
    reasons = chain(
        find_refusals(host, engine, unit.start, find_process(host, engine, unit)),
        explain_inputs(host, engine),
        explain_template(host, engine),
        explain_stopped_units(host, engine, stopped_units),
    )
    reason = next(reasons, None)
    return replace(
        engine,
        places_by_files=list_places_by_files(engine),
        not_restarted=reason,
        restarted_units=list_restarted_units(host, stopped_units),
    )


def with_flags(engine: EngineState) -> EngineState:
    """Fill in the runtimes in the flags of an engine's start, and of its next start."""
    later = engine.next_start
    start = later if engine.stopped else engine.started
    return replace(
        engine,
        flags=flags_of(engine.kind, start) if start else Flags(),
        next_flags=flags_of(engine.kind, later) if later else Flags(),
    )


def explain_moving(engine: EngineState) -> Iterator[InstallerError]:
    """Explain why an engine would read another config after its next restart, by us or by anybody."""
    if not (engine.words and engine.next_words):
        return
    flags = engine.kind.cmdline.config
    config = path_of(engine.words, flags) or engine.kind.config
    later_config = path_of(engine.next_words, flags) or engine.kind.config
    if config == later_config:
        return
    if engine.not_restarted is not None and engine.not_restarted.code == "restart-moves-engine":
        yield engine.not_restarted
    else:
        start = f"at its next start {engine.unit} gives it {later_config}"
        problem = f"configure {engine.title} in {config} ({start})"
        remedy = f"restart {engine.unit} at a time of your choice, then run again"
        yield InstallerError(problem, remedy=remedy, code="engine-flags")


def refuse_unknown(host: Host, engine: EngineState) -> None:
    """Refuse a containerd on the socket of k3s and RKE2 if no unit of either runs.

    Raises:
        InstallerError: the owner of the containerd is unknown.
    """
    candidates: list[str] = []
    for kind in ENGINES.values():
        if kind.socket == engine.kind.socket:
            candidates += kind.units
    if not any(systemd.unit_runs(host, unit) for unit in candidates):
        problem = f"tell whose containerd answers on {engine.socket} (none of {', '.join(candidates)} runs)"
        remedy = Remedy("name the engines with ", Option("runtime"), ", without k3s and rke2")
        raise InstallerError(problem, remedy=remedy, code="engine-unknown")


def refuse_generated(engine: EngineState) -> None:
    """Refuse a config generated by another engine at each start: no edit of ours would last.

    Raises:
        InstallerError: another engine generates the config.
    """
    names = list_generating(engine.kind.process, engine.config, engine.socket)
    if names:
        titles = [ENGINES[name].title for name in names]
        options = [f"--runtime {name}" for name in names]
        whose = " or ".join(titles)
        flags = " or ".join(options)
        problem = f"configure the containerd of {whose} (it writes {engine.config} itself)"
        remedy = f"run toolkit-installer with {flags}"
        raise InstallerError(problem, remedy=remedy, code="engine-generates-config")


def drop_unused(
    host: Host, record: Record, engines: tuple[EngineState, ...]
) -> tuple[tuple[EngineState, ...], tuple[str, ...]]:
    """Drop a containerd that only serves Docker, with CRI or without; return the other engines and a note.

    A Docker of the ledger counts, too: Docker may be stopped.
    """
    kinds = [engine.kind for engine in engines]
    kinds += [ENGINES[row.name] for row in record.engines]
    user = next((kind for kind in kinds if kind.lower_engine), None)
    if user is None:
        return engines, ()
    lower = next((engine for engine in engines if engine.name == user.lower_engine), None)
    if lower is None or record.engine(lower.name) is not None:
        return engines, ()
    if any(map(is_ours, lower.served.binaries.values())) or host.names(PurePosixPath("/var/lib/kubelet")):
        return engines, ()

    with suppress(InstallerError):  # an engine that cannot be asked counts as used
        if not api_of(lower.kind).list_pods(host.local_path(lower.socket), timeout_s=ASK_S):
            others = tuple(engine for engine in engines if engine is not lower)
            reason = f"it serves {user.title}, and its CRI is not used (no kubelet, no pod)"
            return others, (f"left {lower.name} alone: {reason}",)
    return engines, ()


def explain_absence(host: Host, options: Options, notes: Iterable[str]) -> InstallerError:
    """Return why no engine of the options is found."""
    asked = list_asked(options)
    for kind in asked:
        unreadable = _find_unreadable_config(host, kind, options)
        if unreadable is not None:
            return unreadable
    paths = dict.fromkeys(str(kind.socket) for kind in asked)
    sockets = ", ".join(paths)
    reasons = list(notes)
    units = dict.fromkeys(kind.unit for kind in asked)
    for unit in units:
        if systemd.look_at_unit(host, unit).load == "not-found":
            continue
        unit_end = systemd.describe_unit_end(host, unit)
        if unit_end:
            reasons.append(unit_end)
    reason = "; ".join(reasons) or f"nothing answers on {sockets}"
    remedy = Remedy(
        "start one, or name it with ", Option("runtime"), " and its socket with ", Option("socket")
    )
    return InstallerError(f"find a running engine ({reason})", remedy=remedy, code="engine-not-found")


def _find_unreadable_config(host: Host, kind: Engine, options: Options) -> InstallerError | None:
    """Return why the config of an engine that is down cannot be read: the engine may be down for that."""
    unit = systemd.look_at_unit(host, kind.unit)
    if unit.load != "loaded" or unit.active == "active" or kind.built_in_runtime:
        return None
    engine = replace(look_for(kind, options), stopped=True)
    try:
        engine, _ = with_process(host, engine, options.places.get(kind.name, Places()))
        for path in with_configs(host, with_drop_in(host, engine)).files:
            tree_of(host.read(path), path)
    except InstallerError as error:
        return error
    return None
