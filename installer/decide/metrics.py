"""What is told to monitoring: METRICS as Prometheus reads them, and the labels that NFD gives a node."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from installer.decide.data import dataclass, field

PREFIX: Final = "toolkit_installer_"
# A sub-namespace of NFD's own, as it is meant for others: those of nvidia.com belong to NVIDIA's programs.
NAMESPACE: Final = "toolkit-installer.feature.node.kubernetes.io"
MARK: Final = "# Written by toolkit-installer, and removed by its uninstall."
OPENMETRICS_MARK: Final = f"# TYPE {PREFIX[:-1]} info"  # with which it begins: it has no comments
AT_MOST_LABEL: Final = 63  # characters of a label's value in Kubernetes

Labels: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened on a node since the first install; times in seconds since 1970, 0 for never.

    ``toolkit`` is the version of the toolkit that is installed, "" where it does not tell.
    """

    installs: int = 0
    repairs: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    success_s: float = 0
    ready_since_s: float = 0
    toolkit: str = ""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine at the last look: whether it was proven to serve, and whether its configs drifted.

    ``refused`` tells that it would not come up at its next start with the configs that lie there, ``pending``
    that it has not read its configs yet, for its restart waits until it is idle.
    """

    name: str
    serves: bool
    drifted: bool
    refused: bool = False
    pending: bool = False

    @property
    def told(self) -> str:
        """Whether it serves, as its label has it."""
        return "pending" if self.pending else "true" if self.serves else "false"


@dataclass(frozen=True, slots=True)
class PluginFigures:
    """The NRI plugin beside ``run``: whether it was registered, how many it has missed, its ends."""

    registered: bool
    missed: int
    ends: int


@dataclass(frozen=True, slots=True)
class Figures:
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


class Type(StrEnum):
    """What a metric is to Prometheus."""

    INFO = "info"
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name without our prefix, and its samples."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Figures], Iterable[tuple[Labels, float]]]


def _by_engine(value: Callable[[EngineFigures], float]) -> Callable[[Figures], list[tuple[Labels, float]]]:
    return lambda figures: [({"engine": each.name}, value(each)) for each in figures.engines]


def _of_plugin(value: Callable[[PluginFigures], float]) -> Callable[[Figures], list[tuple[Labels, float]]]:
    return lambda figures: [({}, value(figures.plugin))] if figures.plugin else []


METRICS: Final = (
    Metric(
        "info",
        Type.INFO,
        "Always 1; tells the version of this program, and of the toolkit that it has installed.",
        ("version", "toolkit_version"),
        lambda it: [({"version": it.version, "toolkit_version": it.counts.toolkit}, 1)],
    ),
    Metric(
        "ready",
        Type.GAUGE,
        "1 if at the last look the toolkit was in place and each engine was proven to serve it, else 0.",
        (),
        lambda it: [({}, it.ready)],
    ),
    Metric(
        "engine_serves",
        Type.GAUGE,
        "1 if the engine was proven to serve our runtimes at the last look, else 0.",
        ("engine",),
        _by_engine(lambda engine: engine.serves),
    ),
    Metric(
        "config_drifted",
        Type.GAUGE,
        "1 if at the last look the engine's configs did not say any more what was installed, else 0.",
        ("engine",),
        _by_engine(lambda engine: engine.drifted),
    ),
    Metric(
        "config_refused",
        Type.GAUGE,
        "1 if at the last look the engine served, and would not come up at its next start, else 0.",
        ("engine",),
        _by_engine(lambda engine: engine.refused),
    ),
    Metric(
        "engine_restart_pending",
        Type.GAUGE,
        "1 while the engine has not read its configs, for its restart waits until it is idle, else 0.",
        ("engine",),
        _by_engine(lambda engine: engine.pending),
    ),
    Metric(
        "nri_plugin_registered",
        Type.GAUGE,
        "1 if at the last look the NRI plugin beside run was registered with its engine, else 0.",
        (),
        _of_plugin(lambda plugin: plugin.registered),
    ),
    Metric(
        "nri_missed_containers",
        Type.GAUGE,
        "Containers that ran at the last look without the devices that their pods ask the NRI plugin for.",
        (),
        _of_plugin(lambda plugin: plugin.missed),
    ),
    Metric(
        "nri_plugin_ends_total",
        Type.COUNTER,
        "Times that the NRI plugin has died, or hung and was ended, since run was started.",
        (),
        _of_plugin(lambda plugin: plugin.ends),
    ),
    Metric(
        "last_look_timestamp_seconds",
        Type.GAUGE,
        "When these figures were taken: at an install, a repair, a failure, or a look after a change.",
        (),
        lambda it: [({}, it.looked_s)],
    ),
    Metric(
        "last_success_timestamp_seconds",
        Type.GAUGE,
        "When an install or a repair last ended well; 0 for never.",
        (),
        lambda it: [({}, it.counts.success_s)],
    ),
    Metric(
        "installs_total",
        Type.COUNTER,
        "Installs that ended well, those that found everything in place included.",
        (),
        lambda it: [({}, it.counts.installs)],
    ),
    Metric(
        "repairs_total",
        Type.COUNTER,
        "Times that run has changed the node again while it waited, because something had drifted.",
        (),
        lambda it: [({}, it.counts.repairs)],
    ),
    Metric(
        "engine_restarts_total",
        Type.COUNTER,
        "Restarts of the engine that we have asked for.",
        ("engine",),
        lambda it: [
            ({"engine": name}, it.counts.restarts.get(name, 0))
            for name in sorted({*it.counts.restarts, *(each.name for each in it.engines)})
        ],
    ),
    Metric(
        "failures_total",
        Type.COUNTER,
        "Installs, repairs and uninstalls that failed, by the code of the error.",
        ("code",),
        lambda it: [({"code": code}, number) for code, number in sorted(it.counts.failures.items())],
    ),
)


def exposition(figures: Figures) -> str:
    """Return the metrics in Prometheus' text format, for node_exporter's textfile collector."""
    lines = [MARK]
    for metric in METRICS:
        name = f"{PREFIX}{metric.name}"
        known = Type.GAUGE if metric.type is Type.INFO else metric.type
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {known}", *_samples(metric, figures)]
    return "\n".join(lines) + "\n"


def openmetrics(figures: Figures) -> str:
    """Return the metrics as OpenMetrics 1.0, whose families have no suffix, for those who ask ``run``."""
    lines = []
    for metric in METRICS:
        family = f"{PREFIX}{metric.name}".removesuffix("_total").removesuffix("_info")
        lines += [f"# TYPE {family} {metric.type}", f"# HELP {family} {metric.help}"]
        lines += _samples(metric, figures)
    return "\n".join((*lines, "# EOF")) + "\n"


def _samples(metric: Metric, figures: Figures) -> Iterator[str]:
    for labels, value in metric.samples(figures):
        yield f"{PREFIX}{metric.name}{_labels(labels)} {_number(value)}"


def _labels(labels: Labels) -> str:
    pairs = (f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}" if labels else ""


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def features(figures: Figures) -> str:
    """Return the labels of a node, as NFD reads them from a file of its directory features.d."""
    told = {
        "ready": "true" if figures.ready else "false",
        "version": figures.version,
        "toolkit-version": figures.counts.toolkit,
        "ready-since": figures.since,
        **{f"engine-{each.name}": each.told for each in figures.engines},
    }
    lines = [f"{NAMESPACE}/{name}={label(value)}" for name, value in told.items() if value]
    return "\n".join((MARK, *lines)) + "\n"


def label(value: str) -> str:
    """Return ``value`` as one that Kubernetes takes for a label."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "-" for each in value)
    return kept[:AT_MOST_LABEL].strip("._-")
