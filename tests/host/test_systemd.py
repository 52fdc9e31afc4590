import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from installer.errors import InstallerError
from installer.host.systemd import NoBusError, Unit, ask_bus, shutdown_prepared, system_state
from tests.host.servers import FakeSystemd, FakeUnit, hang, serving

CONTAINERD = "containerd.service"


def look(bus: Path, unit: str) -> Unit:
    return ask_bus([bus], lambda on: Unit.of(on.properties(unit)), purpose=f"look at {unit}", timeout_s=5)


@pytest.mark.parametrize(
    "changed",
    [{"MainPID": ("as", ["1"])}, {"InvocationID": ("u", 1 << 31)}],
    ids=["a list", "a number that would be two gigabytes"],
)
def test_a_property_of_another_shape_is_an_error_and_no_traceback(
    tmp_path: Path, changed: dict[str, tuple[str, Any]]
) -> None:
    with (
        serving(tmp_path / "bus", FakeSystemd({CONTAINERD: FakeUnit()}, changed=changed)) as bus,
        pytest.raises(InstallerError, match=r"look at containerd.service \(what answers is not systemd\);"),
    ):
        look(bus, CONTAINERD)


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


def test_the_state_of_a_unit_is_told_in_systemds_words(tmp_path: Path) -> None:
    systemd = FakeSystemd({CONTAINERD: FakeUnit(main_pid=64, can_reload=True)})

    with serving(tmp_path / "bus", systemd) as bus:
        service, target = look(bus, CONTAINERD), look(bus, "basic.target")

    never, well = bytes(16).hex(), "success"
    assert service == Unit("loaded", "active", "running", 64, True, 0, never, well)
    assert target == Unit("not-found", "inactive", "dead", 0, False, 0, never)


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
        pytest.param(drivel, r"what answers is not systemd[,)]", id="never comes to an end"),
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


def test_without_a_bus_the_directory_to_mount_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoBusError, match=r"absent: .*No such file.*mount the node's /run/dbus"):
        system_state([tmp_path / "absent"], timeout_s=1)
