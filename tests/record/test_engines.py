"""How long an engine is waited for, and which row stands for a process."""

from pathlib import Path

import pytest

from installer.decide.engines import ENGINES
from installer.record.engines import ask, limit_s
from installer.record.other_engines import ROWS
from installer.record.units import Patience

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
    socket = tmp_path / "docker.sock"
    socket.symlink_to(socket)  # root may connect to anything that leads somewhere

    answer = ask(ENGINES["docker"], socket)

    assert answer.silence == f"connect to {socket} (Too many levels of symbolic links)"
    assert answer.remedy == "check the path and run as root with that socket mounted"
    assert not answer.stopped


def test_a_process_beside_those_of_the_ledger_is_read_as_the_engine_that_has_that_name() -> None:
    assert {process: row.name for process, row in ROWS.items()} == {
        "dockerd": "docker",
        "containerd": "containerd",
        "crio": "crio",
    }
