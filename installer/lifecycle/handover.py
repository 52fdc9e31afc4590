"""A ``run`` that is about to take the place of one that stops, which then has nothing to undo.

A pod that is deleted by force is stopped when the next one of its DaemonSet is being made already. An
undo would restart the engine under that one, which would install and restart it once more.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from installer.change.ledger import Ledger, read_record
from installer.engines.containers import find_own_pid
from installer.errors import Exit, InstallerError, LockedError, UndoIncompleteError
from installer.host import unit_jobs
from installer.host.events import log
from installer.host.files import Host
from installer.host.kubernetes import is_replica_made
from installer.host.locks import Lock, announce_wait, is_awaited, is_held_pidfile, lock_directory
from installer.host.supervision import BARE, START, child_command, current_run, raise_if_stopped
from installer.model.facts import Record
from installer.model.files import PATH, File, Kind, Layout, Meta
from installer.model.options import Options, RestartMode

RECENT_S: Final = 5.0
SIGN_S: Final = 1.0  # from the stop to the next pod's directory: the kubelet waits for its volumes first
START_S: Final = 10.0  # and from there to its run; what is left of the pod's grace is enough for an undo
ENDS_S: Final = 30.0  # an undo ends within 25 s
POLL_S: Final = 0.05
UNIT: Final = "toolkit-installer-undo.service"  # carries on the undo of a container that has to end first
TAKEN_S: Final = 10.0
REMEDY: Final = "run uninstall on the node, or as a Job: everything is still installed"


def await_next_run(host: Host, lock: Lock) -> bool:
    """Tell whether another ``run`` waits for the ``lock`` of a run that was asked to stop."""
    stopped_s, until, comes = time.time(), time.monotonic() + SIGN_S, False
    while not is_awaited(lock):
        made = is_replica_made(host, stopped_s - RECENT_S)
        if made and not comes:
            log.info("waiting for the next pod", seconds=START_S, reason="the kubelet starts another")
            comes, until = True, time.monotonic() + START_S
        if made is None or time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def ledger_for_run(host: Host, options: Options) -> Ledger:
    """Open the ledger; wait where one that does not serve this node holds it, and announce that we do.

    From then on a stop waits until it is open: whoever left us what he was about to undo relies on us. Raise
    LockedError where a run that serves this node holds it, or it is not free in time.
    """
    try:
        return Ledger.open(host, options.layout, check=raise_if_stopped)
    except LockedError:
        if _serves(host, options):
            raise
    log.info("waiting for another instance", limit_s=ENDS_S)
    with announce_wait(host, options.layout.home):
        return open_within(ENDS_S, host, options.layout, unless=lambda: _serves(host, options))


def _serves(host: Host, options: Options) -> bool:
    """Tell whether the holder of the ledger serves: one that stops removes its pidfile first."""
    # One that is not locked is of a ``run`` that was killed: what it had started ends between two steps.
    files = {options.pid_file}
    with suppress(InstallerError):
        held = read_record(host, options.layout)
        files |= {held.pid_file} if held and held.pid_file else set()
    return any(is_held_pidfile(host.local_path(path)) for path in files)


def hand_over(host: Host, options: Options, record: Record) -> bool:
    """Hand the undo to a unit where our container holds up its engine; UndoIncompleteError: it cannot be."""
    rows = [row for row in record.engines if row.spec.finishes_calls]
    pids = (find_own_pid(host, row.state or row.spec.state.usual) for row in rows)
    pid = next((pid for pid in pids if pid is not None), None)
    if pid is None or options.restart_mode is RestartMode.NONE:
        return False
    found = [path for path in (place / "nsenter" for place in PATH) if host.kind(path) is Kind.FILE]
    if not found:
        raise _handover_error("leave this container to undo (the node has no nsenter)")
    # It undoes as this process would: with its environment, and options of its own.
    copy = options.options_file.with_name(f"{options.options_file.name}.undo")
    host.replace(copy, File(current_run().options.read_bytes(), Meta(0o600)))
    words = (str(found[0]), "-t", str(pid), "-m", "--", *BARE, START, "successor", str(current_run().pid))
    words += (*child_command(), "undo", str(host.local_path(copy)), "", "0")
    try:
        unit_jobs.start_transient(host, UNIT, words)
    except InstallerError as error:
        raise _handover_error(f"hand over the undo ({error.problem})") from error
    log.info("undo handed over", unit=UNIT, reason=f"{rows[0].name} restarts when this container has ended")
    return True


def await_successor(options: Options) -> Exit:
    """Return when another process has the ledger, or is done with it; UndoIncompleteError: none takes it."""
    host, deadline = Host.under(options.host_root, options.mounts), time.monotonic() + TAKEN_S
    while time.monotonic() < deadline:
        try:
            lock = lock_directory(host, options.layout.home)
        except LockedError:
            return Exit.OK
        if lock is None:
            return Exit.OK
        lock.release()
        time.sleep(POLL_S)
    raise _handover_error(f"hand over the undo ({UNIT} does not start)")


def _handover_error(problem: str) -> UndoIncompleteError:
    return UndoIncompleteError(problem, remedy=REMEDY, code="undo-not-handed-over")


def open_within(
    seconds: float, host: Host, layout: Layout, unless: Callable[[], bool] = lambda: False
) -> Ledger:
    """Open the ledger once it is free; LockedError: it is held for longer, or ``unless`` holds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return Ledger.open(host, layout)
        except LockedError:
            if unless() or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
