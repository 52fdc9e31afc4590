"""doctor on real nodes: nothing bad on a good one, and from a pod the same as on the host."""

import json
from typing import Any

import pytest

from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.inside import MOUNTS
from tests.engines.nodes import PYTHON, SOURCE, Node
from tests.engines.told import bad, doctor, snapshot, warned

pytestmark = pytest.mark.any_version


def give_driver(node: Node) -> None:
    """Add the libraries to the module that nodes seem to have loaded."""
    for root in ("", "/run/nvidia/driver"):
        node.write(f"{root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "")
    node.write("/run/nvidia/driver/sbin/ldconfig", "")


@pytest.mark.sampled(16)
def test_nothing_is_bad_on_a_good_node_and_nothing_is_changed(node: Node) -> None:
    give_driver(node)
    before, pid = snapshot(node, times=True), node.pid_of(node.engine)

    code, checks = doctor(node)

    assert (snapshot(node, times=True), node.pid_of(node.engine)) == (before, pid)
    node.installer("install", *SOURCE, check=True)
    if node.engine == "docker":
        node.run(["docker", "run", "--detach", "--net", "none", "--name", "sleeper", IMAGE])
    else:
        node.cri.start_container(node.cri.run_pod())

    installed, served = doctor(node)

    assert (code, bad(checks), warned(checks)) == (0, {}, {})
    assert (installed, bad(served), warned(served)) == (0, {}, {})
    assert node.containerd_version in served["holes-containerd"]["found"]
    assert served["shim-nil-pointer"]["found"] == f"1 shim, of {node.containerd_version}"
    assert served["runtime-served"]["level"] == "ok"


MANIFESTS: dict[str, Any] = {
    "capabilities": ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SYS_CHROOT"),
    "confined": True,
    "apparmor": False,
}


def test_from_a_pod_it_finds_the_same_as_on_the_host_or_says_what_it_cannot_see(
    containerd_node: Node, cri: Cri
) -> None:
    give_driver(containerd_node)
    containerd_node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod(name="toolkit")
    container = cri.start_container(pod, mounts=MOUNTS, **MANIFESTS)

    installer = (PYTHON, "-m", "installer")
    done = cri.exec(container, *installer, "doctor", "--json", "--host-root", "/host")
    proven = cri.exec(container, *installer, "verify", "--host-root", "/host")

    assert done.stdout, done.stderr
    assert proven.returncode == 0, proven.stdout
    here = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    there = doctor(containerd_node)[1]
    differ = [each for name, each in here.items() if each["level"] != there[name]["level"]]
    assert {each["level"] for each in differ} <= {"n/a"}, differ
    assert (here["engine-answers"]["level"], here["runtime-served"]["level"]) == ("ok", "ok")
    cri.remove_pod(pod)
