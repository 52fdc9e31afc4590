"""A node with systemd and a containerd that answer as real ones do, on sockets below its root."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from installer.engines import ENGINES
from installer.host.files import Host
from installer.model.engine import EngineState
from tests.host.servers import FakeSystemd, FakeUnit, engine, message, serving
from tests.support.cri import CONTAINERD, CONTAINERD_CONFIG, CRI, RUNTIMES, cri_status

SOCKET = PurePosixPath("/c.sock")  # short: below a test's directory a name has to fit into 107 letters
UNIT = "containerd.service"
# As GetAll of systemd 252 has it, of a unit that starts its service as it is.
UNIT_PROPERTIES: dict[str, tuple[str, Any]] = {
    "ExecStart": ("a(sasbttttuii)", []),
    "Environment": ("as", []),
    "EnvironmentFiles": ("a(sb)", []),
    "RootDirectory": ("s", ""),
}
STATUS = f"{CRI}Status"
CREATED = f"{CRI}ListContainers"
PODS = f"{CRI}ListPodSandbox"
ASKED = b"\x08\x01"  # StatusRequest{verbose: true}
ONE = message((1, message((1, "a1b2c3d4e5f6a7b8"))))


@dataclass
class Live:
    """Such a node: ``answers`` are containerd's, ``when`` is called with the name of each call to systemd."""

    root: Path
    systemd: FakeSystemd
    answers: dict[str, bytes]
    when: Callable[[str], None] = lambda _: None
    asked: list[bytes] = field(default_factory=list)

    @property
    def host(self) -> Host:
        return Host.under(PurePosixPath(self.root))

    @property
    def unit(self) -> FakeUnit:
        return self.systemd.units[UNIT]

    @property
    def restarted(self) -> bool:
        return "RestartUnit" in self.systemd.calls

    def serve(self, *names: str, ready: int = 1, default: str = "runc") -> None:
        """Let containerd serve these runtimes of those that were recorded."""
        self.answers[STATUS] = serving_of(*names, ready=ready, default=default)


def serving_of(*names: str, ready: int = 1, default: str = "runc") -> bytes:
    runtimes = {name: RUNTIMES[name] for name in names}
    said: Mapping[str, Any] = {"defaultRuntimeName": default, "runtimes": runtimes}
    return cri_status({**CONTAINERD_CONFIG, "containerd": said}, ready=ready)


def containerd(unit: str = UNIT) -> EngineState:
    row = ENGINES["containerd"]
    return EngineState(row, row.config, row.drop_ins.usual, None, (row.config,), SOCKET, unit)


@contextmanager
def on_bus(root: Path, systemd: FakeSystemd) -> Iterator[Host]:
    """Yield a host with a systemd on its bus."""
    (root / "run/dbus").mkdir(parents=True, exist_ok=True)
    with serving(root / "run/dbus/system_bus_socket", systemd):
        yield Host.under(PurePosixPath(root))


@contextmanager
def live(root: Path) -> Iterator[Live]:
    node = Live(root, FakeSystemd({UNIT: FakeUnit()}), {**CONTAINERD, CREATED: b"", PODS: b""})

    def tell(member: str) -> tuple[()]:
        node.when(member)
        return ()

    node.systemd.strangers = tell
    with on_bus(root, node.systemd), engine(root / SOCKET.name, node.answers, node.asked):
        yield node
