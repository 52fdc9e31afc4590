"""The verbs that change the host: lock, apply, wait, undo."""

import signal
from contextlib import suppress

import structlog

from installer import signals
from installer.decide.errors import Exit, InstallerError, UndoIncompleteError
from installer.decide.options import Options
from installer.decide.plan import Plan, plan_install
from installer.decide.steps import Reload
from installer.decide.undo import plan_undo
from installer.host import systemd
from installer.host.files import Host
from installer.host.locks import lock_pidfile, write_pid
from installer.record import ready
from installer.record.engines import buses
from installer.record.ledger import Ledger, remove_leftovers
from installer.record.probe import probe_install, probe_undo
from installer.record.transaction import Site, apply, carry_out, never_stop

log = structlog.get_logger()

UNDO_S = 22.0  # for all engines together, so that an undo ends within a pod's grace of 30 s


def install(options: Options) -> Exit:
    """Install and configure, prove it, and leave it in place."""
    host = Host.under(options.host_root, options.mounts)
    ledger = Ledger.open(host, options.layout)
    try:
        _install(host, options, ledger)
    finally:
        _let_go(ledger)
    return Exit.OK


def run(options: Options) -> Exit:
    """Install, publish readiness, wait for a signal, give everything back."""
    host = Host.under(options.host_root, options.mounts)
    ledger = Ledger.open(host, options.layout)
    try:
        ledger.make_directories(options.pid_file.parent)
        write_pid(lock_pidfile(host, options.pid_file))
        try:
            plan = _install(host, options, ledger)
            _wait(host, options, ledger, plan)
        except signals.StoppedError:
            log.info("stop requested")
        except InstallerError:
            _withdraw(host, options)
            raise
        if _node_stops(host):
            log.info("everything kept: the node is going down")
            return Exit.OK
        _undo(host, options, ledger)
    finally:
        _let_go(ledger)
    return Exit.OK


def uninstall(options: Options) -> Exit:
    """Give back whatever the ledger holds, whoever wrote it."""
    host = Host.under(options.host_root, options.mounts)
    if not host.exists(options.layout.home):
        remove_leftovers(host, options.layout)
        log.info("nothing to undo", install_dir=str(options.install_dir))
        return Exit.OK
    ledger = Ledger.open(host, options.layout)
    try:
        _undo(host, options, ledger)
    finally:
        _let_go(ledger)
    return Exit.OK


def _install(host: Host, options: Options, ledger: Ledger) -> Plan:
    plan = plan_install(probe_install(host, options, ledger.held), options)
    for note in plan.notes:
        log.info("noted", note=note)
    for obstacle in plan.obstacles:
        raise obstacle
    signals.check()
    if any(isinstance(step, Reload) for step in plan.steps):
        host.remove(options.ready_file)
    if plan.steps or plan.settled != ledger.held:
        apply(Site(host, options.layout, ledger, options.timeout_s), plan, signals.check)
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    if plan.unproven:
        log.warning("not proven", engines=list(plan.unproven), reason="no engine was asked what it serves")
    return plan


def _wait(host: Host, options: Options, ledger: Ledger, plan: Plan) -> None:
    """Wait for a stop; on HUP look whether everything is still as wanted."""
    while True:
        if not plan.unproven:
            ready.publish(host, options.ready_file, ledger.held)
        log.info("waiting for a signal")
        if signals.wait() is not signal.SIGHUP:
            log.info("stop requested")
            return
        try:
            plan = _install(host, options, ledger)
        except signals.StoppedError:
            raise
        except InstallerError as error:
            log.warning("not reconciled", problem=error.problem, remedy=error.remedy)


def _undo(host: Host, options: Options, ledger: Ledger) -> None:
    try:
        _withdraw(host, options)
        plan = plan_undo(probe_undo(host, options, ledger.held), options)
        for note in plan.notes:
            log.warning("left in place", note=note)
        for obstacle in plan.obstacles:
            raise obstacle
        site = Site(host, options.layout, ledger, min(options.timeout_s, UNDO_S / max(1, len(plan.engines))))
        carry_out(site, plan, never_stop)
    except InstallerError as error:
        raise UndoIncompleteError(error.problem, remedy=error.remedy) from error
    log.info("everything given back", steps=len(plan.steps))


def _withdraw(host: Host, options: Options) -> None:
    """Take readiness and pidfile back; the ledger's lock keeps a second instance out meanwhile."""
    host.remove(options.ready_file)
    host.remove(options.pid_file)
    host.sweep(options.ready_file)


def _let_go(ledger: Ledger) -> None:
    """Unlock; a ledger that holds nothing leaves no trace."""
    if ledger.empty:
        with suppress(InstallerError):
            ledger.remove()
    ledger.lock.release()


def _node_stops(host: Host) -> bool:
    """Tell whether systemd is shutting the node down, so that what is installed must outlive us."""
    try:
        return systemd.system_state(buses(host), timeout_s=1.0) == "stopping"
    except InstallerError:
        return False
