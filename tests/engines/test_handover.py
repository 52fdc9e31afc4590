"""An undo that outlives its process: a unit of the host waits for containers on our runtime, and finishes it."""

import time

import pytest

from tests.engines.cri import Cri
from tests.engines.inside import GRACE_S, LOG, MOUNTS, stop
from tests.engines.live import start
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import served, snapshot, starts
from tests.support.waiting import until

UNIT = "toolkit-installer-undo"
RUN = (PYTHON, "-m", "installer", "run", "--host-root", "/host", *SOURCE)
CONFIDED = "kept-out-of-the-unit"


def begin(node: Node, cri: Cri, *more: str) -> tuple[str, str]:
    """Start ``run`` in a pod of the engine that it restarts; return the container and the file of its log."""
    log = node.root / f"run/podlogs/{LOG}"
    log.unlink(missing_ok=True)
    pod = cri.run_pod(name="toolkit")
    container = cri.start_container(pod, *RUN, *more, mounts=MOUNTS, log=LOG, env={"API_KEY": CONFIDED})
    until(lambda: "waiting for a signal" in log.read_text(), log.read_text)
    return container, log.read_text()


def finished(node: Node) -> bool:
    return node.run(["systemctl", "is-active", UNIT], check=False).stdout.strip() == "inactive"


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
