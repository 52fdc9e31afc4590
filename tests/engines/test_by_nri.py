"""``run --mode nri`` on a real containerd: devices for pods that ask, and an engine that is never touched."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from tests.engines.by_cdi import GPU, MODE, TELLS, Client, answers, driver
from tests.engines.cri import NODE, Container, CriError, Pod
from tests.engines.doctors import bad, doctor
from tests.engines.inside import GRACE_S, LOG
from tests.engines.nodes import PYTHON, Node, boot
from tests.engines.nri import STATE
from tests.engines.operator import CDI, COMMON, MOUNTS
from tests.engines.roots import Roots
from tests.engines.running import Running
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.engines.versions import EngineSet
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

KIND = GPU.partition("=")[0]
ALLOW = ("--nri-allow", f"default={KIND}")
WISH = {"nvidia.cdi.k8s.io/container.main": GPU}
WORDS = (*MODE[:2], "--mode", "nri", *MODE[4:], *ALLOW)
PIDFILE = "/run/nvidia/toolkit/toolkit.pid"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"  # of the module that nodes seem to have loaded
SPECIFICATION = "/run/cdi/nvidia.com-gpu.json"
SOME = 10
ENGINE_WAITS_S = 5.0
SLEEP = ("/bin/sleep", "100000")
INJECTS = (2, 1)
# What the operator's switch adds (object_controls.go), beside the directory of the socket.
SWITCHED_ON = {
    "RUNTIME": "containerd",
    "ENABLE_NRI_PLUGIN": "true",
    "NRI_SOCKET": "/runtime/nri-sock-dir/nri.sock",
}


def _version(engines: EngineSet) -> tuple[int, ...]:
    return tuple(map(int, engines.containerd.split(".")))


@pytest.fixture(scope="module")
def with_nri(roots: Roots, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot one node with a driver, whose containerd takes CDI devices from a plugin."""
    engines = next(row for row in engines_today if row.docker is None and _version(row) >= INJECTS)
    with boot(roots, engines) as node:
        driver(node, "550.1")
        yield node


@contextmanager
def serving(node: Node, *words: str) -> Iterator[Running]:
    """Run until the plugin is registered, and undo."""
    process = node.start_installer("run", *(words or WORDS))
    try:
        process.wait_for('"event": "NRI plugin registered"')
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0, process.log


def _seen(node: Node, annotations: dict[str, str]) -> str:
    """Return what a container of a pod with annotations says of its GPU."""
    pod = node.cri.run_pod(annotations=annotations)
    try:
        container = node.cri.start(pod, Container(command=SLEEP, name="main"))
        return node.cri.exec(container, "sh", "-c", TELLS).stdout
    finally:
        node.cri.remove_pod(pod)


def test_a_container_that_asks_gets_its_gpu_and_the_engine_is_never_changed_or_unreachable(
    with_nri: Node,
) -> None:
    files, before, pid = snapshot(with_nri), served(with_nri), with_nri.pid_of("containerd")

    with Client(partial(answers, with_nri)) as client, serving(with_nri) as process:
        process.wait_for("waiting for a signal")
        asked, plain = _seen(with_nri, WISH), _seen(with_nri, {})
        until((with_nri.root / "run/nvidia/toolkit/ready").exists, lambda: process.log)
        status, ready = with_nri.installer("status"), with_nri.installer("status", "--ready")
        forbidden = with_nri.cri.run_pod(namespace="kube-system", annotations=WISH)
        with pytest.raises(CriError, match=f"--nri-allow kube-system={KIND}"):
            with_nri.cri.create(forbidden, Container(command=SLEEP, name="main"))
        with_nri.cri.remove_pod(forbidden)
        process.terminate()
        assert process.wait(60) == 0, process.log

    assert client.refused == 0
    assert client.answered > 50
    assert asked.split() == ["void", "libcuda.so.550.1", "device"]
    assert "libcuda.so" not in plain
    assert (status.returncode, ready.returncode) == (0, 0), status.stdout
    assert "takes devices by CDI" in status.stdout
    assert "NRI plugin" in status.stdout
    assert "registered with containerd" in status.stdout
    assert with_nri.pid_of("containerd") == pid
    assert served(with_nri) == before
    assert snapshot(with_nri) == files


def test_a_plugin_that_dies_is_back_and_names_what_was_created_without_it(with_nri: Node) -> None:
    with serving(with_nri) as process:
        first = with_nri.read("/run/nri/toolkit-installer.pid").strip()
        pods = [with_nri.cri.run_pod(name=name, annotations=WISH) for name in ("missed", "later")]
        with_nri.run(["kill", "-KILL", first])
        missed = with_nri.cri.start(pods[0], Container(command=SLEEP, name="main"))
        until(lambda: process.log.count('"event": "NRI plugin registered"') > 1, lambda: process.log)
        later = with_nri.cri.start(pods[1], Container(command=SLEEP, name="main"))
        seen = [with_nri.cri.exec(each, "sh", "-c", TELLS).stdout for each in (missed, later)]
        said, state = with_nri.installer("status").stdout, json.loads(with_nri.read(STATE))
        for pod in pods:
            with_nri.cri.remove_pod(pod)

    assert "plugin started again" in process.log
    assert '"ended": "signal 9"' in process.log
    assert seen[1].split() == ["void", "libcuda.so.550.1", "device"]
    without = "device" not in seen[0]  # it may have been back in time
    assert [each["pod"] for each in state["missed"]] == ["missed"] * without
    assert ("1 containers run without the devices that their pods ask for" in said) is without


def test_a_plugin_that_hangs_is_ended_and_the_next_one_names_what_it_has_missed(with_nri: Node) -> None:
    with serving(with_nri) as process:
        process.wait_for("waiting for a signal")
        pod = with_nri.cri.run_pod(name="missed", annotations=WISH)
        with_nri.run(["kill", "-STOP", with_nri.read("/run/nri/toolkit-installer.pid").strip()])
        hangs, ready = with_nri.installer("status"), with_nri.installer("status", "--ready")
        began = time.monotonic()
        with_nri.cri.start(pod, Container(command=SLEEP, name="main"))
        created_s = time.monotonic() - began
        until(lambda: process.log.count('"event": "NRI plugin registered"') > 1, lambda: process.log)
        said, state = with_nri.installer("status").stdout, json.loads(with_nri.read(STATE))
        with_nri.cri.remove_pod(pod)

    assert "BAD NRI plugin" in hangs.stdout
    assert "hangs (pid " in hangs.stdout
    assert (hangs.returncode, ready.returncode) == (1, 1)
    assert created_s < ENGINE_WAITS_S
    assert '"ended": "killed, for it hung"' in process.log
    assert [each["pod"] for each in state["missed"]] == ["missed"]
    assert "1 containers run without the devices" in said


def test_an_engines_restart_costs_nothing_but_the_gap(with_nri: Node) -> None:
    with serving(with_nri) as process:
        time.sleep(1.2)  # as long as a session must last, for it to be back without a pause
        with_nri.restart("containerd")
        with_nri.cri.wait()
        until(lambda: process.log.count('"event": "NRI plugin registered"') > 1, lambda: process.log)

        assert _seen(with_nri, WISH).split() == ["void", "libcuda.so.550.1", "device"]


def _restarted_while_asked(node: Node, pod: Pod) -> tuple[float, list[str]]:
    """Restart the engine while somebody creates containers; return when it served, and the containers."""
    made, served_s = list[str](), 0.0
    with ThreadPoolExecutor() as pool:
        began = time.monotonic()
        restart = pool.submit(node.restart, "containerd")
        while not (restart.done() and len(made) > SOME):
            with suppress(CriError):
                made.append(node.cri.create(pod, Container(command=SLEEP)))
                served_s = served_s or time.monotonic() - began
            assert time.monotonic() - began < 60, node.journal("containerd")[-2000:]
        restart.result()
    return served_s, made


def test_what_a_killed_pod_leaves_keeps_no_engine_and_no_container_from_starting(with_nri: Node) -> None:
    with_nri.write(LIBRARY, "")
    files = snapshot(with_nri)
    process = with_nri.start_installer("run", *WORDS)
    process.wait_for('"event": "NRI plugin registered"')
    process.wait_for("waiting for a signal")
    well = doctor(with_nri)[1]
    pids = with_nri.read("/run/nri/toolkit-installer.pid").strip(), with_nri.read(PIDFILE).strip()
    with_nri.run(["kill", "-KILL", *reversed(pids)], check=False)
    process.wait(60)
    pod = with_nri.cri.run_pod()

    served_s, made = _restarted_while_asked(with_nri, pod)

    with_nri.cri.remove_pod(pod)
    assert made
    assert served_s < ENGINE_WAITS_S  # for a plugin that never answers
    (with_nri.root / SPECIFICATION.lstrip("/")).unlink()
    wrong, status = bad(doctor(with_nri)[1]), with_nri.installer("status")
    ready = with_nri.installer("status", "--ready")
    done = with_nri.installer("uninstall")
    assert (well["nri-plugin"]["level"], well["cdi-alone"]["level"]) == ("ok", "ok")
    assert (well["runtime-served"]["level"], bad(well)) == ("n/a", {})
    # It ends in good order where the kernel tells it first that its run was killed.
    assert "has ended" in wrong["nri-plugin"]
    assert "BAD NRI plugin" in status.stdout
    assert (status.returncode, ready.returncode) == (1, 1)
    assert "there is no specification of nvidia.com/gpu" in wrong["cdi-alone"]
    assert done.returncode == 0, done.stderr
    assert snapshot(with_nri) == files
    (with_nri.root / LIBRARY.lstrip("/")).unlink()


def test_the_operators_pod_with_its_switch_serves_its_operands_and_gives_back(with_nri: Node) -> None:
    for path in (*MOUNTS.values(), "/run/nvidia/driver/dev"):  # as the kubelet does
        (with_nri.root / path.lstrip("/").replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    files, before, pid = snapshot(with_nri), served(with_nri), with_nri.pid_of("containerd")
    log = with_nri.root / f"run/podlogs/{LOG}"
    wish = {"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}

    with Client(partial(answers, with_nri)) as client:
        pod = with_nri.cri.run_pod(name="toolkit", pid=NODE)
        toolkit = with_nri.cri.start_container(
            pod,
            *(PYTHON, *NVIDIAS),
            mounts=MOUNTS | {"/runtime/nri-sock-dir": "/run/nri"},
            pid=NODE,
            log=LOG,
            env=COMMON | CDI | SWITCHED_ON,
            read_only=["/host"],
        )
        until(lambda: '"event": "NRI plugin registered"' in log.read_text(), log.read_text)
        operand = with_nri.cri.run_pod(name="operand", namespace="gpu-operator", annotations=wish)
        main = with_nri.cri.start(operand, Container(command=SLEEP, name="main"))
        seen = with_nri.cri.exec(main, "sh", "-c", "ls /dev").stdout.split()
        user = with_nri.cri.run_pod(name="user", annotations=wish)
        with pytest.raises(CriError, match="its namespace may not"):
            with_nri.cri.create(user, Container(command=SLEEP, name="main"))
        for each in (operand, user):
            with_nri.cri.remove_pod(each)
        with_nri.cri.stop_container(toolkit, GRACE_S)

    assert "nvidiactl" in seen
    assert with_nri.cri.container_state(toolkit) == (2, 0), log.read_text()
    assert client.refused == 0
    assert with_nri.pid_of("containerd") == pid
    assert served(with_nri) == before
    with_nri.cri.remove_pod(pod)
    assert snapshot(with_nri) == files
