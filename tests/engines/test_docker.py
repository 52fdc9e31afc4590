"""What dockerd has in force beside its daemon.json: kept defaults, runtimes and defaults of others, a default that keeps it down."""

import json
from typing import Any

import pytest

from tests.engines.bound_docker import run_container
from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import OURS, PYTHON, SOURCE, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.told import sentence, served, snapshot

OWN = "--userland-proxy-path=/opt/own/docker-proxy"
UNIT = "/run/systemd/system/docker.service.d/own.conf"
NAMED = ("install", "--runtime", "docker", *SOURCE)
LEFT = '{"default-runtime": "nvidia", "debug": true}'  # by a toolkit that was removed by hand
OTHER = {"other": {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}}


def _runtimes(node: Node) -> dict[str, Any]:
    """Return the runtimes in dockerd's own words, but for what runc says of itself and the shims."""
    said = json.loads(node.run(["docker", "info", "--format", "{{json .Runtimes}}"]).stdout)
    return {
        name: {key: value for key, value in entry.items() if key != "status"}
        for name, entry in said.items()
        if not name.startswith("io.containerd.")
    }


@pytest.mark.sampled(16)
def test_an_owners_default_runtime_in_the_toolkits_directory_goes_on(docker_node: Node) -> None:
    node = docker_node
    wrapper = "/usr/local/nvidia/toolkit/my-runc"
    node.run(["mkdir", "-p", "/usr/local/nvidia/toolkit"])
    node.write(wrapper, '#!/bin/sh\nexec /usr/sbin/runc "$@"\n')
    node.path(wrapper).chmod(0o755)
    node.write(DOCKER, json.dumps({"default-runtime": "mine", "runtimes": {"mine": {"path": wrapper}}}))
    node.run(["systemctl", "restart", "docker"])
    node.add_payload("/opt/v2", "2.0.0")
    files = snapshot(node)

    done = node.installer("install", *SOURCE, check=True)

    assert (
        f"starts {wrapper}, which the new toolkit does not have: that file is copied into it" in done.stderr
    )
    run_container(node)
    node.run(["systemctl", "restart", "docker"])
    run_container(node, "after-a-restart")
    assert served(node) == ({"runc", "mine"} | OURS, "mine")
    node.installer("install", "--toolkit-source", "/opt/v2", check=True)
    run_container(node, "after-an-update")
    again = node.installer("install", "--toolkit-source", "/opt/v2", check=True)
    assert "nothing changed" in again.stderr
    assert node.installer("status", "--deep").returncode == 0
    node.run(["docker", "rm", "--force", "web", "after-a-restart", "after-an-update"])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
    assert served(node) == ({"runc", "mine"}, "mine")
    run_container(node)
    node.run(["docker", "rm", "--force", "web"])


@pytest.mark.sampled(16)
def test_a_default_that_is_asked_for_no_more_is_not_in_force_any_more(docker_node: Node) -> None:
    node, files, pid = docker_node, snapshot(docker_node), docker_node.pid_of("docker")
    node.installer("install", *SOURCE, check=True)
    plain = node.read(DOCKER)
    node.installer("install", *SOURCE, "--set-as-default", check=True)

    codes = [node.installer(verb, *SOURCE).returncode for verb in ("plan", "install", "plan")]

    assert (codes, node.installer("status").returncode) == ([10, 0, 0], 0)
    assert (served(node), node.read(DOCKER)) == (({"runc"} | OURS, "runc"), plain)

    # dockerd keeps a default that its file names no more.
    node.write(DOCKER, json.dumps(json.loads(plain) | {"default-runtime": "nvidia"}))
    node.run(["systemctl", "reload", "docker"])
    node.wait_for("nvidia", ["docker", "info", "--format", "{{.DefaultRuntime}}"])
    node.write(DOCKER, plain)

    codes = [node.installer(verb, *SOURCE).returncode for verb in ("plan", "install")]

    assert codes == [10, 0]
    assert (served(node), node.read(DOCKER)) == (({"runc"} | OURS, "runc"), plain)

    # Without its default among the runtimes it would end.
    node.installer("install", *SOURCE, "--set-as-default", check=True)
    node.installer("install", *SOURCE, "--runtime-name", "gpu", check=True)
    assert served(node) == ({"runc", "gpu", "nvidia-cdi", "nvidia-legacy"}, "runc")
    node.installer("uninstall", check=True)
    assert served(node) == ({"runc"}, "runc")
    assert snapshot(node) == files
    assert node.pid_of("docker") == pid


@pytest.mark.sampled(16)
def test_the_runtimes_of_others_are_served_as_before_and_so_is_a_default_that_the_file_names_no_more(
    docker_node: Node,
) -> None:
    node, others = docker_node, OTHER | {"plain": {"path": "/usr/bin/runc"}}
    text = json.dumps({"default-runtime": "other", "runtimes": others}, indent=4)
    node.write(DOCKER, text)
    node.restart("docker")
    before, pid = _runtimes(node), node.pid_of("docker")

    node.installer("install", *SOURCE, check=True)
    during, default = _runtimes(node), served(node)[1]
    node.installer("uninstall", check=True)

    assert {name: entry for name, entry in during.items() if name not in OURS} == before
    assert default == "other"
    assert (_runtimes(node), served(node)[1], node.read(DOCKER)) == (before, "other", text)
    node.write(DOCKER, DAEMON_JSON)
    planned = node.installer("plan", *SOURCE)
    node.installer("install", *SOURCE, check=True)
    assert "Docker has the default runtime other in force" in planned.stdout
    assert f"Docker serves the runtime plain, which is not defined in {DOCKER}" in planned.stdout
    assert served(node) == ({"runc"} | OURS, "runc")
    node.installer("uninstall", check=True)
    assert node.pid_of("docker") == pid
    assert (served(node), node.read(DOCKER)) == (({"runc"}, "runc"), DAEMON_JSON)


def _started_with(node: Node, flags: str, *settings: str, restart: bool = True) -> None:
    """Start dockerd with more flags and settings of its unit; its own docker-proxy is elsewhere."""
    if not (node.root / "opt/own").exists():
        node.run(["mkdir", "-p", "/opt/own"])
        node.run(["mv", "/usr/sbin/docker-proxy", "/opt/own/docker-proxy"])
    command = "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"
    lines = ["[Service]", "ExecStart=", f"ExecStart={command} {flags}", *settings]
    node.write(UNIT, "\n".join(lines) + "\n")
    node.run(["systemctl", "daemon-reload"])
    if restart:
        node.restart("docker")


@pytest.mark.sampled(16)
@pytest.mark.any_version
@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        pytest.param(OWN, (), id="flags"),
        pytest.param("", ("Environment=PATH=/opt/own:/usr/sbin:/usr/bin:/sbin:/bin",), id="environment"),
    ],
)
def test_dockerd_validates_as_it_was_started(
    docker_node: Node, flags: str, settings: tuple[str, ...]
) -> None:
    _started_with(docker_node, flags, *settings)
    inside = "mkdir /host && mount --rbind / /host && mount -t proc proc /proc && "
    install = f"{PYTHON} -m installer install --toolkit-source {ARTIFACTS} --host-root /host"

    done = docker_node.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", inside + install])

    assert "is not validated" not in done.stderr  # as said where what the program tells cannot be believed
    assert served(docker_node)[0] > OURS


@pytest.mark.sampled(16)
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_runtime_that_an_admin_made_the_default_stays_until_he_names_another(
    docker_node: Node, *, stopped: bool
) -> None:
    def make_default(name: str) -> None:
        node.write(DOCKER, json.dumps(json.loads(node.read(DOCKER)) | {"default-runtime": name}))
        node.restart("docker")

    node, before, files = docker_node, served(docker_node), snapshot(docker_node)
    node.installer("install", *SOURCE, check=True)
    make_default("nvidia")
    pid = node.pid_of()
    if stopped:
        node.run(["systemctl", "stop", "docker.service", "docker.socket"])

    kept, again = node.installer("uninstall"), node.installer("uninstall")

    assert (kept.returncode, again.returncode) == (4, 4), kept.stderr
    assert f"(it was made the default in {DOCKER})" in sentence(kept.stderr)
    assert json.loads(node.read(DOCKER))["runtimes"].keys() == OURS
    assert stopped or node.pid_of() == pid
    node.restart("docker")
    assert served(node) == ({"runc"} | OURS, "nvidia")
    make_default("runc")
    assert node.installer("uninstall").returncode == 0
    assert served(node) == before
    files.pop(DOCKER)
    assert snapshot(node).items() >= files.items()


DEFAULT = "--default-runtime nvidia"
GPU = "--add-runtime gpu=/usr/local/nvidia/toolkit/nvidia-container-runtime"


@pytest.mark.sampled(16)
@pytest.mark.any_version
@pytest.mark.parametrize(
    ("flags", "live", "words"),
    [
        (DEFAULT, True, f"it was started with {DEFAULT})"),
        (GPU, True, "Docker was started with a flag for gpu"),
        (DEFAULT, False, f"its unit starts it with {DEFAULT}"),
        (GPU, False, "Docker will be started by its unit with a flag for gpu"),
        ("--config-file /root/other.json", False, "(/root/other.json names "),
    ],
    ids=["default", "runtime", "default at its next start", "runtime at its next start", "config"],
)
def test_what_a_flag_names_outlives_our_undo_until_docker_is_started_without_it(
    docker_node: Node, flags: str, words: str, *, live: bool
) -> None:
    node = docker_node
    _started_with(node, OWN)
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    node.write("/root/other.json", node.read(DOCKER))
    _started_with(node, f"{OWN} {flags}", restart=live)
    pid = node.pid_of()

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert words in kept.stderr
    assert node.pid_of() == pid
    node.run(["systemctl", "daemon-reload"])
    node.restart("docker")
    for name, entry in _runtimes(node).items():
        assert name == "runc" or node.has(entry["path"])
    node.path("/root/other.json").unlink()
    _started_with(node, OWN)
    assert node.installer("uninstall").returncode == 0
    assert served(node) == ({"runc"}, "runc")
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_an_install_looks_at_the_flags_of_the_next_start(docker_node: Node) -> None:
    _started_with(docker_node, OWN)
    files = snapshot(docker_node)
    _started_with(docker_node, f"{OWN} --default-runtime runc", restart=False)

    done = docker_node.installer("install", *SOURCE, "--set-as-default")

    assert done.returncode == 1
    assert "(its unit starts it with --default-runtime, " in sentence(done.stderr)
    assert snapshot(docker_node) == files


@pytest.fixture
def dead(docker_node: Node) -> Node:
    """Return a node whose dockerd has failed, and is not tried again."""
    docker_node.write(DOCKER, LEFT)
    docker_node.run(["systemctl", "restart", "docker"], check=False)
    docker_node.wait_for("failed", ["systemctl", "show", "-P", "ActiveState", "docker"])
    return docker_node


@pytest.mark.sampled(16)
def test_a_dockerd_that_failed_for_want_of_our_runtime_is_started_with_it(dead: Node) -> None:
    assert dead.installer("plan", *NAMED[1:]).returncode == 10

    dead.installer(*NAMED, check=True)

    assert served(dead) == ({"runc"} | OURS, "nvidia")
    assert dead.installer("status").returncode == 0
    assert dead.installer("plan", *SOURCE).returncode == 0
    assert dead.installer("uninstall").returncode == 4, "it would not start without its default"
    dead.write(DOCKER, dead.read(DOCKER).replace('"default-runtime": "nvidia", ', ""))
    dead.installer("uninstall", check=True)
    assert served(dead) == ({"runc"}, "runc")
    assert dead.read(DOCKER) == '{"debug": true}'


@pytest.mark.any_version
def test_a_dockerd_that_an_install_may_not_start_is_left_as_it_was(dead: Node) -> None:
    def refused(*words: str) -> str:
        files = snapshot(dead)
        done = dead.installer(*words)
        assert done.returncode == 1, done.stderr
        assert snapshot(dead) == files
        return sentence(done.stderr)

    unnamed = refused("install", *SOURCE)
    assert "docker.service is failed/failed" in unnamed
    assert "--runtime" in unnamed

    dead.write(UNIT, "[Service]\nExecStartPre=/bin/false\n")
    dead.run(["systemctl", "daemon-reload"])
    files = snapshot(dead)
    other_reason = dead.installer(*NAMED)
    assert (other_reason.returncode, dead.read(DOCKER)) == (1, LEFT), other_reason.stderr
    assert "restart docker.service" in other_reason.stderr
    dead.installer("uninstall", check=True)
    assert snapshot(dead) == files

    dead.run(["systemctl", "stop", "docker.service", "docker.socket"])
    dead.run(["systemctl", "reset-failed", "docker.service", "docker.socket"], check=False)
    assert "docker.service was stopped" in refused(*NAMED)
    assert dead.show("docker", "ActiveState") == "inactive"
