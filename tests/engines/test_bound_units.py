"""Units that systemd stops along with containerd, and that hold containers: no restart of ours ends these."""

import json

import pytest

from tests.engines.bound_docker import bind, is_running, run_container
from tests.engines.configs import CONTAINERD, DAEMON_JSON, DOCKER
from tests.engines.images import IMAGE
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import sentence, snapshot
from tests.support.waiting import until

pytestmark = pytest.mark.any_version

INSTALL = ("install", "--runtime", "containerd", *SOURCE)
PLAN = ("plan", "--runtime", "containerd", *SOURCE)


def _with(key: str, value: object) -> str:
    """Return a daemon.json with live-restore and one more key."""
    return json.dumps({**json.loads(DAEMON_JSON), "live-restore": True, key: value})


@pytest.mark.sampled(16)
@pytest.mark.parametrize("setting", ["Requires", "BindsTo", "PartOf"])
def test_containers_of_a_docker_that_stops_with_containerd_are_not_ended(
    docker_node: Node, setting: str
) -> None:
    node = docker_node
    bind(node, setting)
    run_container(node)
    files, pids = snapshot(node), [node.pid_of(unit) for unit in ("containerd", "docker")]

    planned, refused = node.installer(*PLAN), node.installer(*INSTALL)

    assert is_running(node)
    assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
    reason = f"docker.service, which has {setting}=containerd.service"
    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    for done in (planned, refused):
        assert reason in done.stdout + done.stderr
    assert "web" in sentence(refused.stderr)
    assert "live-restore" in sentence(refused.stderr)
    assert "--restart-mode none" in sentence(refused.stderr)
    assert snapshot(node) == files

    # The remedies: to leave the restart to the owner, or live-restore.
    node.installer(*INSTALL, "--restart-mode", "none", check=True)
    assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
    undone = node.installer("uninstall", "--restart-mode", "none")
    assert undone.returncode == 0, undone.stderr
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
    node.run(["systemctl", "reload", "docker"])
    node.wait_for("true", ["docker", "info", "--format", "{{.LiveRestoreEnabled}}"])
    node.installer(*INSTALL, check=True)
    assert node.pid_of("containerd") != pids[0]
    assert node.pid_of("docker") != pids[1]
    assert is_running(node)


@pytest.mark.sampled(16)
def test_an_undo_that_would_end_containers_restarts_nothing_until_they_have_ended(docker_node: Node) -> None:
    node = docker_node
    bind(node, "Requires")
    files = snapshot(node)
    text = node.read(CONTAINERD)
    node.installer(*INSTALL, check=True)  # Docker holds no container yet
    run_container(node)
    pids = [node.pid_of(unit) for unit in ("containerd", "docker")]

    undone = node.installer("uninstall")

    assert undone.returncode == 4, undone.stderr
    assert "docker.service, which has Requires=containerd.service" in sentence(undone.stderr)
    assert is_running(node)
    assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
    assert node.read(CONTAINERD) == text
    assert node.has("/usr/local/nvidia/toolkit/nvidia-container-runtime"), "containerd still serves it"

    # What containerd serves already takes no restart to install again.
    node.installer(*INSTALL, check=True)
    assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
    node.run(["docker", "rm", "--force", "web"])
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_live_restore_that_the_next_start_of_docker_has_no_more_keeps_no_container(docker_node: Node) -> None:
    node = docker_node
    bind(node, "Requires")
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
    node.restart("docker")
    run_container(node)
    pid = node.pid_of("containerd")
    for text, reason in (
        (DAEMON_JSON, "1 container: web"),
        (DAEMON_JSON.replace("{", "{,", 1), f"Docker itself, which cannot read {DOCKER} as JSON"),
        (_with(key="live-restore", value="yes"), "Docker itself, which cannot start (/usr/sbin/dockerd: "),
        (_with(key="storage-driver", value="nope"), f"start with {DOCKER} (there is no storage-driver nope)"),
        (_with(key="default-runtime", value="gone"), f"Docker itself, which cannot start with {DOCKER} ("),
        (_with(key="authorization-plugins", value=["site"]), "the authorization plugin site, which does not"),
    ):
        node.write(DOCKER, text)

        refused = node.installer(*INSTALL)

        assert refused.returncode == 1, refused.stderr
        assert reason in sentence(refused.stderr)
        assert node.pid_of("containerd") == pid
        assert is_running(node)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("setting", ["Requires", "PartOf"])
def test_a_containerd_that_is_down_is_not_healed_at_the_cost_of_dockers_containers(
    docker_node: Node, setting: str
) -> None:
    node = docker_node
    bind(node, setting)
    node.installer(*INSTALL, check=True)
    run_container(node)
    node.write(
        "/etc/systemd/system/containerd.service.d/site.conf", "[Service]\nRestart=always\nRestartSec=300\n"
    )
    node.run(["systemctl", "daemon-reload"])
    pid = node.pid_of("docker")
    node.run(["systemctl", "kill", "--signal=KILL", "--kill-who=main", "containerd"])
    until(lambda: node.show("containerd.service", "ActiveState") == "activating", lambda: setting)

    for verb in (("uninstall",), (*INSTALL, "--runtime-name", "gpu")):
        node.installer(*verb)

        assert node.pid_of("docker") == pid
        assert is_running(node)

    node.run(["systemctl", "restart", "containerd"])  # its owner's act
    node.cri.wait()
    node.run(["docker", "rm", "--force", "web"])
    node.installer("uninstall", check=True)


STARTS = "/etc/systemd/system/docker.service.d/starts.conf"
# Docker takes seconds to start, and fails while a file is there.
SLOW = """\
[Service]
ExecStartPre=/usr/bin/test ! -e /run/broken
ExecStartPre=/bin/sleep 4
"""


def _repair_docker(node: Node) -> None:
    node.run(["rm", "/run/broken"])
    node.run(["systemctl", "reset-failed", "docker"], check=False)
    node.run(["systemctl", "start", "docker"])


@pytest.mark.long
@pytest.mark.sampled(16)
def test_a_docker_that_is_restarted_along_is_told_awaited_and_not_left_down_in_silence(
    docker_node: Node,
) -> None:
    node = docker_node
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
    node.write(STARTS, SLOW)
    bind(node, "BindsTo")
    run_container(node)
    files, text, pid = snapshot(node), node.read(CONTAINERD), node.pid_of("docker")
    note = (
        "the restart of containerd restarts docker.service, too, which has BindsTo=containerd.service: its "
        "containers stay, by live-restore"
    )

    planned, installed = node.installer(*PLAN, "--json"), node.installer(*INSTALL)

    assert note in json.loads(planned.stdout)["notes"]
    assert installed.returncode == 0, installed.stderr
    assert note in installed.stderr
    assert node.show("docker", "ActiveState") == "active"
    assert node.pid_of("docker") != pid
    assert is_running(node)

    # An undo after which Docker does not start again is told, and finished after its repair.
    node.write("/run/broken", "")
    undone = node.installer("uninstall")
    assert undone.returncode == 4, undone.stderr
    assert note in undone.stderr
    assert "restart containerd together with docker.service (docker.service is " in sentence(undone.stderr)
    assert "journalctl -u docker.service" in sentence(undone.stderr)
    assert node.read(CONTAINERD) == text
    status, again = node.installer("status"), node.installer("uninstall")
    assert (status.returncode, again.returncode) == (1, 4), again.stderr
    down = "docker.service is failed/failed since our restart of another unit"
    remedy = "correct docker.service (see journalctl -u docker.service on the node) and start it"
    assert "failed/failed since our restart of another unit: correct" in status.stdout
    assert f"cannot finish the undo ({down}); {remedy}" in sentence(again.stderr)
    _repair_docker(node)
    assert "BAD docker.service" not in node.installer("status").stdout
    assert is_running(node)
    node.installer("uninstall", check=True)
    assert snapshot(node) == files

    # An install is rolled back; the roll-back tells that Docker is down.
    node.write("/run/broken", "")
    failed = node.installer(*INSTALL)
    assert failed.returncode == 4, failed.stderr
    assert "restart containerd together with docker.service (docker.service is " in sentence(failed.stderr)
    assert node.read(CONTAINERD) == text
    _repair_docker(node)
    assert is_running(node)
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


@pytest.mark.sampled(16)
def test_a_docker_whose_next_start_keeps_its_data_elsewhere_is_not_restarted_along(docker_node: Node) -> None:
    node = docker_node
    text = json.dumps({**json.loads(DAEMON_JSON), "live-restore": True})
    node.write(DOCKER, text)
    bind(node, "BindsTo")
    run_container(node)
    pids = [node.pid_of(unit) for unit in ("containerd", "docker")]
    elsewhere = "1 container: web (its next start has the data-root {}, and it runs with /var/lib/docker)"

    def refused() -> str:
        done = node.installer(*INSTALL)
        assert done.returncode == 1, done.stderr
        assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
        assert is_running(node)
        return sentence(done.stderr)

    node.write(DOCKER, _with(key="data-root", value="/srv/docker"))
    assert elsewhere.format("/srv/docker") in refused()

    # The flags of the next start count as well.
    node.write(DOCKER, text)
    node.write("/etc/default/docker", "DOCKER_OPTS='--bridge=none --iptables=false --data-root=/srv/opts'\n")
    assert elsewhere.format("/srv/opts") in refused()


@pytest.mark.sampled(16)
def test_a_docker_that_a_cdi_specification_would_crash_is_not_restarted_along(docker_node: Node) -> None:
    node = docker_node
    if not (node.docker_version or "").startswith("28."):  # CDI is on without a setting
        return
    directory = "/etc/site-cdi"  # containerd does not read it
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
    bind(node, "Requires")
    run_container(node)
    pids = [node.pid_of(unit) for unit in ("containerd", "docker")]
    node.write(DOCKER, _with(key="cdi-spec-dirs", value=[directory]))
    node.write(f"{directory}/x.yaml", "cdiVersion: 0.5.0\nkind: vendor.com/x\ndevices: []\n")

    refused = node.installer(*INSTALL)

    assert refused.returncode == 1, refused.stderr
    words = f"Docker itself, which cannot start: {directory}/x.yaml has the kind vendor.com/x"
    assert words in sentence(refused.stderr)
    assert f"remove {directory}/x.yaml" in sentence(refused.stderr)
    assert [node.pid_of(unit) for unit in ("containerd", "docker")] == pids
    assert is_running(node)
    node.run(["systemctl", "restart", "docker"], check=False)
    assert node.run(["docker", "info"], check=False).returncode, "dockerd itself crashes"
    node.run(["rm", f"{directory}/x.yaml"])
    node.run(["systemctl", "reset-failed", "docker"])
    node.run(["systemctl", "start", "docker"])
    node.installer(*INSTALL, check=True)
    assert is_running(node)


@pytest.mark.sampled(16)
def test_a_roll_back_starts_a_docker_that_an_install_has_taken_down(docker_node: Node) -> None:
    node = docker_node
    node.write(DOCKER, json.dumps({**json.loads(DAEMON_JSON), "live-restore": True}))
    # Docker does not start while containerd's config names our runtimes.
    start = f"[Service]\nRestart=no\nExecStartPre=/bin/sh -c '! grep -q nvidia {CONTAINERD}'\n"
    node.write(STARTS, start)
    bind(node, "BindsTo")
    run_container(node)
    files = snapshot(node)

    failed = node.installer(*INSTALL)

    assert failed.returncode == 1, failed.stderr
    assert "restart containerd together with docker.service (" in sentence(failed.stderr)
    assert node.show("docker", "ActiveState") == "active"
    assert is_running(node)
    node.installer("uninstall", check=True)  # forgets the failed plan
    assert snapshot(node) == files


ONESHOT = """\
[Unit]
PartOf=containerd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={start}
ExecStop={stop}
"""


def _start_oneshot(node: Node, name: str, start: str, stop: str) -> None:
    node.write(f"/etc/systemd/system/{name}.service", ONESHOT.format(start=start, stop=stop))
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", name])


@pytest.mark.sampled(16)
def test_a_oneshot_unit_that_stops_with_containerd_keeps_its_container(docker_node: Node) -> None:
    node = docker_node
    bind(node, "After")
    docker_run = f"/usr/bin/docker run --detach --network=none --name web {IMAGE} sleep 3600"
    _start_oneshot(node, "web", docker_run, "/usr/bin/docker rm -f web")
    _start_oneshot(node, "rules", "/bin/true", "/bin/true")
    container = node.run(["docker", "inspect", "--format", "{{.Id}}", "web"]).stdout
    files, pid = snapshot(node), node.pid_of("containerd")

    planned, refused = node.installer(*PLAN), node.installer(*INSTALL)

    assert (planned.returncode, refused.returncode) == (1, 1), refused.stderr
    reason = "web.service, which has PartOf=containerd.service, and that ends the container of its ExecStop"
    assert reason in sentence(refused.stderr)
    assert "(docker rm)" in sentence(refused.stderr)
    assert "stop web.service first" in sentence(refused.stderr)
    assert node.run(["docker", "inspect", "--format", "{{.Id}}", "web"]).stdout == container
    assert is_running(node)
    assert node.pid_of("containerd") == pid
    assert snapshot(node) == files

    # The remedy. The oneshot without containers is stopped along, and started again by systemd.
    node.run(["systemctl", "stop", "web"])
    node.installer(*INSTALL, check=True)
    assert node.pid_of("containerd") != pid
    assert node.show("rules", "ActiveState") == "active"
    node.installer("uninstall", check=True)
