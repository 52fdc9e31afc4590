"""A node with a driver for GPUs by CDI, what a container sees of it, and who asks an engine all the while."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.engines.cri import CriError
from tests.engines.nodes import Node
from tests.engines.payload import ARTIFACTS

MODE = ("--toolkit-source", ARTIFACTS, "--mode", "cdi", "--driver-root", "/opt/driver")
SPECIFICATION = "/run/cdi/nvidia.com-gpu.json"
LIBRARIES = "/opt/driver/usr/lib/x86_64-linux-gnu"
GPU = "nvidia.com/gpu=0"
EVERY_S = 0.005
TELLS = """
echo "$NVIDIA_VISIBLE_DEVICES"
ls /usr/lib/x86_64-linux-gnu
test -c /dev/nvidia0 && echo x > /dev/nvidia0 && echo device
"""


def driver(node: Node, version: str) -> None:
    """Put a driver of a version in the place of what is there; its one GPU is a device that takes anything."""
    node.run(["rm", "-rf", LIBRARIES])
    node.write(f"{LIBRARIES}/libcuda.so.{version}", version)
    node.run(["ln", "-s", f"libcuda.so.{version}", f"{LIBRARIES}/libcuda.so.1"])
    if not (node.root / "dev/nvidia0").exists():
        node.run(["mknod", "-m", "666", "/dev/nvidia0", "c", "1", "3"])


def answers(node: Node) -> bool:
    if node.engine == "docker":
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(1)
            asked.connect(str(node.root / "run/docker.sock"))
            asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in asked.recv(64)
        return False
    with suppress(CriError):
        node.cri.version()
        return True
    return False


class Client:
    """Asks for the same thing every 5 ms while the block goes on."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.answered = self.refused = 0
        self._ask, self._over = ask, threading.Event()
        self._thread = threading.Thread(target=self._asks)

    def _asks(self) -> None:
        while not self._over.is_set():
            if self._ask():
                self.answered += 1
            else:
                self.refused += 1
            time.sleep(EVERY_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
