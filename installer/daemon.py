"""The verbs that change the host: lock, apply, wait, undo."""

import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import structlog

from installer import signals
from installer.decide.adopt import adoption
from installer.decide.errors import Exit, InstallerError, StoppedError, UndoIncompleteError
from installer.decide.facts import Facts, names_of
from installer.decide.options import InUse, OnExit, Options
from installer.decide.plan import Plan, plan_install
from installer.decide.steps import Reload
from installer.decide.undo import plan_undo
from installer.host import systemd, waiting
from installer.host.files import Host
from installer.host.locks import Lock, inheritable, lock_pidfile, remove_pidfile, write_pid
from installer.host.waiting import Woken
from installer.record import ready
from installer.record.cdi import make_device_nodes, remove_device_nodes
from installer.record.ledger import Ledger, remove_leftovers
from installer.record.live import live_containers
from installer.record.lost import elsewhere, lost
from installer.record.probe import probe_adoption, probe_install, probe_undo
from installer.record.transaction import Site, apply, carry_out, never_stop
from installer.record.units import buses

log = structlog.get_logger()

UNDO_S: Final = 22.0  # for all engines together, so that an undo ends within a pod's grace of 30 s
INIT_NAME: Final = PurePosixPath("/proc/1/comm")
IN_USE_S: Final = 10.0
IN_USE_POLL_S: Final = 0.1


def install(options: Options) -> Exit:
    """Install and configure, prove it, and leave it in place."""
    host = Host.under(options.host_root, options.mounts)
    ledger = Ledger.open(host, options.layout, check=signals.check)
    try:
        _install(host, options, ledger)
    finally:
        _let_go(ledger)
    return Exit.OK


def run(options: Options) -> Exit:
    """Install, publish readiness, wait for a signal, give everything back."""
    host = Host.under(options.host_root, options.mounts)
    woken = waiting.woken()
    inherited = woken.fds if woken else ()
    # Who comes back to undo does not heed a second signal.
    ledger = Ledger.open(host, options.layout, inherited, never_stop if woken else signals.check)
    try:
        if woken is None and ledger.held.failed is not None:
            _planned(host, options, ledger)  # what failed before is refused ahead of the first write
        ledger.make_directories(options.pid_file.parent)
        ready.refuse_foreign(host, options.ready_file)
        pidfile = lock_pidfile(host, options.pid_file, inherited)
        write_pid(pidfile)
        ledger.write(replace(ledger.held, pid_file=options.pid_file))
        try:
            if woken is None:
                undo_follows = options.on_exit is OnExit.UNDO
                plan = _install(host, options, ledger, undo_follows=undo_follows)
                _publish(host, options, ledger, plan)
            _wait(host, options, ledger, pidfile, woken)
        except StoppedError:
            log.info("stop requested")
        except InstallerError:
            _withdraw(host, options, ledger)
            raise
        _stop(host, options, ledger)
    finally:
        _let_go(ledger)
    return Exit.OK


def uninstall(options: Options) -> Exit:
    """Give back whatever the ledger holds, whoever wrote it."""
    host = Host.under(options.host_root, options.mounts)
    options = _found(host, options)
    if host.exists(options.layout.home) or lost(host, options):
        ledger = Ledger.open(host, options.layout, check=signals.check)
        try:
            _undo(host, options, ledger)
        finally:
            _let_go(ledger)
    else:
        remove_leftovers(host, options.layout)
        log.info("nothing to undo", install_dir=str(options.install_dir))
    if options.adopt:
        _undo_adopted(host, options)
    return Exit.OK


def _undo_adopted(host: Host, options: Options) -> None:
    """Take back what NVIDIA's own installer left, as if it were ours."""
    adopted = adoption(probe_adoption(host, options), options)
    if not adopted.found:
        log.info("nothing to adopt", install_dir=str(options.install_dir))
        return
    ledger = Ledger.open(host, options.layout, check=signals.check)
    try:
        ledger.write(replace(adopted.held, directories=ledger.held.directories))
        log.info("adopted", found=list(adopted.found))
        _undo(host, options, ledger)
    finally:
        _let_go(ledger)


def _found(host: Host, options: Options) -> Options:
    """Return options with the install-dir that engines name, where there is nothing in the usual one."""
    found = elsewhere(host, options)
    if found.install_dir != options.install_dir:
        log.info("found by what engines name", install_dir=str(found.install_dir))
    return found


def _recover(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down what configs show to be ours where the ledger that knew it is lost."""
    rows = lost(host, options) if ledger.held.empty else None
    if rows is not None:
        log.warning("ledger lost", found=list(rows.found), remedy="what was there before us is not known")
        ledger.write(replace(rows.held, directories=ledger.held.directories))


def _planned(host: Host, options: Options, ledger: Ledger) -> Plan:
    """Return what is to be done.

    Raises:
        InstallerError: it could not end well.
    """
    plan = plan_install(probe_install(host, options, ledger.held), options)
    for obstacle in plan.obstacles:
        raise obstacle
    return plan


def _install(host: Host, options: Options, ledger: Ledger, *, undo_follows: bool = False) -> Plan:
    _recover(host, options, ledger)
    made = make_device_nodes(host, options, ledger)
    try:
        return _install_engines(host, options, ledger, undo_follows=undo_follows)
    except UndoIncompleteError:
        raise
    except InstallerError as error:
        if not (undo_follows and isinstance(error, StoppedError)):
            remove_device_nodes(host, ledger, made)
        raise


def _install_engines(host: Host, options: Options, ledger: Ledger, *, undo_follows: bool) -> Plan:
    plan = _planned(host, options, ledger)
    for engine in plan.engines.values():
        version = ".".join(map(str, engine.version or ())) or "unknown"
        log.info(
            "engine found", engine=engine.name, version=version, unit=engine.unit, config=str(engine.config)
        )
    for note in plan.notes:
        log.info("noted", note=note)
    signals.check()
    if any(isinstance(step, Reload) for step in plan.steps):
        ready.withdraw(host, options.ready_file)
    if plan.steps or plan.settled != ledger.held:
        site = Site(host, options.layout, ledger, options.timeout_s)
        apply(site, plan, signals.check, undo_follows=undo_follows)
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    if plan.unproven:
        log.warning("not proven", engines=list(plan.unproven), reason="no engine was asked what it serves")
    return plan


def _publish(host: Host, options: Options, ledger: Ledger, plan: Plan) -> None:
    if not plan.unproven:
        ready.publish(host, options.ready_file, ledger.held)


def _wait(host: Host, options: Options, ledger: Ledger, pidfile: Lock, woken: Woken | None) -> None:
    """Wait for a stop; on HUP look whether everything is still as wanted.

    The wait itself is another program image, which comes back to here as a process that was ``woken``.
    """
    number = woken.number if woken else None
    while number not in signals.STOP:
        if number is signal.SIGHUP:
            _reconcile(host, options, ledger)
        log.info("waiting for a signal")
        waiting.become_waiter(signals.HANDLED, inheritable(ledger.lock, pidfile))
        number = signals.wait()
    log.info("stop requested")


def _reconcile(host: Host, options: Options, ledger: Ledger) -> None:
    try:
        undo_follows = options.on_exit is OnExit.UNDO
        _publish(host, options, ledger, _install(host, options, ledger, undo_follows=undo_follows))
    except StoppedError:
        raise
    except InstallerError as error:
        log.warning("not reconciled", problem=error.problem, remedy=error.remedy)


def _stop(host: Host, options: Options, ledger: Ledger) -> None:
    """Do what a stop of ``run`` asks for: give everything back, or keep it."""
    if _node_stops(host):
        log.info("everything kept", reason="the node is going down")
    elif options.on_exit is OnExit.KEEP:
        _withdraw(host, options, ledger)
        log.info("everything kept", reason="asked for with --on-exit keep")
    else:
        _undo(host, options, ledger)


def _undo(host: Host, options: Options, ledger: Ledger) -> None:
    began = time.monotonic()
    try:
        _withdraw(host, options, ledger)
        _recover(host, options, ledger)
        facts = probe_undo(host, options, ledger.held)
        if facts.live and options.in_use is InUse.WAIT:
            facts = _awaited(host, options, ledger, facts)
        plan = plan_undo(facts, options)
        for note in plan.notes:
            log.warning("noted", note=note)
        for obstacle in plan.obstacles:
            raise obstacle
        left_s = max(1.0, UNDO_S - (time.monotonic() - began))
        timeout_s = min(options.timeout_s, left_s / max(1, len(plan.engines)))
        carry_out(Site(host, options.layout, ledger, timeout_s), plan, never_stop)
    except InstallerError as error:
        raise UndoIncompleteError(error.problem, remedy=error.remedy) from error
    if plan.in_use:
        raise UndoIncompleteError(
            f"give everything back (our runtime runs {names_of(plan.in_use)})",
            remedy="run uninstall again when that has ended",
        )
    log.info("everything given back", steps=len(plan.steps))


def _awaited(host: Host, options: Options, ledger: Ledger, facts: Facts) -> Facts:
    """Return what is found when the containers on our runtimes are gone, or have had their time."""
    log.info("waiting for containers", containers=[each.name for each in facts.live], seconds=IN_USE_S)
    deadline = time.monotonic() + IN_USE_S
    while time.monotonic() < deadline and live_containers(host, options.layout, ledger.held, facts.engines):
        time.sleep(IN_USE_POLL_S)
    return probe_undo(host, options, ledger.held)


def _withdraw(host: Host, options: Options, ledger: Ledger) -> None:
    """Take readiness and pidfile back, also those of a killed run; the ledger's lock keeps others out."""
    pid_files = {options.pid_file, ledger.held.pid_file or options.pid_file}
    for each in (replace(options, pid_file=pid_file) for pid_file in pid_files):
        ready.withdraw(host, each.ready_file)
        remove_pidfile(host, each.pid_file)
        host.sweep(each.ready_file)


def _let_go(ledger: Ledger) -> None:
    """Unlock; a ledger that holds nothing leaves no trace.

    Raises:
        UndoIncompleteError: it could not be removed.
    """
    failure = sys.exception()
    try:
        # What has its name by now may be the ledger of the next instance.
        if ledger.held.empty and not ledger.gone:
            ledger.remove()
    except InstallerError as error:
        reason = f" after a failure ({failure})" if failure else ""
        if not isinstance(failure, UndoIncompleteError):
            raise UndoIncompleteError(
                f"remove the empty ledger{reason}: {error.problem}", remedy=error.remedy
            ) from error
    finally:
        ledger.lock.release()


def _node_stops(host: Host) -> bool:
    """Tell whether systemd is shutting the node down, so that what is installed must outlive us."""
    try:
        return systemd.system_state(buses(host), timeout_s=1.0) == "stopping"
    except InstallerError:
        # The last processes are told to stop when systemd has already given way to its own last program.
        with suppress(InstallerError):
            init = host.read(INIT_NAME)
            return init is not None and init.content.startswith(b"systemd-shutdow")
        return False
