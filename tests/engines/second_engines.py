"""A second engine on a node."""

from tests.engines.nodes import Node

DOCKERD = (
    "/usr/sbin/dockerd --config-file /etc/docker2/daemon.json --data-root /var/lib/docker/second"
    " --exec-root /run/docker2 -p /run/docker2.pid -H unix:///run/docker2.sock"
    " --containerd /run/containerd/containerd.sock --containerd-namespace moby2"
    " --bridge=none --iptables=false --ip6tables=false"
)


def started(node: Node, unit: str, command: str) -> None:
    service = f"[Service]\nType=notify\nExecStart={command}\nDelegate=yes\nKillMode=process\n"
    node.write(f"/run/systemd/system/{unit}", service)
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", unit])
