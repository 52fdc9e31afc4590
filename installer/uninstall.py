"""Uninstall, and the undo that a stop of ``run`` is: the ledger tells what there is to undo."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final

from installer import figures, leftovers
from installer.decide.data import replace
from installer.decide.errors import Exit, InstallerError, InternalError, LockedError, UndoIncompleteError
from installer.decide.facts import Facts, names_of
from installer.decide.layout import Layout
from installer.decide.options import Options, RestartMode
from installer.decide.parts.adopted import adoption, left_alone
from installer.decide.undo import plan_undo
from installer.host import signals, supervision
from installer.host.events import log
from installer.host.files import Host
from installer.host.lock_table import still_named
from installer.host.locks import LOCK, remove_pidfile
from installer.host.trees import remove_staged
from installer.record import nri_seen, ready, seen
from installer.record.context import Context
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger, opened
from installer.record.lost import elsewhere, lost, recover
from installer.record.probe import probe_adoption, probe_undo
from installer.record.running import in_use, running_containers
from installer.record.transaction import carry_out, refuse_obstacles
from installer.record.trial import Trials

UNDO_S: Final = 22.0  # for all engines together: by default a pod has 30 s to end
PROBE_S: Final = 6.0  # of these, for an engine that is between two lives
RELOAD_S: Final = 10.0  # and for a reload, at least
IN_USE_S: Final = 10.0
IN_USE_POLL_S: Final = 0.1


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
        opening = partial(Ledger.open, host, options.layout, check=signals.check)
        with opened(opening) as ledger, figures.failures_told(host, options, ledger):
            undo(host, options, ledger)
    else:
        _remove_leftovers(host, options.layout)
        nri_seen.remove(host, options.nri)
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
    opening = partial(Ledger.open, host, options.layout, check=signals.check)
    with opened(opening) as ledger, figures.failures_told(host, options, ledger):
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
        figures.withdraw(host, options, ledger)
        recover(host, options, ledger)
        facts = probe_undo(host, options, ledger.held, awaits_s=PROBE_S if hurried else inf)
        if leftovers.remove_made(host, options.layout, hurried=hurried):
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
        plugin = nri_seen.of_ledger(options.nri, ledger.held)
        carry_out(context, plan, signals.check_parent)
        nri_seen.remove(host, plugin)
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
def opened_by_run(host: Host, options: Options, check: Callable[[], None]) -> Iterator[Ledger]:
    """Open the ledger with the lock that ``run`` holds, where that still has its name."""
    inherited = still_named(host, supervision.run().lock, options.layout.home / LOCK)
    opening = partial(Ledger.open, host, options.layout, inherited, check)
    with opened(opening) as ledger, figures.failures_told(host, options, ledger):
        yield ledger


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
        running_containers(*where, restarts=restarts) or in_use(*where, restarts=restarts)[0]
    ):
        time.sleep(IN_USE_POLL_S)
    return probe_undo(host, options, ledger.held, awaits_s=0.0 if until_s < inf else inf)


def remove_readiness(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove readiness file and pidfile, also those of a killed run; the ledger's lock keeps others out."""
    pid_files = {options.pid_file, ledger.held.pid_file or options.pid_file}
    for each in (replace(options, pid_file=pid_file) for pid_file in pid_files):
        ready.remove(host, each.ready_file)
        remove_pidfile(host, each.pid_file)
        seen.remove(host, each.state_file)
        host.remove(each.options_file)
        for published in (each.ready_file, each.state_file, each.options_file):
            host.sweep(published)
