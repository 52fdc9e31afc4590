"""A test that holds a row of differences.toml may not be skipped where everything can run."""

import os
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.site import Site

# Machines are shared and noisy: how long an example takes says nothing.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")

DIFFERENCES = Path(__file__).parent / "compat/differences.toml"
# The cases of a law are versions, engines and moments here, or each is slow. By day one in so many has its turn, by the
# law's name. CPU of all cases as measured: crash 420 s, compat 71, deploy 60, drift 46, integrity 33,
# odd nodes 18, golden cases that are edited 17, lost 15.
ONE_IN = {
    "tests/change/test_golden_edited.py": 4,
    "tests/compat/": 4,
    "tests/crash/": 16,
    "tests/deploy/": 4,
    "tests/engines/": 16,
    "tests/test_drift.py": 4,
    "tests/test_integrity.py": 4,
    "tests/test_lost.py": 4,
    "tests/test_odd_nodes.py": 4,
}
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


def by_night(names: Iterable[str]) -> set[str]:
    """Return the tests among ``names`` that `make test` leaves out since another case of their law has its turn."""
    laws = defaultdict[str, list[str]](list)
    for name in names:
        if name.startswith((*ONE_IN,)):
            laws[name.partition("[")[0]].append(name)
    left = set[str]()
    for law, cases in laws.items():
        step = min(len(cases), *(each for path, each in ONE_IN.items() if law.startswith(path)))
        turn = zlib.crc32(law.encode()) % step
        left |= {*cases} - {*cases[turn::step]}
    return left


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left = by_night(item.nodeid for item in items)
    for item in items:
        if item.nodeid in left:
            item.add_marker("night")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid.partition("[")[0] in named_tests():
        _skipped.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and os.geteuid() == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in sorted(_skipped):
        terminalreporter.write_line(f"SKIPPED, although it holds a row of differences.toml: {name}")
