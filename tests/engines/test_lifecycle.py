"""The main job on real engines: install, run a container through us, take it all back."""

import signal

import pytest

from tests.engines.configs import DOCKER
from tests.engines.cri import Cri
from tests.engines.images import IMAGE
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, served

LEDGER = "/usr/local/nvidia/.toolkit-installer/ledger"
READY = "/run/nvidia/toolkit/ready"
TOOLKIT = "/usr/local/nvidia/toolkit"
FROZEN = ("--config", "containerd=/etc/containerd/config.toml", "--runtime", "containerd", "--timeout", "3")
SOURCE = ("--toolkit-source", ARTIFACTS)


def _unit(node: Node) -> str:
    return f"{node.engine}.service"


def _run_through_us(node: Node) -> str:
    """Run a container through the handler nvidia and remove it; return what it said."""
    if node.engine == "docker":
        command = ["docker", "run", "--rm", "--net", "none", "--runtime", "nvidia", IMAGE, "echo", "alive"]
        return node.run(command).stdout
    pod = node.cri.run_pod("nvidia")
    container = node.cri.start_container(pod)
    said = node.cri.exec(container, "echo", "alive").stdout
    node.cri.stop_container(container)
    node.cri.remove_container(container)
    node.cri.remove_pod(pod)
    return said


def test_run_serves_our_runtime_and_a_stop_undoes_everything(node: Node) -> None:
    files, before = snapshot(node), served(node)

    process = node.start_installer("run", *SOURCE, "--set-as-default")
    process.wait_for("waiting for a signal")
    ready = (node.root / READY.lstrip("/")).exists()
    names, default = served(node)
    said = _run_through_us(node)
    marks = node.marks()
    process.terminate()

    assert process.wait() == 0, process.log
    assert ready
    assert names == before[0] | {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert default == "nvidia"
    assert said == "alive\n"
    assert [mark for mark in marks if mark.startswith("nvidia-container-runtime.real ")]
    assert served(node) == before
    assert snapshot(node) == files


def test_a_second_install_touches_signals_and_restarts_nothing(node: Node) -> None:
    first = node.installer("install", *SOURCE, check=True)
    files, pid = snapshot(node, times=True), node.pid_of(_unit(node))
    journal = node.journal(_unit(node))

    second = node.installer("install", *SOURCE, check=True)

    assert "nothing changed" in second.stderr
    assert "nothing changed" not in first.stderr
    assert snapshot(node, times=True) == files
    assert node.pid_of(_unit(node)) == pid
    assert [line for line in node.journal(_unit(node))[len(journal) :].splitlines() if "SIGHUP" in line] == []


def test_uninstall_after_a_killed_run_leaves_nothing_of_ours(node: Node) -> None:
    files, before = snapshot(node), served(node)
    process = node.start_installer("run", *SOURCE)
    process.wait_for("waiting for a signal")
    process.kill()
    process.wait()

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert snapshot(node) == files
    assert served(node) == before


def test_an_upgrade_of_the_payload_restarts_nothing(node: Node) -> None:
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    pid, config = node.pid_of(_unit(node)), snapshot(node)
    node.add_payload("/run/other", "1.1.0")

    node.installer("install", "--toolkit-source", "/run/other", check=True)

    assert node.pid_of(_unit(node)) == pid
    assert "libnvidia-container.so.1.1.0" not in str(config)
    assert "so.1.1.0" in str(sorted(snapshot(node)))
    assert _run_through_us(node) == "alive\n"
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.any_version
def test_a_stop_in_the_middle_of_an_install_rolls_everything_back(node: Node) -> None:
    files, before = snapshot(node), served(node)

    for event in ("toolkit installed", "toolkit link created", "config written"):
        process = node.start_installer("run", *SOURCE)
        process.wait_for(event)
        process.signal(signal.SIGINT)

        assert process.wait() == 0, process.log
        assert snapshot(node) == files
        assert served(node) == before


@pytest.mark.any_version
def test_another_root_is_never_left_although_an_engine_runs(node: Node) -> None:
    files, before, pid = snapshot(node), served(node), node.pid_of(_unit(node))
    marks = ["/opt/elsewhere/etc/docker/daemon.json", "/opt/elsewhere/etc/containerd/config.toml"]
    for path in marks:
        node.write(path, "{}\n" if path.endswith("json") else "version = 2\n")
    arguments = ("--host-root", "/opt/elsewhere", "--runtime", node.engine, *SOURCE)

    plan = node.installer("plan", *arguments)
    refused = node.installer("install", *arguments)
    installed = node.installer("install", *arguments, "--restart-mode", "none")
    undone = node.installer("uninstall", *arguments, "--restart-mode", "none")

    assert [each.returncode for each in (plan, refused, installed, undone)] == [1, 1, 0, 0]
    assert served(node) == before
    assert node.pid_of(_unit(node)) == pid
    after = {path: text for path, text in snapshot(node).items() if not path.startswith("/opt/elsewhere")}
    assert after == files


def test_a_default_that_was_not_ours_comes_back(docker_node: Node) -> None:
    text = '{"default-runtime": "other",\n "runtimes": {"other": {"path": "/usr/sbin/runc"}}}'
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")

    docker_node.installer("install", *SOURCE, "--set-as-default", check=True)
    _, ours = served(docker_node)
    docker_node.installer("uninstall", check=True)

    assert ours == "nvidia"
    assert served(docker_node)[1] == "other"
    assert docker_node.read(DOCKER) == text


def test_an_install_repairs_a_containerd_that_does_not_serve_us(containerd_node: Node, cri: Cri) -> None:
    files = snapshot(containerd_node)
    _freeze(containerd_node, cri)
    files |= {path: text for path, text in snapshot(containerd_node).items() if "frozen" in path}

    done = containerd_node.installer("install", *SOURCE, *FROZEN)

    assert done.returncode == 1, done.stderr
    assert "cannot verify that containerd serves our runtimes" in sentence(done.stderr)
    left = snapshot(containerd_node).keys() - files.keys()
    home = "/usr/local/nvidia/.toolkit-installer"
    assert left == {"/usr/local/nvidia", home, LEDGER, f"{home}/lock"}
    assert set(cri.status().runtimes) == {"runc"}
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files


def test_an_install_over_an_install_that_fails_leaves_the_first_in_place(
    containerd_node: Node, cri: Cri
) -> None:
    before = snapshot(containerd_node)
    containerd_node.installer("install", *SOURCE, check=True)
    _freeze(containerd_node, cri)
    files = snapshot(containerd_node)
    containerd_node.add_payload("/run/other", "1.1.0")

    done = containerd_node.installer("install", "--toolkit-source", "/run/other", "--set-as-default", *FROZEN)

    assert done.returncode == 1, done.stderr
    assert {**snapshot(containerd_node), LEDGER: files[LEDGER]} == files  # which knows of the failure now
    assert served(containerd_node) == ({"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}, "runc")
    assert _run_through_us(containerd_node) == "alive\n"
    containerd_node.run(["rm", "-r", "/run/systemd/system/containerd.service.d", "/opt/frozen.toml"])
    containerd_node.run(["systemctl", "daemon-reload"])
    containerd_node.restart("containerd")
    cri.wait()
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == before
    assert served(containerd_node) == ({"runc"}, "runc")


def _freeze(node: Node, cri: Cri) -> None:
    """Let the unit ignore the config on disk, so that nothing new can ever be served."""
    node.run(["cp", "/etc/containerd/config.toml", "/opt/frozen.toml"])
    node.write(
        "/run/systemd/system/containerd.service.d/frozen.conf",
        "[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config /opt/frozen.toml\n",
    )
    node.run(["systemctl", "daemon-reload"])
    node.restart("containerd")
    cri.wait()


def test_a_drop_in_is_used_where_it_merges_and_edited_in_place_elsewhere(
    containerd_node: Node, cri: Cri
) -> None:
    files, before = snapshot(containerd_node), served(containerd_node)
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    arguments = ("--runtime", "containerd", "--drop-in-config", drop_in)

    done = containerd_node.installer("install", *SOURCE, *arguments, check=True)
    written = (containerd_node.root / drop_in.lstrip("/")).exists()

    assert written == containerd_node.containerd_version.startswith("2.")
    assert ("editing /etc/containerd/config.toml in place" in done.stderr) is not written
    assert served(containerd_node)[0] == {"runc", "nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert cri.status().conditions["RuntimeReady"]
    assert _run_through_us(containerd_node) == "alive\n"
    containerd_node.installer("uninstall", check=True)
    assert snapshot(containerd_node) == files
    assert served(containerd_node) == before


def test_a_containerd_outside_systemd_is_refused_and_no_second_one_is_started(
    containerd_node: Node, cri: Cri
) -> None:
    containerd_node.run(["systemctl", "stop", "containerd"])
    other = containerd_node.start(["/usr/bin/containerd"])
    cri.wait()
    files = snapshot(containerd_node)

    done = containerd_node.installer("install", *SOURCE)

    assert done.returncode == 1
    assert "restart containerd (" in sentence(done.stderr)
    assert containerd_node.show("containerd", "ActiveState") == "inactive"
    assert other.running
    assert snapshot(containerd_node) == files
    other.kill()
    other.wait()


def test_uninstall_restores_a_cri_that_our_config_took_down(containerd_node: Node, cri: Cri) -> None:
    files = snapshot(containerd_node)
    containerd_node.installer("install", *SOURCE, check=True)
    config = containerd_node.read("/etc/containerd/config.toml")
    broken = config.replace('default_runtime_name = "runc"', 'default_runtime_name = "gone"')
    broken = broken.replace("default_runtime_name = 'runc'", "default_runtime_name = 'gone'")
    containerd_node.write("/etc/containerd/config.toml", broken)
    containerd_node.restart("containerd")
    # Somebody mends the line after the restart: the file is ours again, and the engine still lies down.
    containerd_node.write("/etc/containerd/config.toml", config)

    done = containerd_node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert set(cri.wait().runtimes) == {"runc"}
    assert snapshot(containerd_node) == files


@pytest.mark.any_version
def test_a_stopped_engine_reads_the_restored_config_when_it_starts(node: Node) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    units = ["docker.socket", "docker.service"] if node.engine == "docker" else ["containerd.service"]
    node.run(["systemctl", "stop", *units])

    done = node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert snapshot(node) == files
    node.run(["systemctl", "start", *units])
    if node.engine == "containerd":
        node.cri.wait()
    assert served(node) == before


@pytest.mark.any_version
def test_a_reboot_needs_nothing_done_again(node: Node) -> None:
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    node.reboot()
    if node.engine == "containerd":
        node.cri.wait()
    pid = node.pid_of(_unit(node))

    done = node.installer("install", *SOURCE, check=True)

    assert "nothing changed" in done.stderr
    assert node.pid_of(_unit(node)) == pid
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.any_version
def test_garbage_in_a_config_is_refused_in_one_sentence(node: Node) -> None:
    path = DOCKER if node.engine == "docker" else "/etc/containerd/config.toml"
    node.write(path, '{"runtimes": [}\n')
    files, pid = snapshot(node, times=True), node.pid_of(_unit(node))

    done = node.installer("install", "--runtime", node.engine, *SOURCE)

    assert done.returncode == 1
    assert sentence(done.stderr).startswith(f"cannot read {path} as ")
    # Nothing is left, but the directory that held ours for a moment has a new mtime.
    after = snapshot(node, times=True)
    assert {k: v for k, v in after.items() if k != "/usr/local"} == {
        k: v for k, v in files.items() if k != "/usr/local"
    }
    assert node.pid_of(_unit(node)) == pid


def test_a_runtime_given_by_its_shim_becomes_ours_and_comes_back(docker_node: Node) -> None:
    options = '{"BinaryName": "/usr/bin/nvidia-container-runtime"}'
    entry = f'{{"runtimeType": "io.containerd.runc.v2", "options": {options}}}'
    text = f'{{"runtimes": {{"nvidia": {entry}}}}}\n'
    if str(docker_node.docker_version).startswith("20."):
        text = '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}\n'
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")

    docker_node.installer("install", *SOURCE, check=True)
    said = _run_through_us(docker_node)
    docker_node.installer("uninstall", check=True)

    assert said == "alive\n"
    assert docker_node.read(DOCKER) == text
    assert "nvidia" in served(docker_node)[0]


@pytest.mark.any_version
def test_an_uninstall_of_another_directory_names_the_one_that_the_engine_serves(node: Node) -> None:
    files, before = snapshot(node), served(node)
    node.installer("install", *SOURCE, "--install-dir", "/opt/gpu", check=True)
    during = snapshot(node)

    wrong = node.installer("uninstall", "--install-dir", "/opt/wrong")
    untouched, still = snapshot(node), served(node)[0]
    right = node.installer("uninstall", "--install-dir", "/opt/gpu")

    assert wrong.returncode == 1
    assert "names the one in /opt/gpu" in sentence(wrong.stderr)
    assert untouched == during
    assert still == before[0] | {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert right.returncode == 0, right.stderr
    assert served(node) == before
    assert snapshot(node) == files
