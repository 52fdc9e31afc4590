"""What a stop of ``run`` does: everything is kept, or undone, here or by somebody else."""

import time
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer import figures
from installer.decide.errors import Exit, InstallerError
from installer.decide.options import Options
from installer.host import signals, systemd
from installer.host.events import log
from installer.host.files import Host
from installer.host.supervision import HANDED_OVER
from installer.record import next_run, successor
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger, opened
from installer.record.units import buses
from installer.uninstall import UNDO_S, opened_by_run, remove_readiness, undo, undoing

NODE_S: Final = 2.0  # systemd may be kept busy, and a pod has 30 s for all by default
INIT_NAME: Final = PurePosixPath("/proc/1/comm")


def stop(options: Options, stopped_s: float) -> int:
    """Do what a stop of ``run`` asks for, which has come at ``stopped_s`` of ``time.monotonic``.

    Returns:
        An exit code; ``HANDED_OVER`` where somebody else is to carry the undo on.
    """
    log.info("stop requested")
    host = Host.under(options.host_root, options.mounts)
    with undoing(), opened_by_run(host, options, signals.check_parent) as ledger:
        return HANDED_OVER if _stop(host, options, ledger, stopped_s + UNDO_S) else Exit.OK


def await_successor(options: Options) -> Exit:
    """Return when the unit that carries the undo on has the ledger."""
    successor.await_successor(Host.under(options.host_root, options.mounts), options.layout)
    return Exit.OK


def carry_on(options: Options) -> Exit:
    """Do the undo of a ``run`` that had to end first."""
    host = Host.under(options.host_root, options.mounts)
    opening = partial(successor.ledger_of_predecessor, host, options.layout)
    with undoing(), opened(opening) as ledger, figures.failures_told(host, options, ledger):
        undo(host, options, ledger)
    return Exit.OK


def _stop(host: Host, options: Options, ledger: Ledger, until_s: float) -> bool:
    """Do what a stop of ``run`` asks for; tell whether the undo was handed over to somebody else."""
    if node_stops(host):
        log.info("everything kept", reason="the node is going down")
    elif not options.on_exit.undoes:
        remove_readiness(host, options, ledger)
        log.info("everything kept", reason=f"asked for with --on-exit {options.on_exit}")
    elif _replaced(host, options, ledger):
        log.info("everything kept", reason="the next run takes over")
    elif successor.handed_over(host, options, ledger.held):
        remove_readiness(host, options, ledger)
        return True
    else:
        undo(host, options, ledger, within_s=until_s - time.monotonic())
    return False


def _replaced(host: Host, options: Options, ledger: Ledger) -> bool:
    """Tell whether another ``run`` is about to take our place; without a pidfile it waits for the ledger."""
    remove_readiness(host, options, ledger)
    return next_run.await_next_run(host, ledger.lock)


def node_stops(host: Host) -> bool:
    """Tell whether the node is being shut down, so that what is installed must outlive us.

    A kubelet with a grace for that (shutdownGracePeriod) stops the pods before systemd begins.
    """
    with suppress(InstallerError), internal_errors():
        if systemd.shutdown_prepared(buses(host), timeout_s=NODE_S):
            return True
    try:
        with internal_errors():
            return systemd.system_state(buses(host), timeout_s=NODE_S) == "stopping"
    except InstallerError:
        # The last processes are told to stop when systemd has already given way to its own last program.
        with suppress(InstallerError):
            init = host.read(INIT_NAME)
            return init is not None and init.content.startswith(b"systemd-shutdow")
        return False
