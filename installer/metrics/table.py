"""What is told to monitoring: metrics, as families of Prometheus, and the labels that NFD gives a node."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta, Struct, field

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PREFIX: Final = "toolkit_installer_"
# A sub-namespace of NFD's own, as it is meant for others: those of nvidia.com belong to NVIDIA's programs.
NAMESPACE: Final = "toolkit-installer.feature.node.kubernetes.io"
MARK: Final = "# Written by toolkit-installer, and removed by its uninstall."
# With which the text for --metrics-listen begins, and that of 0.2.0: it has no comments.
OPENMETRICS_MARKS: Final = (f"# HELP {PREFIX[:-1]} ", f"# TYPE {PREFIX[:-1]} info")
AT_MOST_LABEL: Final = 63  # characters of a label's value in Kubernetes

Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 53)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, lt=1 << 53)]
Value: TypeAlias = float | Mapping[str, float] | None  # of a label each, or none


class Counts(Struct, frozen=True):
    """What has happened on a node since the first install; times in seconds since 1970, 0 for never.

    ``toolkit`` is the version of the toolkit that is installed, "" where it does not tell.
    """

    installs: Number = 0
    repairs: Number = 0
    failures: Mapping[str, Number] = field(default_factory=dict)
    restarts: Mapping[str, Number] = field(default_factory=dict)
    success_s: Seconds = 0
    ready_since_s: Seconds = 0
    toolkit: str = ""


class EngineFigures(Struct, frozen=True):
    """One engine at the last look: whether it was proven to serve, and whether its configs drifted.

    ``refused`` tells that it would not come up at its next start with the configs that lie there, ``pending``
    that it has not read its configs yet, for its restart waits until it is idle.
    """

    name: str
    serves: bool
    drifted: bool
    refused: bool = False
    pending: bool = False


class PluginFigures(Struct, frozen=True):
    """The NRI plugin beside ``run``: whether it was registered, how many it has missed, its ends."""

    registered: bool
    missed: int
    ends: int


class Figures(Struct, frozen=True):
    """A node at the last look; ``since`` is when it became ready, "" where it is not.

    ``plugin`` is None where no NRI plugin is to be there.
    """

    version: str
    counts: Counts
    engines: tuple[EngineFigures, ...]
    looked_s: float
    since: str = ""
    plugin: PluginFigures | None = None

    @property
    def ready(self) -> bool:
        """Whether the toolkit is in place, and each engine was proven to serve it."""
        return bool(self.since)

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics, as prometheus_client asks for them."""
        return families(self)


def families(node: Figures) -> Iterator["Metric"]:
    """Yield all metrics, each with what it is on a node."""
    yield from _of_node(node)
    yield from _of_engines(node)
    yield from _of_plugin(node.plugin)
    yield from _since_first_install(node)


def _of_node(node: Figures) -> Iterator["Metric"]:
    from prometheus_client.core import InfoMetricFamily

    yield InfoMetricFamily(
        PREFIX[:-1],
        "Always 1; tells the version of this program, and of the toolkit that it has installed.",
        {"version": node.version, "toolkit_version": node.counts.toolkit},
    )
    yield _gauge(
        "ready",
        "1 if at the last look the toolkit was in place and each engine was proven to serve it, else 0.",
        node.ready,
    )


def _of_engines(node: Figures) -> Iterator["Metric"]:
    yield _gauge(
        "engine_serves",
        "1 if the engine was proven to serve our runtimes at the last look, else 0.",
        {each.name: each.serves for each in node.engines},
        "engine",
    )
    yield _gauge(
        "config_drifted",
        "1 if at the last look the engine's configs did not say any more what was installed, else 0.",
        {each.name: each.drifted for each in node.engines},
        "engine",
    )
    yield _gauge(
        "config_refused",
        "1 if at the last look the engine served, and would not come up at its next start, else 0.",
        {each.name: each.refused for each in node.engines},
        "engine",
    )
    yield _gauge(
        "engine_restart_pending",
        "1 while the engine has not read its configs, for its restart waits until it is idle, else 0.",
        {each.name: each.pending for each in node.engines},
        "engine",
    )


def _of_plugin(plugin: PluginFigures | None) -> Iterator["Metric"]:
    yield _gauge(
        "nri_plugin_registered",
        "1 if at the last look the NRI plugin beside run was registered with its engine, else 0.",
        plugin.registered if plugin else None,
    )
    yield _gauge(
        "nri_missed_containers",
        "Containers that ran at the last look without the devices that their pods ask the NRI plugin for.",
        plugin.missed if plugin else None,
    )
    yield _counter(
        "nri_plugin_ends_total",
        "Times that the NRI plugin has died, or hung and was ended, since run was started.",
        plugin.ends if plugin else None,
    )


def _since_first_install(node: Figures) -> Iterator["Metric"]:
    counts = node.counts
    restarted = {*counts.restarts, *(each.name for each in node.engines)}
    yield _gauge(
        "last_look_timestamp_seconds",
        "When these figures were taken: at an install, a repair, a failure, or a look after a change.",
        node.looked_s,
    )
    yield _gauge(
        "last_success_timestamp_seconds",
        "When an install or a repair last ended well; 0 for never.",
        counts.success_s,
    )
    yield _counter(
        "installs_total",
        "Installs that ended well, those that found everything in place included.",
        counts.installs,
    )
    yield _counter(
        "repairs_total",
        "Times that run has changed the node again while it waited, because something had drifted.",
        counts.repairs,
    )
    yield _counter(
        "engine_restarts_total",
        "Restarts of the engine that we have asked for.",
        {name: counts.restarts.get(name, 0) for name in sorted(restarted)},
        "engine",
    )
    yield _counter(
        "failures_total",
        "Installs, repairs and uninstalls that failed, by the code of the error.",
        dict(sorted(counts.failures.items())),
        "code",
    )


def _gauge(name: str, text: str, value: Value, label: str = "") -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"{PREFIX}{name}", text, labels=[label] if label else None), value)


def _counter(name: str, text: str, value: Value, label: str = "") -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"{PREFIX}{name}", text, labels=[label] if label else None), value)


def _filled(family: "GaugeMetricFamily | CounterMetricFamily", value: Value) -> "Metric":
    if isinstance(value, Mapping):
        for name, number in value.items():
            family.add_metric([name], number)
    elif value is not None:
        family.add_metric([], value)
    return family


def features(figures: Figures) -> str:
    """Return the labels of a node, as NFD reads them from a file of its directory features.d."""
    told = {
        "ready": "true" if figures.ready else "false",
        "version": figures.version,
        "toolkit-version": figures.counts.toolkit,
        "ready-since": figures.since,
    }
    for each in figures.engines:
        told[f"engine-{each.name}"] = "pending" if each.pending else "true" if each.serves else "false"
    lines = [f"{NAMESPACE}/{name}={label(value)}" for name, value in told.items() if value]
    return "\n".join((MARK, *lines)) + "\n"


def label(value: str) -> str:
    """Return ``value`` as one that Kubernetes takes for a label."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in value)
    return kept[:AT_MOST_LABEL].strip("._-")
