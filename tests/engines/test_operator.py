"""The GPU Operator's toolkit DaemonSet as of today: its variables, its mounts, our image in NVIDIA's place."""

import pytest

from tests.engines.cri import NODE, Cri
from tests.engines.inside import CDI, COMMON, CONTAINERD, INSTALL_DIR, LOG, OPERATORS_MOUNTS, PLACES, stop
from tests.engines.live import run_through_us
from tests.engines.nodes import OURS, PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import served, snapshot
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

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
