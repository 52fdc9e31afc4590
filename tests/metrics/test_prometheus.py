"""What Prometheus' own programs say of the textfile, the rules and the scrape that we ship."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from msgspec.structs import replace

from installer.metrics.snapshot import FAILURES, MEANINGS, PREFIX, Snapshot, render
from tests.engines import debs
from tests.support.golden import golden
from tests.support.site import PROJECT, Site

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
    name
    for name in METRICS
    if name.startswith(
        tuple(f"{PREFIX}{each}" for each in ("nri_", "failures_total", "waiting", "turn_held"))
    )
}


PAGE = PROJECT / "docs/metrics.md"
TABLE_HEAD = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
ALERTS_HEAD = "| alert | severity | when | do |\n|---|---|---|---|\n"


def checked(*words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run promtool, the machine's own or Debian's."""
    command = [debs.program("promtool", "prometheus", "bookworm"), *words]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def exporting(directory: Path) -> Iterator[str]:
    """Run a node_exporter that reads the textfiles of ``directory``; yield the address of its metrics."""
    command = [
        debs.program("prometheus-node-exporter", "prometheus-node-exporter", "bookworm"),
        *("--web.listen-address=127.0.0.1:0", "--collector.disable-defaults", "--collector.textfile"),
        f"--collector.textfile.directory={directory}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            found = (re.search(r"address=(127\.0\.0\.1:\d+)", line) for line in child.stderr)
            yield f"http://{next(each[1] for each in found if each)}/metrics"
        finally:
            child.terminate()


def scraped(address: str) -> dict[str, float]:
    """Return each sample that an exporter hands out."""
    with urlopen(address, timeout=10) as answer:  # noqa: S310 - an address of ours
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


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


def test_a_node_exporter_hands_on_what_an_install_has_told(tmp_path: Path, site: Site) -> None:
    directory = site.root / "var/lib/node_exporter"
    directory.mkdir(parents=True)
    for each in (tmp_path, *tmp_path.parents[:2]):  # pytest's directories are for their owner alone
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o055)

    with exporting(directory) as address:
        before = scraped(address)
        site.install("--metrics-textfile", "/var/lib/node_exporter/toolkit-installer.prom")
        told = scraped(address)
        site.uninstall()
        after = scraped(address)

    assert told["node_textfile_scrape_error"] == 0
    names = {name.partition("{")[0] for name in told if name.startswith(PREFIX)}
    assert METRICS.keys() - names == WITHOUT_SAMPLES_AT_FIRST
    assert told[f"{PREFIX}installs_total"] == 1
    assert not any(name.startswith(PREFIX) for name in (*before, *after))


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


def test_prometheus_takes_the_expressions_of_the_page_and_of_the_dashboard() -> None:
    (block,) = re.findall(r"^```promql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (panel,) = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]

    expressions = [*block.splitlines(), *(each["expr"] for each in panel["targets"])]
    rules = [{"record": "a:b", "expr": each, "labels": {"row": each}} for each in expressions]
    text = yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]})
    done = checked("check", "rules", "/dev/stdin", text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert named_in(block) <= METRICS.keys()


def row(name: str) -> str:
    family = METRICS[name]
    labels = ", ".join(f"`{label}`" for label in family.samples[0].labels) or "-"
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |\n"


def test_the_page_has_a_row_for_each_metric() -> None:
    before, head, after = PAGE.read_text().partition(TABLE_HEAD)
    rest = after.partition("\n\n")[2]
    text = f"{before}{head}{''.join(map(row, METRICS))}\n{rest}"

    assert golden(PAGE, text) == text


def describe_condition(rule: dict[str, str]) -> str:
    """Return the cell of the table of alerts that says when a rule fires."""
    expression = rule["expr"].replace("|", "\\|")
    duration = f", for {rule['for']}" if "for" in rule else ""
    return f"`{expression}`{duration}"


def test_the_page_has_a_row_for_each_alert_with_its_severity_and_threshold() -> None:
    groups = yaml.safe_load((MONITORING / "prometheus-rules.yaml").read_text())["groups"]
    before, head, after = PAGE.read_text().partition(ALERTS_HEAD)
    table, _, rest = after.partition("\n\n")
    remedies = dict(re.findall(r"^\| `(\w+)` \|.* \| ([^|]+) \|$", table, re.MULTILINE))

    rows = []
    for rule in (rule for group in groups for rule in group["rules"]):
        severity = rule["labels"]["severity"]
        cells = (f"`{rule['alert']}`", severity, describe_condition(rule), remedies[rule["alert"]])
        rows.append(f"| {' | '.join(cells)} |")

    text = f"{before}{head}{chr(10).join(rows)}\n\n{rest}"
    assert golden(PAGE, text) == text
