"""docs/host.md as written, on a host with Docker: its commands are read from it."""

import pytest

from tests.documents import PROJECT, starting
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS, MARK
from tests.engines.told import served, snapshot

DOCUMENT = "docs/host.md"
UNIT = "toolkit-installer.service"
WOULD_CHANGE = 10


def _typed(*words: str) -> str:
    (command,) = (each for each in starting(*words) if each.document == DOCUMENT)
    return command.text.removeprefix("sudo ")


def _host(node: Node) -> None:
    """Put there what the document has its reader install first."""
    # A copy: the checkout may lie below /tmp, and the unit has one of its own.
    node.run(["mkdir", "/opt/program"])
    node.run(["cp", "-r", f"{PROJECT}/installer", "/opt/program/"])
    environment = "PYTHONPATH=/opt/program PYTHONDONTWRITEBYTECODE=1"
    node.write(
        "/usr/local/bin/toolkit-installer", f'#!/bin/sh\n{environment} exec {PYTHON} -m installer "$@"\n'
    )
    (node.root / "usr/local/bin/toolkit-installer").chmod(0o755)
    node.run(["cp", "-r", ARTIFACTS, "/opt/nvidia-toolkit"])


@pytest.mark.sampled(16)
def test_plan_install_a_container_status_uninstall_and_the_service(docker_node: Node) -> None:
    node = docker_node
    _host(node)
    for root in ("", "/run/nvidia/driver"):  # which doctor would miss
        node.write(f"{root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "")
    node.write("/run/nvidia/driver/sbin/ldconfig", "")
    files, before = snapshot(node), served(node)

    planned = node.run(_typed("toolkit-installer plan").split(), check=False)
    installed = node.run(_typed("toolkit-installer install").split())
    container = _typed("docker run --rm --runtime")
    node.run(container.replace("ubuntu nvidia-smi", f"{IMAGE} true").split())
    for verb in ("status", "verify", "doctor"):
        node.run(_typed(f"toolkit-installer {verb}").split())
    mark = node.read(MARK)
    node.run(_typed("toolkit-installer uninstall").split())

    assert planned.returncode == WOULD_CHANGE
    assert f'"command": "{container}", "event": "next step"' in installed.stderr
    assert "nvidia-container-runtime" in mark, "the container ran on our runtime"
    assert served(node) == before
    assert {path: what for path, what in snapshot(node).items() if path != MARK} == files

    for command in (_typed("cp deploy/systemd"), _typed("systemctl enable")):
        node.run(["sh", "-c", f"cd {PROJECT} && {command}"])
    node.wait_for("ready: yes", ["toolkit-installer", "status"])
    node.run(_typed("systemctl reload").split())
    assert "nothing to do" in node.run(["journalctl", "--output=cat", "--unit", UNIT]).stdout
    node.run(["systemctl", "disable", "--now", UNIT])

    assert served(node) == before


@pytest.mark.sampled(16)
def test_a_container_of_ctr_runs_on_our_runtime(containerd_node: Node) -> None:
    node = containerd_node
    _host(node)
    node.run(_typed("toolkit-installer install").split())

    # The image of the tests is there, in the namespace of CRI.
    command = _typed("ctr run").replace("docker.io/library/ubuntu:24.04", IMAGE).replace("nvidia-smi", "true")
    node.run(command.replace("ctr ", "ctr --namespace k8s.io ", 1).split())

    assert "nvidia-container-runtime" in node.read(MARK), "the container ran on our runtime"
