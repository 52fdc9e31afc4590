"""The verbs that change the host: lock, apply, wait, undo."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

import structlog

from installer import signals
from installer.decide.adopt import adoption
from installer.decide.errors import (
    Exit,
    InstallerError,
    InternalError,
    LockedError,
    StoppedError,
    UndoIncompleteError,
)
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
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger, opened, remove_leftovers
from installer.record.live import live_containers
from installer.record.lost import elsewhere, lost, recover
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
    with opened(host, options.layout, check=signals.check) as ledger:
        _install(host, options, ledger)
    return Exit.OK


def run(options: Options) -> Exit:
    """Install, publish readiness, wait for a signal, give everything back."""
    host = Host.under(options.host_root, options.mounts)
    with internal_errors():
        woken = waiting.woken()
    # Who comes back from the wait has installed: its host is not as before until all is undone.
    with _undoing() if woken else nullcontext():
        _run(host, options, woken)
    return Exit.OK


def _run(host: Host, options: Options, woken: Woken | None) -> None:
    inherited = woken.fds if woken else ()
    # Who comes back to undo does not heed a second signal.
    check = never_stop if woken else signals.check
    with opened(host, options.layout, inherited, check) as ledger:
        if woken is None and ledger.held.failed is not None:
            _planned(host, options, ledger)  # what failed before is refused ahead of the first write
        ledger.make_directories(options.pid_file.parent)
        ready.refuse_foreign(host, options.ready_file)
        pidfile = lock_pidfile(host, options.pid_file, inherited)
        _serve(host, options, ledger, pidfile, woken)
        with _undoing():
            _stop(host, options, ledger)


def _serve(host: Host, options: Options, ledger: Ledger, pidfile: Lock, woken: Woken | None) -> None:
    """Install, publish readiness and wait, until a stop is asked for.

    Raises:
        InstallerError: the host is as it was before.
        UndoIncompleteError: it is not, and the ledger is kept.
    """
    installed = woken is not None
    try:
        with internal_errors():
            write_pid(pidfile, options.pid_file)
            ledger.write(replace(ledger.held, pid_file=options.pid_file))
            if not installed:
                undo_follows = options.on_exit is OnExit.UNDO
                plan = _install(host, options, ledger, undo_follows=undo_follows)
                installed = True
                _publish(host, options, ledger, plan)
            _wait(host, options, ledger, pidfile, woken)
    except StoppedError:
        log.info("stop requested")
    except InstallerError as error:
        with _undoing():
            _withdraw(host, options, ledger)
        if installed:  # and serving: the next run finds it in place, and restarts nothing
            raise UndoIncompleteError(error.problem, remedy=error.remedy) from error
        raise


def uninstall(options: Options) -> Exit:
    """Give back whatever the ledger holds, whoever wrote it."""
    try:
        with internal_errors():
            _uninstall(Host.under(options.host_root, options.mounts), options)
    except InternalError as error:
        raise UndoIncompleteError(error.problem, remedy=error.remedy) from error
    return Exit.OK


def _uninstall(host: Host, options: Options) -> None:
    options = elsewhere(host, options)
    if host.exists(options.layout.home) or lost(host, options):
        with opened(host, options.layout, check=signals.check) as ledger:
            _undo(host, options, ledger)
    else:
        remove_leftovers(host, options.layout)
        log.info("nothing to undo", install_dir=str(options.install_dir))
    if options.adopt:
        _undo_adopted(host, options)


def _undo_adopted(host: Host, options: Options) -> None:
    """Take back what NVIDIA's own installer left, as if it were ours."""
    adopted = adoption(probe_adoption(host, options), options)
    for runtime in adopted.left:
        log.info("left alone", runtime=runtime, reason=f"not below {options.layout.toolkit}")
    if not adopted.found:
        log.info("nothing to adopt", install_dir=str(options.install_dir))
        return
    with opened(host, options.layout, check=signals.check) as ledger:
        ledger.write(replace(adopted.held, directories=ledger.held.directories))
        log.info("adopted", found=list(adopted.found))
        _undo(host, options, ledger)


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
    recover(host, options, ledger)
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
        with internal_errors():
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
    with _undoing():
        _withdraw(host, options, ledger)
        recover(host, options, ledger)
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
    if plan.in_use:
        raise UndoIncompleteError(
            f"give everything back (our runtime runs {names_of(plan.in_use)})",
            remedy="run uninstall again when that has ended",
        )
    log.info("everything given back", steps=len(plan.steps))


@contextmanager
def _undoing() -> Iterator[None]:
    """Let whatever goes wrong in the block be told as an undo that is incomplete."""
    try:
        with internal_errors():
            yield
    except (UndoIncompleteError, LockedError):
        raise
    except InstallerError as error:
        raise UndoIncompleteError(error.problem, remedy=error.remedy) from error


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


def _node_stops(host: Host) -> bool:
    """Tell whether systemd is shutting the node down, so that what is installed must outlive us."""
    try:
        with internal_errors():
            return systemd.system_state(buses(host), timeout_s=1.0) == "stopping"
    except InstallerError:
        # The last processes are told to stop when systemd has already given way to its own last program.
        with suppress(InstallerError):
            init = host.read(INIT_NAME)
            return init is not None and init.content.startswith(b"systemd-shutdow")
        return False
