"""What an install and a check of the node add to the counts, and how metrics and labels are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.ledger import Ledger
from installer.change.plan import Plan
from installer.engines import ENGINES
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.own_version import describe_version
from installer.metrics import snapshot as monitoring
from installer.metrics.snapshot import Counts, Snapshot, features
from installer.model.facts import EngineRow, Record
from installer.model.options import Options

TEXTFILE = PurePosixPath("/prom/toolkit-installer.prom")
NOTHING = Plan((), Record(), Record(), {})


@dataclass(frozen=True)
class Node:
    """A node whose docker and containerd were configured, and whose figures are told."""

    host: Host
    options: Options
    ledger: Ledger

    @property
    def counts(self) -> Counts:
        return monitoring.read_counts(self.host, self.options.layout)

    def told(self, plan: Plan, refused: tuple[str, ...] | None = None) -> Counts:
        monitoring.publish_success(self.host, self.options, self.ledger, plan, refused)
        return self.counts

    def samples(self) -> dict[str, float]:
        file = self.host.read(TEXTFILE)
        assert file is not None
        lines = [line for line in file.content.decode().splitlines() if not line.startswith("#")]
        pairs = (line.removeprefix("toolkit_installer_").rsplit(" ", 1) for line in lines)
        return {name: float(value) for name, value in pairs}

    def writes(self, text: str) -> None:
        self.host.local_path(ENGINES["docker"].config).write_text(text)


def _row(name: str) -> EngineRow:
    engine = ENGINES[name]
    binary = PurePosixPath("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    return EngineRow(name, engine.socket, engine.unit, {"nvidia": binary}, config=engine.config)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for name in ("prom", "etc/docker", "etc/containerd"):
        (tmp_path / name).mkdir(parents=True)
    host = Host.under(PurePosixPath(tmp_path))
    options = Options(host_root=PurePosixPath(tmp_path), metrics_textfile=TEXTFILE)
    ledger = Ledger.open(host, options.layout)
    monitoring.claim(host, options, ledger)
    ledger.write(replace(ledger.record, engines=(_row("docker"), _row("containerd"))))
    yield Node(host, options, ledger)
    ledger.remove()


def test_a_node_is_ready_since_its_first_proof_and_no_more_when_something_is_not_proven(node: Node) -> None:
    first = node.told(replace(NOTHING, release=(1, 17, 8)))
    second = node.told(NOTHING, ())
    unproven = node.told(replace(NOTHING, unverified_engines=("docker",)), ())
    samples = node.samples()
    again = node.told(NOTHING, ())
    monitoring.publish_failure(
        node.host, node.options, node.ledger, InstallerError("act", remedy="look", code="locked")
    )

    assert (first.toolkit, second.toolkit) == ("1.17.8", "")
    assert first.ready_since_s == second.ready_since_s == first.success_s < second.success_s
    assert unproven.ready_since_s == 0
    assert [samples[f'engine_serves{{engine="{name}"}}'] for name in ("docker", "containerd")] == [0, 1]
    assert again.ready_since_s == again.success_s
    assert (node.counts.ready_since_s, node.counts.failures) == (0, {"locked": 1})
    assert node.samples()["ready"] == 0


def test_metrics_count_an_engine_with_a_refused_config_as_serving(node: Node) -> None:
    for refused in (("docker",), None):
        node.told(NOTHING, refused)

        samples = node.samples()
        for name in ("docker", "containerd"):
            assert samples[f'engine_serves{{engine="{name}"}}'] == 1
            assert samples[f'config_refused{{engine="{name}"}}'] == (refused == (name,))


def test_an_engine_that_was_restarted_is_counted_and_one_that_got_a_signal_is_not(node: Node) -> None:
    for _ in range(2):
        node.ledger.reloaded += ["docker", "containerd"]
        node.told(NOTHING)

    samples = node.samples()
    assert samples['engine_restarts_total{engine="containerd"}'] == 2
    assert samples['engine_restarts_total{engine="docker"}'] == 0


@pytest.mark.parametrize("text", ['{"installs": -3, "failures": {"x": 5}, "restarts": []}', "[" * 100_000])
def test_counts_that_nobody_can_read_begin_anew(node: Node, text: str) -> None:
    node.told(NOTHING)
    node.host.local_path(node.options.layout.counts).write_text(text)

    assert node.counts == Counts()
    assert node.told(NOTHING).installs == 1


def labels(node: Snapshot) -> dict[str, str]:
    lines = features(node).splitlines()
    return {name.rpartition("/")[2]: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("since", "told"),
    [("20260101T000000Z", {"ready": "true", "ready-since": "20260101T000000Z"}), ("", {"ready": "false"})],
)
def test_the_labels_of_a_node(since: str, told: dict[str, str]) -> None:
    figures = Snapshot("0.3.0", "1.19.1", since, {"docker": "pending"}, {})

    usual = {"version": "0.3.0", "toolkit-version": "1.19.1", "engine-docker": "pending"}
    assert labels(figures) == usual | told
    without = Snapshot("0.3.0", "", "", {}, {})
    assert labels(without) == {"ready": "false", "version": "0.3.0"}


def test_a_development_version_has_its_commit_in_the_metric_and_not_in_the_label(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "0.4.0.dev0 (commit 0123456789ab)"
    monkeypatch.setattr("installer.host.own_version.find_commit", lambda _: "0123456789ab")
    monkeypatch.setattr("installer.host.own_version.own_version", lambda: "0.4.0.dev0")
    describe_version.cache_clear()

    node.told(NOTHING)
    samples = node.samples()
    describe_version.cache_clear()

    assert samples[f'info{{toolkit_version="",version="{version}"}}'] == 1
    # The value of a label has no space.
    assert labels(Snapshot(version, "", "", {}, {}))["version"] == "0.4.0.dev0"
