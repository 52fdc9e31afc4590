"""What monitoring is told at the end of each act: counts beside the ledger, then the files for others."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from msgspec.structs import replace

from installer.change.ledger import ANSWER, MARK, METRICS, SOCKET, Ledger, publish, remove_published
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.engines.dry_run import compare_configs
from installer.errors import InstallerError, StoppedError
from installer.host import supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host, told_by_root
from installer.metrics.table import Counts, EngineFigures, PluginFigures, Snapshot, features
from installer.model.engine_spec import ReloadMethod
from installer.model.files import File, Layout, Meta, dumps
from installer.model.options import Drift, Options
from installer.model.record import EngineRow, Record
from installer.nri import state as plugin_state


def render(suffix: str, node: Snapshot) -> str | None:
    """Return the text of a file whose name ends so: metrics in two formats, or labels; None for a socket."""
    if suffix == METRICS:  # for node_exporter's textfile collector
        from prometheus_client import generate_latest  # where metrics are asked for alone

        return f"{MARK}\n{generate_latest(node).decode()}"
    if suffix == ANSWER:  # for the child of ``run`` that serves them
        from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

        return str(generate_openmetrics(node).decode())  # type: ignore[no-untyped-call]
    return None if suffix == SOCKET else f"{MARK}\n{features(node)}"  # for NFD


@contextmanager
def log_failures() -> Iterator[None]:
    """Tell what keeps the block from its end, and go on."""
    try:
        with internal_errors():
            yield
    except InstallerError as error:
        log.warning("figures not written", error=error)


def claim(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down which files are going to be told, ahead of the first; remove those not asked for."""
    others = [path for path in ledger.held.published if path not in options.published]
    kept = [path for path in others if not _remove(host, path)]
    wanted = (*options.published, *kept)
    if wanted != ledger.held.published:
        ledger.write(replace(ledger.held, published=wanted))


def withdraw(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove what was told, as an undo begins; the ledger sees to it that nothing of it stays."""
    for path in {*ledger.held.published, *options.published}:
        _remove(host, path)


def _remove(host: Host, path: PurePosixPath) -> bool:
    with suppress(InstallerError):
        remove_published(host, path)
        return True
    return False


@contextmanager
def counting_failures(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Tell it where the block fails. A stop is no failure."""
    try:
        with internal_errors():
            yield
    except StoppedError:
        raise
    except InstallerError as error:
        publish_failure(host, options, ledger, error)
        raise


def read_counts(host: Host, layout: Layout) -> Counts:
    """Return the counts; where nobody can tell them they begin anew, as counters may."""
    return told_by_root(host, layout.counts, Counts) or Counts()


@log_failures()
def publish_success(
    host: Host, options: Options, ledger: Ledger, plan: Plan, refused: Collection[str] | None = None
) -> None:
    """Tell the end of an install that went well, or of a check of the node while ``run`` waits.

    After a check ``refused`` are the engines that serve, and would not come up with the configs that lie
    there; None after an install.
    """
    if not ledger.held.published:
        return
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
    _publish(host, options, ledger, counts, {name: name in (refused or ()) for name in serving})


@log_failures()
def publish_failure(host: Host, options: Options, ledger: Ledger, error: InstallerError) -> None:
    """Tell that something went wrong: nothing is proven any more."""
    if not ledger.held.published or ledger.gone:
        return
    counts = read_counts(host, options.layout)
    failures = {**counts.failures, error.code: counts.failures.get(error.code, 0) + 1}
    _publish(host, options, ledger, replace(counts, failures=failures, ready_since_s=0), {})


def _publish(
    host: Host, options: Options, ledger: Ledger, counts: Counts, serving: Mapping[str, bool]
) -> None:
    """Write counts and files; what cannot be written is told, and stops nothing.

    ``serving`` says of each engine that serves whether it refuses the configs that lie there.
    """
    restarts = dict(counts.restarts)
    for name in (each for each in ledger.reloaded if ENGINES[each].reload is ReloadMethod.RESTART):
        restarts[name] = restarts.get(name, 0) + 1
    ledger.reloaded.clear()
    counts = replace(counts, restarts=restarts)
    node = _take_snapshot(host, options, ledger.held, counts, serving)
    with log_failures():
        host.replace(options.layout.counts, File(dumps(counts), Meta(0o600)))
    for path in ledger.held.published:
        with log_failures():
            if (text := render(path.suffix, node)) is not None:
                publish(host, path, text)


def _take_snapshot(
    host: Host, options: Options, record: Record, counts: Counts, serving: Mapping[str, bool]
) -> Snapshot:
    since = counts.ready_since_s
    engines = tuple(
        EngineFigures(
            row.name,
            row.name in serving,
            options.drift is not Drift.IGNORE and _has_drifted(host, row, record),
            refused=serving.get(row.name, False),
            pending=row.restart_due,
        )
        for row in record.engines
    )
    plugin = None
    if record.nri is not None:
        nri = plugin_state.of_ledger(options.nri, record)
        state, registered = plugin_state.read(host, nri.state), plugin_state.is_registered(host, nri)
        missed = state.missed_in_all if state else 0
        plugin = PluginFigures(registered, missed, supervision.run().plugin_ends)
    # A label has no colons.
    since_text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(since)) if since else ""
    return Snapshot(_own_version(), counts, engines, time.time(), since_text, plugin)


def _has_drifted(host: Host, row: EngineRow, record: Record) -> bool:
    try:
        return any(compare_configs(host, row, record)[:2])
    except InstallerError:
        return True


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # where metrics are asked for alone

    try:
        return version("node-toolkit-installer")
    except PackageNotFoundError:  # a source tree
        return "unknown"
