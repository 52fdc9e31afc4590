"""The nodes are what the other tests take them for."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.configs import CONTAINERD, DOCKER
from tests.engines.conftest import Boot
from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import PYTHON, Node
from tests.engines.versions import EngineSet

pytestmark = [pytest.mark.any_version, pytest.mark.night]

IMAGES = {
    "docker": ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"],
    "containerd": ["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"],
}
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
    cri.wait()

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
    runc = next(line.strip() for line in config.splitlines() if line.endswith("runtimes.runc]"))
    handler = [runc.replace(".runc]", ".nvidia]"), 'runtime_type = "io.containerd.runc.v2"']
    options = [runc.replace(".runc]", ".nvidia.options]"), f'BinaryName = "{STAND_IN}"']
    containerd_node.write(CONTAINERD, "\n".join([config, *handler, *options, ""]))

    containerd_node.restart("containerd")
    cri.wait()
    pod = cri.run_pod("nvidia")

    assert cri.exec(cri.start_container(pod), "echo", "alive").stdout == "alive\n"
    assert [mark for mark in containerd_node.marks() if mark.startswith("nvidia-container-runtime --")]
    assert cri.pods() == {pod.id: "nvidia"}


def test_the_payload_leaves_a_mark_in_a_container_of_docker(docker_node: Node) -> None:
    docker_node.write(DOCKER, f'{{"runtimes": {{"nvidia": {{"path": "{STAND_IN}"}}}}}}')
    docker_node.run(["systemctl", "reload", "docker"])
    docker_node.wait_for(
        "nvidia", ["docker", "info", "--format", "{{.Runtimes}}"]
    )  # a reload is not over when it returns
    run = ["docker", "run", "--rm", "--net", "none", "--runtime", "nvidia", IMAGE, "echo", "alive"]

    said = docker_node.run(run).stdout

    assert said == "alive\n"
    assert [mark for mark in docker_node.marks() if " create " in mark]


def test_another_runtime_of_the_payload_is_told_apart_by_its_name(bare_node: Node) -> None:
    bare_node.run([f"{STAND_IN}.legacy", "--version"])
    bare_node.run([f"{STAND_IN}-hook", "prestart"])

    assert bare_node.marks() == [
        "nvidia-container-runtime.legacy --version",
        "nvidia-container-runtime-hook prestart",
    ]


def test_the_installer_and_its_dependencies_are_importable_in_a_node(bare_node: Node) -> None:
    packages = "click, docker, grpc, jeepney, structlog, tomlkit"
    said = bare_node.run(
        [PYTHON, "-I", "-c", f"import {packages}; print(__import__('installer').__file__)"]
    ).stdout

    assert Path(said.strip()).parent.name == "installer"


def test_a_started_process_can_be_stopped_and_read(bare_node: Node) -> None:
    script = "echo up; trap 'echo down; exit 7' TERM; while :; do sleep 0.05; done"

    process = bare_node.start(["sh", "-c", script])
    process.wait_for("up")
    assert bare_node.read(f"/proc/{process.pid}/comm") == "sh\n"
    process.terminate()

    assert process.wait() == 7
    assert process.log == "up\ndown\n"


def test_the_driver_comes_and_goes(bare_node: Node) -> None:
    present = ["test", "-d", "/sys/module/nvidia"]
    assert bare_node.run(present, check=False).returncode == 0

    bare_node.unload_fake_nvidia_module()
    assert bare_node.run(present, check=False).returncode == 1

    bare_node.load_fake_nvidia_module()
    assert bare_node.run(present, check=False).returncode == 0


def test_a_reboot_keeps_the_disk_and_nothing_else(node: Node) -> None:
    boot_id = "/proc/sys/kernel/random/boot_id"
    before = node.read(boot_id)
    for path in ("/etc/kept", "/run/lost"):
        node.write(path, "here")

    node.reboot()

    assert node.read("/etc/kept") == "here"
    assert not (node.root / "run/lost").exists()
    assert node.read(boot_id) != before
    assert node.show(node.engine, "ActiveState") == "active"
    assert IMAGE in node.run(IMAGES[node.engine]).stdout


@pytest.mark.parametrize("interrupted", [False, True], ids=["after the test", "on ctrl-c"])
def test_a_stopped_node_leaves_nothing_behind(
    *, interrupted: bool, booted: Boot, engines_today: list[EngineSet]
) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    row = next(row for row in engines_today if row.docker)
    seen: list[Node] = []

    with suppress(KeyboardInterrupt), booted(row) as node:
        seen.append(node)
        node.run(["docker", "run", "--detach", "--net", "none", IMAGE])
        if interrupted:
            raise KeyboardInterrupt

    assert not Path(f"/proc/{seen[0].leader}").exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{seen[0].name}"))
    assert not [path for path in Path("/proc").glob("[0-9]*/cgroup") if seen[0].name in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
