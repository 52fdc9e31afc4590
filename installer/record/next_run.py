"""A ``run`` that is about to take the place of one that stops, which then has nothing to undo.

A pod that is deleted by force is told to stop when the next one of its DaemonSet is being made already. An
undo would restart the engine under that one, which would install and restart it once more.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from installer.decide.errors import InstallerError, LockedError
from installer.decide.options import Options
from installer.host.claims import claimed, is_claimed
from installer.host.events import log
from installer.host.files import Host
from installer.host.glance import is_held_pidfile
from installer.host.locks import Lock
from installer.host.pods import changed_since, replicas
from installer.record.ledger import Ledger, read_record

RECENT_S: Final = 5.0
SIGN_S: Final = 1.0  # from the stop to the next pod's directory: the kubelet waits for its volumes first
START_S: Final = 10.0  # and from there to its run; what is left of the pod's grace is enough for an undo
ENDS_S: Final = 30.0  # an undo ends within 25 s
POLL_S: Final = 0.05


def await_next_run(host: Host, lock: Lock) -> bool:
    """Tell whether another ``run`` waits for the ``lock`` of a run that was told to stop.

    That takes time only where the kubelet may be making another pod like ours.
    """
    stopped_s = time.time()
    until = time.monotonic() + SIGN_S
    comes = False
    while not is_claimed(lock):
        others = replicas(host)
        if not comes and others is not None and changed_since(host, others, stopped_s - RECENT_S):
            log.info("waiting for the next pod", seconds=START_S, reason="the kubelet makes one like this")
            comes, until = True, time.monotonic() + START_S
        if others is None or time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def ledger_for_run(host: Host, options: Options, opening: Callable[[], Ledger]) -> Ledger:
    """Open the ledger; wait where one that does not serve this node holds it, and tell him that we do.

    From then on a stop is looked at when it is open: whoever left us what he was about to undo relies on us.

    Raises:
        LockedError: a run that serves this node holds it, or it is not free in time.
    """
    try:
        return opening()
    except LockedError:
        if _serves(host, options):
            raise
    deadline = time.monotonic() + ENDS_S
    log.info("waiting for another instance", seconds=ENDS_S)
    with claimed(host, options.layout.home):
        while True:
            try:
                return Ledger.open(host, options.layout)
            except LockedError:
                if _serves(host, options) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)


def _serves(host: Host, options: Options) -> bool:
    """Tell whether the holder of the ledger serves: one that stops removes its pidfile first.

    A pidfile that nobody holds is of a ``run`` that was killed: what it had started ends between two steps.
    """
    files = {options.pid_file}
    with suppress(InstallerError):
        held = read_record(host, options.layout)
        files |= {held.pid_file} if held and held.pid_file else set()
    return any(is_held_pidfile(str(host.local_path(path))) for path in files)
