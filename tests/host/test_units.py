"""What the state of a unit means to us, and what is said where systemd cannot be asked."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from installer.errors import InstallerError, NotBegunError, PendingError, StoppedBeforeError, StoppedError
from installer.host import systemd, unit_jobs
from installer.host.files import Host
from installer.host.systemd import NoBusError
from installer.host.unit_jobs import Patience
from tests.host.servers import BusySystemd, CancelledSystemd, FakeSystemd, FakeUnit, ReloadingSystemd, serving
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


def test_where_nobody_can_ask_a_unit_counts_as_at_rest_and_as_nothing_else(tmp_path: Path) -> None:
    found = asked(tmp_path, None)

    assert {name for name, value in found.items() if value} == {"at_rest"}
    unit_jobs.await_no_job(Host.under(PurePosixPath(tmp_path)), UNIT, timeout_s=60)
    with pytest.raises(NoBusError, match="mount the node's /run/dbus"):
        unit_jobs.reload(Host.under(PurePosixPath(tmp_path)), UNIT, timeout_s=1)


def asked(root: Path, systemd: FakeSystemd | None) -> dict[str, object]:
    host = Host.under(PurePosixPath(root))
    with on_bus(root, systemd) if systemd else nullcontext():
        return {name: ask(host, UNIT) for name, ask in ASKED.items()}


def restarted(
    root: Path,
    systemd: FakeSystemd,
    patience: Patience,
    unit: str = UNIT,
    place: str = "dbus/system_bus_socket",
) -> None:
    (root / "run" / place).parent.mkdir(parents=True)
    with serving(root / "run" / place, systemd):
        unit_jobs.restart(Host.under(PurePosixPath(root)), unit, patience)


def never() -> None:
    pass


PATIENT = Patience(5, never)


@pytest.mark.parametrize(
    ("unit", "place"),
    [
        pytest.param(FakeUnit(), "dbus/system_bus_socket", id="by the bus"),
        pytest.param(FakeUnit(), "systemd/private", id="by systemd's own socket, where the bus is down"),
        pytest.param(
            FakeUnit(active="inactive", sub="dead"), "dbus/system_bus_socket", id="one that it has unloaded"
        ),
    ],
)
def test_a_restart_returns_when_the_unit_has_no_job(tmp_path: Path, unit: FakeUnit, place: str) -> None:
    systemd = FakeSystemd({UNIT: unit}, behind_bus=place.startswith("dbus"))

    restarted(tmp_path, systemd, PATIENT, place=place)

    assert (unit.active, unit.starts) == ("active", 1)
    # Recent starts are forgotten first, and no signal is waited for.
    assert systemd.calls.index("ResetFailedUnit") < systemd.calls.index("RestartUnit")
    assert not {"Subscribe", "AddMatch"} & {*systemd.calls}


def test_a_reload_that_fails_is_told_though_the_unit_runs_on(tmp_path: Path) -> None:
    unit, failed = FakeUnit(can_reload=True), {"ReloadResult": ("s", "exit-code")}

    with (
        on_bus(tmp_path, ReloadingSystemd({UNIT: unit}, changed=failed)) as host,
        pytest.raises(InstallerError, match=r"reload containerd.service \(unit active/running, exit-code\)"),
    ):
        unit_jobs.reload(host, UNIT, timeout_s=5)


@pytest.mark.parametrize(
    ("unit", "words", "asked_to"),
    [
        pytest.param("nope.service", r"restart nope.service \(not-found\)", False, id="unknown"),
        pytest.param("masked.service", r"restart masked.service \(masked\)", False, id="masked"),
        pytest.param(
            "nope",
            "Unit name nope is neither a valid.*; see journalctl -u nope",
            False,
            id="no name of a unit",
        ),
        pytest.param(
            UNIT, rf"\(unit failed/failed, exit-code\).*journalctl -u {UNIT}", True, id="a job that fails"
        ),
    ],
)
def test_a_unit_that_cannot_be_restarted_is_told_with_what_became_of_it(
    tmp_path: Path, unit: str, words: str, *, asked_to: bool
) -> None:
    systemd = FakeSystemd({"masked.service": FakeUnit(load="masked"), UNIT: FakeUnit(result="failed")})

    with pytest.raises(InstallerError, match=words):
        restarted(tmp_path, systemd, PATIENT, unit)

    assert ("RestartUnit" in systemd.calls) == asked_to


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
        new_signal(manager, "JobRemoved", "uoss", (7, "/job/7", UNIT, "failed")),
        new_signal(manager, "JobRemoved"),
        new_signal(manager, "JobRemoved", "s", ("/job/7",)),
        new_signal(manager, "JobRemoved", "u", (7,)),
        *answers,
    ]


@pytest.mark.parametrize(("at_restart", "else_"), [(1, 0), (400, 10)])
def test_forged_signals_decide_nothing(tmp_path: Path, at_restart: int, else_: int) -> None:
    systemd = FakeSystemd({UNIT: FakeUnit()})
    systemd.strangers = lambda member: (
        forged("RestartUnit") * (at_restart if member == "RestartUnit" else else_)
    )

    restarted(tmp_path, systemd, PATIENT)

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


class Busy(BusySystemd):
    """Is asked to cancel a job by its number."""

    def _answers(self, request: object, member: str) -> object:  # type: ignore[override]
        yield from super()._answers(request, "Cancel" if member == "CancelJob" else member)


def test_a_restart_that_systemd_does_not_come_to_is_taken_back(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()})

    with pytest.raises(
        NotBegunError, match=r"systemd has not begun with it within 1 s.*; wait until systemd is idle"
    ):
        restarted(tmp_path, systemd, Patience(0.3, never))

    assert [call for call in systemd.calls if call != "Hello"][-2:] == ["CancelJob", "GetAll"]
    assert systemd.units[UNIT].starts == 0


def test_a_stop_takes_a_restart_back_that_systemd_has_not_come_to(tmp_path: Path) -> None:
    systemd, stop_at = Busy({UNIT: FakeUnit()}), time.monotonic() + 0.3

    def check() -> None:
        if time.monotonic() > stop_at:
            raise StoppedError

    with pytest.raises(StoppedBeforeError):
        restarted(tmp_path, systemd, Patience(5, check))

    assert "CancelJob" in systemd.calls


def test_a_restart_that_begins_as_it_is_taken_back_does_not_leave_the_unit_stopped(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()}, begins_late=True)

    restarted(tmp_path, systemd, Patience(0.3, never))

    assert systemd.units[UNIT].active == "active"
    assert systemd.units[UNIT].starts == 1


def test_a_pod_has_no_time_to_take_a_restart_back(tmp_path: Path) -> None:
    systemd = Busy({UNIT: FakeUnit()})

    with pytest.raises(PendingError, match="systemd still works on it, or hangs"):
        restarted(tmp_path, systemd, Patience(1.0, never, stop_s=0))

    assert "CancelJob" not in systemd.calls


def test_a_systemd_that_others_keep_busy_is_given_as_much_more_time(tmp_path: Path) -> None:
    systemd = FakeSystemd({UNIT: FakeUnit()})

    def slow(_: str) -> tuple[()]:
        time.sleep(0.1)
        return ()

    systemd.strangers = slow

    restarted(tmp_path, systemd, Patience(0.3, never))

    assert systemd.units[UNIT].starts == 1


class Unmoved(FakeSystemd):
    """Says that a restart is done, and all is as before."""

    def _restart(self, *words: object) -> object:  # type: ignore[override]
        unit = self.units[UNIT]
        pid = unit.main_pid
        yield from super()._restart(*words)  # type: ignore[arg-type]
        unit.main_pid, unit.starts = pid, 0


@dataclass
class SlowToStop(FakeSystemd):
    """Is still stopping when our time is over, then starts, with ``ends`` as how that goes."""

    stops_after: int = 6  # questions
    ends: tuple[str, str] = ("active", "running")
    looks: int = 0

    def _restart(self, request: object, *_: object) -> object:  # type: ignore[override]
        from jeepney import new_method_return

        unit = self.units[UNIT]
        unit.active, unit.sub = "deactivating", "stop-sigterm"
        self.changed = {**JOB}
        yield new_method_return(request, "o", ("/job/7",))

    def _answers(self, request: object, member: str) -> object:  # type: ignore[override]
        unit = self.units[UNIT]
        if member == "GetAll" and unit.active == "deactivating":
            self.looks += 1
            if self.looks > self.stops_after:
                unit.active, unit.sub = self.ends
                unit.starts, unit.main_pid, self.changed = 1, 62, {}
        yield from super()._answers(request, member)


@pytest.mark.parametrize("systemd", [Unmoved, CancelledSystemd])
def test_a_unit_that_is_as_before_was_not_restarted_whatever_is_said_of_the_job(
    tmp_path: Path, systemd: type[FakeSystemd]
) -> None:
    with pytest.raises(NotBegunError, match=rf"restart {UNIT} \(another command cancelled it"):
        restarted(tmp_path, systemd({UNIT: FakeUnit()}), PATIENT)


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


@pytest.mark.parametrize("began", [True, False], ids=["and has begun with it", "and forgets it"])
def test_a_restart_goes_on_where_systemd_executes_itself_anew(tmp_path: Path, *, began: bool) -> None:
    systemd = ExecutesItselfAnew({UNIT: FakeUnit()})
    systemd.began = began
    forgotten = pytest.raises(NotBegunError, match="disconnected from message bus")

    with nullcontext() if began else forgotten:
        restarted(tmp_path, systemd, Patience(60, never))

    assert systemd.calls.count("RestartUnit") == 1


NEVER = 10**6


@pytest.mark.parametrize(
    ("slow", "stop_s", "error", "said"),
    [
        pytest.param({}, 60.0, None, "", id="stops late, and starts"),
        pytest.param({"stops_after": NEVER}, 0.3, PendingError, "has stopped and started", id="never stops"),
        pytest.param({"stops_after": NEVER}, 0.0, PendingError, "hangs", id="of a pod that ends"),
        pytest.param(
            {"ends": ("failed", "failed")}, 60.0, InstallerError, "unit failed/failed", id="does not start"
        ),
    ],
)
def test_a_stop_is_outlasted_as_long_as_it_may_take_but_not_by_a_pod_that_ends(
    tmp_path: Path, slow: dict[str, Any], stop_s: float, error: type[InstallerError] | None, said: str
) -> None:
    systemd, checked = SlowToStop({UNIT: FakeUnit()}, **slow), list[str]()
    patience = Patience(0.2, lambda: checked.append("check"), stop_s=stop_s)

    with pytest.raises(InstallerError) if error else nullcontext() as caught:
        restarted(tmp_path, systemd, patience)

    assert checked
    if caught is None:
        assert systemd.units[UNIT].active == "active"
    else:
        assert caught.type is error
        assert said in str(caught.value)
