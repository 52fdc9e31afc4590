"""How long an engine is waited for, and which row stands for a process."""

import socket
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from installer.change.observe import ROWS
from installer.engines import ENGINES
from installer.engines.config_files import is_outdated
from installer.engines.observe import ask_for, find_engines
from installer.engines.restart import ask, limit_s
from installer.errors import InstallerError
from installer.host.files import Host
from installer.host.unit_jobs import Patience
from installer.model.facts import EngineState, Record, Started
from installer.model.options import Options
from tests.host.servers import FakeSystemd, FakeUnit, serving

SLOW = ENGINES["microk8s"]


def _never() -> None:
    pass


@pytest.mark.parametrize(
    ("patience", "seconds"),
    [
        pytest.param(Patience(1.0, _never), 60.0, id="its own start may take longer than --timeout"),
        pytest.param(Patience(90.0, _never), 90.0, id="--timeout may be longer"),
        pytest.param(Patience(7.0, _never, stop_s=0), 7.0, id="a pod that ends has its grace and no more"),
    ],
)
def test_an_engine_is_waited_for_as_long_as_its_start_takes(patience: Patience, seconds: float) -> None:
    assert SLOW.generated is not None
    assert SLOW.generated.start_s == 60.0

    assert limit_s(SLOW, patience) == seconds


def test_a_socket_that_we_may_not_connect_to_is_no_engine_that_does_not_run(tmp_path: Path) -> None:
    path, host = tmp_path / "d.sock", Host.under(PurePosixPath(tmp_path))
    engine = replace(EngineState.usual(ENGINES["docker"]), socket=PurePosixPath("/d.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:  # root may connect to anything else
        server.bind(str(path))

        answer = ask(host, engine)

    assert answer.silence == f"connect to {path} (Protocol wrong type for socket)"
    assert answer.remedy == "check the path and run as root with that socket mounted"
    assert (answer.stopped, answer.failed, answer.disabled) == (False, False, False)


@pytest.mark.parametrize(("name", "waits"), [("k0s", True), ("k3s", False), ("containerd", False)])
def test_a_silent_engine_is_asked_again_where_it_restarts_itself(
    tmp_path: Path, name: str, *, waits: bool
) -> None:
    row, asked = ENGINES[name], list[int]()
    (tmp_path / "run/dbus").mkdir(parents=True)
    engine = replace(EngineState.usual(row), socket=PurePosixPath("/e.sock"))
    running = FakeSystemd({unit: FakeUnit() for unit in (row.unit, *row.units)})

    def ends_silently(_: object) -> None:
        asked.append(1)

    with (
        serving(tmp_path / "run/dbus/system_bus_socket", running),
        serving(tmp_path / "e.sock", ends_silently),
    ):
        ask_for(Host.under(PurePosixPath(tmp_path)), engine, Options(timeout_s=0.5), 0.3)

    assert (len(asked) > 1) == waits


def test_where_nobody_listens_all_sockets_that_were_tried_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InstallerError, match=r"^cannot find a running engine \(nothing answers on /"
    ) as caught:
        find_engines(Host.under(PurePosixPath(tmp_path)), Options(), Record())

    tried = dict.fromkeys(str(engine.socket) for engine in ENGINES.values())
    assert f"nothing answers on {', '.join(tried)})" in str(caught.value)


def test_an_engine_that_misreports_is_outdated_where_its_config_changed_after_its_start(
    tmp_path: Path,
) -> None:
    host, engine = Host.under(PurePosixPath(tmp_path)), EngineState.usual(ENGINES["crio"])
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/ours").touch()
    paths = [PurePosixPath("/conf.d/ours")]
    now = (tmp_path / "conf.d/ours").stat().st_ctime
    gone = [PurePosixPath("/conf.d/gone/ours")]
    (tmp_path / "conf.d/gone").mkdir()

    before, later = Started(began_s=now - 1), Started(began_s=now + 60)

    assert is_outdated(host, replace(engine, started=before), paths)
    assert is_outdated(host, replace(engine, started=before), gone)
    assert not is_outdated(host, replace(engine, started=later), [*paths, *gone])
    assert not is_outdated(host, engine, paths)
    assert not is_outdated(host, replace(EngineState.usual(ENGINES["containerd"]), started=before), paths)


def test_a_process_beside_those_of_the_ledger_is_read_as_the_engine_that_has_that_name() -> None:
    assert {process: row.name for process, row in ROWS.items()} == {
        "dockerd": "docker",
        "containerd": "containerd",
        "crio": "crio",
    }
