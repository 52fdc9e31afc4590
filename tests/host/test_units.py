"""What a unit's state means, how it is restarted, and who answers as systemd."""

import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from jeepney import DBusAddress, HeaderFields, new_method_return, new_signal  # type: ignore[import-untyped]  # ships no types

from installer.errors import InstallerError, NotBegunError, PendingError
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.systemd import NoBusError, shutdown_prepared, system_state
from installer.host.unit_jobs import Patience
from tests.host.servers import FakeSystemd, FakeUnit, hang, serving
from tests.support.live import on_bus

UNIT = "containerd.service"
ASKED: dict[str, Callable[[Host, str], object]] = {
    "at_rest": lambda host, unit: systemd.look_at_unit(host, unit).is_at_rest,
    "runs": systemd.unit_runs,
    "describe_end": systemd.describe_unit_end,
}
JOB = {"Job": ("(uo)", (7, "/job/7"))}


@pytest.mark.parametrize(
    ("active", "sub", "job", "true"),
    [
        ("active", "running", False, {"runs"}),
        ("reloading", "reload", False, {"runs"}),
        ("activating", "start", True, {"runs"}),
        ("activating", "auto-restart", False, {"runs", "describe_end"}),
        ("deactivating", "stop-sigterm", True, set()),
        ("inactive", "dead", False, {"at_rest", "describe_end"}),
        ("inactive", "dead", True, {"describe_end"}),
        ("failed", "failed", False, {"at_rest", "describe_end"}),
        ("failed", "failed", True, {"describe_end"}),
    ],
)
def test_what_a_state_of_systemds_means(
    tmp_path: Path, active: str, sub: str, true: set[str], *, job: bool
) -> None:
    found = asked(tmp_path, FakeSystemd({UNIT: FakeUnit(active=active, sub=sub)}, changed=JOB if job else {}))

    assert {name for name, value in found.items() if value} == true
    assert found["describe_end"] == (f"{UNIT} is {active}/{sub}" if "describe_end" in true else "")


def test_a_unit_counts_as_at_rest_if_no_bus_can_be_asked(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))

    assert {name for name, value in asked(tmp_path, None).items() if value} == {"at_rest"}
    unit_jobs.await_no_job(host, UNIT, timeout_s=60)
    with pytest.raises(NoBusError, match="mount the node's /run/dbus"):
        unit_jobs.reload(host, UNIT, timeout_s=1)


def asked(root: Path, systemd: FakeSystemd | None) -> dict[str, object]:
    host = Host.under(PurePosixPath(root))
    with on_bus(root, systemd) if systemd else nullcontext():
        return {name: ask(host, UNIT) for name, ask in ASKED.items()}


def never() -> None:
    pass


PATIENT = Patience(5, never)


def restarted(root: Path, systemd: FakeSystemd, patience: Patience = PATIENT, unit: str = UNIT) -> None:
    place = root / "run" / ("dbus/system_bus_socket" if systemd.behind_bus else "systemd/private")
    place.parent.mkdir(parents=True)
    with serving(place, systemd):
        unit_jobs.restart(Host.under(PurePosixPath(root)), unit, patience)


@pytest.mark.parametrize(
    ("state", "by_bus"),
    [(("active", "running"), True), (("active", "running"), False), (("inactive", "dead"), True)],
    ids=["by the bus", "by systemd's own socket, where the bus is down", "one that it has unloaded"],
)
def test_a_restart_returns_when_the_unit_has_no_job(
    tmp_path: Path, state: tuple[str, str], *, by_bus: bool
) -> None:
    systemd = FakeSystemd({UNIT: FakeUnit("loaded", *state)}, behind_bus=by_bus)

    restarted(tmp_path, systemd)

    assert (systemd.units[UNIT].active, systemd.units[UNIT].starts) == ("active", 1)
    # Recent starts are forgotten first, and no signal is waited for.
    assert systemd.calls.index("ResetFailedUnit") < systemd.calls.index("RestartUnit")
    assert not {"Subscribe", "AddMatch"} & {*systemd.calls}


def forged() -> list[Any]:
    """Return what a local user sends us alone while we wait: the default policy of a system bus lets it pass."""
    manager = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
    answers = [new_signal(manager, "JobRemoved", "o", ("/job/7",)) for _ in range(9)]
    for serial, each in enumerate(answers, 1):
        each.header.fields[HeaderFields.reply_serial] = serial
    return [new_signal(manager, "JobRemoved", "uoss", (7, "/job/7", UNIT, "failed")), *answers]


@pytest.mark.parametrize(("at_restart", "else_"), [(1, 0), (400, 10)])
def test_forged_signals_decide_nothing(tmp_path: Path, at_restart: int, else_: int) -> None:
    systemd = FakeSystemd({UNIT: FakeUnit()})
    systemd.strangers = lambda member: forged() * (at_restart if member == "RestartUnit" else else_)

    restarted(tmp_path, systemd)

    assert systemd.units[UNIT].starts == 1


@pytest.mark.parametrize("by_bus", [True, False], ids=["by the bus", "by systemd's own socket"])
def test_signals_that_come_with_the_authentication_are_no_malformed_answer(
    tmp_path: Path, *, by_bus: bool
) -> None:
    # A client that was slow found them in its socket's buffer, up to the middle of one.
    signals = forged() * 20
    systemd = FakeSystemd({UNIT: FakeUnit()}, behind_bus=by_bus, early=signals)

    restarted(tmp_path, systemd)

    assert systemd.units[UNIT].starts == 1


@pytest.mark.parametrize("call", ["GetAll", "RestartUnit"])
def test_a_systemd_that_stops_answering_is_left_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setitem(systemd.read_unit.__kwdefaults__ or {}, "timeout_s", 0.3)
    began = time.monotonic()

    with pytest.raises(PendingError, match=r"containerd.service within \S+ s \(systemd still works on it"):
        restarted(tmp_path, FakeSystemd({UNIT: FakeUnit()}, silent_on=call), Patience(0.3, never))

    assert time.monotonic() - began < 20


def test_a_restart_that_systemd_loses_while_it_executes_itself_anew_has_not_begun(tmp_path: Path) -> None:
    systemd = FakeSystemd({UNIT: FakeUnit()}, fails={"RestartUnit": "org.freedesktop.DBus.Error.NoReply"})

    with pytest.raises(NotBegunError, match="not now"):
        restarted(tmp_path, systemd)


@dataclass
class Busy(FakeSystemd):
    """Answers and begins no job, as systemd 252 was seen to while others ask it ``ListUnitFiles`` without end.

    With ``begins_late`` it comes to a restart in the moment that it is cancelled.
    """

    begins_late: bool = False

    def _answers(self, request: Any, member: str) -> Any:
        if member not in {"RestartUnit", "CancelJob"}:
            yield from super()._answers(request, member)
            return
        self.changed = JOB if member == "RestartUnit" else {}
        if member == "CancelJob" and self.begins_late:
            unit = self.units[UNIT]
            unit.active, unit.sub, unit.main_pid = "deactivating", "stop-sigterm", 0
        yield new_method_return(request, "o", ("/job/7",))


def test_a_restart_that_systemd_does_not_come_to_is_taken_back(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()})

    with pytest.raises(
        NotBegunError, match=r"systemd has not started the restart within 1 s.*; wait until systemd is idle"
    ):
        restarted(tmp_path, systemd, Patience(0.3, never))

    assert [call for call in systemd.calls if call != "Hello"][-2:] == ["CancelJob", "GetAll"]
    assert systemd.units[UNIT].starts == 0


def test_a_restart_that_begins_as_it_is_taken_back_does_not_leave_the_unit_stopped(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()}, begins_late=True)

    restarted(tmp_path, systemd, Patience(0.3, never))

    assert (systemd.units[UNIT].active, systemd.units[UNIT].starts) == ("active", 1)


def test_a_pod_has_no_time_to_take_a_restart_back(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()})

    with pytest.raises(PendingError, match="systemd still works on it, or hangs"):
        restarted(tmp_path, systemd, Patience(1.0, never, stop_s=0))

    assert "CancelJob" not in systemd.calls


@dataclass
class SlowToStop(FakeSystemd):
    """Is still stopping when our time is over, then starts, with ``ends`` as how that goes."""

    stops_after: int = 6  # questions
    ends: tuple[str, str] = ("active", "running")
    looks: int = 0

    def _restart(self, request: Any, name: str) -> Any:
        unit = self.units[name]
        unit.active, unit.sub = "deactivating", "stop-sigterm"
        self.changed = JOB
        yield new_method_return(request, "o", ("/job/7",))

    def _answers(self, request: Any, member: str) -> Any:
        unit = self.units[UNIT]
        if member == "GetAll" and unit.active == "deactivating":
            self.looks += 1
            if self.looks > self.stops_after:
                unit.active, unit.sub = self.ends
                unit.starts, unit.main_pid, self.changed = 1, 62, {}
        yield from super()._answers(request, member)


NEVER = 10**6


@pytest.mark.parametrize(
    ("slow", "stop_s", "error", "said"),
    [
        ({}, 60.0, None, ""),
        ({"stops_after": NEVER}, 0.3, PendingError, "has stopped and started"),
        ({"ends": ("failed", "failed")}, 60.0, InstallerError, "unit failed/failed"),
    ],
    ids=["stops late, and starts", "never stops", "does not start"],
)
def test_a_stop_is_outlasted_as_long_as_it_may_take(
    tmp_path: Path, slow: dict[str, Any], stop_s: float, error: type[InstallerError] | None, said: str
) -> None:
    systemd, checked = SlowToStop({UNIT: FakeUnit()}, **slow), list[str]()
    patience = Patience(0.2, lambda: checked.append("check"), stop_s=stop_s)

    with pytest.raises(error, match=said) if error else nullcontext():
        restarted(tmp_path, systemd, patience)

    assert checked
    assert error or systemd.units[UNIT].active == "active"


# Who answers as systemd, on a bus or on its own socket.


def test_systemds_own_socket_is_asked_first_and_then_the_shared_bus_not_at_all(tmp_path: Path) -> None:
    host = Host.under(PurePosixPath(tmp_path))
    systemd_itself = FakeSystemd({UNIT: FakeUnit()}, behind_bus=False)
    connections = []

    def shared(connection: socket.socket) -> None:
        connections.append(connection)

    for place in ("run/systemd", "run/dbus"):
        (tmp_path / place).mkdir(parents=True)
    with (
        serving(tmp_path / "run/systemd/private", systemd_itself),
        serving(tmp_path / "run/dbus/system_bus_socket", shared),
    ):
        state = systemd.read_unit(host, UNIT)
        unit_jobs.restart(host, UNIT, PATIENT)

    assert systemd.buses(host)[0].name == "private"
    assert state.active == "active"
    assert systemd_itself.units[UNIT].starts == 1
    assert connections == []


def drivel(connection: socket.socket) -> None:
    """Say OK, then bytes without end."""
    connection.recv(65536)
    connection.sendall(b"OK 0123456789abcdef\r\n")
    while True:
        connection.sendall(b"l" + bytes(3) + b"\xff\xff\xff\x00" * 16384)


def test_a_bus_that_hangs_leaves_time_for_the_next(tmp_path: Path) -> None:
    with serving(tmp_path / "bus", hang) as bus, serving(tmp_path / "other", FakeSystemd()) as other:
        assert system_state([bus, other], timeout_s=0.6) == "running"


@pytest.mark.parametrize("error", ["NameHasNoOwner", "ServiceUnknown"])
def test_a_bus_that_systemd_has_left_leads_on_to_its_own_socket(tmp_path: Path, error: str) -> None:
    """As at a shutdown."""
    gone = FakeSystemd(fails={"Get": f"org.freedesktop.DBus.Error.{error}"})
    systemd = FakeSystemd(state="stopping", behind_bus=False)

    with serving(tmp_path / "bus", gone) as bus, serving(tmp_path / "private", systemd) as private:
        assert system_state([bus, private], timeout_s=5) == "stopping"


@pytest.mark.parametrize("prepared", [True, False, None], ids=["held back", "none", "no logind"])
def test_a_shutdown_that_logind_holds_back_is_told(tmp_path: Path, *, prepared: bool | None) -> None:
    with serving(tmp_path / "bus", FakeSystemd(prepared=prepared)) as bus:
        if prepared is None:
            with pytest.raises(InstallerError, match="does not exist"):
                shutdown_prepared([bus], timeout_s=5)
        else:
            assert shutdown_prepared([bus], timeout_s=5) is prepared


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        pytest.param(FakeSystemd(silent_on="Hello"), "no answer in time", id="never says hello"),
        pytest.param(FakeSystemd(state="refusing"), "authentication: REJECTED EXTERNAL", id="refuses us"),
        pytest.param(drivel, r"what answers is not systemd|no answer in time", id="never comes to an end"),
    ],
)
def test_a_bus_that_does_not_let_us_in_is_no_bus(
    tmp_path: Path, behave: Callable[[socket.socket], None], words: str
) -> None:
    started = time.monotonic()

    with serving(tmp_path / "bus", behave) as bus, pytest.raises(NoBusError, match=words):
        system_state([bus], timeout_s=0.3)

    assert time.monotonic() - started < 20


def test_a_bus_whose_queue_is_full_is_no_bus(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as stranger:
        listener.bind(str(tmp_path / "bus"))
        listener.listen(0)
        stranger.connect(str(tmp_path / "bus"))

        with pytest.raises(NoBusError, match="Resource temporarily unavailable"):
            system_state([tmp_path / "bus"], timeout_s=5)
