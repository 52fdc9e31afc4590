"""The verbs that change the host: lock, apply, wait, undo."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from installer import figures, looks, nri, outcome, remembered
from installer.decide.data import replace
from installer.decide.errors import (
    Exit,
    InstallerError,
    NotIdleError,
    StoppedError,
    UndoIncompleteError,
    UsageError,
)
from installer.decide.options import Options, RestartMode
from installer.decide.part import Part
from installer.decide.plan import Plan, plan_install
from installer.decide.steps import Reload
from installer.host import signals, systemd, waiting
from installer.host.events import log
from installer.host.files import Host
from installer.host.lock_table import still_named
from installer.host.locks import LOCK, Lock, inheritable, lock_pidfile, write_pid
from installer.host.waiting import CHANGED, Watch, Woken
from installer.record import gpus, next_run, nri_seen, ready, successor
from installer.record.access import install_dir_obstacles, refuse_strangers_pidfile
from installer.record.context import Context
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger, opened
from installer.record.lost import recover
from installer.record.probe import probe_install
from installer.record.transaction import apply, never_stop, refuse_obstacles
from installer.record.trial import Trials
from installer.record.units import buses
from installer.uninstall import UNDO_S, remove_readiness, undo, undoing

NODE_S: Final = 2.0  # systemd may be kept busy, and a pod has 30 s for all by default
IDLE_POLL_S: Final = 1.0
INIT_NAME: Final = PurePosixPath("/proc/1/comm")


def install(options: Options) -> Exit:
    """Install and configure, prove it, and leave it in place."""
    if options.serves_nri:
        raise UsageError(
            "install with the NRI plugin (it runs as long as run does)",
            remedy="use run, or install with --mode cdi and start toolkit-installer nri beside it",
        )
    host = Host.under(options.host_root, options.mounts)
    _refuse_strangers(host, options)
    opening = partial(Ledger.open, host, options.layout, check=signals.check)
    with opened(opening) as ledger, figures.failures_told(host, options, ledger):
        figures.claim(host, replace(options, metrics_listen=None), ledger)  # nobody stays to answer
        _install(host, options, ledger, patience_s=options.timeout_s)
        outcome.tell_next_step(options, ledger.held)
        remembered.remember(options, ledger, partial(_planned_anew, options, ledger))
    return Exit.OK


def _refuse_strangers(host: Host, options: Options) -> None:
    """Raise, before our own directory is made, where others than root could exchange what we install."""
    for obstacle in install_dir_obstacles(host, options.install_dir):
        raise obstacle


def run(options: Options) -> Exit:
    """Install, publish readiness, wait for a signal, undo."""
    host = Host.under(options.host_root, options.mounts)
    if waiting.succeeds():
        return _carry_on(host, options)
    with internal_errors():
        woken = waiting.woken()
    # A woken process has installed before its wait: its host is not as before until all is undone.
    with undoing() if woken else nullcontext():
        if _run(host, options, woken):
            successor.await_successor(host, options.layout)
    return Exit.OK


def _run(host: Host, options: Options, woken: Woken | None) -> bool:
    """Do what ``run`` does; return whether somebody else is to carry the undo on."""
    home = options.layout.home
    inherited = still_named(host, woken.fds if woken else (), home, home / LOCK, options.pid_file)
    check = never_stop if woken else signals.check  # a woken process that undoes ignores a second signal
    if woken is None:
        _refuse_strangers(host, options)
        refuse_strangers_pidfile(host, options.pid_file)
        nri.refuse_unusable(host, options)
    opening = partial(Ledger.open, host, options.layout, inherited, check)
    with (
        opened(partial(next_run.ledger_for_run, host, options, opening)) as ledger,
        figures.failures_told(host, options, ledger),
    ):
        if woken is None and ledger.held.failed is not None:
            _planned(host, options, ledger)  # what failed before is refused ahead of the first write
        (figures.claim if woken is None else figures.claim_again)(host, options, ledger)
        ledger.make_directories(options.pid_file.parent)
        for published in (options.ready_file, options.state_file):
            ready.refuse_foreign(host, published)
        pidfile = lock_pidfile(host, options.pid_file, inherited)
        _serve(host, options, ledger, pidfile, woken)
        with undoing():
            try:
                return _stop(host, options, ledger)
            finally:
                waiting.stop_plugin()  # as long as it runs, a wish for what has gone is refused, not missed
                if options.serves_nri:
                    nri_seen.remove(host, options.nri)  # one that hung had to be killed


def _serve(host: Host, options: Options, ledger: Ledger, pidfile: Lock, woken: Woken | None) -> None:
    """Install, publish readiness and wait, until a stop is asked for.

    Raises:
        InstallerError: the host is as it was before.
        UndoIncompleteError: it is not, and the ledger is kept.
    """
    installed, plan = woken is not None, None
    work, watch = partial(_work, host, options, ledger), Watch()
    try:
        with internal_errors():
            write_pid(pidfile, options.pid_file)
            ledger.write(replace(ledger.held, pid_file=options.pid_file))
            if not installed:
                plan = _install(host, options, ledger, undo_follows=options.on_exit.undoes)
                installed = True
                if options.serves_nri:
                    nri.attend(host, options.nri)
            figures.listen(host, options, ledger, inherited=woken is not None)
            if plan is not None:
                watch = looks.installed(work(), plan)
            _wait(work, watch, inheritable(ledger.lock, pidfile), woken)
    except StoppedError:
        log.info("stop requested")
    except InstallerError as error:
        with undoing():
            remove_readiness(host, options, ledger)
        if installed:  # and serving: the next run finds it in place, and restarts nothing
            raise UndoIncompleteError.because(error) from error
        raise


def _carry_on(host: Host, options: Options) -> Exit:
    """Do the undo of a ``run`` that had to end first."""
    opening = partial(successor.ledger_of_predecessor, host, options.layout)
    with undoing(), opened(opening) as ledger, figures.failures_told(host, options, ledger):
        undo(host, options, ledger)
    return Exit.OK


def _planned(host: Host, options: Options, ledger: Ledger) -> Plan:
    """Return what is to be done.

    Raises:
        InstallerError: it could not end well.
    """
    with gpus.stale_withdrawn(host, options, ledger):
        facts = probe_install(host, options, ledger.held)
        trials = Trials(host, facts.contents)
        plan = plan_install(facts, options, trials)
        plan = plan.and_part(Part("validation", notes=tuple(trials.unvalidated(plan.steps))))
        refuse_obstacles(plan)
        return plan


def _planned_anew(options: Options, ledger: Ledger, host: Host) -> Plan:
    """Return what the next install would do, of a host that notes what is looked at."""
    return _planned(host, options, ledger)


def _install(
    host: Host, options: Options, ledger: Ledger, *, undo_follows: bool = False, patience_s: float = 0.0
) -> Plan:
    recover(host, options, ledger)
    until_s = time.monotonic() + patience_s
    plan = _planned(host, options, ledger)
    while plan.pending and time.monotonic() < until_s:
        signals.check()
        time.sleep(IDLE_POLL_S)
        plan = _planned(host, options, ledger)
    outcome.tell_found(plan)
    before = ledger.held.nri
    try:
        _carry_out(host, options, ledger, plan, undo_follows=undo_follows)
    except NotIdleError:  # since it was asked; what was written is taken back
        return _install(host, options, ledger, undo_follows=undo_follows)
    if before not in {None, ledger.held.nri}:  # nobody looks there any more
        nri_seen.remove(host, replace(options.nri, socket=before))
    outcome.tell_done(plan)
    figures.installed(host, options, ledger, plan)
    return plan


def _carry_out(host: Host, options: Options, ledger: Ledger, plan: Plan, *, undo_follows: bool) -> None:
    signals.check()
    if any(isinstance(step, Reload) for step in plan.steps):
        ready.remove(host, options.ready_file)
    if plan.steps or plan.final != ledger.held:
        context = Context(host, options.layout, ledger, options.timeout_s, restart_mode=options.restart_mode)
        with gpus.stale_withdrawn(host, options, ledger):
            apply(context, plan, signals.check, undo_follows=undo_follows)
    else:
        ledger.save(plan.backups)  # a copy that somebody has removed or changed since


def _publish(host: Host, options: Options, ledger: Ledger, plan: Plan, marks: Sequence[str]) -> None:
    if not plan.unproven:
        asked = (str(options.install_dir), str(options.host_root))
        ready.publish(host, options.ready_file, ledger.held, asked, marks)


def _work(host: Host, options: Options, ledger: Ledger, *, asked: bool = False) -> looks.Work:
    """Return what a look may do to the node: one that somebody ``asked`` for leaves no restart."""
    if asked and options.restart_mode is RestartMode.WHEN_IDLE:
        options = replace(options, restart_mode=RestartMode.AUTO)

    def plan() -> Plan:
        recover(host, options, ledger)
        return _planned(host, options, ledger)

    return looks.Work(
        host,
        options,
        held=lambda: ledger.held,
        plan=plan,
        carry_out=partial(_carry_out, host, options, ledger, undo_follows=options.on_exit.undoes),
        publish=partial(_publish, host, options, ledger),
        withdraw=partial(ready.remove, host, options.ready_file),
        withdraw_stale=partial(gpus.withdraw_stale, host, options, ledger),
        looked=partial(figures.installed, host, options, ledger),
        failed=partial(figures.failed, host, options, ledger),
        node_stops=partial(_node_stops, host),
    )


def _wait(work: Callable[..., looks.Work], watch: Watch, locks: tuple[int, ...], woken: Woken | None) -> None:
    """Wait for a stop; on HUP, or when something has changed, look at the node, and repair it.

    The wait itself is another program image, which comes back to here as a process that was ``woken``.
    """
    number = woken.number if woken else None
    while number not in signals.STOP:
        if number is not None:
            watch = looks.look(work(asked=number is not CHANGED), asked=number is not CHANGED)
        if number is not CHANGED:
            log.info("waiting for a signal")
        waiting.become_waiter(signals.HANDLED, locks, watch)
        number = signals.wait()
    log.info("stop requested")


def _stop(host: Host, options: Options, ledger: Ledger) -> bool:
    """Do what a stop of ``run`` asks for; tell whether the undo was handed over to somebody else."""
    until_s = time.monotonic() + UNDO_S
    if _node_stops(host):
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


def _node_stops(host: Host) -> bool:
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
