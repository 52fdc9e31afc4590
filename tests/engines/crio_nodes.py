"""Nodes with a fake CRI-O under a real systemd, and the acts of its owner."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import Boot
from tests.engines.nodes import PYTHON, SOURCE, Node
from tests.engines.told import snapshot
from tests.engines.versions import EngineSet

ASKED = ("--runtime", "crio", *SOURCE)
STATE = "/run/containers/storage/overlay-containers"
DROP_INS = "/etc/crio/crio.conf.d"
CONF = '# Written by the bootstrap of the machine.\n[crio.runtime]\ndefault_runtime = "crun"\n'
HERE = Path(__file__).parent
RECORDED = {
    "default.toml": "config.toml",
    "reloaded.toml": "config-reloaded.toml",
    "exec.json": "exec-in-flight.json",
}
# A conmon that ends when it is told to, or in the end; its name is what it was started by.
PROGRAMS = {"crun": "", "runc": "", "conmon": "sleep 20\n", "pinns": ""}
# What a start looks for that no config names (engine-facts.md#crio-conmon).
IN_PATH = ("crun", "conmon", "pinns")
# As cri-o's contrib/systemd/crio.service, but for the program; @ gives it the name that a real one has.
UNIT = f"""\
[Service]
Type=notify
Environment=PYTHONHOME=/usr
ExecStart=@{PYTHON} crio /run/fake/crio.py $CRIO_RUNTIME_OPTIONS
ExecReload=/bin/kill -s HUP $MAINPID
Restart=on-failure
RestartSec=10
"""
# A container of its own: /host and the capabilities as in our manifests, its own processes, mounts and /proc.
CONTAINER = """
mount --make-rprivate / && mkdir -p /run/container && mount -t tmpfs none /run/container &&
mkdir /run/container/host && mount --rbind / /run/container/host && mount -t proc proc /proc &&
exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+sys_chroot --inh-caps=-all \
    /usr/bin/python3 -m installer "$@"
"""
OWNERS = f"{DROP_INS}/50-owner.conf"


@pytest.fixture(scope="module")
def crio_node(booted: Boot, engines_today: list[EngineSet]) -> Iterator[Node]:
    """Boot a node with the fake CRI-O and no other engine."""
    with booted(next(engines for engines in engines_today if not engines.docker), start=False) as node:
        node.write("/run/fake/crio.py", (HERE / "fake_crio.py").read_text())
        for name, recorded in RECORDED.items():
            node.write(f"/run/fake/{name}", (HERE / "crio" / recorded).read_text())
        node.write("/etc/crio/crio.conf", CONF)
        for name, text in PROGRAMS.items():
            node.write(f"/usr/libexec/crio/{name}", f"#!/bin/sh\n{text}")
            node.run(["chmod", "755", f"/usr/libexec/crio/{name}"])
        for name in IN_PATH:
            node.run(["ln", "-s", f"/usr/libexec/crio/{name}", f"/usr/bin/{name}"])
        node.run(["mkdir", "-p", DROP_INS, STATE, "/etc/cdi", "/usr/share/containers/oci/hooks.d"])
        node.write("/run/systemd/system/crio.service", UNIT)
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "start", "crio"])
        yield node


@pytest.fixture
def crio(crio_node: Node) -> Iterator[Node]:
    """Return the node of the fake CRI-O, as it was; a test may leave nothing behind."""
    files = snapshot(crio_node)
    yield crio_node
    crio_node.run(["rm", "-rf", STATE])
    crio_node.installer("uninstall", check=True)
    assert snapshot(crio_node) == files
    assert crio_node.show("crio", "ActiveState") == "active"
    # A reload makes CRI-O tell less than a start does (engine-facts.md#crio-reload): the next test begins with a start.
    crio_node.restart("crio")


UNIT_DROP_IN = "/run/systemd/system/crio.service.d/owner.conf"
# What a real 1.37.0 dies of at its next start (crio/starts.json), and what is said of it.
DEADLY = {
    "CONTAINER_CONMON": (
        "Environment=CONTAINER_CONMON=/usr/bin/none",
        "the monitor_path of crun, /usr/bin/none, is no program (its unit sets CONTAINER_CONMON)",
    ),
    "--conmon": (
        'Environment="CRIO_RUNTIME_OPTIONS=--conmon /usr/bin/none"',
        "the monitor_path of crun, /usr/bin/none, is no program (its unit sets --conmon)",
    ),
    "CONTAINER_CGROUP_MANAGER": (
        "Environment=CONTAINER_CGROUP_MANAGER=bogus",
        "its cgroup_manager bogus is neither systemd nor cgroupfs (its unit sets CONTAINER_CGROUP_MANAGER)",
    ),
    "CONTAINER_RUNTIMES": (
        "Environment=CONTAINER_RUNTIMES=other:/none:/run/other CONTAINER_DEFAULT_RUNTIME=other",
        "the runtime_path of other, /none, is no program (its unit sets CONTAINER_RUNTIMES)",
    ),
    "a drop-in": (
        '[crio.runtime]\ncgroup_manager = "bogus"\n',
        f"its cgroup_manager bogus is neither systemd nor cgroupfs (in {OWNERS})",
    ),
}


def write_unit(node: Node, text: str) -> None:
    """Give the unit of CRI-O a drop-in of its owner's, which systemd reads; CRI-O is not restarted."""
    node.write(UNIT_DROP_IN, f"[Service]\n{text}\n")
    node.run(["systemctl", "daemon-reload"])


@pytest.fixture
def owned(crio: Node) -> Iterator[Node]:
    """Return the node; what its owner has written to the unit and to a drop-in is gone afterwards."""
    yield crio
    crio.run(["rm", "-rf", str(UNIT_DROP_IN), OWNERS])
    crio.run(["systemctl", "daemon-reload"])
    crio.run(["systemctl", "reset-failed", "crio"], check=False)
    crio.restart("crio")
