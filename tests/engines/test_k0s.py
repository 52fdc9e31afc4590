"""k0s by a stand-in that watches its drop-ins and restarts its containerd as it does, a real one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.conftest import Boot
from tests.engines.cri import Cri
from tests.engines.images import ARCHIVE
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, snapshot
from tests.engines.versions import EngineSet
from tests.support.entry import NVIDIAS

HERE = Path(__file__).parent
SOCKET = "/run/k0s/containerd.sock"
DROP_IN = "/etc/k0s/containerd.d/nvidia.toml"
TOOLKIT = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
OURS = {"nvidia": TOOLKIT, "nvidia-cdi": f"{TOOLKIT}.cdi", "nvidia-legacy": f"{TOOLKIT}.legacy"}
SOURCE = ("--toolkit-source", ARTIFACTS)
MOVED_IN, REMOVED = "0x80 nvidia.toml", "0x200 nvidia.toml"
UNIT = """\
[Service]
Environment=QUIET_S={} RESPAWN_S={}
ExecStart=/usr/bin/python3 /usr/local/bin/k0s worker {}
KillMode=process
Delegate=yes
Restart=always
"""


@dataclass
class K0s:
    """A node that runs it."""

    node: Node

    @property
    def cri(self) -> Cri:
        return Cri(self.node.root / SOCKET.lstrip("/"))

    def handlers(self) -> dict[str, str]:
        """Return the handlers that the running engine serves, and what each starts."""
        runtimes = self.cri.status().runtimes
        return {name: (each.get("options") or {}).get("BinaryName", "") for name, each in runtimes.items()}

    def events(self) -> list[str]:
        """Return what has happened in the directory that it watches."""
        path = self.node.root / "run/k0s/events"
        return path.read_text().splitlines() if path.exists() else []

    def containerd(self) -> int:
        """Return the pid of its containerd."""
        said = self.node.run(["pgrep", "-x", "containerd"], check=False).stdout
        return int(said) if said else 0


Started = Callable[..., AbstractContextManager[K0s]]


@pytest.fixture
def started(booted: Boot, engines_today: list[EngineSet]) -> Started:
    """Return how to boot a node with one."""

    @contextmanager
    def boot(release: str, quiet_s: float, respawn_s: float) -> Iterator[K0s]:
        major = {"1.35": "1.", "1.36": "2."}[release]
        found = [row for row in engines_today if not row.docker and row.containerd.startswith(major)]
        with booted(found[-1], start=False) as node:
            node.write("/usr/local/bin/k0s", (HERE / "fake_k0s.py").read_text())
            merging = "merging" if release == "1.35" else ""
            node.write("/etc/systemd/system/k0sworker.service", UNIT.format(quiet_s, respawn_s, merging))
            node.run(["systemctl", "daemon-reload"])
            node.run(["systemctl", "start", "k0sworker"])
            node.wait_for(SOCKET, ["ls", SOCKET])
            node.run(["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", ARCHIVE])
            made = K0s(node)
            made.cri.wait()
            yield made

    return boot


# k0s waits 3 s for more changes and 5 s with the start: the first wait is its own in one case, the rest shorter.
@pytest.mark.parametrize(
    ("release", "quiet_s", "respawn_s"),
    [pytest.param("1.35", 0.5, 0.5, id="1.35"), pytest.param("1.36", 3, 1, id="1.36")],
)
def test_it_takes_the_drop_in_up_by_itself_and_nothing_else_happens_in_its_directory(
    started: Started, release: str, quiet_s: float, respawn_s: float
) -> None:
    with started(release, quiet_s, respawn_s) as k0s:
        node, files = k0s.node, snapshot(k0s.node)
        unit, before = node.pid_of("k0sworker"), k0s.containerd()

        done = node.installer("install", *SOURCE, check=True)

        assert "is not validated" not in done.stderr
        assert k0s.events() == [MOVED_IN]
        assert k0s.handlers() == {"runc": "", **OURS}
        after = k0s.containerd()
        assert (node.pid_of("k0sworker"), after != before) == (unit, True)
        pod = k0s.cri.run_pod("nvidia", "trainer")
        again = node.installer("install", *SOURCE, check=True)
        assert "nothing changed" in again.stderr
        kept = node.installer("uninstall", "--in-use", "keep")
        assert kept.returncode == 4
        assert "default/trainer (k0s)" in sentence(kept.stderr)
        assert k0s.containerd() == after
        k0s.cri.remove_pod(pod)

        node.installer("uninstall", check=True)

        assert snapshot(node) == files
        assert k0s.events() == [MOVED_IN, REMOVED]
        assert k0s.handlers() == {"runc": ""}
        assert node.pid_of("k0sworker") == unit


def test_an_install_that_is_stopped_while_it_waits_takes_the_drop_in_back_and_sees_the_restart(
    started: Started,
) -> None:
    with started("1.36", 1, 0.2) as k0s:
        node, files, before = k0s.node, snapshot(k0s.node), k0s.containerd()
        first = node.start_installer("install", *SOURCE)
        node.wait_for("nvidia.toml", ["ls", "/etc/k0s/containerd.d"])

        first.terminate()

        assert first.wait() == 1, first.log
        # Both changes are one for k0s: what ran all the time serves what it should, and is restarted yet.
        assert k0s.events() == [MOVED_IN, REMOVED]
        assert k0s.containerd() not in {0, before}
        assert k0s.handlers() == {"runc": ""}
        assert snapshot(node) == files


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_one_that_its_owner_stops_meanwhile_is_left_stopped_and_nothing_of_ours_stays(
    started: Started, verb: str
) -> None:
    with started("1.36", 2, 0.2) as k0s:
        node, files = k0s.node, snapshot(k0s.node)
        if verb == "uninstall":
            node.installer("install", *SOURCE, check=True)
        first = node.start_installer(verb, *(SOURCE if verb == "install" else ()))
        first.wait_for("waiting for the engine to restart itself")

        node.run(["systemctl", "stop", "k0sworker"])

        assert first.wait() == (1 if verb == "install" else 0), first.log
        assert "engine left stopped" in first.log
        assert "by itself" not in first.log.partition("engine left stopped")[2]
        assert snapshot(node) == files
        assert node.show("k0sworker", "ActiveState") == "inactive"


def test_nvidias_variables_for_it_are_understood_and_it_is_undone_while_it_does_not_run(
    started: Started,
) -> None:
    with started("1.36", 0.2, 0.2) as k0s:
        node, files = k0s.node, snapshot(k0s.node)
        # As k0s's own documentation tells the GPU Operator's users.
        told = {"CONTAINERD_CONFIG": DROP_IN, "CONTAINERD_SOCKET": SOCKET, "HOST_ROOT_MOUNT": "/"}
        told |= {"RUNTIME": "containerd", "NO_DAEMON": "true", "TOOLKIT_SOURCE_ROOT": ARTIFACTS}

        node.run([PYTHON, *NVIDIAS], env=told)

        assert k0s.handlers() == {"runc": "", **OURS}
        assert k0s.cri.status().config["containerd"]["defaultRuntimeName"] == "nvidia"
        # A newer k0s does not start with a drop-in that an older one needs: it goes also without one.
        node.run(["systemctl", "stop", "k0sworker"])
        node.installer("uninstall", check=True)
        assert snapshot(node) == files
