"""Uninstall, and the undo that a stop of ``run`` is, or who takes that over: the ledger tells what to undo.

A pod that is deleted by force is stopped when the next one of its DaemonSet is being made already. An
undo would restart the engine under that one, which would install and restart it once more.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import PurePosixPath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from installer.change.ledger import Ledger, hold, read_record
from installer.change.observe import observe_adoption, observe_undo
from installer.change.plan import plan_undo
from installer.change.references import find_last_references
from installer.change.transaction import Context, apply_undo, refuse_obstacles
from installer.change.unrecorded import find_install_dir, find_leftovers, find_lost, find_packages, recover
from installer.engines import ENGINES, trial_containers
from installer.engines.containers import find_in_use, find_running_containers
from installer.engines.dry_run import Trials
from installer.engines.restart import is_held
from installer.errors import (
    Exit,
    InstallerError,
    InternalError,
    LockedError,
    StoppedError,
    UndoIncompleteError,
)
from installer.host import locks, supervision, systemd
from installer.host.events import internal_errors, log
from installer.host.files import Host, read_json_of_root
from installer.host.kubernetes import is_replica_made
from installer.host.trees import remove_staged
from installer.lifecycle import handover, readiness
from installer.metrics import snapshot as metrics
from installer.model.engine_spec import Api, ReloadMethod
from installer.model.facts import EngineRow, Facts, names_of
from installer.model.files import File, Layout, Meta, dumps
from installer.model.options import InUse, OnExit, Options, RestartMode
from installer.nri import state as plugin_state
from installer.supervisor import HANDED_OVER

RECENT_S: Final = 5.0
SIGN_S: Final = 1.0  # from the stop to the next pod's directory: the kubelet waits for its volumes first
START_S: Final = 10.0  # and from there to its run; what is left of the pod's grace is enough for an undo
ENDS_S: Final = 30.0  # an undo ends within 25 s
POLL_S: Final = 0.05
UNDO_S: Final = 22.0  # for all engines together: by default a pod has 30 s to end
PROBE_S: Final = 6.0  # of these, for an engine that is between two lives
RELOAD_S: Final = 10.0  # and for a reload, at least
IN_USE_S: Final = 10.0
NODE_S: Final = 2.0  # systemd may be kept busy, and a pod has 30 s for all by default
# For all engines. A busy containerd was seen to take more than 15 s; a pod's grace has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0
REMOVE: Final = {Api.DOCKER: trial_containers.remove_containers, Api.CRI: trial_containers.remove_pods}


def uninstall(options: Options) -> Exit:
    """Undo whatever the ledger holds, whoever wrote it."""
    waits_for = ""
    try:
        with internal_errors():
            host = Host.under(options.host_root, options.mounts)
            options = find_install_dir(host, options)
            if host.exists(options.layout.home) or find_lost(host, options):
                opening = partial(ledger_for_uninstall, host, options)
                with open_ledger(host, options, opening) as ledger:
                    waits_for = undo_or_hand_over(host, options, ledger)
            else:
                # What a run that was killed while it made or removed the first directory left beside it.
                for path in (options.layout.home, *options.layout.home.parents[:-1]):
                    remove_staged(host, path)
                plugin_state.remove_plugin(host, options.nri)
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


def undo_or_hand_over(host: Host, options: Options, ledger: Ledger, *, within_s: float = inf) -> str:
    """Undo, or have a unit of the host finish that; return what the unit waits for, "" if all is undone."""
    until_s = time.monotonic() + within_s
    try:
        undo(host, options, ledger, within_s=within_s)
    except UndoIncompleteError as error:
        if not handover.may_finish(host, options, ledger.held, error):
            raise
        try:
            handover.hand_over(host, options, ledger, error.problem, until_s)
        except UndoIncompleteError as failure:
            log.warning("undo not handed over", error=failure)
            raise error from failure
        return error.problem
    return ""


def _undo_adopted(host: Host, options: Options) -> None:
    """Undo what NVIDIA's own installer left, as if it were ours."""
    facts = observe_adoption(host, options)
    adopted = find_leftovers(facts, options)
    for runtime in find_packages(facts, options):
        reason = f"it starts a program outside {options.layout.toolkit}, so --adopt keeps it"
        log.info("runtime kept", runtime=runtime, reason=reason)
    if not adopted.notes:
        log.info("no leftovers found", install_dir=str(options.install_dir))
        return
    with open_ledger(host, options) as ledger:
        ledger.write(replace(adopted.rows, directories=ledger.held.directories))
        log.info("leftovers found", found=list(adopted.notes))
        undo(host, options, ledger)


def undo(host: Host, options: Options, ledger: Ledger, *, within_s: float = inf) -> None:
    """Undo what the ledger holds, ``within_s`` of a pod's grace; UndoIncompleteError: ours is left."""
    until_s, hurried = time.monotonic() + within_s, within_s < inf
    was_pending = ledger.held.undo_pending
    with as_incomplete_undo():
        remove_readiness(host, options, ledger)
        metrics.withdraw(host, options, ledger)
        recover(host, options, ledger, undoes=True)
        facts = observe_undo(host, options, ledger.held, awaits_s=PROBE_S if hurried else inf)
        if remove_made(host, options.layout, hurried=hurried):
            facts = observe_undo(host, options, ledger.held, awaits_s=0.0 if hurried else inf)
        if facts.containers.running and options.in_use is InUse.WAIT and options.thorough:
            facts = _await_containers(host, options, ledger, facts, until_s)
        plan = plan_undo(facts, options, Trials(host, facts.contents))
        for note in plan.notes:
            log.warning("undo note", note=note)
        for obstacle in plan.obstacles[:1]:
            ledger.write(replace(ledger.held, left=obstacle.problem))
        refuse_obstacles(plan)
        share_s = max(1.0, until_s - time.monotonic()) / max(1, len(plan.engines))
        context = Context(
            host,
            options.layout,
            ledger,
            min(options.timeout_s, share_s),
            until_s,
            find_references=partial(_find_last_references, host, options, ledger),
        )
        plugin = plugin_state.at_ledger_socket(options.nri, ledger.held)
        apply_undo(context, plan, supervision.raise_if_orphan)
        plugin_state.remove_plugin(host, plugin)
    left = list(plan.needed)
    if plan.in_use:
        problem = f"undo everything (our runtime runs {names_of(plan.in_use)})"
        remedy = "run uninstall again when that has ended"
        left.insert(0, InstallerError(problem, remedy=remedy, code="in-use"))
    if left:
        incomplete = UndoIncompleteError.because(left[0])
        incomplete.others = tuple(left[1:])
        raise incomplete
    log.info("undo complete", steps=len(plan.steps))
    if was_pending:
        handover.forget_failure(host)


def _find_last_references(host: Host, options: Options, ledger: Ledger) -> Iterator[InstallerError]:
    """Yield what starts a program of the toolkit by now, however it was when the undo was planned."""
    return find_last_references(observe_undo(host, options, ledger.held, awaits_s=0.0), options)


def log_restarts(rows: Iterable[EngineRow], dockers: str, reason: str) -> None:
    """Log how engines are to read their configs; ``dockers`` is what does for a dockerd."""
    steps = [(row, dockers if ENGINES[row.name].reload is ReloadMethod.HUP else "restart") for row in rows]
    command = " && ".join(f"systemctl {verb} {row.unit}" for row, verb in steps if row.unit)
    remedy = " and ".join(f"{verb} {ENGINES[row.name].title}" for row, verb in steps if not row.unit)
    fields = {"command": command, "remedy": remedy, "reason": reason}
    log.info("next step", **{name: text for name, text in fields.items() if text})


@contextmanager
def as_incomplete_undo(*others: type[InstallerError]) -> Iterator[None]:
    """Raise whatever goes wrong in the block as an incomplete undo, but for ``others``."""
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        if isinstance(error, (UndoIncompleteError, LockedError, *others)):
            raise
        raise UndoIncompleteError.because(error) from error


@contextmanager
def open_ledger(
    host: Host, options: Options, opening: Callable[[], Ledger] | None = None
) -> Iterator[Ledger]:
    """Open the ledger, and tell metrics where the block fails. A stop is no failure."""
    opening = opening or partial(Ledger.open, host, options.layout, check=supervision.raise_if_stopped)
    with hold(opening) as ledger:
        try:
            with internal_errors():
                yield ledger
        except StoppedError:
            raise
        except InstallerError as error:
            metrics.publish_failure(host, options, ledger, error)
            raise


def open_as_child(host: Host, options: Options, check: Callable[[], None]) -> AbstractContextManager[Ledger]:
    """Open the ledger with the lock that ``run`` holds, where that still has its name."""
    opening = partial(Ledger.open, host, options.layout, supervision.current_run().lock, check)
    return open_ledger(host, options, opening)


def _await_containers(host: Host, options: Options, ledger: Ledger, facts: Facts, until_s: float) -> Facts:
    """Return what is found when the containers on our runtimes are gone, or a reload has to begin."""
    seconds = max(0.0, min(IN_USE_S, until_s - time.monotonic() - RELOAD_S))
    names = [each.name for each in facts.containers.running]
    log.info("waiting for containers", containers=names, seconds=round(seconds, 1))
    deadline = time.monotonic() + seconds
    restarts = options.restart_mode is not RestartMode.NONE
    where = (host, options.layout, ledger.held, facts.engines)
    # To ask Docker takes a call for each container: not while the shims tell enough.
    while time.monotonic() < deadline and (
        find_running_containers(*where, restarts=restarts) or find_in_use(*where, restarts=restarts)[0]
    ):
        time.sleep(0.1)
    return observe_undo(host, options, ledger.held, awaits_s=0.0 if until_s < inf else inf)


def remove_readiness(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove readiness file and pidfile, also those of a killed run; the ledger's lock keeps others out."""
    pid_files = {options.pid_file, ledger.held.pid_file or options.pid_file}
    for each in (replace(options, pid_file=pid_file) for pid_file in pid_files):
        readiness.remove(host, each.ready_file)
        locks.remove_pidfile(host, each.pid_file)
        readiness.remove(host, each.state_file)
        host.remove(each.options_file)
        host.remove(handover.copy_of_options(each))
        for published in (each.ready_file, each.state_file, each.options_file):
            host.sweep(published)


def stop(options: Options, stopped_s: float, *, again: bool = False) -> int:
    """Do what a stop at ``stopped_s`` of ``time.monotonic`` asks for; return an exit code or HANDED_OVER.

    ``again``: the process that did so was killed, so what is optional is left out.
    """
    if again:
        options = replace(options, thorough=False)
    log.info("stop requested")
    host = Host.under(options.host_root, options.mounts)
    with as_incomplete_undo(), open_as_child(host, options, supervision.raise_if_orphan) as ledger:
        if node_stops(host):
            log.info("everything kept", reason="the node is going down")
            return Exit.OK
        remove_readiness(host, options, ledger)  # the next run waits for the ledger once there is no pidfile
        if options.on_exit is OnExit.KEEP:
            log.info("everything kept", reason=f"asked for with --on-exit {options.on_exit}")
        elif await_next_run(host, ledger.lock, waits=not again):
            log.info("everything kept", reason="the next run takes over")
        elif reason := handover.find_reason(host, options, ledger.held):
            handover.hand_over(host, options, ledger, reason, stopped_s + UNDO_S)
            return HANDED_OVER
        elif undo_or_hand_over(host, options, ledger, within_s=stopped_s + UNDO_S - time.monotonic()):
            return HANDED_OVER
    return Exit.OK


def node_stops(host: Host) -> bool:
    """Tell whether the node is being shut down, so that what is installed must outlive us."""
    # A kubelet with a grace for that (shutdownGracePeriod) stops the pods before systemd begins.
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


class Made(Struct, frozen=True, array_like=True):
    """What ``verify`` has made of an engine: a container or a pod, by its name."""

    engine: str
    socket: PurePosixPath
    unit: str
    name: str


@contextmanager
def record_made(host: Host, layout: Layout, made: Made) -> Iterator[None]:
    """Keep written down what is made during the block; where that fails it may be there still."""
    before = _read_made(host, layout)
    _write_made(host, layout, [*before, made])
    yield
    _write_made(host, layout, before)


def remove_made(host: Host, layout: Layout, *, hurried: bool = False) -> bool:
    """Remove what is written down and is there still; tell whether something was."""
    made, left, removed = _read_made(host, layout), list[Made](), False
    deadline = time.monotonic() + (HURRIED_S if hurried else SWEEP_S)
    for each in made:
        try:
            for what in _remove_one(host, each, timeout_s=max(1.0, deadline - time.monotonic())):
                log.info("verify leftover removed", engine=each.engine, what=what, name=each.name)
                removed = True
        except InstallerError as error:
            log.warning("verify leftover not removed", engine=each.engine, name=each.name, error=error)
            left.append(each)  # to the next time: also of an engine that its owner has stopped
    if left != made:
        _write_made(host, layout, left)
    return removed


def _remove_one(host: Host, made: Made, *, timeout_s: float) -> list[str]:
    spec = ENGINES[made.engine]
    if not host.exists(made.socket) or is_held(host, spec, made.socket, made.unit):
        problem = f"reach {spec.title} on {made.socket} (it does not run)"
        remedy = f"start it, and remove {made.name} by hand"
        raise InstallerError(problem, remedy=remedy, code="engine-not-answering")
    return REMOVE[spec.api](host.local_path(made.socket), made.name, timeout_s=timeout_s)


def _read_made(host: Host, layout: Layout) -> list[Made]:
    found = read_json_of_root(host, layout.made, dict[str, list[Made]]) or {}  # damaged: nothing is known
    made = found.get("made", ())
    mark = f"{trial_containers.MARK}-"
    return [each for each in made if each.engine in ENGINES and each.name.startswith(mark)]


def _write_made(host: Host, layout: Layout, made: list[Made]) -> None:
    if made:
        host.replace(layout.made, File(dumps({"made": made}), Meta(0o600)))
    elif host.exists(layout.made):
        host.remove(layout.made)


def await_next_run(host: Host, lock: locks.Lock, *, waits: bool) -> bool:
    """Tell whether another ``run`` waits for the ``lock`` of a run that was asked to stop.

    ``waits``: or will soon, by the signs of a kubelet that starts the next pod.
    """
    stopped_s, until, comes = time.time(), time.monotonic() + SIGN_S, False
    while not locks.is_awaited(lock):
        if not waits:
            return False
        made = is_replica_made(host, stopped_s - RECENT_S)
        if made and not comes:
            log.info("waiting for the next pod", seconds=START_S, reason="the kubelet starts another")
            comes, until = True, time.monotonic() + START_S
        if made is None or time.monotonic() > until:
            return False
        time.sleep(POLL_S)
    return True


def ledger_for_run(host: Host, options: Options) -> Ledger:
    """Open the ledger; wait where one that does not serve this node holds it, and announce that we do.

    From then on a stop waits until it is open: whoever left us what he was about to undo relies on us. Raise
    LockedError where a run that serves this node holds it, or it is not free in time.
    """
    try:
        return Ledger.open(host, options.layout, check=supervision.raise_if_stopped)
    except LockedError:
        if _serves(host, options):
            raise
    log.info("waiting for another instance", limit_s=ENDS_S)
    with locks.announce_wait(host, options.layout.home):
        return open_within(ENDS_S, host, options.layout, unless=lambda: _serves(host, options))


def ledger_for_uninstall(host: Host, options: Options) -> Ledger:
    """Open the ledger; wait where its holder ends by itself, as the child of a killed ``run`` does.

    The wait is not announced: a ``run`` that is stopping would leave its undo to us. Raise LockedError where
    a run that serves this node holds it, or it is not free in time; StoppedError where a stop is pending.
    """

    def gives_up() -> bool:
        supervision.raise_if_stopped()
        return _serves(host, options)

    try:
        return Ledger.open(host, options.layout, check=supervision.raise_if_stopped)
    except LockedError:
        if _serves(host, options):
            raise
    log.info("waiting for another instance", limit_s=ENDS_S)
    return open_within(ENDS_S, host, options.layout, unless=gives_up)


def _serves(host: Host, options: Options) -> bool:
    """Tell whether the holder of the ledger serves: one that stops removes its pidfile first."""
    # One that is not locked is of a ``run`` that was killed: what it had started ends between two steps.
    files = {options.pid_file}
    with suppress(InstallerError):
        held = read_record(host, options.layout)
        files |= {held.pid_file} if held and held.pid_file else set()
    return any(locks.is_held_pidfile(host.local_path(path)) for path in files)


def open_within(
    seconds: float, host: Host, layout: Layout, unless: Callable[[], bool] = lambda: False
) -> Ledger:
    """Open the ledger once it is free; LockedError: it is held for longer, or ``unless`` holds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return Ledger.open(host, layout)
        except LockedError:
            if unless() or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
