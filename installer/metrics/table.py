"""The metrics, a row each over one snapshot of the node, and the labels that NFD gives the node."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta, Struct, field

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "toolkit_installer_"
# A sub-namespace of NFD's own, as it is meant for others: those of nvidia.com belong to NVIDIA's programs.
NAMESPACE: Final = "toolkit-installer.feature.node.kubernetes.io"
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
    """One engine: whether it was proven to serve, and whether its configs drifted.

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


class Snapshot(Struct, frozen=True):
    """A node at one look; ``since`` is when it became ready, "" where it is not.

    ``plugin`` is None where no NRI plugin is to be there.
    """

    version: str
    counts: Counts
    engines: tuple[EngineFigures, ...]
    looked_s: float
    since: str = ""
    plugin: PluginFigures | None = None

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics, as prometheus_client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        versions = {"version": self.version, "toolkit_version": self.counts.toolkit}
        yield InfoMetricFamily(PREFIX[:-1], INFO, versions)
        for row in METRICS:
            kind = CounterMetricFamily if row.name.endswith("_total") else GaugeMetricFamily
            family = kind(f"{PREFIX}{row.name}", row.tells, labels=[row.label] if row.label else None)
            value = row.value(self)
            if isinstance(value, Mapping):
                for name, number in value.items():
                    family.add_metric([name], number)
            elif value is not None:
                family.add_metric([], value)
            yield family


class Row(Struct, frozen=True):
    """One metric: a counter where its name ends so, else a gauge; with a ``label`` a value for each."""

    name: str
    tells: str
    value: Callable[[Snapshot], Value]
    label: str = ""


def _count_restarts(node: Snapshot) -> Value:
    restarts = node.counts.restarts
    return {
        name: restarts.get(name, 0) for name in sorted({*restarts, *(each.name for each in node.engines)})
    }


INFO: Final = "Always 1; tells the version of this program, and of the toolkit that it has installed."
METRICS: Final = (
    Row(
        "ready",
        "1 if at the last look the toolkit was in place and each engine was proven to serve it, else 0.",
        lambda node: bool(node.since),
    ),
    Row(
        "engine_serves",
        "1 if the engine was proven to serve our runtimes at the last look, else 0.",
        lambda node: {each.name: each.serves for each in node.engines},
        "engine",
    ),
    Row(
        "config_drifted",
        "1 if at the last look the engine's configs did not say any more what was installed, else 0.",
        lambda node: {each.name: each.drifted for each in node.engines},
        "engine",
    ),
    Row(
        "config_refused",
        "1 if at the last look the engine served, and would not come up at its next start, else 0.",
        lambda node: {each.name: each.refused for each in node.engines},
        "engine",
    ),
    Row(
        "engine_restart_pending",
        "1 while the engine has not read its configs, for its restart waits until it is idle, else 0.",
        lambda node: {each.name: each.pending for each in node.engines},
        "engine",
    ),
    Row(
        "nri_plugin_registered",
        "1 if at the last look the NRI plugin beside run was registered with its engine, else 0.",
        lambda node: node.plugin.registered if node.plugin else None,
    ),
    Row(
        "nri_missed_containers",
        "Containers that ran at the last look without the devices that their pods ask the NRI plugin for.",
        lambda node: node.plugin.missed if node.plugin else None,
    ),
    Row(
        "nri_plugin_ends_total",
        "Times that the NRI plugin has died, or hung and was ended, since run was started.",
        lambda node: node.plugin.ends if node.plugin else None,
    ),
    Row(
        "last_look_timestamp_seconds",
        "When these figures were taken: at an install, a repair, a failure, or a look after a change.",
        lambda node: node.looked_s,
    ),
    Row(
        "last_success_timestamp_seconds",
        "When an install or a repair last ended well; 0 for never.",
        lambda node: node.counts.success_s,
    ),
    Row(
        "installs_total",
        "Installs that ended well, those that found everything in place included.",
        lambda node: node.counts.installs,
    ),
    Row(
        "repairs_total",
        "Times that run has changed the node again while it waited, because something had drifted.",
        lambda node: node.counts.repairs,
    ),
    Row("engine_restarts_total", "Restarts of the engine that we have asked for.", _count_restarts, "engine"),
    Row(
        "failures_total",
        "Installs, repairs and uninstalls that failed, by the code of the error.",
        lambda node: dict(sorted(node.counts.failures.items())),
        "code",
    ),
)


def features(node: Snapshot) -> str:
    """Return the labels of a node, as NFD reads them from a file of its directory features.d."""
    labels = {
        "ready": "true" if node.since else "false",
        "version": node.version,
        "toolkit-version": node.counts.toolkit,
        "ready-since": node.since,
    }
    for each in node.engines:
        labels[f"engine-{each.name}"] = "pending" if each.pending else "true" if each.serves else "false"
    return "".join(f"{NAMESPACE}/{name}={label(value)}\n" for name, value in labels.items() if value)


def label(value: str) -> str:
    """Return ``value`` as one that Kubernetes takes for a label."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in value)
    return kept[:AT_MOST_LABEL].strip("._-")
