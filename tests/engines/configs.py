"""Configurations as administrators have them, each kind of node its own."""

from tests.engines.images import IMAGE
from tests.engines.versions import EngineSet

CONTAINERD = "/etc/containerd/config.toml"
DOCKER = "/etc/docker/daemon.json"

# restrict_oom_score_adj: a machine without CAP_SYS_RESOURCE cannot give a pod the -998 it asks for.
VERSION_2 = f"""\
# Written by the machine's bootstrap; changes are kept.
version = 2
root = "/var/lib/containerd"
oom_score = 0

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    # the pause image is preloaded, nodes have no way to a registry
    sandbox_image = "{IMAGE}"
    restrict_oom_score_adj = true

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = false # cgroupfs, as the kubelet here

    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
"""
VERSION_3 = f"""\
# Written by the machine's bootstrap; changes are kept.
version = 3
root = '/var/lib/containerd'
oom_score = 0

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  # the pause image is preloaded, nodes have no way to a registry
  sandbox = '{IMAGE}'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false # cgroupfs, as the kubelet here
"""
# As the packages of Docker's makers ship it: such a containerd serves dockerd only.
OF_DOCKER = """\
#   Licensed under the Apache License, Version 2.0 (the "License");
#   you may not use this file except in compliance with the License.

disabled_plugins = ["cri"]

#root = "/var/lib/containerd"
"""
DAEMON_JSON = """\
{
    "log-driver": "json-file",
    "log-opts": {
        "max-size": "10m",
        "max-file": "3"
    }
}
"""


def base_configs(engines: EngineSet) -> dict[str, str]:
    """Return path and text of each config file a node has before its engines first start."""
    if engines.docker:
        return {CONTAINERD: OF_DOCKER, DOCKER: DAEMON_JSON}
    return {CONTAINERD: VERSION_2 if engines.containerd.startswith("1.") else VERSION_3}
