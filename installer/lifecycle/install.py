"""The verbs that install: lock, apply; and what the first and the checking children of ``run`` do."""

import sys
import time
from functools import partial
from typing import Final, NoReturn

from msgspec.structs import replace

from installer.cdi import generate as gpus
from installer.change.ledger import Ledger
from installer.change.lost import recover
from installer.change.observe import probe_install
from installer.change.plan import Plan, plan_install
from installer.change.transaction import Context, apply, refuse_obstacles
from installer.cli import output as show
from installer.engines.dry_run import Trials
from installer.errors import Exit, InstallerError, NotIdleError, StoppedError, UndoIncompleteError, UsageError
from installer.host import signals, supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.locks import LOCK, Lock, lock_pidfile, write_pid
from installer.lifecycle import check as looks
from installer.lifecycle import handover, watching
from installer.lifecycle import readiness as ready
from installer.lifecycle.uninstall import node_stops, open_ledger, opened_by_run, remove_readiness, undoing
from installer.lifecycle.watching import Watch
from installer.metrics import snapshot as monitoring
from installer.model.files import File, Meta
from installer.model.options import Options, RestartMode, Wish
from installer.model.steps import Part, Reload
from installer.model.typed_json import dumps
from installer.nri import state as plugin_state
from installer.payload.installed import install_dir_obstacles, refuse_strangers_files

IDLE_POLL_S: Final = 1.0


def install(options: Options) -> Exit:
    """Install and configure, prove it, and leave it in place."""
    if options.serves_nri:
        raise UsageError(
            "install with the NRI plugin (it runs as long as run does)",
            remedy="use run, or install with --mode cdi and start toolkit-installer nri beside it",
        )
    host = Host.under(options.host_root, options.mounts)
    _refuse_strangers(host, options)
    with open_ledger(host, options) as ledger:
        monitoring.claim(host, replace(options, metrics_listen=None), ledger)  # nobody stays to answer
        _install(host, options, ledger, patience_s=options.timeout_s)
        show.tell_next_step(options, ledger.held)
    return Exit.OK


def _refuse_strangers(host: Host, options: Options) -> None:
    """Raise, before our own directory is made, where others than root could exchange what we install."""
    for obstacle in install_dir_obstacles(host, options.install_dir):
        raise obstacle


def run(wish: Wish) -> Exit:
    """Become the supervisor, which installs, waits, and undoes at a stop.

    Raises:
        InstallerError: it cannot begin; nothing was changed.
    """
    options = wish.options
    host = Host.under(options.host_root, options.mounts)
    _refuse_strangers(host, options)
    refuse_strangers_files(host, options)
    if options.serves_nri:
        plugin_state.refuse_absent(host, options.nri)
    opening = partial(Ledger.open, host, options.layout, check=signals.check)
    with open_ledger(host, options, partial(handover.ledger_for_run, host, options, opening)) as ledger:
        if ledger.held.failed is not None:
            _planned(host, options, ledger)  # what failed before is refused ahead of the first write
        _claim_files(host, options, ledger)
        pidfile = lock_pidfile(host, options.pid_file)
        try:
            with internal_errors():
                # Of one that was killed, whose pid may be ours: in a container each is 1.
                ready.remove(host, options.ready_file)
                write_pid(pidfile, options.pid_file)
                ledger.write(replace(ledger.held, pid_file=options.pid_file))
                _become(host, wish, ledger, pidfile)
        except InstallerError:
            with undoing():
                remove_readiness(host, options, ledger)
            raise
    return Exit.FAILED


def _claim_files(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down what is going to be told, and refuse files of others in its place."""
    monitoring.claim(host, options, ledger)
    ledger.make_directories(options.pid_file.parent)
    for published in (options.ready_file, options.state_file):
        ready.refuse_foreign(host, published)


def _become(host: Host, wish: Wish, ledger: Ledger, pidfile: Lock) -> NoReturn:
    """Become the supervisor.

    Raises:
        InstallerError: that cannot be.
    """
    options = wish.options
    host.replace(options.options_file, File(dumps(wish), Meta(0o600)))
    beside = (options.nri.state, options.nri.lock) if options.serves_nri else ()
    kept = ("nri",) * options.serves_nri + ("metrics",) * (options.metrics_listen is not None)
    supervision.become(
        [
            (host.local_path(options.pid_file), pidfile.fd),
            (host.local_path(options.layout.home / LOCK), ledger.lock.fd),
        ],
        host.local_path(options.options_file),
        most=Exit.FAILED if wish.nvidia else Exit.UNDO_INCOMPLETE,
        kept=" ".join(kept),
        left=[str(host.local_path(path)) for path in beside],
    )
    raise InstallerError(
        f"start {sys.executable} once more", remedy="install the program anew", code="internal-error"
    )


def first_install(options: Options) -> Exit:
    """Install and publish readiness, as the first child of ``run``.

    Raises:
        InstallerError: the host is as it was before.
        StoppedError: a stop has come; what was begun is left for the undo.
        UndoIncompleteError: it is not as before, and the ledger is kept.
    """
    host, installed = Host.under(options.host_root, options.mounts), False
    with opened_by_run(host, options, signals.check) as ledger:
        try:
            with internal_errors():
                plan = _install(host, options, ledger, undo_follows=options.on_exit.undoes)
                installed = True
                _answer(looks.conclude_install(_work(host, options, ledger), plan))
                log.info("waiting for a signal")
        except StoppedError:
            ledger.stays = True  # what was made for the pidfile is to be removed by the undo
            raise
        except InstallerError as error:
            with undoing():
                remove_readiness(host, options, ledger)
            if installed:  # and serving: the next run finds it in place, and restarts nothing
                raise UndoIncompleteError.because(error) from error
            raise
    return Exit.OK


def check(options: Options, *, asked: bool) -> Exit:
    """Look at the node, as a child of a ``run`` that waits, and repair what is to be repaired.

    Raises:
        UndoIncompleteError: it could not look.
        StoppedError: a stop has come.
    """
    host = Host.under(options.host_root, options.mounts)
    try:
        with undoing(), opened_by_run(host, options, signals.check) as ledger:
            _claim_files(host, options, ledger)
            ledger.write(replace(ledger.held, pid_file=options.pid_file))
            watching.await_stopped(host, options, ledger.held)
            _answer(looks.check_node(_work(host, options, ledger, asked=asked), asked=asked))
    except UndoIncompleteError as error:
        if isinstance(error.__cause__, StoppedError):
            raise error.__cause__ from None
        raise
    if asked:
        log.info("waiting for a signal")
    return Exit.OK


def _answer(watch: Watch) -> None:
    supervision.answer(watch.before, watch.due_s, watch.rest_s, watch.places)


def _planned(host: Host, options: Options, ledger: Ledger, patience_s: float = 0.0) -> Plan:
    """Return what is to be done.

    Raises:
        InstallerError: it could not end well.
    """
    with gpus.stale_withdrawn(host, options, ledger):
        facts = probe_install(host, options, ledger.held, patience_s)
        trials = Trials(host, facts.contents)
        plan = plan_install(facts, options, trials)
        plan = plan.and_part(Part("validation", notes=tuple(trials.unvalidated(plan.steps))))
        refuse_obstacles(plan)
        return plan


def _install(
    host: Host, options: Options, ledger: Ledger, *, undo_follows: bool = False, patience_s: float = 0.0
) -> Plan:
    recover(host, options, ledger)
    until_s = time.monotonic() + patience_s
    plan = _planned(host, options, ledger, options.timeout_s)
    while plan.pending and time.monotonic() < until_s:
        signals.check()
        time.sleep(IDLE_POLL_S)
        plan = _planned(host, options, ledger)
    show.tell_found(plan)
    before = ledger.held.nri
    try:
        _carry_out(host, options, ledger, plan, undo_follows=undo_follows)
    except NotIdleError:  # since it was asked; what was written is taken back
        return _install(host, options, ledger, undo_follows=undo_follows)
    if before is not None and before != ledger.held.nri:  # nobody looks there any more
        plugin_state.remove(host, options.nri.at(before))
    show.tell_done(plan)
    monitoring.installed(host, options, ledger, plan)
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


def _publish(host: Host, options: Options, ledger: Ledger, plan: Plan) -> None:
    if not plan.unproven:
        ready.publish(host, options.ready_file, ledger.held)


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
        looked=partial(monitoring.installed, host, options, ledger),
        failed=partial(monitoring.failed, host, options, ledger),
        node_stops=partial(node_stops, host),
    )
