"""Undo what the ledger holds: by ``uninstall``, or at a stop of ``run`` unless the next ``run`` takes over.

A pod that is deleted by force is stopped while the next pod of its DaemonSet is already being created. An
undo would restart the engine under the next pod, which would install and restart the engine once more.
"""

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.lost_ledger import (
    REMEDY_OF_NAMED,
    find_install_dir,
    find_leftovers,
    find_lost,
    find_packages,
    list_naming_missing_toolkit,
    recover,
)
from installer.change.observe import observe_adoption, observe_undo
from installer.change.plan import Plan, plan_undo
from installer.change.references import find_last_references
from installer.change.transaction import Context, apply_undo, refuse_obstacles
from installer.engines.containers import find_in_use, find_running_containers
from installer.engines.dry_run import DryRuns
from installer.errors import Exit, InstallerError, InternalError, UndoIncompleteError
from installer.host import locks, supervision, systemd
from installer.host.events import internal_errors, log
from installer.host.files import Host
from installer.host.kubernetes import is_replica_made
from installer.host.trees import remove_staged
from installer.lifecycle import handover, readiness
from installer.lifecycle.ledger_access import (
    as_incomplete_undo,
    open_as_child,
    open_for_uninstall,
    open_ledger,
)
from installer.lifecycle.mounts import refuse_other_mounts, refuse_unread_configs
from installer.lifecycle.node_turns import give_back_after_undo, open_turns
from installer.lifecycle.run_files import remove_run_files
from installer.lifecycle.verify_leftovers import remove_made
from installer.metrics import snapshot as metrics
from installer.model.facts import Facts, PendingUndo, explain_running
from installer.model.options import InUse, OnExit, Options, RestartMode
from installer.nri import state as plugin_state
from installer.supervisor import HANDED_OVER

if TYPE_CHECKING:
    from installer.fleet.run_again import Keep, Undo, Unknown

RECENT_S: Final = 5.0
SIGN_S: Final = 1.0  # from the stop to the next pod's directory: the kubelet waits for its volumes first
START_S: Final = 10.0  # from the directory to the next pod's run; the rest of the grace is enough for an undo
ASK_S: Final = 6.0  # of UNDO_S, for the Kubernetes API to answer
ASK_AT_LEAST_S: Final = 2.0
# Without an answer of the API a unit of the host leaves the node to the next pod, for this time at least and
# for twice this time at most: the nodes of a fleet draw, so that not all of them undo at once.
UNDECIDED_S: Final = 600.0
POLL_S: Final = 0.05
UNDO_S: Final = 22.0  # for all engines together: by default a pod has 30 s to end
PROBE_S: Final = 6.0  # of UNDO_S, for an engine that is between two lives
RELOAD_S: Final = 10.0  # of UNDO_S, for a reload at least
IN_USE_S: Final = 10.0
NODE_S: Final = 2.0  # systemd may be kept busy, and a pod has 30 s for all by default


def uninstall(options: Options) -> Exit:
    """Undo everything in the ledger, whichever command wrote the ledger."""
    waits_for = ""
    try:
        with internal_errors():
            host = Host.under(options.host_root, options.mounts)
            options = find_install_dir(host, options)
            if host.exists(options.layout.home) or find_lost(host, options):
                opening = partial(open_for_uninstall, host, options)
                with open_ledger(host, options, opening) as ledger:
                    waits_for = undo_or_hand_over(host, options, ledger)
            else:
                # A run that was killed while it made or removed the first directory left files beside it.
                for path in (options.layout.home, *options.layout.home.parents[:-1]):
                    remove_staged(host, path)
                plugin_state.remove_plugin(host, options.nri)
                if not options.adopt:
                    _warn_of_missing_toolkit(host, options)
                log.info("nothing to undo", install_dir=str(options.install_dir))
            if options.adopt:
                _undo_adopted(host, options)
    except InternalError as error:
        raise UndoIncompleteError.because(error) from error
    if waits_for:
        remedy = (
            f"{handover.UNIT} finishes that on this node when they have ended; --in-use=force does not wait"
        )
        raise UndoIncompleteError(waits_for, remedy=remedy, code="in-use")
    return Exit.OK


def _warn_of_missing_toolkit(host: Host, options: Options) -> None:
    """Warn of each config that names a toolkit which is not there."""
    for path in list_naming_missing_toolkit(host, options):
        toolkit = str(options.layout.toolkit)
        log.warning("missing toolkit named", path=str(path), toolkit=toolkit, remedy=REMEDY_OF_NAMED)


def undo_or_hand_over(host: Host, options: Options, ledger: Ledger, *, within_s: float = inf) -> str:
    """Undo, or have a unit of the host finish the undo.

    Return the problem for which the unit waits, "" after a complete undo.
    """
    until_s = time.monotonic() + within_s
    try:
        undo(host, options, ledger, within_s=within_s)
    except UndoIncompleteError as error:
        if not handover.may_finish(host, options, ledger.record, error):
            raise
        try:
            pending = PendingUndo(readiness.stamp(), error.problem)
            handover.hand_over(host, options, ledger, pending, until_s)
        except UndoIncompleteError as failure:
            error.others = (*error.others, failure)  # the reason of the undo counts more, and is logged first
            raise error from failure
        return error.problem
    return ""


def _undo_adopted(host: Host, options: Options) -> None:
    """Undo the leftovers of NVIDIA's own installer as if they were ours."""
    facts = observe_adoption(host, options)
    adopted = find_leftovers(facts, options)
    for runtime in find_packages(facts, options):
        reason = f"it starts a program outside {options.layout.toolkit}, so --adopt keeps it"
        log.info("runtime kept", runtime=runtime, reason=reason)
    if not adopted.notes:
        log.info("no leftovers found", install_dir=str(options.install_dir))
        return
    with open_ledger(host, options) as ledger:
        ledger.write(replace(adopted.rows, directories=ledger.record.directories))
        log.info("leftovers found", found=list(adopted.notes))
        undo(host, options, ledger)


def undo(host: Host, options: Options, ledger: Ledger, *, within_s: float = inf) -> None:
    """Undo what the ledger holds, within ``within_s`` seconds of a pod's grace.

    Raises:
        UndoIncompleteError: the undo was impossible or is incomplete.
    """
    until_s = time.monotonic() + within_s
    hurried = within_s < inf
    was_pending = ledger.record.undo_pending
    with as_incomplete_undo():
        recover(host, options, ledger, undoes=True)
        refuse_other_mounts(host, options, ledger.record, undoes=True)
        remove_run_files(host, options, ledger)
        metrics.withdraw(host, options, ledger)
        facts = _observe_for_undo(host, options, ledger, until_s)
        refuse_unread_configs(host, options, ledger.record, facts.engines)
        plan = plan_undo(facts, options, DryRuns(host, facts.contents))
        for note in plan.notes:
            log.warning("note made", note=note)
        if plan.obstacles:
            with suppress(InstallerError):  # what stands in the way may keep the ledger from a write, too
                ledger.write(replace(ledger.record, undo_problem=plan.obstacles[0].problem))
        refuse_obstacles(plan)

        share_s = max(1.0, until_s - time.monotonic()) / max(1, len(plan.engines))
        context = Context(
            host,
            options.layout,
            ledger,
            timeout_s=min(options.timeout_s, share_s),
            until_s=until_s,
            find_references=partial(_find_last_references, host, options, ledger),
            before_removal=partial(give_back_after_undo, host, options, ledger, at_stop=hurried),
        )
        plugin = plugin_state.at_ledger_socket(options.nri, ledger.record)
        apply_undo(context, plan, supervision.raise_if_orphan)
        plugin_state.remove_plugin(host, plugin)
    _refuse_incomplete(plan)
    log.info("undo complete", steps=len(plan.steps))
    if was_pending:
        handover.forget_failure(host)


def _observe_for_undo(host: Host, options: Options, ledger: Ledger, until_s: float) -> Facts:
    """Observe the node for an undo, without leftovers of ``verify``, after a wait for containers.

    ``until_s`` is the end of a pod's grace, by ``time.monotonic``; infinite without a pod.
    """
    hurried = until_s < inf
    facts = observe_undo(host, options, ledger.record, awaits_s=PROBE_S if hurried else inf)
    if remove_made(host, options.layout, hurried=hurried):
        facts = observe_undo(host, options, ledger.record, awaits_s=0.0 if hurried else inf)
    if facts.containers.running and options.in_use is InUse.WAIT and options.thorough:
        facts = _await_containers(host, options, ledger, facts, until_s)
    return facts


def _refuse_incomplete(plan: Plan) -> None:
    """Raise the first reason why a finished undo has left something, with the others attached.

    Raises:
        UndoIncompleteError: something is left.
    """
    problems = list(plan.needed)
    if plan.in_use:
        problem = f"undo everything ({explain_running(plan.in_use)})"
        remedy = "run uninstall again when that has ended"
        problems.insert(0, InstallerError(problem, remedy=remedy, code="in-use"))
    if problems:
        incomplete = UndoIncompleteError.because(problems[0])
        incomplete.others = tuple(problems[1:])
        raise incomplete


def _find_last_references(host: Host, options: Options, ledger: Ledger) -> Iterator[InstallerError]:
    """Yield the present references to programs of the toolkit; the plan of the undo may be older."""
    return find_last_references(observe_undo(host, options, ledger.record, awaits_s=0.0), options)


def _await_containers(host: Host, options: Options, ledger: Ledger, facts: Facts, until_s: float) -> Facts:
    """Return the facts after the containers on our runtimes have ended, or when a reload has to begin."""
    seconds = max(0.0, min(IN_USE_S, until_s - time.monotonic() - RELOAD_S))
    names = [each.name for each in facts.containers.running]
    log.info("waiting for containers", containers=names, seconds=round(seconds, 1))
    deadline = time.monotonic() + seconds
    restarts = options.restart_mode is not RestartMode.NONE
    where = (host, options.layout, ledger.record, facts.engines)
    while time.monotonic() < deadline:
        # Docker needs a call for each container, so it is asked only where the shims do not tell enough.
        in_use = bool(find_running_containers(*where, restarts=restarts))
        if not in_use:
            in_use = bool(find_in_use(*where, restarts=restarts)[0])
        if not in_use:
            break
        time.sleep(0.1)
    return observe_undo(host, options, ledger.record, awaits_s=0.0 if until_s < inf else inf)


def stop(options: Options, stopped_s: float, *, again: bool = False) -> int:
    """Carry out a stop of ``run``; return an exit code or HANDED_OVER.

    Args:
        options: the options of ``run``.
        stopped_s: when the stop was requested, by ``time.monotonic``.
        again: the first process that carried out the stop was killed, so everything optional is left out.
    """
    if again:
        options = replace(options, thorough=False)
    log.info("stop requested")
    host = Host.under(options.host_root, options.mounts)
    with as_incomplete_undo(), open_as_child(host, options, supervision.raise_if_orphan) as ledger:
        if node_stops(host):
            log.info("everything kept", reason="the node is going down")
            return Exit.OK
        turns = open_turns(host, options, ledger)  # reads the last check, which goes with readiness
        remove_run_files(host, options, ledger)  # the next run waits for the ledger once there is no pidfile
        decision = _decide_stop(options, stopped_s)
        reason_to_keep = decision.keeps_because
        # A pod deleted by force has no valid token any more: the kubelet's directories tell of the next pod.
        waits = not again and not decision.unknown_because
        if not reason_to_keep and await_next_run(host, ledger.lock, stopped_s, waits=waits):
            reason_to_keep = "the next run takes over"
        if reason_to_keep:
            turns.give_back_kept(to_next_run=True)
            log.info("everything kept", reason=reason_to_keep)
        elif decision.unknown_because and _leave_to_next_pod(host, options, ledger, decision, stopped_s):
            turns.give_back_kept()
            return HANDED_OVER
        elif reason := handover.find_reason(host, options, ledger.record):
            pending = PendingUndo(readiness.stamp(), reason)
            handover.hand_over(host, options, ledger, pending, stopped_s + UNDO_S)
            turns.give_back_kept()  # the host's unit has no account of the API
            return HANDED_OVER
        elif undo_or_hand_over(host, options, ledger, within_s=stopped_s + UNDO_S - time.monotonic()):
            turns.give_back_kept()
            return HANDED_OVER
    return Exit.OK


class _StopDecision(Struct, frozen=True):
    """What a stop does, and why: it keeps everything, or does not know, or undoes if both reasons are ""."""

    keeps_because: str = ""
    unknown_because: str = ""


def _decide_stop(options: Options, stopped_s: float) -> _StopDecision:
    """Decide by the policy what a stop does; under the policy auto ask the API."""
    if options.on_exit is OnExit.KEEP:
        return _StopDecision(keeps_because=f"asked for with --on-exit {options.on_exit}")
    if options.on_exit is OnExit.UNDO:
        return _StopDecision()
    from installer.fleet.run_again import Keep, Unknown

    answer = _ask_api(options, stopped_s)
    if isinstance(answer, Keep):
        return _StopDecision(keeps_because="a pod of the DaemonSet will run on this node again")
    if isinstance(answer, Unknown):
        return _StopDecision(unknown_because=answer.reason)
    log.info("undo decided", reason=answer.reason)
    return _StopDecision()


def _ask_api(options: Options, stopped_s: float) -> "Keep | Undo | Unknown":
    """Ask the API whether another pod runs here after a stop that was requested at ``stopped_s``."""
    from installer.fleet.own_pod import ask_run_again

    # A stop that had to wait for another child asks at least for a moment.
    until_s = max(stopped_s + ASK_S, time.monotonic() + ASK_AT_LEAST_S)
    return ask_run_again(options.daemonset, options.node_name, until_s)


def _leave_to_next_pod(
    host: Host, options: Options, ledger: Ledger, decision: _StopDecision, stopped_s: float
) -> bool:
    """Have a unit of the host undo later, unless the next pod comes first; tell whether the unit waits.

    The API did not answer: an undo now would restart the engine of each node that an update has reached.
    """
    reason = decision.unknown_because
    if not ledger.record.empty:
        waits_s = random.uniform(UNDECIDED_S, 2 * UNDECIDED_S)  # noqa: S311 - no secret
        pending = PendingUndo(readiness.stamp(), reason, waits_s)
        try:
            handover.hand_over(host, options, ledger, pending, stopped_s + UNDO_S)
        except UndoIncompleteError as failure:
            reason = f"{reason}; cannot {failure.problem}"
        else:
            return True
    log.info("undo decided", reason=reason)
    return False


def warn_of_undo(options: Options) -> None:
    """Log already now why a stop would undo everything, such as for want of a right."""
    from installer.fleet.run_again import Keep

    answer = _ask_api(options, -inf)
    if not isinstance(answer, Keep):
        log.warning("undo at stop expected", on_exit=str(options.on_exit), reason=answer.reason)


def node_stops(host: Host) -> bool:
    """Tell whether the node is being shut down, so that the install must outlive this process."""
    # A kubelet with a grace for a shutdown (shutdownGracePeriod) stops the pods before systemd begins.
    with suppress(InstallerError), internal_errors():
        if systemd.shutdown_prepared(systemd.buses(host), timeout_s=NODE_S):
            return True
    with suppress(InstallerError), internal_errors():
        return systemd.system_state(systemd.buses(host), timeout_s=NODE_S) == "stopping"
    # The last processes are stopped when systemd has already given way to its own last program.
    with suppress(InstallerError):
        init = host.read(PurePosixPath("/proc/1/comm"))
        return init is not None and init.content.startswith(b"systemd-shutdow")
    return False


def await_next_run(host: Host, lock: locks.Lock, stopped_s: float, *, waits: bool) -> bool:
    """Tell whether another ``run`` waits for the ledger's lock, so that this stopping ``run`` undoes nothing.

    Args:
        host: the host.
        lock: the ledger's lock.
        stopped_s: when the stop was requested, by ``time.monotonic``.
        waits: wait for the next ``run`` while a kubelet shows signs of the start of the next pod.
    """
    recent_s = time.time() - (time.monotonic() - stopped_s) - RECENT_S
    until = time.monotonic() + SIGN_S
    latest = max(until, stopped_s + SIGN_S + START_S)
    next_pod_seen = False
    while not locks.is_awaited(lock):
        if not waits:
            return False
        made = is_replica_made(host, recent_s)
        if made and not next_pod_seen:
            seconds = min(START_S, latest - time.monotonic())
            reason = "the kubelet starts another"
            log.info("waiting for the next pod", seconds=round(seconds, 1), reason=reason)
            next_pod_seen = True
            until = time.monotonic() + seconds
        if made is None or time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True
