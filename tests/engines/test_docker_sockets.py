"""A dockerd that its daemon.json has listen elsewhere, and one that its daemon.json keeps down."""

import json

import pytest

from tests.engines.configs import DAEMON_JSON, DOCKER
from tests.engines.nodes import SOURCE, Node
from tests.engines.told import doctor, sentence, snapshot

pytestmark = pytest.mark.any_version

# dockerd does not start with -H and with ``hosts``; docker.socket would keep the usual socket.
UNIT = """\
[Service]
Type=notify
EnvironmentFile=-/etc/default/docker
ExecStart=/usr/sbin/dockerd --containerd=/run/containerd/containerd.sock $DOCKER_OPTS
ExecReload=/bin/kill -s HUP $MAINPID
Delegate=yes
KillMode=process
"""
ELSEWHERE = "/run/elsewhere.sock"


def test_a_docker_whose_daemon_json_names_another_socket_is_found(docker_node: Node) -> None:
    node = docker_node
    node.run(["systemctl", "stop", "docker.socket", "docker.service"])
    node.write("/etc/systemd/system/docker.service", UNIT)
    hosts = {"hosts": [f"unix://{ELSEWHERE}"]}
    node.write(DOCKER, json.dumps(json.loads(DAEMON_JSON) | hosts))
    node.run(["rm", "--force", "/run/docker.sock"])
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", "docker.service"])
    files = snapshot(node)

    node.installer("install", *SOURCE, check=True)
    served = node.run(["docker", "-H", f"unix://{ELSEWHERE}", "info", "--format", "{{.Runtimes}}"]).stdout
    _, checks = doctor(node)

    assert "nvidia-cdi" in served
    assert checks["engine-answers"]["found"].startswith("docker ")
    node.installer("uninstall", check=True)
    assert snapshot(node) == files


def test_a_docker_that_is_down_for_its_daemon_json_has_that_named(docker_node: Node) -> None:
    node = docker_node
    node.write(DOCKER, '{"a": 1,, }')
    node.run(["systemctl", "restart", "docker"], check=False)

    said = [
        sentence(node.installer("install", *SOURCE, *more).stderr) for more in ((), ("--runtime", "docker"))
    ]

    for each in said:
        assert each.startswith(f"cannot read {DOCKER} as JSON (line 1, column 9: "), each
