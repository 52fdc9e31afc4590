"""``run --mode nri`` on a real containerd: devices for pods that ask, and an engine that is never touched."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from tests.engines.by_cdi import GPU, MODE, Client, answers, driver
from tests.engines.cri import NODE, Container, CriError, Pod
from tests.engines.inside import CDI, COMMON, GRACE_S, LOG, OPERATORS_MOUNTS
from tests.engines.nodes import PYTHON, Node, boot
from tests.engines.roots import Roots
from tests.engines.told import bad, doctor, served, snapshot
from tests.engines.versions import EngineSet
from tests.support.entry import NVIDIAS
from tests.support.waiting import PATIENCE_S, until

KIND = GPU.partition("=")[0]
ALLOW = ("--nri-allow", f"default={KIND}")
WORDS = (*MODE[:2], "--mode", "nri", *MODE[4:], *ALLOW)
PIDFILE = "/run/nvidia/toolkit/toolkit.pid"
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


@pytest.fixture(scope="module")
def with_nri(roots: Roots, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot one node with a driver, whose containerd takes CDI devices from a plugin."""
    versions = {
        row: tuple(map(int, row.containerd.split("."))) for row in engines_today if row.docker is None
    }
    engines = next(row for row, version in versions.items() if version >= INJECTS)
    with boot(roots, engines) as node:
        driver(node, "550.1")
        yield node


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
            assert time.monotonic() - began < PATIENCE_S, node.journal("containerd")[-2000:]
        restart.result()
    return served_s, made


def test_what_a_killed_pod_leaves_keeps_no_engine_and_no_container_from_starting(with_nri: Node) -> None:
    files = snapshot(with_nri)
    process = with_nri.start_installer("run", *WORDS)
    process.wait_for('"event": "NRI plugin registered"')
    process.wait_for("waiting for a signal")
    pids = with_nri.read("/run/nri/toolkit-installer.pid").strip(), with_nri.read(PIDFILE).strip()
    with_nri.run(["kill", "-KILL", *reversed(pids)], check=False)
    process.wait()
    pod = with_nri.cri.run_pod()

    served_s, made = _restarted_while_asked(with_nri, pod)

    with_nri.cri.remove_pod(pod)
    assert made
    assert served_s < ENGINE_WAITS_S  # for a plugin that never answers
    wrong, status = bad(doctor(with_nri)[1]), with_nri.installer("status", "--ready")
    with_nri.installer("uninstall", check=True)
    # It ends in good order where the kernel tells it first that its run was killed.
    assert "has ended" in wrong["nri-plugin"]
    assert status.returncode == 1
    assert snapshot(with_nri) == files


def test_the_operators_pod_with_its_switch_serves_its_operands_and_gives_back(with_nri: Node) -> None:
    for path in (*OPERATORS_MOUNTS.values(), "/run/nvidia/driver/dev"):  # as the kubelet does
        (with_nri.root / path.lstrip("/").replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    files, before, pid = snapshot(with_nri), served(with_nri), with_nri.pid_of("containerd")
    log = with_nri.root / f"run/podlogs/{LOG}"
    wish = {"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}

    with Client(partial(answers, with_nri)) as client:
        pod = with_nri.cri.run_pod(name="toolkit", pid=NODE)
        toolkit = with_nri.cri.start_container(
            pod,
            *(PYTHON, *NVIDIAS),
            mounts=OPERATORS_MOUNTS | {"/runtime/nri-sock-dir": "/run/nri"},
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
