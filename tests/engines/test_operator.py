"""The GPU Operator's toolkit DaemonSet as of today: its variables, its mounts, our image in NVIDIA's place."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.engines.cri import NODE, Cri
from tests.engines.inside import CDI, COMMON, CONTAINERD, INSTALL_DIR, LOG, OPERATORS_MOUNTS, PLACES, stop
from tests.engines.live import run_through_us
from tests.engines.nodes import OURS, PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot, starts
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

UNIT = "toolkit-installer-undo"
WOULD_CHANGE = 10
# What the operator's switch to NRI adds: no config of the engine is mounted then.
WITH_NRI = {
    "RUNTIME": "containerd",
    "ENABLE_NRI_PLUGIN": "true",
    "NRI_SOCKET": "/runtime/nri-sock-dir/nri.sock",
}
NRI_PLACE = {"/runtime/nri-sock-dir": "/run/nri"}
# The operator's validator: its sh ignores TERM, and the kubelet kills it.
VALIDATOR = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
VALIDATOR_GOES_S = 36
SPECIFICATION = "run/cdi/management.nvidia.com-gpu.yaml"
COMMAND = (PYTHON, *NVIDIAS)
ONCE = {"RUNTIME": "containerd", "HOST_ROOT_MOUNT": "/", "TOOLKIT_SOURCE_ROOT": ARTIFACTS}
# hostPath volumes of the type DirectoryOrCreate: the kubelet makes them, and leaves them.
KUBELETS = [*OPERATORS_MOUNTS.values(), *PLACES.values(), "/run/nvidia/driver/dev"]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("cdi", [True, False], ids=["CDI, the default", "without CDI"])
def test_a_pod_with_the_operators_variables_serves_and_gives_back(
    containerd_node: Node, cri: Cri, *, cdi: bool
) -> None:
    node = containerd_node
    for path in KUBELETS:
        node.path(path.replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    files, before, log = snapshot(node), served(node), node.root / f"run/podlogs/{LOG}"

    pod = cri.run_pod(name="toolkit", pid=NODE)
    container = cri.start_container(
        pod,
        *COMMAND,
        mounts=OPERATORS_MOUNTS | PLACES,
        pid=NODE,
        log=LOG,
        env=COMMON | CONTAINERD | (CDI if cdi else {}),
        read_only=["/host"],
    )
    until(lambda: "Waiting for signal" in log.read_text(), log.read_text)

    assert node.has("run/nvidia/toolkit/ready")
    assert served(node) == (before[0] | OURS, before[1] if cdi else "nvidia")
    toolkit = node.read(f"{INSTALL_DIR}/toolkit/.config/nvidia-container-runtime/config.toml")
    assert 'root = "/run/nvidia/driver"' in toolkit
    assert f'mode = "{"cdi" if cdi else "auto"}"' in toolkit
    assert f'path = "{INSTALL_DIR}/toolkit/nvidia-container-cli"' in toolkit
    configs = [path.read_text() for path in (node.root / "etc/containerd").rglob("*.toml")]
    assert any("nvidia-container-runtime" in text for text in configs)
    assert not any("/runtime/" in text or "/host/" in text for text in configs), "the host's own paths"
    if cdi:
        said = node.read(SPECIFICATION)
        assert f"path: {INSTALL_DIR}/toolkit/nvidia-cdi-hook\n" in said
        assert "path: /dev/nvidiactl\n              hostPath: /run/nvidia/driver/dev/nvidiactl\n" in said
        assert (node.root / "run/nvidia/driver/dev/nvidia-uvm-tools").is_char_device()
    run_through_us(node)
    stop(cri, container)
    assert cri.container_state(container) == (2, 0), log.read_text()
    assert served(node) == before
    assert not node.has(SPECIFICATION)
    cri.remove_pod(pod)
    assert snapshot(node) == files


def test_without_a_driver_cdi_is_refused_and_nothing_is_changed(containerd_node: Node) -> None:
    node = containerd_node
    files, before = snapshot(node), served(node)

    cdi = {"CDI_ENABLED": "true", "CREATE_DEVICE_NODES": "none"}
    done = node.run(COMMAND, env=ONCE | cdi, check=False)

    assert done.returncode == 1
    assert "generate the CDI specification (no NVIDIA device nodes found)" in done.stderr
    assert (snapshot(node), served(node)) == (files, before)


def _begin(node: Node, name: str, env: dict[str, str], places: dict[str, str]) -> tuple[str, Path]:
    """Start the operator's toolkit pod, and return its container and log once it waits."""
    log = node.root / f"run/podlogs/{name}.log"
    pod = node.cri.run_pod(name=name, pid=NODE)
    container = node.cri.start_container(
        pod,
        *COMMAND,
        mounts=OPERATORS_MOUNTS | places,
        pid=NODE,
        log=log.name,
        env=COMMON | CDI | env,
        read_only=["/host"],
    )
    until(lambda: "Waiting for signal" in log.read_text(), log.read_text)
    return container, log


def _ask(node: Node, container: str, *root: str) -> list[CompletedProcess[str]]:
    """Ask the verbs that change nothing in the toolkit's pod, as kubectl exec does."""
    verbs = (("status",), ("plan", "--json"), ("verify", "--json"), ("doctor", "--json"))
    return [node.cri.exec(container, PYTHON, "-m", "installer", *verb, *root) for verb in verbs]


def _unit_state(node: Node) -> str:
    return node.run(["systemctl", "is-active", UNIT], check=False).stdout.strip()


def _hands_over(node: Node, container: str, log: Path) -> None:
    """Stop the toolkit's pod beside a pod on our runtime, which is no error."""
    stop(node.cri, container)
    assert node.cri.container_state(container) == (2, 0), log.read_text()
    assert "undo handed over" in log.read_text()
    assert '"level": "error"' not in log.read_text()
    assert _unit_state(node) == "active"


@pytest.mark.long
def test_the_operators_ordinary_end_leaves_nothing_on_the_node(containerd_node: Node) -> None:
    """An update with the validator in use, NRI switched on, then toolkit.enabled=false and helm uninstall."""
    node = containerd_node
    # systemd-nspawn gives its node another boot id than the pods there see; on a real node they see the same.
    while node.run(["umount", "/proc/sys/kernel/random/boot_id"], check=False).returncode == 0:
        pass
    for path in (*KUBELETS, "/run/nri"):
        node.path(path.replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    files, before, count = snapshot(node), served(node), starts(node)
    first, log = _begin(node, "toolkit-first", CONTAINERD, PLACES)
    told = {root: _ask(node, first, *root) for root in ((), ("--host-root", "/host"))}
    validator = node.cri.run_pod("nvidia", name="validator")
    validates = node.cri.start_container(validator, *VALIDATOR)

    _hands_over(node, first, log)
    second, log = _begin(node, "toolkit-second", WITH_NRI, NRI_PLACE)
    until(lambda: _unit_state(node) == "inactive", lambda: node.journal(UNIT))

    assert "run, install or uninstall has taken it over" in node.journal(UNIT)
    assert served(node) == (before[0] | OURS, before[1])
    _hands_over(node, second, log)  # toolkit.enabled=false
    pending = node.installer("status")
    node.cri.stop_container(validates, VALIDATOR_GOES_S)  # helm uninstall
    node.cri.remove_pod(validator)
    until(lambda: _unit_state(node) == "inactive", lambda: node.journal(UNIT))

    assert "undo complete" in node.journal(UNIT)
    assert "undo-pending" in pending.stdout
    assert served(node) == before
    assert starts(node) == count + 2, "one restart of the install and one of the undo"
    for name in ("toolkit-first", "toolkit-second"):
        node.path(f"/run/podlogs/{name}.log").unlink()
    assert snapshot(node) == files
    for status, plan, verify, doctor in told.values():
        assert (status.returncode, "ready: yes" in status.stdout) == (0, True), status.stdout
        assert json.loads(plan.stdout)["obstacles"] == []
        assert plan.returncode == WOULD_CHANGE, "an install by our own flags is another one"
        assert verify.returncode == 0, verify.stdout + verify.stderr
        assert json.loads(verify.stdout)
        assert not [each for each in json.loads(doctor.stdout)["checks"] if "does not run" in str(each)]
