"""promtool and node_exporter, the machine's own or Debian's."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from tests.engines import debs

SUITE = "bookworm"


@cache
def promtool() -> str:
    """Return the program that checks what Prometheus is given."""
    return debs.program("promtool", "prometheus", SUITE)


@cache
def node_exporter() -> str:
    """Return the exporter that reads textfiles."""
    return debs.program("prometheus-node-exporter", "prometheus-node-exporter", SUITE)


def checked(*words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run promtool."""
    return subprocess.run(
        [promtool(), *words], input=text, capture_output=True, text=True, timeout=60, check=False
    )


@contextmanager
def scraping(address: str, directory: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes ``address`` each second; yield where it is asked."""
    config, port = directory / "prometheus.yml", free_port()
    job = {"job_name": "ours", "static_configs": [{"targets": [address]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    command = [
        debs.program("prometheus", "prometheus", SUITE),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(command, stderr=log, stdout=log) as child,
    ):
        try:
            yield f"http://127.0.0.1:{port}/api/v1/query?query="
        finally:
            child.send_signal(signal.SIGTERM)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def queried(address: str, query: str) -> list[tuple[dict[str, str], float]]:
    """Return what Prometheus knows: labels and value of each sample; nothing where it does not answer yet."""
    try:
        with urlopen(address + quote(query), timeout=10) as answer:  # noqa: S310 - an address of ours
            found = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return [(each["metric"], float(each["value"][1])) for each in found]


@contextmanager
def exporting(directory: Path) -> Iterator[str]:
    """Run a node_exporter that reads the textfiles of ``directory``; yield the address of its metrics."""
    command = [
        node_exporter(),
        "--web.listen-address=127.0.0.1:0",
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={directory}",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            found = (re.search(r"address=(127\.0\.0\.1:\d+)", line) for line in child.stderr)
            yield f"http://{next(each[1] for each in found if each)}/metrics"
        finally:
            child.send_signal(signal.SIGTERM)


def scraped(address: str) -> dict[str, float]:
    """Return each sample that an exporter hands out."""
    with urlopen(address, timeout=10) as answer:  # noqa: S310 - an address of ours
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
