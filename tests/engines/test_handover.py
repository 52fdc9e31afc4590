"""An undo that outlives its process: a unit of the host waits for containers on our runtime, and finishes it."""

import re
import time
from pathlib import Path

import pytest

from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.inside import GRACE_S, LOG, MOUNTS, stop
from tests.engines.live import run_through_us, start
from tests.engines.node.kubelet import on_disk
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import sentence, served, snapshot, starts
from tests.support.waiting import until

UNIT = "toolkit-installer-undo"
DOCKER_RUN = ("docker", "run", "--detach", "--name", "toolkit", "--read-only", "--net", "none")
RUN = (PYTHON, "-m", "installer", "run", "--host-root", "/host", *SOURCE)
TEXTFILE = "/var/lib/node_exporter/toolkit-installer.prom"
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/toolkit-installer"
MOST_KB = 80_000  # of the 128 MiB that the unit has
CONFIDED = "kept-out-of-the-unit"


def begin(node: Node, cri: Cri, *more: str) -> tuple[str, str]:
    """Start ``run`` in a pod of the engine that it restarts; return the container and the file of its log."""
    log = node.root / f"run/podlogs/{LOG}"
    log.unlink(missing_ok=True)
    pod = cri.run_pod(name="toolkit")
    container = cri.start_container(pod, *RUN, *more, mounts=MOUNTS, log=LOG, env={"API_KEY": CONFIDED})
    until(lambda: "waiting for a signal" in log.read_text(), log.read_text)
    return container, log.read_text()


def failed(node: Node) -> bool:
    return UNIT in node.run(["systemctl", "--failed", "--plain", "--no-legend"]).stdout


def finished(node: Node) -> bool:
    return node.run(["systemctl", "is-active", UNIT], check=False).stdout.strip() == "inactive"


@pytest.mark.long
@pytest.mark.any_version
def test_an_undo_that_waits_for_a_container_is_handed_to_the_host_and_finishes_there(
    containerd_node: Node, cri: Cri
) -> None:
    node = containerd_node
    files, before, count = snapshot(node), served(node), starts(node)
    container, _ = begin(node, cri, "--set-as-default")
    live = start(node)

    began = time.monotonic()
    stop(cri, container)
    took_s = time.monotonic() - began

    log = (node.root / f"run/podlogs/{LOG}").read_text()
    assert cri.container_state(container) == (2, 4), log
    assert took_s < GRACE_S
    assert '"event": "undo handed over"' in log
    assert '"level": "error"' not in log
    assert served(node) == (before[0] | OURS, before[1]), "handlers stay, the default is gone"
    assert live.exec() == "alive\n"
    words = node.run(["systemctl", "show", UNIT]).stdout
    pid = node.pid_of(UNIT)
    environment = (node.root / f"proc/{pid}/environ").read_text()
    assert CONFIDED not in words + environment
    assert "MemoryMax=134217728" in words
    assert (
        node.run(["readlink", f"/proc/{pid}/ns/mnt"]).stdout
        == node.run(["readlink", "/proc/1/ns/mnt"]).stdout
    )
    peak = re.search(r"VmHWM:\s+(\d+) kB", node.read(f"/proc/{pid}/status"))
    assert peak
    assert int(peak[1]) < MOST_KB
    status = node.installer("status")
    assert "undo-pending" in status.stdout, status.stdout
    again = node.installer("uninstall")
    assert again.returncode == 4, again.stderr
    assert node.pid_of(UNIT) == pid, "a unit that waits already is success"
    live.end()
    until(lambda: finished(node), lambda: node.journal(UNIT))

    assert time.monotonic() - began > 60
    assert "undo complete" in node.journal(UNIT)
    assert (snapshot(node), served(node)) == (files, before)
    assert starts(node) == count + 3


@pytest.mark.any_version
def test_an_undo_whose_unit_is_lost_is_told_everywhere_and_finished_by_the_next_uninstall(
    containerd_node: Node,
) -> None:
    node = containerd_node
    node.run(["mkdir", "-p", str(Path(TEXTFILE).parent), str(Path(FEATURES).parent)])
    files, before = snapshot(node), served(node)
    published = ("--metrics-textfile", TEXTFILE, "--nfd-features", FEATURES)
    node.installer("install", *SOURCE, *published, check=True)
    live = start(node)
    kept = node.installer("uninstall", *published)
    node.run(["systemctl", "kill", "--signal", "KILL", UNIT])
    until(lambda: failed(node))
    again = node.installer("uninstall", *published)
    waits = not failed(node) and not finished(node)

    node.reboot()  # it loses its power
    node.cri.wait()

    assert finished(node)
    status = node.installer("status")
    assert "undo-pending" in status.stdout
    assert "run uninstall, or the uninstall Job" in status.stdout
    assert "toolkit_installer_undo_pending 1.0" in node.read(TEXTFILE)
    assert "node.kubernetes.io/undo-pending=true" in node.read(FEATURES)
    assert served(node) == (before[0] | OURS, before[1])
    run_through_us(node)
    assert (kept.returncode, again.returncode, waits) == (4, 4, True), again.stderr
    assert f"{live.name} (" in sentence(kept.stderr)
    assert f"{UNIT}.service finishes that" in sentence(kept.stderr)
    node.installer("uninstall", *published, check=True)
    assert served(node) == before
    assert on_disk(snapshot(node)) == on_disk(files)


@pytest.mark.long
@pytest.mark.any_version
def test_a_container_of_dockers_hands_its_undo_over_too(docker_node: Node) -> None:
    node = docker_node
    files, before = snapshot(node), served(node)
    mounts = [word for here, there in MOUNTS.items() for word in ("--volume", f"{there}:{here}")]
    node.run([*DOCKER_RUN, *mounts, IMAGE, *RUN, "--set-as-default"])
    until((node.root / "run/nvidia/toolkit/ready").exists)
    live = start(node)

    node.run(["docker", "stop", "--time", str(GRACE_S), "toolkit"])

    ended = node.run(["docker", "inspect", "--format", "{{.State.ExitCode}}", "toolkit"]).stdout.strip()
    log = node.run(["docker", "logs", "toolkit"]).stderr
    node.run(["docker", "rm", "toolkit"])
    assert ended == "4", log
    assert served(node) == (before[0] | OURS, before[1])
    assert live.exec() == "alive\n"
    live.end()
    until(lambda: finished(node), lambda: node.journal(UNIT))
    assert "undo complete" in node.journal(UNIT)
    assert (snapshot(node), served(node)) == (files, before)
