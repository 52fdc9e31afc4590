"""A Docker that its owner has stopped: systemd listens in its place, and whoever connects starts it."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.containers import find_in_use
from installer.engines.observe import ask_for, locate, look_for
from installer.engines.trial_containers import MARK, Tools
from installer.host.files import Host
from installer.host.processes import HostProcess
from installer.lifecycle import uninstall
from installer.model.facts import EngineRow, EngineState, Record
from installer.model.files import Layout
from installer.model.options import Options, Places
from installer.report import verify
from installer.report.doctor.read import read_engines
from tests.host.servers import FakeSystemd, FakeUnit, serving

UNIT = "docker.service"
DOCKER = ENGINES["docker"]
SOCKET = PurePosixPath("/d.sock")  # short: below a test's directory a name has to fit into 107 letters
OTHER = PurePosixPath("/other.sock")
OPTIONS = Options(places={"docker": Places(socket=SOCKET)})
ROW = EngineRow("docker", SOCKET, UNIT, {"nvidia": PurePosixPath("/toolkit/nvidia-container-runtime")})
DOCKERD = HostProcess(7, "dockerd", "/usr/bin/dockerd", False, (), (1, 2), True)


@dataclass
class Held:
    """Such a node, and the socket that systemd listens on."""

    host: Host
    listener: socket.socket
    systemd: FakeSystemd

    @property
    def woken(self) -> bool:
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Held]:
    (tmp_path / "run/dbus").mkdir(parents=True)
    listens = ("a(ss)", [("Stream", str(SOCKET))])  # as systemd 257 tells docker.socket
    units = {UNIT: FakeUnit(active="inactive", sub="dead"), "docker.socket": FakeUnit(sub="listening")}
    systemd = FakeSystemd(units, changed={"Listen": listens})
    with serving(tmp_path / "run/dbus/system_bus_socket", systemd), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET.name))
        listener.listen()
        listener.setblocking(False)
        yield Held(Host.under(PurePosixPath(tmp_path)), listener, systemd)


def facts() -> EngineState:
    return look_for(DOCKER, OPTIONS)


def remove_made(host: Host) -> None:
    """Remove what a verify has made and is written down."""
    layout = Layout()
    local = host.local_path(layout.made)
    local.parent.mkdir(parents=True)
    local.write_text(json.dumps({"made": [["docker", str(SOCKET), UNIT, f"{MARK}-1"]]}))
    assert not uninstall.remove_made(host, layout, hurried=True)
    assert local.exists()


ACTS: dict[str, Callable[[Host], object]] = {
    "an install": lambda host: ask_for(host, facts(), OPTIONS),
    "a socket that is named now": lambda host: locate(
        host, replace(facts(), socket=OTHER, stopped=True), ROW, OPTIONS
    ),
    "what is in use": lambda host: find_in_use(host, Layout(), Record(engines=(ROW,)), [facts()]),
    "doctor, where another dockerd runs": lambda host: read_engines(host, OPTIONS, [DOCKERD]),
    "a removal of what verify has made": remove_made,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating"])
def test_nothing_connects_to_it(node: Held, act: Callable[[Host], object], state: str) -> None:
    node.systemd.units[UNIT].active = state

    act(node.host)

    assert not node.woken


def test_verify_says_so_and_how_to_start_it(node: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "shell_of", lambda _: Tools((), loader=False))

    (found,) = verify.prove_runtimes(node.host, OPTIONS, Record(engines=(ROW,)))

    assert found.found == "nothing is verified: Docker is stopped, and verify does not start it"
    assert found.remedy == "systemctl start docker.service, then verify again"
    assert not node.woken


def test_one_on_another_socket_is_asked_though_dockers_own_is_held(node: Held) -> None:
    node.systemd.changed["Listen"] = ("a(ss)", [("Stream", "/run/docker.sock")])

    ask_for(node.host, facts(), replace(OPTIONS, timeout_s=0.1))

    assert node.woken
