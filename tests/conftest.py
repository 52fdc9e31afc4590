"""A test that holds a defect of compat.toml may not be skipped where everything can run."""

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_skipped: set[str] = set()


@cache
def defects() -> list[dict[str, Any]]:
    """Return the rows of compat.toml about what NVIDIA's tool gets wrong."""
    data = tomllib.loads((Path(__file__).parents[1] / "installer/compat.toml").read_text())
    return list(data["defect"])


@cache
def named_tests() -> frozenset[str]:
    """Return the tests that hold a defect."""
    return frozenset(name for defect in defects() for name in defect.get("tests", ()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and report.nodeid.partition("[")[0] in named_tests():
        _skipped.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and os.geteuid() == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in sorted(_skipped):
        terminalreporter.write_line(f"SKIPPED, although it holds a defect of compat.toml: {name}")
