"""Which engines run here and where each listens by now; one that its owner has stopped is not woken."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.observe import find_moved
from installer.engines import ENGINES, observe
from installer.engines.ask import ask
from installer.engines.containers import find_in_use
from installer.engines.node_shell import MARK, Tools
from installer.engines.reload import limit_s
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.processes import HostProcess
from installer.host.unit_jobs import Patience
from installer.lifecycle import verify_leftovers
from installer.model.effective import EffectiveConfig, Runtime
from installer.model.engine import EngineState
from installer.model.facts import EngineRow, Record
from installer.model.files import File, Layout
from installer.model.options import Options, Places
from installer.report import verify
from installer.report.doctor.read import read_engines
from tests.host.servers import FakeSystemd, FakeUnit, serving
from tests.support.files import put
from tests.support.live import ASKED, ONE, PODS, SOCKET, UNIT, containerd, live, on_bus

ENDED = FakeUnit(active="inactive", sub="dead")
CRASHES = FakeUnit(active="activating", sub="auto-restart")
D_SOCK = PurePosixPath("/d.sock")  # short: below a test's directory a name has to fit into 107 letters


def test_an_engine_is_waited_for_as_long_as_its_start_takes() -> None:
    """--timeout may be longer; a pod that ends has its grace alone."""
    patience = [Patience(limit, lambda: None) for limit in (1, 90)] + [Patience(7, lambda: None, stop_s=0)]

    assert [limit_s(ENGINES["microk8s"], each) for each in patience] == [60, 90, 7]


def test_a_socket_that_we_may_not_connect_to_is_no_engine_that_does_not_run(tmp_path: Path) -> None:
    engine = replace(EngineState.usual(ENGINES["docker"]), socket=D_SOCK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:  # root may connect to anything else
        server.bind(f"{tmp_path}{D_SOCK}")

        answer = ask(Host.under(PurePosixPath(tmp_path)), engine)

    assert answer.silence_reason == f"connect to {tmp_path}{D_SOCK} (Protocol wrong type for socket)"
    assert (answer.stopped, answer.failed, answer.disabled) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "service", "listens", "questions"),
    [
        pytest.param("docker", ENDED, FakeUnit(), 0, id="stopped, and systemd listens"),
        pytest.param("docker", FakeUnit(active="deactivating"), FakeUnit(), 0, id="about to stop"),
        pytest.param("docker", FakeUnit(), FakeUnit(), 1, id="it runs"),
        pytest.param("containerd", ENDED, FakeUnit(), 1, id="one that systemd listens for nowhere"),
        pytest.param("k3s", FakeUnit(), ENDED, 1, id="one that its unit restarts"),
        pytest.param("k0s", FakeUnit(), ENDED, 2, id="one that restarts itself is asked again"),
    ],
)
def test_an_engine_is_not_asked_where_that_would_wake_it_and_again_where_it_restarts_itself(
    tmp_path: Path, name: str, service: FakeUnit, listens: FakeUnit, questions: int
) -> None:
    row, asked = ENGINES[name], list[int]()
    units = dict.fromkeys((row.unit, *row.units), service)

    def ends_silently(_: object) -> None:
        asked.append(1)

    with (
        on_bus(tmp_path, FakeSystemd({**units, row.unit.replace(".service", ".socket"): listens})) as host,
        serving(tmp_path / "e.sock", ends_silently),
    ):
        engine = replace(EngineState.usual(row), socket=PurePosixPath("/e.sock"))
        answer = observe.ask_for(host, engine, Options(timeout_s=0.5), 0.3)

    assert min(len(asked), 2) == questions
    assert answer.stopped is not bool(questions)
    assert (answer.silence_reason == f"{row.unit} is stopped, and systemd listens for it") is answer.stopped


DOCKER_UNIT = "docker.service"
OPTIONS = Options(places={"docker": Places(socket=D_SOCK)})
PROGRAM = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
DOCKER_ROW = EngineRow("docker", D_SOCK, DOCKER_UNIT, {"nvidia": PurePosixPath(PROGRAM)})
SOUGHT = observe.look_for(ENGINES["docker"], OPTIONS)
DOCKERD = HostProcess(7, "dockerd", "/usr/bin/dockerd", False, (1, 2), True)


@contextmanager
def stopped(root: Path, state: str = "inactive") -> Iterator[Host]:
    """Yield a node with a Docker that its owner has stopped, and that nothing connects to.

    systemd listens in its place, and starts it for whoever does.
    """
    listens = ("a(ss)", [("Stream", str(D_SOCK))])  # as systemd 257 tells docker.socket
    units = {DOCKER_UNIT: FakeUnit(active=state, sub="dead"), "docker.socket": FakeUnit(sub="listening")}
    systemd = FakeSystemd(units, changed={"Listen": listens})
    with on_bus(root, systemd) as host, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{root}{D_SOCK}")
        listener.listen()
        listener.setblocking(False)
        yield host
        with pytest.raises(BlockingIOError):
            listener.accept()


def remove_made(host: Host) -> None:
    """Remove what a verify has made and is written down."""
    layout, made = Layout(), [["docker", str(D_SOCK), DOCKER_UNIT, f"{MARK}-1"]]
    put(host.local_path(PurePosixPath("/")), {layout.made: json.dumps({"made": made})})
    assert not verify_leftovers.remove_made(host, layout, hurried=True)
    assert host.exists(layout.made)


ACTS: dict[str, Callable[[Host], object]] = {
    "a socket that is named now": lambda host: observe.locate(
        host, replace(SOUGHT, socket=PurePosixPath("/other.sock"), stopped=True), DOCKER_ROW, OPTIONS
    ),
    "what is in use": lambda host: find_in_use(host, Layout(), Record(engines=(DOCKER_ROW,)), [SOUGHT]),
    "doctor, where another dockerd runs": lambda host: read_engines(host, OPTIONS, [DOCKERD]),
    "a removal of what verify has made": remove_made,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating"])
def test_nothing_connects_to_a_docker_that_is_stopped(
    tmp_path: Path, act: Callable[[Host], object], state: str
) -> None:
    with stopped(tmp_path, state) as host:
        act(host)


def test_verify_says_so_and_how_to_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "shell_of", lambda _: Tools((), loader=False))

    with stopped(tmp_path) as host:
        (found,) = verify.prove_runtimes(host, OPTIONS, Record(engines=(DOCKER_ROW,)))

    assert found.found == "nothing is verified: Docker is stopped, and verify does not start it"
    assert found.remedy == "systemctl start docker.service, then verify again"


GONE = PurePosixPath("/old.sock")
ROW = EngineRow("containerd", GONE, UNIT, {})


@pytest.mark.parametrize(
    ("unit", "remedy"), [(UNIT, f"systemctl start {UNIT}"), ("", "start containerd")], ids=["unit", "no unit"]
)
def test_verify_makes_no_container_by_an_engine_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, remedy: str
) -> None:
    monkeypatch.setattr(verify, "shell_of", lambda _: Tools((), loader=False))
    host = Host.under(PurePosixPath(tmp_path))
    row = replace(ROW, unit=unit, runtimes={"nvidia": PurePosixPath("/usr/bin/nvidia-container-runtime")})

    (found,) = verify.prove_runtimes(host, OPTIONS, Record(engines=(row,)))

    assert found.found == "nothing is verified: containerd is stopped, and verify does not start it"
    assert found.remedy == f"{remedy}, then verify again"
    assert not host.exists(OPTIONS.layout.made)


HANGS = replace(containerd(), socket=GONE, silence_reason="hangs")
STOPPED = replace(HANGS, stopped=True)
ELSEWHERE = replace(HANGS, pid=7, unit="other.service")


def told(path: PurePosixPath | None = SOCKET) -> Options:
    return Options(places={"containerd": Places(socket=path)})


@pytest.mark.parametrize(
    "engine", [STOPPED, HANGS, ELSEWHERE], ids=["stopped", "one that only hangs", "another unit answers"]
)
def test_a_socket_of_another_unit_is_not_taken(tmp_path: Path, engine: EngineState) -> None:
    with live(tmp_path) as there:
        assert observe.locate(there.host, engine, ROW, told()).socket != SOCKET


@pytest.mark.parametrize(
    ("record", "options", "asks"),
    [
        (Record(engines=(ROW,)), Options(), True),
        (Record(), Options(), False),
        (Record(engines=(ROW,)), told(GONE), False),
    ],
)
def test_only_one_of_the_ledger_whose_socket_nobody_names_is_looked_for(
    tmp_path: Path, record: Record, options: Options, *, asks: bool
) -> None:
    with live(tmp_path) as there:
        there.systemd.units[UNIT] = CRASHES
        (found,) = observe.find_engines(there.host, replace(options, engines=("containerd",)), record).engines

    assert (found.stopped, found.crashing) == (not asks, asks)


@pytest.mark.parametrize(
    ("active", "path", "asked"),
    # Who asks on NRI's is a plugin.
    [("active", SOCKET, True), ("failed", SOCKET, False), ("active", "/nri.sock", False)],
)
def test_what_the_process_of_its_unit_listens_on_is_asked(
    tmp_path: Path, active: str, path: object, *, asked: bool
) -> None:
    # As the kernel's net/unix/af_unix.c writes it.
    head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    row = f"0000000000000000: 00000002 00000000 00010000 0001 01 99 {path}\n"
    put(tmp_path, {"proc/61/net/unix": head + row, "proc/61/fd/1": ""})
    (tmp_path / "proc/61/fd/3").symlink_to("socket:[99]")
    (tmp_path / "nri.sock").symlink_to(SOCKET.name)
    with live(tmp_path) as there:
        there.unit.active = active
        observe.locate(there.host, STOPPED, ROW, Options())

    assert (ASKED in there.asked) == asked


@pytest.mark.parametrize(("now", "unit"), [(FakeUnit(), "k3s.service"), (ENDED, "")])
def test_of_several_units_the_one_that_runs_is_an_engines(tmp_path: Path, now: FakeUnit, unit: str) -> None:
    row = ENGINES["k3s"]
    engine = replace(EngineState.usual(row), unit=row.units[0])
    states = (
        replace(engine, silence_reason="hangs"),
        replace(engine, stopped=True),
        replace(engine, pid=7, unit=""),
    )

    with on_bus(tmp_path, FakeSystemd({"k3s.service": now})) as host:
        found = [observe.with_process(host, state, Places())[0].unit for state in states]

    assert found == [unit, row.units[0], ""]


OURS = EffectiveConfig({"nvidia": Runtime(PROGRAM)}, "runc")


@pytest.mark.parametrize(
    "used_by", ["nobody", "a kubelet", "a pod", "whom it does not say", "us", "our ledger"]
)
def test_a_containerd_that_only_serves_docker_is_left_alone(tmp_path: Path, used_by: str) -> None:
    docker, beside = EngineState.usual(ENGINES["docker"]), containerd()
    row = EngineRow("containerd", beside.socket, beside.unit, {})
    held = Record(engines=(row,) if used_by == "our ledger" else ())
    if used_by == "a kubelet":
        (tmp_path / "var/lib/kubelet/pki").mkdir(parents=True)
    if used_by == "us":
        beside = replace(beside, serving=OURS)
    with live(tmp_path) as there:
        there.answers[PODS] = ONE if used_by == "a pod" else b""
        if used_by == "whom it does not say":
            del there.answers[PODS]
        engines, notes = observe.drop_unused(there.host, held, (docker, beside))
        with_docker = replace(held, engines=(*held.engines, DOCKER_ROW))
        also = observe.drop_unused(there.host, with_docker, (beside,))

    left = used_by == "nobody"
    note = "left containerd alone: it serves Docker, and its CRI is not used (no kubelet, no pod)"
    assert (engines, notes) == ((docker,) if left else (docker, beside), (note,) if left else ())
    assert also == (() if left else (beside,), notes)
    assert observe.drop_unused(there.host, held, (beside,)) == ((beside,), ())


def test_a_socket_of_two_engines_needs_a_unit_that_tells_them_apart(tmp_path: Path) -> None:
    engine, systemd = replace(EngineState.usual(ENGINES["rke2"]), unit=""), FakeSystemd({})

    with on_bus(tmp_path, systemd) as host:
        with pytest.raises(InstallerError, match=r"tell whose containerd answers on .*k3s-agent.*rke2"):
            observe.refuse_unknown(host, engine)
        systemd.units["k3s.service"] = FakeUnit()
        observe.refuse_unknown(host, engine)


@pytest.mark.parametrize("name", ["k3s", "rke2"])
def test_a_config_that_another_engine_makes_is_not_edited(name: str) -> None:
    usual, theirs = EngineState.usual(ENGINES["containerd"]), ENGINES[name]

    observe.refuse_generated(usual)
    with pytest.raises(InstallerError, match=r"configure the containerd of .* \(it writes /") as caught:
        observe.refuse_generated(replace(usual, config=theirs.config, socket=theirs.socket))
    assert f"--runtime {name}" in str(caught.value.remedy)


def test_an_install_dir_does_not_move_while_an_engine_names_another_of_ours(tmp_path: Path) -> None:
    usual, other, theirs = "/usr/local/nvidia", "/opt/nvidia", "/opt/theirs"
    host = put(tmp_path, {Layout(PurePosixPath(each)).ledger: "" for each in (usual, other)})
    texts = [
        File(f'{{"path": "{each}/toolkit/nvidia-container-runtime"}}'.encode()) for each in (usual, theirs)
    ]

    assert not [*find_moved(host, Options(), [*texts, None])]
    assert [*find_moved(host, Options(), [File(texts[0].content.replace(usual.encode(), other.encode()))])]
