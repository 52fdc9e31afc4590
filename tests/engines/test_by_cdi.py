"""GPUs by CDI alone on real engines: nobody is restarted, edited or unreachable, and a stale one is replaced."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.engines.by_cdi import GPU, LIBRARIES, MODE, SPECIFICATION, TELLS, Client, answers, driver
from tests.engines.conftest import Boot
from tests.engines.cri import CriError
from tests.engines.images import IMAGE
from tests.engines.nodes import Node, Running
from tests.engines.told import sentence, served, snapshot
from tests.engines.versions import EngineSet
from tests.support.waiting import until

REPLACED_S = 10.0  # a look takes two; the rest is for a busy machine


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


@pytest.fixture(scope="module")
def module_node(engines_today: list[EngineSet], booted: Boot) -> Iterator[Node]:
    """Boot a node of containerd 2."""
    with booted(next(row for row in engines_today if row.name == "containerd" and has_cdi(row))) as node:
        yield node


@pytest.fixture
def containerd_2(module_node: Node) -> Iterator[Node]:
    """Return that node with a driver; a test leaves nothing behind."""
    driver(module_node, "550.1")
    files = snapshot(module_node)
    yield module_node
    driver(module_node, "550.1")
    assert snapshot(module_node) == files
    assert not (module_node.root / "run/cdi").exists()


def seen_in_a_container(node: Node, device: str = GPU) -> str:
    """Return what a container that asks for a device by its CDI name says of it."""
    if node.engine == "docker":
        words = ["docker", "run", "--rm", "--net", "none", "--device", device, IMAGE, "sh", "-c", TELLS]
        return node.run(words).stdout
    pod = node.cri.run_pod()
    try:
        container = node.cri.start_container(pod, devices=(device,))
        return node.cri.exec(container, "sh", "-c", TELLS).stdout
    finally:
        node.cri.remove_pod(pod)


def _running(node: Node, *more: str) -> Running:
    process = node.start_run(*MODE, *more)
    until(node.is_ready, lambda: node.installer("status").stdout)
    return process


def _specification(node: Node) -> str:
    path = node.root / SPECIFICATION.lstrip("/")
    return path.read_text() if path.exists() else ""


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
    assert not (node.root / "run/cdi").exists()


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
@pytest.mark.parametrize("since", ["Docker 28.2", "containerd 2.0"])
def test_an_engine_without_cdi_is_told_so_with_the_version_that_has_it(
    engines_today: list[EngineSet], booted: Boot, suite: str, since: str
) -> None:
    title = since.split(maxsplit=1)[0]
    name = title.lower()
    engines = next(row for row in engines_today if (row.suite, row.name) == (suite, name))
    assert not has_cdi(engines)
    with booted(engines) as node:
        driver(node, "550.1")
        files, pid = snapshot(node), node.pid_of()

        refused = sentence(node.installer("install", *MODE).stderr)
        auto = node.installer("plan", *MODE[:2], "--mode", "auto")

        assert snapshot(node) == files
        assert node.pid_of() == pid
        assert f"! note: mode runtime: {title} takes no devices by CDI" in auto.stdout, auto.stderr
        why = "it has no CDI" if suite == "bookworm" else "it says that CDI is switched off"
        assert refused.startswith(
            f"cannot give containers of {title} GPUs by CDI ({why}); use --mode runtime; "
        )
        assert since in refused


def test_a_specification_follows_the_driver_within_seconds_and_goes_with_it(containerd_2: Node) -> None:
    node = containerd_2
    pid, made = node.pid_of(), list[str]()
    with Client(partial(answers, node)) as client, Client(partial(_creates, node, made)):
        process = _running(node)
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


def test_a_specification_of_somebody_else_has_its_devices_and_ours_comes_back_after_it(
    containerd_2: Node,
) -> None:
    node, theirs = containerd_2, "/etc/cdi/nvidia.yaml"
    text = '---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "0"\n      containerEdits:\n'
    text += "        env:\n            - NVIDIA_VISIBLE_DEVICES=theirs\n"
    node.run(["rm", "-rf", LIBRARIES])
    process = _running(node, "--drift", "ignore")  # neither a driver that comes nor theirs is drift
    without, status = _specification(node), node.installer("status")
    driver(node, "550.1")
    _until(node, GPU.partition("=")[0])
    node.write(theirs, text)
    _until(node)
    given_way = seen_of(node)
    told = node.installer("status").stdout
    node.run(["rm", theirs])
    _until(node, GPU.partition("=")[0])
    back = seen_of(node)
    node.write(theirs, text.replace('"0"', '"team-a"'))
    looked = node.installer("reconcile")
    beside = seen_of(node), seen_of(node, "nvidia.com/gpu=team-a")
    process.terminate()

    assert process.wait() == 0, process.log
    assert without == ""
    assert "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND" in status.stdout
    assert "no CDI specification of the GPUs: cannot generate" in process.log
    assert (given_way, back) == ("theirs", "void")
    assert f"{theirs} has devices of nvidia.com/gpu" in told
    assert (looked.returncode, beside) == (0, ("void", "theirs")), looked.stdout
    node.run(["rm", "-r", "/etc/cdi"])


def seen_of(node: Node, device: str = GPU) -> str:
    """Return what a container was given for NVIDIA_VISIBLE_DEVICES."""
    return seen_in_a_container(node, device).split()[0]


def test_a_drivers_root_behind_a_link_loses_no_library(containerd_2: Node) -> None:
    containerd_2.run(["ln", "-s", "driver", "/opt/link"])

    containerd_2.installer("install", *MODE[:5], "/opt/link/", check=True)

    said = json.loads(_specification(containerd_2))
    assert said["containerEdits"]["mounts"][0]["hostPath"] == f"{LIBRARIES}/libcuda.so.550.1"
    assert seen_in_a_container(containerd_2).split() == ["void", "libcuda.so.550.1", "device"]
    containerd_2.installer("uninstall", check=True)
    containerd_2.run(["rm", "/opt/link"])
