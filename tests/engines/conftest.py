"""Real engines on real nodes: what Debian carries today, booted under systemd."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import pytest

from tests.engines import debs
from tests.engines.cache import locked
from tests.engines.cri import Cri
from tests.engines.nodes import Node, boot
from tests.engines.roots import Roots, prepared
from tests.engines.versions import EngineSet, Today, engine_sets, today
from tests.support.waiting import HANGS_S

HERE = Path(__file__).parent
NODES = {"node": None, "docker_node": "docker", "containerd_node": "containerd", "docker_engines": "docker"}
Containerd = tuple[Path, tuple[int, ...]]  # a program and its version
Boot = Callable[..., AbstractContextManager[Node]]


@cache
def missing() -> str | None:
    """Return what keeps real engines from running here, as one sentence, or None."""
    if os.geteuid() != 0:
        return "not root: nodes need namespaces, mounts and cgroups"
    for tool in ("unshare", "nsenter", "setpriv", "chroot"):
        if not shutil.which(tool):
            return f"{tool} is missing"
    if lack := debs.needed():
        return lack
    tried = subprocess.run(
        ["unshare", "-m", "-p", "-n", "-f", "true"], capture_output=True, timeout=HANGS_S, check=False
    )
    return f"no new namespaces: {tried.stderr.decode().strip()}" if tried.returncode else None


def must_run() -> bool:
    """Tell whether this is root on Debian, where no engine test may be skipped."""
    release = Path("/etc/os-release")
    return os.geteuid() == 0 and release.exists() and "\nID=debian\n" in f"\n{release.read_text()}\n"


@cache
def on_the_day() -> Today:
    with locked():
        return today()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("engines")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in NODES.keys() & set(metafunc.fixturenames):
        if lack := missing():
            if must_run():
                raise pytest.UsageError(f"the engine tests may not be skipped here, but: {lack}")
            metafunc.parametrize(
                name, [pytest.param(None, marks=pytest.mark.skip(reason=lack))], indirect=True
            )
            continue
        sets = [row for row in engine_sets(on_the_day()) if NODES[name] in {None, row.name}]
        any_version = (
            metafunc.definition.get_closest_marker("any_version") and os.environ.get("VERSIONS") != "all"
        )
        wanted = _newest_of_each(sets) if any_version else sets
        metafunc.parametrize(name, wanted, ids=str, indirect=True)


def _newest_of_each(sets: list[EngineSet]) -> list[EngineSet]:
    """Return the newest version of each engine: ``sets`` go from the oldest suite of Debian to the newest."""
    newest = {row.name: row for row in sets}
    return list(newest.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if missing() is None:
        terminalreporter.section("engines that Debian carries today")
        for row in engine_sets(on_the_day()):
            terminalreporter.write_line(f"{row.suite:<10}{row}")


@pytest.fixture(scope="session")
def engines_today() -> list[EngineSet]:
    """Return every set of engines that could be had."""
    if (lack := missing()) and not must_run():
        pytest.skip(lack)
    return engine_sets(on_the_day())


@pytest.fixture(scope="session")
def roots(engines_today: list[EngineSet]) -> Roots:
    """Return the root file systems, built if the cache lacks them."""
    assert engines_today
    with locked():
        return prepared(on_the_day())


@pytest.fixture(scope="session")
def booted(roots: Roots) -> Boot:
    """Return how to boot a node by hand: ``with booted(engines, start=False) as node``."""

    def boot_one(engines: EngineSet, *, start: bool = True) -> AbstractContextManager[Node]:
        return boot(roots, engines, start=start)

    return boot_one


@pytest.fixture
def docker_engines(request: pytest.FixtureRequest) -> EngineSet:
    """Return the engines of every node that has a dockerd, for who starts that alone."""
    found: EngineSet = request.param
    return found


def _fresh(request: pytest.FixtureRequest) -> Iterator[Node]:
    """Boot a node, its engines started: of every kind that Debian carries today, or one for each of an engine."""
    with boot(request.getfixturevalue("roots"), request.param) as booted_node:
        yield booted_node


node = pytest.fixture(_fresh, name="node")
docker_node = pytest.fixture(_fresh, name="docker_node")
containerd_node = pytest.fixture(_fresh, name="containerd_node")


@pytest.fixture
def cri(containerd_node: Node) -> Cri:
    """Return the CRI of the test's ``containerd_node``."""
    return containerd_node.cri


@pytest.fixture(scope="session")
def containerds(roots: Roots, engines_today: list[EngineSet]) -> dict[str, Containerd]:
    """Return the program of each containerd that a suite carries of its own, and its version."""
    return {
        row.suite: (
            roots.suites[row.suite] / "usr/bin/containerd",
            tuple(int(part) for part in row.containerd.split(".")),
        )
        for row in engines_today
        if row.docker is None
    }


@pytest.fixture(params=["bookworm", "trixie", "sid"])
def containerd(request: pytest.FixtureRequest, containerds: dict[str, Containerd]) -> Containerd:
    """Return the program of each containerd, and its version."""
    if request.param not in containerds:
        pytest.skip(f"{request.param} carries no containerd of its own today")
    return containerds[request.param]
