"""A second engine beside ours: it is not restarted for ours, and the toolkit outlives what starts it.

A containerd that serves Docker alone is left alone.
"""

import pytest

from tests.engines.configs import CONTAINERD, DOCKER, VERSION_2, VERSION_3
from tests.engines.cri import Cri
from tests.engines.images import ARCHIVE
from tests.engines.nodes import SOURCE, Node
from tests.engines.second_engines import DOCKERD, started
from tests.engines.told import doctor, sentence, served, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

DOCKER2 = ("docker", "-H", "unix:///run/docker2.sock")
OTHER = "/usr/bin/containerd --config /etc/other/config.toml --address /run/other/containerd.sock"


def second_containerd(node: Node, config: str | None = None) -> Cri:
    """Start another containerd with the config of the first."""
    if config is None:
        config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write("/etc/other/config.toml", f'state = "/run/other"\n{config}')
    started(node, "other.service", OTHER)
    return Cri(node.root / "run/other/containerd.sock")


def kept(node: Node, who: str, config: str) -> None:
    """Undo, which is to keep the toolkit and to say for whom."""
    done = node.installer("uninstall")

    assert done.returncode == 4, done.stderr
    assert f"{who} runs and reads {config}, which names /usr/local/nvidia" in sentence(done.stderr)
    assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")


def test_the_toolkit_outlives_a_second_dockerd(docker_node: Node) -> None:
    node, files = docker_node, snapshot(docker_node)
    node.installer("install", *SOURCE, check=True)
    node.write("/etc/docker2/daemon.json", node.read(DOCKER))
    started(node, "docker2.service", DOCKERD)

    kept(node, "Docker of docker2.service", "/etc/docker2/daemon.json")
    node.write("/etc/docker2/daemon.json", "{}")
    node.run(["systemctl", "restart", "docker2"])

    node.installer("uninstall", check=True)
    node.run(["systemctl", "stop", "docker2"])
    node.run(["rm", "-r", "/etc/docker2"])
    assert snapshot(node) == files


def test_the_toolkit_outlives_a_second_containerd(containerd_node: Node, cri: Cri) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    other = second_containerd(node)

    kept(node, "containerd of other.service", "/etc/other/config.toml")

    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in other.status().runtimes
    node.run(["systemctl", "stop", "other"])
    node.installer("uninstall", check=True)
    node.run(["rm", "-r", "/etc/other"])
    assert snapshot(node) == files


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reads", ["at its start", "by a reload", "by a link"])
def test_the_toolkit_outlives_a_second_dockerd_with_the_same_config(docker_node: Node, reads: str) -> None:
    """The undo takes our edits from the config; the second dockerd has them in force until its restart."""
    node, files = docker_node, snapshot(docker_node)
    config = DOCKER
    if reads == "by a link":
        config = "/srv/daemon.json"
        node.run(["ln", "-s", DOCKER, config])
    command = DOCKERD.replace("/etc/docker2/daemon.json", config)
    if reads == "by a reload":
        started(node, "docker2.service", command)
    node.installer("install", *SOURCE, check=True)
    if reads == "by a reload":
        node.run(["systemctl", "kill", "--signal", "HUP", "docker2"])
        until(lambda: "nvidia" in node.run([*DOCKER2, "info"]).stdout, lambda: "docker2 has not reloaded")
    else:
        started(node, "docker2.service", command)
    node.run(["chmod", "u+r", DOCKER])  # changes the time of the file's last change, and nothing else

    for _ in range(2):
        kept = node.installer("uninstall")
        assert kept.returncode == 4, kept.stderr
        assert "Docker of docker2.service serves nvidia" in sentence(kept.stderr)
        assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    node.run(["systemctl", "restart", "docker2"])
    node.installer("uninstall", check=True)
    node.run(["rm", "-f", "/srv/daemon.json"])
    assert snapshot(node) == files


def test_the_toolkit_outlives_a_second_dockerd_that_does_not_answer(docker_node: Node) -> None:
    node, files = docker_node, snapshot(docker_node)
    node.installer("install", *SOURCE, check=True)
    started(node, "docker2.service", DOCKERD.replace("/etc/docker2/daemon.json", DOCKER))
    node.run(["systemctl", "kill", "--signal", "STOP", "docker2"])

    for said in (f"runs and reads {DOCKER}, which names", f"has not read {DOCKER} since its last change"):
        kept = node.installer("uninstall")
        assert kept.returncode == 4, kept.stderr
        assert said in sentence(kept.stderr)
        assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    node.run(["systemctl", "kill", "--signal", "CONT", "docker2"])
    node.run(["systemctl", "restart", "docker2"])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_the_toolkit_outlives_a_silent_dockerd_whose_own_config_was_corrected(docker_node: Node) -> None:
    """The owner has done what the first undo asked for, but the silent dockerd has not read it."""
    node, files = docker_node, snapshot(docker_node)
    node.installer("install", *SOURCE, check=True)
    config = "/etc/docker2/daemon.json"
    node.write(config, node.read(DOCKER))
    started(node, "docker2.service", DOCKERD)
    node.run(["systemctl", "kill", "--signal", "STOP", "docker2"])
    kept(node, "Docker of docker2.service", config)

    node.write(config, "{}")
    again = node.installer("uninstall")

    assert again.returncode == 4, again.stderr
    assert f"has not read {config} since its last change" in sentence(again.stderr)
    node.run(["systemctl", "kill", "--signal", "CONT", "docker2"])
    node.run(["systemctl", "restart", "docker2"])
    node.installer("uninstall", check=True)
    node.run(["systemctl", "stop", "docker2"])
    node.run(["rm", "-r", "/etc/docker2"])
    assert snapshot(node) == files


def test_a_dockerd_that_hangs_leaves_time_to_ask_another(docker_node: Node) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    config = "/etc/docker2/daemon.json"
    node.write(config, node.read(DOCKER))
    hung = DOCKERD.replace("docker2", "docker1").replace("moby2", "moby1").replace("/second", "/first")
    node.write("/etc/docker1/daemon.json", "{}")
    started(node, "docker1.service", f"{hung} -H unix:///run/docker1-more.sock")
    started(node, "docker2.service", DOCKERD)
    node.run(["systemctl", "kill", "--signal", "STOP", "docker1"])
    node.write(config, "{}")

    done = node.installer("uninstall")

    assert done.returncode == 4, done.stderr
    assert "Docker of docker2.service serves nvidia" in sentence(done.stderr)
    node.run(["systemctl", "kill", "--signal", "CONT", "docker1"])
    node.run(["systemctl", "stop", "docker1", "docker2"])
    node.installer("uninstall", check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "config",
    [
        'disabled_plugins = ["cri", "io.containerd.grpc.v1.cri"]\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "none"\n',
    ],
    ids=["switched off", "not loaded"],
)
def test_a_containerd_without_cri_does_not_stop_an_undo(docker_node: Node, config: str) -> None:
    """As beside each Docker from a package; that somebody has edited its config since, is no matter."""
    node = docker_node
    node.write(CONTAINERD, config)
    node.restart("containerd")
    node.restart("docker")
    files = snapshot(node)
    node.installer("install", *SOURCE, "--runtime", "docker", check=True)
    node.run(["chmod", "u+r", CONTAINERD])  # changes the time of the file's last change

    node.installer("uninstall", check=True)

    assert snapshot(node) == files


def test_the_toolkit_outlives_a_container_of_a_second_containerd(containerd_node: Node) -> None:
    """No engine could stop that container without our runtime."""
    node, files = containerd_node, snapshot(containerd_node)
    own_root = "/var/lib/containerd/other"  # where layers can be mounted
    plain = node.read(CONTAINERD).replace("/var/lib/containerd", own_root)
    node.installer("install", *SOURCE, check=True)
    other = second_containerd(node, node.read(CONTAINERD).replace("/var/lib/containerd", own_root))
    images = ("--address", "/run/other/containerd.sock", "--namespace", "k8s.io", "images", "import", ARCHIVE)
    node.run(["ctr", *images])
    other.wait()
    pod = other.run_pod("nvidia")
    node.write("/etc/other/config.toml", f'state = "/run/other"\n{plain}')
    node.restart("other")
    other.wait()

    done = node.installer("uninstall")

    assert done.returncode == 4, done.stderr
    assert "records are in /run/other, runs on /usr/local/nvidia/toolkit" in sentence(done.stderr)
    node.run(["systemctl", "stop", "other"])
    assert node.installer("uninstall").returncode == 4
    node.run(["systemctl", "start", "other"])
    other.wait()
    other.remove_pod(pod)
    node.installer("uninstall", check=True)
    node.run(["systemctl", "stop", "other"])
    node.run(["rm", "-r", "/etc/other"])
    assert snapshot(node) == files


def test_a_second_dockerd_that_never_had_our_edits_does_not_stop_an_undo(docker_node: Node) -> None:
    node, files = docker_node, snapshot(docker_node)
    started(node, "docker2.service", DOCKERD.replace("/etc/docker2/daemon.json", DOCKER))

    node.installer("install", *SOURCE, check=True)
    node.installer("uninstall", check=True)

    assert snapshot(node) == files


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "setting",
    ["PrivateTmp=yes", "PrivateTmp=yes\nSlice=podruntime.slice", "BindPaths=/srv/other:/etc/other"],
    ids=["its own /tmp", "in another slice", "its own config"],
)
def test_the_toolkit_outlives_a_second_containerd_in_a_mount_namespace(
    containerd_node: Node, setting: str
) -> None:
    node, files = containerd_node, snapshot(containerd_node)
    node.installer("install", *SOURCE, check=True)
    node.write("/etc/systemd/system/other.service.d/own.conf", f"[Service]\n{setting}\n")
    node.run(["mkdir", "-p", "/srv/other", "/etc/other"])
    config = node.read(CONTAINERD).replace("/var/lib/containerd", "/var/lib/other")
    node.write("/srv/other/config.toml", f'state = "/run/other"\n{config}')
    second_containerd(node, 'root = "/var/lib/other"\nversion = 2\n' if "Bind" in setting else None)

    kept(node, "containerd of other.service", "/etc/other/config.toml")

    node.run(["systemctl", "stop", "other"])
    node.installer("uninstall", check=True)
    node.run(["rm", "-r", "/etc/other", "/srv/other", "/etc/systemd/system/other.service.d"])
    assert snapshot(node) == files


def test_of_two_containerds_the_one_behind_the_socket_is_restarted(containerd_node: Node, cri: Cri) -> None:
    node, other = containerd_node, second_containerd(containerd_node)
    files, pids = snapshot(node), (node.pid_of("containerd"), node.pid_of("other"))
    socket = ("--socket", "containerd=/run/other/containerd.sock")

    node.installer("install", *SOURCE, "--runtime", "containerd", *socket, check=True)

    assert node.pid_of("containerd") == pids[0]
    assert node.pid_of("other") != pids[1]
    assert "nvidia-container-runtime" in node.read("/etc/other/config.toml")
    assert set(cri.status().runtimes) == {"runc"}
    assert "nvidia" in other.status().runtimes
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert node.pid_of("containerd") == pids[0]


def test_a_containerd_that_serves_docker_only_is_left_alone_until_it_runs_a_pod(docker_node: Node) -> None:
    node = docker_node
    # As Debian's package has it.
    node.write(CONTAINERD, VERSION_2 if node.containerd_version.startswith("1.") else VERSION_3)
    node.restart("containerd")
    node.run(["ctr", "--namespace", "k8s.io", "images", "import", ARCHIVE])
    node.cri.wait()
    node.restart("docker")
    config, pid = node.read(CONTAINERD), node.pid_of("containerd")

    planned = node.installer("plan", *SOURCE)
    node.installer("install", *SOURCE, check=True)

    assert "left containerd alone: it serves Docker, and its CRI is not used" in planned.stdout
    assert "nvidia" in served(node)[0]
    assert (node.read(CONTAINERD), node.pid_of("containerd")) == (config, pid)
    node.installer("uninstall", check=True)
    assert node.pid_of("containerd") == pid
    pod = node.cri.run_pod()
    planned = node.installer("plan", *SOURCE)
    assert "left containerd alone" not in planned.stdout
    assert CONTAINERD in planned.stdout
    node.cri.remove_pod(pod)


def test_a_containerd_with_cri_beside_the_one_of_docker_is_named(docker_node: Node) -> None:
    """As on a DGX with Docker and Kubernetes from a snap: ``auto`` would configure Docker and say no word."""
    node = docker_node
    second_containerd(node, 'root = "/var/lib/other"\nversion = 2\n')
    name = "another containerd, of other.service, serves CRI on /run/other/containerd.sock, and is not configured"
    remedy = "--runtime containerd --socket containerd=/run/other/containerd.sock"

    planned = node.installer("plan", *SOURCE).stdout
    installed = node.installer("install", *SOURCE, check=True).stderr
    _, checks = doctor(node)
    both = ("--runtime", "docker", *remedy.split())
    node.installer("install", *SOURCE, *both, check=True)
    again = node.installer("plan", *SOURCE).stdout

    for said in (planned, installed):
        assert f"{name}: name it with {remedy}" in said
    assert (checks["other-engines"]["level"], checks["other-engines"]["found"]) == ("warn", name)
    assert "another containerd" not in again
    node.installer("uninstall", check=True)
