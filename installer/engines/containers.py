"""The containers that run on our runtimes, whichever engine started them, and the wait for those in creation.

A container is found by the program that started it, from the records of shims and of CRI-O on the disk. The
name of a handler does not tell: the default handler has none, and a config may have changed since the start.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.apis import api_of
from installer.engines.ask import is_socket_activated
from installer.engines.container_records import (
    WITH_SHIMS,
    list_creating,
    list_crio_containers,
    list_shim_containers,
)
from installer.engines.engine_api import KeptContainer
from installer.engines.observe import engine_of_row
from installer.engines.stopped_units import TASKS
from installer.engines.toolkit_paths import comes_back, find_below_toolkit, leads_to
from installer.errors import InstallerError
from installer.host.events import log
from installer.host.files import Host
from installer.host.processes import PROC
from installer.model.effective import OUR_BINARIES
from installer.model.engine import SHORT_ID, EngineState
from installer.model.facts import Container, EngineRow, Record, Reference, names_of
from installer.model.files import ROOT, Kind, Layout, host_path

SHIM: Final = "containerd-shim"  # the name of its process, cut off by the kernel
ASK_S: Final = 3.0
NOTICED_S: Final = 0.5  # until CRI-O has noticed a removed hook; it may still write a bundle with the hook
CREATED_S: Final = 10.0
CREATED_POLL_S: Final = 0.05


def find_running_containers(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[Container, ...]:
    """List the containers on runtimes of this install-dir, or with a hook from there still to run.

    Engines with a completed undo count as well: after a forced undo their containers still use our links.

    Args:
        host: The node.
        layout: The install-dir.
        record: The ledger.
        engines: The observed engines; an engine of the ledger may be missing here.
        restarts: Whether we may restart engines; otherwise CRI-O uses its present default for pods
            without a handler.
    """
    if record.toolkit is None:
        return ()
    binaries = frozenset(layout.toolkit / name for name in OUR_BINARIES)
    find_owners = partial(_find_program, host, layout)

    @cache
    def owners(path: str) -> PurePosixPath | None:
        program = find_owners(path)
        # A program that comes back with the owner's own directory needs no toolkit.
        return None if program is None or comes_back(host, layout, program) else program

    def leads(path: str) -> PurePosixPath | None:
        if not path.startswith("/"):
            return None
        with suppress(InstallerError):
            return leads_to(host, PurePosixPath(path), layout)
        return None

    states = list_states(host, record, engines)
    containers = list(list_shim_containers(host, states, binaries, leads=leads, owners=owners))
    for row in record.engines:
        kind = ENGINES[row.name]
        if kind.has_shims:
            continue
        engine = _find_engine(engines, row.name) or engine_of_row(row)
        handlers = _list_handlers(engine, row, binaries, restarts=restarts)
        state = engine.state or row.state or kind.state.usual
        containers += list_crio_containers(
            host, row.name, state, handlers, binaries, leads=leads, owners=owners
        )
    return tuple(containers)


def find_programs_in_use(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState]
) -> Iterator[Reference]:
    """Yield each program in the toolkit's directory that runs containers; an owner may have put it there."""
    owners = cache(partial(_find_program, host, layout))
    states = list_states(host, record, engines)
    containers = [*list_shim_containers(host, states, frozenset(), owners=owners)]
    for engine in engines:
        if not engine.kind.has_shims:
            state = engine.state or engine.kind.state.usual
            containers += list_crio_containers(host, engine.name, state, {}, frozenset(), owners=owners)
    by_program: dict[PurePosixPath, list[Container]] = {}
    for container in containers:
        by_program.setdefault(container.binary, []).append(container)
    for program, its_containers in by_program.items():
        yield Reference(f"{names_of(its_containers)} runs on", str(program))


def find_programs_below(host: Host, layout: Layout, state: PurePosixPath) -> Iterator[Reference]:
    """Yield each program in the toolkit's directory that runs a container with a shim.

    Args:
        host: The node.
        layout: The install-dir.
        state: The directory of an engine's records of containers.
    """
    owners = cache(partial(_find_program, host, layout))
    for container in list_shim_containers(host, {state: ""}, frozenset(), owners=owners):
        how = f"the container {container.name}, whose records are in {state}, runs on"
        yield Reference(how, str(container.binary), "stop and remove that container")


def find_state_of_shim(host: Host, pid: int) -> PurePosixPath | None:
    """Return the directory of an engine's records, by the working directory of a shim: a bundle in there."""
    with suppress(InstallerError):  # without CAP_SYS_PTRACE the directory of another process is unknown
        bundle = PurePosixPath(host.link_target(PROC / str(pid) / "cwd") or ROOT)
        if bundle.parent.parent.name == TASKS:
            return bundle.parent.parent.parent
    return None


def _find_program(host: Host, layout: Layout, path: str) -> PurePosixPath | None:
    """Return the program at a path in the toolkit's directory, or behind a link to there."""
    if not path.startswith("/"):
        return None
    with suppress(InstallerError):
        for program in (host_path(path), host.resolve(PurePosixPath(path))):
            below = find_below_toolkit(layout, program)
            if below is not None and host.kind(program) is Kind.FILE:
                return program
    return None


def _list_handlers(
    engine: EngineState, row: EngineRow, binaries: frozenset[PurePosixPath], *, restarts: bool
) -> dict[str, PurePosixPath]:
    """Map the handlers that lead to our runtimes to their programs, "" for pods without a handler."""
    # A pod on a handler of its owner's needs our program, too (engine-facts.md#crio-absent-program).
    handlers: dict[str, PurePosixPath] = {}
    for name, binary in engine.served.binaries.items():
        if PurePosixPath(binary) in binaries:
            handlers[name] = PurePosixPath(binary)
    handlers.update(row.runtimes)
    default = engine.served.default
    if default in handlers and not restarts:
        handlers[""] = handlers[default]
    return handlers


def _find_engine(engines: Collection[EngineState], name: str) -> EngineState | None:
    """Return the engine of a name."""
    return next((engine for engine in engines if engine.name == name), None)


def list_states(host: Host, record: Record, engines: Collection[EngineState]) -> dict[PurePosixPath, str]:
    """Map the directories of shims' records to their engines, links followed as a shim's own directory is."""
    states: dict[PurePosixPath, str] = {}
    for kind in reversed(WITH_SHIMS):  # of two engines with the same directory the first wins
        states[kind.state.usual] = kind.name
    for row in record.engines:  # a stopped engine does not show its directory
        if row.state and ENGINES[row.name].has_shims:
            states[row.state] = row.name
    for engine in engines:
        if engine.state and engine.kind.has_shims:
            states[engine.state] = engine.name
    return {host.resolve(state): name for state, name in states.items()}


def find_in_use(
    host: Host, layout: Layout, record: Record, engines: Collection[EngineState], *, restarts: bool = True
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    """List the containers that need our runtimes, and the names of stopped containers that will need them.

    Arguments: see ``find_running_containers``.
    """
    keepers = [row for row in record.engines if ENGINES[row.name].keeps_containers]
    # Docker is asked first: a container that it calls running, and that has no shim after that, has ended.
    kept_containers = {row.name: _list_kept_containers(host, row, engines) for row in keepers}
    running = find_running_containers(host, layout, record, engines, restarts=restarts)
    running_ids = {container.id for container in running}

    names: dict[str, str] = {}
    between_lives: list[Container] = []
    stopped: list[str] = []
    for row in keepers:
        shim_ids = _list_shim_ids(host, record, engines, ENGINES[row.name].namespace)
        for kept in kept_containers[row.name]:
            names[kept.id] = kept.name
            if kept.runtime not in row.runtimes or kept.id in running_ids:
                continue
            if not (kept.running or kept.restarting):
                stopped.append(kept.name)
            elif record.toolkit and (kept.restarting or kept.id not in shim_ids):
                # A container that crashes again and again has no shim between two lives.
                between_lives.append(Container(row.name, kept.id, kept.name, row.runtimes[kept.runtime]))

    named = [replace(container, name=names.get(container.id, container.name)) for container in running]
    return (*named, *between_lives), tuple(sorted(stopped))


def _list_shim_ids(host: Host, record: Record, engines: Collection[EngineState], namespace: str) -> set[str]:
    """List the ids of the containers of a namespace with a shim, in all directories of records."""
    states = list_states(host, record, engines)
    directories = {host.resolve(state / TASKS / namespace) for state in states}
    ids: set[str] = set()
    for directory in directories:
        ids.update(host.names(directory))
    return ids


def _list_kept_containers(
    host: Host, row: EngineRow, engines: Collection[EngineState]
) -> tuple[KeptContainer, ...]:
    """List the containers kept by an engine; none if the engine is stopped or does not answer."""
    kind = ENGINES[row.name]
    engine = _find_engine(engines, row.name)
    answers = engine is not None and engine.serving is not None
    if not answers and is_socket_activated(host, kind, row.socket, row.unit):
        return ()
    with suppress(InstallerError):
        return api_of(kind).list_kept_containers(host.local_path(row.socket), timeout_s=ASK_S)
    return ()


def list_hooks(host: Host, engine: EngineState) -> Iterator[PurePosixPath]:
    """Yield the OCI hooks run by an engine; without an answer, the hooks of its usual directory."""
    directories = list(engine.served.hook_dirs)
    if not directories and engine.kind.hook_dir:
        directories.append(engine.kind.hook_dir)
    if engine.hook is not None and engine.hook.parent not in directories:
        directories.append(engine.hook.parent)
    for directory in directories:
        for name in host.names(directory):
            if name.endswith(".json") and host.kind(directory / name) is Kind.FILE:
                yield directory / name


def await_created(host: Host, engine: EngineState, layout: Layout, check: Callable[[], None]) -> None:
    """Wait until each container in creation has run our hook, already removed from the engine's hooks."""
    if engine.serving is None:
        return
    time.sleep(NOTICED_S)
    deadline = time.monotonic() + CREATED_S
    state = engine.state or engine.kind.state.usual
    while creating := tuple(list_creating(host, state, layout.toolkit)):
        if time.monotonic() > deadline:
            ids = [container_id[:SHORT_ID] for container_id in creating]
            reason = "they need our hook to start, and it is removed now; delete their pods if they stay so"
            log.warning("containers stuck in CREATED", containers=ids, reason=reason)
            return
        check()
        time.sleep(CREATED_POLL_S)
