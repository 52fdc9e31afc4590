"""What is made of an engine's answer: one that its owner has stopped is not woken, nor waited for."""

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from msgspec.structs import replace

from installer.engines import ENGINES
from installer.engines.observe import ask_for, with_process
from installer.host.files import Host
from installer.model.facts import EngineState
from installer.model.options import Options, Places
from tests.host.servers import FakeSystemd, FakeUnit, serving

SOCKET = PurePosixPath("/e.sock")
ENDED, RUNS = "inactive", "active"


def facts(name: str) -> EngineState:
    row = ENGINES[name]
    return EngineState(name, row.config, None, None, (row.config,), SOCKET, row.unit)


@pytest.mark.parametrize(
    ("name", "service", "listens", "stopped"),
    [
        pytest.param("docker", ENDED, RUNS, True, id="stopped, and systemd listens"),
        pytest.param("docker", "failed", RUNS, True, id="failed, and systemd listens"),
        pytest.param("docker", ENDED, ENDED, False, id="stopped, and nobody of systemd's listens"),
        pytest.param("docker", RUNS, RUNS, False, id="it runs"),
        pytest.param("containerd", ENDED, RUNS, False, id="containerd, which systemd listens for nowhere"),
    ],
)
def test_an_engine_that_would_be_woken_by_a_question_is_not_asked(
    tmp_path: Path, name: str, service: str, listens: str, *, stopped: bool
) -> None:
    unit = ENGINES[name].unit
    systemd = FakeSystemd(
        {unit: FakeUnit(active=service), unit.replace(".service", ".socket"): FakeUnit(active=listens)}
    )
    (tmp_path / "run/dbus").mkdir(parents=True)
    asked: list[int] = []

    def answers(_: object) -> None:
        asked.append(1)  # and it ends without a word

    with (
        serving(tmp_path / "run/dbus/system_bus_socket", systemd),
        serving(tmp_path / SOCKET.name, answers),
    ):
        answer = ask_for(Host.under(PurePosixPath(tmp_path)), facts(name), Options(timeout_s=0.5), 0.0)

    assert (answer.stopped, not asked) == (stopped, stopped)
    assert (answer.silence == f"{unit} is stopped, and systemd listens for it") is stopped


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"stopped": True, "silence": "nobody listens"}, id="stopped"),
        pytest.param({"failed": True, "silence": "its CRI did not load"}, id="failed"),
        pytest.param({"silence": "it hangs", "remedy": "look at it"}, id="it hangs"),
    ],
)
def test_why_an_engine_does_not_answer_is_kept(tmp_path: Path, answer: dict[str, Any]) -> None:
    engine = replace(facts("containerd"), **answer)
    found = with_process(Host.under(PurePosixPath(tmp_path)), engine, Places())

    assert (found.silence, found.remedy, found.stopped) == (engine.silence, engine.remedy, engine.stopped)
    assert (found.pid, found.exe, found.build) == (None, None, "")
