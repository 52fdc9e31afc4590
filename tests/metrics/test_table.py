"""The labels of a node, and numbers and names as Prometheus and Kubernetes take them."""

import pytest

from installer.metrics.snapshot import Snapshot, Value, features, label, render


def labels(node: Snapshot) -> dict[str, str]:
    lines = features(node).splitlines()
    return {name.rpartition("/")[2]: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize(
    ("since", "state", "told"),
    [
        ("2026-01-01T00:00:00Z", "true", {"ready": "true", "ready-since": "2026-01-01T00-00-00Z"}),
        ("", "true", {"ready": "false"}),
        ("", "pending", {"ready": "false"}),
    ],
)
def test_the_labels_of_a_node(since: str, state: str, told: dict[str, str]) -> None:
    figures = Snapshot("0.2.0", "1.19.1", since, {"docker": state}, {})

    usual = {"version": "0.2.0", "toolkit-version": "1.19.1", "engine-docker": state}
    assert labels(figures) == usual | told
    without = Snapshot("0.2.0", "", "", {}, {})
    assert labels(without) == {"ready": "false", "version": "0.2.0"}


@pytest.mark.parametrize(
    ("value", "said"),
    [("1.2.3", "1.2.3"), ("a b/c", "a-b-c"), ("-a_", "a"), ("\u00e4b", "b"), ("x" * 70, "x" * 63), ("", "")],
)
def test_a_label_is_one_that_kubernetes_takes(value: str, said: str) -> None:
    assert label(value) == said


def test_numbers_and_words_are_as_prometheus_reads_them() -> None:
    values: dict[str, Value] = {
        "ready": True,
        "installs_total": 3,
        "last_look_timestamp_seconds": 1.5,
        "repairs_total": 0,
    }
    values |= {"engine_serves": {"docker": True}, "failures_total": {'a"b\\c\nd': 2}}
    figures = Snapshot('0"2', "", "now", {}, values)

    text, other = render(".prom", figures), render(".openmetrics", figures)

    assert text is not None
    assert other is not None
    lines = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if line[:1] != "#"
    }
    assert {*lines.values()} == {"0.0", "1.0", "1.5", "2.0", "3.0"}
    assert any(r'"a\"b\\c\nd"' in name for name in lines)
    assert all(name.partition("{")[0].startswith("toolkit_installer_") for name in lines)
    assert sorted(lines) == sorted(line.rpartition(" ")[0] for line in other.splitlines() if line[:1] != "#")
    assert other.endswith("\n# EOF\n")
