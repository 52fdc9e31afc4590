"""A containerd that goes wrong as real ones rarely do; started as the unit containerd.service of a node.

The first line of /run/fake/behaviour says how it goes wrong, as soon as its config names our runtime; until
then it is well. It speaks as much CRI as the installer asks for.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.host.servers import message  # the project is where the node's Python looks

SOCKET = "/run/containerd/containerd.sock"
CONFIG = "/etc/containerd/config.toml"
PLUGIN = "io.containerd.grpc.v1.cri"
PR_SET_NAME = 15


class Fake(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Answers with what the config said at the start, changed as the behaviour has it."""

    def __init__(self, behaviour: str, containerd: dict[str, Any]) -> None:
        self.behaviour = behaviour
        self.containerd = containerd

    def service(self, details: Any) -> Any:
        method = details.method.rsplit("/", 1)[1]
        if not hasattr(self, method):
            return None
        return grpc.unary_unary_rpc_method_handler(lambda _, __: self.answer(method))

    def answer(self, method: str) -> bytes:
        if self.behaviour == "hang":
            time.sleep(60)
        said: bytes = getattr(self, method)()
        return said

    def Version(self) -> bytes:  # noqa: N802 - CRI's name
        return message((1, "0.1.0"), (2, "containerd"), (3, "1.7.24"), (4, "v1"))

    def Status(self) -> bytes:  # noqa: N802
        ready = message((1, message((1, "RuntimeReady"), (2, self.behaviour != "unready"))))
        config = {
            "containerd": {"runtimes": {}, "defaultRuntimeName": self.containerd["default_runtime_name"]}
        }
        for name, runtime in self.containerd["runtimes"].items():
            if self.behaviour == "lie" and name != "runc":
                continue
            config["containerd"]["runtimes"][name] = {
                "runtimeType": runtime["runtime_type"],
                "options": runtime.get("options") or {},
            }
        return message((1, ready), (2, message((1, "config"), (2, json.dumps(config)))))

    def ListContainers(self) -> bytes:  # noqa: N802
        return b""

    def Plugins(self) -> bytes:  # noqa: N802
        return message((1, message((1, "io.containerd.grpc.v1"), (2, "cri"))))


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"containerd", 0, 0, 0)
    config = tomllib.loads(Path(CONFIG).read_text())["plugins"][PLUGIN]["containerd"]
    behaviour = Path("/run/fake/behaviour").read_text().strip() if "nvidia" in config["runtimes"] else ""
    Path(SOCKET).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8), handlers=[Fake(behaviour, config)])
    server.add_insecure_port(f"unix:{SOCKET}")
    server.start()
    if behaviour == "never-ready":
        signal.sigwait({signal.SIGTERM})
        os._exit(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    if behaviour == "die-later":
        sys.stderr.write("level=fatal the fake thought better of it\n")
        sys.stderr.flush()
        os._exit(1)
    signal.sigwait({signal.SIGTERM})
    os._exit(0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
