"""The GPU Operator's toolkit DaemonSet as of today: its variables, its mounts, our image in NVIDIA's place."""

import json
from collections.abc import Callable

import pytest

from tests.engines.cri import NODE, Cri
from tests.engines.images import IMAGE
from tests.engines.inside import GRACE_S, LOG, OURS, stop
from tests.engines.live import start
from tests.engines.nodes import PYTHON, Node
from tests.engines.operator import CDI, COMMON, ENGINES, INSTALL_DIR, MOUNTS, PLACES
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import served
from tests.support.entry import NVIDIAS
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

SPECIFICATION = "run/cdi/management.nvidia.com-gpu.yaml"
COMMAND = (PYTHON, *NVIDIAS)
# hostPath volumes of the type DirectoryOrCreate: the kubelet makes them, and leaves them.
KUBELETS = [*MOUNTS.values(), *PLACES["containerd"].values(), "/etc/docker", "/run/nvidia/driver/dev"]


def _kubelet(node: Node) -> dict[str, str]:
    """Make what the kubelet makes; return what the node then is."""
    for path in KUBELETS:
        (node.root / path.lstrip("/").replace("var/run", "run")).mkdir(parents=True, exist_ok=True)
    return snapshot(node)


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI, the default", "without CDI"])
def test_a_pod_with_the_operators_variables_serves_and_gives_back(
    containerd_node: Node, cri: Cri, *, cdi: bool
) -> None:
    node = containerd_node
    files, before = _kubelet(node), served(node)
    environment = COMMON | ENGINES["containerd"] | (CDI if cdi else {})
    log, ready = node.root / f"run/podlogs/{LOG}", node.root / "run/nvidia/toolkit/ready"

    pod = cri.run_pod(name="toolkit", pid=NODE)
    container = cri.start_container(
        pod,
        *COMMAND,
        mounts=MOUNTS | PLACES["containerd"],
        pid=NODE,
        log=LOG,
        env=environment,
        read_only=["/host"],
    )
    until(lambda: "Waiting for signal" in log.read_text(), log.read_text)

    assert ready.exists()
    assert served(node) == (before[0] | OURS, before[1] if cdi else "nvidia")
    toolkit = (
        node.root / f"{INSTALL_DIR[1:]}/toolkit/.config/nvidia-container-runtime/config.toml"
    ).read_text()
    assert 'root = "/run/nvidia/driver"' in toolkit
    assert f'mode = "{"cdi" if cdi else "auto"}"' in toolkit
    assert f'path = "{INSTALL_DIR}/toolkit/nvidia-container-cli"' in toolkit
    configs = [path.read_text() for path in (node.root / "etc/containerd").rglob("*.toml")]
    assert any("nvidia-container-runtime" in text for text in configs)
    assert not any("/runtime/" in text or "/host/" in text for text in configs), "the host's own paths"
    if cdi:
        said = (node.root / SPECIFICATION).read_text()
        assert f"path: {INSTALL_DIR}/toolkit/nvidia-cdi-hook\n" in said
        assert "path: /dev/nvidiactl\n              hostPath: /run/nvidia/driver/dev/nvidiactl\n" in said
        assert (node.root / "run/nvidia/driver/dev/nvidia-uvm-tools").is_char_device()
    live = start(node)
    assert live.exec() == "alive\n"
    live.stop()
    live.remove()
    stop(cri, container)
    assert cri.container_state(container) == (2, 0), log.read_text()
    assert served(node) == before
    assert not (node.root / SPECIFICATION).exists()
    cri.remove_pod(pod)
    assert snapshot(node) == files


@pytest.mark.parametrize("cdi", [True, False], ids=["CDI, the default", "without CDI"])
def test_a_container_of_docker_with_the_operators_variables(docker_node: Node, *, cdi: bool) -> None:
    node = docker_node
    files, before = _kubelet(node), served(node)
    environment = COMMON | ENGINES["docker"] | (CDI if cdi else {})
    mounts = [
        word
        for here, there in (MOUNTS | PLACES["docker"]).items()
        for word in ("--volume", f"{there}:{here}{':ro' if here == '/host' else ''}")
    ]
    variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    command = ["docker", "run", "--detach", "--name", "toolkit", "--net", "none", "--pid", "host"]

    node.run([*command, *mounts, *variables, IMAGE, *COMMAND])
    until(
        (node.root / "run/nvidia/toolkit/ready").exists,
        lambda: node.run(["docker", "logs", "toolkit"]).stderr,
    )

    assert served(node) == (before[0] | OURS, before[1] if cdi else "nvidia")
    written = json.loads(node.read("/etc/docker/daemon.json"))
    assert written.get("features", {}).get("cdi", False) is cdi
    assert (node.root / SPECIFICATION).exists() is cdi
    node.run(["docker", "stop", "--time", str(GRACE_S), "toolkit"])
    code = node.run(["docker", "inspect", "--format", "{{.State.ExitCode}}", "toolkit"]).stdout
    assert code == "0\n", node.run(["docker", "logs", "toolkit"]).stderr
    assert served(node) == before
    assert snapshot(node) == files


def test_without_a_driver_cdi_is_refused_and_nothing_is_changed(containerd_node: Node) -> None:
    node = containerd_node
    files, before = snapshot(node), served(node)
    environment = {
        "RUNTIME": "containerd",
        "HOST_ROOT_MOUNT": "/",
        "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
        "CDI_ENABLED": "true",
        "CREATE_DEVICE_NODES": "none",
    }

    done = node.run([*COMMAND], env=environment, check=False)

    assert done.returncode == 1
    assert "generate the CDI specification (no NVIDIA device nodes found)" in done.stderr
    assert snapshot(node) == files
    assert served(node) == before


def _refuses(node: Node) -> None:
    text = node.read("/etc/containerd/config.toml")
    node.write("/etc/containerd/config.toml", text.replace("oom_score = 0", 'oom_score = "not yet"'))


def _is_read_only(node: Node) -> None:
    node.run(["mount", "--bind", "/etc/containerd", "/etc/containerd"])
    node.run(["mount", "-o", "remount,ro,bind", "/etc/containerd"])


def _is_full(node: Node) -> None:
    words = (
        "cp -a /etc/containerd /run/kept && mount -t tmpfs -o size=64k tmpfs /etc/containerd",
        "cp -a /run/kept/. /etc/containerd/ && rm -r /run/kept",
        "! dd if=/dev/zero of=/etc/containerd/filler bs=4k",
    )
    node.run(["sh", "-c", " && ".join(words)])


@pytest.mark.parametrize(
    ("happens", "words", "made"),
    [
        # The gate asks before anything is done, and what can be foreseen is.
        pytest.param(_refuses, "refuses the config it has", False, id="its own program refuses the config"),
        pytest.param(_is_read_only, "read-only file system", False, id="its config is read-only"),
        pytest.param(_is_full, "no space left on device", True, id="there is no room for its config"),
    ],
)
def test_what_fails_ahead_of_or_behind_the_device_nodes_leaves_none_of_them(
    containerd_node: Node, happens: Callable[[Node], None], words: str, *, made: bool
) -> None:
    node = containerd_node
    (node.root / "run/nvidia/driver/dev").mkdir(parents=True)
    before = served(node)
    happens(node)
    files, engine = snapshot(node), node.pid_of("containerd.service")
    environment = {
        "NO_DAEMON": "true",
        "RUNTIME": "containerd",
        "HOST_ROOT_MOUNT": "/",
        "TOOLKIT_SOURCE_ROOT": ARTIFACTS,
    }

    done = node.run([*COMMAND], env=environment | CDI, check=False)

    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
    assert ("device nodes made" in done.stderr) is made
    assert snapshot(node) == files
    assert not (node.root / "run/cdi").exists()
    assert node.pid_of("containerd.service") == engine
    assert served(node) == before


# As NVIDIA's tool leaves a node (engine-facts.md#nvidia-directory, #nvidia-runtimes), itself the default.
THEIRS = {
    "docker": """{
    "default-runtime": "nvidia",
    "runtimes": {
        "nvidia": {"args": [], "path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"},
        "nvidia-cdi": {"args": [], "path": "/usr/local/nvidia/toolkit/nvidia-container-runtime.cdi"}
    }
}""",
    "containerd": """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
""",
}


def test_what_nvidias_installer_left_is_adopted_and_undone(node: Node) -> None:
    files, before = snapshot(node), served(node)
    node.run(["mkdir", "-p", f"{INSTALL_DIR}/toolkit"])
    node.run(["sh", "-c", f"cp -r {ARTIFACTS}/usr/bin/. {INSTALL_DIR}/toolkit/"])
    path = "/etc/docker/daemon.json" if node.engine == "docker" else "/etc/containerd/config.toml"
    theirs = THEIRS[node.engine].replace("io.containerd.grpc.v1.cri", _plugin(node))
    node.write(path, theirs if node.engine == "docker" else node.read(path) + theirs)
    node.restart(f"{node.engine}.service")
    if node.engine == "containerd":
        node.cri.wait()
    assert "nvidia" in served(node)[0]

    done = node.installer("uninstall", "--adopt")

    assert done.returncode == 0, done.stderr
    assert served(node) == before
    left = snapshot(node)
    changed = {name for name in {*files, *left} if files.get(name) != left.get(name)}
    assert changed <= {path, INSTALL_DIR}, "the config in other words, and the directory that they had made"
    assert not (node.root / INSTALL_DIR[1:] / "toolkit").exists()
    assert "/usr/local/nvidia/toolkit" not in node.read(path)


def _plugin(node: Node) -> str:
    """Return the CRI plugin whose runtimes the node's own config configures."""
    if node.engine == "docker":
        return ""
    text = node.read("/etc/containerd/config.toml")
    new = "io.containerd.cri.v1.runtime"
    return new if new in text or "version = 3" in text else "io.containerd.grpc.v1.cri"


def test_what_is_asked_for_later_is_in_force_or_called_pending(containerd_node: Node, cri: Cri) -> None:
    """Our binaries are served already; annotations and CDI come with a second install."""
    node, files = containerd_node, snapshot(containerd_node)
    words = [
        PYTHON,
        *NVIDIAS,
        "--no-daemon",
        "--runtime=containerd",
        "--nvidia-driver-root=/",
    ]
    words += [f"--toolkit-source-root={ARTIFACTS}", "--config=/etc/containerd/config.toml"]
    node.run(words)

    cdi = node.run([*words, "--enable-cdi-in-runtime"])
    told = node.installer("status").stdout
    again = node.run([*words, "--enable-cdi-in-runtime"])

    without = node.containerd_version.startswith("1.6")
    assert node.run(["containerd", "config", "dump"]).stdout.count("enable_cdi = true") == (not without)
    assert cri.status().config.get("enableCDI") is (None if without else True)
    assert ("this containerd has no CDI" in cdi.stderr) == ("this containerd has no CDI" in told) == without
    assert "nothing changed" in again.stderr
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
