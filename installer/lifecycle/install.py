"""The verbs that install: lock, apply; and what the first and the checking children of ``run`` do."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from msgspec.structs import replace

from installer.cdi.generate import withdraw_stale
from installer.change.ledger import Ledger
from installer.change.observe import observe_install
from installer.change.plan import Plan, plan_install
from installer.change.transaction import Context, apply, refuse_obstacles
from installer.change.unrecorded import recover
from installer.engines import ENGINES
from installer.engines.dry_run import Trials
from installer.errors import Exit, InstallerError, NotYetError, StoppedError, UndoIncompleteError, UsageError
from installer.host import supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.locks import LOCK, lock_pidfile, write_pid
from installer.lifecycle import readiness, uninstall
from installer.lifecycle.check import Watch, Work, check_node, conclude_install
from installer.lifecycle.uninstall import as_incomplete_undo, open_as_child, open_ledger
from installer.metrics import snapshot as metrics
from installer.model.engine_spec import Api
from installer.model.files import File, Meta, dumps
from installer.model.options import OnExit, Options, RestartMode, Wish
from installer.model.steps import Part
from installer.nri import state as plugin_state
from installer.payload.installed import install_dir_obstacles, refuse_strangers_files


def install(options: Options) -> Exit:
    """Install and configure, prove it, and leave it in place."""
    if options.serves_nri:
        remedy = "use run, or install with --mode cdi and start toolkit-installer nri beside it"
        raise UsageError("install with the NRI plugin (it runs as long as run does)", remedy=remedy)
    host = Host.under(options.host_root, options.mounts)
    for obstacle in install_dir_obstacles(host, options.install_dir):  # before our own directory is made
        raise obstacle
    with open_ledger(host, options) as ledger:
        metrics.claim(host, replace(options, metrics_listen=None), ledger)  # no process stays to answer
        plan = _install(host, options, ledger, patience_s=options.timeout_s)
        left = [row for row in ledger.held.engines if row.name in plan.unproven]
        if options.restart_mode is RestartMode.NONE and left:
            stopped = any(each.stopped and each.spec.api is Api.DOCKER for each in plan.engines.values())
            verb = "start" if stopped else "reload"  # of a unit that is not active a reload fails
            uninstall.log_restarts(left, verb, "it has not read its config since the install")
        else:
            docker = f"docker run --rm --runtime={options.runtime_name} --env NVIDIA_VISIBLE_DEVICES=all"
            is_there = any(ENGINES[row.name].api is Api.DOCKER for row in ledger.held.engines)
            command = f"{docker} ubuntu nvidia-smi" if is_there else "toolkit-installer status"
            log.info("next step", command=command)
    return Exit.OK


def run(wish: Wish) -> NoReturn:
    """Become the supervisor; InstallerError: it cannot begin, nothing was changed."""
    options = wish.options
    host = Host.under(options.host_root, options.mounts)
    for obstacle in install_dir_obstacles(host, options.install_dir):
        raise obstacle
    refuse_strangers_files(host, options)
    if options.serves_nri:
        plugin_state.refuse_absent(host, options.nri)
    with open_ledger(host, options, partial(uninstall.ledger_for_run, host, options)) as ledger:
        if ledger.held.failed is not None:
            _plan(host, options, ledger)  # what failed before is refused ahead of the first write
        _claim_files(host, options, ledger)
        pidfile = lock_pidfile(host, options.pid_file)
        try:
            with internal_errors():
                # Of one that was killed, whose pid may be ours: in a container each is 1.
                readiness.remove(host, options.ready_file)
                write_pid(pidfile, options.pid_file)
                # A unit that waits to undo the rest of an earlier install sees that this is ours now.
                ledger.write(replace(ledger.held, pid_file=options.pid_file, undo_pending=""))
                host.replace(options.options_file, File(dumps(wish), Meta(0o600)))
                held = [(options.pid_file, pidfile.fd), (options.layout.home / LOCK, ledger.lock.fd)]
                beside = (options.nri.state, options.nri.lock) if options.serves_nri else ()
                kept = {"nri": options.serves_nri, "metrics": options.metrics_listen is not None}
                supervision.become_supervisor(
                    [(host.local_path(path), fd) for path, fd in held],
                    host.local_path(options.options_file),
                    most=Exit.FAILED if wish.nvidia else Exit.UNDO_INCOMPLETE,
                    kept=" ".join(name for name, asked in kept.items() if asked),
                    left=[str(host.local_path(path)) for path in beside],
                    form=wish.log_format,
                )
        except InstallerError:
            with as_incomplete_undo():
                uninstall.remove_readiness(host, options, ledger)
            raise


def _claim_files(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down what is going to be written, and refuse files of others in its place."""
    metrics.claim(host, options, ledger)
    ledger.make_directories(options.pid_file.parent)
    for path in (options.ready_file, options.state_file):
        readiness.refuse_foreign(host, path)


def first_install(options: Options) -> Exit:
    """Install and publish readiness, as the first child of ``run``.

    StoppedError: what was begun is left for the undo. UndoIncompleteError: the host is not as before, and the
    ledger is kept. Any other InstallerError: it is.
    """
    host, installed = Host.under(options.host_root, options.mounts), False
    with open_as_child(host, options, supervision.raise_if_stopped) as ledger:
        try:
            with internal_errors():
                plan = _install(host, options, ledger)
                installed = True
                _answer(conclude_install(_work(host, options, ledger), plan))
        except StoppedError:
            ledger.stays = True  # what was made for the pidfile is to be removed by the undo
            raise
        except InstallerError as error:
            with as_incomplete_undo():
                uninstall.remove_readiness(host, options, ledger)
            if installed:  # and serving: the next run finds it in place, and restarts nothing
                raise UndoIncompleteError.because(error) from error
            raise
    return Exit.OK


def check(options: Options, *, asked: bool) -> Exit:
    """Check and repair the node, as a child of a ``run`` that waits; UndoIncompleteError: it could not be."""
    host, began_s = Host.under(options.host_root, options.mounts), time.monotonic()
    stopping = supervision.raise_if_stopped
    options = options.at_once if asked else options  # who asks has no restart put off
    try:
        with as_incomplete_undo(StoppedError), open_as_child(host, options, stopping) as ledger:
            _claim_files(host, options, ledger)
            ledger.write(replace(ledger.held, pid_file=options.pid_file))
            _answer(check_node(_work(host, options, ledger), asked=asked), tells=asked)
    except UndoIncompleteError as error:  # before the check could tell of it: whoever asked awaits an answer
        before = readiness.read_check_of_boot(host, options.state_file).with_error(error)
        failed = replace(before, asked=asked, began_s=began_s, doing=(), did=())
        readiness.publish_check(host, options.state_file, failed)
        raise
    return Exit.OK


def _answer(watch: Watch, *, tells: bool = True) -> None:
    supervision.send_answer(watch.before, watch.due_s, watch.rest_s, watch.places)
    if tells:
        log.info("waiting for a signal")


@contextmanager
def _stale_withdrawn(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Withdraw a stale specification where the block, which would have replaced it, fails or is refused."""
    try:
        yield
    except StoppedError:
        raise
    except InstallerError:
        withdraw_stale(host, options, ledger.held, ledger.write)
        raise


def _plan(host: Host, options: Options, ledger: Ledger, patience_s: float = 0.0) -> Plan:
    """Return what is to be done, or raise where it could not end well."""
    with _stale_withdrawn(host, options, ledger):
        facts = observe_install(host, options, ledger.held, patience_s)
        trials = Trials(host, facts.contents)
        plan = plan_install(facts, options, trials)
        validation = Part("validation", notes=tuple(trials.unvalidated(plan.steps)))
        plan = replace(plan, parts=(*plan.parts, validation))
        refuse_obstacles(plan)
        return plan


def _install(host: Host, options: Options, ledger: Ledger, *, patience_s: float = 0.0) -> Plan:
    """Install; ``patience_s`` is for restarts that are put off."""
    recover(host, options, ledger)
    until_s = time.monotonic() + patience_s
    plan = _plan(host, options, ledger, options.timeout_s)
    while plan.pending and time.monotonic() < until_s:
        supervision.raise_if_stopped()
        time.sleep(1)
        plan = _plan(host, options, ledger)
    for engine in plan.engines.values():
        found = ".".join(map(str, engine.version or ())) or "unknown"
        config = str(engine.config)
        log.info("engine found", engine=engine.name, version=found, unit=engine.unit, config=config)
    for note in plan.notes:
        log.info("install note", note=note)
    before = ledger.held.nri
    try:
        _carry_out(host, options, ledger, plan)
    except NotYetError:  # since it was asked; what was written is taken back
        return _install(host, options, ledger)
    if before is not None and before != ledger.held.nri:  # no engine looks there any more
        plugin_state.remove_plugin(host, options.nri.at(before))
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    for name, reason in plan.pending.items():
        log.warning("restart pending", engine=name, problem=reason.problem, remedy=reason.remedy)
    if unasked := [name for name in plan.unproven if name not in plan.pending]:
        unknown = "they were not asked whether they serve our runtimes"
        log.warning("not verified", engines=unasked, reason=unknown)
    metrics.publish_success(host, options, ledger, plan)
    return plan


def _carry_out(host: Host, options: Options, ledger: Ledger, plan: Plan) -> None:
    supervision.raise_if_stopped()
    if plan.reloaded:
        readiness.remove(host, options.ready_file)
    if plan.steps or plan.final != ledger.held:
        context = Context(host, options.layout, ledger, options.timeout_s)
        undo_follows = supervision.current_run().pid > 0 and options.on_exit is OnExit.UNDO
        with _stale_withdrawn(host, options, ledger):
            apply(context, plan, supervision.raise_if_stopped, undo_follows=undo_follows)
    else:
        ledger.save(plan.backups)  # a copy that was removed or changed since


def _work(host: Host, options: Options, ledger: Ledger) -> Work:
    def plan() -> Plan:
        recover(host, options, ledger)
        return _plan(host, options, ledger)

    return Work(host, options, ledger, plan, partial(_carry_out, host, options, ledger))
