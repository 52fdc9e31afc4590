"""Nobody without root can stop, mislead or hang us: the same outcome with such a neighbour as without."""

import os
from pathlib import Path

import pytest

from tests.engines import neighbour
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.told import served, snapshot

pytestmark = pytest.mark.any_version

# Of the engine: as it was, after an install, an uninstall, a run and its stop. dockerd is only signalled.
PROCESSES = {"containerd": 5, "docker": 1}
# A mount point may have any bytes, and whoever has fusermount3 makes one.
MOUNT_POINT = os.fsdecode(b"/mnt/a b\\\t\xff\x85\xe2\x80\xa8")
# As in a pod that is given the bus alone.
OVER_THE_BUS = (
    *("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /run/systemd/private && exec "$@"', "sh"),
)


def _changes_nothing(node: Node, *over_the_bus: str) -> None:
    """Install, uninstall, run and stop beside the neighbour."""
    files, before, pids = snapshot(node), served(node), [node.pid_of()]
    program = [*over_the_bus, PYTHON, "-m", "installer"]
    node.path(MOUNT_POINT).mkdir(parents=True)
    node.run(["mount", "-t", "tmpfs", "none", MOUNT_POINT])

    node.write("/run/neighbour.py", Path(neighbour.__file__).read_text())
    beside = node.start([PYTHON, "/run/neighbour.py"])
    beside.wait_for("at work")

    for verb, serves in (("install", before[0] | OURS), ("uninstall", before[0])):
        node.run([*program, verb, *(SOURCE if verb == "install" else ())])
        assert served(node)[0] == serves
        pids.append(node.pid_of())
    process = node.start([*program, "run", *SOURCE])
    process.wait_for("waiting for a signal")
    pids.append(node.pid_of())
    process.terminate()
    assert process.wait() == 0, process.log
    assert served(node) == before
    pids.append(node.pid_of())
    assert beside.running, beside.log
    beside.kill()
    beside.wait()

    assert node.show(node.unit, "NRestarts") == "0"
    assert len({*pids}) == PROCESSES[node.engine]
    assert (snapshot(node), served(node)) == (files, before)


@pytest.mark.sampled(16)
def test_a_neighbour_without_root_changes_nothing(node: Node) -> None:
    _changes_nothing(node)


def test_a_neighbour_on_the_system_bus_changes_nothing(containerd_node: Node) -> None:
    """Those that systemd restarts for us; dockerd is signalled."""
    _changes_nothing(containerd_node, *OVER_THE_BUS)
