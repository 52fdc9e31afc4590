"""What Prometheus' own programs say of the textfile, the rules and the scrape that we ship."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from installer.metrics.snapshot import FAILURES, MEANINGS, PREFIX, Snapshot, render
from tests.documents import starting
from tests.figures.prometheus import checked, exporting, free_port, queried, scraped, scraping
from tests.support.golden import golden
from tests.support.site import PROJECT, Site
from tests.support.version import VERSION
from tests.support.waiting import until

SERVES = "toolkit_installer_engine_serves"
MONITORING = PROJECT / "deploy/monitoring"
ENGINES = {"containerd": 1.0, "docker": 0.0}
OF_ENGINES = [name for name in MEANINGS if name.startswith(("engine_", "config_"))]
FIGURES = Snapshot(
    "0.1.0",
    "1.17.8",
    "20261122T083000Z",
    {"containerd": "true", "docker": "false"},
    {
        **dict.fromkeys(MEANINGS, 1_795_000_000.25),
        **dict.fromkeys(OF_ENGINES, ENGINES),
        FAILURES: {"in-use": 1, "locked": 4},
    },
)
FIRST = {name: dict[str, float]() for name in OF_ENGINES}
METRICS = {family.samples[0].name: family for family in FIGURES.collect()}
WITHOUT_SAMPLES_AT_FIRST = {
    name for name in METRICS if name.startswith((f"{PREFIX}nri_", f"{PREFIX}failures_total"))
}


PAGE = PROJECT / "docs/metrics.md"
TABLE_HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"


def named_in(text: str) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}\w+", text))


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param(FIGURES, id="a node"),
        pytest.param(
            replace(FIGURES, version='"\\\n', engines={}, figures=FIRST, since=""), id="a first failure"
        ),
    ],
)
def test_promtool_finds_nothing_to_say_of_the_textfile(figures: Snapshot) -> None:
    done = checked("check", "metrics", text=str(render(".prom", figures)))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_node_exporter_hands_on_what_an_install_has_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    directory = site.root / "var/lib/node_exporter/textfile_collector"
    directory.mkdir(parents=True)
    for each in (tmp_path, *tmp_path.parents[:2]):  # pytest's directories are for their owner alone
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o055)
    path = "/var/lib/node_exporter/textfile_collector/toolkit-installer.prom"

    with exporting(directory) as address:
        before = scraped(address)
        assert site.call("install", "--metrics-textfile", path).returncode == 0
        told = scraped(address)
        assert site.call("uninstall").returncode == 0
        after = scraped(address)

    assert told["node_textfile_scrape_error"] == 0
    names = {name.partition("{")[0] for name in told if name.startswith(PREFIX)}
    assert names == METRICS.keys() - WITHOUT_SAMPLES_AT_FIRST
    assert told[f"{PREFIX}installs_total"] == 1
    assert any(name.startswith("node_textfile_mtime_seconds") and "toolkit" in name for name in told)
    assert not any(name.startswith(PREFIX) for name in (*before, *after))


def test_a_prometheus_scrapes_what_run_answers(tmp_path: Path) -> None:
    site, where = Site(tmp_path), f"127.0.0.1:{free_port()}"
    with site.running("--metrics-listen", where), scraping(where, tmp_path) as address:
        until(lambda: queried(address, SERVES), (tmp_path / "log").read_text)
        found = queried(address, SERVES)
        (info,) = queried(address, "toolkit_installer_info")

    assert {labels["engine"]: value for labels, value in found} == {"docker": 0, "containerd": 0, "crio": 0}
    assert (info[0]["version"], info[1]) == (VERSION, 1)


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "prometheus-rules.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "prometheus-rules.test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content_with_the_rules_and_the_scrape(words: tuple[str, ...]) -> None:
    *verb, file = words

    done = checked(*verb, str(MONITORING / file))

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test() -> None:
    rules = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text())
    (tests,) = yaml.safe_load((MONITORING / "prometheus-rules.test.yaml").read_text())["tests"]

    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [each["alertname"] for each in tests["alert_rule_test"] if each["exp_alerts"]] == alerts


@pytest.mark.parametrize("file", sorted(path.name for path in MONITORING.iterdir()))
def test_every_metric_named_in_a_file_for_monitoring_exists(file: str) -> None:
    named = named_in((MONITORING / file).read_text())

    assert named or file == "prometheus.yaml"
    assert named <= METRICS.keys()


def test_the_dashboard_shows_each_column_that_it_asks_for() -> None:
    dashboard: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())

    (panel,) = dashboard["panels"]
    columns = {f"Value #{each['refId']}" for each in panel["targets"]} - {"Value #Info"}
    named = {each["id"]: each["options"] for each in panel["transformations"]}
    assert {*named["filterFieldsByName"]["include"]["names"]} - columns == {
        "instance",
        "version",
        "toolkit_version",
    }
    assert {*named["filterFieldsByName"]["include"]["names"]} == named["organize"]["renameByName"].keys()
    # Each query has to hold to Prometheus' grammar: as a rule it can be checked.
    rules = [{"record": "a:b", "expr": each["expr"]} for each in panel["targets"]]
    text = yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})
    assert checked("check", "rules", "/dev/stdin", text=text).returncode == 0


def test_prometheus_takes_the_expressions_of_the_page() -> None:
    (block,) = re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    rules = [{"record": "a:b", "expr": line, "labels": {"row": line}} for line in block.splitlines()]
    text = yaml.safe_dump({"groups": [{"name": "page", "rules": rules}]})
    done = checked("check", "rules", "/dev/stdin", text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert named_in(block) <= METRICS.keys()


def test_the_rules_are_the_spec_of_a_prometheus_rule_by_the_command_of_the_page() -> None:
    (command,) = starting("sed -e 's/^/  /'")

    made = subprocess.run(
        ["sh", "-c", command.text.partition(" | ")[0]],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    rules = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text())
    assert yaml.safe_load(made) == {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "toolkit-installer"},
        "spec": rules,
    }


def row(name: str) -> str:
    family = METRICS[name]
    labels = ", ".join(f"`{label}`" for label in family.samples[0].labels) or "-"
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n"


def test_the_page_has_a_row_for_each_metric() -> None:
    before, head, after = PAGE.read_text().partition(TABLE_HEAD)
    rest = after.partition("\n\n")[2]
    text = f"{before}{head}{''.join(map(row, METRICS))}\n{rest}"

    assert golden(PAGE, text) == text
