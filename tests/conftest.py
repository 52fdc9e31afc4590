"""A test that holds a row of differences.toml may not be skipped where everything can run."""

import os
import signal
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.site import Site

# Machines are shared and noisy: how long an example takes says nothing.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")

# A shell ignores SIGINT for what it starts in the background, and each program under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Which part of the night tests runs, counted from 0, and how many there are: 0/1 is all of them.
NIGHT_PART = os.environ.get("NIGHT_PART", "0/1")
DIFFERENCES = Path(__file__).parent / "compat/differences.toml"
_skipped: set[str] = set()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a node as its owner has it."""
    return Site(tmp_path)


@pytest.fixture
def clean(site: Site) -> Iterator[Site]:
    """Return a node that has to be clean again in the end: each byte as it was at first."""
    before = site.tree()
    yield site
    assert site.tree() == before


@pytest.fixture(scope="session")
def _once_installed(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("installed"))
    site.install()
    return site


@pytest.fixture
def installed(site: Site, _once_installed: Site) -> Site:
    """Return a node on which an install of ours has ended, without the time of one."""
    return site.copy_of(_once_installed)


@cache
def defects() -> list[dict[str, Any]]:
    """Return the rows of differences.toml about what NVIDIA's tool gets wrong."""
    return list(_data()["defect"])


def differences() -> list[dict[str, Any]]:
    """Return the rows of differences.toml about what else is not as NVIDIA's tool does it."""
    return list(_data()["difference"])


def _data() -> dict[str, Any]:
    return tomllib.loads(DIFFERENCES.read_text())


@cache
def named_tests() -> frozenset[str]:
    """Return the tests that hold a row."""
    rows = (*defects(), *differences())
    return frozenset(name for row in rows for name in row.get("tests", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what the night runs, and of that leave out what is not of this night's part."""
    _leave_most_samples_to_the_night(items)
    part, _, parts = NIGHT_PART.partition("/")
    night = [item for item in items if item.get_closest_marker("night")]
    left_out = [item for number, item in enumerate(night) if number % int(parts) != int(part)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _leave_most_samples_to_the_night(items: list[pytest.Item]) -> None:
    """Mark most cases of a test marked ``sampled(n)``: by day its first case runs, and each nth after it."""
    cases_by_test = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases_by_test[item.nodeid.partition("[")[0]].append(item)
    for cases in cases_by_test.values():
        sampled = cases[0].get_closest_marker("sampled")
        if sampled is None:
            continue
        step = sampled.args[0]
        for number, case in enumerate(cases):
            if number % step != 0:
                case.add_marker("night")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid.partition("[")[0] in named_tests():
        _skipped.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and os.geteuid() == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in sorted(_skipped):
        terminalreporter.write_line(f"SKIPPED, although it holds a row of differences.toml: {name}")
