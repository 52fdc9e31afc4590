"""CDI devices for tests, and a socket between an engine and its plugin that counts what they say."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from signal import Signals

from tests.engines.nodes import Node

KIND = "vendor.example/thing"
OTHER = "vendor.example/broken"
WISH = {"nvidia.cdi.k8s.io/container.main": f"{KIND}=0"}
SOCKET = "/run/nri/nri.sock"
STATE = "/run/nri/toolkit-installer.json"
HOOK = "/opt/thing/hook"
HOOK_RAN = "/run/thing-hook"
FRAME, CALL, REQUEST = struct.Struct(">II"), struct.Struct(">IIBB"), 1


def add_devices(node: Node) -> None:
    """Put a CDI device on the node with each thing that a driver's has, and one whose hook is missing."""
    node.write("/opt/thing/files/hello", "from the node\n")
    node.write(HOOK, f"#!/bin/sh\ncat > /dev/null; echo ran >> {HOOK_RAN}\n")
    (node.root / HOOK.lstrip("/")).chmod(0o755)
    edits = {
        "env": ["THING=0"],
        "deviceNodes": [{"path": "/dev/thing", "type": "c", "major": 1, "minor": 3}],
        "mounts": [{"hostPath": "/opt/thing/files", "containerPath": "/thing", "options": ["ro", "rbind"]}],
        "hooks": [{"hookName": "createContainer", "path": HOOK, "args": ["hook"]}],
    }
    missing = {"hooks": [{"hookName": "createContainer", "path": "/opt/thing/gone", "args": ["gone"]}]}
    for kind, each in ((KIND, edits), (OTHER, missing)):
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "0", "containerEdits": each}]}
        node.write(f"/etc/cdi/{kind.replace('/', '-')}.json", json.dumps(spec))


class Messages:
    """Names the messages in the bytes of one socket: frames of a connection, in which calls of ttrpc follow one another."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._connections: dict[int, bytearray] = {}

    def of(self, content: bytes) -> Iterator[str]:
        """Yield the method of each request that is whole with ``content``, "answer" for each answer."""
        self._bytes += content
        while len(self._bytes) >= FRAME.size:
            number, size = FRAME.unpack_from(self._bytes)
            if len(self._bytes) < FRAME.size + size:
                return
            waiting = self._connections.setdefault(number, bytearray())
            waiting += self._bytes[FRAME.size : FRAME.size + size]
            del self._bytes[: FRAME.size + size]
            while len(waiting) >= CALL.size:
                length, _, kind, _ = CALL.unpack_from(waiting)
                if len(waiting) < CALL.size + length:
                    break
                yield _method(bytes(waiting[CALL.size : CALL.size + length])) if kind == REQUEST else "answer"
                del waiting[: CALL.size + length]


def _method(request: bytes) -> str:
    """Return the second field of a request, behind the service: both are shorter than 128 letters."""
    service = request[1]
    length = request[service + 3]
    return request[service + 4 : service + 4 + length].decode()


class Between:
    """A socket of the node at which a plugin finds the engine; ``number`` comes to it at one of the messages.

    Before the message is passed on: whoever sent it has said it, nobody has heard it.
    """

    def __init__(self, node: Node, at: int, number: Signals) -> None:
        self._engine = node.root / SOCKET.lstrip("/")
        self.path = "/run/between/nri.sock"
        self._here = node.root / self.path.lstrip("/")
        self._here.parent.mkdir(exist_ok=True)
        self._here.unlink(missing_ok=True)
        self.at, self._number = at, number
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._here))
        self._listener.listen()
        self._aimed_at = list[Callable[[Signals], None]]()
        self.said: list[str] = []
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def aim_at(self, signal: Callable[[Signals], None]) -> None:
        """Tell what sends the signal."""
        self._aimed_at.append(signal)

    def close(self) -> None:
        """Hang up on both."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plugin, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(str(self._engine))
                self._open += [plugin, engine]
                for source, target in ((plugin, engine), (engine, plugin)):
                    self._threads.append(
                        threading.Thread(target=self._pass, args=(source, target), daemon=True)
                    )
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        reader = Messages()
        with suppress(OSError):
            while content := source.recv(1 << 20):
                for name in reader.of(content):
                    self._count(name)
                target.sendall(content)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _count(self, name: str) -> None:
        with self._lock:
            self.said.append(name)
            if len(self.said) == self.at:
                self._aimed_at[0](self._number)
