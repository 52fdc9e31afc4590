"""GPUs by CDI alone on real engines: nobody is restarted, edited or unreachable, and a stale one is replaced."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.engines.by_cdi import GPU, LIBRARIES, MODE, SPECIFICATION, TELLS, Client, answers, driver
from tests.engines.conftest import Boot
from tests.engines.cri import CriError
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, Node
from tests.engines.running import Running
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, served
from tests.engines.versions import EngineSet
from tests.support.waiting import until

REPLACED_S = 5.0

TITLES = {"docker": "Docker", "containerd": "containerd", "crio": "CRI-O"}


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


@pytest.fixture
def containerd_2(engines_today: list[EngineSet], booted: Boot) -> Iterator[Node]:
    """Boot a node of containerd 2 with a driver."""
    with booted(next(row for row in engines_today if row.name == "containerd" and has_cdi(row))) as node:
        driver(node, "550.1")
        yield node


def unit(node: Node) -> str:
    return f"{node.engine}.service"


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
    process = node.start_installer("run", *MODE, *more)
    process.wait_for("waiting for a signal")
    until(lambda: _ready(node), lambda: node.installer("status").stdout)
    return process


def _ready(node: Node) -> bool:
    return node.installer("status", "--ready").returncode == 0


def _specification(node: Node) -> str:
    path = node.root / SPECIFICATION.lstrip("/")
    return path.read_text() if path.exists() else ""


def test_a_container_gets_its_gpu_and_the_engine_is_never_changed_or_unreachable(with_cdi: Node) -> None:
    node = with_cdi
    files, before, pid = snapshot(node), served(node), node.pid_of(unit(node))

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
    assert node.pid_of(unit(node)) == pid
    assert served(node) == before
    assert snapshot(node) == files
    assert not (node.root / "run/cdi").exists()


def test_auto_takes_cdi_where_it_is_in_effect_and_says_why(with_cdi: Node) -> None:
    auto = (*MODE[:2], "--mode", "auto", *MODE[4:])

    plan = with_cdi.installer("plan", *auto)
    named = with_cdi.installer("plan", *auto, "--set-as-default")

    assert plan.returncode == named.returncode == 10
    assert "! note: mode cdi: every engine has CDI in effect, and no runtime was asked for" in plan.stdout
    assert "restart" not in plan.stdout.replace("nothing is restarted", "")
    assert "nvidia.com-gpu.json" in plan.stdout
    assert "! note: mode runtime: a runtime is asked for by --set-as-default" in named.stdout


def test_an_engine_without_cdi_is_told_so_with_the_version_that_has_it(
    engines_today: list[EngineSet], booted: Boot
) -> None:
    said = {}
    for engines in (row for row in engines_today if not has_cdi(row)):
        with booted(engines) as node:
            driver(node, "550.1")
            files, pid = snapshot(node), node.pid_of(unit(node))

            refused = node.installer("install", *MODE)
            auto = node.installer("plan", *MODE[:2], "--mode", "auto")

            assert refused.returncode == 1
            assert snapshot(node) == files
            assert node.pid_of(unit(node)) == pid
            assert f"! note: mode runtime: {TITLES[node.engine]} takes no devices by CDI" in auto.stdout, (
                auto.stderr
            )
            said[str(engines)] = sentence(refused.stderr)
    assert len(said) == 4
    for name, words in said.items():
        engine, since = (
            ("Docker", "Docker 28.2") if name.startswith("dockerd") else ("containerd", "containerd 2.0")
        )
        why = "it has no CDI" if "-1.6" in name or "-20." in name else "it says that CDI is switched off"
        assert words.startswith(
            f"cannot give containers of {engine} GPUs by CDI ({why}); use --mode runtime; "
        ), said
        assert since in words


def test_a_specification_follows_the_driver_within_seconds_and_goes_with_it(
    containerd_2: Node, record_property: Callable[[str, object], None]
) -> None:
    node = containerd_2
    files, pid = snapshot(node), node.pid_of(unit(node))
    made: list[str] = []
    with Client(partial(answers, node)) as client, Client(partial(_creates, node, made)) as creator:
        process = _running(node)
        took = []
        for version in ("560.2", "570.3"):
            driver(node, version)
            took.append(_replaced_s(node, partial(_names, node, f"libcuda.so.{version}")))
        node.run(["mknod", "-m", "666", "/dev/nvidia1", "c", "1", "3"])
        took.append(_replaced_s(node, partial(_names, node, "/dev/nvidia1")))
        node.run(["rm", "-rf", LIBRARIES])
        took.append(_replaced_s(node, lambda: not _specification(node)))
        without = node.installer("status")
        driver(node, "580.4")
        took.append(_replaced_s(node, partial(_names, node, "libcuda.so.580.4")))
        last = seen_in_a_container(node)
        process.terminate()
        assert process.wait() == 0, process.log
    driver(node, "550.1")

    record_property("replaced within s", took)
    record_property("containers made, refused meanwhile", [creator.answered, creator.refused])
    assert max(took) < REPLACED_S, took
    assert last.split() == ["void", "libcuda.so.580.4", "device"]
    assert all("libcuda.so." in said and "device" in said for said in made), "what starts has its GPU"
    assert "no CDI specification: cannot generate the CDI specification of the GPUs" in without.stdout
    assert without.returncode == 0
    assert client.refused == 0
    assert "drift found" not in process.log
    assert node.pid_of(unit(node)) == pid
    assert snapshot(node) == files
    assert not (node.root / "run/cdi").exists()


def _names(node: Node, word: str) -> bool:
    return word in _specification(node)


def _creates(node: Node, made: list[str]) -> bool:
    with suppress(CriError):
        made.append(seen_in_a_container(node))
        return True
    return False


def _replaced_s(node: Node, done: Callable[[], bool]) -> float:
    """Return after how many seconds a specification was ``done``."""
    began = time.monotonic()
    until(done, lambda: node.installer("status").stdout)
    return time.monotonic() - began


@pytest.mark.parametrize("directory", ["/var/run/cdi", "/etc/cdi"])
def test_a_specification_of_somebody_else_has_its_devices_and_ours_comes_back_after_it(
    containerd_2: Node, directory: str
) -> None:
    node, theirs = containerd_2, f"{directory}/nvidia.yaml".replace("/var/run", "/run")
    text = '---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: "0"\n      containerEdits:\n'
    text += "        env:\n            - NVIDIA_VISIBLE_DEVICES=theirs\n"
    process = _running(node)
    node.write(theirs, text)
    until(lambda: not _specification(node), lambda: node.installer("status").stdout)
    given_way = seen_of(node)
    told = node.installer("status").stdout
    node.run(["rm", theirs])
    until(lambda: bool(_specification(node)), lambda: node.installer("status").stdout)
    back = seen_of(node)
    node.write(f"{theirs.removesuffix('.yaml')}-team.yaml", text.replace('"0"', '"team-a"'))
    looked = node.installer("reconcile")
    beside = seen_of(node), seen_of(node, "nvidia.com/gpu=team-a")
    node.write(theirs, text)
    until(lambda: not _specification(node), lambda: node.installer("status").stdout)
    process.terminate()

    assert process.wait() == 0, process.log
    assert (given_way, back) == ("theirs", "void")
    assert (looked.returncode, beside) == (0, ("void", "theirs")), looked.stdout
    assert f"{theirs} has devices of nvidia.com/gpu" in told
    assert node.read(theirs) == text


def seen_of(node: Node, gpu: str = GPU) -> str:
    """Return what a container was given for NVIDIA_VISIBLE_DEVICES."""
    pod = node.cri.run_pod()
    try:
        container = node.cri.start_container(pod, devices=(gpu,))
        return node.cri.exec(container, "sh", "-c", 'echo "$NVIDIA_VISIBLE_DEVICES"').stdout.strip()
    finally:
        node.cri.remove_pod(pod)


def test_without_a_driver_all_but_the_specification_is_there(containerd_2: Node) -> None:
    node = containerd_2
    node.run(["rm", "-rf", LIBRARIES])
    files = snapshot(node)

    process = _running(node, "--drift", "ignore")  # a driver that comes is no drift
    status = node.installer("status")
    without = _specification(node)
    driver(node, "550.1")
    until(lambda: bool(_specification(node)), lambda: node.installer("status").stdout)
    process.terminate()

    assert process.wait() == 0, process.log
    assert without == ""
    assert "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND" in status.stdout
    assert "no CDI specification of the GPUs: cannot generate" in process.log
    node.run(["rm", "-rf", LIBRARIES])
    assert snapshot(node) == files


def test_a_drivers_root_behind_a_link_loses_no_library(containerd_2: Node) -> None:
    containerd_2.run(["ln", "-s", "driver", "/opt/link"])

    containerd_2.installer("install", *MODE[:5], "/opt/link/", check=True)

    said = json.loads(_specification(containerd_2))
    assert said["containerEdits"]["mounts"][0]["hostPath"] == f"{LIBRARIES}/libcuda.so.550.1"
    assert seen_in_a_container(containerd_2).split() == ["void", "libcuda.so.550.1", "device"]
    containerd_2.installer("uninstall", check=True)


def test_an_engine_with_runtimes_of_ours_is_left_with_them(containerd_2: Node) -> None:
    containerd_2.installer("install", *MODE[:2], check=True)
    files = snapshot(containerd_2)

    refused = containerd_2.installer("install", *MODE)

    assert refused.returncode == 1
    assert sentence(refused.stderr).startswith(
        "cannot use CDI alone for containerd (an earlier install gave it our runtimes); run toolkit-installer "
        "uninstall first"
    )
    assert snapshot(containerd_2) == files
    containerd_2.installer("uninstall", check=True)


def test_runtimes_take_the_place_of_a_specification_where_they_are_asked_for(containerd_2: Node) -> None:
    files, before = snapshot(containerd_2), served(containerd_2)
    containerd_2.installer("install", *MODE, check=True)

    containerd_2.installer("install", *MODE[:2], check=True)
    names, _ = served(containerd_2)
    status = containerd_2.installer("status")
    left = _specification(containerd_2)
    containerd_2.installer("uninstall", check=True)

    assert names >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert left == ""
    assert "takes devices by CDI" not in status.stdout
    assert served(containerd_2) == before
    assert snapshot(containerd_2) == files


def test_a_specification_of_the_device_plugin_that_names_our_hook_keeps_it(containerd_2: Node) -> None:
    theirs = "/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
    hook = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    files = snapshot(containerd_2)
    containerd_2.installer("install", *MODE, check=True)
    edits = {"hooks": [{"hookName": "createContainer", "path": hook}]}
    devices = [{"name": "0", "containerEdits": edits}]
    kind = "k8s.device-plugin.nvidia.com/gpu"
    containerd_2.write(theirs, json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}))

    kept = containerd_2.installer("uninstall")
    said = seen_in_a_container(containerd_2)
    containerd_2.run(["rm", theirs])
    done = containerd_2.installer("uninstall")

    assert kept.returncode == 4
    assert f"({theirs} names {hook})" in sentence(kept.stderr) or theirs in kept.stderr
    assert said.split() == ["void", "libcuda.so.550.1", "device"]
    assert done.returncode == 0, done.stderr
    assert snapshot(containerd_2) == files
    assert not (containerd_2.root / "run/cdi").exists()


@pytest.mark.parametrize(
    "event",
    ["toolkit installed", "toolkit link created", "directory made", "config written", "waiting for a signal"],
)
def test_what_was_killed_is_undone_by_uninstall_wherever_it_was(containerd_2: Node, event: str) -> None:
    files, pid = snapshot(containerd_2), containerd_2.pid_of("containerd")
    process = containerd_2.start_installer("run", *MODE)
    process.wait_for(event)
    process.kill()
    process.wait()

    done = containerd_2.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert snapshot(containerd_2) == files
    assert not (containerd_2.root / "run/cdi").exists()
    assert containerd_2.pid_of("containerd") == pid


IN_BUNDLES = """
import json
from pathlib import Path
from tests.gpu.__main__ import same
from tests.gpu.machine import cannot, installed
lacks = cannot(Path("/opt/gpu"), "pass", Path("/dev/nvidia0"))
with installed(Path("/artifacts"), Path("/opt/gpu"), "/opt/driver") as machine:
    told = [same(machine.ours(), machine.theirs())]
    told += [machine.by_nothing(PROGRAM), machine.by_cdi("0", PROGRAM), machine.by_runtime(PROGRAM)]
print(json.dumps([lacks, *told]))
"""
OF_A_BUNDLE = """
import ctypes, os
library, device = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1", "/dev/nvidia0"
print(os.environ.get("NVIDIA_VISIBLE_DEVICES"), os.path.exists(library), os.path.exists(device) and open(device, "w").write("x"))
"""


def test_the_bundles_of_make_test_gpu_get_a_device_of_a_stand_in_specification(containerd_2: Node) -> None:
    node = containerd_2
    files = snapshot(node)
    node.run(["mkdir", "/opt/gpu"])
    node.forget_marks()

    done = node.run([PYTHON, "-c", f"PROGRAM = {OF_A_BUNDLE!r}\n{IN_BUNDLES}"])

    lacks, same, nothing, by_cdi, by_runtime = json.loads(done.stdout)
    assert lacks == ""
    assert same == "2 devices, 5 edits"
    assert nothing == "None False False\n"
    assert by_cdi == "void True 1\n"
    assert by_runtime == "all False False\n", "the stand-in hands nothing over"
    marks = [mark.split()[0] for mark in node.marks()]
    assert {"nvidia-cdi-hook", "nvidia-container-runtime"} <= {mark.removesuffix(".real") for mark in marks}
    node.run(["rmdir", "/opt/gpu"])
    assert snapshot(node) == files
