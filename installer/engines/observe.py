"""The engines that run here: each is asked what it serves, and its process and unit where its configs are."""

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
    with_configs,
    with_drop_in,
    with_places,
    with_readable_configs,
)
from installer.engines.dependencies import RESTART, explain_silence, without_cri
from installer.engines.startup import (
    explain_overruling,
    find_place,
    find_refusals,
    flags_of,
    next_start,
    path_of,
    places_by_files,
    process_path,
    read_start,
    values_of,
)
from installer.engines.stopped_units import explain_stopped_units
from installer.engines.templates import digest_inputs, explain_inputs, explain_template, list_edited_inputs
from installer.errors import InstallerError, Option, Remedy
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.sockets import list_listening
from installer.model.engine import Engine, EngineState, Flags, Started, is_ours
from installer.model.facts import EngineRow, Record
from installer.model.options import Options, Places

PROC: Final = PurePosixPath("/proc")
POLL_S: Final = 0.1
ANSWER_S: Final = 1.0  # of several sockets, one that is no API hangs perhaps


class RunningEngines(Struct, frozen=True):
    """The engines that are asked for and run here."""

    engines: tuple[EngineState, ...]
    notes: tuple[str, ...]  # about the others
    overruled: tuple[InstallerError, ...]  # what stands against what is asked for
    refused: Mapping[str, InstallerError]  # by name, why configs are not known


def list_asked(options: Options) -> tuple[Engine, ...]:
    """Return the engines to look at: the ones named, or all for ``auto``."""
    return tuple(ENGINES[name] for name in (ENGINES if options.auto else options.engines))


def find_engines(host: Host, options: Options, record: Record, crash_s: float = 0.0) -> RunningEngines:
    """Return the engines that are asked for and run here, and what is to be said of them.

    One that has crashed, and that systemd is about to start again, is waited for ``crash_s``. Raises
    InstallerError where none of them runs here, or one cannot be taken for what it is.
    """
    engines: list[EngineState] = []
    notes: list[str] = []
    overruled: list[InstallerError] = []
    refused: dict[str, InstallerError] = {}
    asked = list_asked(options)
    for spec in asked:
        name, places = spec.name, options.places.get(spec.name, Places())
        row = record.engine(name)
        moved = row if places.socket is None else None
        engine = _ask_crashed(host, look_for(spec, options), options, crash_s)
        engine = locate(host, engine, moved, options) if moved else engine
        # One that is only what keeps another from answering is not looked for.
        silent = engine.serving is None and not (engine.failed or name in record.served)
        waiting = (each for each in engines if each.serving is None and each.spec.lower_engine == name)
        if options.auto and (engine.stopped or engine.disabled or (silent and any(waiting))):
            reason = without_cri(host, [each.name for each in engines]) if engine.disabled else engine.another
            notes += [f"left {name} alone: {reason}"] if reason else []
            continue
        if engine.another:
            raise InstallerError(engine.silence, remedy=engine.remedy, code="engine-unknown")
        engine, _ = with_process(host, engine, places)
        if spec.built_in_runtime and engine.unit not in spec.units:
            if not engine.unit:
                refuse_unknown(host, engine)
            continue  # its sibling, on the same socket
        overruled += [
            *explain_overruling(spec, list_said(engine.started), options, "it was started")
        ] or explain_overruling(spec, list_said(engine.next_start), options, "its unit starts it")
        overruled += explain_moving(engine)
        try:
            engine = with_drop_in(host, engine)
            overruled += explain_unread(host, engine)
            overruled += explain_unread_root(host, engine, places)
            if not (record.finished and row is not None and not row.pending):
                ours = (engine.drop_in,) if engine.drop_in is not None else ()
                engine = replace(engine, outdated=is_outdated(host, engine, ours))
            if not spec.config_markers:
                refuse_generated(engine)
            engines.append(with_configs(host, engine))
        except InstallerError as error:  # what is wrong with the others is reported as well
            refused[name] = error
    if asked and not (engines or refused):
        raise explain_absence(host, options, notes)
    return RunningEngines(tuple(engines), tuple(notes), tuple(overruled), refused)


def list_said(start: Started | None) -> tuple[str, ...]:
    """Return the words and the variables of a start."""
    return (*start.words, *map("=".join, start.environment.items())) if start else ()


def observe_row(
    host: Host, row: EngineRow, paths: Iterable[PurePosixPath], options: Options, *, awaits_s: float = inf
) -> EngineState:
    """Return an engine of the ledger, with its configs, those at ``paths`` among them."""
    spec, paths = ENGINES[row.name], tuple(paths)
    engine = locate(host, ask_for(host, engine_of_row(row), options, awaits_s), row, options)
    engine, _ = with_process(host, engine, Places())
    # CRI-O watches the directories of its hooks (engine-facts.md#crio-hooks).
    read = (path for path in paths if path.parent != spec.hook_dir)
    engine = with_readable_configs(host, replace(engine, outdated=is_outdated(host, engine, read)))
    return replace(engine, files=tuple(dict.fromkeys((*engine.files, *paths))))


def engine_of_row(row: EngineRow) -> EngineState:
    """Return an engine of the ledger as its last install has seen it; it is not observed again."""
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
    """Ask an engine; one that has crashed, and that systemd is about to start again, is waited for."""
    engine = ask_for(host, sought, options)
    # One that was stopped has taken its socket along.
    crashed = crash_s and engine.stopped and host.exists(sought.socket)
    comes = crashed and unit_jobs.await_start(host, sought.unit, timeout_s=crash_s)
    return ask_for(host, sought, options) if comes else engine


def with_process(host: Host, engine: EngineState, places: Places) -> tuple[EngineState, systemd.Unit]:
    """Return an engine that was asked, with what its process and its unit tell, and that unit."""
    if engine.pid is None and not engine.stopped and engine.unit in engine.spec.units:
        # Of several units, the one that runs.
        running = (unit for unit in engine.spec.units if systemd.unit_runs(host, unit))
        engine = replace(engine, unit=next(running, ""))
    unit = systemd.look_at_unit(host, engine.unit)
    engine = with_places(host, replace(engine, started=read_start(host, engine, unit)), places)
    if engine.serving is None and not (engine.stopped or engine.failed or engine.disabled):
        address_flags = engine.spec.cmdline.addresses
        addresses = ", ".join(values_of(engine.words, address_flags))
        if why := explain_silence(host, engine):
            engine = replace(engine, silence=why, remedy=RESTART)
        elif addresses and "fd://" not in addresses:  # systemd hands over the socket of fd://
            silence = f"{engine.silence}; its {address_flags[0]} is {addresses}"
            engine = replace(engine, silence=silence)
    state = engine.served.state or find_place(host, engine.spec.state, engine.words, engine.config)
    build = host.build_of(engine.exe) if engine.exe else ""
    return with_start(host, replace(engine, build=build, state=state), unit), unit


def look_for(spec: Engine, options: Options) -> EngineState:
    """Return where an engine is looked for: where the operator says, else at its usual places."""
    places, usual = options.places.get(spec.name, Places()), EngineState.usual(spec)
    return replace(
        usual,
        config=places.config or usual.config,
        drop_in=places.drop_in or usual.drop_in,
        hook=options.crio_hook if spec.hook_dir else None,
        socket=places.socket or usual.socket,
    )


def ask_for(host: Host, sought: EngineState, options: Options, awaits_s: float = inf) -> EngineState:
    """Ask an engine what it serves, and again for ``awaits_s`` while it restarts itself, and is silent."""
    spec = sought.spec
    if is_socket_activated(host, spec, sought.socket, sought.unit):
        return replace(sought, stopped=True, silence=f"{sought.unit} is stopped, and systemd listens for it")
    engine = ask(host, sought, timeout_s=min(ASK_S, options.timeout_s))
    if not spec.restarts_itself or not host.exists(sought.socket):
        return engine
    deadline = time.monotonic() + min(spec.start_s, awaits_s)
    while engine.serving is None and not (engine.failed or engine.disabled) and time.monotonic() < deadline:
        if not any(systemd.unit_runs(host, unit) for unit in spec.units):
            break
        time.sleep(POLL_S)
        engine = ask(host, sought, timeout_s=ANSWER_S)
    return engine


def locate(host: Host, engine: EngineState, row: EngineRow, options: Options) -> EngineState:
    """Return an engine of the ledger, which was asked, with its answer where it listens."""
    spec, of_another = engine.spec, engine.pid is not None and engine.unit not in {"", row.unit}
    if not row.unit or not (engine.stopped or of_another):
        return engine
    # It may have another address now: that which is named, or one that the process of the unit listens on.
    named = options.places.get(engine.name, Places()).socket or row.socket
    others = (named, row.socket, *_sockets(host, row.unit)) if not spec.built_in_runtime else ()
    for socket in dict.fromkeys(path for path in others if path != engine.socket):
        if is_socket_activated(host, spec, socket, row.unit):
            continue
        found = ask(host, replace(engine, socket=socket, unit=row.unit), timeout_s=ANSWER_S)
        if (found.serving is not None or found.failed or found.disabled) and found.unit == row.unit:
            return found
    if engine.stopped and not spec.reads_config_on_signal:
        unit = systemd.look_at_unit(host, row.unit)
        crashing = unit.active == "activating"  # as one is all the time whose service ends at each start
        remedy = f"restart {engine.title}" if unit.active == "active" else ""  # its socket is gone, say
        return replace(engine, crashing=crashing, stopped=unit.is_at_rest, remedy=remedy)
    return engine


def _sockets(host: Host, unit: str) -> Iterator[PurePosixPath]:
    """Yield what the main process of a unit listens on, short names first: they are those of the API."""
    state = systemd.look_at_unit(host, unit)
    if state.active == "active" and state.main_pid:
        for path in sorted(list_listening(host.local_path(PROC) / str(state.main_pid)), key=len):
            # Each who connects to that is a plugin, and keeps others out while he says nothing.
            if PurePosixPath(path).name != "nri.sock":
                yield PurePosixPath(path)


def with_start(host: Host, engine: EngineState, unit: systemd.Unit | None = None) -> EngineState:
    """Return an engine with how its unit will start it, what its start tells, and why not to restart it."""
    spec, unit = engine.spec, unit or systemd.look_at_unit(host, engine.unit)
    later = next_start(host, engine, unit.start)  # of a unit that was edited, after we have gone perhaps
    how = later if engine.stopped else engine.started
    programs = [host.build_of(PurePosixPath("".join(words[:1]))) for _, words in unit.start.before]
    engine = replace(
        with_flags(replace(engine, next_start=later)),
        paths=tuple(dict.fromkeys(each.paths for each in (how, later) if each)),
        start=sha256(repr((unit.start, programs)).encode()).hexdigest(),
        inputs=digest_inputs(host, engine),
        edited_inputs=tuple(list_edited_inputs(host, engine)),
        replaced=is_replaced(host, engine),
    )
    if not spec.is_restarted:
        return engine
    reasons = chain(
        find_refusals(host, engine, unit.start, process_path(host, engine, unit)),
        explain_inputs(host, engine),
        explain_template(host, engine),
        explain_stopped_units(host, engine, unit),
    )
    reason = next(reasons, None)
    return replace(engine, places_by_files=places_by_files(engine), not_restarted=reason)


def with_flags(engine: EngineState) -> EngineState:
    """Return an engine with what the flags of its start, and of its next start, say of runtimes."""
    spec, later = engine.spec, engine.next_start
    how = later if engine.stopped else engine.started
    return replace(
        engine,
        flags=flags_of(spec, how) if how else Flags(),
        next_flags=flags_of(spec, later) if later else Flags(),
    )


def explain_moving(engine: EngineState) -> Iterator[InstallerError]:
    """Yield why an engine would read another config as soon as it is restarted, by us or by anybody."""
    flags, usual = engine.spec.cmdline.config, engine.spec.config
    now, later = path_of(engine.words, flags) or usual, path_of(engine.next_words, flags) or usual
    if not (engine.words and engine.next_words) or now == later:
        return
    if engine.not_restarted is not None and engine.not_restarted.code == "restart-moves-engine":
        yield engine.not_restarted
    else:
        problem = f"configure {engine.title} in {now} (at its next start {engine.unit} gives it {later})"
        remedy = f"restart {engine.unit} at a time of your choice, then run again"
        yield InstallerError(problem, remedy=remedy, code="engine-flags")


def refuse_unknown(host: Host, engine: EngineState) -> None:
    """Raise where it is not known whose containerd answers on the socket of k3s and RKE2."""
    socket = engine.spec.socket
    candidates = [unit for spec in ENGINES.values() if spec.socket == socket for unit in spec.units]
    if not any(systemd.unit_runs(host, unit) for unit in candidates):
        problem = f"tell whose containerd answers on {engine.socket} (none of {', '.join(candidates)} runs)"
        remedy = Remedy("name the engines with ", Option("runtime"), ", without k3s and rke2")
        raise InstallerError(problem, remedy=remedy, code="engine-unknown")


def refuse_generated(engine: EngineState) -> None:
    """Raise where another engine makes the config anew at each start, so that no edit of ours would last."""
    names = list_generating(engine.spec.process, engine.config, engine.socket)
    if names:
        whose = " or ".join(ENGINES[name].title for name in names)
        flags = " or ".join(f"--runtime {name}" for name in names)
        problem = f"configure the containerd of {whose} (it writes {engine.config} itself)"
        remedy = f"run toolkit-installer with {flags}"
        raise InstallerError(problem, remedy=remedy, code="engine-generates-config")


def drop_unused(
    host: Host, record: Record, engines: tuple[EngineState, ...]
) -> tuple[tuple[EngineState, ...], tuple[str, ...]]:
    """Return the engines less a containerd that only serves Docker, with CRI or without; and a note of it.

    A Docker of the ledger may be stopped.
    """
    specs = (*(each.spec for each in engines), *(ENGINES[row.name] for row in record.engines))
    user = next((spec for spec in specs if spec.lower_engine), None)
    beside = next((each for each in engines if user and each.name == user.lower_engine), None)
    if user is None or beside is None or record.engine(beside.name) is not None:
        return engines, ()
    if any(map(is_ours, beside.served.binaries.values())) or host.names(PurePosixPath("/var/lib/kubelet")):
        return engines, ()
    with suppress(InstallerError):  # what cannot be asked counts as used
        if not api_of(beside.spec).list_pods(host.local_path(beside.socket), timeout_s=ASK_S):
            left = tuple(each for each in engines if each is not beside)
            unused = f"it serves {user.title}, and its CRI is not used (no kubelet, no pod)"
            return left, (f"left {beside.name} alone: {unused}",)
    return engines, ()


def explain_absence(host: Host, options: Options, notes: Iterable[str]) -> InstallerError:
    """Return why no engine is found that is to be configured."""
    asked = list_asked(options)
    sockets = ", ".join(dict.fromkeys(str(spec.socket) for spec in asked))
    units = dict.fromkeys(spec.unit for spec in asked)
    known = (unit for unit in units if systemd.look_at_unit(host, unit).load != "not-found")
    dead = [systemd.describe_unit_end(host, unit) for unit in known]
    reason = "; ".join((*notes, *filter(None, dead))) or f"nothing answers on {sockets}"
    remedy = Remedy(
        "start one, or name it with ", Option("runtime"), " and its socket with ", Option("socket")
    )
    return InstallerError(f"find a running engine ({reason})", remedy=remedy, code="engine-not-found")
