"""Who needs our runtimes: by what shims, CRI-O and Docker leave on the disk, and by what Docker answers."""

import json
import socket
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.container_records import with_live_containers
from installer.engines.containers import find_in_use, list_states
from installer.engines.stopped_units import TASKS
from installer.host.files import Host
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import EngineState, LiveContainer
from installer.model.facts import Container, EngineRow, Record, ToolkitRow
from installer.model.files import Layout
from tests.host.servers import serving
from tests.support.files import put as write

LAYOUT = Layout()
OURS = LAYOUT.toolkit / "nvidia-container-runtime"
ID = "3f6c0d5e8a9b4c7d" * 4
SOCKET = PurePosixPath("/docker.sock")
DOCKER = EngineRow("docker", SOCKET, "docker.service", {"nvidia": OURS})
CONFIG = PurePosixPath("/etc/docker/daemon.json")
STOPPED = EngineState(ENGINES["docker"], CONFIG, None, None, (), SOCKET, "", stopped=True)


def in_use(
    root: Path, row: EngineRow | None, *engines: EngineState
) -> tuple[tuple[Container, ...], tuple[str, ...]]:
    record = Record(toolkit=ToolkitRow("v", None, "text"), engines=(row,) if row else ())
    return find_in_use(Host.under(PurePosixPath(root)), LAYOUT, record, engines)


def put(root: Path, place: object, **files: object) -> None:
    """Write files of a bundle: JSON, or a text under its own name."""
    for name, content in files.items():
        file = f"{name}.json" if name in {"options", "config"} else name
        write(root, {f"{place}/{file}": content if isinstance(content, str) else json.dumps(content)})


K8S, MOBY = f"run/containerd/{TASKS}/k8s.io/{ID}", f"run/containerd/{TASKS}/moby/{ID}"
POD = {"io.kubernetes.cri.sandbox-namespace": "train", "io.kubernetes.cri.sandbox-name": "bert-0"}
IN_DOCKER = MOBY.replace("containerd", "docker/containerd/daemon", 1)


def by(binary: str) -> dict[str, Any]:
    return {"options": {"binary_name": binary}}


BY_US = by(str(OURS))
OF_POD = BY_US | {"config": {"annotations": POD}}


@pytest.mark.parametrize(
    ("place", "files", "found"),
    [
        pytest.param(K8S, OF_POD, ("containerd", "train/bert-0"), id="a pod"),
        pytest.param(K8S, {"runtime": f"{OURS}\n"}, ("containerd", ID[:12]), id="ctr, without options"),
        pytest.param(IN_DOCKER, BY_US, ("docker", ID[:12]), id="dockerd with its own containerd"),
        pytest.param(MOBY, BY_US | {"config": {}}, ("docker", ID[:12]), id="dockerd with the node's"),
        pytest.param(K8S, by("/usr/bin/nvidia-container-runtime"), None, id="NVIDIA's, of a package"),
        pytest.param(K8S, {"options": "{"}, None, id="half written"),
        pytest.param(K8S, by("/usr/local/bin/nv"), ("containerd", ID[:12]), id="started by a link to ours"),
    ],
)
def test_a_container_is_known_by_the_binary_that_its_shim_recorded(
    tmp_path: Path, place: str, files: dict[str, Any], found: tuple[str, str] | None
) -> None:
    put(tmp_path, place, **files)
    write(tmp_path, {OURS: "", PurePosixPath("/usr/local/bin/x"): ""})
    (tmp_path / "usr/local/bin/nv").symlink_to(OURS)

    assert in_use(tmp_path, None)[0] == ((Container(found[0], ID, found[1], OURS),) if found else ())


def test_a_container_of_runc_is_not_ours_where_a_forced_undo_made_ours_a_link_to_that(tmp_path: Path) -> None:
    put(tmp_path, K8S, **by("/usr/bin/runc"))
    write(tmp_path, {"usr/bin/runc": "", "usr/local/nvidia/toolkit/x": ""})
    (tmp_path / str(OURS)[1:]).symlink_to("/usr/bin/runc")

    assert in_use(tmp_path, None)[0] == ()


def test_a_state_directory_that_is_a_link_to_another_is_looked_at_once(tmp_path: Path) -> None:
    put(tmp_path, K8S, runtime=str(OURS))
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    engine = replace(STOPPED, kind=ENGINES["containerd"], state=PurePosixPath("/var/run/containerd"))

    assert [each.id for each in in_use(tmp_path, None, engine)[0]] == [ID]


STATE = PurePosixPath("/var/lib/elsewhere/vfs-containers")
HANDLER = "io.kubernetes.cri-o.RuntimeHandler"
SANDBOX = "415635d5fdde8b8339d4"
APP = {"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.SandboxID": SANDBOX}


def conmon(container: str, runtime: object) -> list[str]:
    """Return the words of a monitor, as a real CRI-O 1.37 starts it (internal/oci/runtime_oci.go)."""
    return ["/usr/libexec/crio/conmon", "-b", "/b", "-c", container, "-r", str(runtime), "--full-attach"]


BY_OURS = conmon(ID, OURS)


@pytest.mark.parametrize(
    ("handler", "monitor", "found"),
    [
        pytest.param("nvidia", BY_OURS, {SANDBOX, ID}, id="by the handler of its sandbox"),
        pytest.param("nvidia", None, {SANDBOX, ID}, id="that ended and is not removed"),
        pytest.param("", BY_OURS, set(), id="the default of the moment is nobody's for long"),
        pytest.param("runc", BY_OURS, {ID}, id="an annotation that its pod has overwritten"),
        pytest.param("runc", conmon("another", OURS), set(), id="another process by its pid"),
        pytest.param("owner", None, {SANDBOX, ID}, id="a handler of its owner's, on our program"),
    ],
)
def test_a_container_of_cri_o_is_ours_by_its_sandbox_or_by_what_its_monitor_was_started_with(
    tmp_path: Path, handler: str, monitor: list[str] | None, found: set[str]
) -> None:
    own = {"io.kubernetes.cri-o.SandboxID": SANDBOX, HANDLER: handler}
    put(tmp_path, STATE / SANDBOX / "userdata", config={"annotations": own})
    put(tmp_path, STATE / ID / "userdata", config={"annotations": APP}, **{"conmon-pidfile": "186"})
    if monitor is not None:
        put(tmp_path, "proc/186", comm="conmon\n", cmdline="\0".join(monitor) + "\0")
    row = EngineRow("crio", SOCKET, "", {"nvidia": OURS}, state=STATE)
    served = EffectiveConfig({"owner": Runtime(str(OURS)), "gpu": Runtime("/usr/bin/crun")}, "runc")

    running, _ = in_use(tmp_path, row, replace(STOPPED, kind=ENGINES["crio"], serving=served))

    assert {(each.id, each.binary) for each in running} == {(each, OURS) for each in found}


def test_a_live_container_of_crios_has_the_handler_and_the_root_by_which_it_is_found(tmp_path: Path) -> None:
    own = {"io.kubernetes.cri-o.SandboxID": SANDBOX, HANDLER: ""}
    put(tmp_path, STATE / SANDBOX / "userdata", config={"annotations": own})
    put(tmp_path, STATE / ID / "userdata", config={"annotations": APP}, **{"conmon-pidfile": "186"})
    words = [*BY_OURS, "--runtime-arg", "--root=/run/runc"]  # as a real 1.37.0 was seen to start it
    put(tmp_path, "proc/186", comm="conmon\n", cmdline="\0".join(words) + "\0")
    engine = replace(STOPPED, kind=ENGINES["crio"], state=STATE, serving=EffectiveConfig({}, "runc"))
    host = Host.under(PurePosixPath(tmp_path))

    found = with_live_containers(host, engine).live

    assert found == (LiveContainer(ID[:12], "", "/run/runc", str(OURS)),)
    put(tmp_path, "proc/186", cmdline="\0".join(conmon("another", OURS)) + "\0")
    assert with_live_containers(host, engine).live == (), "it has ended, and its pid is another's"


@pytest.mark.parametrize(
    ("sandbox", "is_seen"), [(SANDBOX, True), ("another", False)], ids=["of its pod", "of another by its pid"]
)
def test_a_container_of_a_conmon_rs_is_found_by_its_parent_and_the_directory_of_its_pod(
    tmp_path: Path, sandbox: str, *, is_seen: bool
) -> None:
    own = {"io.kubernetes.cri-o.SandboxID": SANDBOX, HANDLER: "runc"}
    put(tmp_path, STATE / SANDBOX / "userdata", config={"annotations": own})
    put(tmp_path, STATE / ID / "userdata", config={"annotations": APP}, pidfile="190")
    # As vendor/github.com/containers/conmon-rs/pkg/client/client.go of CRI-O 1.37.0 starts it.
    directory = f"/var/lib/containers/storage/overlay-containers/{sandbox}/userdata"
    words = ["/usr/bin/conmonrs", "--runtime", str(OURS), "--runtime-dir", directory]
    words += ["--runtime-root", "/run/pods", "--log-level", "info", "--log-driver", "none"]
    put(tmp_path, "proc/190", stat="190 (sh) S 187 1 1 0")
    put(tmp_path, "proc/187", comm="conmonrs\n", cmdline="\0".join(words) + "\0")
    engine = replace(STOPPED, kind=ENGINES["crio"], state=STATE, serving=EffectiveConfig({}, "runc"))
    row = EngineRow("crio", SOCKET, "", {"nvidia": OURS}, state=STATE)

    live = with_live_containers(Host.under(PurePosixPath(tmp_path)), engine).live
    running, _ = in_use(tmp_path, row, engine)

    assert live == ((LiveContainer(ID[:12], "runc", "/run/pods", str(OURS)),) if is_seen else ())
    assert [each.id for each in running] == [ID] * is_seen


# As dockerd 20.10.24, 26.1.5 and 28.5.2 say them.
RUNNING = {"Status": "running", "Running": True, "Restarting": False}
RESTARTING = {"Status": "restarting", "Running": True, "Restarting": True}
EXITED = {"Status": "exited", "Running": False, "Restarting": False}
TRAINER = Container("docker", ID, "trainer", OURS)


@pytest.mark.parametrize(
    ("state", "shim", "runtime", "found"),
    [
        pytest.param(RUNNING, OURS, "nvidia", ((TRAINER,), ()), id="running"),
        pytest.param(RESTARTING, None, "nvidia", ((TRAINER,), ()), id="between two lives"),
        pytest.param(EXITED, None, "nvidia", ((), ("trainer",)), id="stopped"),
        pytest.param(RUNNING, "/usr/bin/other", "nvidia", ((), ()), id="of who had the name before us"),
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
        put(tmp_path, MOBY, options={"binary_name": str(shim)})
    one = {"Id": ID, "Name": "/trainer", "HostConfig": {"Runtime": runtime}, "State": state}

    def docker(connection: socket.socket) -> None:
        said = [{"Id": ID}] if b"/containers/json?" in connection.recv(65536) else one
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(said).encode())

    with serving(tmp_path / "docker.sock", docker):
        assert in_use(tmp_path, DOCKER, replace(STOPPED, stopped=False)) == found


def test_the_records_of_a_stopped_engine_are_found_behind_links(tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/link").symlink_to("state")
    row = replace(DOCKER, state=PurePosixPath("/srv/link/daemon"))

    states = list_states(Host.under(PurePosixPath(tmp_path)), Record(engines=(row,)), [STOPPED])

    assert states[PurePosixPath("/srv/state/daemon")] == "docker"
