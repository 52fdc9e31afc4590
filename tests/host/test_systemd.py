import socket
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedBeforeError, StoppedError
from installer.host import units
from installer.host.files import Host
from installer.host.systemd import (
    NoBusError,
    UnitState,
    look,
    reload_unit,
    restart_unit,
    shutdown_prepared,
    system_state,
)
from installer.host.units import Patience
from tests.host.servers import (
    AwaySystemd,
    BusySystemd,
    CancelledSystemd,
    FakeSystemd,
    FakeUnit,
    ReloadingSystemd,
    hang,
    hang_up,
    serving,
)

CONTAINERD = "containerd.service"


def node(**units: FakeUnit) -> FakeSystemd:
    return FakeSystemd({f"{name}.service": unit for name, unit in units.items()})


def test_a_restart_returns_when_the_job_is_done(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit())

    with serving(tmp_path / "bus", systemd) as bus:
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].starts == 1
    assert not {"Subscribe", "AddMatch"} & {*systemd.calls}


def test_many_restarts_do_not_hit_the_start_limit(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit())

    with serving(tmp_path / "bus", systemd) as bus:
        for _ in range(FakeSystemd.START_LIMIT + 1):
            restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].active == "active"


def test_a_stopped_unit_can_be_restarted_though_systemd_has_unloaded_it(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit(active="inactive", sub="dead"))

    with serving(tmp_path / "bus", systemd) as bus:
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].active == "active"


def test_a_job_that_does_not_end_well_is_an_error_with_what_became_of_the_unit(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit(result="failed"))

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(
            InstallerError, match=r"\(unit failed/failed, exit-code\).*journalctl -u containerd.service"
        ),
    ):
        restart_unit([bus], CONTAINERD, timeout_s=5)


def test_a_reload_that_fails_is_told_though_the_unit_runs_on(tmp_path: Path) -> None:
    systemd = ReloadingSystemd(
        {CONTAINERD: FakeUnit(can_reload=True)}, changed={"ReloadResult": ("s", "exit-code")}
    )

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(InstallerError, match=r"reload containerd.service \(unit active/running, exit-code\)"),
    ):
        reload_unit([bus], CONTAINERD, timeout_s=5)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        pytest.param("nope.service", r"restart nope.service \(not-found\)", id="unknown"),
        pytest.param("masked.service", r"restart masked.service \(masked\)", id="masked"),
        pytest.param("nope", "Unit name nope is neither a valid", id="no name of a unit"),
    ],
)
def test_a_unit_that_cannot_be_restarted_is_named(tmp_path: Path, unit: str, words: str) -> None:
    systemd = node(masked=FakeUnit(load="masked"))

    with serving(tmp_path / "bus", systemd) as bus, pytest.raises(InstallerError, match=words):
        restart_unit([bus], unit, timeout_s=5)

    assert "RestartUnit" not in systemd.calls


def test_systemds_own_socket_serves_when_the_bus_is_down(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit())
    systemd.behind_bus = False

    with serving(tmp_path / "private", systemd) as private:
        restart_unit([tmp_path / "no-bus", private], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].starts == 1


def forged(member: str) -> list[Any]:
    """Return what a local user sends us alone while we wait: the default policy of a system bus lets it pass."""
    from jeepney import (  # type: ignore[import-untyped]  # ships no types
        DBusAddress,
        HeaderFields,
        new_signal,
    )

    manager = DBusAddress("/org/freedesktop/systemd1", interface="org.freedesktop.systemd1.Manager")
    if member != "RestartUnit":
        return []
    answers = [new_signal(manager, "JobRemoved", "o", ("/job/7",)) for _ in range(9)]
    for serial, each in enumerate(answers, 1):
        each.header.fields[HeaderFields.reply_serial] = serial
    return [
        new_signal(manager, "JobRemoved", "uoss", (7, "/job/7", CONTAINERD, "failed")),
        new_signal(manager, "JobRemoved"),
        new_signal(manager, "JobRemoved", "s", ("/job/7",)),
        new_signal(manager, "JobRemoved", "u", (7,)),
        *answers,
    ]


def test_forged_signals_decide_nothing(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit())
    systemd.strangers = forged

    with serving(tmp_path / "bus", systemd) as bus:
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].starts == 1


def test_a_flood_of_signals_is_read_past(tmp_path: Path) -> None:
    systemd = node(containerd=FakeUnit())
    systemd.strangers = lambda member: forged("RestartUnit") * (400 if member == "RestartUnit" else 10)

    with serving(tmp_path / "bus", systemd) as bus:
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].starts == 1


@pytest.mark.parametrize("error", ["NoReply", "NameHasNoOwner", "ServiceUnknown"])
def test_a_job_outlives_a_daemon_reexec(tmp_path: Path, error: str) -> None:
    systemd = AwaySystemd({CONTAINERD: FakeUnit()}, away=f"org.freedesktop.DBus.Error.{error}")

    with serving(tmp_path / "bus", systemd) as bus:
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.turns == 0


def test_a_bus_without_systemd_is_no_bus(tmp_path: Path) -> None:
    systemd = AwaySystemd(on="GetAll", away="org.freedesktop.DBus.Error.ServiceUnknown")

    with serving(tmp_path / "bus", systemd) as bus, pytest.raises(NoBusError, match="reach systemd"):
        look([bus], CONTAINERD, read=UnitState.of, timeout_s=5)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"Job": ("s", "no tuple")}, id="Job"),
        pytest.param({"InvocationID": ("s", "no bytes")}, id="InvocationID"),
        pytest.param({"MainPID": ("as", ["1"])}, id="MainPID"),
        pytest.param({"InvocationID": ("u", 1 << 31)}, id="a number that would be two gigabytes"),
        pytest.param({"Job": ("(uo)", (1, "/")), "InvocationID": ("as", ["a"])}, id="texts"),
    ],
)
def test_a_property_of_another_shape_is_an_error_and_no_traceback(
    tmp_path: Path, changed: dict[str, tuple[str, Any]]
) -> None:
    systemd = node(containerd=FakeUnit())
    systemd.changed = changed

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(InstallerError, match=r"look at containerd.service \(what answers is not systemd\);"),
    ):
        look([bus], CONTAINERD, read=UnitState.of, timeout_s=5)


def drivel(connection: socket.socket) -> None:
    """Say OK, then bytes without end."""
    connection.recv(65536)
    connection.sendall(b"OK 0123456789abcdef\r\n")
    while True:
        connection.sendall(b"l" + bytes(3) + b"\xff\xff\xff\x00" * 16384)


def test_a_bus_that_never_comes_to_an_end_is_left(tmp_path: Path) -> None:
    started = time.monotonic()

    with (
        serving(tmp_path / "bus", drivel) as bus,
        pytest.raises(NoBusError, match=r"what answers is not systemd[,)]"),
    ):
        system_state([bus], timeout_s=0.5)

    assert time.monotonic() - started < 20


def test_a_bus_that_hangs_leaves_time_for_the_next(tmp_path: Path) -> None:
    systemd = node()

    with serving(tmp_path / "bus", hang) as bus, serving(tmp_path / "other", systemd) as other:
        state = system_state([bus, other], timeout_s=0.6)

    assert state == "running"


@pytest.mark.parametrize("error", ["NameHasNoOwner", "ServiceUnknown"])
def test_a_bus_that_systemd_has_left_leads_on_to_its_own_socket(tmp_path: Path, error: str) -> None:
    """As at a shutdown."""
    gone = AwaySystemd(on="Get", away=f"org.freedesktop.DBus.Error.{error}")
    systemd = FakeSystemd(state="stopping", behind_bus=False)

    with serving(tmp_path / "bus", gone) as bus, serving(tmp_path / "private", systemd) as private:
        assert system_state([bus, private], timeout_s=5) == "stopping"


def test_the_state_of_a_unit_is_told_in_systemds_words(tmp_path: Path) -> None:
    systemd = node(docker=FakeUnit(main_pid=64, can_reload=True))

    with serving(tmp_path / "bus", systemd) as bus:
        docker = look([bus], "docker.service", read=UnitState.of, timeout_s=5)
        target = look([bus], "basic.target", read=UnitState.of, timeout_s=5)

    never, well = bytes(16).hex(), "success"
    assert docker == UnitState("loaded", "active", "running", 64, True, 0, never, well)
    assert target == UnitState("not-found", "inactive", "dead", 0, False, 0, never)


def test_a_node_that_goes_down_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "bus", FakeSystemd(state="stopping")) as bus:
        state = system_state([bus], timeout_s=5)

    assert state == "stopping"


@pytest.mark.parametrize("prepared", [True, False])
def test_a_shutdown_that_logind_holds_back_is_told(tmp_path: Path, *, prepared: bool) -> None:
    with serving(tmp_path / "bus", FakeSystemd(prepared=prepared)) as bus:
        said = shutdown_prepared([bus], timeout_s=5)

    assert said is prepared


def test_a_node_without_logind_holds_no_shutdown_back(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "bus", FakeSystemd()) as bus,
        pytest.raises(InstallerError, match="does not exist"),
    ):
        shutdown_prepared([bus], timeout_s=5)


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        pytest.param(hang_up, "authentication: closed|Connection reset", id="hangs up"),
        pytest.param(hang, "timed out", id="never answers"),
        pytest.param(FakeSystemd(silent_on="Hello"), "no answer in time", id="never says hello"),
        pytest.param(FakeSystemd(state="refusing"), "authentication: REJECTED EXTERNAL", id="refuses us"),
    ],
)
def test_a_bus_that_does_not_let_us_in_is_no_bus(
    tmp_path: Path, behave: FakeSystemd | Callable[..., None], words: str
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


def test_without_a_bus_the_directory_to_mount_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoBusError, match=r"absent: .*No such file.*mount the node's /run/dbus"):
        system_state([tmp_path / "absent"], timeout_s=1)


@pytest.mark.parametrize("call", ["GetAll", "ResetFailedUnit", "RestartUnit", "Get"])
def test_a_systemd_that_stops_answering_is_left_at_the_deadline(tmp_path: Path, call: str) -> None:
    systemd = node(containerd=FakeUnit())
    systemd.silent_on = call
    started = time.monotonic()

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(InstallerError, match=r"restart containerd.service within 0.3 s"),
    ):
        restart_unit([bus], CONTAINERD, timeout_s=0.3)

    assert time.monotonic() - started < 20


def test_a_restart_that_systemd_does_not_come_to_is_taken_back(tmp_path: Path) -> None:
    systemd = BusySystemd({CONTAINERD: FakeUnit()})

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(NotBegunError, match="systemd has not begun with it within 0 s"),
    ):
        restart_unit([bus], CONTAINERD, timeout_s=0.3)

    assert systemd.calls[-2:] == ["Cancel", "GetAll"]
    assert systemd.units[CONTAINERD].starts == 0


def test_a_restart_that_somebody_else_cancels_has_not_begun(tmp_path: Path) -> None:
    systemd = CancelledSystemd({CONTAINERD: FakeUnit()})

    with (
        serving(tmp_path / "bus", systemd) as bus,
        pytest.raises(NotBegunError, match="somebody has cancelled it"),
    ):
        restart_unit([bus], CONTAINERD, timeout_s=5)

    assert systemd.units[CONTAINERD].starts == 0


def test_a_stop_takes_a_restart_back_that_systemd_has_not_come_to(tmp_path: Path) -> None:
    systemd, stop_at = BusySystemd({CONTAINERD: FakeUnit()}), time.monotonic() + 0.3

    def check() -> None:
        if time.monotonic() > stop_at:
            raise StoppedError

    with serving(tmp_path / "bus", systemd) as bus, pytest.raises(StoppedBeforeError):
        restart_unit([bus], CONTAINERD, timeout_s=5, check=check)

    assert "Cancel" in systemd.calls


def test_a_restart_that_begins_as_it_is_taken_back_does_not_leave_the_unit_stopped(tmp_path: Path) -> None:
    systemd = BusySystemd({CONTAINERD: FakeUnit()}, begins_late=True)

    with serving(tmp_path / "bus", systemd) as bus, pytest.raises(PendingError):
        restart_unit([bus], CONTAINERD, timeout_s=0.3)

    assert systemd.units[CONTAINERD].active == "active"
    assert systemd.units[CONTAINERD].starts == 1


def test_a_pod_has_no_time_to_take_a_restart_back(tmp_path: Path) -> None:
    systemd = BusySystemd({CONTAINERD: FakeUnit()})
    (tmp_path / "run/dbus").mkdir(parents=True)

    with (
        serving(tmp_path / "run/dbus/system_bus_socket", systemd),
        pytest.raises(PendingError, match="systemd still works on it, or hangs"),
    ):
        units.restart(Host.under(PurePosixPath(tmp_path)), CONTAINERD, Patience(1.0, lambda: None, stop_s=0))

    assert "Cancel" not in systemd.calls


def test_who_has_to_look_at_systemd_is_told_that_it_was_busy(tmp_path: Path) -> None:
    systemd, process = BusySystemd({CONTAINERD: FakeUnit()}), tmp_path / "proc/1"
    (tmp_path / "run/dbus").mkdir(parents=True)
    process.mkdir(parents=True)
    (process / "stat").write_text(
        "1 (systemd) S 0 1 1 0 -1 4194560 24000 200000 100 900 300 100 500 200 20\n"
    )
    (process / "schedstat").write_text("4000000000 1000000000 24000\n")

    def spend(_: str) -> tuple[()]:
        if "RestartUnit" in systemd.calls:
            # It waits for a processor that others take.
            (process / "schedstat").write_text("4000000000 900000000000 24000\n")
        return ()

    systemd.strangers = spend
    with (
        serving(tmp_path / "run/dbus/system_bus_socket", systemd),
        pytest.raises(
            NotBegunError, match=r"has not begun.*; systemd was busy for 100% of that time: see who"
        ),
    ):
        units.restart(Host.under(PurePosixPath(tmp_path)), CONTAINERD, Patience(0.3, lambda: None))


def test_a_systemd_that_others_keep_busy_is_given_as_much_more_time(tmp_path: Path) -> None:
    def slow(_: str) -> tuple[()]:
        time.sleep(0.1)
        return ()

    systemd = node(containerd=FakeUnit())
    systemd.strangers = slow
    (tmp_path / "run/dbus").mkdir(parents=True)

    with serving(tmp_path / "run/dbus/system_bus_socket", systemd):
        units.restart(Host.under(PurePosixPath(tmp_path)), CONTAINERD, Patience(0.3, lambda: None))

    assert systemd.units[CONTAINERD].starts == 1
