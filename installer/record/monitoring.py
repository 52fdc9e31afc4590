"""What monitoring is told at the end of each act: counts beside the ledger, then the files for others."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

from installer.decide.data import replace
from installer.decide.engines import ENGINES
from installer.decide.engines.row import ReloadMethod
from installer.decide.errors import InstallerError
from installer.decide.metrics import (
    Counts,
    EngineFigures,
    Figures,
    exposition,
    features,
    openmetrics,
)
from installer.decide.options import Drift, Options
from installer.decide.plan import Plan
from installer.decide.rows import EngineRow, Record
from installer.host import listening
from installer.host.events import log
from installer.host.files import Host
from installer.record import nri_seen, published
from installer.record.counts import read_counts, write_counts
from installer.record.internal import internal_errors
from installer.record.ledger import Ledger
from installer.record.refused import lacking

TEXTS: Final[Mapping[str, Callable[[Figures], str] | None]] = {
    published.METRICS: exposition,
    published.ANSWER: openmetrics,
    published.SOCKET: None,
}


@contextmanager
def warned() -> Iterator[None]:
    """Tell what keeps the block from its end, and go on."""
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        log.warning("figures not written", error=error)


def claim(
    host: Host, options: Options, ledger: Ledger, known: Collection[PurePosixPath] | None = None
) -> None:
    """Write down which files are going to be told, ahead of the first; remove those not asked for any more.

    ``known`` are those that are ours whatever the ledger says.

    Raises:
        InstallerError: one of them is somebody else's; nothing was changed.
    """
    for obstacle in published.obstacles(host, options.published, known or ledger.held.published):
        raise obstacle
    others = [path for path in ledger.held.published if path not in options.published]
    kept = [path for path in others if not _removed(host, path)]
    wanted = (*options.published, *kept)
    if wanted != ledger.held.published:
        ledger.write(replace(ledger.held, published=wanted))


@warned()
def claim_again(host: Host, options: Options, ledger: Ledger) -> None:
    """Write it down anew where the ledger was lost since: a ``run`` that waits has claimed them all."""
    claim(host, options, ledger, known=options.published)


def withdraw(host: Host, options: Options, ledger: Ledger) -> bool:
    """Remove what was told, as far as that goes; tell whether it is gone."""
    # Where the ledger is lost, what tells whose it is: of a socket only that nobody listens on it.
    named = (
        path
        for path in options.published
        if path.suffix != published.SOCKET or listening.abandoned(host, path)
    )
    paths = {*ledger.held.published, *named}
    return all([_removed(host, path) for path in paths])  # noqa: C419 - each is tried


def _removed(host: Host, path: PurePosixPath) -> bool:
    with suppress(InstallerError):
        published.remove(host, path)
        return True
    return False


@warned()
def installed(
    host: Host, options: Options, ledger: Ledger, plan: Plan, refused: Collection[str] | None
) -> None:
    """Tell the end of an install that went well, or of a look at the node that ``run`` had once it waited.

    After a look ``refused`` are the engines that serve, and would not come up with the configs that lie
    there; None after an install.
    """
    now = time.time()
    counts = read_counts(host, options.layout)
    counts = replace(
        counts,
        installs=counts.installs + (refused is None),
        repairs=counts.repairs + (refused is not None and bool(plan.steps) and not plan.due),
        success_s=now,
        ready_since_s=0 if plan.unproven else counts.ready_since_s or now,
        toolkit=".".join(map(str, plan.release or ())),
    )
    serving = {row.name for row in ledger.held.engines} - {*plan.unproven}
    _tell(host, options, ledger, counts, {name: name in (refused or ()) for name in serving})


@warned()
def failed(host: Host, options: Options, ledger: Ledger, error: InstallerError) -> None:
    """Tell that something went wrong: nothing is proven any more."""
    counts = read_counts(host, options.layout)
    failures = {**counts.failures, error.code: counts.failures.get(error.code, 0) + 1}
    counts = replace(counts, failures=failures, ready_since_s=0)
    _tell(host, options, ledger, counts)


def _tell(
    host: Host, options: Options, ledger: Ledger, counts: Counts, serving: Mapping[str, bool] | None = None
) -> None:
    """Write counts and files; what cannot be written is told, and stops nothing.

    ``serving`` says of each engine that serves whether it refuses the configs that lie there.
    """
    serving = serving or {}
    counts = replace(counts, restarts=_and_restarts(counts.restarts, ledger))
    since = counts.ready_since_s
    engines = (
        EngineFigures(
            row.name,
            row.name in serving,
            options.drift is not Drift.IGNORE and _drifted(host, row, ledger.held),
            refused=serving.get(row.name, False),
            pending=row.restart_due,
        )
        for row in ledger.held.engines
    )
    # A label has no colons.
    since_text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(since)) if since else ""
    plugin = nri_seen.figures(host, options.nri, ledger.held)
    figures = Figures(_version(), counts, tuple(engines), time.time(), since_text, plugin)
    with warned():
        write_counts(host, options.layout, counts)
    for path in ledger.held.published:
        told = TEXTS.get(path.suffix, features)
        if told is not None:
            with warned():
                published.publish(host, path, told(figures))


def _and_restarts(counted: Mapping[str, int], ledger: Ledger) -> dict[str, int]:
    """Return the restarts with those of this process that were not counted yet."""
    counts = dict(counted)
    for name in ledger.reloaded:
        if ENGINES[name].reload is ReloadMethod.RESTART:
            counts[name] = counts.get(name, 0) + 1
    ledger.reloaded.clear()
    return counts


def _drifted(host: Host, row: EngineRow, held: Record) -> bool:
    try:
        return any(lacking(host, row, [each for each in held.configs if each.engine == row.name]))
    except InstallerError:
        return True


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("node-toolkit-installer")
    except PackageNotFoundError:
        return "unknown"
