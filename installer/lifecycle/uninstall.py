"""Uninstall, and the undo that a stop of ``run`` is: the ledger tells what there is to undo."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from msgspec.structs import replace

from installer.change.adopted import adoption, left_alone
from installer.change.ledger import Ledger, opened
from installer.change.lost import elsewhere, lost, recover
from installer.change.observe import probe_adoption, probe_undo
from installer.change.plan import plan_undo
from installer.change.transaction import Context, apply_undo, refuse_obstacles
from installer.engines import ENGINES, trial_containers
from installer.engines.containers import find_running_containers, in_use
from installer.engines.dry_run import Trials
from installer.engines.restart import is_held
from installer.engines.trial_containers import MARK
from installer.errors import Exit, InstallerError, InternalError, LockedError, UndoIncompleteError
from installer.host import signals, supervision, systemd
from installer.host.events import internal_errors, log
from installer.host.files import Host, told_by_root
from installer.host.locks import remove_pidfile
from installer.host.supervision import HANDED_OVER
from installer.host.trees import remove_staged
from installer.host.units import buses
from installer.lifecycle import handover
from installer.lifecycle import readiness as ready
from installer.metrics import snapshot as monitoring
from installer.model.engine_spec import Api
from installer.model.facts import Facts, names_of
from installer.model.files import File, Meta
from installer.model.options import Options, RestartMode
from installer.model.paths import Layout
from installer.model.typed_json import dumps
from installer.nri import state as plugin_state

UNDO_S: Final = 22.0  # for all engines together: by default a pod has 30 s to end
PROBE_S: Final = 6.0  # of these, for an engine that is between two lives
RELOAD_S: Final = 10.0  # and for a reload, at least
IN_USE_S: Final = 10.0
IN_USE_POLL_S: Final = 0.1
NODE_S: Final = 2.0  # systemd may be kept busy, and a pod has 30 s for all by default
INIT_NAME: Final = PurePosixPath("/proc/1/comm")
# For all engines. A busy containerd was seen to take more than 15 s; a pod's grace has no more.
SWEEP_S: Final = 60.0
HURRIED_S: Final = 15.0
REMOVE: Final = {Api.DOCKER: trial_containers.remove_containers, Api.CRI: trial_containers.remove_pods}

Made: TypeAlias = tuple[str, str, str, str]  # an engine, its socket and unit, the name of what it made


def uninstall(options: Options) -> Exit:
    """Undo whatever the ledger holds, whoever wrote it."""
    try:
        with internal_errors():
            _uninstall(Host.under(options.host_root, options.mounts), options)
    except InternalError as error:
        raise UndoIncompleteError.because(error) from error
    return Exit.OK


def _uninstall(host: Host, options: Options) -> None:
    options = elsewhere(host, options)
    if host.exists(options.layout.home) or lost(host, options):
        with open_ledger(host, options) as ledger:
            undo(host, options, ledger)
    else:
        _remove_leftovers(host, options.layout)
        plugin_state.remove(host, options.nri)
        log.info("nothing to undo", install_dir=str(options.install_dir))
    if options.adopt:
        _undo_adopted(host, options)


def _remove_leftovers(host: Host, layout: Layout) -> None:
    """Remove what a run that was killed while it made or removed the first directory left beside it."""
    for path in (layout.home, *layout.home.parents):
        if path.name:
            remove_staged(host, path)


def _undo_adopted(host: Host, options: Options) -> None:
    """Undo what NVIDIA's own installer left, as if it were ours."""
    facts = probe_adoption(host, options)
    adopted = adoption(facts, options)
    for runtime in left_alone(facts, options):
        log.info("left alone", runtime=runtime, reason=f"not below {options.layout.toolkit}")
    if not adopted.notes:
        log.info("nothing to adopt", install_dir=str(options.install_dir))
        return
    with open_ledger(host, options) as ledger:
        ledger.write(replace(adopted.rows, directories=ledger.held.directories))
        log.info("adopted", found=list(adopted.notes))
        undo(host, options, ledger)


def undo(host: Host, options: Options, ledger: Ledger, *, within_s: float = inf) -> None:
    """Undo what the ledger holds, and what configs show to be ours, ``within_s`` where a pod's grace ends.

    Raises:
        UndoIncompleteError: something of ours is left, and the ledger is kept.
    """
    until_s, hurried = time.monotonic() + within_s, within_s < inf
    with undoing():
        remove_readiness(host, options, ledger)
        monitoring.withdraw(host, options, ledger)
        recover(host, options, ledger)
        facts = probe_undo(host, options, ledger.held, awaits_s=PROBE_S if hurried else inf)
        if remove_made(host, options.layout, hurried=hurried):
            facts = probe_undo(host, options, ledger.held, awaits_s=0.0 if hurried else inf)
        if facts.running and options.in_use.waits:
            facts = _awaited(host, options, ledger, facts, until_s)
        plan = plan_undo(facts, options, Trials(host, facts.contents))
        for note in plan.notes:
            log.warning("undo note", note=note)
        for obstacle in plan.obstacles[:1]:
            ledger.write(replace(ledger.held, left=obstacle.problem))
        refuse_obstacles(plan)
        share_s = max(1.0, until_s - time.monotonic()) / max(1, len(plan.engines))
        context = Context(host, options.layout, ledger, min(options.timeout_s, share_s), until_s)
        plugin = plugin_state.of_ledger(options.nri, ledger.held)
        apply_undo(context, plan, signals.check_parent)
        plugin_state.remove(host, plugin)
    if plan.in_use:
        raise UndoIncompleteError(
            f"give everything back (our runtime runs {names_of(plan.in_use)})",
            remedy="run uninstall again when that has ended",
            code="in-use",
        )
    for need in plan.needed:
        raise UndoIncompleteError.because(need)
    log.info("undo complete", steps=len(plan.steps))


@contextmanager
def undoing() -> Iterator[None]:
    """Let whatever goes wrong in the block be told as an undo that is incomplete."""
    try:
        with internal_errors():
            yield
    except (UndoIncompleteError, LockedError):
        raise
    except InstallerError as error:
        raise UndoIncompleteError.because(error) from error


@contextmanager
def open_ledger(
    host: Host, options: Options, opening: Callable[[], Ledger] | None = None
) -> Iterator[Ledger]:
    """Open the ledger, and tell monitoring where the block fails."""
    opening = opening or partial(Ledger.open, host, options.layout, check=signals.check)
    with opened(opening) as ledger, monitoring.failures_told(host, options, ledger):
        yield ledger


def opened_by_run(host: Host, options: Options, check: Callable[[], None]) -> AbstractContextManager[Ledger]:
    """Open the ledger with the lock that ``run`` holds, where that still has its name."""
    opening = partial(Ledger.open, host, options.layout, supervision.run().lock, check)
    return open_ledger(host, options, opening)


def _awaited(host: Host, options: Options, ledger: Ledger, facts: Facts, until_s: float) -> Facts:
    """Return what is found when the containers on our runtimes are gone, or have had their time.

    That ends early enough for a reload ``until_s``.
    """
    seconds = max(0.0, min(IN_USE_S, until_s - time.monotonic() - RELOAD_S))
    log.info(
        "waiting for containers", containers=[each.name for each in facts.running], seconds=round(seconds, 1)
    )
    deadline = time.monotonic() + seconds
    restarts = options.restart_mode is not RestartMode.NONE
    where = (host, options.layout, ledger.held, facts.engines)
    # To ask Docker takes a call for each container: not while the shims tell enough.
    while time.monotonic() < deadline and (
        find_running_containers(*where, restarts=restarts) or in_use(*where, restarts=restarts)[0]
    ):
        time.sleep(IN_USE_POLL_S)
    return probe_undo(host, options, ledger.held, awaits_s=0.0 if until_s < inf else inf)


def remove_readiness(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove readiness file and pidfile, also those of a killed run; the ledger's lock keeps others out."""
    pid_files = {options.pid_file, ledger.held.pid_file or options.pid_file}
    for each in (replace(options, pid_file=pid_file) for pid_file in pid_files):
        ready.remove(host, each.ready_file)
        remove_pidfile(host, each.pid_file)
        ready.remove(host, each.state_file)
        host.remove(each.options_file)
        for published in (each.ready_file, each.state_file, each.options_file):
            host.sweep(published)


def stop(options: Options, stopped_s: float) -> int:
    """Do what a stop of ``run`` asks for, which has come at ``stopped_s`` of ``time.monotonic``.

    Returns:
        An exit code; ``HANDED_OVER`` where somebody else is to carry the undo on.
    """
    log.info("stop requested")
    host = Host.under(options.host_root, options.mounts)
    with undoing(), opened_by_run(host, options, signals.check_parent) as ledger:
        return HANDED_OVER if _stop(host, options, ledger, stopped_s + UNDO_S) else Exit.OK


def carry_on(options: Options) -> Exit:
    """Do the undo of a ``run`` that had to end first."""
    host = Host.under(options.host_root, options.mounts)
    opening = partial(handover.ledger_of_predecessor, host, options.layout)
    with undoing(), open_ledger(host, options, opening) as ledger:
        undo(host, options, ledger)
    return Exit.OK


def _stop(host: Host, options: Options, ledger: Ledger, until_s: float) -> bool:
    """Do what a stop of ``run`` asks for; tell whether the undo was handed over to somebody else."""
    if node_stops(host):
        log.info("everything kept", reason="the node is going down")
        return False
    remove_readiness(host, options, ledger)  # the next run waits for the ledger once there is no pidfile
    if not options.on_exit.undoes:
        log.info("everything kept", reason=f"asked for with --on-exit {options.on_exit}")
    elif handover.await_next_run(host, ledger.lock):
        log.info("everything kept", reason="the next run takes over")
    elif handover.handed_over(host, options, ledger.held):
        remove_readiness(host, options, ledger)
        return True
    else:
        undo(host, options, ledger, within_s=until_s - time.monotonic())
    return False


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


@contextmanager
def written_down(host: Host, layout: Layout, made: Made) -> Iterator[None]:
    """Keep written down what is made during the block; where that fails it may be there still."""
    before = _made(host, layout)
    _write(host, layout, [*before, made])
    yield
    _write(host, layout, before)


def remove_made(host: Host, layout: Layout, *, hurried: bool = False) -> bool:
    """Remove what is written down and is there still; tell whether something was.

    What cannot be removed is left to the next time: also of an engine that its owner has stopped.
    """
    made, left, removed = _made(host, layout), list[Made](), False
    deadline = time.monotonic() + (HURRIED_S if hurried else SWEEP_S)
    for each in made:
        try:
            removed = _remove(host, each, timeout_s=max(1.0, deadline - time.monotonic())) or removed
        except InstallerError as error:
            log.warning("verify leftover not removed", engine=each[0], name=each[-1], error=error)
            left.append(each)
    if left != made:
        _write(host, layout, left)
    return removed


def _remove(host: Host, made: Made, *, timeout_s: float) -> bool:
    engine, socket, unit, name = made
    path, row = PurePosixPath(socket), ENGINES[engine]
    if not host.exists(path) or is_held(host, row, path, unit):
        raise InstallerError(
            f"reach {row.title} on {path} (it does not run)",
            remedy=f"start it, and remove {name} by hand",
            code="engine-not-answering",
        )
    found = REMOVE[row.api](host.local_path(path), name, timeout_s=timeout_s)
    for what in found:
        log.info("verify leftover removed", engine=engine, what=what, name=name)
    return bool(found)


def _made(host: Host, layout: Layout) -> list[Made]:
    found = told_by_root(host, layout.made, dict[str, list[Made]]) or {}  # damaged: nothing is known
    return [each for each in found.get("made", ()) if each[0] in ENGINES and each[-1].startswith(f"{MARK}-")]


def _write(host: Host, layout: Layout, made: list[Made]) -> None:
    if made:
        host.replace(layout.made, File(dumps({"made": made}), Meta(0o600)))
    elif host.exists(layout.made):
        host.remove(layout.made)
