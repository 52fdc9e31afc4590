"""Wait once for the restart of those who have just edited an engine's config: they mostly restart it, too.

kata-deploy, nydus and stargz edit the config of containerd and restart it within the same minute. An install
between the two would restart the engine once for nothing, with an edit that may be half done.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from installer import watch
from installer.change.plan import Plan
from installer.engines.ask import ask
from installer.engines.reload_notes import FRESH_S, list_fresh_edits
from installer.host import supervision
from installer.host.events import log
from installer.host.files import Host
from installer.lifecycle.watched_places import process_of
from installer.model.engine import EngineState
from installer.model.facts import Record

POLL_S: Final = 0.2


def find_fresh_edits(plan: Plan, record: Record) -> dict[str, tuple[PurePosixPath, ...]]:
    """Return the fresh edits of others in the configs of the engines to restart."""
    edits: dict[str, tuple[PurePosixPath, ...]] = {}
    for name in plan.reloaded:
        engine = plan.engines[name]
        paths = tuple(list_fresh_edits(engine, record, plan.seen))
        if paths:
            edits[name] = paths
    return edits


def await_restart(
    host: Host, plan: Plan, edits: Mapping[str, tuple[PurePosixPath, ...]], timeout_s: float
) -> None:
    """Wait until the edited engines were restarted by others, or the edits are not fresh any more.

    Args:
        host: the node.
        plan: the plan to restart the engines.
        edits: the fresh edits of each engine.
        timeout_s: how long an engine may take to answer after the restart.

    Raises:
        StoppedError: a stop is pending.
    """
    engines = [plan.engines[name] for name in edits]
    paths: list[PurePosixPath] = []
    for edited in edits.values():
        paths += edited
    left_s = FRESH_S - (time.time() - max(map(host.changed_s, paths)))
    left_s = min(max(0.0, left_s), FRESH_S)
    reason = "a config was changed seconds ago: whoever did that may be about to restart the engine"
    log.info(
        "waiting for a restart by others",
        engines=sorted(edits),
        paths=[str(path) for path in paths],
        seconds=round(left_s),
        reason=reason,
    )
    places = {engine.name: _list_start_places(host, engine) for engine in engines}
    before = {}
    for name, engine_places in places.items():
        before[name] = watch.fingerprint(engine_places)
    deadline = time.monotonic() + left_s
    waiting = {engine.name: engine for engine in engines}
    while waiting and time.monotonic() < deadline:
        supervision.raise_if_stopped()
        time.sleep(POLL_S)
        for name, engine in [*waiting.items()]:
            if watch.fingerprint(places[name]) != before[name]:
                _await_answer(host, engine, timeout_s)
                del waiting[name]


def _list_start_places(host: Host, engine: EngineState) -> "list[watch.Place]":
    """Return the places that change at each start of an engine."""
    paths: Iterable[PurePosixPath] = (engine.socket,)
    if engine.kind.pidfile is not None:
        paths = (engine.socket, engine.kind.pidfile)
    places = [(watch.PATH, str(host.local_path(path))) for path in paths]
    process = process_of(host, engine)
    if process:
        places.append((watch.EXISTENCE, process))
    return places


def _await_answer(host: Host, engine: EngineState, timeout_s: float) -> None:
    """Wait until an engine serves again after a restart by others."""
    deadline = time.monotonic() + max(timeout_s, engine.kind.start_s)
    while ask(host, engine).serving is None and time.monotonic() < deadline:
        supervision.raise_if_stopped()
        time.sleep(POLL_S)
