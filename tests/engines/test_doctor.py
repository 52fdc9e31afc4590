"""doctor on real nodes: nothing bad on a good one, and what somebody breaks is what it names."""

import json
import shutil
from typing import Any

import pytest

from tests.engines.configs import CONTAINERD, DOCKER, base_configs
from tests.engines.cri import CONTAINER, NODE, Cri
from tests.engines.doctors import bad, doctor, warned
from tests.engines.images import IMAGE
from tests.engines.inside import MOUNTS
from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.snapshot import snapshot

pytestmark = pytest.mark.any_version

SOURCE = ("--toolkit-source", ARTIFACTS)
RUNTIME = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
SHIM = "/usr/bin/containerd-shim-runc-v2"
FAILING = b"proc.(*execProcess).pidv"  # what the shims of containerd 1.2.1 and 1.2.2 have in their tables


def config_of(node: Node) -> str:
    return DOCKER if node.engine == "docker" else CONTAINERD


def sleeper(node: Node) -> None:
    if node.engine == "docker":
        node.run(["docker", "run", "--detach", "--net", "none", "--name", "sleeper", IMAGE])
    else:
        node.cri.start_container(node.cri.run_pod())


def give_driver(node: Node) -> None:
    """Add the libraries to the module that nodes seem to have loaded."""
    for root in ("", "/run/nvidia/driver"):
        node.write(f"{root}/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "")


def test_a_dockerd_that_ends_again_and_again_is_told(docker_node: Node) -> None:
    node = docker_node
    node.write(
        "/etc/systemd/system/docker.service.d/loop.conf",
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestartSec=60\n",
    )
    node.run(["systemctl", "daemon-reload"])
    node.write(DOCKER, "{")
    node.run(["systemctl", "restart", "docker"], check=False)

    code, checks = doctor(node)

    assert code == 1
    assert (
        "docker.service ends again and again (activating/auto-restart/exit-code)"
        in bad(checks)["engine-unit"]
    )
    assert "journalctl -u docker.service" in bad(checks)["engine-unit"]


def test_nothing_is_bad_on_a_good_node_and_nothing_is_changed(node: Node) -> None:
    give_driver(node)
    before, pid = snapshot(node, times=True), node.pid_of(node.engine)

    code, checks = doctor(node)

    assert (snapshot(node, times=True), node.pid_of(node.engine)) == (before, pid)
    node.installer("install", *SOURCE, check=True)
    sleeper(node)

    installed, served = doctor(node)

    assert (code, bad(checks), warned(checks)) == (0, {}, {})
    assert (installed, bad(served), warned(served)) == (0, {}, {})
    assert node.containerd_version in served["holes-containerd"]["found"]
    assert served["shim-nil-pointer"]["found"] == f"1 shim, of {node.containerd_version}"
    assert served["runtime-served"]["level"] == "ok"


def test_what_somebody_broke_is_what_it_names(node: Node) -> None:
    give_driver(node)
    node.installer("install", *SOURCE, check=True)
    config, pid = config_of(node), node.pid_of(node.engine)
    ours = node.read(config)

    node.write(config, base_configs(node.engines)[config])
    rewritten = bad(doctor(node)[1])
    node.write(config, "{ = ")
    nonsense = bad(doctor(node)[1])
    node.write(config, ours)
    (node.root / RUNTIME.lstrip("/")).unlink()
    removed = bad(doctor(node)[1])
    node.run(["kill", "-STOP", str(pid)])
    code, hung = doctor(node)
    node.run(["kill", "-CONT", str(pid)])

    assert rewritten.keys() == {"config-in-force", "installation"}
    assert "nvidia" in rewritten["config-in-force"]
    assert nonsense.keys() >= {"config-accepted", "installation"}
    assert removed.keys() == {"runtime-programs", "installation"}
    assert RUNTIME in removed["runtime-programs"]
    assert (code, "no answer within" in bad(hung)["engine-answers"]) == (1, True)


def test_a_shim_with_the_nil_pointer_is_found_after_its_package_was_upgraded(node: Node) -> None:
    give_driver(node)
    program = node.root / SHIM.lstrip("/")
    original = program.with_name("good")
    shutil.copy2(program, original)
    with program.with_name("old").open("wb") as file:
        file.write(program.read_bytes() + b"\0" + FAILING + b"\0")
    program.with_name("old").chmod(0o755)
    program.with_name("old").replace(program)
    sleeper(node)
    original.replace(program)

    code, checks = doctor(node)

    assert code == 1
    assert bad(checks).keys() == {"shim-nil-pointer"}
    assert f"({SHIM}, deleted)" in checks["shim-nil-pointer"]["found"]
    assert checks["shim-replaced"]["level"] == "warn"


def test_an_engine_that_was_configured_and_does_not_run_is_bad(node: Node) -> None:
    give_driver(node)
    node.installer("install", *SOURCE, check=True)
    units = ["docker.service", "docker.socket"] if node.engine == "docker" else ["containerd.service"]
    node.run(["systemctl", "stop", *units])

    code, checks = doctor(node)

    assert code == 1
    assert f"{node.engine} does not run ({units[0]} is inactive/dead" in bad(checks)["installation"]


def test_in_the_pod_of_the_manifests_it_finds_the_same_or_says_what_it_cannot_see(
    containerd_node: Node, cri: Cri
) -> None:
    give_driver(containerd_node)
    containerd_node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod(name="toolkit")
    rights = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SYS_CHROOT")
    container = cri.start_container(pod, mounts=MOUNTS, capabilities=rights, confined=True, apparmor=False)
    words = (PYTHON, "-m", "installer", "doctor", "--json", "--host-root", "/host")
    here = {each["name"]: each for each in json.loads(cri.exec(container, *words).stdout)["checks"]}
    there = doctor(containerd_node)[1]

    differ = {name for name, each in here.items() if each["level"] != there[name]["level"]}
    assert {here[name]["level"] for name in differ} <= {"n/a"}, [here[name] for name in differ]
    assert here["engine-answers"]["level"] == "ok", here["engine-answers"]
    assert here["runtime-served"]["level"] == "ok", here["runtime-served"]
    assert "their programs cannot be read" in here["shim-nil-pointer"]["found"]
    cri.remove_pod(pod)


@pytest.mark.parametrize("pid", [NODE, CONTAINER], ids=["hostPID", "without hostPID"])
def test_from_a_pod_it_finds_and_proves_the_same_as_on_the_host(
    containerd_node: Node, cri: Cri, pid: int
) -> None:
    give_driver(containerd_node)
    containerd_node.installer("install", *SOURCE, check=True)
    pod = cri.run_pod(name="toolkit", pid=pid, privileged=True)
    container = cri.start_container(pod, mounts=MOUNTS, pid=pid, privileged=True)

    def told(verb: str) -> dict[str, Any]:
        done = cri.exec(container, PYTHON, "-m", "installer", verb, "--json", "--host-root", "/host")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    here = {each["name"]: each["level"] for each in told("doctor")["checks"]}
    proven = told("verify")

    assert here == {name: each["level"] for name, each in doctor(containerd_node)[1].items()}
    assert proven["verdict"] == "ok", proven
    cri.remove_pod(pod)
