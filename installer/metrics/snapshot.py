"""What monitoring is told at the end of each act: counts beside the ledger, then the files for others."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Final

from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.engines.dry_run import compare_configs
from installer.errors import Exit, InstallerError, StoppedError
from installer.host import signals, supervision
from installer.host.events import internal_errors, log
from installer.host.files import Host, told_by_root
from installer.metrics import publish as published
from installer.metrics.table import MARK, Counts, EngineFigures, Figures, PluginFigures, features
from installer.model.engine_spec import ReloadMethod
from installer.model.files import File, Meta
from installer.model.options import Drift, Options
from installer.model.paths import Layout
from installer.model.record import EngineRow, Record
from installer.model.typed_json import dumps
from installer.nri import state as plugin_state

OPENMETRICS: Final = "application/openmetrics-text"


def _render(figures: Figures, accepted: str = "") -> str:
    from prometheus_client.exposition import choose_encoder  # where metrics are asked for alone

    encode, _ = choose_encoder(accepted)
    return encode(figures).decode()


def exposition(figures: Figures) -> str:
    """Return the metrics in Prometheus' text format, for node_exporter's textfile collector."""
    return f"{MARK}\n{_render(figures)}"


def openmetrics(figures: Figures) -> str:
    """Return the metrics as OpenMetrics 1.0, for the child of ``run`` that serves them."""
    return _render(figures, OPENMETRICS)


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


def claim(host: Host, options: Options, ledger: Ledger) -> None:
    """Write down which files are going to be told, ahead of the first; remove those not asked for."""
    others = [path for path in ledger.held.published if path not in options.published]
    kept = [path for path in others if not _removed(host, path)]
    wanted = (*options.published, *kept)
    if wanted != ledger.held.published:
        ledger.write(replace(ledger.held, published=wanted))


def withdraw(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove what was told, as an undo begins; the ledger sees to it that nothing of it stays."""
    for path in {*ledger.held.published, *options.published}:
        _removed(host, path)


def _removed(host: Host, path: PurePosixPath) -> bool:
    with suppress(InstallerError):
        published.remove(host, path)
        return True
    return False


@contextmanager
def failures_told(host: Host, options: Options, ledger: Ledger) -> Iterator[None]:
    """Tell it where the block fails. A stop is no failure."""
    try:
        with internal_errors():
            yield
    except StoppedError:
        raise
    except InstallerError as error:
        failed(host, options, ledger, error)
        raise


def serve(options: Options) -> Exit:
    """Answer who asks for metrics, as a child of ``run``, until told to stop."""
    assert options.metrics_listen is not None  # noqa: S101 - else nobody has started us
    host = Host.under(options.host_root, options.mounts)
    if not supervision.end_with_run():
        return Exit.OK
    from installer.metrics.listening import serve as answer

    with warned():
        answer(host, options.metrics_listen, options.layout.answer, lambda: not signals.stop_requested())
    return Exit.OK if signals.stop_requested() else Exit.FAILED


def read_counts(host: Host, layout: Layout) -> Counts:
    """Return the counts; where nobody can tell them they begin anew, as counters may."""
    return told_by_root(host, layout.counts, Counts) or Counts()


@warned()
def installed(
    host: Host, options: Options, ledger: Ledger, plan: Plan, refused: Collection[str] | None = None
) -> None:
    """Tell the end of an install that went well, or of a look at the node that ``run`` had once it waited.

    After a look ``refused`` are the engines that serve, and would not come up with the configs that lie
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
    _tell(host, options, ledger, counts, {name: name in (refused or ()) for name in serving})


@warned()
def failed(host: Host, options: Options, ledger: Ledger, error: InstallerError) -> None:
    """Tell that something went wrong: nothing is proven any more."""
    if not ledger.held.published or ledger.gone:
        return
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
    figures = _figures(host, options, ledger.held, counts, serving)
    with warned():
        host.replace(options.layout.counts, File(dumps(counts), Meta(0o600)))
    for path in ledger.held.published:
        told = TEXTS.get(path.suffix, features)
        if told is not None:
            with warned():
                published.publish(host, path, told(figures))


def _figures(
    host: Host, options: Options, record: Record, counts: Counts, serving: Mapping[str, bool]
) -> Figures:
    ignores, since = options.drift is Drift.IGNORE, counts.ready_since_s
    engines = (
        EngineFigures(
            row.name,
            row.name in serving,
            not ignores and _drifted(host, row, record),
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
    return Figures(_version(), counts, tuple(engines), time.time(), since_text, plugin)


def _and_restarts(counted: Mapping[str, int], ledger: Ledger) -> dict[str, int]:
    """Return the restarts with those of this process that were not counted yet."""
    counts = dict(counted)
    for name in ledger.reloaded:
        if ENGINES[name].reload is ReloadMethod.RESTART:
            counts[name] = counts.get(name, 0) + 1
    ledger.reloaded.clear()
    return counts


def _drifted(host: Host, row: EngineRow, record: Record) -> bool:
    try:
        return any(compare_configs(host, row, record)[:2])
    except InstallerError:
        return True


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # where figures are told alone

    try:
        return version("node-toolkit-installer")
    except PackageNotFoundError:
        return "unknown"
