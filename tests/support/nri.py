"""An engine's side of NRI, for tests of the plugin's process.

It says what containerd 2.1.9 says, in its order: RegisterPlugin answered with nothing, Configure, Synchronize,
then a CreateContainer for each container. ``tests/engines/test_nri.py`` sees the real one do so.
"""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from installer.nri import session
from installer.nri.session import PLUGIN, REQUEST, RESPONSE, RUNTIME, Message, Messages, encoded, unpack
from tests.host.servers import message
from tests.support import preloaded

DEADLINE_S = 60  # of a busy machine
WISH = {"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}
ALLOW = ("--nri-allow", "operator=management.nvidia.com/gpu")


def pod(annotations: dict[str, str], namespace: str = "operator", number: str = "p1") -> bytes:
    entries = [(6, message((1, key), (2, value))) for key, value in annotations.items()]
    return message((1, number), (2, "pod"), (3, "uid"), (4, namespace), *entries)


def container(name: str = "main", of: str = "p1", state: int = 3, env: int = 20) -> bytes:
    variables = [(8, f"VARIABLE_{number}=some text") for number in range(env)]
    return message((1, f"c-{name}"), (2, of), (3, name), (4, state), (7, "sleep"), *variables)


class Plugged:
    """A plugin that has connected; ``longest`` is its longest frame."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(DEADLINE_S)
        self._messages, self._unread, self._raw = Messages(), list[Message](), b""
        self._stream = -1
        self.longest = 0

    def receive(self) -> Message:
        while not self._unread:
            content = self._connection.recv(65536)
            if not content:
                raise ConnectionResetError("the plugin has hung up")
            self._raw += content
            while len(self._raw) >= 8 and len(self._raw) >= 8 + (
                size := struct.unpack(">I", self._raw[4:8])[0]
            ):
                self.longest, self._raw = max(self.longest, size), self._raw[8 + size :]
            self._unread += self._messages.of(content)
        return self._unread.pop(0)

    def send(self, content: bytes) -> None:
        self._connection.sendall(content)

    def ask(self, method: str, payload: bytes = b"") -> dict[str, Any]:
        """Call the plugin; return its answer."""
        self._stream += 2
        request = message((1, session.PLUGIN_SERVICE), (2, method), (3, payload))
        self.send(encoded(Message(PLUGIN, self._stream, REQUEST, request)))
        answer = self.receive()
        assert (answer.connection, answer.stream, answer.kind) == (PLUGIN, self._stream, RESPONSE)
        return unpack(session.ANSWERED, answer.content)

    def register(self, version: str = "2.1.9", existing: bytes = b"") -> dict[str, Any]:
        """Take the plugin; return how it calls itself."""
        asked = self.receive()
        assert (asked.connection, asked.stream, asked.kind) == (RUNTIME, 1, REQUEST)
        request = unpack(session.ASKED, asked.content)
        assert request["method"] == "RegisterPlugin"
        self.send(encoded(Message(RUNTIME, 1, RESPONSE, b"")))
        configured = self.ask("Configure", message((2, "containerd"), (3, version), (4, 5000), (5, 2000)))
        assert configured["payload"] == b"\x10\x08"
        self.ask("Synchronize", existing)
        return unpack(session.REGISTER, request["payload"])

    def create(self, annotations: dict[str, str], namespace: str = "operator") -> dict[str, Any]:
        return self.ask("CreateContainer", message((1, pod(annotations, namespace)), (2, container(state=0))))

    def hang_up(self) -> None:
        self._connection.close()


class Engine:
    """Listens where the plugin looks for an engine."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.fspath(path))
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)
        self._plugged: list[Plugged] = []

    def accept(self) -> Plugged:
        connection, _ = self._listener.accept()
        self._plugged.append(Plugged(connection))
        return self._plugged[-1]

    def plugged(self, existing: bytes = b"") -> Plugged:
        """Return a plugin that is registered."""
        plugin = self.accept()
        plugin.register(existing=existing)
        return plugin

    def stop(self) -> None:
        """End as an engine does: its socket's name stays."""
        self._listener.close()
        for each in self._plugged:
            each.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Place:
    """A host below a directory, with a directory for the socket, and what is started there."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.directory = directory / "nri"
        self.directory.mkdir()
        self.socket = self.directory / "nri.sock"
        self.state = self.directory / "toolkit-installer.json"
        self.log = directory / "log"

    def command(self, verb: str, *words: str) -> list[str]:
        where = ["--host-root", str(self.root), "--nri-socket", str(self.socket)]
        return [sys.executable, "-m", "installer", verb, *where, *words]

    def call(self, verb: str, *words: str) -> preloaded.Done:
        return preloaded.run(self.command(verb, *words))

    @contextmanager
    def plugin(self, *words: str, stderr: int | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        with (
            self.log.open("ab") as log,
            subprocess.Popen(
                self.command("nri", *(words or ALLOW)),
                stderr=log if stderr is None else stderr,
                env=preloaded.ENVIRONMENT,
            ) as child,
        ):
            try:
                yield child
            finally:
                child.kill()
