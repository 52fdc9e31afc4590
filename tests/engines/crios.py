"""A node whose engine is the fake CRI-O, under the unit that a real one comes with."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.engines.nodes import PYTHON, Node
from tests.engines.payload import ARTIFACTS
from tests.engines.versions import EngineSet

if TYPE_CHECKING:
    from tests.engines.conftest import Boot  # which has the fixtures of this node

ASKED = ("--runtime", "crio", "--toolkit-source", ARTIFACTS)
HERE = Path(__file__).parent
STATE = "/run/containers/storage/overlay-containers"
DROP_INS = "/etc/crio/crio.conf.d"
OURS = f"{DROP_INS}/99-nvidia.toml"
SANDBOX = "415635d5fdde8b8339d4"
CONF = '# Written by the bootstrap of the machine.\n[crio.runtime]\ndefault_runtime = "crun"\n'
RECORDED = {
    "default.toml": "config.toml",
    "reloaded.toml": "config-reloaded.toml",
    "exec.json": "exec-in-flight.json",
}
# A conmon that ends when it is told to, or in the end; its name is what it was started by.
PROGRAMS = {"crun": "", "runc": "", "conmon": "sleep 20\n", "pinns": ""}
# What a start looks for that no config names (engine-facts.md#crio-conmon).
IN_PATH = ("crun", "conmon", "pinns")
# As cri-o's contrib/systemd/crio.service, but for the program; @ gives it the name that a real one has.
UNIT = f"""\
[Service]
Type=notify
Environment=PYTHONHOME=/usr
ExecStart=@{PYTHON} crio /run/fake/crio.py
ExecReload=/bin/kill -s HUP $MAINPID
Restart=on-failure
RestartSec=10
"""


@contextmanager
def crio_booted(booted: "Boot", engines: list[EngineSet]) -> Iterator[Node]:
    """Boot a node with the fake CRI-O and no other engine."""
    with booted(next(each for each in engines if not each.docker), start=False) as node:
        node.write("/run/fake/crio.py", (HERE / "fake_crio.py").read_text())
        for name, recorded in RECORDED.items():
            node.write(f"/run/fake/{name}", (HERE / "crio" / recorded).read_text())
        node.write("/etc/crio/crio.conf", CONF)
        for name, text in PROGRAMS.items():
            node.write(f"/usr/libexec/crio/{name}", f"#!/bin/sh\n{text}")
            node.run(["chmod", "755", f"/usr/libexec/crio/{name}"])
        for name in IN_PATH:
            node.run(["ln", "-s", f"/usr/libexec/crio/{name}", f"/usr/bin/{name}"])
        node.run(["mkdir", "-p", DROP_INS, STATE, "/etc/cdi", "/usr/share/containers/oci/hooks.d"])
        node.write("/run/systemd/system/crio.service", UNIT)
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "start", "crio"])
        yield node


def call(node: Node, method: str, request: bytes = b"", timeout_s: float = 120) -> bytes:
    """Call CRI-O as the kubelet does."""
    import grpc

    path = node.root / "run/crio/crio.sock"
    with grpc.insecure_channel(f"unix:{path}", options=(("grpc.default_authority", "localhost"),)) as channel:
        answer: bytes = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(
            request, timeout=timeout_s
        )
    return answer


def stop_container(node: Node, name: str, grace_s: int) -> threading.Thread:
    """Have a container ended, and go on meanwhile.

    CRI-O may be restarted in the moment in which it answers; a kubelet then asks again, and finds it ended.
    """
    import grpc

    request = bytes([0x0A, len(name)]) + name.encode() + bytes([0x10, grace_s])

    def stop() -> None:
        try:
            call(node, "StopContainer", request)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


def run_pod(node: Node, handler: str) -> None:
    """Start a pod on a handler."""
    call(node, "RunPodSandbox", bytes([0x12, len(handler)]) + handler.encode())


def reload(node: Node) -> None:
    node.run(["systemctl", "reload", "crio"])
    time.sleep(0.2)


def bundle(node: Node, name: str, annotations: dict[str, str], pid: int | None = None) -> None:
    """Write what CRI-O keeps of a container."""
    said = {f"io.kubernetes.cri-o.{key}": value for key, value in annotations.items()}
    node.write(f"{STATE}/{name}/userdata/config.json", json.dumps({"annotations": said}))
    if pid is not None:
        node.write(f"{STATE}/{name}/userdata/pidfile", str(pid))
