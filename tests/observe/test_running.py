"""Who needs our runtimes, by what Docker answers and what it leaves on the disk."""

import json
import socket
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines.containers import find_in_use
from installer.host.files import Host
from installer.model.engine_spec import EffectiveConfig, Runtime
from installer.model.facts import Container, EngineRow, EngineState, Record, ToolkitRow
from installer.model.files import Layout
from tests.host.servers import FakeSystemd, FakeUnit, serving

LAYOUT = Layout(PurePosixPath("/usr/local/nvidia"))
OURS = LAYOUT.toolkit / "nvidia-container-runtime"
SOCKET = PurePosixPath("/docker.sock")
CONFIG = PurePosixPath("/etc/docker/daemon.json")
ROW = EngineRow("docker", SOCKET, "docker.service", {"nvidia": OURS})
HELD = Record(toolkit=ToolkitRow("v", None, "text"), engines=(ROW,))
STOPPED = EngineState("docker", CONFIG, None, None, (), SOCKET, "", stopped=True)
ID = "3f6c0d5e8a9b4c7d" * 4
# As dockerd 20.10.24, 26.1.5 and 28.5.2 say them.
RUNNING = {"Status": "running", "Running": True, "Restarting": False}
RESTARTING = {"Status": "restarting", "Running": True, "Restarting": True}
EXITED = {"Status": "exited", "Running": False, "Restarting": False}
TRAINER = Container("docker", ID, "trainer", OURS)


def bundle(root: Path, binary: PurePosixPath) -> None:
    directory = root / "run/containerd/io.containerd.runtime.v2.task/moby" / ID
    directory.mkdir(parents=True)
    (directory / "options.json").write_text(json.dumps({"binary_name": str(binary)}))


@pytest.mark.parametrize(
    ("state", "shim", "runtime", "found"),
    [
        pytest.param(RUNNING, OURS, "nvidia", ((TRAINER,), ()), id="running"),
        pytest.param(RESTARTING, None, "nvidia", ((TRAINER,), ()), id="between two lives"),
        pytest.param(RUNNING, None, "nvidia", ((TRAINER,), ()), id="ended in this moment"),
        pytest.param(EXITED, None, "nvidia", ((), ("trainer",)), id="stopped"),
        pytest.param(RUNNING, "/usr/bin/other", "nvidia", ((), ()), id="of who had the name before us"),
        pytest.param(RESTARTING, None, "runc", ((), ()), id="another runtime"),
    ],
)
def test_what_docker_starts_again_needs_our_runtime_as_what_runs_does(
    tmp_path: Path,
    state: dict[str, Any],
    shim: PurePosixPath | None,
    runtime: str,
    found: tuple[tuple[Container, ...], tuple[str, ...]],
) -> None:
    if shim is not None:
        bundle(tmp_path, PurePosixPath(shim))
    one = {"Id": ID, "Name": "/trainer", "HostConfig": {"Runtime": runtime}, "State": state}

    def docker(connection: socket.socket) -> None:
        listed = b"/containers/json?" in connection.recv(65536)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps([{"Id": ID}] if listed else one).encode())

    with serving(tmp_path / "docker.sock", docker):
        host = Host.under(PurePosixPath(tmp_path))
        assert find_in_use(host, LAYOUT, HELD, (replace(STOPPED, stopped=False),)) == found


@pytest.mark.parametrize(
    ("said", "data_root"),
    [
        pytest.param(None, "var/lib/docker", id="usual"),
        pytest.param('{"data-root": "/data/docker"}', "data/docker", id="of its config"),
        pytest.param('{"data-root": 7', "var/lib/docker", id="of a config that nobody can read"),
    ],
)
def test_what_a_stopped_docker_has_left_is_listed(tmp_path: Path, said: str | None, data_root: str) -> None:
    directory = tmp_path / data_root / "containers" / ID
    directory.mkdir(parents=True)
    (directory / "hostconfig.json").write_text('{"Runtime":"nvidia"}')
    (directory / "config.v2.json").write_text('{"State":{"Running":true},"Name":"/trainer"}')
    if said is not None:
        (tmp_path / "etc/docker").mkdir(parents=True)
        (tmp_path / "etc/docker/daemon.json").write_text(said)
    host = Host.under(PurePosixPath(tmp_path))

    assert find_in_use(host, LAYOUT, HELD, (STOPPED,)) == ((), ("trainer",))
    assert find_in_use(host, LAYOUT, HELD, (replace(STOPPED, stopped=False),)) == ((), ())


@pytest.mark.parametrize(
    ("serves", "service", "asked"),
    [
        pytest.param(True, "active", True, id="it runs and answered"),
        pytest.param(True, "inactive", True, id="it answered, whatever systemd says"),
        pytest.param(False, "active", True, id="it runs, and did not answer yet"),
        pytest.param(False, "inactive", False, id="it is stopped, and a question would start it"),
    ],
)
def test_a_docker_is_asked_for_its_containers_unless_that_would_start_it(
    tmp_path: Path, service: str, *, serves: bool, asked: bool
) -> None:
    units = {"docker.service": FakeUnit(active=service), "docker.socket": FakeUnit(active="active")}
    engine = replace(STOPPED, stopped=not serves, serving=EffectiveConfig({}, "runc") if serves else None)
    questions: list[bytes] = []

    def docker(connection: socket.socket) -> None:
        questions.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n[]")

    (tmp_path / "run/dbus").mkdir(parents=True)
    with (
        serving(tmp_path / "run/dbus/system_bus_socket", FakeSystemd(units)),
        serving(tmp_path / "docker.sock", docker),
    ):
        assert find_in_use(Host.under(PurePosixPath(tmp_path)), LAYOUT, HELD, (engine,)) == ((), ())

    assert bool(questions) is asked


@pytest.mark.parametrize(
    ("binary", "found"),
    [
        pytest.param(str(OURS), True, id="that starts our program"),
        pytest.param("/usr/bin/crun", False, id="that does not"),
    ],
)
def test_a_pod_of_crio_on_a_handler_of_its_owners_needs_what_that_starts(
    tmp_path: Path, binary: str, *, found: bool
) -> None:
    row = EngineRow("crio", SOCKET, "", {"nvidia": OURS})
    annotations = {"io.kubernetes.cri-o.SandboxID": ID, "io.kubernetes.cri-o.RuntimeHandler": "gpu"}
    sandbox = tmp_path / "run/containers/storage/overlay-containers" / ID / "userdata"
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(json.dumps({"annotations": annotations}))
    engine = EngineState(
        "crio", CONFIG, None, None, (), SOCKET, "", serving=EffectiveConfig({"gpu": Runtime(binary)}, "runc")
    )

    running, _ = find_in_use(
        Host.under(PurePosixPath(tmp_path)), LAYOUT, replace(HELD, engines=(row,)), (engine,)
    )

    assert [each.id for each in running] == ([ID] if found else [])
