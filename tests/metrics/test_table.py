"""The labels of a node, and numbers and names as Prometheus and Kubernetes take them."""

import pytest

from installer.metrics.snapshot import Counts, EngineFigures, Snapshot, features, label, render

WELL = EngineFigures("containerd", serves=True, drifted=False)


def labels(node: Snapshot) -> dict[str, str]:
    lines = features(node).splitlines()
    return {name.rpartition("/")[2]: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("since", "engine", "told"),
    [
        ("2026-01-01T00:00:00Z", WELL, {"ready": "true", "ready-since": "2026-01-01T00-00-00Z"}),
        ("", WELL, {"ready": "false"}),
        (
            "",
            EngineFigures("docker", serves=False, drifted=False),
            {"ready": "false", "engine-docker": "false"},
        ),
        (
            "",
            EngineFigures("docker", serves=True, drifted=False, pending=True),
            {"ready": "false", "engine-docker": "pending"},
        ),
    ],
)
def test_the_labels_of_a_node(since: str, engine: EngineFigures, told: dict[str, str]) -> None:
    figures = Snapshot("0.2.0", Counts(toolkit="1.19.1"), (engine,), 1.5, since)

    usual = {"version": "0.2.0", "toolkit-version": "1.19.1", f"engine-{engine.name}": "true"}
    assert labels(figures) == usual | told
    without = Snapshot("0.2.0", Counts(), (), 1.5)
    assert labels(without) == {"ready": "false", "version": "0.2.0"}


@pytest.mark.parametrize(
    ("value", "said"),
    [("1.2.3", "1.2.3"), ("a b/c", "a-b-c"), ("-a_", "a"), ("\u00e4b", "b"), ("x" * 70, "x" * 63), ("", "")],
)
def test_a_label_is_one_that_kubernetes_takes(value: str, said: str) -> None:
    assert label(value) == said


def test_numbers_and_words_are_as_prometheus_reads_them() -> None:
    counts = Counts(installs=3, failures={'a"b\\c\nd': 2}, success_s=7, ready_since_s=1.25)
    figures = Snapshot('0"2', counts, (WELL,), 1.5, "now")

    text, other = render(".prom", figures), render(".openmetrics", figures)

    assert text is not None
    assert other is not None
    lines = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if line[:1] != "#"
    }
    assert {*lines.values()} == {"0.0", "1.0", "1.5", "2.0", "3.0", "7.0"}
    assert any(r'"a\"b\\c\nd"' in name for name in lines)
    assert all(name.partition("{")[0].startswith("toolkit_installer_") for name in lines)
    assert sorted(lines) == sorted(line.rpartition(" ")[0] for line in other.splitlines() if line[:1] != "#")
    assert other.endswith("\n# EOF\n")
