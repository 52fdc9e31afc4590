"""The nodes are what the other tests take them for."""

from pathlib import Path

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.conftest import Boot
from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, Node
from tests.engines.versions import EngineSet

STAND_IN = "/artifacts/usr/bin/nvidia-container-runtime"


def test_the_archive_carries_enough_engines_to_speak_of_support(engines_today: list[EngineSet]) -> None:
    containerds = {row.containerd for row in engines_today}
    dockerds = {row.docker for row in engines_today if row.docker}

    assert len([version for version in containerds if version.startswith("1.")]) >= 2
    assert len([version for version in containerds if version.startswith("2.")]) >= 1
    assert len(dockerds) >= 2


def test_a_node_runs_systemd_and_its_engines(node: Node) -> None:
    assert node.read("/proc/1/comm") == "systemd\n"
    assert node.run(["systemctl", "is-system-running"]).stdout == "running\n"
    assert node.show("containerd", "ActiveState") == "active"
    assert node.pid_of("containerd") > 1
    assert node.containerd_version in node.run(["containerd", "--version"]).stdout


def test_a_docker_node_serves_docker_only(docker_node: Node) -> None:
    served = docker_node.run(["docker", "version", "--format", "{{.Server.Version}}"]).stdout

    assert str(docker_node.docker_version) in served
    assert docker_node.show("docker", "ActiveState") == "active"
    assert docker_node.engine == "docker"
    assert "disabled_plugins" in docker_node.read(CONTAINERD)


def test_a_containerd_node_serves_cri(containerd_node: Node, cri: Cri) -> None:
    status = cri.status()

    assert containerd_node.containerd_version in cri.version()
    assert status.conditions["RuntimeReady"]
    assert list(status.runtimes) == ["runc"]


def test_a_pod_runs_and_outlives_a_restart_of_containerd(containerd_node: Node, cri: Cri) -> None:
    pod = cri.run_pod()
    container = cri.start_container(pod)
    before = containerd_node.pid_of("containerd")

    containerd_node.restart("containerd")

    assert containerd_node.pid_of("containerd") not in {0, before}
    assert cri.pods() == {pod.id: ""}
    assert cri.exec(container, "echo", "alive").stdout == "alive\n"
    cri.stop_container(container)
    cri.remove_container(container)
    cri.remove_pod(pod)
    assert cri.pods() == {}


def test_a_container_of_docker_outlives_a_restart_of_containerd(docker_node: Node) -> None:
    docker_node.run(["docker", "run", "--detach", "--net", "none", "--name", "sleeper", IMAGE])

    docker_node.restart("containerd")

    assert docker_node.run(["docker", "exec", "sleeper", "echo", "alive"]).stdout == "alive\n"


def test_the_payload_leaves_a_mark_in_a_pod(containerd_node: Node, cri: Cri) -> None:
    config = containerd_node.read(CONTAINERD)
    table = next(line.strip() for line in config.splitlines() if line.strip().endswith("runtimes.runc]"))
    handler = table.replace("runtimes.runc", "runtimes.nvidia")
    options = handler.replace("nvidia]", "nvidia.options]")
    containerd_node.write(
        CONTAINERD,
        f'{config}\n{handler}\nruntime_type = "io.containerd.runc.v2"\n{options}\nBinaryName = "{STAND_IN}"\n',
    )

    containerd_node.restart("containerd")
    pod = cri.run_pod("nvidia")

    assert cri.exec(cri.start_container(pod), "echo", "alive").stdout == "alive\n"
    assert [mark for mark in containerd_node.marks() if mark.startswith("nvidia-container-runtime --")]
    assert cri.pods() == {pod.id: "nvidia"}


def test_the_payload_leaves_a_mark_in_a_container_of_docker(docker_node: Node) -> None:
    docker_node.write(DOCKER, f'{{"runtimes": {{"nvidia": {{"path": "{STAND_IN}"}}}}}}')
    docker_node.run(["systemctl", "reload", "docker"])
    run = ["docker", "run", "--rm", "--net", "none", "--runtime", "nvidia", IMAGE, "echo", "alive"]

    said = docker_node.run(run).stdout

    assert said == "alive\n"
    assert [mark for mark in docker_node.marks() if " create " in mark]


def test_another_runtime_of_the_payload_is_told_apart_by_its_name(docker_node: Node) -> None:
    docker_node.run([f"{STAND_IN}.legacy", "--version"])
    docker_node.run([f"{STAND_IN}-hook", "prestart"])

    assert docker_node.marks() == ["nvidia-container-runtime.legacy --version", "nvidia-container-runtime-hook prestart"]


def test_the_installer_and_its_dependencies_are_importable_in_a_node(node: Node) -> None:
    packages = "click, docker, grpc, jeepney, psutil, structlog, tomlkit"
    said = node.run([PYTHON, "-I", "-c", f"import installer, {packages}; print(installer.__file__)"]).stdout

    assert Path(said.strip()).parent.name == "installer"


def test_a_started_process_can_be_stopped_and_read(node: Node) -> None:
    script = "echo up; trap 'echo down; exit 7' TERM; while :; do sleep 0.05; done"

    process = node.start(["sh", "-c", script])
    process.wait_for("up")
    assert node.read(f"/proc/{process.pid}/comm") == "sh\n"
    process.terminate()

    assert process.wait() == 7
    assert process.log == "up\ndown\n"


def test_the_driver_comes_and_goes(docker_node: Node) -> None:
    present = ["test", "-d", "/sys/module/nvidia"]
    assert docker_node.run(present, check=False).returncode == 0

    docker_node.unload_fake_nvidia_module()
    assert docker_node.run(present, check=False).returncode == 1

    docker_node.load_fake_nvidia_module()
    assert docker_node.run(present, check=False).returncode == 0


@pytest.mark.parametrize("failing", [False, True], ids=["test passed", "test failed"])
def test_a_stopped_node_leaves_nothing_behind(failing: bool, booted: Boot, engines_today: list[EngineSet]) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    row = next(row for row in engines_today if row.docker)
    seen: list[Node] = []

    def use() -> None:
        with booted(row) as node:
            seen.append(node)
            node.run(["docker", "run", "--detach", "--net", "none", IMAGE])
            if failing:
                raise KeyboardInterrupt

    if failing:
        with pytest.raises(KeyboardInterrupt):
            use()
    else:
        use()

    assert not Path(f"/proc/{seen[0].leader}").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{seen[0].name}"))
    assert not [path for path in Path("/proc").glob("[0-9]*/cgroup") if seen[0].name in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
