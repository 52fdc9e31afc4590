"""What is crashed, and how often: the count ends the report, for each engine."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.crash.nodes import ENGINES, Ward, ward

COVERED = "points and interleavings"
Covered = Callable[[str, str, int, int], None]


@pytest.fixture(params=ENGINES, scope="module")
def engines(request: pytest.FixtureRequest) -> str:
    """Return the name of one engine, or of all of them together."""
    return str(request.param)


@pytest.fixture(scope="module")
def nodes(engines: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Return nodes of these engines to be crashed."""
    with ward(tmp_path_factory.mktemp("crash") / "ward", engines) as made:
        yield made


@pytest.fixture
def covered(record_property: Callable[[str, object], None]) -> Covered:
    """Return how to tell what was covered: which kind of crash, for which engine, how often, of how many."""
    return lambda kind, engine, *counts: record_property(COVERED, (kind, engine, *counts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Tests may run in other processes: what they have to tell comes with their reports.
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if getattr(report, "when", "") != "call":
            continue
        for kind, engine, done, total in (told for name, told in report.user_properties if name == COVERED):
            counts[kind, engine][0] += done
            counts[kind, engine][1] += total
    if counts:
        terminalreporter.section("crashes that were survived")
        for (kind, engine), (done, total) in sorted(counts.items()):
            terminalreporter.write_line(f"{kind:<44}{engine:<12}{done:>7} of {total}")
