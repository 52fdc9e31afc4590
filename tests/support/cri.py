"""What containerd answers over CRI, as a real one was seen to say it, for stand-ins on a socket."""

import json
from collections.abc import Mapping
from typing import Any

from installer.config_text import Tree
from tests.host.servers import message

CRI = "/runtime.v1.RuntimeService/"
PLUGINS = "/containerd.services.introspection.v1.Introspection/Plugins"

RUNTIMES: dict[str, Tree] = {
    "runc": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "", "SystemdCgroup": True}},
    "nvidia": {"runtimeType": "io.containerd.runc.v2", "options": {"binaryname": "/opt/nvidia"}},
    "kata": {"runtimeType": "io.containerd.kata.v2", "options": None},
}
# As containerd 2.1.9 says it.
CDI_SAID = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}
CONTAINERD_CONFIG = {"containerd": {"defaultRuntimeName": "runc", "runtimes": RUNTIMES}, **CDI_SAID}
SKIPPED = "skip plugin: cri is not supported here"
BAD_DEFAULT = 'no corresponding runtime configured for default_runtime_name = "nope"'


def version(name: str, number: str) -> bytes:
    return message((1, "0.1.0"), (2, name), (3, number), (4, "v1"))


def cri_status(config: Mapping[str, Any], *, ready: int = 1) -> bytes:
    conditions = message(
        (1, message((1, "RuntimeReady"), (2, ready))),
        (1, message((1, "NetworkReady"), (3, "NetworkPluginNotReady"))),
    )
    return message(
        (1, conditions),
        (2, message((1, "lastCNILoadStatus"))),
        (2, message((1, "config"), (2, json.dumps(config)))),
    )


def plugins(*those: tuple[str, str, str]) -> bytes:
    listed = []
    for kind, name, error in (("io.containerd.content.v1", "content", ""), *those):
        failed = ((7, message((1, 2), (2, error))),) if error else ()
        listed.append((1, message((1, kind), (2, name), *failed)))
    return message(*listed)


CONTAINERD = {
    f"{CRI}Version": version("containerd", "1.7.24"),
    f"{CRI}Status": cri_status(CONTAINERD_CONFIG),
    PLUGINS: plugins(("io.containerd.grpc.v1", "cri", "")),
}
