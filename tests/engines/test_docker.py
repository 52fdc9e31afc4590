"""What dockerd has in force beside its daemon.json: kept defaults, other people's runtimes, defaults of theirs."""

import json
from typing import Any

import pytest

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot
from tests.engines.told import sentence, served
from tests.support.entry import NVIDIAS

SOURCE = ("--toolkit-source", ARTIFACTS)
OURS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
OTHER = {"other": {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}}


def _runtimes(node: Node) -> dict[str, Any]:
    """Return the runtimes in dockerd's own words, but for what runc says of itself and the shims."""
    said = json.loads(node.run(["docker", "info", "--format", "{{json .Runtimes}}"]).stdout)
    return {
        name: {key: value for key, value in entry.items() if key != "status"}
        for name, entry in said.items()
        if not name.startswith("io.containerd.")
    }


def test_another_name_for_the_default_runtime_does_not_end_dockerd(docker_node: Node) -> None:
    files, before, pid = snapshot(docker_node), served(docker_node), docker_node.pid_of("docker")
    docker_node.installer("install", *SOURCE, "--set-as-default", check=True)

    done = docker_node.installer("install", *SOURCE, "--runtime-name", "gpu")

    assert done.returncode == 0, done.stderr
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc", "gpu", "nvidia-cdi", "nvidia-legacy"}, "runc")
    docker_node.installer("uninstall", check=True)
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == before
    assert snapshot(docker_node) == files


def test_a_default_that_the_file_names_no_more_does_not_end_dockerd(docker_node: Node) -> None:
    text = json.dumps({"default-runtime": "other", "runtimes": OTHER})
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")
    docker_node.write(DOCKER, DAEMON_JSON)
    pid = docker_node.pid_of("docker")

    planned = docker_node.installer("plan", *SOURCE)
    done = docker_node.installer("install", *SOURCE)

    assert "Docker has the default runtime other in force" in planned.stdout
    assert done.returncode == 0, done.stderr
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    docker_node.installer("uninstall", check=True)
    assert docker_node.pid_of("docker") == pid
    assert served(docker_node) == ({"runc"}, "runc")
    assert docker_node.read(DOCKER) == DAEMON_JSON


def test_a_default_that_is_asked_for_no_more_is_not_in_force_any_more(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    plain = docker_node.read(DOCKER)
    docker_node.installer("install", *SOURCE, "--set-as-default", check=True)

    planned = docker_node.installer("plan", *SOURCE)
    docker_node.installer("install", *SOURCE, check=True)

    assert planned.returncode == 10
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    assert docker_node.read(DOCKER) == plain
    assert docker_node.installer("plan", *SOURCE).returncode == 0
    assert docker_node.installer("status").returncode == 0


def test_a_default_that_dockerd_keeps_is_set_back_also_where_the_file_is_right(docker_node: Node) -> None:
    docker_node.installer("install", *SOURCE, check=True)
    plain = json.loads(docker_node.read(DOCKER))
    text = docker_node.read(DOCKER)
    docker_node.write(DOCKER, json.dumps(plain | {"default-runtime": "nvidia"}))
    docker_node.run(["systemctl", "reload", "docker"])
    docker_node.wait_for("nvidia", ["docker", "info", "--format", "{{.DefaultRuntime}}"])
    docker_node.write(DOCKER, text)

    planned = docker_node.installer("plan", *SOURCE)
    docker_node.installer("install", *SOURCE, check=True)

    assert planned.returncode == 10
    assert served(docker_node) == ({"runc"} | OURS, "runc")
    assert docker_node.read(DOCKER) == text


@pytest.mark.any_version
@pytest.mark.parametrize("before", [None, DAEMON_JSON], ids=["no config before us", "one of its owner's"])
def test_an_undo_does_not_need_the_directory_of_a_config_that_somebody_has_removed(
    docker_node: Node, before: str | None
) -> None:
    docker_node.run(["rm", "-rf", "/etc/docker"])
    if before is not None:
        docker_node.run(["mkdir", "/etc/docker"])
        docker_node.write(DOCKER, before)
    docker_node.restart("docker")
    told, pid = served(docker_node), docker_node.pid_of("docker")
    docker_node.installer("install", *SOURCE, check=True)
    docker_node.run(["rm", "-rf", "/etc/docker"])

    done = docker_node.installer("uninstall")

    assert done.returncode == 0, done.stderr
    assert (served(docker_node), docker_node.pid_of("docker")) == (told, pid)
    assert not [path for path in snapshot(docker_node) if path.startswith("/etc/docker")]


def test_the_runtimes_of_others_are_served_as_before(docker_node: Node) -> None:
    others = OTHER | {"plain": {"path": "/usr/bin/runc"}}
    text = json.dumps({"default-runtime": "other", "runtimes": others}, indent=4)
    docker_node.write(DOCKER, text)
    docker_node.restart("docker")
    before = _runtimes(docker_node)

    docker_node.installer("install", *SOURCE, check=True)
    during = _runtimes(docker_node)
    default = served(docker_node)[1]
    docker_node.installer("uninstall", check=True)

    assert {name: entry for name, entry in during.items() if name not in OURS} == before
    assert default == "other"
    assert _runtimes(docker_node) == before
    assert served(docker_node)[1] == "other"
    assert docker_node.read(DOCKER) == text


def _started_with(node: Node, flags: str, *settings: str, restart: bool = True) -> None:
    """Start dockerd with more flags and settings of its unit; its own docker-proxy is elsewhere."""
    if not (node.root / "opt/own").exists():
        node.run(["mkdir", "-p", "/opt/own"])
        node.run(["mv", "/usr/sbin/docker-proxy", "/opt/own/docker-proxy"])
    command = "/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock $DOCKER_OPTS"
    lines = ["[Service]", "ExecStart=", f"ExecStart={command} {flags}", *settings]
    node.write("/run/systemd/system/docker.service.d/own.conf", "\n".join(lines) + "\n")
    node.run(["systemctl", "daemon-reload"])
    if restart:
        node.restart("docker")


@pytest.mark.any_version
@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        pytest.param("--userland-proxy-path=/opt/own/docker-proxy", (), id="flags"),
        pytest.param("", ("Environment=PATH=/opt/own:/usr/sbin:/usr/bin:/sbin:/bin",), id="environment"),
    ],
)
@pytest.mark.parametrize("seen", [True, False], ids=["its process is seen", "in another pid namespace"])
def test_dockerd_validates_as_it_was_started(
    docker_node: Node, flags: str, settings: tuple[str, ...], *, seen: bool
) -> None:
    _started_with(docker_node, flags, *settings)
    inside = "mkdir /host && mount --rbind / /host && mount -t proc proc /proc && "
    install = f"{PYTHON} -m installer install --toolkit-source {ARTIFACTS}"
    command = (
        ["sh", "-c", install]
        if seen
        else ["unshare", "--mount", "--pid", "--fork", "sh", "-c", f"{inside}{install} --host-root /host"]
    )

    done = docker_node.run(command, check=False)

    assert done.returncode == 0, done.stderr
    assert "is not validated" not in done.stderr  # as said where what the program tells cannot be believed
    assert served(docker_node)[0] > OURS


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_runtime_that_an_admin_made_the_default_stays_until_he_names_another(
    docker_node: Node, *, stopped: bool
) -> None:
    node, files, before = docker_node, snapshot(docker_node), served(docker_node)
    node.installer("install", *SOURCE, check=True)
    said = json.loads(node.read(DOCKER))
    node.write(DOCKER, json.dumps(said | {"default-runtime": "nvidia"}))
    node.restart("docker")
    pid = node.pid_of("docker")
    if stopped:
        node.run(["systemctl", "stop", "docker.service", "docker.socket"])

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert f"(it was made the default in {DOCKER})" in sentence(kept.stderr)
    assert json.loads(node.read(DOCKER))["runtimes"].keys() == OURS
    assert stopped or node.pid_of("docker") == pid
    node.restart("docker")
    assert served(node) == ({"runc"} | OURS, "nvidia")
    left = json.loads(node.read(DOCKER))
    node.write(DOCKER, json.dumps(left | {"default-runtime": "runc"}))
    node.restart("docker")
    assert node.installer("uninstall").returncode == 0
    assert served(node) == before
    del files[DOCKER]
    assert snapshot(node).items() >= files.items()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_default_that_a_flag_makes_keeps_its_runtime_until_the_flag_is_gone(
    docker_node: Node, *, stopped: bool
) -> None:
    node = docker_node
    _started_with(node, "--userland-proxy-path=/opt/own/docker-proxy")
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    _started_with(node, "--userland-proxy-path=/opt/own/docker-proxy --default-runtime nvidia")
    pid = node.pid_of("docker")
    if stopped:
        node.run(["systemctl", "stop", "docker.service", "docker.socket"])

    kept = node.installer("uninstall")
    again = node.installer("uninstall")

    assert (kept.returncode, again.returncode) == (4, 4), kept.stderr
    assert sentence(again.stderr) == sentence(kept.stderr)
    assert "it was started with --default-runtime nvidia); start Docker without that" in sentence(kept.stderr)
    assert json.loads(node.read(DOCKER))["runtimes"].keys() == OURS
    if stopped:
        node.run(["systemctl", "start", "docker"])
    assert served(node) == ({"runc"} | OURS, "nvidia")
    assert stopped or node.pid_of("docker") == pid
    node.restart("docker")
    assert served(node) == ({"runc"} | OURS, "nvidia")
    _started_with(node, "--userland-proxy-path=/opt/own/docker-proxy")
    assert node.installer("uninstall").returncode == 0
    assert served(node) == ({"runc"}, "runc")
    assert snapshot(node) == files


def test_a_runtime_of_a_flag_outlives_our_undo_and_its_program_with_it(docker_node: Node) -> None:
    node = docker_node
    node.installer("install", *SOURCE, check=True)
    own = "--userland-proxy-path=/opt/own/docker-proxy"
    flag = "gpu=/usr/local/nvidia/toolkit/nvidia-container-runtime"
    _started_with(node, f"{own} --add-runtime {flag} --add-runtime other=/usr/sbin/runc")
    pid = node.pid_of("docker")

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert "Docker was started with a flag for gpu" in sentence(kept.stderr)
    assert served(node) == ({"runc", "gpu", "other"}, "runc")
    assert node.pid_of("docker") == pid
    assert node.read(DOCKER) == DAEMON_JSON
    assert (node.root / "usr/local/nvidia/toolkit/nvidia-container-runtime").exists()
    _started_with(node, f"{own} --add-runtime other=/usr/sbin/runc")
    assert node.installer("uninstall").returncode == 0
    assert served(node) == ({"runc", "other"}, "runc")
    assert not (node.root / "usr/local/nvidia").exists()


@pytest.mark.any_version
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(
            "--default-runtime nvidia", "its unit starts it with --default-runtime nvidia", id="default"
        ),
        pytest.param(
            "--add-runtime gpu=/usr/local/nvidia/toolkit/nvidia-container-runtime",
            "Docker will be started by its unit with a flag for gpu",
            id="runtime",
        ),
        pytest.param("--config-file /root/other.json", "(/root/other.json names ", id="config"),
    ],
)
def test_flags_that_only_the_next_start_brings_count_already(
    docker_node: Node, flags: str, words: str
) -> None:
    node, own = docker_node, "--userland-proxy-path=/opt/own/docker-proxy"
    _started_with(node, own)
    files = snapshot(node)
    node.installer("install", *SOURCE, check=True)
    node.write("/root/other.json", node.read(DOCKER))
    _started_with(node, f"{own} {flags}", restart=False)

    kept = node.installer("uninstall")

    assert kept.returncode == 4, kept.stderr
    assert words in kept.stderr
    node.run(["systemctl", "daemon-reload"])
    node.restart("docker")
    for name, entry in _runtimes(node).items():
        program = entry["path"]
        assert name == "runc" or (node.root / program.lstrip("/")).exists()
    (node.root / "root/other.json").unlink()
    _started_with(node, own)
    assert node.installer("uninstall").returncode == 0
    assert served(node) == ({"runc"}, "runc")
    assert snapshot(node) == files


def test_an_install_looks_at_the_flags_of_the_next_start(docker_node: Node) -> None:
    own = "--userland-proxy-path=/opt/own/docker-proxy"
    _started_with(docker_node, own)
    files = snapshot(docker_node)
    _started_with(docker_node, f"{own} --default-runtime runc", restart=False)

    done = docker_node.installer("install", *SOURCE, "--set-as-default")

    assert done.returncode == 1
    assert "(its unit starts it with --default-runtime, " in sentence(done.stderr)
    assert snapshot(docker_node) == files


def test_what_a_flag_says_may_not_stand_in_the_file_too(docker_node: Node) -> None:
    _started_with(docker_node, "--userland-proxy-path=/opt/own/docker-proxy")
    text = json.dumps({"userland-proxy-path": "/opt/own/docker-proxy"})
    docker_node.write(DOCKER, text)  # after its start, which it would not survive

    done = docker_node.installer("install", *SOURCE, "--timeout", "2")

    validates = not str(docker_node.docker_version).startswith("20.")
    assert done.returncode == (1 if validates else 4), done.stderr
    assert ("(it refuses the config it has: " in sentence(done.stderr)) == validates
    # 20.10 cannot validate. It refuses each reload with such a file, the one back too: the ledger is kept.
    assert docker_node.read(DOCKER) == text or not validates


def test_cdi_that_dockerd_takes_up_at_its_next_start_is_told_as_pending(docker_node: Node) -> None:
    node, files = docker_node, snapshot(docker_node)
    old = str(node.docker_version).startswith("20.")
    at_once = node.run(["docker", "info", "--format", "{{json .}}"]).stdout
    already = bool(json.loads(at_once).get("CDISpecDirs"))  # 28 has it without being asked
    when = "has no effect, for this dockerd has no CDI" if old else "takes effect when dockerd starts"
    install = [
        PYTHON,
        *NVIDIAS,
        "--no-daemon",
        "--runtime=docker",
        f"--toolkit-source-root={ARTIFACTS}",
    ]
    install += ["--enable-cdi-in-runtime", "--nvidia-driver-root=/", "--config=/etc/docker/daemon.json"]

    done = node.run(install)
    told = f"features.cdi in {DOCKER} {when}"
    said = node.installer("status").stdout
    node.restart("docker")
    again = node.run(install)

    assert (told in done.stderr) == (told in said) == (not already)
    assert (told in again.stderr) == (told in node.installer("status").stdout) == old
    assert "nothing changed" in again.stderr
    node.installer("uninstall", check=True)
    assert snapshot(node) == files
