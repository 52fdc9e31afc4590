"""The table of metrics, the counters of a node, and the files that monitoring and NFD read."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from installer.change.ledger import MARK, Ledger, publish, remove_published
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.engines.comparison import compare_configs
from installer.errors import InstallerError
from installer.host import supervision
from installer.host.events import log_failures
from installer.host.files import Host, read_json_of_root
from installer.host.own_version import describe_version
from installer.model.facts import EngineRow, Record
from installer.model.files import ANSWER, METRICS, SOCKET, File, Layout, Meta, dumps
from installer.model.options import Drift, Options
from installer.nri import state as plugin_state

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "toolkit_installer_"
# A sub-namespace of NFD's own, which NFD offers to others: labels of nvidia.com belong to NVIDIA's programs.
NAMESPACE: Final = "toolkit-installer.feature.node.kubernetes.io"

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1 << 53)]
Value: TypeAlias = float | Mapping[str, float] | None  # a mapping has a value for each label


class Counts(Struct, frozen=True):
    """The counters of a node since the first install; times in seconds since 1970, 0 for never."""

    installs: Number = 0
    repairs: Number = 0
    failures: Mapping[str, Number] = field(default_factory=dict)
    restarts: Mapping[str, Number] = field(default_factory=dict)
    success_s: Seconds = 0
    ready_since_s: Seconds = 0
    toolkit: str = ""  # the toolkit's version, "" if unknown


class Snapshot(Struct, frozen=True):
    """The figures of a node at a check."""

    version: str
    toolkit: str
    since: str  # the time when the node became ready; "" if it is not ready
    engines: Mapping[
        str, str
    ]  # by name: "true" if the engine serves, "false", or "pending" until its restart
    figures: Mapping[str, Value]  # by the metric's name

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        versions = {"version": self.version, "toolkit_version": self.toolkit}
        yield InfoMetricFamily(PREFIX[:-1], INFO, versions)
        for name, meaning in MEANINGS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            value = self.figures.get(name)
            if isinstance(value, Mapping):
                label = "code" if name in {FAILURES, WAITING} else "engine"
                family = kind(f"{PREFIX}{name}", meaning, labels=[label])
                for key, number in value.items():
                    family.add_metric([key], number)
            else:
                family = kind(f"{PREFIX}{name}", meaning)
                if value is not None:
                    family.add_metric([], value)
            yield family


INFO: Final = "Always 1; its labels are the versions of this program and of the installed toolkit."
FAILURES: Final = "failures_total"
WAITING: Final = "waiting"
# The meaning of each metric by its name. A name that ends with _total is a counter.
MEANINGS: Final = {
    "ready": "1 if at the last check the toolkit was in place and each engine was verified to serve it, else "
    "0.",
    "engine_serves": "1 if the engine was verified to serve our runtimes at the last check, else 0.",
    "config_drifted": "1 if at the last check the engine's configs no longer matched the install, else 0.",
    "config_refused": "1 if at the last check the engine served, but would not start again, else 0.",
    "engine_restart_pending": "1 while the engine has not read its configs because its restart waits until "
    "it is idle, else 0.",
    "nri_plugin_registered": "1 if at the last check the NRI plugin beside run was registered with its "
    "engine, else 0.",
    "nri_missed_containers": "Containers that ran at the last check without the devices that their pods ask "
    "the NRI plugin for.",
    "nri_plugin_ends_total": "Times that the NRI plugin has died, or hung and was ended, since run was "
    "started.",
    WAITING: "1 while run waits before it changes the node, such as for its owner to restart an engine, by "
    "the code of the reason.",
    "turn_held": "1 while this node has, or asks for, a turn to restart an engine, else 0.",
    "undo_pending": "1 while an undo waits, such as for containers that use our runtimes, else 0.",
    "last_look_timestamp_seconds": "When these metrics were taken: at an install, a failure or a check.",
    "last_success_timestamp_seconds": "When an install, a repair or a check last ended well; 0 for never.",
    "installs_total": "Installs that ended well, those that found everything in place included.",
    "repairs_total": "Times that run has changed the node again while it waited, because something had "
    "drifted.",
    "engine_restarts_total": "Restarts of the engine that we have asked for.",
    FAILURES: "Installs, repairs and uninstalls that failed, by the code of the error.",
}


def features(node: Snapshot) -> str:
    """Return the labels of a node, in the format of NFD's directory features.d."""
    number = node.version.partition(" ")[0]  # a label's value has no space, and so no commit
    labels = {
        "ready": "true" if node.since else "false",
        "version": number,
        "toolkit-version": node.toolkit,
        "ready-since": node.since,
        "undo-pending": "true" if node.figures.get("undo_pending") else "",
    }
    for name, state in node.engines.items():
        labels[f"engine-{name}"] = state
    lines = [f"{NAMESPACE}/{name}={value}\n" for name, value in labels.items() if value]
    return "".join(lines)


def render(suffix: str, node: Snapshot) -> str | None:
    """Return the text of a published file by the suffix of the name; None for a socket."""
    if suffix == METRICS:  # for node_exporter's textfile collector
        from prometheus_client import generate_latest  # loaded only if metrics are asked for

        return f"{MARK}\n{generate_latest(node).decode()}"
    if suffix == ANSWER:  # for the child of ``run`` that serves metrics
        from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

        return str(generate_openmetrics(node).decode())  # type: ignore[no-untyped-call]
    if suffix == SOCKET:
        return None
    return f"{MARK}\n{features(node)}"  # for NFD


def claim(host: Host, options: Options, ledger: Ledger) -> None:
    """Record the files to publish in the ledger ahead of the first; remove unwanted former files."""
    others = [path for path in ledger.record.published if path not in options.published]
    kept = []
    for path in others:
        if not _remove(host, path):
            kept.append(path)
    wanted = (*options.published, *kept)
    if wanted != ledger.record.published:
        ledger.write(replace(ledger.record, published=wanted))


def withdraw(host: Host, options: Options, ledger: Ledger) -> None:
    """Remove the published files at the beginning of an undo; the ledger still has their names."""
    for path in {*ledger.record.published, *options.published}:
        _remove(host, path)


def _remove(host: Host, path: PurePosixPath) -> bool:
    with suppress(InstallerError):
        remove_published(host, path)
        return True
    return False


def read_counts(host: Host, layout: Layout) -> Counts:
    """Read the counters; unreadable counters start again at zero, as Prometheus allows."""
    return read_json_of_root(host, layout.counts, Counts) or Counts()


@log_failures()
def publish_success(
    host: Host, options: Options, ledger: Ledger, plan: Plan, refused: Collection[str] | None = None
) -> None:
    """Publish the success of an install, or of a check of the node while ``run`` waits.

    ``refused`` is None after an install; after a check ``refused`` has the engines with a fatal config.
    """
    if not ledger.record.published:
        return
    now = time.time()
    counts = read_counts(host, options.layout)
    if refused is None:
        counts = replace(counts, installs=counts.installs + 1)
    elif plan.steps and not plan.restarts_due:
        counts = replace(counts, repairs=counts.repairs + 1)
    counts = replace(
        counts,
        success_s=now,
        ready_since_s=0 if plan.unverified_engines else counts.ready_since_s or now,
        toolkit=".".join(map(str, plan.release or ())),
    )
    serving = {row.name for row in ledger.record.engines} - {*plan.unverified_engines}
    refuses_config = {name: name in (refused or ()) for name in serving}
    _publish(host, options, ledger, counts, refuses_config)


@log_failures()
def publish_failure(host: Host, options: Options, ledger: Ledger, error: InstallerError) -> None:
    """Publish a failure: no engine counts as verified until the next success."""
    if not ledger.record.published or ledger.gone:
        return
    counts = read_counts(host, options.layout)
    failures = {**counts.failures, error.code: counts.failures.get(error.code, 0) + 1}
    _publish(host, options, ledger, replace(counts, failures=failures, ready_since_s=0), {})


@log_failures()
def publish_waiting(  # noqa: PLR0913 - the node, the reason and its effect
    host: Host,
    options: Options,
    ledger: Ledger,
    reason: InstallerError,
    serving: Collection[str],
    *,
    is_new: bool,
    ready: bool,
) -> None:
    """Tell that ``run`` waits before a change of the node.

    Args:
        host: the node.
        options: the options of ``run``.
        ledger: the ledger.
        reason: the reason of the wait.
        serving: the engines with the ledger's runtimes in force.
        is_new: count the reason as a failure: the reason was not told before.
        ready: the node is ready during the wait.
    """
    if not ledger.record.published:
        return
    counts = read_counts(host, options.layout)
    if is_new:
        failures = {**counts.failures, reason.code: counts.failures.get(reason.code, 0) + 1}
        counts = replace(counts, failures=failures)
    since_s = (counts.ready_since_s or time.time()) if ready else 0
    counts = replace(counts, ready_since_s=since_s)
    _publish(host, options, ledger, counts, dict.fromkeys(serving, False), waiting=reason.code)


@log_failures()
def publish_pending(host: Host, options: Options, ledger: Ledger) -> None:
    """Tell that an undo is not finished: nothing is proven any more, and nothing has failed."""
    if not ledger.record.published or ledger.gone:
        return
    counts = read_counts(host, options.layout)
    _publish(host, options, ledger, replace(counts, ready_since_s=0), {})


def _publish(  # noqa: PLR0913 - the node and all that is known of it
    host: Host,
    options: Options,
    ledger: Ledger,
    counts: Counts,
    serving: Mapping[str, bool],
    *,
    waiting: str = "",
) -> None:
    """Write counters and published files.

    ``serving`` has the serving engines; True for an engine with a fatal config at the next start.
    ``waiting`` is the code of the reason why ``run`` waits before a change; "" for none.
    """
    restarts = dict(counts.restarts)
    for name in ledger.reloaded:
        if ENGINES[name].is_restarted:
            restarts[name] = restarts.get(name, 0) + 1
    ledger.reloaded.clear()
    counts = replace(counts, restarts=restarts)
    node = _take_snapshot(host, options, ledger.record, counts, serving)
    if waiting:
        node = replace(node, figures={**node.figures, WAITING: {waiting: 1}})
    with log_failures():
        host.replace(options.layout.counts, File(dumps(counts), Meta(0o600)))
    for path in ledger.record.published:
        with log_failures():
            text = render(path.suffix, node)
            if text is not None:
                publish(host, path, text)


def _take_snapshot(
    host: Host, options: Options, record: Record, counts: Counts, serving: Mapping[str, bool]
) -> Snapshot:
    rows = record.engines
    since_s = counts.ready_since_s
    watches_drift = options.drift is not Drift.IGNORE
    restarts = dict.fromkeys((row.name for row in rows), 0) | dict(counts.restarts)
    figures: dict[str, Value] = {
        "ready": bool(since_s),
        "engine_serves": {row.name: row.name in serving for row in rows},
        "config_drifted": {row.name: watches_drift and _has_drifted(host, row, record) for row in rows},
        "config_refused": {row.name: serving.get(row.name, False) for row in rows},
        "engine_restart_pending": {row.name: row.restart_due for row in rows},
        WAITING: {},
        "undo_pending": bool(record.undo_pending),
        "last_look_timestamp_seconds": time.time(),
        "last_success_timestamp_seconds": counts.success_s,
        "installs_total": counts.installs,
        "repairs_total": counts.repairs,
        "engine_restarts_total": dict(sorted(restarts.items())),
        FAILURES: dict(sorted(counts.failures.items())),
    }
    if options.turns.release:
        figures["turn_held"] = record.turn is not None
    if record.nri is not None:
        nri = plugin_state.at_ledger_socket(options.nri, record)
        state = plugin_state.read_state(host, nri.state)
        figures["nri_plugin_registered"] = plugin_state.is_registered(host, nri)
        figures["nri_missed_containers"] = state["missed_in_all"] if state else 0
        figures["nri_plugin_ends_total"] = supervision.current_run().plugin_ends
    since = ""
    if since_s:
        since = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(since_s))  # a label's value has no colons
    states = {}
    for row in rows:
        if row.restart_due:
            states[row.name] = "pending"
        else:
            states[row.name] = "true" if row.name in serving else "false"
    return Snapshot(describe_version(), counts.toolkit, since, states, figures)


def _has_drifted(host: Host, row: EngineRow, record: Record) -> bool:
    with suppress(InstallerError):
        return not compare_configs(host, row, record).is_as_installed
    return True
