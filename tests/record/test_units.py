"""What the state of a unit means to us, and what is said where systemd cannot be asked."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath

import pytest

from installer.errors import InstallerError, NotBegunError, PendingError
from installer.host import units
from installer.host.files import Host
from installer.host.systemd import NoBusError
from installer.host.units import Patience
from tests.host.servers import FakeSystemd, FakeUnit, serving

UNIT = "containerd.service"
ASKED: dict[str, Callable[[Host, str], object]] = {
    "at_rest": units.at_rest,
    "stopped_by_owner": units.stopped_by_owner,
    "crashes": units.crashes,
    "runs": units.runs,
    "died": units.died,
}
JOB = {"Job": ("(uo)", (7, "/job/7"))}


@pytest.mark.parametrize(
    ("active", "sub", "job", "true"),
    [
        ("active", "running", False, {"runs"}),
        ("reloading", "reload", False, {"runs"}),
        ("activating", "start", True, {"runs", "crashes"}),
        ("activating", "auto-restart", False, {"runs", "crashes", "died"}),
        ("deactivating", "stop-sigterm", True, set()),
        ("inactive", "dead", False, {"at_rest", "stopped_by_owner", "died"}),
        ("inactive", "dead", True, {"stopped_by_owner", "died"}),
        ("failed", "failed", False, {"at_rest", "died"}),
        ("failed", "failed", True, {"died"}),
    ],
)
def test_what_a_state_of_systemds_means(
    tmp_path: Path, active: str, sub: str, true: set[str], *, job: bool
) -> None:
    found = asked(tmp_path, FakeSystemd({UNIT: FakeUnit(active=active, sub=sub)}, changed=JOB if job else {}))

    assert {name for name, value in found.items() if value} == true
    assert found["died"] == (f"{UNIT} is {active}/{sub}" if "died" in true else "")


def test_where_nobody_can_ask_a_unit_counts_as_at_rest_and_as_nothing_else(tmp_path: Path) -> None:
    found = asked(tmp_path, None)

    assert {name for name, value in found.items() if value} == {"at_rest"}
    units.await_no_job(Host.under(PurePosixPath(tmp_path)), UNIT, timeout_s=60)
    with pytest.raises(NoBusError, match="mount the node's /run/dbus"):
        units.reload(Host.under(PurePosixPath(tmp_path)), UNIT, timeout_s=1)


def asked(root: Path, systemd: FakeSystemd | None) -> dict[str, object]:
    host = Host.under(PurePosixPath(root))
    with ExitStack() as held:
        if systemd is not None:
            (root / "run/dbus").mkdir(parents=True)
            held.enter_context(serving(root / "run/dbus/system_bus_socket", systemd))
        return {name: ask(host, UNIT) for name, ask in ASKED.items()}


def restarted(root: Path, systemd: FakeSystemd, patience: Patience) -> None:
    (root / "run/dbus").mkdir(parents=True)
    with serving(root / "run/dbus/system_bus_socket", systemd):
        units.restart(Host.under(PurePosixPath(root)), UNIT, patience)


class Unmoved(FakeSystemd):
    """Says that a restart is done, and the process is the one of before."""

    keeps = "main_pid"

    def _restart(self, *words: object) -> object:  # type: ignore[override]
        unit = self.units[UNIT]
        pid = unit.main_pid
        yield from super()._restart(*words)  # type: ignore[arg-type]
        if self.keeps == "main_pid":
            unit.main_pid = pid
        else:
            unit.starts = 0


class SameInvocation(Unmoved):
    keeps = "invocation"


class SlowToStop(FakeSystemd):
    """Is still stopping when our time is over, then starts, with ``ends`` as how that goes."""

    ends = ("active", "running")
    looks = 0

    def _restart(self, request: object, *_: object) -> object:  # type: ignore[override]
        from jeepney import new_method_return  # type: ignore[import-untyped]  # ships no types

        unit = self.units[UNIT]
        unit.active, unit.sub = "deactivating", "stop-sigterm"
        self.changed = {**JOB}
        yield new_method_return(request, "o", ("/job/7",))

    def _answers(self, request: object, member: str) -> object:  # type: ignore[override]
        if member == "GetAll" and self.units[UNIT].active == "deactivating":
            self.looks += 1
            if self.looks > self.stops_after:
                unit = self.units[UNIT]
                unit.active, unit.sub = self.ends
                unit.starts, unit.main_pid, self.changed = 1, 62, {}
        yield from super()._answers(request, member)

    stops_after = 6


class NeverStops(SlowToStop):
    stops_after = 10**6


class FailsToStart(SlowToStop):
    ends = ("failed", "failed")


@pytest.mark.parametrize("systemd", [Unmoved, SameInvocation])
def test_a_unit_that_is_as_before_was_not_restarted_whatever_is_said_of_the_job(
    tmp_path: Path, systemd: type[FakeSystemd]
) -> None:
    with pytest.raises(InstallerError, match=rf"restart {UNIT} \(it still runs as before, pid 6[12]\)"):
        restarted(tmp_path, systemd({UNIT: FakeUnit()}), Patience(5, lambda: None))


class ExecutesItselfAnew(FakeSystemd):
    """Loses a connection in a restart, and no job: it is done by the time of the second question."""

    began = True

    def _restart(self, request: object, *words: object) -> object:  # type: ignore[override]
        from jeepney import new_error

        if self.began:
            list(super()._restart(request, *words))  # type: ignore[arg-type]
            self.units[UNIT].active, self.changed = "activating", {**JOB}
        said = "Message recipient disconnected from message bus without replying"
        yield new_error(request, "org.freedesktop.DBus.Error.NoReply", "s", (said,))

    def _answers(self, request: object, member: str) -> object:  # type: ignore[override]
        yield from super()._answers(request, member)
        if member == "GetAll":
            self.units[UNIT].active, self.changed = "active", {}


class ForgetsARestart(ExecutesItselfAnew):
    began = False


def test_a_restart_goes_on_where_systemd_executes_itself_anew(tmp_path: Path) -> None:
    systemd = ExecutesItselfAnew({UNIT: FakeUnit()})

    restarted(tmp_path, systemd, Patience(60, lambda: None))

    assert systemd.calls.count("RestartUnit") == 1


def test_a_restart_that_systemd_forgets_has_not_begun(tmp_path: Path) -> None:
    with pytest.raises(NotBegunError, match="disconnected from message bus"):
        restarted(tmp_path, ForgetsARestart({UNIT: FakeUnit()}), Patience(60, lambda: None))


@pytest.mark.parametrize(
    ("systemd", "stop_s", "error", "said"),
    [
        pytest.param(SlowToStop, 60.0, None, "", id="stops late, and starts"),
        pytest.param(NeverStops, 0.3, PendingError, f"when {UNIT} has stopped and started", id="never stops"),
        pytest.param(NeverStops, 0.0, PendingError, "hangs", id="of a pod that ends"),
        pytest.param(FailsToStart, 60.0, InstallerError, "unit failed/failed", id="does not start"),
    ],
)
def test_a_stop_is_outlasted_as_long_as_it_may_take_but_not_by_a_pod_that_ends(
    tmp_path: Path, systemd: type[SlowToStop], stop_s: float, error: type[InstallerError] | None, said: str
) -> None:
    slow, checked = systemd({UNIT: FakeUnit()}), list[str]()
    patience = Patience(0.2, lambda: checked.append("check"), stop_s=stop_s)

    if error is None:
        restarted(tmp_path, slow, patience)
        assert slow.units[UNIT].active == "active"
    else:
        with pytest.raises(InstallerError) as caught:
            restarted(tmp_path, slow, patience)
        assert caught.type is error
        assert said in str(caught.value)
    assert checked
