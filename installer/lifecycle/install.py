"""The commands that install, and the children of ``run`` that install and check."""

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Final, NoReturn

from msgspec.structs import replace

from installer.cdi.generate import withdraw_stale
from installer.change.ledger import Ledger
from installer.change.lost_ledger import recover
from installer.change.observe import observe_install
from installer.change.plan import Plan, plan_install
from installer.change.transaction import Context, apply, refuse_obstacles
from installer.engines import ENGINES
from installer.engines.dry_run import DryRuns
from installer.errors import (
    AGAIN,
    OWNERS_ACTS,
    Exit,
    InstallerError,
    NotBegunError,
    NotYetError,
    StoppedError,
    UndoIncompleteError,
    UsageError,
)
from installer.host import supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.kubernetes import Api
from installer.host.locks import LOCK, Lock, lock_pidfile, write_pid
from installer.lifecycle import readiness, uninstall
from installer.lifecycle.check import Work, check_node, conclude_install, publish_wait, take_fingerprint
from installer.lifecycle.fresh_edits import await_restart, find_fresh_edits
from installer.lifecycle.last_check import Repair, publish_check, read_check_of_boot
from installer.lifecycle.ledger_access import as_incomplete_undo, open_as_child, open_for_run, open_ledger
from installer.lifecycle.mounts import list_mounts, refuse_other_mounts, refuse_unread_configs
from installer.lifecycle.node_turns import TurnWaitError, open_turns
from installer.lifecycle.run_files import claim_run_files, remove_run_files
from installer.lifecycle.watched_places import list_awaited
from installer.metrics import snapshot as metrics
from installer.model.facts import EngineRow
from installer.model.files import File, Meta, dumps
from installer.model.options import AUTO, OnExit, Options, RestartMode, RunRequest
from installer.model.steps import Part, PartId
from installer.nri import state as plugin_state
from installer.payload.access import install_dir_obstacles, refuse_strangers_files
from installer.supervisor import WAITING
from installer.watch import METRICS, NRI, Watch

HUNG_S: Final = 300.0  # the longest time of a child other than the install, with the usual --timeout
# For one engine: for an answer; then after its restart, and after the restart of a roll-back, for the engine
# and for the units that systemd restarts along.
WAITS: Final = 5


class _Progress(Enum):
    """How far the install of a ``run`` has come."""

    PLANNING = auto()  # the host is as before
    CHANGING = auto()  # a failure is rolled back
    INSTALLED = auto()  # a failure keeps everything, because the engines serve


def install(options: Options) -> Exit:
    """Install the toolkit, configure the engines, verify them, and end."""
    if options.serves_nri:
        remedy = "use run, or install with --mode cdi and start toolkit-installer nri beside it"
        raise UsageError("install with the NRI plugin (it runs as long as run does)", remedy=remedy)
    host = Host.under(options.host_root, options.mounts)
    _refuse_install_dir(host, options)  # before our own directory is made
    with open_ledger(host, options) as ledger:
        metrics.claim(host, replace(options, metrics_listen=None), ledger)  # no process stays to serve them
        plan = _install(host, options, ledger, patience_s=options.timeout_s)
        unproven = [row for row in ledger.record.engines if row.name in plan.unverified_engines]
        if options.restart_mode is RestartMode.NONE and unproven:
            stopped = {name for name, engine in plan.engines.items() if engine.stopped}
            _log_restarts(unproven, stopped, "it has not read its config since the install")
        else:
            commands = [
                ENGINES[row.name].describe_gpu_test(options.runtime_name) for row in ledger.record.engines
            ]
            command = next(filter(None, commands), "toolkit-installer status")
            log.info("next step", command=command)
    return Exit.OK


def _log_restarts(rows: Iterable[EngineRow], stopped: Collection[str], reason: str) -> None:
    """Log how a user has engines read their configs.

    Args:
        rows: The engines.
        stopped: The names of the engines that do not run.
        reason: The reason.
    """
    commands: list[str] = []
    remedies: list[str] = []
    for row in rows:
        kind = ENGINES[row.name]
        verb = "reload" if kind.reads_config_on_signal else "restart"
        if row.name in stopped:
            verb = "start"
        if row.unit:
            commands.append(f"systemctl {verb} {row.unit}")
        else:
            remedies.append(f"{verb} {kind.title}")
    fields = {"command": " && ".join(commands), "remedy": " and ".join(remedies), "reason": reason}
    log.info("next step", **{name: text for name, text in fields.items() if text})


def _refuse_install_dir(host: Host, options: Options) -> None:
    """Raise the first obstacle of the install directory."""
    obstacle = next(iter(install_dir_obstacles(host, options.install_dir)), None)
    if obstacle is not None:
        raise obstacle


def run(request: RunRequest) -> NoReturn:
    """Become the supervisor of this node.

    Raises:
        InstallerError: the supervisor cannot begin; nothing was changed.
    """
    options = request.options
    host = Host.under(options.host_root, options.mounts)
    _refuse_install_dir(host, options)
    refuse_strangers_files(host, options)
    if options.serves_nri:
        plugin_state.refuse_absent(host, options.nri)
    if options.turns.release:
        _refuse_turns_without_cluster(options)
    with open_ledger(host, options, partial(open_for_run, host, options)) as ledger:
        if ledger.record.undo_pending is not None:
            # A unit that waits to undo an earlier install sees that the node is wanted, if by a refused run.
            ledger.write(replace(ledger.record, undo_pending=None))
        if ledger.record.failed is not None:
            _refuse_failed(host, options, ledger)
        claim_run_files(host, options, ledger)
        pidfile = lock_pidfile(host, options.pid_file)
        try:
            with internal_errors():
                # A killed run may have left readiness with our pid: in a container every run has pid 1.
                readiness.remove(host, options.ready_file)
                write_pid(pidfile, options.pid_file)
                ledger.write(replace(ledger.record, pid_file=options.pid_file))
                host.replace(options.options_file, File(dumps(request), Meta(0o600)))
                _become_supervisor(host, request, pidfile, ledger.lock)
        except InstallerError:
            with as_incomplete_undo():
                remove_run_files(host, options, ledger)
            raise


def _refuse_turns_without_cluster(options: Options) -> None:
    """Raise InstallerError for turns outside a cluster: this node would wait for ever."""
    from installer.fleet.own_pod import find_own_node

    find_own_node(Api.of_this_pod(), options.node_name)


def _refuse_failed(host: Host, options: Options, ledger: Ledger) -> None:
    """Refuse a failed plan again, before the first write.

    Raises:
        InstallerError: the plan is refused, for a reason for which ``run`` does not wait.
    """
    try:
        _plan(host, options, ledger)
    except StoppedError:
        return  # the supervisor carries out the stop
    except InstallerError as error:
        if not _may_wait(error, _Progress.PLANNING):
            if ledger.record.failed is not None:
                open_turns(host, options, ledger).settle(failure=f"cannot {ledger.record.failed.problem}")
            raise


def _become_supervisor(host: Host, request: RunRequest, pidfile: Lock, lock: Lock) -> NoReturn:
    """Become the supervisor, which holds the locks of the pidfile and of the ledger."""
    options = request.options
    locks = [
        (host.local_path(options.pid_file), pidfile.fd),
        (host.local_path(options.layout.home / LOCK), lock.fd),
    ]
    options_file = host.local_path(options.options_file)
    sidecars: list[str] = []
    leftovers: list[str] = []  # of a killed NRI plugin
    if options.serves_nri:
        sidecars.append(NRI)
        nri = options.nri
        leftovers = [str(host.local_path(path)) for path in (nri.state, nri.staged_state, nri.lock)]
    if options.metrics_listen is not None:
        sidecars.append(METRICS)
    supervision.become_supervisor(
        locks,
        options_file,
        highest_exit=Exit.FAILED if request.nvidia else Exit.UNDO_INCOMPLETE,
        hung_s=find_hung_s(options),
        sidecars=" ".join(sidecars),
        leftovers=leftovers,
        log_format=request.log_format,
    )


def find_hung_s(options: Options) -> float:
    """Return the time after which a child of ``run`` other than the install counts as hung.

    A repair may wait for each engine ``WAITS`` times, each time as long as --timeout says.
    """
    longer_s = max(0.0, options.timeout_s - Options().timeout_s)
    count = len(ENGINES) if AUTO in options.engines else len(options.engines)
    return HUNG_S + WAITS * count * longer_s


def first_install(options: Options, reason: str = "") -> int:
    """Install and publish readiness, as the first child of ``run``; return OK or WAITING.

    An install that is refused for a reason that only the owner can remove has changed nothing, and waits:
    ``run`` starts it again after a change of the node. An install that was started again also waits if it is
    refused for any other reason: the owner is at work, and the engine may be down for a moment.

    Args:
        options: the options of ``run``.
        reason: why a waiting install is started again, in the words of ``Supervisor``; "" for the first try.

    Raises:
        StoppedError: the install was stopped; the undo removes its begun steps.
        UndoIncompleteError: the host is not as before, and the ledger is kept.
        InstallerError: the install failed; the host is as before.
    """
    host = Host.under(options.host_root, options.mounts)
    asked = reason == "asked"
    if asked:  # for a user's request no restart is postponed
        options = options.at_once
    progress = _Progress.PLANNING
    with open_as_child(host, options, supervision.raise_if_stopped) as ledger:
        work = _work(host, options, ledger)
        before = take_fingerprint(work)
        try:
            with internal_errors():
                plan = _find_plan(host, options, ledger, awaits_others=not asked)
                plan = work.turns.admit(plan, work.plan, asked=asked or not reason)
                record = ledger.record
                progress = _Progress.CHANGING
                plan = _carry_out_install(host, options, ledger, plan)
                progress = _Progress.INSTALLED
                _answer(conclude_install(work, plan, asked=asked))
        except StoppedError:
            # An unchanged node gives its turn back now, a changed node at its undo.
            if progress is not _Progress.PLANNING and ledger.record == record:
                work.turns.give_back(at_stop=True)
            ledger.stays = True  # the undo removes the directories that were made for the pidfile
            raise
        except InstallerError as error:
            if _may_wait(error, progress, is_again=bool(reason)):
                ledger.stays = True
                if progress is _Progress.CHANGING:
                    work.turns.give_back()
                watch = publish_wait(work, error, before, reason)
                _answer(watch, tells=asked or not reason)
                return WAITING
            work.turns.settle(failure=str(error))
            with as_incomplete_undo():
                remove_run_files(host, options, ledger)
            if progress is _Progress.INSTALLED:  # the next run finds the install, and restarts nothing
                raise UndoIncompleteError.because(error, again=AGAIN) from error
            raise
    if options.on_exit is OnExit.AUTO:
        uninstall.warn_of_undo(options)
    return Exit.OK


def _may_wait(error: InstallerError, progress: _Progress, *, is_again: bool = False) -> bool:
    """Tell whether an install waits after an error, with the host as it was before.

    Args:
        error: the error.
        progress: how far the install had come.
        is_again: the install has waited before.
    """
    if progress is _Progress.INSTALLED:
        return False
    if isinstance(error, TurnWaitError) or (is_again and progress is _Progress.PLANNING):
        return True
    if error.exit is not Exit.FAILED or error.code not in OWNERS_ACTS:
        return False
    # A begun install waits if it stopped right before the restart of an engine, for this reason.
    return progress is _Progress.PLANNING or isinstance(error, NotBegunError)


def check(options: Options, *, asked: bool) -> Exit:
    """Check and repair the node, as a child of a ``run`` that waits.

    Raises:
        UndoIncompleteError: the check was impossible.
    """
    host = Host.under(options.host_root, options.mounts)
    began_s = time.monotonic()
    stopping = supervision.raise_if_stopped
    if asked:  # for a user's request no restart is postponed
        options = options.at_once
    try:
        with as_incomplete_undo(StoppedError, again=AGAIN), open_as_child(host, options, stopping) as ledger:
            claim_run_files(host, options, ledger)
            ledger.write(replace(ledger.record, pid_file=options.pid_file))
            _answer(check_node(_work(host, options, ledger), asked=asked), tells=asked)
    except UndoIncompleteError as error:  # the check could not publish a result, for which a user may wait
        before = read_check_of_boot(host, options.state_file).with_error(error)
        failed = replace(before, asked=asked, began_s=began_s, repair=Repair())
        publish_check(host, options.state_file, failed)
        raise
    return Exit.OK


def _answer(watch: Watch, *, tells: bool = True) -> None:
    supervision.send_answer(watch.encode())
    if tells:
        log.info("waiting for a signal")


@contextmanager
def _stale_withdrawn(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Withdraw a stale specification if the block, which would have replaced the specification, fails."""
    try:
        yield
    except StoppedError:
        raise
    except InstallerError:
        withdraw_stale(host, options, ledger.record, ledger.write)
        raise


def _plan(host: Host, options: Options, ledger: Ledger, patience_s: float = 0.0) -> Plan:
    """Return the plan of an install, or raise its first obstacle."""
    refuse_other_mounts(host, options, ledger.record)
    with _stale_withdrawn(host, options, ledger):
        facts = observe_install(host, options, ledger.record, patience_s)
        refuse_unread_configs(host, options, ledger.record, facts.engines)
        dry_runs = DryRuns(host, facts.contents)
        plan = plan_install(facts, options, dry_runs)
        validation = Part(PartId.VALIDATION, notes=tuple(dry_runs.explain_unvalidated(plan.steps)))
        plan = replace(plan, parts=(*plan.parts, validation))
        try:
            refuse_obstacles(plan)
        except InstallerError as error:
            error.watched = list_awaited(host, plan.engines.values())
            raise
        return plan


def _install(host: Host, options: Options, ledger: Ledger, *, patience_s: float = 0.0) -> Plan:
    """Install; wait ``patience_s`` seconds for postponed restarts to become possible."""
    plan = _find_plan(host, options, ledger, patience_s=patience_s)
    return _carry_out_install(host, options, ledger, plan)


def _find_plan(
    host: Host, options: Options, ledger: Ledger, *, patience_s: float = 0.0, awaits_others: bool = True
) -> Plan:
    """Return the plan of an install as it is after all waits.

    Args:
        host: the node.
        options: the options.
        ledger: the ledger.
        patience_s: how long to wait for postponed restarts to become possible.
        awaits_others: wait once for others who have just edited a config, and may restart the engine.

    Raises:
        InstallerError: the install is refused, and nothing was changed.
    """
    recover(host, options, ledger)
    until_s = time.monotonic() + patience_s
    plan = _plan(host, options, ledger, options.timeout_s)
    while plan.pending and time.monotonic() < until_s:
        supervision.raise_if_stopped()
        time.sleep(1)
        plan = _plan(host, options, ledger)
    edits = find_fresh_edits(plan, ledger.record)
    if awaits_others and edits:
        await_restart(host, plan, edits, options.timeout_s)
        plan = _plan(host, options, ledger, options.timeout_s)
    return plan


def _carry_out_install(host: Host, options: Options, ledger: Ledger, plan: Plan) -> Plan:
    """Carry the plan of an install out, and log it; return the plan that was carried out."""
    for engine in plan.engines.values():
        version = ".".join(map(str, engine.version or ())) or "unknown"
        config = str(engine.config)
        log.info("engine found", engine=engine.name, version=version, unit=engine.unit, config=config)
    for note in plan.notes:
        log.info("note made", note=note)
    former_socket = ledger.record.nri
    try:
        _carry_out(host, options, ledger, plan)
    except NotYetError:  # an engine must not be restarted any more; the written files were rolled back
        return _install(host, options, ledger)
    if (
        former_socket is not None and former_socket != ledger.record.nri
    ):  # no engine uses that socket any more
        plugin_state.remove_plugin(host, options.nri.at(former_socket))
    if not plan.steps:
        log.info("nothing changed", engines=sorted(plan.engines))
    else:
        log.info("installed", engines=sorted(plan.engines), steps=len(plan.steps))
    for name, reason in plan.pending.items():
        log.warning("restart pending", engine=name, problem=reason.problem, remedy=reason.remedy)
    unasked = [name for name in plan.unverified_engines if name not in plan.pending]
    if unasked:
        unknown = "the engines were not asked whether they serve our runtimes"
        log.warning("not verified", engines=unasked, reason=unknown)
    metrics.publish_success(host, options, ledger, plan)
    return plan


def _carry_out(host: Host, options: Options, ledger: Ledger, plan: Plan) -> None:
    supervision.raise_if_stopped()
    if plan.reloaded:
        readiness.remove(host, options.ready_file)
    plan = _with_mounts(host, options, plan)
    if plan.steps or plan.final != ledger.record:
        context = Context(host, options.layout, ledger, options.timeout_s)
        undo_follows = supervision.is_child() and options.on_exit is OnExit.UNDO
        with _stale_withdrawn(host, options, ledger):
            apply(context, plan, supervision.raise_if_stopped, undo_follows=undo_follows)
    else:
        ledger.save(plan.backups)  # a saved copy may have been removed or changed


def _with_mounts(host: Host, options: Options, plan: Plan) -> Plan:
    """Return the plan with the mounts of this process in the rows of the ledger."""
    mounts = list_mounts(host, options, plan.in_progress.configs)
    in_progress = replace(plan.in_progress, mounts=mounts)
    final = replace(plan.final, mounts=mounts) if plan.final is not None else None
    return replace(plan, in_progress=in_progress, final=final)


def _work(host: Host, options: Options, ledger: Ledger) -> Work:
    def plan() -> Plan:
        recover(host, options, ledger)
        return _plan(host, options, ledger)

    turns = open_turns(host, options, ledger)
    return Work(host, options, ledger, plan, partial(_carry_out, host, options, ledger), turns)
