"""GPUs by CDI alone on real engines: nobody is restarted, edited or unreachable, and a stale one is replaced."""

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.engines.by_cdi import GPU, LIBRARIES, MODE, SPECIFICATION, TELLS, Client, answers, driver
from tests.engines.conftest import Boot
from tests.engines.cri import CriError
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.told import served, snapshot
from tests.engines.versions import EngineSet
from tests.support.waiting import until

# A look takes two seconds, and a check by the clock comes after 120; the rest is for a busy machine.
REPLACED_S = 30.0


def has_cdi(engines: EngineSet) -> bool:
    """Tell, of the versions that Debian carries, whether one has CDI switched on by itself."""
    version, since = (engines.docker, (28, 2)) if engines.docker else (engines.containerd, (2, 0))
    return tuple(map(int, version.split(".")[:2])) >= since


@pytest.fixture(params=["containerd", "docker"])
def with_cdi(request: pytest.FixtureRequest, engines_today: list[EngineSet], booted: Boot) -> Iterator[Node]:
    """Boot a node of the engine's last version, with a driver."""
    with booted(next(row for row in engines_today if row.name == request.param and has_cdi(row))) as node:
        driver(node, "550.1")
        yield node


def seen_in_a_container(node: Node) -> str:
    """Return what a container that asks for the GPU by its CDI name says of it."""
    if node.engine == "docker":
        words = ["docker", "run", "--rm", "--net", "none", "--device", GPU, IMAGE, "sh", "-c", TELLS]
        return node.run(words).stdout
    pod = node.cri.run_pod()
    try:
        container = node.cri.start_container(pod, devices=(GPU,))
        return node.cri.exec(container, "sh", "-c", TELLS).stdout
    finally:
        node.cri.remove_pod(pod)


def _specification(node: Node) -> str:
    with suppress(FileNotFoundError):  # it goes away between two looks while it is stale
        return (node.root / SPECIFICATION.lstrip("/")).read_text()
    return ""


@pytest.mark.sampled(16)
def test_a_container_gets_its_gpu_and_the_engine_is_never_changed_or_unreachable(with_cdi: Node) -> None:
    node = with_cdi
    files, before, pid = snapshot(node), served(node), node.pid_of()

    with Client(partial(answers, node)) as client:
        node.installer("install", *MODE, check=True)
        installed = sorted(snapshot(node).keys() - files.keys())
        said = seen_in_a_container(node)
        marks = node.marks()
        again = node.installer("install", *MODE, check=True)
        plan, status = node.installer("plan", *MODE), node.installer("status")
        node.installer("uninstall", check=True)

    assert client.refused == 0
    assert client.answered > 50
    assert said.split() == ["void", "libcuda.so.550.1", "device"]
    assert [mark for mark in marks if mark.startswith("nvidia-cdi-hook update-ldcache")]
    names = {path.rpartition("/")[2] for path in installed if "/versions/" in path}
    assert names - {"versions"} >= {"nvidia-cdi-hook", "nvidia-ctk", "nvidia-ctk.real"}
    assert not [name for name in names if "container" in name or "lib" in name or "config" in name], names
    assert "nothing changed" in again.stderr
    assert plan.returncode == 0, plan.stdout
    assert status.returncode == 0, status.stdout
    assert f"{node.engine}  " in status.stdout
    assert "takes devices by CDI" in status.stdout
    assert node.pid_of() == pid
    assert served(node) == before
    assert snapshot(node) == files
    assert not node.has("run/cdi")


@pytest.mark.parametrize("with_cdi", ["containerd"], indirect=True)
def test_a_specification_follows_the_driver_within_seconds_and_goes_with_it(with_cdi: Node) -> None:
    node, files = with_cdi, snapshot(with_cdi)
    pid, made = node.pid_of(), list[str]()
    with Client(partial(answers, node)) as client, Client(partial(_creates, node, made)):
        process = node.start_run(*MODE)
        until(node.is_ready, lambda: node.installer("status").stdout)
        took = []
        for version in ("560.2", "570.3"):
            driver(node, version)
            took.append(_until(node, f"libcuda.so.{version}"))
        node.run(["mknod", "-m", "666", "/dev/nvidia1", "c", "1", "3"])
        took.append(_until(node, "/dev/nvidia1"))
        node.run(["rm", "-rf", LIBRARIES])
        took.append(_until(node))
        without = node.installer("status")
        driver(node, "580.4")
        took.append(_until(node, "libcuda.so.580.4"))
        last = seen_in_a_container(node)
        process.terminate()
        assert process.wait() == 0, process.log

    assert max(took) < REPLACED_S, took
    assert last.split() == ["void", "libcuda.so.580.4", "device"]
    assert all("libcuda.so." in said and "device" in said for said in made), "what starts has its GPU"
    assert "no CDI specification: cannot generate the CDI specification of the GPUs" in without.stdout
    assert without.returncode == 0
    assert client.refused == 0
    assert "drift found" not in process.log
    assert node.pid_of() == pid
    driver(node, "550.1")
    assert snapshot(node) == files
    assert not node.has("run/cdi")


def _creates(node: Node, made: list[str]) -> bool:
    with suppress(CriError):
        made.append(seen_in_a_container(node))
        return True
    return False


def _until(node: Node, *words: str) -> float:
    """Return after how many seconds the specification has these words; without any, until there is none."""
    began = time.monotonic()
    until(
        lambda: all(word in _specification(node) for word in words) if words else not _specification(node),
        lambda: node.installer("status").stdout,
    )
    return time.monotonic() - began
